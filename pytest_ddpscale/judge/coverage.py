"""What was measured of the machine: coverage, GPUs that were lost, and GPUs whose own errors ended ranks.

Ranks go by host and local rank, which stay the same when a relaunch renumbers them: arrays are (hosts, local ranks).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from itertools import chain, compress

import numpy as np

from pytest_ddpscale.judge.answer import Answer
from pytest_ddpscale.judge.links import node_pairs, rails_of
from pytest_ddpscale.judge.values import matching_study
from pytest_ddpscale.plan.pairing import first_rounds
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
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.records import GpuErrors, RankGpuError
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, Case
from pytest_ddpscale.util.arrays import IntArray

_Block = tuple[str, str]  # study and arm
_OF_GPUS = PROBES, TRAINING, INFERENCE
# One round may have been cut short by the end of the run.
_MOST_CUT_SHORT = 1
# A second gang may hit one of many ranks by chance only rarely; of two ranks it hits the same one in half of the cases.
_GANGS_FOR_CERTAIN, _GANGS_FOR_CERTAIN_OF_TWO = 2, 3


class _Presence:
    """Who was measured. The last row of each array is of hosts that are not listed: nobody.

    Attributes:
        known: the devices of all ranks as surveyed, as launched and as measured; of a rank the last one counts.
        hosts: row of each host.
        places: of each rank, None where there is none, (hosts + 1, local ranks).
        times: number of rows of each block with this rank, (hosts + 1, local ranks).
        missed: largest number of rounds of one arm of all ranks that others were measured in and this rank was not.
        lost: whether it missed more than the end of a run may cut short, (hosts + 1, local ranks).
    """

    def __init__(self, evidence: Evidence) -> None:
        self._plan, arms = evidence.plan, evidence.columns.arms
        layout, per_node = self._plan.layout, self._plan.layout.ranks_per_node
        surveyed = [(host, gpu) for host, survey in evidence.surveys.items() for gpu in survey.gpus]
        launched = [gang.places for gang in evidence.gangs]
        measured = [ranks.rank_places for ranks in dict.fromkeys(arm.ranks for arm in arms.values())]
        of_surveys = [gpu.on(host) for host, gpu in surveyed if gpu.local_rank is not None]
        self.known = list(dict.fromkeys(chain(of_surveys, *launched, *measured)))
        named = sorted({*evidence.hosts, *(place.host for place in self.known)})
        self.hosts = {host: row for row, host in enumerate(named)}
        width = max([per_node, *(place.of_rank[1] + 1 for place in self.known)])
        self.places = np.full((len(named) + 1, width), None)
        for place in self.known:
            self.places[self.hosts[place.host], place.local_rank] = place
        self.times, self.missed = dict[_Block, IntArray](), np.zeros(self.places.shape, np.int64)
        for block, arm in arms.items():
            if block[0] == PAIRS:
                continue
            at = np.array([(self.hosts[host], number) for host, number in arm.ranks.places])
            self.times[block] = times = np.zeros_like(self.missed)
            times[tuple(at.T)] = arm.present.sum(axis=0)
            planned, is_imported = self._plan.arm(*block), arm.single_sample.any()
            if planned is None or is_imported or planned.name in evidence.unsupported:  # out of memory
                continue
            # One that never came, too. In a probe of several a rank waits for its partner, and both are absent.
            is_alone = not planned.is_probe or planned.world_size == 1
            if is_alone and len(layout.ranks([planned])) == layout.world_size:
                expected = times.any(axis=1, keepdims=True) & (np.arange(width) < per_node)
                missed = expected * (arm.present.any(axis=1).sum() - times)
                self.missed = np.maximum(self.missed, missed)
        self.lost = self.missed > _MOST_CUT_SHORT

    def nodes(self, block: _Block | None) -> int:
        """Number of hosts that measured a block."""
        return int(self.times[block].any(axis=1).sum()) if block in self.times else 0

    def spans_nodes(self, block: _Block | None) -> bool:
        """Whether ranks of several nodes communicated in a block."""
        layout, arm = self._plan.layout, self._plan.arm(*block) if block else None
        if arm is None or self.nodes(block) < 2 or not (arm.is_probe or arm.kind == "ddp"):
            return False
        # The plan of an imported run has one node, even if its ranks were on several hosts.
        return layout.nodes == 1 or not layout.fits_node(arm)


def _presence(evidence: Evidence) -> _Presence:
    return evidence.once("presence", lambda: _Presence(evidence))


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
    seen, plan = _presence(evidence), evidence.plan
    judged = {case.id: block for case in cases if case.id in verdicts and (block := _block(case, evidence))}
    decided = {name: block for name, block in judged.items() if verdicts[name].outcome in ("passed", "failed")}
    tested = np.zeros((len(_OF_GPUS), *seen.missed.shape), np.bool_)
    for block in {*decided.values()} & seen.times.keys():
        arm = plan.arm(*block)
        kind = PROBES if block[0] == PROBES else INFERENCE if arm and arm.infers else TRAINING
        tested[_OF_GPUS.index(kind)] |= seen.times[block] > 0
    missing_in = {  # where it had a lost rank less often than others, by undecided requirement
        name: seen.lost & (times < times.max())
        for name, block in judged.items()
        if verdicts[name].outcome in ("inconclusive", "not_measured") and (times := seen.times.get(block)) is not None
    }
    hosts = {host: number for number, host in enumerate(sorted({*seen.hosts, *evidence.surveys, *left_out}))}
    reached: dict[tuple[int, int], list[float]] = defaultdict(list)
    rails = rails_of(evidence)
    pairs, gbps, _ = node_pairs(rails)
    for (one, other), value in zip(rails.hosts[pairs[:, 1:]].tolist(), gbps.tolist(), strict=True):
        reached[hosts[one], hosts[other]].append(value)
    paired, nodes = {number for ends in reached for number in ends}, list[NodeCoverage]()
    for host, node in hosts.items():
        row, survey = seen.hosts.get(host, -1), evidence.surveys.get(host)
        ranks = seen.places[row].tolist()
        used = {place.uuid for place in ranks if place} - {""}
        silent = [
            one
            for one in (survey.gpus if survey else ())
            if one.is_visible and one.problem and one.local_rank is None and one.uuid not in used
        ]
        answering = gpus_per_node - len(silent)  # some without a rank
        gpus = [
            GpuCoverage(
                place or Place(host, number),
                tuple(compress(_OF_GPUS, tested[:, row, number])),
                rounds_missing=int(seen.missed[row, number]),
                missing_in=tuple(name for name, where in missing_in.items() if where[row, number]),
            )
            for number, place in enumerate(ranks)
            if place or number < answering
        ]
        gpus += [GpuCoverage(Place(host, number)) for number in range(len(ranks), answering)]
        gpus += [GpuCoverage(one.on(host), problem=one.problem) for one in silent]
        is_surveyed = survey is not None and not survey.problem
        by = compress((SURVEY, *_OF_GPUS, PAIRS), (is_surveyed, *np.any(tested[:, row], axis=1), node in paired))
        has_gpus = plan.device_type == "cuda"
        nodes.append(NodeCoverage(host, tuple(by), left_out.get(host, ""), tuple(gpus) if has_gpus else ()))
    named = len(nodes) - len(left_out)
    planned = max(plan.nodes, named)
    together = [name for name, block in judged.items() if seen.spans_nodes(block)]
    why_no_paths = evidence.errors.get(PAIRS, "") or evidence.interrupted.get(PAIRS, "")
    return Coverage(
        nodes=tuple(nodes),
        unnamed_nodes=planned - named,
        ranks_per_node=plan.layout.ranks_per_node,
        ranks=plan.layout.world_size,
        paths=tuple(PathCoverage(*ends, max(gbps), len(gbps)) for ends, gbps in sorted(reached.items())),
        paths_planned=sum(map(len, first_rounds(plan.nodes))) if plan.pairs else 0,
        why_paths_are_missing="--ddp-budget ran out" if PAIRS in evidence.out_of_time else why_no_paths,
        between_nodes=tuple(together),
        over_all_nodes=tuple(name for name in together if name in decided and seen.nodes(judged[name]) == planned),
    )


def is_between_nodes(case: AnyCase, evidence: Evidence) -> bool:
    """Whether ranks of several nodes measured a requirement together, as in `Coverage.between_nodes`."""
    return _presence(evidence).spans_nodes(_block(case, evidence))


def _block(case: AnyCase, evidence: Evidence) -> _Block | None:
    """The block measured for a requirement; None for one on neither training nor a probe."""
    if not isinstance(case, Case):
        return (PROBES, case.probe.name) if case.probe else None
    study = matching_study(evidence.plan, case.question)
    return (study.id, case.question.measured.name) if study else None


def lost_places(evidence: Evidence) -> dict[Place, int]:
    """GPUs that stopped being measured while their peers were, with the number of rounds.

    A gang does not outlive a rank that is killed or a time limit, so only its device explains why one rank alone is
    missing. Of a node with most of its ranks missing no single GPU is lost.
    """
    seen, hosts = _presence(evidence), list(_presence(evidence).hosts)
    few = 2 * seen.lost.sum(axis=1, keepdims=True) <= evidence.plan.layout.ranks_per_node
    return {
        seen.places[row, rank] or Place(hosts[row], rank): int(seen.missed[row, rank])
        for row, rank in np.argwhere(seen.lost & few).tolist()
    }


def gpu_errors_in(evidence: Evidence) -> Mapping[Culprit, Set[str]]:
    """GPUs whose errors ended ranks, those at fault for certain first, with the studies that have no result for them.

    An error such as an illegal memory access may come from a broken GPU or from a wrong kernel, which fails on all
    ranks that run it, or on one by chance. So a GPU is at fault for certain if its errors ended its rank in two gangs
    or more (three with two ranks), in each of which peers did the same work without such an error, and in every gang
    that GPU errors ended on its node. After one gang, or if it worked alone, it is a suspect. If half of the ranks or
    more fail alike, none of them is accused; with two ranks, one may be. An error of NVLink leaves its GPU a suspect
    however often it comes, because the other end may be at fault.
    """
    known = _presence(evidence).known if evidence.gpu_errors else ()
    devices = {place.identity: place for place in known} | {place.of_rank: place for place in known}
    gangs_on, by_gpu = defaultdict[str, set[int]](set), defaultdict[Place, list[tuple[GpuErrors, RankGpuError]]](list)
    for gang in evidence.gpu_errors:
        for one in gang.errors:
            gangs_on[one.place.host].add(gang.gang)
            if len(gang.errors) == 1 or 2 * len(gang.errors) < gang.ranks:
                place = devices.get(one.place.identity) or devices.get(one.place.of_rank, one.place)
                by_gpu[place].append((gang, one))
    found = dict[Culprit, Set[str]]()
    for place, own in by_gpu.items():
        needed = _GANGS_FOR_CERTAIN_OF_TWO if min(gang.ranks for gang, _ in own) == 2 else _GANGS_FOR_CERTAIN
        shown = {
            gang.gang
            for gang, one in own
            if one.peers >= len(gang.errors) and "nvlink" not in one.error.lower()  # CUDA 220 and 226
        }
        is_certain = needed <= len(shown) == len(gangs_on[place.host])
        gangs, errors = len({gang.gang for gang, _ in own}), list(dict.fromkeys(one.error for _, one in own))
        text = f"{' and '.join(errors[:2])} ended its rank in {gangs} {'gang' if gangs == 1 else 'gangs'}"
        if is_certain:
            text += ", while its peers did the same work without such an error"
        else:
            text += " (not certain: the software, or the other end of a link, may be at fault)"
        text += f"; look for its Xid: `dmesg | grep -i xid` on {place.host}"
        found[Culprit("gpu", (place,), because("text", text), is_certain)] = {
            study for gang, _ in own for study in gang.studies
        }
    return dict(sorted(found.items(), key=lambda one: not one[0].is_certain))


def name_gpu_errors(answer: Answer, study_id: str, evidence: Evidence) -> None:
    """Name the GPUs whose errors are the reason why a study has no result."""
    if answer.outcome == "error" and not answer.culprits:
        answer.culprits = [one for one, of in gpu_errors_in(evidence).items() if study_id in of]
