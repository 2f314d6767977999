"""Node checks: what is asked of a node whatever its speed, and the verdict over all nodes.

`plan.node_check` names and describes each check; the rule of that name finds what a node lacks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import product
from operator import itemgetter

import numpy as np

from pytest_ddpscale.judge.answer import Answer
from pytest_ddpscale.judge.check_rules import (
    NOTHING_EXPECTED,
    Finding,
    OfChecks,
    fault,
    find_surveyed,
    find_transports,
    gpus_afterwards,
    note,
    repairs,
    throttled,
    unknown,
)
from pytest_ddpscale.judge.devices import SHARE_OF_ROUNDS, flags, lasting_faults
from pytest_ddpscale.plan.node_check import NODE_CHECKS, NodeExpectation
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.survey_record import STUDY_ID, Survey
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.run.telemetry import TelemetryColumns
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase, expected_by
from pytest_ddpscale.util.arrays import BoolArray, IntArray
from pytest_ddpscale.util.listing import first_few

# Below this utilization a GPU, and with it its link, may be saving power.
BUSY_UTILIZATION = 0.5
# Polls are about a second apart, so only windows shorter than this may have none …
LONGEST_UNPOLLED_S = 2.0
# … and even short windows need on average one poll in this time.
RAREST_POLLS_S = 10.0
_UNDER_LOAD = ("ecc_under_load", "throttling_under_load", "pcie_under_load")
_MOST_NAMED = 3
_Found = list[tuple[str, Finding]]  # by host


def answer_check(answer: Answer, case: NodeCase, evidence: Evidence) -> Answer:
    """The answer on one check, from the blank one; its value is the share of nodes that pass.

    ``passed`` if every planned node passes, ``failed`` if any has a fault, else ``not_measured``; also ``not_measured``
    if the check needs a GPU and ranks train on CPUs.
    """
    check, plan = NODE_CHECKS[case.requirement.check], evidence.plan
    if not check.on_cpu and plan.device_type == "cpu":
        answer.reasons = [because("without-gpu", check.title)]
        return answer
    found = _found(check.name, case, evidence)
    hosts, told = {host for host, _ in found}, defaultdict[str, list[str]](list)
    for host, one in found:
        told[one.kind].append(f"{host}: {one.gpu.label}: {one.text}" if one.gpu else f"{host}: {one.text}")
    planned, untold = max(plan.nodes, len(hosts | {*evidence.hosts})), told["unknown"]
    answer.remarks = [because("text", text) for text in told["note"]]
    nodes, broken = "1 node" if planned == 1 else f"{planned} nodes", {**evidence.interrupted, **evidence.errors}
    if planned > len(hosts):
        untold.append(f"{planned - len(hosts)} of {nodes} reported nothing")
    if check.reads == "telemetry" and (unended := sorted(broken.keys() - {PAIRS, STUDY_ID})):
        untold.append(f"no load to the end of {first_few(unended)}")
    if untold and not told["fault"]:
        why = f": {broken[STUDY_ID]}" if STUDY_ID in broken else ""
        answer.reasons = [because("text", f"missing data: {_listed(untold)}{why}")]
        return answer
    share = len(hosts - {host for host, one in found if one.kind in ("fault", "unknown")}) / planned
    answer.value, answer.interval, answer.rounds = share, (share, share), 1
    if not told["fault"]:
        answer.outcome = "passed"
        answer.reasons = [because("text", f"{'' if planned == 1 else 'all '}{nodes} as expected")]
        return answer
    accused, doubts = _accused(found, planned)
    answer.culprits = [
        Culprit("gpu" if one.gpu else "node", (one.gpu or Place(host),), because("text", one.text), is_certain)
        for host, one, is_certain in accused
    ]
    answer.remarks += [because("text", f"also missing data: {_listed(untold)}")] if untold else []
    answer.remarks += [because("text", f"{text} This names no node for certain") for text in doubts]
    reason = f"{len({host for host, *_ in accused})} of {nodes} not as expected: {_listed(told['fault'])}"
    answer.outcome, answer.reasons = "failed", [because("text", reason)]
    answer.flags = [PARTLY_KNOWN] if untold else []
    return answer


def _found(name: str, case: NodeCase, evidence: Evidence) -> _Found:
    """What a check finds, host by host."""
    check, expected = NODE_CHECKS[name], expected_by(evidence.plan, case.expected)
    if expected.device_type == "cpu" and not check.on_cpu:
        return []
    find = {"survey": find_surveyed, "transport": find_transports, "telemetry": _under_load}[check.reads]
    said = evidence.once((check.reads, expected), lambda: list(find(evidence, expected)))
    return sorted(((host, one) for of, host, one in said if of == name), key=itemgetter(0))


def _under_load(evidence: Evidence, expected: NodeExpectation) -> OfChecks:
    """GPUs by all their windows, and new errors after ranks have failed, which they may have caused.

    Too few windows, or none, of a planned rank's GPU count as missing data; an unchanged counter does not make up.
    """
    told, places = evidence.telemetry, dict[object, Place]()
    for place in told.places:
        places.setdefault(place.identity, place)
    numbers, gpus = {gpu: number for number, gpu in enumerate(places)}, list(places.values())
    gpu = np.array([numbers[place.identity] for place in told.places], np.int64)[told.place]
    at_fault = set[object]()
    for check, number, one in sorted(_in_windows(told, gpu, expected), key=itemgetter(1)):
        yield check, gpus[number].host, one._replace(gpu=gpus[number])
        if check == "ecc_under_load" and one.kind == "fault":
            at_fault.add(gpus[number].identity)
    for place, before, after in gpus_afterwards(evidence):
        if after is not None and place.identity not in at_fault:
            was, now, new = before.ecc_uncorrected, after.ecc_uncorrected, repairs(after)
            texts = [text for text, is_so in repairs(before).items() if is_so is False and new[text]]
            if was is not None and now is not None and now > was:
                texts.insert(0, f"{now - was} new uncorrectable memory errors")
            for text in texts[:1]:
                yield "ecc_under_load", place.host, fault(f"{text} after ranks failed", place, "nobody")
                at_fault.add(place.identity)
    # Only GPUs that the survey lists and that ran a block count, as far as both are known.
    arms = [arm for arm in evidence.columns.arms.values() if arm.study != PAIRS]
    worked, asked = {gpu for arm in arms for gpu in arm.ranks.gpus}, expected.gpus_per_node or 1
    surveys = [survey for survey in evidence.surveys.values() if not survey.problem]
    listed = {survey.host: {gpu.uuid for gpu in survey.gpus} for survey in surveys}
    watched = [gpus[number] for number in np.unique(gpu).tolist()]
    known = [one for one in watched if one.uuid in listed.get(one.host, (one.uuid,))]
    counting = Counter(one.host for one in known if not worked or (one.host, one.uuid) in worked)
    on_host = Counter(one.host for one in watched)
    for check, host in product(_UNDER_LOAD, {*on_host, *(host for host, _ in worked)}):
        yield check, host, Finding("looked", gpus=on_host[host])
        if counting[host] < asked:
            yield check, host, unknown(f"telemetry of only {counting[host]} of {asked} GPUs")


def _in_windows(told: TelemetryColumns, gpu: IntArray, expected: NodeExpectation) -> Iterator[tuple[str, int, Finding]]:
    """Checks under load, by number of the GPU.

    Args:
        told: windows.
        gpu: number of each window's GPU, (rows,).
        expected: of each node.
    """
    for kind, found in (("uncorrectable", told.ecc_uncorrected), ("corrected", told.ecc_corrected)):
        errors = np.bincount(gpu, np.nan_to_num(found))
        for number in np.flatnonzero(errors).tolist():
            text = f"{errors[number]:.0f} new {kind} memory errors under load"
            yield "ecc_under_load", number, note(text) if kind == "corrected" else fault(text, blame="nobody")
    # One unread window makes it unknown: if it is the last one of a launch, no later one counts its errors.
    is_unread = np.isnan(told.ecc_uncorrected)
    has_ecc = told.unreadable.where(lambda one: "not supported" not in one.get("ecc_uncorrected", "").lower())
    for number in np.unique(gpu[is_unread & (has_ecc | (expected.ecc is True))]).tolist():
        reasons = list(told.unreadable[is_unread & (gpu == number)])
        reason = reasons[0].get("ecc_uncorrected") or reasons[0].get("device", "the driver gives no reason")
        where = f"{len(reasons)} of {np.count_nonzero(gpu == number)} windows under load"
        yield "ecc_under_load", number, unknown(f"memory error counters cannot be read in {where} ({reason})")

    is_polled = told.polls > 0
    was_held_down = flags(told)["throttled"] & is_polled
    was_not = told.throttle_reasons.where(lambda one: one is not None) & is_polled & ~was_held_down
    for number, one in _in_most_windows(told, gpu, was_held_down, was_not, "throttle_reasons"):
        seen = set[str]().union(*map(lasting_faults, told.throttle_reasons[gpu == number].different.values()))
        held = throttled(sorted(seen))
        is_fault = one.kind == "fault"
        yield "throttling_under_load", number, held._replace(text=f"{held.text}, {one.text}") if is_fault else one

    # Too little is a fault of a busy GPU, and an idle one decides nothing.
    check, is_idle = "pcie_under_load", told.utilization < BUSY_UTILIZATION  # not of unknown utilization
    if expected.pcie_generation is None and expected.pcie_width is None:
        for number in np.unique(gpu).tolist():
            yield check, number, unknown(NOTHING_EXPECTED.format("pcie_generation or pcie_width"))
    for number in np.setdiff1d(gpu, gpu[~is_idle]).tolist():
        yield check, number, unknown(f"utilization never reached {100 * BUSY_UTILIZATION:.0f} %")
    told, gpu = told.of(~is_idle), gpu[~is_idle]
    for found, least, text in (
        (told.pcie_generation, expected.pcie_generation, "PCIe runs at generation {}"),
        (told.pcie_width, expected.pcie_width, "PCIe has {} lanes"),
    ):
        if least is not None:
            was_below = (found < least) & (told.utilization >= BUSY_UTILIZATION)
            for number, one in _in_most_windows(told, gpu, was_below, found >= least, "PCIe"):
                if one.kind == "fault":
                    lowest = text.format(f"{np.nanmin(found[gpu == number]):.0f}")
                    one = fault(f"{lowest}, expected {least}, {one.text}")
                yield check, number, one


def _in_most_windows(
    told: TelemetryColumns, gpu: IntArray, was_so: BoolArray, was_not: BoolArray, what: str
) -> Iterator[tuple[int, Finding]]:
    """Whether a condition held in at least half of an arm's windows, whatever the unreadable windows contain.

    Arms are judged one by one, so that probes, which heat nothing, cannot outvote a fault that shows only in training.
    An arm is unknown if unreadable windows could change the result, and a GPU if it was hardly polled. A single window
    may show a momentary excursion, so an arm needs several; if none has, all windows are judged together.

    Args:
        told: windows. Those without a poll do not count if a GPU has others, because a probe's may be shorter than the
            time between two polls; they do count if the GPU does not answer.
        gpu: number of each window's GPU.
        was_so: windows where the condition held.
        was_not: windows where it did not; windows in neither are unreadable.
        what: the reading that is missing in unreadable windows.

    Yields:
        Number of a GPU with a finding, faults with the windows alone.
    """
    if not len(told):
        return
    counting = (told.polls > 0) | told.unreadable.where(lambda reasons: "device" in reasons)
    counting |= told.seconds > LONGEST_UNPOLLED_S
    counting |= (np.bincount(gpu, counting) == 0)[gpu]
    shape = int(gpu.max()) + 1, len(told.arms)
    of_arm = gpu * shape[1] + told.arm
    of_several = counting & (np.bincount(of_arm, counting) > 1)[of_arm]
    has_several = (np.bincount(gpu, of_several) > 0)[gpu]
    counting, bins = np.where(has_several, of_several, counting), np.where(has_several, of_arm, gpu * shape[1])
    windows = [np.bincount(bins, counting & those, shape[0] * shape[1]) for those in (counting, was_so, was_not)]
    total, so, not_so = (one.reshape(shape) for one in windows)
    at_fault, untold = ((total > 0) & (one >= SHARE_OF_ROUNDS * total) for one in (so, total - not_so))
    found = np.where(at_fault.any(axis=1, keepdims=True), at_fault, untold)
    for number in np.flatnonzero(found.any(axis=1)).tolist():
        arms, is_fault = np.flatnonzero(found[number]), at_fault[number].any()
        names = ", ".join(" ".join(told.arms[arm]) for arm in arms.tolist())
        of_arms = f" of {names}" if len(arms) < np.count_nonzero(total[number]) else ""
        count = (so if is_fault else total - so - not_so)[number, arms].sum()
        text = f"in {count:.0f} of {total[number, arms].sum():.0f} windows"
        if is_fault:
            yield number, fault(f"{text} under load{of_arms}")
        else:
            yield number, unknown(f"{what} cannot be read {text}{of_arms}")
    seconds, polls = np.bincount(gpu, told.seconds), np.bincount(gpu, told.polls)
    is_hardly_polled = ~found.any(axis=1) & (seconds >= RAREST_POLLS_S * np.maximum(polls, 1))
    for number in np.flatnonzero(is_hardly_polled).tolist():
        yield number, unknown(f"only {polls[number]:.0f} polls in {seconds[number]:.0f} s under load")


def _accused(found: _Found, planned: int) -> tuple[list[tuple[str, Finding, bool]], list[str]]:
    """Faults with their hosts and whether they are certain, and doubts that arise if most nodes or most GPUs fail: the
    expectation, or something that they share, may be at fault.

    A node where only some GPUs fail has the others to compare with. With one node there is nothing to compare with, so
    a mismatch is the node's fault.
    """
    faults = [
        (host, one, "gpus" if one.gpu and one.blame == "peers" else one.blame)
        for host, one in found
        if one.kind == "fault"
    ]
    held, alike, wholly = (
        len({host for host, _, whose in faults if whose in among})
        for among in (("outside",), ("peers", "unclear"), ("gpus",))
    )
    gpus, doubts = len({one.gpu for _, one, whose in faults if whose == "gpus"}), dict[str, str]()
    if 2 * held > planned:
        doubts["outside"] = f"{held} of {planned} nodes are throttled by a power brake: is it the facility?"
    if planned > 1 and 2 * alike > planned:
        doubts["peers"] = f"{alike} of {planned} nodes fail: is the expectation right?"
    if 2 * wholly > planned and 2 * gpus > sum(one.gpus for _, one in found):
        doubts["gpus"] = f"{gpus} GPUs of most nodes fail: is the expectation right?"
    unsure = {"unclear", *doubts}
    return [(host, one, whose not in unsure) for host, one, whose in faults], list(doubts.values())


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMED
    return "; ".join(texts[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def unfit_nodes(
    cases: Iterable[AnyCase], plan: Plan, surveys: Mapping[str, Survey], day: date, *, hopeless: bool = False
) -> dict[str, str]:
    """Reasons, by host, to launch nothing on it: it certainly fails a check of severity ``fail``, or its survey failed.

    A node whose fault is uncertain stays if ranks can run there: most nodes fail too, or it is unclear which of several
    is wrong. A check that is waived on this day, in UTC, excludes no node.

    Args:
        cases: of the run.
        plan: of the run.
        surveys: by host.
        day: today.
        hopeless: leave out all reasons but those for which no rank can run there.
    """
    evidence, reasons = Evidence(plan, Columns(), {}, surveys=surveys), defaultdict[str, dict[str, None]](dict)
    checks = [case for case in cases if isinstance(case, NodeCase) and case.requirement.check]
    rejecting = [case for case in checks if case.requirement.severity == "fail"]
    surveyed = [case for case in rejecting if NODE_CHECKS[case.requirement.check].reads == "survey"]
    asked = [case for case in surveyed if not (waiver := case.requirement.waiver) or not waiver.holds_on(day)]
    for case in asked:
        found = _found(case.requirement.check, case, evidence)
        faults, _ = _accused(found, max(plan.nodes, len({host for host, _ in found})))
        for host, one, is_certain in faults:
            # The plan may use only the first GPUs of a node.
            is_used = one.gpu is None or (one.gpu.local_rank or 0) < plan.layout.ranks_per_node
            if (one.prevents_ranks and is_used) or (is_certain and not hopeless):
                gpu = f"{one.gpu.number}: " if one.gpu else ""
                reasons[host][f"{case.requirement.check}: {gpu}{one.text}"] = None
    for survey in surveys.values() if asked and not hopeless else ():
        if survey.problem:
            reasons[survey.host][f"survey failed: {survey.problem}"] = None
    return {host: "; ".join(reasons[host]) for host in sorted(reasons)}
