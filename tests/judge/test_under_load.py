"""Checks of what GPUs said while they worked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.node_check import NODE_CHECKS
from tests.builders.nodes_checked import A100, NOT_SUPPORTED, judged, spread, survey, windows
from tests.builders.telemetry import Telemetry

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
