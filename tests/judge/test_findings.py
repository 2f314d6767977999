"""Checks of what GPUs said while they worked, arm by arm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as altered

from pytest_ddpscale.plan.node_check import NODE_CHECKS
from tests.builders.nodes_checked import A100, NOT_SUPPORTED, gpus, judged, spread, survey, window, windows
from tests.builders.telemetry import Telemetry, gpu_blocks_of

UNDER_LOAD = [name for name, check in NODE_CHECKS.items() if check.reads == "telemetry"]
Change = Callable[[Telemetry], dict[str, Any]]
SILENT = {"device": "the sampler ended"}


def on_gpu(which: int, rounds: int = 99, **changes: Any) -> Change:
    """Changes of one GPU in its first rounds."""
    return lambda one: changes if one.local_rank == which and one.round < rounds else {}


def test_healthy_nodes_pass() -> None:
    for name in UNDER_LOAD:
        result = judged(name, survey("n1"), survey("n2"), telemetry=windows("n1") + windows("n2"))
        assert (result.outcome, result.value) == ("passed", 1.0)


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("ecc_under_load", on_gpu(5, 1, ecc_uncorrected=1), "1 new uncorrectable memory errors under load"),
        (
            "throttling_under_load",
            on_gpu(5, 2, throttle_reasons={"hw_thermal_slowdown": 0.1, "sw_power_cap": 1.0}),
            "clocks are throttled: hw_thermal_slowdown, in 2 of 4 windows under load",
        ),
        ("pcie_under_load", on_gpu(5, 2, pcie_generation=3), "generation 3 to 4, expected 4, in 2 of 4 windows"),
        ("pcie_under_load", on_gpu(5, 4, pcie_width=8), "8 lanes, expected 16, in 4 of 4 windows"),
    ],
)
def test_a_gpu_that_does_not_bear_load_is_named(name: str, change: Change, text: str) -> None:
    result = judged(name, survey("n1"), survey("n2"), telemetry=windows("n1", change=change) + windows("n2"))
    assert (result.outcome, result.value) == ("failed", 0.5)
    (culprit,) = result.culprits
    assert (culprit.kind, culprit.host, culprit.gpu_index, culprit.gpu_uuid) == ("gpu", "n1", 5, "GPU-n1-5")
    assert culprit.is_certain
    assert text in culprit.evidence


def test_what_passes_by_is_no_fault() -> None:
    for name, change in [
        ("throttling_under_load", on_gpu(5, 1, throttle_reasons={"hw_slowdown": 1.0})),  # one window of four
        ("throttling_under_load", on_gpu(5, throttle_reasons={"hw_slowdown": 0.09})),  # in passing
        ("throttling_under_load", on_gpu(5, throttle_reasons={"sw_power_cap": 1.0, "sync_boost": 1.0})),
        ("throttling_under_load", on_gpu(5, 1, throttle_reasons=None)),  # three others show that it is not lasting
        ("pcie_under_load", on_gpu(5, 1, pcie_generation=1)),  # saving power until the first poll
        ("pcie_under_load", on_gpu(5, 3, pcie_generation=1, utilization=spread(0.01))),  # idle, beside one that works
        ("ecc_under_load", on_gpu(5, ecc_corrected=3)),
        ("throttling_under_load", on_gpu(5, 3, polls=0, throttle_reasons=None)),  # shorter than the time between polls
        ("pcie_under_load", on_gpu(5, 3, polls=0, pcie_generation=None, pcie_width=None)),
    ]:
        assert judged(name, survey("n1"), telemetry=windows(change=change)).outcome == "passed"


def test_corrected_errors_are_noted() -> None:
    result = judged("ecc_under_load", survey("n1"), telemetry=windows(change=on_gpu(5, ecc_corrected=3)))
    assert result.notes == ("n1: GPU 5 (GPU-n1-5): 12 new corrected memory errors under load",)


def test_what_cannot_be_read_is_never_passed() -> None:
    for name, change, text in [
        ("ecc_under_load", on_gpu(5, 1, ecc_uncorrected=None, unreadable={"ecc_uncorrected": "lost"}), "(lost)"),
        ("ecc_under_load", on_gpu(5, ecc_uncorrected=None), "the driver gives no reason"),
        ("throttling_under_load", on_gpu(5, 2, throttle_reasons=None), "throttle_reasons cannot be read in 2 of 4"),
        ("throttling_under_load", on_gpu(5, polls=0, throttle_reasons=None), "cannot be read in 4 of 4"),
        ("throttling_under_load", on_gpu(5, 2, polls=0, throttle_reasons=None, unreadable=SILENT), "read in 2 of 4"),
        ("ecc_under_load", on_gpu(5, 1, polls=0, ecc_uncorrected=None, unreadable=SILENT), "(the sampler ended)"),
        ("pcie_under_load", on_gpu(5, pcie_generation=None), "PCIe cannot be read in 4 of 4"),
        ("pcie_under_load", on_gpu(5, pcie_width=None), "PCIe cannot be read in 4 of 4"),
        ("pcie_under_load", on_gpu(5, utilization=None, pcie_generation=1), "PCIe cannot be read"),
        ("pcie_under_load", on_gpu(5, utilization=spread(0.1)), "utilization never reached 50 %"),
    ]:
        result = judged(name, survey("n1"), survey("n2"), telemetry=windows("n1", change=change) + windows("n2"))
        assert (result.outcome, result.value) == ("not_measured", None)
        assert text in result.reason
        assert "n1: GPU 5" in result.reason


def test_a_gpu_without_ecc_has_no_errors_to_read_unless_it_should_have() -> None:
    change = on_gpu(5, ecc_uncorrected=None, unreadable={"ecc_uncorrected": NOT_SUPPORTED})
    telemetry = windows(change=change)
    assert judged("ecc_under_load", survey(), telemetry=telemetry).outcome == "not_measured"
    expectation = replace(A100, ecc=None)
    assert judged("ecc_under_load", survey(), telemetry=telemetry, expectation=expectation).outcome == "passed"


def test_a_node_or_a_gpu_that_nobody_watched_does_not_pass() -> None:
    for name in UNDER_LOAD:
        nodes = (survey("n1"), survey("n2"))
        assert judged(name, *nodes).outcome == "not_measured"
        assert "1 of 2 nodes reported nothing" in judged(name, *nodes, telemetry=windows("n1")).reason
        result = judged(name, *nodes, telemetry=windows("n1") + windows("n2", gpus=7))
        assert result.outcome == "not_measured"
        assert "n2: telemetry of only 7 of 8 GPUs" in result.reason


@given(answers=st.lists(st.sampled_from(["held", "free", "untold"]), min_size=1, max_size=12))
def test_throttling_in_half_of_the_windows_fails_whatever_the_others_would_say(answers: list[str]) -> None:
    meaning: dict[str, dict[str, float] | None] = {"held": {"hw_slowdown": 1.0}, "free": {}, "untold": None}
    telemetry = windows(
        gpus=1, rounds=len(answers), change=lambda one: {"throttle_reasons": meaning[answers[one.round]]}
    )
    expectation = replace(A100, gpus_per_node=1)
    outcome = judged("throttling_under_load", survey(), telemetry=telemetry, expectation=expectation).outcome
    least, most = answers.count("held"), answers.count("held") + answers.count("untold")
    half = len(answers) / 2
    assert outcome == ("failed" if least >= half else "passed" if most < half else "not_measured")


OF_WINDOWS = ["throttling_under_load", "pcie_under_load"]
TRAINING = ("each@8", "ddp@8")
ARMS = (*TRAINING, "memory-copy", "host-to-device", "all-reduce-1mib@8", "all-reduce-32mib@8")
SAMPLER_ENDED: dict[str, Any] = {"polls": 0, "unreadable": {"device": "the sampler ended"}}
NOTHING: dict[str, Any] = {
    "utilization": None, "throttle_reasons": None, "ecc_uncorrected": None, "pcie_generation": None, "pcie_width": None,
}  # fmt: skip
HOT: dict[str, Any] = {"throttle_reasons": {"hw_thermal_slowdown": 1.0}}


def run(
    change: Callable[[Telemetry], dict[str, Any]] = lambda _: {}, host: str = "n1", rounds: int = 8
) -> list[Telemetry]:
    """Six arms on all GPUs of a node."""
    healthy = [altered(window(host, gpu, n), arm=arm) for n in range(rounds) for arm in ARMS for gpu in range(8)]
    return [altered(one, **change(one)) for one in healthy]


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
    result = judged(name, survey(), telemetry=run(on_gpu_5(TRAINING, **SAMPLER_ENDED, **NOTHING)))
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
    result = judged(name, survey(), telemetry=[altered(one, polls=min(one.polls, 1)) for one in once])
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
    idle = survey(gpus=(*gpus(), altered(gpus()[0], uuid="GPU-strange")))  # there, and took part in nothing
    assert judged(name, idle, telemetry=strange, blocks=gpu_blocks_of(run())).outcome == "not_measured"
    assert judged(name, idle, telemetry=strange, blocks=gpu_blocks_of(strange)).outcome == "passed"
