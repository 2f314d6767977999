"""A GPU that does not answer is left out and reported, so that the others can be measured and it can be named."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tests.nvml_stand_in.machine import A100, ANY_FUNCTION, GPU_IS_LOST, PlayedMachine, uuid_of

LOST = dataclasses.replace(A100, failures={ANY_FUNCTION: GPU_IS_LOST})
DYING = dataclasses.replace(A100, failures={"nvmlDeviceGetMemoryInfo": GPU_IS_LOST})
# Prints the GPUs and the errors of those that are silent, or the error that was raised.
LOOK = """
import json, pynvml
from pytest_ddpscale.session.devices import gpus_here
from pytest_ddpscale.errors import SkuError
silent = []
try:
    said = {"gpus": [gpu.index for gpu in gpus_here(silent)], "silent": [str(error) for error in silent]}
except SkuError as error:
    said = {"error": str(error)}
print(json.dumps({**said, "users": pynvml._nvmlLib_refcount}))
"""


def look(machine: PlayedMachine, **environ: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(machine.run_python(LOOK, **environ))
    assert said.pop("users") == 0, "NVML was not shut down"
    return said


@pytest.mark.parametrize("silent", [LOST, DYING], ids=["from the beginning", "between two questions"])
def test_a_silent_gpu_is_left_out_and_reported(machine: PlayedMachine, silent: Any) -> None:
    said = look(machine.play([A100, A100, silent, A100]))
    assert said["gpus"] == [0, 1, 3]
    (error,) = said["silent"]
    assert error.startswith("GPU 2 of ")
    assert "dmesg" in error


def test_several_are_reported_each(machine: PlayedMachine) -> None:
    said = look(machine.play([LOST, A100, DYING]))
    assert said["gpus"] == [1]
    assert [error.partition(" of ")[0] for error in said["silent"]] == ["GPU 0", "GPU 2"]


def test_where_all_answer_nothing_is_reported(machine: PlayedMachine) -> None:
    assert look(machine.play([A100, A100])) == {"gpus": [0, 1], "silent": []}


def test_where_none_answers_each_is_reported(machine: PlayedMachine) -> None:
    said = look(machine.play([LOST, DYING]))
    assert said["gpus"] == []
    assert [error.partition(" of ")[0] for error in said["silent"]] == ["GPU 0", "GPU 1"]


def test_the_only_gpu_that_may_be_used_is_reported_if_it_is_silent(machine: PlayedMachine) -> None:
    machine.play([A100, LOST])
    said = look(machine, CUDA_VISIBLE_DEVICES=uuid_of(1))
    assert (said["gpus"], [error.partition(" of ")[0] for error in said["silent"]]) == ([], ["GPU 1"])


def test_why_there_is_no_gpu_is_told(machine: PlayedMachine) -> None:
    ask = "from pytest_ddpscale.sku.detection import no_gpu_reason; print(no_gpu_reason())"
    none, hidden = machine.play([]).run_python(ask), machine.play([A100, A100]).run_python(ask, CUDA_VISIBLE_DEVICES="")
    assert "the NVIDIA driver is loaded and lists no GPU" in none
    assert "is_fault=True" in none
    assert "CUDA_VISIBLE_DEVICES= or a cgroup hides all 2 GPUs" in hidden
    assert "is_fault=False" in hidden
