"""A name that the installed nvidia-ml-py does not have yet costs the readings that need it, and no other."""

from __future__ import annotations

import json

from tests.nvml_stand_in.machine import B200, PlayedMachine, at_work, uuid_of

# Name → the readings of a B200 that need it.
NEEDED_BY = {
    "NVML_CLOCK_SM": {"sm_clock_max_mhz"},
    "NVML_TEMPERATURE_GPU": {"temperature_c"},
    "NVML_VOLATILE_ECC": {"ecc_corrected", "ecc_uncorrected"},
    "NVML_MEMORY_ERROR_TYPE_CORRECTED": {"ecc_corrected"},
    "NVML_NVLINK_MAX_LINKS": {"nvlinks"},
    "NVML_TOTAL_POWER_SAMPLES": set(),  # the value of the moment is asked for instead
    "NVML_GPM_METRIC_SM_UTIL": {"sm_activity"},
    "nvmlMemory_v2": set(),
    "nvmlDeviceGetRemappedRows": {"remapped_rows"},
    "nvmlDeviceGetCurrentClocksEventReasons": set(),
}
# Names that are gone before anything is imported; names that are missing one after the other.
PROGRAM = """
import json, sys, time
import pynvml
uuid, gone, missing = sys.argv[1], *map(json.loads, sys.argv[2:])
for name in gone:
    delattr(pynvml, name)
from pytest_ddpscale.telemetry.windows import cut
from pytest_ddpscale.telemetry.gpu_state import read_gpus
from pytest_ddpscale.telemetry.sampled_gpu import SampledGpu

def unread():
    surveyed = next(gpu for gpu in read_gpus().gpus if gpu.uuid == uuid)
    pynvml.nvmlInit()
    gpu = SampledGpu(uuid)
    gpu.poll()
    start_s = time.time()
    time.sleep(0.11)
    gpu.poll()
    end_s = time.time()
    gpu.poll()
    return {**surveyed.unreadable, **cut(gpu.log, start_s, end_s).unreadable}

found = {"": unread()}
for name in missing:
    value = getattr(pynvml, name)
    delattr(pynvml, name)
    found[name] = unread()
    setattr(pynvml, name, value)
print(json.dumps(found))
"""


def unread(
    machine: PlayedMachine, index: int, gone: tuple[str, ...] = (), missing: tuple[str, ...] = ()
) -> dict[str, dict[str, str]]:
    """What a survey and a sampler cannot read of a GPU, and why: without what is gone, then without each other name."""
    found: dict[str, dict[str, str]] = json.loads(
        machine.run_python(PROGRAM, uuid_of(index), json.dumps(gone), json.dumps(missing))
    )
    return found


def test_a_missing_name_costs_only_the_readings_that_need_it(machine: PlayedMachine) -> None:
    machine.play([at_work(B200)])
    whole, *lacking = unread(machine, 0, missing=tuple(NEEDED_BY)).values()
    lost = {name: set(found) - set(whole) for name, found in zip(NEEDED_BY, lacking, strict=True)}
    assert lost == NEEDED_BY
