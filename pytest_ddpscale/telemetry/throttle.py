"""Why a GPU's clocks are held down, in words: NVML's bits of ``nvmlDeviceGetCurrentClocksEventReasons``."""

from __future__ import annotations

# nvml.h, nvmlClocksEventReasons*; the names are nvidia-smi's (`clocks_event_reasons.hw_slowdown` …).
# Idling, clocks that somebody set, and the power cap at full load are no faults: whoever judges decides.
REASONS: dict[int, str] = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}


def reasons_of(bits: int) -> tuple[str, ...]:
    """Names of the reasons in NVML's bit mask, lowest bit first; ``unknown_0x…`` for bits that have none here."""
    named = tuple(name for bit, name in REASONS.items() if bits & bit)
    left = bits & ~sum(REASONS)
    return (*named, f"unknown_{left:#x}") if left else named
