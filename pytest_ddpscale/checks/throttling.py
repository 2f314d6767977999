"""Clocks that are held down by heat or by the board: before anything is launched, and under load."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from pytest_ddpscale.checks.finding import Finding, GpuPlace, fault
from pytest_ddpscale.checks.from_survey import unread
from pytest_ddpscale.checks.under_load import in_most_windows
from pytest_ddpscale.evidence.telemetry_columns import TelemetryColumns
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.results.survey_record import SurveyedGpu

# Of the polls of a window; a single one may be a moment's excursion.
SHARE_OF_POLLS = 0.1


def throttling(_: NodeExpectation, gpu: SurveyedGpu, place: GpuPlace) -> Iterator[Finding]:
    """Nothing holds clocks down now."""
    if gpu.throttle_reasons is None:
        yield unread(gpu, place, "throttle_reasons")
    elif found := held_down_by(gpu.throttle_reasons):
        heat = "" if gpu.temperature_c is None else f" at {gpu.temperature_c} °C"
        yield _alone(fault(f"clocks are held down{heat}: {', '.join(found)}", place), found)


def throttling_under_load(
    _: NodeExpectation, windows: TelemetryColumns, place: GpuPlace
) -> Iterator[Finding]:  # fmt: skip
    """Nothing holds clocks down while GPUs work."""
    reasons = windows.throttle_reasons
    seen = {reason for one in reasons.different for reason in held_down_by(_lasting(one))}
    text = f"clocks are held down: {', '.join(sorted(seen))},"
    was_held_down = reasons.where(lambda one: bool(held_down_by(_lasting(one)))) & (windows.polls > 0)
    was_not = reasons.where(lambda one: one is not None) & (windows.polls > 0) & ~was_held_down
    yield _alone(in_most_windows(windows, was_held_down, was_not, text, "throttle_reasons", place), seen)


def held_down_by(reasons: Iterable[str]) -> list[str]:
    """Those of NVML's reasons that are faults: heat, and whatever the hardware or its power supply decides.

    Idling, clocks that somebody set, and the power cap of a GPU at full load are none.
    """
    return [reason for reason in reasons if reason.startswith("hw_") or "thermal" in reason or "power_brake" in reason]


def _alone(found: Finding, reasons: Collection[str]) -> Finding:
    """Faults that need no comparison; a power brake without heat may be a signal to the whole facility.

    With the brake NVML also sets ``hw_slowdown``.
    """
    is_braked = any("power_brake" in reason for reason in reasons)
    is_from_outside = is_braked and not any("thermal" in reason for reason in reasons)
    faults = (replace(one, stands_alone=True, is_from_outside=is_from_outside) for one in found.faults)
    return replace(found, faults=tuple(faults))


def _lasting(reasons: Mapping[str, float] | None) -> list[str]:
    return [reason for reason, share in (reasons or {}).items() if share >= SHARE_OF_POLLS]
