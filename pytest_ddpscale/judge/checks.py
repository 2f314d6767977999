"""Node checks: what is asked of a node whatever its speed, and the answer over all nodes.

`plan.node_check` names and describes each check; `check_rules` finds what a node lacks, and here is what telemetry of
devices shows: faults under load, notes on anomalies, and a caveat of device_utilization.

NVML's utilization is the share of time in which *any* kernel ran: NCCL's kernels, which spin while they wait for a
peer, count as busy. Power tells the difference, and SM activity where the GPU reports it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date

import numpy as np

from pytest_ddpscale.judge.answer import Answer
from pytest_ddpscale.judge.check_rules import (
    PREVENTING,
    THROTTLE_FAULTS,
    Facts,
    Finding,
    find_surveyed,
    find_transports,
    gpus_afterwards,
    memory_faults,
    surveyed,
    throttled,
)
from pytest_ddpscale.judge.peers import median_over_rounds
from pytest_ddpscale.plan.node_check import NODE_CHECKS, NodeExpectation
from pytest_ddpscale.plan.pairing import PAIRS
from pytest_ddpscale.plan.study import PROBES, Plan
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.survey_record import STUDY_ID, Survey
from pytest_ddpscale.run.table import Columns, memoized
from pytest_ddpscale.run.telemetry import AT_WORK, HARDLY_BUSY, TelemetryColumns
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase, expected_by
from pytest_ddpscale.util.arrays import BoolArray, IntArray

_MOST_NAMED = 3


def answer_check(answer: Answer, case: NodeCase, evidence: Evidence) -> None:
    """The answer on one check, from the blank one; its value is the share of nodes that pass.

    ``passed`` if every planned node passes, ``failed`` if any has a fault, else ``not_measured``; also ``not_measured``
    if the check needs a GPU and ranks train on CPUs.
    """
    check, plan = NODE_CHECKS[case.requirement.check], evidence.plan
    if not check.on_cpu and plan.device_type == "cpu":
        answer.reasons = [because("without-gpu", check.title)]
        return
    findings = _findings(case, evidence)
    hosts = {finding.place.host for finding in findings}
    unreported = [finding.reason for finding in findings if finding.kind == "no"]
    planned, broken = max(plan.nodes, len(hosts | {*evidence.hosts})), {**evidence.interrupted, **evidence.errors}
    answer.remarks = [finding.reason for finding in findings if finding.kind == "note"]
    if planned > len(hosts):
        unreported.append(because("no-report", planned - len(hosts), planned))
    if check.reads == "telemetry" and (unended := sorted(broken.keys() - {PAIRS, STUDY_ID})):
        unreported.append(because("no-end", tuple(unended)))
    missing = because(
        "missing-data", tuple(unreported[:_MOST_NAMED]), len(unreported[_MOST_NAMED:]), broken.get(STUDY_ID, "")
    )
    faults, doubts = _accused(findings, planned)
    if unreported and not faults:
        answer.reasons = [missing]
        return
    share = (
        len(hosts - {finding.place.host for finding in findings if finding.kind not in ("note", "looked")}) / planned
    )
    answer.value, answer.interval, answer.rounds = share, (share, share), 1
    answer.say("passed", because("as-expected", planned))
    if faults:
        failed = len({finding.place.host for finding, _ in faults})
        reasons = tuple(finding.reason for finding, _ in faults[:_MOST_NAMED])
        answer.say("failed", because("not-as-expected", failed, planned, reasons, len(faults[_MOST_NAMED:])))
    for finding, is_certain in faults:
        answer.culprits.append(Culprit("gpu" if finding.gpu else "node", (finding.place,), finding.why, is_certain))
    if unreported:
        answer.flags = [PARTLY_KNOWN]
        answer.remarks.append(because("also", missing))
    answer.remarks += doubts


@memoized
def _facts(evidence: Evidence, reads: str, expected: NodeExpectation) -> list[Finding]:
    """All that checks find in this source, host by host."""
    findings = dict[Finding, None]()
    find = {"survey": find_surveyed, "transport": find_transports, "telemetry": find_under_load}[reads]
    for at, *fact in find(evidence, expected):
        check, code, *args = (reads, *fact) if reads == "transport" else fact
        findings[Finding(at if isinstance(at, Place) else Place(at), check, because(code, *args))] = None
    return sorted(findings, key=lambda finding: finding.place.host)


def _findings(case: NodeCase, evidence: Evidence) -> list[Finding]:
    check, expected = NODE_CHECKS[case.requirement.check], expected_by(evidence.plan, case.expected)
    return [finding for finding in _facts(evidence, check.reads, expected) if finding.check in ("", check.name)]


def _accused(findings: Sequence[Finding], planned: int) -> tuple[list[tuple[Finding, bool]], list[Reason]]:
    """Faults and whether each is certain, and doubts that arise if most nodes or most GPUs fail: the expectation, or
    something that they share, may be at fault.

    A node where only some GPUs fail has the others to compare with. With one node there is nothing to compare with, so
    a mismatch is the node's fault.
    """
    faults = [finding for finding in findings if finding.kind not in ("no", "note", "looked")]
    by, gpus = defaultdict[str, set[str]](set), len({finding.place for finding in faults if finding.kind == "gpus"})
    for finding in faults:
        by["nodes" if finding.kind == "unclear" else finding.kind].add(finding.place.host)
    looked, doubts = sum(finding.why.args[0] for finding in findings if finding.kind == "looked"), dict[str, Reason]()
    for whose, are_many in {"outside": True, "nodes": planned > 1, "gpus": 2 * gpus > looked}.items():
        if are_many and 2 * len(by[whose]) > planned:
            doubts[whose] = because(f"most-{whose}-fail", len(by[whose]), planned, gpus)
    return [(finding, finding.kind not in ("unclear", *doubts)) for finding in faults], list(doubts.values())


def unfit_nodes(
    cases: Iterable[AnyCase], plan: Plan, surveys: Mapping[str, Survey], day: date, *, hopeless: bool = False
) -> dict[str, Reason]:
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
    evidence, reasons = Evidence(plan, Columns(), {}, surveys=surveys), defaultdict[str, dict[Reason, None]](dict)
    for case in cases:
        requirement = case.requirement
        if not isinstance(case, NodeCase) or not requirement.check or NODE_CHECKS[requirement.check].reads != "survey":
            continue
        if requirement.severity != "fail" or (requirement.waiver and requirement.waiver.holds_on(day)):
            continue
        findings = _findings(case, evidence)
        for finding, is_certain in _accused(
            findings, max(plan.nodes, len({finding.place.host for finding in findings}))
        )[0]:
            # The plan may use only the first GPUs of a node.
            is_used = (finding.place.local_rank or 0) < plan.layout.ranks_per_node
            if (finding.why.code in PREVENTING and is_used) or (is_certain and not hopeless):
                reasons[finding.place.host][because("of-check", requirement.check, finding.gpu, finding.why)] = None
        for survey in () if hopeless else surveys.values():
            if survey.problem:
                reasons[survey.host][because("no-survey", survey.problem)] = None
    return {host: because("all", *reasons[host]) for host in sorted(reasons)}


# A healthy training shows a utilization above 0.95, and a GPU that waits inside a kernel shows 1.
BUSY = 0.9
# Share of the range from idle power to the limit. Training of image models draws over half of it on data-centre GPUs;
# a kernel that spins on a few SMs draws hardly any.
STALLED_POWER = 0.25
# Share of the limit alone, for GPUs of unknown idle power: GPUs idle at 10 to 20 % of their limit.
STALLED_POWER_OF_LIMIT = 0.3
# NCCL runs on at most 32 of the 80 to 148 SMs of a data-centre GPU, so a GPU with half of its SMs active is computing.
WORKING_SMS = 0.5
# Published analyses of DDP scaling call a GPU underused below this utilization.
IDLE = 0.8
# Below this utilization a GPU, and with it its link, may be saving power.
BUSY_UTILIZATION = 0.5
# Share of polls. A short block has few polls, and one in ten may be a spike that still counts.
THROTTLED = 0.1
# A GPU under load runs at 70 % of its maximum clock or more, even at its power limit. Hardware slowdowns halve it.
SLOW_CLOCK = 0.5
# Of the other GPUs' clock in an arm. Sound ones differ by a few per cent at their power limit.
LOWER_CLOCK = 0.95
# Share of the rounds of an arm; an anomaly in fewer rounds may be a fluke, or come from a neighbour's job.
SHARE_OF_ROUNDS = 0.5
# Polls are about a second apart, so only windows shorter than this may have none …
LONGEST_UNPOLLED_S = 2.0
# … and even short windows need on average one poll in this time.
RAREST_POLLS_S = 10.0


def find_under_load(evidence: Evidence, expected: NodeExpectation) -> Facts:
    """GPUs by all their windows, and new errors after ranks have failed, which they may have caused.

    Too few windows, or none, of a planned rank's GPU count as missing data; an unchanged counter does not make up.
    """
    telemetry, places = evidence.telemetry, dict[object, tuple[int, Place]]()
    firsts = [places.setdefault(place.identity, (len(places), place)) for place in telemetry.places]
    gpu, gpus = np.array([at for at, _ in firsts], np.int64)[telemetry.place], [place for _, place in places.values()]
    for code, counted in (
        ("new-uncorrected", telemetry.ecc_uncorrected),
        ("note-new-corrected", telemetry.ecc_corrected),
    ):
        errors = np.bincount(gpu, np.nan_to_num(counted))
        for at in np.flatnonzero(errors).tolist():
            yield gpus[at], "ecc_under_load", code, int(errors[at])
    for place, before, after in gpus_afterwards(evidence):
        are = memory_faults(after) if after else {}
        for code, was in memory_faults(before).items():
            if was is not None and (now := are.get(code)) is not None and now > was:
                yield place, "ecc_under_load", "afterwards", code, now - was
    # One unread window makes it unknown: if it is the last one of a launch, no later one counts its errors.
    has_ecc = telemetry.unreadable.where(
        lambda reasons: "not supported" not in reasons.get("ecc_uncorrected", "").lower()
    )
    is_unread = np.isnan(telemetry.ecc_uncorrected) & (has_ecc | (expected.ecc is True))
    unread, first = np.unique(gpu[is_unread], return_index=True)
    for at, reasons in zip(unread.tolist(), telemetry.unreadable[is_unread][first], strict=True):
        why = reasons.get("ecc_uncorrected") or reasons.get("device", "")
        yield gpus[at], "ecc_under_load", "no-reading", "ecc_uncorrected", why

    held, is_polled = is_throttled(telemetry), telemetry.polls > 0
    is_known = is_polled & telemetry.throttle_reasons.where(lambda reasons: reasons is not None)
    readings = [("throttling_under_load", "throttle_reasons", telemetry, gpu, held & is_polled, is_known & ~held)]
    # Too little is a fault of a busy GPU, and an idle one decides nothing.
    may_be_busy = ~(telemetry.utilization < BUSY_UTILIZATION)  # or of unknown utilization
    busy, own = telemetry.of(may_be_busy), gpu[may_be_busy]
    for reading in ("pcie_generation", "pcie_width"):
        value, least = getattr(busy, reading), getattr(expected, reading)
        if least is not None:
            is_low = (busy.utilization >= BUSY_UTILIZATION) & (value < least)
            readings.append(("pcie_under_load", reading, busy, own, is_low, value >= least))
    for at in np.setdiff1d(gpu, own).tolist():
        yield gpus[at], "pcie_under_load", "no-load", BUSY_UTILIZATION
    for check, reading, of, own, was_so, was_not in readings:
        for at, is_fault, windows in _in_most_windows(of, own, was_so, was_not):
            if not is_fault:
                yield gpus[at], check, "no-windows", reading, windows
                continue
            values, least = getattr(of, reading)[own == at], getattr(expected, reading, None)
            if least is None:
                seen = set[str]().union(*map(lasting_faults, values.different.values()))
                yield gpus[at], check, *throttled(sorted(seen), None, windows)
            else:
                yield gpus[at], check, "low-pcie", reading, int(np.nanmin(values)), least, windows

    # Only GPUs that the survey lists and that ran a block count, as far as both are known.
    worked = {gpu for arm in evidence.columns.arms.values() if arm.study != PAIRS for gpu in arm.ranks.gpus}
    listed = {host: {gpu.uuid for gpu in survey.gpus} for host, survey in surveyed(evidence).items()}
    watched = [gpus[at] for at in np.unique(gpu).tolist()]
    known = [place for place in watched if place.uuid in listed.get(place.host, (place.uuid,))]
    counting = Counter(place.host for place in known if not worked or (place.host, place.uuid) in worked)
    on_host = Counter(place.host for place in watched)
    for host in {*on_host, *(host for host, _ in worked)}:
        yield host, "", "looked", on_host[host]
        if len(readings) == 1:
            yield host, "pcie_under_load", "no-expectation", "pcie_generation or pcie_width"
        if counting[host] < expected.gpus_per_node:
            yield host, "", "no-telemetry", counting[host], expected.gpus_per_node


def _in_most_windows(
    windows: TelemetryColumns, gpu: IntArray, was_so: BoolArray, was_not: BoolArray
) -> Iterator[tuple[int, bool, Reason]]:
    """Whether a condition held in at least half of an arm's windows, whatever the unreadable windows contain.

    Arms are judged one by one, so that probes, which heat nothing, cannot outvote a fault that shows only in training.
    An arm is unknown if unreadable windows could change the result, and a GPU if it was hardly polled. A single window
    may show a momentary excursion, so an arm needs several; if none has, all windows are judged together.

    Args:
        windows: those without a poll do not count if a GPU has others, because a probe's may be shorter than the
            time between two polls; they do count if the GPU does not answer.
        gpu: number of each window's GPU.
        was_so: windows where the condition held.
        was_not: windows where it did not; windows in neither are unreadable.

    Yields:
        Number of a GPU where it held, or where that is unknown; which of both; and in which windows.
    """
    counting = (windows.polls > 0) | windows.unreadable.where(lambda reasons: "device" in reasons)
    counting |= windows.seconds > LONGEST_UNPOLLED_S
    counting |= (np.bincount(gpu, counting) == 0)[gpu]
    gpus, arms = int(gpu.max(initial=0)) + 1, len(windows.arms)
    counts = [
        np.bincount(gpu * arms + windows.arm, counting & those, gpus * arms).reshape(gpus, arms)
        for those in (counting, was_so, was_not)
    ]
    several = counts[0] > 1
    is_alone = ~several.any(axis=1, keepdims=True)  # in all its arms, which are then one more
    total, so, not_so = (np.append(one * several, one.sum(axis=1, keepdims=True) * is_alone, 1) for one in counts)
    at_fault, unreported = ((total > 0) & (one >= SHARE_OF_ROUNDS * total) for one in (so, total - not_so))
    is_fault = np.any(at_fault, axis=1, keepdims=True)
    selected = np.where(is_fault, at_fault, unreported)
    of_windows = [(selected * one).sum(axis=1) for one in (np.where(is_fault, so, total - so - not_so), total)]
    for number in np.flatnonzero(of_windows[1]).tolist():
        yield number, bool(is_fault[number]), because("windows", *(int(one[number]) for one in of_windows))
    seconds, polls = np.bincount(gpu, windows.seconds), np.bincount(gpu, windows.polls)
    is_hardly_polled = (of_windows[1] == 0) & (seconds >= RAREST_POLLS_S * np.maximum(polls, 1))
    for number in np.flatnonzero(is_hardly_polled).tolist():
        yield number, False, because("few-polls", float(polls[number]), float(seconds[number]))


def is_throttled(telemetry: TelemetryColumns) -> BoolArray:
    """Whether one of `THROTTLE_FAULTS` lasted for at least `THROTTLED` of the polls, (rows,)."""
    held: BoolArray = telemetry.throttle_reasons.where(lambda reasons: bool(lasting_faults(reasons)))
    return held


def lasting_faults(reasons: Mapping[str, float] | None) -> set[str]:
    """Faults among throttle reasons, with their shares of the polls."""
    return {reason for reason in THROTTLE_FAULTS if (reasons or {}).get(reason, 0.0) >= THROTTLED}


def anomalies(telemetry: TelemetryColumns) -> dict[str, list[TelemetryColumns]]:
    """By anomaly for each device that has it in most of its windows of an arm of training, those windows.

    - ``stalled``: busy (at least `BUSY`) at nearly idle power (`STALLED_POWER`), unless half of the SMs work or the
      clock is low, either of which explains the power.
    - ``slow-clock``: SM clock under `SLOW_CLOCK` of its maximum while the GPU is not idle.

    Of a GPU of unknown utilization, or one that calls itself idle, power and clock alone tell whether it works. Another
    value that could not be read raises no flag, and does not show health either.
    """
    busy, power = telemetry.utilization, telemetry.mean_power_w
    limit, idle = telemetry.power_limit_w, telemetry.idle_power_w
    clock, slowest, is_unknown = telemetry.sm_clock_mhz, SLOW_CLOCK * telemetry.sm_clock_max_mhz, np.isnan(busy)
    # An idle power of more was read beside a utilization that is wrong.
    is_idle = idle < np.where(is_unknown, AT_WORK, 1) * limit
    most = np.where(is_idle, idle + STALLED_POWER * (limit - idle), STALLED_POWER_OF_LIMIT * limit)
    works = (busy >= IDLE) | ((is_unknown | (busy < HARDLY_BUSY)) & (power >= most))
    may_wait = ((busy >= BUSY) & ~(clock < slowest)) | (is_unknown & (clock >= slowest))
    is_waiting = may_wait & (power < most) & ~(telemetry.sm_activity >= WORKING_SMS)
    flags = {"stalled": is_waiting, "slow-clock": works & (clock < slowest)}
    # Probes of memory and links wait by nature.
    is_training = np.array([study != PROBES for study, _ in telemetry.arms], np.bool_)[telemetry.arm]
    devices, by_kind = telemetry.arm * len(telemetry.places) + telemetry.place, {}
    known = np.bincount(devices, ~(is_unknown & np.isnan(power)))
    for name, is_raised in flags.items():
        often = np.bincount(devices, is_raised) >= SHARE_OF_ROUNDS * known
        raised = telemetry.of(is_training & is_raised & often[devices])
        by_kind[name] = [raised.of(rows) for rows in raised.together(raised.place)]
    return by_kind


def with_telemetry(telemetry: TelemetryColumns, culprits: Iterable[Culprit]) -> Iterator[Culprit]:
    """The culprits, with what an arm's telemetry shows of GPUs that ran at a lower clock than others there."""
    numbers = dict[object, int]()
    device = np.array([numbers.setdefault(place.identity, len(numbers)) for place in telemetry.places], np.int64)[
        telemetry.place
    ]
    rows = np.array(
        [telemetry.sm_clock_mhz, telemetry.sm_clock_max_mhz, telemetry.mean_power_w, telemetry.power_limit_w]
    ).T
    for culprit in culprits:
        is_own = device == numbers.get(culprit.place.identity, -1)
        own, others = (median_over_rounds(rows[of]) for of in (is_own, ~is_own))
        if culprit.kind == "gpu" and own[0] < LOWER_CLOCK * others[0]:
            reasons = telemetry.throttle_reasons[is_own].different.values()
            held = sorted({name for of in reasons for name, share in (of or {}).items() if share >= SHARE_OF_ROUNDS})
            culprit = replace(culprit, shown=because("at-clock", *np.nan_to_num(own).tolist(), tuple(held)))
        yield culprit


def device_notes(evidence: Evidence) -> list[Reason]:
    """A line for each arm with idle devices, each anomaly of devices in most rounds, and lowered power limits."""
    notes = list[Reason]()
    # From the measurements, on a CPU too.
    for (study, arm), measured in evidence.columns.arms.items():
        busy = median_over_rounds(measured.reading("utilization")[~measured.single_sample])
        if count := int((busy < IDLE).sum()):
            rank, place = measured.ranks.who(int(np.nanargmin(busy)))
            of, least = int((~np.isnan(busy)).sum()), float(np.nanmin(busy))
            notes.append(because("low-utilization", study, arm, count, of, IDLE, rank, place.host, least))
    for name, devices in anomalies(evidence.telemetry).items():
        places = [windows.place_of(0) for windows in devices]
        if names := tuple(f"{place.number} on {place.host}" for place in places):
            notes.append(because(name, names))
    # A lowered power limit makes GPUs slower than others of their model.
    capped = tuple(
        because("power-limit", gpu.index, survey.host, gpu.power_limit_w, gpu.power_limit_default_w)
        for survey in evidence.surveys.values()
        for gpu in survey.gpus
        if gpu.local_rank is not None and (gpu.power_limit_w or np.inf) < (gpu.power_limit_default_w or 0)
    )
    return [*notes, because("power-limits", capped)] if capped else notes
