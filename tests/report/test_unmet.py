"""Every report and pytest come to the same number of what is not met."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from pytest_ddpscale.report.causes import counts_text, explained_text
from pytest_ddpscale.run.verdicts import Blocker, Judgement, Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.judgements import NOT_MEASURED, PASSED

FAILED = replace(PASSED, id="failed", outcome="failed", value=0.8)
OPEN = replace(PASSED, id="open", outcome="inconclusive")
WARNED = replace(FAILED, id="warned", severity="warn")
WAIVED = replace(FAILED, id="waived", waiver=Waiver("A. Name", "a fan is ordered", date(2026, 12, 31)))


def _judged(*verdicts: Verdict, blockers: tuple[Blocker, ...] = ()) -> Judgement:
    return Judgement("b200", "rejected", "why", verdicts, blockers=blockers)


def test_what_is_not_met_is_told_apart_by_what_became_of_it() -> None:
    judged = _judged(PASSED, FAILED, replace(FAILED, id="too"), OPEN, NOT_MEASURED, WARNED, WAIVED)
    assert counts_text(judged) == (
        "4 of 7 requirements not met (2 failed, 1 undecided, 1 not measured), 1 passed, 1 waived, 1 only warns"
    )


def test_what_may_stay_unmeasured_does_not_warn() -> None:
    judged = replace(_judged(PASSED, NOT_MEASURED, WARNED), allows_unmeasured=True)
    assert counts_text(judged) == "1 of 3 requirements passed, 1 not measured, as allowed, 1 only warns"


def test_one_kind_of_it_is_told_in_one_word() -> None:
    assert counts_text(_judged(PASSED, FAILED)) == "1 of 2 requirements failed, 1 passed"
    assert counts_text(_judged(OPEN)) == "1 of 1 requirement undecided, 0 passed"
    assert counts_text(_judged(PASSED)) == "1 of 1 requirement passed"


def test_what_is_no_requirement_is_counted_beside_them() -> None:
    tests = tuple(Blocker("test", name, "failed") for name in ("test_fans", "test_disk"))
    assert counts_text(_judged(PASSED, blockers=tests)) == "1 of 1 requirement passed, 2 tests failed or skipped"
    run = Blocker("run", "acceptance", "nothing between nodes")
    assert counts_text(_judged(PASSED, blockers=(run,))) == "1 of 1 requirement passed, 1 failure: the run as a whole"


def test_a_cause_says_how_much_it_explains_of_each_kind() -> None:
    tests = (Blocker("test", "test_fans", "failed"),)
    judged = _judged(FAILED, OPEN, replace(OPEN, id="wide"), NOT_MEASURED, blockers=tests)
    assert explained_text({FAILED.id, OPEN.id}, judged) == "1 of 2 failures and 1 of 2 undecided"
    assert explained_text({NOT_MEASURED.id}, judged) == "1 of 1 not measured"
