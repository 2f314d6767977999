"""Clocks throttled by heat, power supply or board: before launch, and under load."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from pytest_ddpscale.judge.finding import Finding, GpuPlace, fault
from pytest_ddpscale.judge.from_survey import unread
from pytest_ddpscale.judge.under_load import in_most_windows
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.run.survey_record import SurveyedGpu
from pytest_ddpscale.run.telemetry import TelemetryColumns

# Share of a window's polls; a single poll may be a momentary excursion.
SHARE_OF_POLLS = 0.1


def throttling(_: NodeExpectation, gpu: SurveyedGpu, place: GpuPlace) -> Iterator[Finding]:
    """Clocks are not throttled now."""
    if gpu.throttle_reasons is None:
        yield unread(gpu, place, "throttle_reasons")
    elif found := held_down_by(gpu.throttle_reasons):
        heat = "" if gpu.temperature_c is None else f" at {gpu.temperature_c} °C"
        yield _alone(fault(f"clocks are throttled{heat}: {', '.join(found)}", place), found)


def throttling_under_load(
    _: NodeExpectation, windows: TelemetryColumns, place: GpuPlace
) -> Iterator[Finding]:  # fmt: skip
    """Clocks are not throttled under load."""
    reasons = windows.throttle_reasons
    seen = {reason for one in reasons.different for reason in held_down_by(_lasting(one))}
    text = f"clocks are throttled: {', '.join(sorted(seen))},"
    was_held_down = reasons.where(lambda one: bool(held_down_by(_lasting(one)))) & (windows.polls > 0)
    was_not = reasons.where(lambda one: one is not None) & (windows.polls > 0) & ~was_held_down
    yield _alone(in_most_windows(windows, was_held_down, was_not, text, "throttle_reasons", place), seen)


def held_down_by(reasons: Iterable[str]) -> list[str]:
    """NVML's throttle reasons that are faults: heat, hardware and power supply.

    Idling, clocks set by an administrator, and the power cap at full load are not faults.
    """
    return [reason for reason in reasons if reason.startswith("hw_") or "thermal" in reason or "power_brake" in reason]


def _alone(found: Finding, reasons: Collection[str]) -> Finding:
    """Mark the faults as needing no comparison; a power brake without heat may come from the facility.

    With the brake, NVML also sets ``hw_slowdown``.
    """
    is_braked = any("power_brake" in reason for reason in reasons)
    is_from_outside = is_braked and not any("thermal" in reason for reason in reasons)
    faults = (replace(one, stands_alone=True, is_from_outside=is_from_outside) for one in found.faults)
    return replace(found, faults=tuple(faults))


def _lasting(reasons: Mapping[str, float] | None) -> list[str]:
    return [reason for reason, share in (reasons or {}).items() if share >= SHARE_OF_POLLS]
