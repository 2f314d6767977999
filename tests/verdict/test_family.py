"""Failures are corrected for how many requirements were judged; nothing else is."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from pytest_ddpscale.results.verdicts import Culprit, Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from pytest_ddpscale.verdict.family import ANY_P_VALUE, is_open, rejection_level, with_family_confidence
from tests.builders.judged import make_case
from tests.verdict.test_run_outcome import PASSED

GPU = Culprit("gpu", "n1", 3, "GPU-3", "1.06× the median")


def failed(name: str, p_value: float | None, **changes: object) -> Verdict:
    missed = replace(PASSED, id=name, outcome="failed", value=0.5, interval=(0.4, 0.6), p_value=p_value)
    return replace(missed, reason="the whole interval misses it", culprits=(GPU,), **changes)  # type: ignore[arg-type]


def corrected(*verdicts: Verdict, others: int = 0, family_confidence: float = 0.95) -> dict[str, str]:
    kept = [replace(PASSED, id=f"kept {number}") for number in range(others)]
    found = with_family_confidence([*verdicts, *kept], family_confidence)
    assert [one.id for one in found] == [one.id for one in (*verdicts, *kept)]
    assert all(one is was for one, was in zip(found[len(verdicts) :], kept, strict=True))
    return {one.id: one.outcome for one in found[: len(verdicts)]}


def test_a_failure_counts_if_it_holds_at_the_level_divided_by_their_number() -> None:
    assert corrected(failed("a", 0.005), others=9) == {"a": "failed"}
    assert corrected(failed("a", 0.0051), others=9) == {"a": "inconclusive"}
    assert corrected(failed("a", 0.0051), others=9, family_confidence=0.9) == {"a": "failed"}


def test_each_that_counts_leaves_fewer_to_correct_for() -> None:
    three = failed("b", 0.0055), failed("a", 0.001), failed("c", 0.0062)
    assert corrected(*three, others=7) == {"b": "failed", "a": "failed", "c": "failed"}
    assert corrected(*three[::2], others=8) == {"b": "inconclusive", "c": "inconclusive"}


def test_after_the_first_that_does_not_count_none_does() -> None:
    assert corrected(failed("a", 0.006), failed("b", 0.0055), others=8) == {"a": "inconclusive", "b": "inconclusive"}


def test_what_does_not_count_says_so_and_drains_nobody() -> None:
    found = with_family_confidence([failed("a", 0.03), PASSED], 0.95)[0]
    assert found.reason == (
        "fails alone at 95 %, but not among the 2 requirements together (family confidence 95 %): "
        "the whole interval misses it"
    )
    assert found.culprits == (replace(GPU, is_certain=False),)
    assert found.p_value == 0.03
    assert found.blocks()


def test_what_counts_stays_as_it_is() -> None:
    verdict = failed("a", 1e-6)
    assert with_family_confidence([verdict, PASSED], 0.95)[0] is verdict


@pytest.mark.parametrize(
    "fact",
    [
        failed("a", None),
        failed("a", None, metric="node_check", bound={"at_least": 1.0}),
        failed("a", None, metric="replica_agreement", bound={"at_least": 1.0}),
        failed("a", 0.04, flags=("wrong-data",)),
        failed("a", 0.04, severity="warn"),
        failed("a", 0.04, waiver=Waiver("A. Name", "a fan is ordered", date(2027, 1, 1))),
    ],
    ids=["a single sample", "a check", "ranks that disagree", "wrong data", "a warning", "what is waived"],
)
def test_what_is_no_matter_of_chance_or_rejects_nothing_is_left_alone(fact: Verdict) -> None:
    assert corrected(fact, others=50) == {"a": "failed"}


def test_checks_and_warnings_are_no_members_of_the_family() -> None:
    others = [replace(PASSED, id="w", severity="warn"), replace(PASSED, id="n", metric="node_check")]
    assert with_family_confidence([failed("a", 0.05), *others], 0.95)[0].outcome == "failed"


def test_correcting_twice_changes_nothing() -> None:
    once = with_family_confidence([failed("a", 0.0001), failed("b", 0.03), failed("c", 0.02), PASSED], 0.95)
    assert [one.outcome for one in once] == ["failed", "inconclusive", "inconclusive", "passed"]
    assert with_family_confidence(once, 0.95) == once


class TestMeasuring:
    CASES = (make_case("throughput_per_gpu", 1.0), make_case("weak_scaling_efficiency", 0.9),
             make_case("step_time_cv", 0.1, severity="warn"), make_case("replica_agreement", 1.0))  # fmt: skip

    def test_goes_on_until_a_failure_would_count_whatever_the_others_come_to(self) -> None:
        level = rejection_level(self.CASES, 0.95)
        assert level == pytest.approx(0.025)
        assert is_open(failed("a", 0.026), level)
        assert not is_open(failed("a", 0.024), level)

    def test_without_the_option_ends_with_the_failure(self) -> None:
        assert rejection_level(self.CASES, None) == ANY_P_VALUE
        assert not is_open(failed("a", 1.0), ANY_P_VALUE)

    def test_does_not_go_on_for_what_rejects_nothing_or_is_a_fact(self) -> None:
        assert not is_open(failed("a", 0.5, severity="warn"), 0.01)
        assert not is_open(failed("a", None), 0.01)
        assert not is_open(PASSED, 0.01)
