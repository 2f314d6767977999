"""Checks under load go arm by arm, and know which blocks nobody watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_ddpscale.plan.node_check import NODE_CHECKS
from tests.builders.nodes_checked import gpus, judged, spread, survey, window
from tests.builders.telemetry import Telemetry, gpu_blocks_of

UNDER_LOAD = [name for name, check in NODE_CHECKS.items() if check.reads == "telemetry"]
OF_WINDOWS = ["throttling_under_load", "pcie_under_load"]
TRAINING = ("each@8", "ddp@8")
ARMS = (*TRAINING, "memory-copy", "host-to-device", "all-reduce-1mib@8", "all-reduce-32mib@8")
SILENT: dict[str, Any] = {"polls": 0, "unreadable": {"device": "the sampler ended"}}
NOTHING: dict[str, Any] = {
    "utilization": None, "throttle_reasons": None, "ecc_uncorrected": None, "pcie_generation": None, "pcie_width": None,
}  # fmt: skip
HOT: dict[str, Any] = {"throttle_reasons": {"hw_thermal_slowdown": 1.0}}


def run(
    change: Callable[[Telemetry], dict[str, Any]] = lambda _: {}, host: str = "n1", rounds: int = 8
) -> list[Telemetry]:
    """Six arms on all GPUs of a node."""
    healthy = [replace(window(host, gpu, n), arm=arm) for n in range(rounds) for arm in ARMS for gpu in range(8)]
    return [replace(one, **change(one)) for one in healthy]


def on_gpu_5(arms: Sequence[str], **changes: Any) -> Callable[[Telemetry], dict[str, Any]]:
    return lambda one: changes if one.local_rank == 5 and one.arm in arms else {}


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("throttling_under_load", HOT, "hw_thermal_slowdown, in 16 of 16 windows under load of"),
        ("pcie_under_load", {"pcie_width": 8}, "expected 16, in 16 of 16 windows under load of"),
        ("pcie_under_load", {"pcie_generation": 3}, "expected 4, in 16 of 16 windows under load of"),
    ],
)
def test_what_shows_only_in_training_is_not_outvoted_by_probes(name: str, changes: dict[str, Any], text: str) -> None:
    result = judged(name, survey(), telemetry=run(on_gpu_5(TRAINING, **changes)))
    assert result.outcome == "failed"
    (culprit,) = result.culprits
    assert (culprit.gpu_uuid, culprit.is_certain) == ("GPU-n1-5", True)
    assert text in culprit.evidence
    assert "each@8, weak/resnet152-fp16 ddp@8" in culprit.evidence


def test_excursions_in_less_than_half_of_each_arm_are_no_fault() -> None:
    telemetry = run(lambda one: HOT if one.round < 3 else {})
    assert judged("throttling_under_load", survey(), telemetry=telemetry).outcome == "passed"


@pytest.mark.parametrize("name", UNDER_LOAD)
def test_a_sampler_that_dies_as_training_begins_does_not_pass(name: str) -> None:
    result = judged(name, survey(), telemetry=run(on_gpu_5(TRAINING, **SILENT, **NOTHING)))
    assert result.outcome == "not_measured"
    assert "n1: GPU 5" in result.reason


@pytest.mark.parametrize("name", OF_WINDOWS)
def test_short_windows_without_a_poll_are_passed_over(name: str) -> None:
    probes = ARMS[2:]
    changes = {**NOTHING, "polls": 0, "utilization": spread(0.9)}
    assert judged(name, survey(), telemetry=run(on_gpu_5(probes, **changes))).outcome == "passed"


@pytest.mark.parametrize("name", OF_WINDOWS)
def test_a_long_window_without_a_poll_was_not_watched(name: str) -> None:
    changes = {**NOTHING, "polls": 0, "utilization": spread(0.9), "ended_unix_s": 1.7e9 + 100}
    assert judged(name, survey(), telemetry=run(on_gpu_5(TRAINING, **changes))).outcome == "not_measured"


@pytest.mark.parametrize("name", OF_WINDOWS)
def test_a_gpu_that_was_asked_once_in_many_short_windows_does_not_pass(name: str) -> None:
    changes = {**NOTHING, "polls": 0, "utilization": spread(0.9)}
    once = run(lambda one: {} if (one.arm, one.round) == ("memory-copy", 0) else changes)
    result = judged(name, survey(), telemetry=[replace(one, polls=min(one.polls, 1)) for one in once])
    assert result.outcome == "not_measured"
    assert "only 1 polls in 48 s under load" in result.reason


@pytest.mark.parametrize("name", UNDER_LOAD)
def test_blocks_of_a_gpu_that_have_no_telemetry_were_not_watched(name: str) -> None:
    telemetry = run()
    blocks = gpu_blocks_of(telemetry)
    assert judged(name, survey(), telemetry=telemetry, blocks=blocks).outcome == "passed"
    few = [one for one in telemetry if one.local_rank != 5 or (one.arm, one.round) == ("memory-copy", 0)]
    result = judged(name, survey(), telemetry=few, blocks=blocks)
    assert result.outcome == "not_measured"
    assert "GPU 5 (GPU-n1-5): telemetry of only 1 of 48 blocks" in result.reason
    repeated = [*few, *(47 * [one for one in few if one.local_rank == 5])]
    assert judged(name, survey(), telemetry=repeated, blocks=blocks).outcome == "not_measured"
    nearly = [one for one in telemetry if one.local_rank != 5 or (one.arm, one.round) != ("memory-copy", 0)]
    assert judged(name, survey(), telemetry=nearly, blocks=blocks).outcome == "passed"


@pytest.mark.parametrize("name", UNDER_LOAD)
def test_a_node_that_worked_and_was_not_watched_does_not_pass_by_another(name: str) -> None:
    other = run(host="n2")
    result = judged(name, survey("n1"), planned=1, telemetry=other, blocks=gpu_blocks_of(run()))
    assert result.outcome == "not_measured"
    assert "n1: telemetry of only 0 of 8 GPUs" in result.reason


@pytest.mark.parametrize("name", UNDER_LOAD)
def test_a_strange_gpu_does_not_stand_in_for_one_that_nobody_watched(name: str) -> None:
    strange = run(lambda one: {"device": "GPU-strange"} if one.local_rank == 5 else {})
    result = judged(name, survey(), telemetry=strange)
    assert result.outcome == "not_measured"
    assert "n1: telemetry of only 7 of 8 GPUs" in result.reason
    idle = survey(gpus=(*gpus(), replace(gpus()[0], uuid="GPU-strange")))  # there, and took part in nothing
    assert judged(name, idle, telemetry=strange, blocks=gpu_blocks_of(run())).outcome == "not_measured"
    assert judged(name, idle, telemetry=strange, blocks=gpu_blocks_of(strange)).outcome == "passed"
