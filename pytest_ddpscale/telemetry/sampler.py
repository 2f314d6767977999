"""``python -m pytest_ddpscale.telemetry.sampler UUID FILE POLL_S PARENT_PID``: the sampler, one process per rank.

It polls the rank's GPU and appends a line per poll to a file in the node's memory, which the rank reads
(`telemetry.windows`). Nobody waits for it: while a driver hangs, there are no new lines.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pynvml

from pytest_ddpscale.telemetry.nvml import POSSIBLE, NvmlCalls, possible
from pytest_ddpscale.util.orphans import die_with_parent

# What is asked in each poll, besides the driver's buffers: the counters first, nearest to the time of the poll.
POLLED = (
    "energy_j", "ecc_corrected", "ecc_uncorrected", "temperature_c", "pcie_generation", "pcie_width",
    "throttle_reasons", "power_limit_w", "sm_clock_max_mhz",
)  # fmt: skip
# Every driver samples at least once a second; one without samples for this long has no buffer.
SILENCE_S = 5.0
# A new file begins after this many bytes, some minutes; the old one is freed once it has been read.
MOST_BYTES = 2**21
# Readings that the driver samples and buffers itself, so that none is lost between two polls: every 20 ms to 1 s,
# independently of clients; it keeps the last 10 to 20 s. A sample describes the period that ends at its time stamp, in
# system time. nvmlSamplingType_t, and NVML's units in one of the reading.
BUFFERS = {
    "utilization": (pynvml.NVML_GPU_UTILIZATION_SAMPLES, 100),
    "power_w": (pynvml.NVML_TOTAL_POWER_SAMPLES, 1000),
    "sm_clock_mhz": (pynvml.NVML_PROCESSOR_CLK_SAMPLES, 1),
}
# nvmlValueType_t → the member of nvmlValue_t that holds the value.
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class GpuPoll(msgspec.Struct, frozen=True, array_like=True):
    """One poll, a line.

    Attributes:
        unix_s: time of the poll, seconds since 1970 UTC.
        values: value by reading.
        samples: by reading, (time, value) new since the last poll: from the driver's buffers, and the mean SM activity
            since then, at the time of the last poll.
        reasons: why a reading is missing; ``device`` if the GPU cannot be read at all.
        lost: the driver's error if the GPU is lost; empty while it is not.
    """

    unix_s: float
    values: dict[str, float] = {}
    samples: dict[str, list[tuple[float, float]]] = {}
    reasons: dict[str, str] = {}
    lost: str = ""


class SampledGpu:
    """Reads one GPU. Never raises.

    The GPU is found by UUID, because NVML ignores CUDA_VISIBLE_DEVICES and its indices are not CUDA's.

    Args:
        uuid: ``GPU-…`` as in NVML, or bare as in torch's ``get_device_properties(i).uuid``.
    """

    def __init__(self, uuid: str) -> None:
        full = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"

        def device() -> Any:
            pynvml.nvmlInit()
            return pynvml.nvmlDeviceGetHandleByUUID(full)

        self._calls = NvmlCalls()
        self._calls.subject = (self._calls.ask("device", device),)
        self._seen_us = dict.fromkeys(BUFFERS, 0)
        self._gpm: list[Any] = []  # the sample before the last, and the last
        self._gpm_s: float | None = None

    def poll(self) -> GpuPoll:
        """Read everything."""
        ask, unix_s = self._calls.ask, time.time()
        values: dict[str, float] = {}
        samples: dict[str, list[tuple[float, float]]] = {}
        if "device" not in self._calls.reasons:  # no driver, no such GPU, or one that fell off the bus
            values = {reading: value for reading in POLLED if (value := ask(reading)) is not None}
            for reading in BUFFERS:
                # A name of its own, because the current value may still be readable.
                samples[reading] = ask(f"{reading} samples", partial(self._new_samples, reading)) or []
                is_silent = abs(unix_s - self._seen_us[reading] / 1e6) > SILENCE_S
                if is_silent and (value := ask(reading)) is not None:
                    values[reading] = value
            samples["sm_activity"] = ask("sm_activity", self._sm_activity) or []
        return GpuPoll(unix_s, values, samples, self._calls.reasons, self._calls.lost)

    def _new_samples(self, reading: str, handle: Any) -> list[tuple[float, float]]:
        """(time, value) of the possible samples in the driver's buffer that are new. Raises ValueError if none is."""
        (kind, unit), (least, most) = BUFFERS[reading], POSSIBLE[reading]
        try:
            type_of_value, samples = pynvml.nvmlDeviceGetSamples(handle, kind, self._seen_us[reading])
        except pynvml.NVMLError_NotFound:
            return []
        values = [
            (sample.timeStamp, getattr(sample.sampleValue, _VALUE_MEMBERS[type_of_value]) / unit) for sample in samples
        ]
        sound = sorted((time_us, value) for time_us, value in values if least <= value <= most)
        self._seen_us[reading] = max([self._seen_us[reading], *(time_us for time_us, _ in sound)])
        if values and not sound:
            possible(values[-1][1], least, most)
        return [(time_us / 1e6, value) for time_us, value in sound]

    def _sm_activity(self, handle: Any) -> list[tuple[float, float]]:
        """Mean since the last poll, at its time, so that none begins before a window: GPM, Hopper and later.

        Nothing in the first poll, after a failed one, and if it is implausible.
        """
        if not self._gpm:
            if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            self._gpm = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        before_s, self._gpm_s = self._gpm_s, None
        pynvml.nvmlGpmSampleGet(handle, self._gpm[0])
        self._gpm.reverse()
        self._gpm_s = time.time()
        if before_s is None:
            return []
        request = pynvml.c_nvmlGpmMetricsGet_t(pynvml.NVML_GPM_METRICS_GET_VERSION, 1, *self._gpm)
        request.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
        pynvml.nvmlGpmMetricsGet(request)
        share = float(request.metrics[0].value / 100)
        is_sound = request.metrics[0].nvmlReturn == pynvml.NVML_SUCCESS and 0 <= share <= 1  # NaN is not
        return [(before_s, share)] if is_sound else []


def main() -> None:
    """Sample until the parent ends."""
    uuid, name, poll_s, parent = sys.argv[1:]
    die_with_parent()
    if os.getppid() != int(parent):  # the parent ended while this process was starting
        return
    # Ctrl-C reaches the whole process group; the parent ends this process once the last window is cut.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gpu, path = SampledGpu(uuid), Path(name)
    file = path.open("ab", buffering=0)
    while True:
        file.write(msgspec.json.encode(gpu.poll()) + b"\n")
        if file.tell() > MOST_BYTES:
            file.close()
            file = path.with_suffix(".next").open("wb", buffering=0)
            path.with_suffix(".next").replace(path)
        time.sleep(float(poll_s))


if __name__ == "__main__":
    main()
