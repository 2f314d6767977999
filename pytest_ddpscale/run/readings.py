"""What may be read of each rank while an arm is timed: declared here once, for validation, columns and joining."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Reading(NamedTuple):
    """One quantity; `kind` is numpy's, of its array: ``f``, ``i`` or ``b``."""

    unit: str
    least: float
    most: float
    kind: str = "f"


READINGS: Mapping[str, Reading] = {
    # Share of the block in which the device was busy (CPU: process CPU time per thread).
    "utilization": Reading("", 0, 1),
    "energy_j": Reading("J", 0, 1e12),  # of the GPU
    # GPU: allocated by torch in this block. CPU: the process's largest resident set so far. No process is smaller.
    "peak_memory_bytes": Reading("bytes", 2**20, 2**47),
    "skipped_steps": Reading("steps", 0, 2**53, "i"),  # by fp16's loss scaler
    "step_stdev_s": Reading("s", 0, 1e7),  # of the sample, in imported results, which keep no steps
    "single_sample": Reading("(true or false)", 0, 1, "b"),  # the one long sample of an imported result
    "is_correct": Reading("(true or false)", 0, 1, "b"),  # the result of a probe
    # Forward passes of the module that DDP wraps, summed over the block: the rank's own pace, which waits for nobody.
    "forward_s": Reading("s", 0, 1e7),
}
# Seconds of each step, and those of them in which the rank waited for data.
STEP_S, WAITED_S = "step_s", "waited_s"
SERIES = (STEP_S, WAITED_S)
FORWARD_S = "forward_s"
