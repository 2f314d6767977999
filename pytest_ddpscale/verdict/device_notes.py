"""Devices that are conspicuous by themselves, whether or not a requirement is about them.

NVML's utilization counts a kernel that only waits as busy, so that a high one proves little. Power and clocks tell:
see `pytest_ddpscale.metrics.device_flags`.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from pytest_ddpscale.evidence.columns import ArmColumns, Columns
from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.metrics.device_flags import IDLE, flags, mean_power_w
from pytest_ddpscale.metrics.rounds import ArmRounds
from pytest_ddpscale.plan.probe import STUDY_ID as PROBES
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.column_record import IntArray
from pytest_ddpscale.results.survey_record import Survey
from pytest_ddpscale.results.telemetry_record import Telemetry
from pytest_ddpscale.results.verdicts import Culprit, Verdict
from pytest_ddpscale.util.listing import first_few

# Of the rounds of an arm: what a device is in fewer of them may be a neighbour's doing.
SHARE_OF_ROUNDS = 0.5
_POWER_UNKNOWN = "power unknown: utilization could not be cross-checked"
_IN_WORDS = {
    "stalled": "busy at nearly idle power: it waits inside a kernel",
    "throttled": "held down by heat, power supply or board",
    "slow_clock": "busy at less than half of its clock",
}
_Device = tuple[str, int, str]  # host, local rank, UUID


def device_notes(evidence: Evidence) -> list[str]:
    """A line for each arm whose devices are idle, stalled, throttled or slow in most rounds; lowered power limits."""
    return [*_low_utilization(evidence.columns), *_flagged(evidence.telemetry), *_capped(evidence.surveys.values())]


def with_stalled_devices(verdict: Verdict, measured: ArmRounds, telemetry: Sequence[Telemetry]) -> Verdict:
    """A pass that rests on devices which only wait says nothing: it becomes inconclusive, and they are named.

    One that rests on GPUs whose power is not known says so.

    Args:
        verdict: on device_utilization.
        measured: complete rounds of the arm in question.
        telemetry: of that arm.
    """
    if verdict.outcome != "passed":
        return verdict
    rows, columns = np.nonzero(measured.present)
    numbers, ranks = measured.numbers[rows].tolist(), measured.ranks.numbers[columns].tolist()
    blocks = set(zip(numbers, ranks, strict=True)) if telemetry else set()
    theirs = [one for one in telemetry if (one.round, one.rank) in blocks]
    stalled = [windows for flag, windows in _mostly(theirs) if flag == "stalled"]
    if not stalled:
        is_known = _has_known_power(measured, theirs)
        return verdict if is_known else replace(verdict, notes=(*verdict.notes, _POWER_UNKNOWN))
    culprits = tuple(_culprit(windows) for windows in stalled)
    reason = f"{_name(stalled[0])} is {_IN_WORDS['stalled']} ({_power(stalled[0])}), so its utilization says nothing"
    return replace(verdict, outcome="inconclusive", reason=reason, culprits=culprits)


def notes_without_telemetry(plan: Plan) -> tuple[str, ...]:
    """What `with_stalled_devices` notes of a pass on a node of which there is no telemetry at all."""
    return () if plan.device_type == "cpu" else (_POWER_UNKNOWN,)


def _has_known_power(measured: ArmRounds, telemetry: Sequence[Telemetry]) -> bool:
    """Whether of every GPU it is known in most blocks if it stalls. Nobody asks it of a CPU, or of imported values."""
    ranks, counts = measured.ranks, measured.present[~measured.measured.single_sample].sum(axis=0).tolist()
    gpus = dict(zip(zip(ranks.hosts.tolist(), ranks.devices.tolist(), strict=True), counts, strict=True))
    told = Counter((one.host, one.device) for one in telemetry if mean_power_w(one) is not None and one.power_limit_w)
    return all(told[gpu] >= SHARE_OF_ROUNDS * count for gpu, count in gpus.items() if gpu[1] != "cpu")


def _culprit(windows: Sequence[Telemetry]) -> Culprit:
    one = windows[0]
    evidence = f"stalled in {len(windows)} rounds: {_power(windows)}"
    # It may as well wait for a peer.
    return Culprit("gpu", one.host, one.local_rank, one.device, evidence, is_certain=False)


def _low_utilization(columns: Columns) -> Iterator[str]:
    for (study, arm), measured in columns.arms.items():
        own = measured.of(~measured.single_sample)
        read = np.flatnonzero((~np.isnan(own.utilization)).any(axis=0))
        busy = np.nanmedian(own.utilization[:, read], axis=0)
        if (busy < IDLE).any():
            share = busy.min()
            rank, host = min(_ranks(own, read[busy == share]), key=lambda one: (one[1], one[0]))
            whose = f"{(busy < IDLE).sum()} of {len(busy)} devices" if len(busy) > 1 else "the device"
            yield (
                f"low utilization: {study}, {arm}: {whose} below {IDLE:.0%}, least busy rank {rank} on {host} "
                f"with {share:.0%}"
            )


def _ranks(measured: ArmColumns, columns: IntArray) -> list[tuple[int, str]]:
    """Number and host of these."""
    ranks = measured.ranks.of(columns)
    return list(zip(ranks.numbers.tolist(), ranks.hosts.tolist(), strict=True))


def _capped(surveys: Iterable[Survey]) -> Iterator[str]:
    """GPUs that somebody gave less power than they are built for: they are slower than their kind."""
    capped = [
        f"GPU {gpu.local_rank} on {survey.host} ({gpu.power_limit_w:g} W, default {gpu.power_limit_default_w:g} W)"
        for survey in surveys
        for gpu in survey.gpus
        if gpu.local_rank is not None and (gpu.power_limit_w or math.inf) < (gpu.power_limit_default_w or 0)
    ]
    if capped:
        yield f"power limit below the default: {first_few(capped)}"


def _flagged(telemetry: Sequence[Telemetry]) -> Iterator[str]:
    arms: dict[tuple[str, str], list[Telemetry]] = defaultdict(list)
    for one in telemetry:
        arms[one.study, one.arm].append(one)
    for (study, arm), windows in arms.items():
        found: dict[str, list[Sequence[Telemetry]]] = defaultdict(list)
        # That a device idles is told from the measurements, on a CPU too. Probes of memory and links wait by nature.
        told = {"throttled"} if study == PROBES else set(_IN_WORDS)
        for flag, theirs in _mostly(windows):
            if flag in told:
                found[flag].append(theirs)
        for flag, devices in found.items():
            names = first_few([f"{_name(theirs)} ({_power(theirs)})" for theirs in devices])
            yield f"{flag}: {study}, {arm}: {names}: {_IN_WORDS[flag]}"


def _mostly(windows: Sequence[Telemetry]) -> Iterator[tuple[str, Sequence[Telemetry]]]:
    """Flags that a device has in most of its windows, with those windows."""
    devices: dict[_Device, list[Telemetry]] = defaultdict(list)
    for one in windows:
        devices[one.host, one.local_rank, one.device].append(one)
    for theirs in devices.values():
        raised = {id(one): flags(one) for one in theirs}
        counted = Counter(flag for found in raised.values() for flag in found)
        for flag, count in counted.items():
            if count >= SHARE_OF_ROUNDS * sum(_may_have(flag, one) for one in theirs):
                yield flag, [one for one in theirs if flag in raised[id(one)]]


def _may_have(flag: str, window: Telemetry) -> bool:
    """Whether a window says anything about it: a short one may lie between two polls."""
    return window.throttle_reasons is not None if flag == "throttled" else window.utilization is not None


def _name(windows: Sequence[Telemetry]) -> str:
    return f"GPU {windows[0].local_rank} on {windows[0].host}"


def _power(windows: Sequence[Telemetry]) -> str:
    """``99 % busy at 80 W of 700 W, 1200 MHz of 1980 MHz``, as far as it is known."""
    parts = []
    busy = [one.utilization.mean for one in windows if one.utilization]
    if busy:
        parts.append(f"{statistics.median(busy):.0%} busy")
    watts = [power for one in windows if (power := mean_power_w(one)) is not None]
    if watts:
        limit = windows[0].power_limit_w
        parts.append(f"{statistics.median(watts):.0f} W" + (f" of {limit:.0f} W" if limit else ""))
    clocks = [one.sm_clock_mhz.mean for one in windows if one.sm_clock_mhz]
    if clocks:
        most = windows[0].sm_clock_max_mhz
        parts.append(f"{statistics.median(clocks):.0f} MHz" + (f" of {most:.0f} MHz" if most else ""))
    return ", ".join(parts) or "nothing more is known"
