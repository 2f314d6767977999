"""What is conspicuous about a GPU's telemetry in one timed block.

NVML's utilization is the share of time in which *any* kernel ran, whatever it did: NCCL's kernels, which spin while
they wait for a peer, count as busy. Power tells the difference, and SM activity where the GPU has it.
"""

from __future__ import annotations

from pytest_ddpscale.results.telemetry_record import Telemetry

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


def flags(telemetry: Telemetry) -> tuple[str, ...]:
    """What is conspicuous, of ``stalled``, ``idle``, ``throttled`` and ``slow_clock``, in this order.

    - ``stalled``: busy (at least `BUSY`) at nearly idle power (`STALLED_POWER`), unless half of the SMs work or the
      clock is low, which explains the power otherwise.
    - ``idle``: less busy than `IDLE`.
    - ``throttled``: one of `THROTTLE_FAULTS` in at least `THROTTLED` of the polls.
    - ``slow_clock``: SM clock under `SLOW_CLOCK` of its maximum while the GPU is not idle.

    What could not be read raises no flag; it is no sign of health either.
    """
    raised = {
        "stalled": _is_stalled(telemetry),
        "idle": telemetry.utilization is not None and telemetry.utilization.mean < IDLE,
        "throttled": _is_throttled(telemetry),
        "slow_clock": _is_slow_clocked(telemetry),
    }
    return tuple(name for name, is_raised in raised.items() if is_raised)


def mean_power_w(telemetry: Telemetry) -> float | None:
    """Mean power of the block, in watts.

    From the GPU's energy counter where it has one: power samples are averages over the last second from Ampere on,
    and so lag behind a block of a few.
    """
    if telemetry.energy_j is not None and telemetry.sources.get("energy_j") == "counter":
        return telemetry.energy_j / (telemetry.ended_unix_s - telemetry.started_unix_s)
    return None if telemetry.power_w is None else telemetry.power_w.mean


def _is_stalled(telemetry: Telemetry) -> bool:
    if telemetry.utilization is None or telemetry.utilization.mean < BUSY or _is_slow_clocked(telemetry):
        return False
    if telemetry.sm_activity is not None and telemetry.sm_activity.mean >= WORKING_SMS:
        return False
    power, limit, idle = mean_power_w(telemetry), telemetry.power_limit_w, telemetry.idle_power_w
    if power is None or not limit:
        return False
    if idle is None or idle >= limit:
        return power < STALLED_POWER_OF_LIMIT * limit
    return (power - idle) / (limit - idle) < STALLED_POWER


def _is_throttled(telemetry: Telemetry) -> bool:
    reasons = telemetry.throttle_reasons
    if not reasons:
        return False
    return any(reasons.get(reason, 0.0) >= THROTTLED for reason in THROTTLE_FAULTS)


def _is_slow_clocked(telemetry: Telemetry) -> bool:
    clock, most, busy = telemetry.sm_clock_mhz, telemetry.sm_clock_max_mhz, telemetry.utilization
    if clock is None or not most or busy is None:
        return False
    return busy.mean >= IDLE and clock.mean < SLOW_CLOCK * most
