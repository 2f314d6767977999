"""What of a run's machine its measurements cover, told from the evidence and from what was decided with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pytest_ddpscale.blame.link_faults import node_pair_results
from pytest_ddpscale.evidence.columns import ArmColumns, RankColumns
from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.plan.pairing import first_rounds
from pytest_ddpscale.plan.study import Arm
from pytest_ddpscale.results.coverage import (
    INFERENCE,
    PAIRS,
    PROBES,
    SURVEY,
    TRAINING,
    Coverage,
    GpuCoverage,
    NodeCoverage,
    PathCoverage,
)
from pytest_ddpscale.results.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, Case
from pytest_ddpscale.verdict.answering_study import matching_study

_Block = tuple[str, str]  # study and arm, or probe's study and id
_Place = tuple[str, int]  # host and local rank
_KINDS = (SURVEY, PROBES, TRAINING, INFERENCE, PAIRS)
_DECIDED = ("passed", "failed")


def coverage_of(
    evidence: Evidence,
    cases: Sequence[AnyCase],
    verdicts: Mapping[str, Verdict],
    left_out: Mapping[str, str],
    gpus_per_node: int,
) -> Coverage:
    """What was tested. A measurement counts if a requirement was decided by it, whatever its bound rests on.

    Args:
        evidence: of the whole run.
        cases: what was selected.
        verdicts: on them, by their ids.
        left_out: nodes on which nothing was launched, and why.
        gpus_per_node: that may be used; 0 if unknown, or on a CPU.
    """
    blocks = _Blocks(evidence)
    judged = {case.id: block for case in cases if case.id in verdicts and (block := _block(case, evidence))}
    decided = {name: block for name, block in judged.items() if verdicts[name].outcome in _DECIDED}
    hosts = sorted(blocks.hosts | evidence.surveys.keys() | set(evidence.hosts) | left_out.keys())
    tested = blocks.tested(decided.values())
    nodes = tuple(_node(host, evidence, tested, blocks, left_out.get(host, ""), gpus_per_node) for host in hosts)
    planned = max(evidence.plan.nodes, len(hosts) - len(left_out))
    together = {name: blocks.of[block] for name, block in judged.items() if blocks.spans_nodes(block)}
    return Coverage(
        nodes=nodes,
        unnamed_nodes=planned - (len(hosts) - len(set(left_out) & set(hosts))),
        ranks_per_node=evidence.plan.layout.ranks_per_node,
        ranks=evidence.plan.layout.world_size,
        paths=tuple(_paths(evidence, hosts)),
        why_paths_are_missing=_why_no_pairs(evidence),
        paths_planned=sum(map(len, first_rounds(evidence.plan.nodes))) if evidence.plan.pairs else 0,
        between_nodes=tuple(together),
        over_all_nodes=tuple(
            name for name, places in together.items() if name in decided and len({h for h, _ in places}) == planned
        ),
    )


def is_between_nodes(case: AnyCase, evidence: Evidence) -> bool:
    """Whether ranks of several nodes measured a requirement together: it is one of `Coverage.between_nodes`."""
    block = _block(case, evidence)
    return block is not None and _Blocks(evidence).spans_nodes(block)


class _Blocks:
    """Who took part in what.

    Attributes:
        of: host, local rank of all that took part, by block.
        devices: UUIDs, by host and local rank.
        missed: rounds of an arm in which others were measured and it was not, by host and local rank.
        places: of all that measured anything, by host.
        hosts: their names.
        paired: hosts of the pairs of nodes that were measured.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._layout = evidence.plan.layout
        self._arms = {(study.id, arm.name): arm for study in evidence.plan.studies for arm in study.arms}
        self.of: dict[_Block, set[_Place]] = defaultdict(set)
        self._sizes: dict[_Block, int] = {}
        self.devices: dict[_Place, str] = {}
        self.missed: dict[_Place, int] = defaultdict(int)
        for key, trained in evidence.columns.arms.items():
            self._take(key, trained.ranks)
            self._miss(trained)
        for (name, world_size), probed in evidence.probes.items():
            block = (PROBES, f"{name}@{world_size}")
            self._sizes[block] = world_size
            self._take(block, probed.ranks)
        self.places: dict[str, list[_Place]] = defaultdict(list)
        for place in self.devices:
            self.places[place[0]].append(place)
        self.hosts = self.places.keys()
        self.paired = {host for pair in evidence.pairs for host in pair.hosts}

    def _take(self, block: _Block, ranks: RankColumns) -> None:
        places = ranks.places
        self.of[block].update(places)
        self.devices.update(zip(places, ranks.devices.tolist(), strict=True))

    def _miss(self, trained: ArmColumns) -> None:
        """Who is missing in rounds of an arm that has all its ranks in others; ranks may take turns where none has."""
        if trained.present.all(axis=1).any():
            missed = (trained.present.any(axis=1, keepdims=True) & ~trained.present).sum(axis=0)
            for at in missed.nonzero()[0].tolist():
                place = trained.ranks.places[at]
                self.missed[place] = max(self.missed[place], int(missed[at]))

    def tested(self, blocks: Iterable[_Block]) -> dict[_Place, set[str]]:
        """By what each place was tested."""
        found: dict[_Place, set[str]] = defaultdict(set)
        for block in blocks:
            arm = self._arms.get(block)
            kind = PROBES if block in self._sizes else INFERENCE if arm and arm.kind == "infer" else TRAINING
            for place in self.of[block]:
                found[place].add(kind)
        return found

    def spans_nodes(self, block: _Block) -> bool:
        """Whether ranks of several nodes had to communicate in it."""
        if len({host for host, _ in self.of[block]}) < 2:
            return False
        arm = self._arms.get(block) or Arm("ddp", self._sizes.get(block, 1), 1)
        # An imported run is planned as one node, whatever hosts its ranks were on.
        return arm.kind == "ddp" and arm.world_size > 1 and (self._layout.nodes == 1 or not self._layout.fits_node(arm))


def _block(case: AnyCase, evidence: Evidence) -> _Block | None:
    """What was measured for a requirement; None of one that is about something else."""
    if not isinstance(case, Case):
        return (PROBES, f"{case.probe.name}@{case.probe.world_size}") if case.probe else None
    question = case.question
    study = matching_study(evidence.plan, question)
    return (study.id, question.measured.name) if study else None


def _node(
    host: str,
    evidence: Evidence,
    tested: Mapping[_Place, set[str]],
    blocks: _Blocks,
    left_out: str,
    gpus_per_node: int,
) -> NodeCoverage:
    by = {kind for place in blocks.places.get(host, ()) for kind in tested.get(place, ())}
    if host in evidence.surveys and not evidence.surveys[host].problem:
        by.add(SURVEY)
    if host in blocks.paired:
        by.add(PAIRS)
    has_gpus = evidence.plan.device_type == "cuda"
    gpus = _gpus(host, evidence, tested, blocks, gpus_per_node) if has_gpus else ()
    return NodeCoverage(host, _in_order(by), left_out, gpus)


def _gpus(
    host: str,
    evidence: Evidence,
    tested: Mapping[_Place, set[str]],
    blocks: _Blocks,
    gpus_per_node: int,
) -> tuple[GpuCoverage, ...]:
    """Those that ranks may use, by number, and after them those that do not answer."""
    survey = evidence.surveys.get(host)
    seen = survey.gpus if survey else ()
    uuids = {gpu.local_rank: gpu.uuid for gpu in seen if gpu.local_rank is not None}
    uuids |= {place[1]: blocks.devices[place] for place in blocks.places.get(host, ())}
    numbers = sorted(uuids.keys() | set(range(gpus_per_node)))
    found = [
        GpuCoverage(
            i, uuids.get(i, ""), _in_order(tested.get((host, i), ())), rounds_missing=blocks.missed.get((host, i), 0)
        )
        for i in numbers
    ]
    silent = [gpu for gpu in seen if gpu.local_rank is None and gpu.is_visible and gpu.problem]
    return (*found, *(GpuCoverage(None, gpu.uuid or f"NVML index {gpu.index}", (), gpu.problem) for gpu in silent))


def _in_order(kinds: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(kinds, key=_KINDS.index))


def _why_no_pairs(evidence: Evidence) -> str:
    """What ended the search over pairs of nodes early; empty if nothing did."""
    if evidence.plan.pairs is None:
        return ""
    study = evidence.plan.pairs.id
    if study in evidence.out_of_time:
        return "the time of --ddp-budget was over"
    return evidence.errors.get(study, "") or evidence.interrupted.get(study, "")


def _paths(evidence: Evidence, hosts: Sequence[str]) -> Iterable[PathCoverage]:
    """Pairs of nodes that were measured directly."""
    numbers = {host: number for number, host in enumerate(hosts)}
    reached: dict[tuple[int, int], list[float]] = defaultdict(list)
    for (one, other), gbps in node_pair_results(evidence.pairs):
        reached[numbers[one], numbers[other]].append(gbps)
    return (PathCoverage(*nodes, max(gbps), len(gbps)) for nodes, gbps in sorted(reached.items()))
