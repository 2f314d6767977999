"""Anomalies in a GPU's telemetry of one timed block.

NVML's utilization is the share of time in which *any* kernel ran: NCCL's kernels, which spin while they wait for a
peer, count as busy. Power tells the difference, and SM activity where the GPU reports it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pytest_ddpscale.run.column_record import BoolArray, FloatArray
from pytest_ddpscale.run.telemetry import TelemetryColumns

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
# Faults of cooling, power supply or board. `sw_power_cap` is not one: full load causes it.
# `hw_slowdown` covers the two hardware reasons, and is all that older drivers report.
THROTTLE_FAULTS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


def flags(told: TelemetryColumns) -> dict[str, BoolArray]:
    """Anomalies by name, each (rows,).

    - ``stalled``: busy (at least `BUSY`) at nearly idle power (`STALLED_POWER`), unless half of the SMs work or the
      clock is low, either of which explains the power.
    - ``idle``: less busy than `IDLE`.
    - ``throttled``: one of `THROTTLE_FAULTS` in at least `THROTTLED` of the polls.
    - ``slow_clock``: SM clock under `SLOW_CLOCK` of its maximum while the GPU is not idle.

    A value that could not be read raises no flag, and does not show health either.
    """
    busy = told.utilization
    is_slow = (busy >= IDLE) & (told.sm_clock_mhz < SLOW_CLOCK * told.sm_clock_max_mhz)
    is_working = is_slow | (told.sm_activity >= WORKING_SMS)
    return {
        "stalled": (busy >= BUSY) & ~is_working & _is_nearly_idle(told),
        "idle": busy < IDLE,
        "throttled": told.throttle_reasons.where(_is_throttled),
        "slow_clock": is_slow,
    }


def mean_power_w(told: TelemetryColumns) -> FloatArray:
    """Mean power of the block, in watts, (rows,).

    From the GPU's energy counter if it has one: from Ampere on, power samples are averages over the last second, so
    they lag in a block of a few seconds.
    """
    is_counted = told.sources.where(lambda sources: sources.get("energy_j") == "counter") & ~np.isnan(told.energy_j)
    return np.where(is_counted, told.energy_j / told.seconds, told.power_w)


def _is_nearly_idle(told: TelemetryColumns) -> BoolArray:
    power, limit, idle = mean_power_w(told), told.power_limit_w, told.idle_power_w
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (power - idle) / (limit - idle)
    return np.where(idle < limit, share < STALLED_POWER, power < STALLED_POWER_OF_LIMIT * limit)


def _is_throttled(reasons: Mapping[str, float] | None) -> bool:
    return any((reasons or {}).get(reason, 0.0) >= THROTTLED for reason in THROTTLE_FAULTS)
