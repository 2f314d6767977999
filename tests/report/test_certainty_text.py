"""The report says what chance can do to its outcome, and which loss would not show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.report.certainty_text import certainty_lines, chance_text, uniform_loss_text
from pytest_ddpscale.report.terminal import table_lines
from pytest_ddpscale.results.verdicts import Judgement, UniformLoss
from tests.builders.judgements import FAILED, PASSED

LOSS = UniformLoss(0.0028, 0.051, 0.95, "throughput_per_gpu[a]", 5)
ACCEPTED = Judgement("a100", "accepted", "1 of 1", (PASSED,), uniform_loss=LOSS)
WORDS = (
    "All devices alike slow: up to 0.28 % below the published throughput cannot be excluded "
    "(95 % confidence; tightest of 5 workloads, loosest 5.1 %)."
)


def test_a_loss_that_could_hide_is_told_on_terminal_and_in_the_report() -> None:
    assert (WORDS, "") in table_lines(ACCEPTED, 200)
    assert list(certainty_lines(ACCEPTED))[-1] == WORDS


def test_one_workload_has_no_loosest() -> None:
    one = replace(ACCEPTED, uniform_loss=replace(LOSS, fraction=0.058, largest=0.058, workloads=1))
    words = "up to 5.8 % below the published throughput cannot be excluded (95 % confidence)."
    assert uniform_loss_text(one).endswith(words)


def test_a_machine_that_beats_what_was_published_hides_no_loss() -> None:
    faster = replace(ACCEPTED, uniform_loss=replace(LOSS, fraction=0.0))
    assert uniform_loss_text(faster).startswith("All devices alike slow: no loss below the published throughput (95 %")


def test_without_a_published_throughput_any_loss_could_hide() -> None:
    words = (
        "All devices alike slow: this run has no published throughput to compare with, "
        "so a loss of any size could stay hidden."
    )
    assert uniform_loss_text(replace(ACCEPTED, uniform_loss=None)) == words


def test_nothing_is_said_of_a_published_throughput_that_was_not_kept_nor_of_a_run_without_training() -> None:
    missed = replace(FAILED, published=1200.0)
    assert uniform_loss_text(replace(ACCEPTED, verdicts=(missed,), uniform_loss=None)) == ""
    checked = replace(PASSED, metric="node_check", interval=None)
    assert list(certainty_lines(replace(ACCEPTED, verdicts=(checked,), uniform_loss=None))) == []


def test_levels_and_what_they_mean_for_all_requirements_are_told() -> None:
    many = replace(ACCEPTED, verdicts=tuple(replace(PASSED, id=str(number)) for number in range(84)))
    accepted, rejected, _ = certainty_lines(many)
    assert accepted.startswith("Accepted by mistake: a machine that misses a bound is accepted in at most 5 % of runs")
    assert "84 requirements can reject by chance" in rejected
    assert "in 0.9 % of runs if their errors coincide, and in 53.21 % if they are independent" in rejected


def test_means_of_launches_fail_by_chance_more_often() -> None:
    """Student's t over them has 2.5 % on each side; a confidence sequence has far less."""
    several = tuple(replace(PASSED, id=str(number), launches=3) for number in range(30))
    (_, rejected, _) = certainty_lines(replace(ACCEPTED, verdicts=(*several, replace(PASSED, id="probe"))))
    assert "in 2.5 % of runs if their errors coincide, and in 53.63 % if they are independent" in rejected
    assert "(if launches are normally distributed)" in rejected


@pytest.mark.parametrize(
    ("p_value", "words"),
    [
        (0.0046, "A machine that meets this bound fails so by chance in at most 1 of 217 runs (p = 0.0046)."),
        (1e-12, "A machine that meets this bound fails so by chance in less than 1 of 1,000,000,000 runs."),
        (None, ""),
    ],
)
def test_how_rarely_a_failure_is_chance(p_value: float | None, words: str) -> None:
    assert chance_text(replace(FAILED, p_value=p_value)) == words
    assert chance_text(replace(PASSED, p_value=p_value)) == ""
