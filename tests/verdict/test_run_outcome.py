"""What a run comes to: rejected before incomplete before partial before accepted."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.report.text import verdict_word
from pytest_ddpscale.results.coverage import Coverage, NodeCoverage
from pytest_ddpscale.results.verdicts import Verdict, VerdictOutcome
from pytest_ddpscale.thresholds.waiver import Waiver
from pytest_ddpscale.verdict.run_outcome import ONE_NODE, RunCaveats, conclude, other_blockers, qualified
from tests.rows import rows

PASSED = Verdict("m[a]", "throughput_per_gpu", "a", 1, "fail", {"at_least": 1.0}, "passed", 2.0, (1.5, 2.5), rounds=5)
UNDECIDED: tuple[VerdictOutcome, ...] = ("inconclusive", "not_measured", "error")


def verdict(
    outcome: VerdictOutcome, severity: Literal["fail", "warn"] = "fail", name: str = "b", *, provisional: bool = False
) -> Verdict:
    return replace(PASSED, id=f"m[{name}]", outcome=outcome, severity=severity, provisional=provisional)


def test_all_passed_is_accepted() -> None:
    assert conclude([PASSED, verdict("passed")], 2) == ("accepted", "2 of 2 requirements passed")


def test_one_failure_rejects_and_is_named() -> None:
    assert conclude([PASSED, verdict("failed")], 2) == ("rejected", "1 of 2 requirements failed: m[b]")


@rows("other", UNDECIDED)
@rows("interrupted", [False, True])
def test_a_failure_rejects_whatever_else_is_undecided(other: VerdictOutcome, interrupted: bool) -> None:
    outcome, reason = conclude([verdict(other, name="x"), verdict("failed")], 9, interrupted)
    assert (outcome, reason) == ("rejected", "1 of 2 requirements failed: m[b]")


@rows("outcome", ["not_measured", "error"])
@rows("severity", ["fail", "warn"])
def test_what_was_not_measured_leaves_the_run_incomplete_even_if_it_only_warns(
    outcome: VerdictOutcome, severity: Literal["fail", "warn"]
) -> None:
    concluded = conclude([PASSED, verdict(outcome, severity)], 2)
    assert concluded == ("incomplete", "1 of 2 requirements were not measured: m[b]")


def test_an_inconclusive_requirement_leaves_the_run_incomplete() -> None:
    concluded = conclude([PASSED, verdict("inconclusive")], 2)
    assert concluded == ("incomplete", "1 of 2 requirements are inconclusive: m[b]")


def test_a_check_that_could_reject_nothing_is_not_waited_for() -> None:
    looked = replace(verdict("not_measured", "warn"), metric="node_check")
    assert conclude([PASSED, looked], 2) == ("accepted", "1 of 2 requirements passed, 1 warned")
    assert conclude([PASSED, replace(looked, severity="fail")], 2)[0] == "incomplete"
    assert conclude([PASSED, replace(looked, outcome="error")], 2)[0] == "incomplete"


def test_gpus_that_are_missing_keep_the_others_from_being_accepted() -> None:
    caveats = RunCaveats(silent=("GPU 1: GPU is lost",))
    assert qualified("accepted", "all passed", caveats) == ("incomplete", "GPU 1: GPU is lost (all passed)")
    assert qualified("rejected", "one failed", caveats) == ("rejected", "one failed")


@rows("outcome", ["failed", "inconclusive"])
def test_a_warning_does_not_stand_in_the_way_but_is_counted(outcome: VerdictOutcome) -> None:
    assert conclude([PASSED, verdict(outcome, "warn")], 2) == ("accepted", "1 of 2 requirements passed, 1 warned")


def test_incomplete_comes_before_partial() -> None:
    assert conclude([PASSED, verdict("not_measured")], 7)[0] == "incomplete"
    assert conclude([PASSED, verdict("inconclusive")], 7)[0] == "incomplete"


def test_a_selection_is_partial() -> None:
    concluded = conclude([PASSED], 3)
    assert concluded == ("partial", "1 of 3 requirements passed; the others were not selected")


def test_an_interrupted_run_is_incomplete_although_all_so_far_passed() -> None:
    assert conclude([PASSED], 3, interrupted=True) == ("incomplete", "interrupted after 1 of 3 requirements")
    assert conclude([PASSED], 1, interrupted=True)[0] == "incomplete"


@rows("required", [0, 4])
def test_no_verdicts_at_all_accept_nothing(required: int) -> None:
    assert conclude([], required) == ("incomplete", "no requirement was judged")


def test_provisional_bounds_alone_cannot_accept() -> None:
    outcome, reason = conclude([verdict("passed", provisional=True), verdict("passed", name="c", provisional=True)], 2)
    assert outcome == "incomplete"
    assert "2 of 2 requirements passed, but none with a published bound" in reason
    assert "Put measured numbers with their source into the thresholds file" in reason


def test_a_selection_of_provisional_bounds_is_partial_too() -> None:
    assert conclude([verdict("passed", provisional=True)], 2)[0] == "partial"


def test_provisional_bounds_beside_a_published_one_accept() -> None:
    assert conclude([PASSED, verdict("passed", provisional=True)], 2)[0] == "accepted"


def test_a_published_bound_that_only_warns_cannot_accept() -> None:
    assert conclude([verdict("passed", "warn"), verdict("passed", provisional=True)], 2)[0] == "incomplete"


def test_a_provisional_failure_of_severity_fail_rejects() -> None:
    assert conclude([PASSED, verdict("failed", provisional=True)], 2)[0] == "rejected"


WAIVED = replace(verdict("failed", name="w"), waiver=Waiver("A. Name", "a fan is ordered", date(2026, 12, 31)))


def test_a_waived_failure_is_accepted_by_another_name_and_counted_apart() -> None:
    warned = verdict("failed", "warn", "c")
    assert conclude([PASSED, WAIVED], 2) == ("accepted_with_waivers", "1 of 2 requirements met, 1 waived")
    assert conclude([PASSED, WAIVED, warned], 3)[1] == "1 of 3 requirements met, 1 waived, 1 warned"
    assert conclude([PASSED, WAIVED, verdict("failed")], 3) == ("rejected", "1 of 3 requirements failed: m[b]")
    assert conclude([PASSED, WAIVED, verdict("inconclusive")], 3)[0] == "incomplete"
    assert conclude([PASSED, WAIVED], 3)[0] == "partial"
    assert other_blockers([PASSED, WAIVED], 2, False, ONE_NODE, RunCaveats()) == ()


def test_what_is_waived_carries_no_acceptance() -> None:
    assert conclude([WAIVED, verdict("passed", provisional=True)], 2)[0] == "incomplete"
    assert conclude([WAIVED], 1)[0] == "incomplete"


def test_waivers_do_not_cover_what_was_not_tested() -> None:
    absent = RunCaveats(coverage=Coverage((NodeCoverage("n0", (), left_out="disk: full"),)))
    assert qualified("accepted_with_waivers", "all passed", absent)[0] == "incomplete"
    assert qualified("accepted_with_waivers", "why", RunCaveats()) == ("accepted_with_waivers", "why")
    assert qualified("accepted_with_waivers", "why", RunCaveats(is_simulated=True))[0] == "incomplete"


def test_many_names_are_counted_rather_than_listed() -> None:
    _, reason = conclude([verdict("failed", name=str(i)) for i in range(5)], 5)
    assert reason == "5 of 5 requirements failed: m[0], m[1], m[2] and 2 more"


OUTCOMES = st.sampled_from(["passed", "failed", "inconclusive", "not_measured", "error"])
VERDICTS = st.lists(
    st.builds(verdict, OUTCOMES, st.sampled_from(["fail", "warn"]), provisional=st.booleans()), max_size=6
)


@given(VERDICTS, st.integers(0, 7), st.booleans())
def test_acceptance_needs_every_requirement_decided_and_none_failed(
    verdicts: list[Verdict], left_out: int, interrupted: bool
) -> None:
    outcome, _ = conclude(verdicts, len(verdicts) + left_out, interrupted)
    if outcome != "accepted":
        return
    assert not interrupted
    assert left_out == 0
    binding = [v for v in verdicts if v.severity == "fail"]
    assert binding
    assert all(v.passed for v in binding)
    assert any(not v.provisional for v in binding)
    assert all(v.outcome not in ("not_measured", "error") for v in verdicts)


@given(VERDICTS, st.booleans())
def test_the_order_of_verdicts_does_not_change_the_outcome(verdicts: list[Verdict], interrupted: bool) -> None:
    forwards, _ = conclude(verdicts, len(verdicts), interrupted)
    assert conclude(verdicts[::-1], len(verdicts), interrupted)[0] == forwards


def test_a_published_bound_on_few_devices_accepts_no_more_of_them() -> None:
    """Seven slow GPUs of eight leave a bound at world size 1 untouched."""
    slow = replace(verdict("failed", "warn", provisional=True), world_size=8)
    outcome, reason = conclude([PASSED, slow], 2)
    assert outcome == "incomplete"
    assert "none with a published bound covers all devices" in reason
    assert conclude([PASSED, slow, replace(verdict("passed", name="c"), world_size=8)], 3)[0] == "accepted"


def test_that_replicas_agree_accepts_no_machine_whose_speed_nobody_has_judged() -> None:
    agreement = replace(verdict("passed"), metric="replica_agreement")
    assert conclude([agreement], 1)[0] == "incomplete"
    assert conclude([agreement, PASSED], 2)[0] == "accepted"


def test_a_selection_of_which_nothing_passed_is_not_partial() -> None:
    assert conclude([verdict("failed", "warn")], 9)[0] == "incomplete"


@rows(
    ("others", "expected"),
    [
        ([verdict("not_measured")], True),
        ([verdict("not_measured"), verdict("failed", "warn")], True),
        ([verdict("inconclusive")], False),
        ([verdict("error")], False),
        ([verdict("error", "warn")], False),
        ([verdict("failed")], False),
    ],
)
def test_only_what_is_unmeasured_may_be_allowed(others: list[Verdict], expected: bool) -> None:
    assert may_be_allowed([PASSED, *others]) is expected


def test_nothing_published_or_nothing_measured_is_never_allowed() -> None:
    assert not may_be_allowed([verdict("passed", provisional=True), verdict("not_measured")])
    assert not may_be_allowed([verdict("not_measured")])
    assert not may_be_allowed([])


TWO_NODES = Coverage((NodeCoverage("n0", ("training",)), NodeCoverage("n1", ("training",))), ranks=1)


@rows(
    "caveats",
    [
        RunCaveats(spoiled=["test_x"]),
        RunCaveats(not_one_machine="the studies ran on different hosts"),
        RunCaveats(is_simulated=True),
        RunCaveats(silent=["GPU 1: GPU is lost"]),
        RunCaveats(slow_links=["n3"]),
        RunCaveats(coverage=replace(TWO_NODES, unnamed_nodes=1)),
        RunCaveats(coverage=Coverage((NodeCoverage("n0", (), left_out="disk: full"),))),
        RunCaveats(coverage=replace(TWO_NODES, paths_planned=1)),
        RunCaveats(coverage=replace(TWO_NODES, why_paths_are_missing="rank 2 died")),
    ],
)
def test_what_else_stands_in_the_way_is_not_allowed_with_what_is_unmeasured(caveats: RunCaveats) -> None:
    assert may_be_allowed([PASSED, verdict("not_measured")])
    assert not may_be_allowed([PASSED, verdict("not_measured")], caveats=caveats)


def test_an_interruption_or_a_miss_between_nodes_is_not_allowed_either() -> None:
    assert not may_be_allowed([PASSED, verdict("not_measured")], interrupted=True)
    missed = replace(verdict("failed", "warn", "c", provisional=True), world_size=2)
    coverage = replace(TWO_NODES, between_nodes=(missed.id,), over_all_nodes=(missed.id,))
    assert not may_be_allowed([PASSED, missed, verdict("not_measured")], coverage=coverage)


def may_be_allowed(
    verdicts: list[Verdict],
    *,
    interrupted: bool = False,
    coverage: Coverage = ONE_NODE,
    caveats: RunCaveats = RunCaveats(),  # noqa: B008 (frozen)
) -> bool:
    allowing = replace(caveats, allows_unmeasured=True)
    others = other_blockers(verdicts, len(verdicts), interrupted, coverage, allowing)
    return not others and not any(one.blocks(allows_unmeasured=True) for one in verdicts)


def test_wrong_data_rejects_whatever_the_severity() -> None:
    wrong = replace(verdict("failed", "warn", provisional=True), flags=("wrong-data",))
    assert conclude([PASSED, wrong], 2) == ("rejected", "1 of 2 requirements failed: m[b]")
    assert wrong.blocks(allows_unmeasured=True)
    assert verdict_word(wrong) == "FAIL"
