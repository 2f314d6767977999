"""A failure that is too weak among all requirements is inconclusive everywhere: item, verdicts, outcome and report."""

from __future__ import annotations

import pytest

from tests.plugin.site import Site, output_of, thresholds_with

FAILING = "device_utilization[resnet152-fp16-8gpu]"


@pytest.fixture
def failing(site: Site) -> Site:
    """A run with one narrow failure."""
    site.write("thresholds.yaml", thresholds_with(f"test_{FAILING}", "bound: 0.95", "bound: 0.976"))
    site.measured()
    return site


def verdict(site: Site) -> dict[str, object]:
    (found,) = [one for one in site.verdicts()["verdicts"] if one["id"] == FAILING]
    return dict(found)


def test_a_failure_that_is_clear_enough_rejects(failing: Site) -> None:
    failing.judge("--ddp-family-confidence=0.9")
    assert verdict(failing)["outcome"] == "failed"
    assert failing.outcome() == "rejected"
    assert failing.verdicts()["family_confidence"] == 0.9


def test_one_that_is_not_is_inconclusive(failing: Site) -> None:
    result = failing.judge("--ddp-family-confidence=0.9999")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert f"INCOMPLETE: inconclusive: {FAILING}: fails alone at 95 %, but not among the 8 requirements" in output_of(
        result
    )
    assert verdict(failing)["outcome"] == "inconclusive"
    assert failing.outcome() == "incomplete"
    report = (failing.path / "measured" / "report.md").read_text("utf-8")
    assert "- Rejected by mistake: a machine that meets all bounds is rejected in at most 0.01 % of runs." in report


def test_each_item_says_what_the_run_says_though_it_is_asked_first(failing: Site) -> None:
    result = failing.judge("--ddp-family-confidence=0.9999", "-k", "device_utilization or peak_memory")
    assert "not among the 2 requirements together" in output_of(result)
    assert failing.outcome() == "incomplete"
