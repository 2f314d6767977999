"""Coverage of the machine by a run's measurements, from the evidence and the verdicts on it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from pytest_ddpscale.judge.links import node_pairs, rails_of
from pytest_ddpscale.judge.values import matching_study
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import first_rounds
from pytest_ddpscale.run.columns import ArmColumns
from pytest_ddpscale.run.coverage import (
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
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.rank_columns import RankColumns
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, Case

_Block = tuple[str, str]  # study and arm, or probe's study and id
_Place = tuple[str, int]  # host and local rank
_KINDS = (SURVEY, PROBES, TRAINING, INFERENCE, PAIRS)
_DECIDED, _UNDECIDED = ("passed", "failed"), ("inconclusive", "not_measured")
# One round may have been cut short by the end of the run.
_MOST_CUT_SHORT = 1


def coverage_of(
    evidence: Evidence,
    cases: Sequence[AnyCase],
    verdicts: Mapping[str, Verdict],
    left_out: Mapping[str, str],
    gpus_per_node: int,
) -> Coverage:
    """Coverage of a run. A measurement counts if it decided a requirement, with a published bound or not.

    Args:
        evidence: of the whole run.
        cases: the selected ones, with `verdicts` by id.
        left_out: reason by host for nodes on which nothing was launched.
        gpus_per_node: number of usable GPUs; 0 if unknown, or on a CPU.
    """
    blocks = _blocks(evidence)
    judged = {case.id: block for case in cases if case.id in verdicts and (block := _block(case, evidence))}
    decided = {name: block for name, block in judged.items() if verdicts[name].outcome in _DECIDED}
    undecided = [(name, study) for name, (study, _) in judged.items() if verdicts[name].outcome in _UNDECIDED]
    hosts = sorted(blocks.hosts | evidence.surveys.keys() | set(evidence.hosts) | left_out.keys())
    tested = blocks.tested(decided.values())

    on_host: dict[str, dict[int, Place]] = defaultdict(dict)
    for (node_name, rank), one in _rank_places(evidence, blocks).items():
        on_host[node_name][rank] = one

    def gpus(host: str) -> Iterator[GpuCoverage]:
        """GPUs that ranks may use, by local rank, then those that do not answer."""
        ranks = on_host[host]
        survey, used = evidence.surveys.get(host), {place.uuid for place in ranks.values()}
        silent = [
            one
            for one in (survey.gpus if survey else ())
            if one.is_visible and one.problem and one.local_rank is None and one.uuid not in used - {""}
        ]
        for i in sorted(ranks.keys() | set(range(gpus_per_node - len(silent)))):
            place, at = (host, i), blocks.missing_in.get((host, i), ())
            missing_in = tuple(name for name, study in undecided if study in at)
            tested_by, gpu = _in_order(tested.get(place, ())), ranks.get(i, Place(host, i))
            yield GpuCoverage(gpu, tested_by, "", blocks.missed.get(place, 0), missing_in)
        for one in silent:
            yield GpuCoverage(one.on(host), (), one.problem)

    def node(host: str) -> NodeCoverage:
        by = {kind for place in blocks.places.get(host, ()) for kind in tested.get(place, ())}
        is_surveyed = host in evidence.surveys and not evidence.surveys[host].problem
        by |= ({SURVEY} if is_surveyed else set()) | ({PAIRS} if host in blocks.paired else set())
        has_gpus = evidence.plan.device_type == "cuda"
        return NodeCoverage(host, _in_order(by), left_out.get(host, ""), tuple(gpus(host)) if has_gpus else ())

    planned = max(evidence.plan.nodes, len(hosts) - len(left_out))
    together = {name: blocks.of[block] for name, block in judged.items() if blocks.spans_nodes(block)}
    return Coverage(
        nodes=tuple(map(node, hosts)),
        unnamed_nodes=planned - (len(hosts) - len(set(left_out) & set(hosts))),
        ranks_per_node=evidence.plan.layout.ranks_per_node,
        ranks=evidence.plan.layout.world_size,
        paths=_paths(evidence, hosts),
        why_paths_are_missing=_why_no_pairs(evidence),
        paths_planned=sum(map(len, first_rounds(evidence.plan.nodes))) if evidence.plan.pairs else 0,
        between_nodes=tuple(together),
        over_all_nodes=tuple(
            name for name, places in together.items() if name in decided and len({h for h, _ in places}) == planned
        ),
    )


def is_between_nodes(case: AnyCase, evidence: Evidence) -> bool:
    """Whether ranks of several nodes measured a requirement together, as in `Coverage.between_nodes`."""
    block = _block(case, evidence)
    return block is not None and _blocks(evidence).spans_nodes(block)


def _rank_places(evidence: Evidence, blocks: _Blocks) -> Mapping[_Place, Place]:
    """Device of each rank by host and local rank: as measured, else as surveyed."""

    def find() -> Mapping[_Place, Place]:
        measured = {**blocks.seen, **blocks.devices}
        surveyed = {
            (host, gpu.local_rank): gpu.on(host)
            for host, survey in evidence.surveys.items()
            for gpu in survey.gpus
            if gpu.local_rank is not None
        }
        return {**surveyed, **measured}

    return evidence.once("places of ranks", find)


def lost_places(evidence: Evidence) -> dict[Place, int]:
    """GPUs that stopped being measured while their peers were, with the number of rounds.

    A gang does not outlive a rank that is killed or a time limit, so only its device explains why one rank alone is
    missing. Of a node with most of its ranks missing no single GPU is lost.
    """
    blocks = _blocks(evidence)
    on_host = Counter(host for host, _ in blocks.missing_in)
    few = evidence.plan.layout.ranks_per_node / 2
    ranks = _rank_places(evidence, blocks) if blocks.missing_in else {}
    return {
        ranks.get(place, Place(*place)): blocks.missed[place]
        for place in sorted(blocks.missing_in)
        if on_host[place[0]] <= few
    }


def _blocks(evidence: Evidence) -> _Blocks:
    return evidence.once("blocks by place", lambda: _Blocks(evidence))


class _Blocks:
    """The ranks that took part in each block: places by block and by host, and devices by place.

    Attributes:
        devices: devices of the ranks that were measured, by place.
        seen: those of all ranks that computed a seeded step, if one of them was never measured.
        missed: number of rounds of an arm or probe in which others were measured and this rank was not, by place.
        missing_in: studies, or the probes, of which a rank missed more than the end of a run may cut short, by place.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._layout = evidence.plan.layout
        self._arms = {(study.id, arm.name): arm for study in evidence.plan.studies for arm in study.arms}
        self.of: dict[_Block, set[_Place]] = defaultdict(set)
        self._sizes: dict[_Block, int] = {}
        self.devices: dict[_Place, Place] = {}
        self.missed: dict[_Place, int] = defaultdict(int)
        self.missing_in: dict[_Place, set[str]] = defaultdict(set)
        for key, trained in evidence.columns.arms.items():
            if key[0] in (PROBES, PAIRS):
                continue
            self._take(key, trained.ranks)
            self._miss(trained)
            arm = self._arms.get(key)
            if arm is not None and not self._layout.takes_turns(arm) and not trained.single_sample.any():
                self._never_came(trained, self._layout.ranks([arm]))
        for probed in evidence.probes:
            block = (PROBES, probed.arm)
            self._sizes[block] = world_size = int(probed.arm.partition("@")[2] or 1)
            self._take(block, probed.ranks)
            if world_size == 1 and probed.arm not in evidence.unsupported:  # else it may have run out of memory
                self._never_came(probed, range(self._layout.world_size))
                self._miss(probed)
        self._miss_probes(evidence)
        self.places: dict[str, list[_Place]] = defaultdict(list)
        for place in self.devices:
            self.places[place[0]].append(place)
        self.hosts = self.places.keys()
        never, on_host = self.missing_in.keys() - self.devices.keys(), defaultdict[str, set[str]](set)
        for (study, _), places in self.of.items() if never else ():
            for host in {host for host, _ in places}:
                on_host[host].add(study)
        for place in never:  # it also misses its turn in all studies of its host
            self.missing_in[place] |= on_host[place[0]]
        studies = evidence.seeded_steps.values() if never else ()
        self.seen = {place.of_rank: place for steps in studies for place in steps}
        rails = rails_of(evidence)
        self.paired = {rails.hosts[node] for node in np.unique(rails.nodes).tolist()}

    def _take(self, block: _Block, ranks: RankColumns) -> None:
        places = ranks.places
        self.of[block].update(places)
        self.devices.update(zip(places, ranks.rank_places, strict=True))

    def _miss(self, trained: ArmColumns) -> None:
        """Note ranks that miss some rounds, if all were present in another one: otherwise ranks may take turns."""
        present = trained.present
        if present.all(axis=1).any():
            missed = (present.any(axis=1, keepdims=True) & ~present).sum(axis=0)
            for at in missed.nonzero()[0].tolist():
                self._note(trained.study, trained.ranks.places[at], int(missed[at]))

    def _miss_probes(self, evidence: Evidence) -> None:
        """Note ranks that miss training rounds and were probed less often than others.

        In pairs both ends are probed less often, so probes alone do not tell which one is missing.
        """
        for probed in evidence.probes if self.missing_in else ():
            times = probed.present.sum(axis=0)
            for at in (times < times.max(initial=0) - _MOST_CUT_SHORT).nonzero()[0].tolist():
                if (place := probed.ranks.places[at]) in self.missing_in:
                    self.missing_in[place].add(PROBES)

    def _never_came(self, measured: ArmColumns, planned: Iterable[int]) -> None:
        """Note ranks that never came while at least half of their node did; a lost node counts elsewhere."""
        per_node, numbers = self._layout.ranks_per_node, measured.ranks.numbers.tolist()
        there: dict[int, list[int]] = defaultdict(list)
        for column, number in enumerate(numbers):
            there[number // per_node].append(column)
        absent: dict[int, list[int]] = defaultdict(list)
        for number in set(planned) - set(numbers):
            absent[number // per_node].append(number)
        rounds = int(measured.present.any(axis=1).sum())
        for node, missing in absent.items():
            if len(there[node]) >= len(missing):
                host = measured.ranks.places[there[node][0]][0]
                for number in missing:
                    self._note(measured.study, (host, number % per_node), rounds)

    def _note(self, study: str, place: _Place, rounds: int) -> None:
        self.missed[place] = max(self.missed[place], rounds)
        if rounds > _MOST_CUT_SHORT:
            self.missing_in[place].add(study)

    def tested(self, blocks: Iterable[_Block]) -> dict[_Place, set[str]]:
        """Kinds of tests by place."""
        places: dict[str, set[_Place]] = defaultdict(set)
        for block in set(blocks):
            arm = self._arms.get(block)
            places[PROBES if block in self._sizes else INFERENCE if arm and arm.infers else TRAINING] |= self.of[block]
        found: dict[_Place, set[str]] = defaultdict(set)
        for kind, theirs in places.items():
            for place in theirs:
                found[place].add(kind)
        return found

    def spans_nodes(self, block: _Block) -> bool:
        """Whether ranks of several nodes communicated in a block."""
        if len({host for host, _ in self.of[block]}) < 2:
            return False
        arm = self._arms.get(block) or Arm("ddp", self._sizes.get(block, 1), 1)
        # The plan of an imported run has one node, even if its ranks were on several hosts.
        return arm.kind == "ddp" and arm.world_size > 1 and (self._layout.nodes == 1 or not self._layout.fits_node(arm))


def _block(case: AnyCase, evidence: Evidence) -> _Block | None:
    """The block measured for a requirement; None for one on neither training nor a probe."""
    if not isinstance(case, Case):
        return (PROBES, case.probe.name) if case.probe else None
    question = case.question
    study = matching_study(evidence.plan, question)
    return (study.id, question.measured.name) if study else None


def _in_order(kinds: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(kinds, key=_KINDS.index))


def _why_no_pairs(evidence: Evidence) -> str:
    """The reason why the search over node pairs ended early; empty if it did not."""
    study = evidence.plan.pairs.id if evidence.plan.pairs else ""
    if study in evidence.out_of_time:
        return "--ddp-budget ran out"
    return evidence.errors.get(study, "") or evidence.interrupted.get(study, "")


def _paths(evidence: Evidence, hosts: Sequence[str]) -> tuple[PathCoverage, ...]:
    """Measured pairs of nodes."""
    numbers = {host: number for number, host in enumerate(hosts)}
    reached: dict[tuple[int, int], list[float]] = defaultdict(list)
    rails = rails_of(evidence)
    pairs, gbps, _ = node_pairs(rails)
    for (_, one, other), value in zip(pairs.tolist(), gbps.tolist(), strict=True):
        reached[numbers[rails.hosts[one]], numbers[rails.hosts[other]]].append(value)
    return tuple(PathCoverage(*nodes, max(gbps), len(gbps)) for nodes, gbps in sorted(reached.items()))
