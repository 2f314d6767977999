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


def test_a_machine_on_which_none_answers_is_an_error_and_no_machine_without_a_gpu(machine: PlayedMachine) -> None:
    assert look(machine.play([LOST, DYING]))["error"].startswith("GPU 0 of ")


def test_the_only_gpu_that_may_be_used_is_an_error_if_it_is_silent(machine: PlayedMachine) -> None:
    machine.play([A100, LOST])
    assert look(machine, CUDA_VISIBLE_DEVICES=uuid_of(1))["error"].startswith("GPU 1 of ")
