"""Anomalies of devices: in telemetry of timed blocks, as notes, and as a caveat of device_utilization.

NVML's utilization is the share of time in which *any* kernel ran: NCCL's kernels, which spin while they wait for a
peer, count as busy. Power tells the difference, and SM activity where the GPU reports it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pytest_ddpscale.judge.peers import median_over_rounds
from pytest_ddpscale.plan.study import PROBES
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit
from pytest_ddpscale.run.table import ArmRounds, Columns
from pytest_ddpscale.run.telemetry import TelemetryColumns
from pytest_ddpscale.run.verdicts import LOW_UTILIZATION, POWER_UNKNOWN, Verdict
from pytest_ddpscale.util.arrays import BoolArray, FloatArray
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few

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
# Share of polls. A short block has few polls, and one in ten may be a spike that still counts.
THROTTLED = 0.1
# A GPU under load runs at 70 % of its maximum clock or more, even at its power limit. Hardware slowdowns halve it.
SLOW_CLOCK = 0.5
# Faults of cooling, power supply or board; not idling, clocks that an administrator set, or `sw_power_cap`, which full
# load causes.
# `hw_slowdown` covers the two hardware reasons, and is all that older drivers report.
THROTTLE_FAULTS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
# Share of the rounds of an arm; an anomaly in fewer rounds may come from a neighbour's job.
SHARE_OF_ROUNDS = 0.5
_IN_WORDS = {
    "stalled": "busy at nearly idle power: it waits inside a kernel",
    "throttled": "held down by heat, power supply or board",
    "slow_clock": "busy at less than half of its clock",
}


def flags(told: TelemetryColumns) -> dict[str, BoolArray]:
    """Anomalies by name, each (rows,).

    - ``stalled``: busy (at least `BUSY`) at nearly idle power (`STALLED_POWER`), unless half of the SMs work or the
      clock is low, either of which explains the power.
    - ``idle``: less busy than `IDLE`.
    - ``throttled``: one of `THROTTLE_FAULTS` in at least `THROTTLED` of the polls.
    - ``slow_clock``: SM clock under `SLOW_CLOCK` of its maximum while the GPU is not idle.

    A value that could not be read raises no flag, and does not show health either.
    """
    busy, power, limit, idle = told.utilization, mean_power_w(told), told.power_limit_w, told.idle_power_w
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (power - idle) / (limit - idle)
    is_nearly_idle = np.where(idle < limit, share < STALLED_POWER, power < STALLED_POWER_OF_LIMIT * limit)
    is_slow = (busy >= IDLE) & (told.sm_clock_mhz < SLOW_CLOCK * told.sm_clock_max_mhz)
    is_working = is_slow | (told.sm_activity >= WORKING_SMS)
    return {
        "stalled": (busy >= BUSY) & ~is_working & is_nearly_idle,
        "idle": busy < IDLE,
        "throttled": told.throttle_reasons.where(
            lambda reasons: any((reasons or {}).get(reason, 0.0) >= THROTTLED for reason in THROTTLE_FAULTS)
        ),
        "slow_clock": is_slow,
    }


def mean_power_w(told: TelemetryColumns) -> FloatArray:
    """Mean power of the block, in watts, (rows,).

    From the GPU's energy counter if it has one: from Ampere on, power samples are averages over the last second, so
    they lag in a block of a few seconds.
    """
    watts: FloatArray = np.where(np.isnan(told.energy_j), told.power_w, told.energy_j / told.seconds)
    return watts


def device_notes(evidence: Evidence) -> list[str]:
    """A line for each arm with idle, stalled, throttled or slow devices in most rounds, and on lowered power limits."""
    # A lowered power limit makes GPUs slower than others of their model.
    capped = [
        f"GPU {gpu.index} on {survey.host} ({gpu.power_limit_w:g} W, default {gpu.power_limit_default_w:g} W)"
        for survey in evidence.surveys.values()
        for gpu in survey.gpus
        if gpu.local_rank is not None and (gpu.power_limit_w or math.inf) < (gpu.power_limit_default_w or 0)
    ]
    notes = [*_low_utilization(evidence.columns), *_flagged(evidence.telemetry)]
    return [*notes, f"power limit below the default: {first_few(capped)}"] if capped else notes


def with_stalled_devices(verdict: Verdict, measured: ArmRounds, telemetry: TelemetryColumns) -> Verdict:
    """Make a pass on device_utilization inconclusive if devices only wait; note a pass on GPUs of unknown power."""
    if verdict.outcome != "passed":
        return verdict
    rows, columns = np.nonzero(measured.present)
    numbers, ranks = measured.numbers[rows].tolist(), measured.ranks.numbers[columns].tolist()
    blocks = set(zip(numbers, ranks, strict=True)) if len(telemetry) else set()
    told = zip(telemetry.round.tolist(), telemetry.rank.tolist(), strict=True)
    theirs = telemetry.of(np.array([block in blocks for block in told], np.bool_))
    stalled = [windows for flag, windows in _mostly(theirs) if flag == "stalled"]
    if not stalled:
        is_known = _has_known_power(measured, theirs)
        return verdict if is_known else replace(verdict, notes=(*verdict.notes, POWER_UNKNOWN))
    culprits = []
    for windows in stalled:
        evidence = f"stalled in {len(windows)} rounds: {_power(windows)}"
        # Not certain: the GPU may be waiting for a peer.
        culprits.append(Culprit("gpu", (windows.place_of(0),), evidence, is_certain=False))
    reason = f"{_name(stalled[0])} is {_IN_WORDS['stalled']} ({_power(stalled[0])}), so its utilization proves nothing"
    return replace(verdict, outcome="inconclusive", reason=reason, culprits=tuple(culprits))


def _has_known_power(measured: ArmRounds, telemetry: TelemetryColumns) -> bool:
    """Whether the power of every GPU is known in most blocks; CPUs and imported values need none."""
    ranks, counts = measured.ranks, measured.present[~measured.single_sample].sum(axis=0).tolist()
    gpus = dict(zip(ranks.gpus, counts, strict=True))
    known = telemetry.of(~np.isnan(mean_power_w(telemetry)) & (telemetry.power_limit_w > 0))
    told = Counter((place.host, place.uuid) for place in map(known.place_of, range(len(known))))
    return all(told[gpu] >= SHARE_OF_ROUNDS * count for gpu, count in gpus.items() if gpu[1] != "cpu")


def _low_utilization(columns: Columns) -> Iterator[str]:
    for (study, arm), measured in columns.arms.items():
        utilization = measured.reading("utilization")[~measured.single_sample]
        read = np.flatnonzero((~np.isnan(utilization)).any(axis=0))
        busy = median_over_rounds(utilization[:, read]) if len(read) else np.zeros(0)
        if (busy < IDLE).any():
            share, ranks = busy.min(), measured.ranks.of(read[busy == busy.min()])
            host, rank = min(zip(ranks.hosts.tolist(), ranks.numbers.tolist(), strict=True))
            whose = f"{(busy < IDLE).sum()} of {len(busy)} devices" if len(busy) > 1 else "the device"
            yield (
                f"{LOW_UTILIZATION}{study}, {arm}: {whose} below {percent(IDLE)}, least busy rank {rank} on {host} "
                f"with {percent(share)}"
            )


def _flagged(telemetry: TelemetryColumns) -> Iterator[str]:
    found: dict[int, dict[str, list[TelemetryColumns]]] = {}
    for flag, windows in _mostly(telemetry):
        found.setdefault(int(windows.arm[0]), {}).setdefault(flag, []).append(windows)
    for number, flagged in sorted(found.items()):
        study, arm = telemetry.arms[number]
        # Idle devices are noted from the measurements, on a CPU too. Probes of memory and links wait by nature.
        told = {"throttled"} if study == PROBES else set(_IN_WORDS)
        for flag, devices in flagged.items():
            if flag in told:
                names = first_few([f"{_name(theirs)} ({_power(theirs)})" for theirs in devices])
                yield f"{flag}: {study}, {arm}: {names}: {_IN_WORDS[flag]}"


def _mostly(windows: TelemetryColumns) -> Iterator[tuple[str, TelemetryColumns]]:
    """Flags that a device has in most of its windows of an arm, with those windows, device by device."""
    devices = windows.arm * len(windows.places) + windows.place
    # A short window may lie between two polls and is then unknown.
    is_polled = windows.throttle_reasons.where(lambda reasons: reasons is not None)
    often: dict[str, BoolArray] = {}
    for flag, is_raised in flags(windows).items():
        count = np.bincount(devices, is_raised)
        told = np.bincount(devices, is_polled if flag == "throttled" else ~np.isnan(windows.utilization))
        often[flag] = (count > 0) & (count >= SHARE_OF_ROUNDS * told)
    is_conspicuous = np.logical_or.reduce([often[flag] for flag in _IN_WORDS])[devices]
    conspicuous, devices = windows.of(is_conspicuous), devices[is_conspicuous]
    raised = flags(conspicuous)
    for rows in conspicuous.together(devices):
        theirs = {flag: rows[raised[flag][rows]] for flag in raised if often[flag][devices[rows[0]]]}
        for flag in sorted(theirs, key=lambda flag: int(theirs[flag][0])):
            yield flag, conspicuous.of(theirs[flag])


def _name(windows: TelemetryColumns) -> str:
    place = windows.place_of(0)
    return f"{place.number} on {place.host}"


def _power(windows: TelemetryColumns) -> str:
    """``99 % busy at 80 W of 700 W, 1200 MHz of 1980 MHz``, as far as it is known."""
    values = (windows.utilization, mean_power_w(windows), windows.sm_clock_mhz)
    known = [one[~np.isnan(one)].tolist() for one in values]
    busy, watts, clock_mhz = (statistics.median(one) if one else None for one in known)
    parts = [] if busy is None else [f"{percent(busy)} busy"]
    for value, limit, unit in ((watts, windows.power_limit_w[0], "W"), (clock_mhz, windows.sm_clock_max_mhz[0], "MHz")):
        if value is not None:
            parts.append(f"{value:.0f} {unit}" + (f" of {limit:.0f} {unit}" if limit > 0 else ""))
    return ", ".join(parts) or "no other readings"
