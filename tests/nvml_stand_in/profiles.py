"""Healthy GPUs of four kinds, at rest and at work, and machines of them."""

from __future__ import annotations

import dataclasses

from tests.nvml_stand_in.gpus import (
    SW_POWER_CAP,
    Changing,
    Gpm,
    Number,
    NvLink,
    Pcie,
    PlayedGpu,
    RetiredPages,
    Work,
)

# Limits, clocks and links as NVIDIA publishes them; the rest as nvidia-smi shows it on such machines.
V100 = PlayedGpu(
    "Tesla V100-SXM2-16GB", "1db1", 16160, compute_capability=(7, 0), memory_reserved_mib=220,
    power_w=42, power_limit_w=300, default_power_limit_w=300,
    sm_clock_mhz=135, max_sm_clock_mhz=1530, memory_clock_mhz=877, max_memory_clock_mhz=877, temperature_c=35,
    retired_pages=RetiredPages(), remapped_rows=None, mig=None,
    pcie=Pcie(3, 16, 3, 16, 3), nvlinks=[NvLink()] * 6,
    work=Work(265, 1480, 877, 60, pcie_generation=3),
)  # fmt: skip
A100 = PlayedGpu(
    "NVIDIA A100-SXM4-80GB", "20b2", 81251, compute_capability=(8, 0), memory_reserved_mib=670,
    power_w=62, power_limit_w=400, default_power_limit_w=400,
    sm_clock_mhz=210, max_sm_clock_mhz=1410, memory_clock_mhz=1593, max_memory_clock_mhz=1593, temperature_c=32,
    pcie=Pcie(4, 16, 4, 16, 4), nvlinks=[NvLink()] * 12,
    # At its power limit in training: a healthy A100 shows the software power cap.
    work=Work(390, 1350, 1593, 58, pcie_generation=4, clock_event_reasons=SW_POWER_CAP),
)  # fmt: skip
B200 = PlayedGpu(
    "NVIDIA B200", "2901", 183359, compute_capability=(10, 0), memory_reserved_mib=720,
    power_w=190, power_limit_w=1000, default_power_limit_w=1000,
    sm_clock_mhz=120, max_sm_clock_mhz=1965, memory_clock_mhz=3996, max_memory_clock_mhz=3996, temperature_c=33,
    pcie=Pcie(5, 16, 5, 16, 5), nvlinks=[NvLink()] * 18, gpm=Gpm(),
    work=Work(880, 1830, 3996, 60, pcie_generation=5, clock_event_reasons=SW_POWER_CAP),
)  # fmt: skip
RTX_PRO_6000_SERVER = PlayedGpu(
    "NVIDIA RTX PRO 6000 Blackwell Server Edition", "2bb5", 97280, compute_capability=(12, 0), memory_reserved_mib=640,
    power_w=32, power_limit_w=600, default_power_limit_w=600,
    sm_clock_mhz=180, max_sm_clock_mhz=2430, memory_clock_mhz=405, max_memory_clock_mhz=12481, temperature_c=30,
    # Memory that may clock down makes the GPU rest with a link of the first generation.
    pcie=Pcie(1, 16, 5, 16, 5), gpm=Gpm(),
    work=Work(590, 2200, 12481, 70, pcie_generation=5, clock_event_reasons=SW_POWER_CAP),
)  # fmt: skip
PROFILES = (V100, A100, B200, RTX_PRO_6000_SERVER)


def node_of(gpu: PlayedGpu, count: int = 8, **odd: PlayedGpu) -> list[PlayedGpu]:
    """A machine of equal GPUs, but for those given as ``gpu3=…``."""
    return [odd.get(f"gpu{i}", gpu) for i in range(count)]


def at_work(gpu: PlayedGpu, *windows: tuple[float, float]) -> PlayedGpu:
    """The GPU as `gpu.work` says within the windows, and as it is given outside them.

    Args:
        gpu: a GPU at rest, which does not change by itself in what `Work` lists.
        windows: (start, end) in seconds since the epoch, in the order of time; none: always.
    """

    def busy(rest: Number, working: Number) -> Number:
        assert not isinstance(rest, Changing), "at_work takes a GPU that does not change by itself"
        if not windows:
            return working
        assert not isinstance(working, Changing)
        return Changing(rest, [change for start, end in windows for change in ((start, working), (end, rest))])

    def busy_if_known(rest: Number | None, working: float | Changing | None) -> Number | None:
        assert not isinstance(working, Changing)
        return None if rest is None or working is None else busy(rest, working)

    work = gpu.work
    gpm = gpu.gpm and Gpm(**{
        metric.name: busy_if_known(getattr(gpu.gpm, metric.name), getattr(work.gpm, metric.name))
        for metric in dataclasses.fields(Gpm)
    })  # fmt: skip
    return dataclasses.replace(
        gpu,
        utilization_pct=busy(gpu.utilization_pct, work.utilization_pct),
        memory_utilization_pct=busy_if_known(gpu.memory_utilization_pct, work.memory_utilization_pct),
        power_w=busy_if_known(gpu.power_w, work.power_w),
        sm_clock_mhz=busy_if_known(gpu.sm_clock_mhz, work.sm_clock_mhz),
        memory_clock_mhz=busy_if_known(gpu.memory_clock_mhz, work.memory_clock_mhz),
        temperature_c=busy_if_known(gpu.temperature_c, work.temperature_c),
        clock_event_reasons=busy_if_known(gpu.clock_event_reasons, work.clock_event_reasons),
        pcie=dataclasses.replace(gpu.pcie, generation=busy(gpu.pcie.generation, work.pcie_generation)),
        gpm=gpm,
    )
