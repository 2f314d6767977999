"""What was measured of the machine: coverage, GPUs that were lost, and GPUs whose own errors ended ranks.

Ranks go by host and local rank, which stay the same when a relaunch renumbers them: arrays are (hosts, local ranks).

**Environment variables** leave paths of a run untested, and make speeds that are not the hardware's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.judge.answer import Answer
from pytest_ddpscale.judge.links import gpu_pairs_of
from pytest_ddpscale.judge.values import matching_study
from pytest_ddpscale.plan.pairing import first_rounds
from pytest_ddpscale.plan.variables import Variable, is_selected, variable_of
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
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.records import GpuErrors, RankGpuError
from pytest_ddpscale.run.table import NO_ROUNDS, ArmRounds, RankColumns, memoized
from pytest_ddpscale.run.verdicts import BY_VARIABLE, WRONG_DATA, Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase
from pytest_ddpscale.util.arrays import BoolArray, IntArray


class _Presence(NamedTuple):
    """Who was measured.

    Attributes:
        known: the devices of all ranks as surveyed and as launched; of a rank the last one counts.
        ranks: those that each host should have, host by host, then the known ones beyond.
        times: number of rows of each arm with a rank, (ranks,).
        missed: largest number of rounds of one arm of all ranks that others were measured in and a rank was not,
            (ranks,).
        lost: whether it missed more than the end of a run may cut short, (ranks,).
    """

    known: Collection[Place]
    ranks: RankColumns
    times: Mapping[ArmRounds, IntArray]
    missed: IntArray
    lost: BoolArray


@memoized
def _presence(evidence: Evidence) -> _Presence:
    plan, layout, arms = evidence.plan, evidence.plan.layout, evidence.columns.arms
    surveyed = (
        gpu.on(host) for host, survey in evidence.surveys.items() for gpu in survey.gpus if gpu.local_rank is not None
    )
    known = dict.fromkeys(chain(surveyed, *(gang.places for gang in evidence.gangs)))
    hosts = sorted({*evidence.hosts, *evidence.surveys})
    places = {(host, number): Place(host, number) for host in hosts for number in range(layout.ranks_per_node)}
    places |= {place.of_rank: place for place in known}
    node = np.arange(len(places)) // layout.ranks_per_node
    column = {place: number for number, place in enumerate(places)}
    times, missed = dict[ArmRounds, IntArray](), np.zeros(len(places), np.int64)
    for block, arm in arms.items():
        at = np.array([column[place] for place in arm.ranks.places])
        times[arm] = present = np.zeros_like(missed)
        present[at] = arm.present.sum(axis=0)
        planned = plan.arm(*block)
        if planned is None or planned.name in evidence.unsupported:  # out of memory
            continue
        # One that never came, too. In a probe of several a rank waits for its partner, and both are absent.
        is_alone = not planned.is_probe or planned.world_size == 1
        if is_alone and len(layout.ranks([planned])) == layout.world_size:
            expected = np.isin(node, node[at])
            missed = np.maximum(missed, expected * (arm.present.any(axis=1).sum() - present))
    ranks = RankColumns(np.arange(len(places)), np.fromiter(places.values(), np.object_))
    # One round may have been cut short by the end of the run.
    return _Presence(known, ranks, times, missed, missed > 1)


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
    seen, plan, layout, rails = _presence(evidence), evidence.plan, evidence.plan.layout, gpu_pairs_of(evidence)
    hosts = {host: number for number, host in enumerate(sorted({*seen.ranks.by_host, *left_out}))}
    named = len(hosts) - len(left_out)
    planned, together, over_all = max(plan.nodes, named), list[str](), list[str]()
    # What tested a GPU, and which undecided requirements a lost rank was measured for less often than others.
    tested = {kind: np.zeros_like(seen.lost) for kind in (PROBES, TRAINING, INFERENCE)}
    missing = dict[str, BoolArray]()
    for case in cases:
        measured, kind, is_between = measured_for(case, evidence)
        if case.id not in verdicts or not len(measured):
            continue
        times, outcome = seen.times[measured], verdicts[case.id].outcome
        if is_decided := outcome in ("passed", "failed"):
            tested[kind] |= times > 0
        elif outcome != "error":
            missing[case.id] = seen.lost & (times < times.max())
        if is_between:
            together.append(case.id)
            if is_decided and len(measured.ranks.by_host) == planned:
                over_all.append(case.id)
    nodes = list[NodeCoverage]()
    ends, first, rounds = np.unique(rails.pairs[:, :2], axis=0, return_index=True, return_counts=True)
    one, other = np.array([hosts[host] for host in rails.hosts], np.int64)[ends].T.tolist()
    best, paired = np.maximum.reduceat(rails.least_gbps, first), {*one, *other}
    paths = map(PathCoverage, one, other, best.tolist(), rounds.tolist())
    for host, node in hosts.items():
        at, survey = np.array(seen.ranks.by_host.get(host, ()), np.int64), evidence.surveys.get(host)
        places = seen.ranks.rank_places[at]
        used = {place.uuid for place in places} - {""}
        silent = [
            gpu
            for gpu in (survey.gpus if survey else ())
            if gpu.is_visible and gpu.problem and gpu.local_rank is None and gpu.uuid not in used
        ]
        answering = gpus_per_node - len(silent)  # some without a rank
        gpus = [
            GpuCoverage(
                place,
                tuple(kind for kind, where in tested.items() if where[number]),
                "",
                int(seen.missed[number]),
                tuple(name for name, where in missing.items() if where[number]),
            )
            for number, place in zip(at.tolist(), places, strict=True)
            if place in seen.known or place.local_rank < answering
        ]
        gpus += [GpuCoverage(Place(host, number)) for number in range(len(at), answering)]
        gpus += [GpuCoverage(gpu.on(host), problem=gpu.problem) for gpu in silent]
        by = [kind for kind, where in tested.items() if where[at].any()] + [PAIRS] * (node in paired)
        by = [SURVEY, *by] if survey and not survey.problem else by
        gpus *= plan.device_type == "cuda"
        nodes.append(NodeCoverage(host, tuple(by), left_out.get(host, ""), tuple(gpus)))
    ended = evidence.errors.get(PAIRS) or evidence.interrupted.get(PAIRS, "")
    ended = "--ddp-budget ran out" if PAIRS in evidence.out_of_time else ended
    paths_planned = sum(map(len, first_rounds(plan.nodes))) if plan.pairs else 0
    return Coverage(
        tuple(nodes), planned - named, layout.ranks_per_node, layout.world_size,
        tuple(paths), paths_planned, ended, tuple(together), tuple(over_all),
    )  # fmt: skip


def measured_for(case: AnyCase, evidence: Evidence) -> tuple[ArmRounds, str, bool]:
    """What was measured for a requirement, of which kind it is, and whether ranks of several nodes did it together.

    Nothing for one on neither training nor a probe.
    """
    if isinstance(case, NodeCase):
        arm, study_id = case.probe, PROBES
    else:
        arm, study = case.question.measured, matching_study(evidence.plan, case.question)
        study_id = study.id if study else ""
    if arm is None:
        return NO_ROUNDS, "", False
    measured, layout = evidence.columns.arms.get((study_id, arm.name), NO_ROUNDS), evidence.plan.layout
    # The plan of an imported run has one node, even if its ranks were on several hosts.
    spans_nodes = len(measured.ranks.by_host) > 1 and (layout.nodes == 1 or not layout.fits_node(arm))
    kind = PROBES if arm.is_probe else INFERENCE if arm.infers else TRAINING
    return measured, kind, spans_nodes and (arm.is_probe or arm.kind == "ddp")


def lost_places(evidence: Evidence) -> dict[Place, int]:
    """GPUs that stopped being measured while their peers were, with the number of rounds.

    A gang does not outlive a rank that is killed or a time limit, so only its device explains why one rank alone is
    missing. Of a node with most of its ranks missing no single GPU is lost.
    """
    seen, per_node = _presence(evidence), evidence.plan.layout.ranks_per_node
    lost = np.flatnonzero(seen.lost)
    node = lost // per_node
    lost = lost[2 * np.bincount(node)[node] <= per_node]
    return dict(zip(seen.ranks.rank_places[lost], seen.missed[lost].tolist(), strict=True))


def gpu_errors_in(evidence: Evidence, study: str | None = None) -> list[Culprit]:
    """GPUs whose errors ended ranks, those at fault for certain first; of a study those that left it without a result.

    An error such as an illegal memory access may come from a broken GPU or from a wrong kernel, which fails on all
    ranks that run it, or on one by chance. So a GPU is at fault for certain if its errors ended its rank in two gangs
    or more (three with two ranks), in each of which peers did the same work without such an error, and in every gang
    that GPU errors ended on its node. After one gang, or if it worked alone, it is a suspect. If half of the ranks or
    more fail alike, none of them is accused; with two ranks, one may be. An error of NVLink leaves its GPU a suspect
    however often it comes, because the other end may be at fault; and one that a program may have made, until it comes
    under another local rank or with another batch: in every other gang two ranks swap theirs.
    """
    known = _presence(evidence).known if evidence.gpu_errors else ()
    devices = {place.identity: place for place in known} | {place.of_rank: place for place in known}
    gangs_on, by_gpu = defaultdict[str, set[int]](set), defaultdict[Place, list[tuple[GpuErrors, RankGpuError]]](list)
    for gang in evidence.gpu_errors:
        for error in gang.errors:
            if error.peer:
                continue
            gangs_on[error.place.host].add(gang.gang)
            if len(gang.errors) == 1 or 2 * len(gang.errors) < gang.ranks:
                place = devices.get(error.place.identity) or devices.get(error.place.of_rank, error.place)
                by_gpu[place].append((gang, error))
    culprits = list[Culprit]()
    for place, own in by_gpu.items():
        # Two gangs hit one of many ranks by chance only rarely, and the same one of two in half of the cases.
        needed = 3 if any(gang.ranks == 2 for gang, _ in own) else 2
        seen = [
            (gang.gang, error) for gang, error in own
            if error.peers >= len(gang.errors) and "nvlink" not in error.error.lower()  # CUDA 220 and 226
        ]  # fmt: skip
        shown, of_device = {gang for gang, _ in seen}, {gang for gang, error in seen if not error.is_program}
        batches = {
            (error.place.local_rank, gang % 2 if _has_own_batch(evidence, error) else None) for gang, error in seen
        }
        is_certain = needed <= len(shown) == len(gangs_on[place.host])
        is_certain &= needed <= len(of_device) or len(batches) > 1
        if study is None or any(study in gang.studies for gang, _ in own):
            errors = tuple(dict.fromkeys(error.error for _, error in own))
            why = because("gpu-errors", errors[:2], len({gang.gang for gang, _ in own}), is_certain, place.host)
            culprits.append(Culprit("gpu", (place,), why, is_certain))
    return sorted(culprits, key=lambda culprit: not culprit.is_certain)


def _has_own_batch(evidence: Evidence, error: RankGpuError) -> bool:
    """Whether it came in an arm for which each rank makes a batch of its own."""
    study, arm = evidence.plan.study(error.study or ""), evidence.plan.arm(error.study or "", error.arm or "")
    if study is None or arm is None:
        return False
    return not arm.infers and not arm.variant.uneven_share and arm.data_of(study.workload) == "synthetic"


def lost_connections(evidence: Evidence, study_id: str) -> list[Culprit]:
    """Links between nodes that did not answer, where nothing else ended their gang. None is certain: either end, its
    adapter or a switch may be at fault. An address that no node has, or several, names nobody."""
    culprits = dict[tuple[Place, ...], Culprit]()
    for gang in evidence.gpu_errors:
        for error in gang.errors if study_id in gang.studies else ():
            at = [host for host, survey in evidence.surveys.items() if error.peer in survey.addresses]
            if len(at) == 1 and at[0] != error.place.host:
                ends = tuple(map(Place, sorted((error.place.host, at[0]))))
                culprits.setdefault(ends, Culprit("link", ends, because("text", error.error), is_certain=False))
    return list(culprits.values())


@memoized
def _variables(evidence: Evidence) -> dict[tuple[Variable, str, str], dict[str, None]]:
    """Hosts that have a variable set, by variable, its own name and value; those of paths that the run has."""
    by_setting = defaultdict[tuple[Variable, str, str], dict[str, None]](dict)
    environments = [(gang.ranks[0].place.host, gang.ranks[0].environment) for gang in evidence.gangs]
    environments += [(place.host, transport.variables) for place, transport in evidence.transports.items()]
    has = {"node": evidence.plan.layout.ranks_per_node > 1, "net": evidence.plan.nodes > 1}
    for host, name, value in ((host, *variable) for host, variables in environments for variable in variables.items()):
        ports = evidence.surveys[host].infiniband if name == "NCCL_IB_HCA" and host in evidence.surveys else ()
        active = [port for port in ports if "ACTIVE" in port.state.upper()]
        # All that are active, of Ethernet only where there are no others, are no choice.
        others = [is_selected(port.device, value) for port in active if port.link_layer != "Ethernet"]
        chosen = others or [is_selected(port.device, value) for port in active]
        variable = variable_of(name, value)
        if variable and has.get(variable.where, True) and not (chosen and all(chosen)):
            by_setting[variable, name, value][host] = None
    return by_setting


def notes_on_variables(evidence: Evidence, cases: Sequence[AnyCase]) -> Iterator[Reason]:
    """A note on each variable: what is set, where unless everywhere, what it does, and why the site sets it."""
    on_purpose = dict(cases[0].environment) if cases else {}
    for (variable, name, value), hosts in _variables(evidence).items():
        where = tuple(hosts) if len(hosts) < len({*evidence.hosts}) else ()
        yield because(
            "variable", f"{name}={value}", where, variable.what, variable.effect, on_purpose.get(variable.name, "")
        )


def doubt_variables(answer: Answer, case: AnyCase, evidence: Evidence) -> None:
    """Leave what a variable slows undecided, and accuse no hardware of what a variable does.

    `transport` finds what a variable explains between nodes wherever it is set. On speed counts what changes it. Then a
    GPU that computes slowly does so whatever its links do, pairs of nodes are unlike others whatever all nodes leave
    unused, and one without the variable is slow by itself, unless others with it took part.
    """
    requirement, passed, spans_nodes = case.requirement, answer.outcome == "passed", measured_for(case, evidence)[2]
    if not (passed or answer.outcome == "failed") or WRONG_DATA in answer.flags:
        return
    is_speed, left, texts = not requirement.definition.compares_results, answer.culprits, list[tuple[str, str]]()
    effects = ("slows",) if passed else ("slows", "reroutes")
    is_joint = is_speed and requirement.definition.communicates and case.world_size > 1
    concerns = {"": is_speed, "net": spans_nodes, "node": is_joint, "ranks": is_joint}
    for (variable, name, value), hosts in _variables(evidence).items():
        blamed = set[Culprit]()
        for culprit in answer.culprits:
            code, is_there = culprit.because.code, culprit.host in hosts
            if requirement.check:
                may_be = code in variable.explains and (is_there or variable.where == "net")
            elif code == "slow-pairs":
                may_be = variable.effect != "reroutes" or not hosts.keys() >= {*evidence.hosts}
            else:
                may_be = (spans_nodes or is_there) and not (culprit.slowdown and variable.where)
            blamed |= {culprit} if may_be else set()
        changes = concerns[variable.where] and variable.effect in effects
        if blamed if requirement.check else changes and variable.name not in dict(case.environment):
            texts.append((f"{name}={value}", variable.what))
            left = [culprit for culprit in left if culprit not in blamed]
    if texts:
        answer.culprits = left
    if texts and not left:
        answer.outcome = "inconclusive" if passed else "failed"
        answer.reasons.insert(0, because("by-variable", tuple(text for text, _ in texts), texts[0][1]))
        answer.flags.append(BY_VARIABLE)
