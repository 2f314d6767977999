"""What is conspicuous about a GPU's telemetry in one timed block.

NVML's utilization is the share of time in which *any* kernel ran, whatever it did: NCCL's kernels, which spin while
they wait for a peer, count as busy. Power tells the difference, and SM activity where the GPU has it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pytest_ddpscale.evidence.telemetry_columns import TelemetryColumns
from pytest_ddpscale.results.column_record import BoolArray, FloatArray

# What nothing but waiting makes look fully used: NVML's utilization of a training that keeps up is above 0.95, and a
# GPU that waits inside a kernel shows 1.
BUSY = 0.9
# Of the power between idling and the limit. Training of image models draws over half of it on data-centre GPUs, and
# a kernel that spins on a few SMs hardly any.
STALLED_POWER = 0.25
# The same of the limit alone, where the idle power is unknown: GPUs idle at 10 to 20 % of their limit.
STALLED_POWER_OF_LIMIT = 0.3
# NCCL runs on at most 32 of the 80 to 148 SMs of a data-centre GPU: where half of them work, that is no waiting.
WORKING_SMS = 0.5
# The line under which published analyses of DDP scaling call a GPU underused.
IDLE = 0.8
# Polls are few in a short block, and one may meet a spike: of ten, one is counted.
THROTTLED = 0.1
# A GPU under load runs at 70 % of its largest clock or more, at its power limit too. Hardware slowdowns halve it.
SLOW_CLOCK = 0.5
# Reasons that are faults of cooling, power supply or board. `sw_power_cap` is none: full load brings it about.
# `hw_slowdown` is the umbrella over the two hardware reasons, and all that older drivers say.
THROTTLE_FAULTS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


def flags(told: TelemetryColumns) -> dict[str, BoolArray]:
    """What is conspicuous, of ``stalled``, ``idle``, ``throttled`` and ``slow_clock``, each (rows,).

    - ``stalled``: busy (at least `BUSY`) at nearly idle power (`STALLED_POWER`), unless half of the SMs work or the
      clock is low, which explains the power otherwise.
    - ``idle``: less busy than `IDLE`.
    - ``throttled``: one of `THROTTLE_FAULTS` in at least `THROTTLED` of the polls.
    - ``slow_clock``: SM clock under `SLOW_CLOCK` of its maximum while the GPU is not idle.

    What could not be read raises no flag; it is no sign of health either.
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

    From the GPU's energy counter where it has one: power samples are averages over the last second from Ampere on,
    and so lag behind a block of a few.
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
