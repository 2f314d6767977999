"""Anomalies of devices: in telemetry of timed blocks, as notes, and as a caveat of device_utilization.

NVML's utilization is the share of time in which *any* kernel ran: NCCL's kernels, which spin while they wait for a
peer, count as busy. Power tells the difference, and SM activity where the GPU reports it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pytest_ddpscale.judge.judged import Judged
from pytest_ddpscale.judge.peers import median_over_rounds
from pytest_ddpscale.judge.stats import OPEN
from pytest_ddpscale.plan.study import PROBES
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import CPU, Culprit
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.run.telemetry import TelemetryColumns
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
# Faults of cooling, power supply or board; not idling, clocks that an administrator set, or `sw_power_cap`, which full
# load causes. `hw_slowdown` covers the two hardware reasons, and is all that older drivers report.
THROTTLE_FAULTS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
# A GPU under load runs at 70 % of its maximum clock or more, even at its power limit. Hardware slowdowns halve it.
SLOW_CLOCK = 0.5
# Share of the rounds of an arm; an anomaly in fewer rounds may be a fluke, or come from a neighbour's job.
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
        "throttled": told.throttle_reasons.where(lambda one: bool(lasting_faults(one))),
        "slow_clock": is_slow,
    }


def lasting_faults(reasons: Mapping[str, float] | None) -> set[str]:
    """Faults among throttle reasons, with their shares of the polls."""
    return {one for one in THROTTLE_FAULTS if (reasons or {}).get(one, 0.0) >= THROTTLED}


def mean_power_w(told: TelemetryColumns) -> FloatArray:
    """Mean power of the block, in watts, (rows,).

    From the GPU's energy counter if it has one: from Ampere on, power samples are averages over the last second, so
    they lag in a block of a few seconds.
    """
    watts: FloatArray = np.where(np.isnan(told.energy_j), told.power_w, told.energy_j / told.seconds)
    return watts


def _mostly(told: TelemetryColumns) -> dict[str, list[TelemetryColumns]]:
    """By flag for each device that has it in most of its windows of an arm, those windows."""
    devices, found = told.arm * len(told.places) + told.place, {}
    # A short window may lie between two polls and is then unknown.
    is_polled = told.throttle_reasons.where(lambda reasons: reasons is not None)
    for flag, is_raised in flags(told).items():
        is_known = is_polled if flag == "throttled" else ~np.isnan(told.utilization)
        often = np.bincount(devices, is_raised) >= SHARE_OF_ROUNDS * np.bincount(devices, is_known)
        raised = told.of(is_raised & often[devices])
        found[flag] = [raised.of(rows) for rows in raised.together(raised.place)]
    return found


def device_notes(evidence: Evidence) -> list[Reason]:
    """A line for each arm with idle devices, each anomaly of devices in most rounds, and lowered power limits."""
    notes, told = list[Reason](), evidence.telemetry
    for (study, arm), measured in evidence.columns.arms.items():
        utilization = measured.reading("utilization")[~measured.single_sample]
        known = np.flatnonzero((~np.isnan(utilization)).any(axis=0))
        busy = median_over_rounds(utilization[:, known]) if len(known) else np.ones(1)
        if (count := np.count_nonzero(busy < IDLE)) > 0:
            rank, place = measured.ranks.who(int(known[busy.argmin()]))
            whose = f"{count} of {len(busy)} devices" if len(busy) > 1 else "the device"
            least = f"least busy rank {rank} on {place.host} with {percent(busy.min())}"
            notes.append(because("low-utilization", f"{study}, {arm}: {whose} below {percent(IDLE)}, {least}"))
    # Idle devices are noted from the measurements, on a CPU too. Probes of memory and links wait by nature.
    is_training = np.array([study != PROBES for study, _ in told.arms], np.bool_)[told.arm]
    found = _mostly(told.of(is_training)) | {"throttled": _mostly(told)["throttled"]}
    for flag, devices in found.items():
        places = [windows.place_of(0) for windows in devices]
        if names := [f"{place.number} on {place.host}" for place in places]:
            notes.append(because("text", f"{flag}: {first_few(names)}: {_IN_WORDS[flag]}"))
    # A lowered power limit makes GPUs slower than others of their model.
    capped = [
        f"GPU {gpu.index} on {survey.host} ({gpu.power_limit_w:g} W, default {gpu.power_limit_default_w:g} W)"
        for survey in evidence.surveys.values()
        for gpu in survey.gpus
        if gpu.local_rank is not None and (gpu.power_limit_w or math.inf) < (gpu.power_limit_default_w or 0)
    ]
    return [*notes, because("text", f"power limit below the default: {first_few(capped)}")] if capped else notes


def doubt_stalled_devices(judged: Judged, place: int, measured: ArmRounds, told: TelemetryColumns) -> None:
    """Open a place that passes on device_utilization if devices only wait; note GPUs of unknown power."""
    if not (stalled := _mostly(told)["stalled"]):
        is_known = ~np.isnan(mean_power_w(told)) & (told.power_limit_w > 0)
        known = {told.place_of(row).identity for row in np.flatnonzero(is_known).tolist()}
        is_ours = measured.present[~measured.single_sample].any(axis=0)  # not imported
        needed = {place.identity for place in measured.ranks.rank_places[is_ours] if place.uuid != CPU}
        judged.note(place, None if needed <= known else because("power-unknown"))
        return
    culprits, reason = [], ""
    for windows in stalled:
        device, watts = windows.place_of(0), np.nanmedian(mean_power_w(windows))
        power = f"{watts:.0f} W of {windows.power_limit_w[0]:.0f} W"
        # Not certain: the GPU may be waiting for a peer.
        why = because("text", f"stalled in {len(windows)} rounds: {power}")
        culprits.append(Culprit("gpu", (device,), why, is_certain=False))
        reason = reason or f"{device.number} on {device.host} is {_IN_WORDS['stalled']} ({power})"
    judged.codes[place], judged.culprits[place] = OPEN, tuple(culprits)
    judged.reasons[place] = because("text", f"{reason}, so its utilization proves nothing")
