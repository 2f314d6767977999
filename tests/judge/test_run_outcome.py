"""What a run comes to: rejected before incomplete before partial before accepted; what is waived or could hide."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.run_outcome import RunFacts, conclude, other_blockers, uniform_loss, with_waiver
from pytest_ddpscale.report.text import verdict_word
from pytest_ddpscale.run.coverage import Coverage, NodeCoverage
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Blocker, RunOutcome, UniformLoss, Verdict, VerdictOutcome
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.judged import CONFIDENCE, make_case
from tests.builders.probes import MATMUL, measure_probe, probe_case, probe_evidence, probe_plan, steady
from tests.judge.nodes import equal, measure_nodes, nodes_evidence, plan_of_nodes, slow_rank
from tests.rows import rows

PASSED = Verdict("m[a]", "throughput_per_gpu", "a", 1, "fail", {"at_least": 1.0}, "passed", 2.0, (1.5, 2.5), rounds=5)
UNDECIDED: tuple[VerdictOutcome, ...] = ("inconclusive", "not_measured", "error")


def verdict(
    outcome: VerdictOutcome, severity: Literal["fail", "warn"] = "fail", name: str = "b", *, provisional: bool = False
) -> Verdict:
    return replace(PASSED, id=f"m[{name}]", outcome=outcome, severity=severity, provisional=provisional)


WAIVED = replace(verdict("failed", name="w"), waiver=Waiver("A. Name", "a fan is ordered", date(2026, 12, 31)))
WARNED, FAILED = verdict("failed", "warn", "c"), verdict("failed")
UNPUBLISHED = verdict("passed", name="p", provisional=True)
CHECK = replace(verdict("not_measured", "warn"), metric="node_check")
AGREEMENT = replace(verdict("passed"), metric="replica_agreement")
# Seven slow GPUs of eight leave a bound at world size 1 untouched.
SLOW_EIGHT = replace(verdict("failed", "warn", provisional=True), world_size=8)
SOUND_EIGHT = replace(verdict("passed", name="e"), world_size=8)
WRONG = replace(verdict("failed", "warn", provisional=True), flags=("wrong-data",))
# Verdicts, how many requirements were not selected, the outcome, and what the reason has in it.
CONCLUDED: list[tuple[list[Verdict], int, RunOutcome, str]] = [
    ([PASSED, verdict("passed")], 0, "accepted", "2 of 2 requirements passed"),
    ([PASSED, FAILED], 0, "rejected", "1 of 2 requirements failed: m[b]"),
    *(([verdict(other, name="x"), FAILED], 7, "rejected", "1 of 2 requirements failed: m[b]") for other in UNDECIDED),
    *(
        ([PASSED, verdict(other, severity)], 0, "incomplete", "1 of 2 requirements not measured: m[b]")
        for other in ("not_measured", "error") for severity in ("fail", "warn")
    ),
    ([PASSED, verdict("inconclusive")], 0, "incomplete", "1 of 2 requirements undecided: m[b]"),
    # A check that could reject nothing is not waited for.
    ([PASSED, CHECK], 0, "accepted", "1 of 2 requirements passed, 1 warned"),
    ([PASSED, replace(CHECK, severity="fail")], 0, "incomplete", ""),
    ([PASSED, replace(CHECK, outcome="error")], 0, "incomplete", ""),
    ([PASSED, WARNED], 0, "accepted", "1 of 2 requirements passed, 1 warned"),
    ([PASSED, verdict("inconclusive", "warn")], 0, "accepted", "1 of 2 requirements passed, 1 warned"),
    ([PASSED, verdict("not_measured")], 5, "incomplete", ""),
    ([PASSED, verdict("inconclusive")], 5, "incomplete", ""),
    ([PASSED], 2, "partial", "1 of 3 requirements passed; 2 not selected"),
    ([WARNED], 8, "incomplete", ""),
    ([], 0, "incomplete", "no requirement was judged"),
    ([], 4, "incomplete", "no requirement was judged"),
    ([UNPUBLISHED, UNPUBLISHED], 0, "incomplete", "not decidable without site bounds: ddpscale calibrate RUN_DIR ("),
    ([UNPUBLISHED], 1, "partial", ""),
    ([PASSED, UNPUBLISHED], 0, "accepted", ""),
    ([verdict("passed", "warn"), UNPUBLISHED], 0, "incomplete", ""),
    ([PASSED, verdict("failed", provisional=True)], 0, "rejected", ""),
    ([PASSED, WAIVED], 0, "accepted_with_waivers", "1 of 2 requirements met, 1 waived"),
    ([PASSED, WAIVED, WARNED], 0, "accepted_with_waivers", "1 of 3 requirements met, 1 waived, 1 warned"),
    ([PASSED, WAIVED, FAILED], 0, "rejected", "1 of 3 requirements failed: m[b]"),
    ([PASSED, WAIVED, verdict("inconclusive")], 0, "incomplete", ""),
    ([PASSED, WAIVED], 1, "partial", ""),
    # What is waived carries no acceptance.
    ([WAIVED, UNPUBLISHED], 0, "incomplete", ""),
    ([WAIVED], 0, "incomplete", ""),
    ([PASSED, SLOW_EIGHT], 0, "incomplete", "no published bound covers all devices"),
    ([PASSED, SLOW_EIGHT, SOUND_EIGHT], 0, "accepted", ""),
    # That replicas agree accepts no machine whose speed nobody has judged.
    ([AGREEMENT], 0, "incomplete", ""),
    ([AGREEMENT, PASSED], 0, "accepted", ""),
    ([PASSED, WRONG], 0, "rejected", "1 of 2 requirements failed: m[b]"),
    ([verdict("failed", name=str(i)) for i in range(5)], 0, "rejected", "failed: m[0], m[1], m[2] and 2 more"),
]  # fmt: skip


@rows(
    ("verdicts", "left_out", "outcome", "reason"),
    CONCLUDED,
    ids=[f"{[f'{one.id} {one.outcome}' for one in row[0]]}, {row[1]} left out" for row in CONCLUDED],
)
def test_a_run_comes_to(verdicts: list[Verdict], left_out: int, outcome: RunOutcome, reason: str) -> None:
    run = RunFacts(verdicts, len(verdicts) + left_out)
    found = conclude(run)
    assert found[0] == outcome
    assert reason in found[1]
    # Infrastructure is no failure of the machine, and no pass.
    interrupted, _ = conclude(replace(run, interrupted=True))
    assert interrupted == ("rejected" if outcome == "rejected" else "incomplete")


def test_wrong_data_blocks_whatever_the_severity() -> None:
    assert WRONG.blocks(allows_unmeasured=True)
    assert verdict_word(WRONG) == "FAIL"


def test_what_was_not_tested_keeps_the_rest_from_being_accepted() -> None:
    silent = RunFacts([PASSED], 1, silent=("GPU 1: GPU is lost",))
    assert conclude(silent) == ("incomplete", "GPU 1: GPU is lost (1 of 1 requirement passed)")
    assert conclude(replace(silent, verdicts=[FAILED]))[0] == "rejected"
    unasked = RunFacts([PASSED], 1, wrong_data=("wrong data in the probe matmul-bf16",))
    assert conclude(unasked)[0] == "incomplete"
    assert "wrong data in the probe matmul-bf16, on which no requirement is judged" in conclude(unasked)[1]
    waived = RunFacts([PASSED, WAIVED], 2)
    absent = replace(waived, coverage=Coverage((NodeCoverage("n0", (), left_out="disk: full"),)))
    for run in (absent, replace(waived, is_simulated=True)):
        assert conclude(run)[0] == "incomplete"
    assert conclude(waived)[0] == "accepted_with_waivers"
    assert other_blockers(waived) == ()


OUTCOMES = st.sampled_from(["passed", "failed", "inconclusive", "not_measured", "error"])
VERDICTS = st.lists(
    st.builds(verdict, OUTCOMES, st.sampled_from(["fail", "warn"]), provisional=st.booleans()), max_size=6
)


@given(VERDICTS, st.integers(0, 7), st.booleans())
def test_acceptance_needs_every_requirement_decided_and_none_failed(
    verdicts: list[Verdict], left_out: int, interrupted: bool
) -> None:
    outcome, _ = conclude(RunFacts(verdicts, len(verdicts) + left_out, interrupted))
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
    forwards, _ = conclude(RunFacts(verdicts, len(verdicts), interrupted))
    assert conclude(RunFacts(verdicts[::-1], len(verdicts), interrupted))[0] == forwards


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


TWO_NODES = Coverage(
    (NodeCoverage("n0", ("training",)), NodeCoverage("n1", ("training",))), ranks=1,
    between_nodes=(PASSED.id,), over_all_nodes=(PASSED.id,),
)  # fmt: skip


@rows(
    "facts",
    [
        {"spoiled": [Blocker("test", "test_x", "was skipped")]},
        {"not_one_machine": "the studies ran on different hosts"},
        {"is_simulated": True},
        {"silent": ["GPU 1: GPU is lost"]},
        {"slow_links": ["n3"]},
        {"coverage": replace(TWO_NODES, unnamed_nodes=1)},
        {"coverage": Coverage((NodeCoverage("n0", (), left_out="disk: full"),))},
        {"coverage": replace(TWO_NODES, paths_planned=1)},
        {"coverage": replace(TWO_NODES, why_paths_are_missing="rank 2 died")},
    ],
)
def test_what_else_stands_in_the_way_is_not_allowed_with_what_is_unmeasured(facts: dict[str, Any]) -> None:
    for coverage in (Coverage(), TWO_NODES):
        assert may_be_allowed([PASSED, verdict("not_measured")], coverage=coverage)
    assert not may_be_allowed([PASSED, verdict("not_measured")], **facts)


def test_an_interruption_or_a_miss_between_nodes_is_not_allowed_either() -> None:
    assert not may_be_allowed([PASSED, verdict("not_measured")], interrupted=True)
    missed = replace(verdict("failed", "warn", "c", provisional=True), world_size=2)
    coverage = replace(TWO_NODES, between_nodes=(missed.id,), over_all_nodes=(missed.id,))
    assert not may_be_allowed([PASSED, missed, verdict("not_measured")], coverage=coverage)


def may_be_allowed(verdicts: list[Verdict], **facts: Any) -> bool:
    others = other_blockers(RunFacts(verdicts, len(verdicts), allows_unmeasured=True, **facts))
    return not others and not any(one.blocks(allows_unmeasured=True) for one in verdicts)


DAY = date(2026, 10, 1)
WAIVER = Waiver("A. Name", "a fan is ordered", DAY)
# Of nodes with two ranks each: one node by itself, and two nodes together.
WITHIN = make_case("throughput_per_gpu", 90.0, world_size=2)
BETWEEN = make_case("throughput_per_gpu", 90.0, world_size=4)


def with_a_waiver(case: AnyCase, waiver: Waiver = WAIVER) -> AnyCase:
    requirement = replace(case.requirement, waiver=waiver)
    return replace(case, requirement=requirement)


def judged(case: AnyCase, evidence: Evidence, day: date = DAY) -> Verdict:
    waived = with_a_waiver(case)
    return with_waiver(judge(waived, evidence, CONFIDENCE), waived, evidence, day)


def slow_gpu(case: Case, *, without: tuple[int, ...] = (), odd: tuple[int, ...] = (), is_slow: bool = True) -> Evidence:
    """Three nodes; a GPU of the first is slow."""
    plan = plan_of_nodes([case], 3, 2)
    slowness = slow_rank(0, 1) if is_slow else equal
    return nodes_evidence(plan, measure_nodes(plan, slowness, without=without), odd=odd)


def probed(case: NodeCase, value: float, *, is_correct: bool) -> Evidence:
    plan = probe_plan(MATMUL)
    measured = measure_probe(plan, MATMUL, steady(value))
    return probe_evidence(plan, [replace(one, is_correct=is_correct or one.rank != 3) for one in measured])


def test_a_failure_is_waived_and_stays_a_failure() -> None:
    verdict = judged(WITHIN, slow_gpu(WITHIN))
    assert (verdict.outcome, verdict.waiver, verdict.passed, verdict.blocks()) == ("failed", WAIVER, False, False)
    assert [culprit.host for culprit in verdict.culprits] == ["n0"]


def test_it_ends_by_itself_after_its_last_day() -> None:
    evidence = slow_gpu(WITHIN)
    assert judged(WITHIN, evidence, DAY).is_waived
    ended = judged(WITHIN, evidence, DAY + timedelta(1))
    assert (ended.waiver, ended.blocks()) == (None, True)
    assert ended.notes[-1] == "waiver by A. Name ended 2026-10-01"


def test_what_passes_needs_none() -> None:
    verdict = judged(WITHIN, slow_gpu(WITHIN, is_slow=False))
    assert (verdict.outcome, verdict.waiver) == ("passed", None)
    assert verdict.notes[-1] == "waiver by A. Name until 2026-10-01: not needed"


@rows("outcome", ["inconclusive", "not_measured", "error"])
def test_what_is_not_known_is_not_waived(outcome: VerdictOutcome) -> None:
    evidence, case = slow_gpu(WITHIN), with_a_waiver(WITHIN)
    verdict = with_waiver(replace(judge(case, evidence, CONFIDENCE), outcome=outcome), case, evidence, DAY)
    assert (verdict.waiver, verdict.blocks()) == (None, True)
    assert verdict.notes[-1].endswith("only a failure can be waived")


def test_a_failure_on_one_node_does_not_hide_another_that_was_not_measured() -> None:
    verdict = judged(WITHIN, slow_gpu(WITHIN, without=(2,)))
    assert (verdict.outcome, verdict.waiver, verdict.blocks()) == ("failed", None, True)
    assert verdict.notes[-1].endswith("not applied, because other places were not measured or are undecided")


def test_ranks_that_turn_out_to_be_on_several_nodes_are_not_waived() -> None:
    verdict = judged(BETWEEN, slow_gpu(BETWEEN))
    assert (verdict.outcome, verdict.waiver, verdict.blocks()) == ("failed", None, True)
    assert verdict.notes[-1].endswith("a result between nodes cannot be waived")


def test_a_probe_that_computes_wrong_data_is_not_waived_however_slow_it_is() -> None:
    case = probe_case(MATMUL, 100.0)
    assert judged(case, probed(case, 80.0, is_correct=True)).is_waived
    for value in (80.0, 120.0):
        verdict = judged(case, probed(case, value, is_correct=False))
        assert (verdict.outcome, verdict.waiver) == ("failed", None)
        assert verdict.notes[-1].endswith("wrong data cannot be waived")


def test_slow_training_whose_replicas_differ_is_not_waived() -> None:
    verdict = judged(WITHIN, slow_gpu(WITHIN, odd=(5,)))
    assert (verdict.outcome, verdict.waiver, verdict.blocks()) == ("failed", None, True)
    assert verdict.notes[-1].endswith("wrong data cannot be waived")


@rows("change", [{"outcome": "error"}, {"flags": ("wrong-data",)}, {"flags": ("partly-known",)}])
def test_no_verdict_can_say_that_such_a_thing_is_waived(change: dict[str, object]) -> None:
    verdict = judged(WITHIN, slow_gpu(WITHIN))
    with pytest.raises(ValueError, match="is waived; expected a failure"):
        replace(verdict, **change)  # type: ignore[arg-type]


def throughput(workload: str, low: float, gpus: int = 8, outcome: VerdictOutcome = "passed") -> Verdict:
    """Of which 100 img/s were published."""
    return replace(
        PASSED, id=f"{workload}-{gpus}", workload=workload, world_size=gpus, value=low + 1, interval=(low, low + 2),
        published=100.0, outcome=outcome,
    )  # fmt: skip


def loss_of(*verdicts: Verdict) -> UniformLoss | None:
    """As found where another confidence changes no interval."""
    return uniform_loss(verdicts, 0.95, lambda name, _: next(one for one in verdicts if one.id == name))


def test_it_is_the_distance_from_the_published_value_to_the_lower_limit() -> None:
    found = loss_of(throughput("a", 75.0))
    assert found == UniformLoss(0.25, 0.25, 0.95, "a-8", 1)


def test_the_workload_that_limits_it_most_counts_and_the_one_that_limits_it_least_is_told() -> None:
    found = loss_of(throughput("a", 75.0), throughput("b", 93.75), throughput("c", 87.5))
    assert found == UniformLoss(0.0625, 0.25, 0.95, "b-8", 3)


def test_each_of_several_workloads_is_judged_at_a_share_of_the_level() -> None:
    asked: list[tuple[str, float]] = []

    def judge_at(name: str, confidence: float) -> Verdict:
        asked.append((name, confidence))
        return throughput(name[0], 90.0)

    found = uniform_loss([throughput("a", 99.0), throughput("b", 99.0, outcome="inconclusive")], 0.95, judge_at)
    ((name, confidence),) = asked
    assert name == "a-8"
    assert confidence == pytest.approx(0.975)
    assert found is not None
    assert found.fraction == pytest.approx(0.1)


@given(
    st.lists(st.tuples(*[st.sampled_from(("passed", "failed", *UNDECIDED))] * 2, st.booleans(), st.booleans())),
    st.integers(0, 2), st.booleans(),
)  # fmt: skip
def test_counting_the_same_evidence_once_decides_nothing(
    pairs: list[tuple[VerdictOutcome, VerdictOutcome, bool, bool]], left_out: int, allows: bool
) -> None:
    """Pairs of a throughput and its ratio, which fails or only warns, provisional or not."""
    apart: list[Verdict] = []
    for number, (first, second, only_warns, provisional) in enumerate(pairs):
        of_ratio = verdict(second, "warn" if only_warns else "fail", f"ratio {number}", provisional=provisional)
        apart += [verdict(first, name=str(number), provisional=provisional), of_ratio]
    together = [
        one if number % 2 == 0 else replace(one, counts_with=apart[number - 1].id) for number, one in enumerate(apart)
    ]
    as_before = RunFacts(apart, len(apart) + left_out, allows_unmeasured=allows)
    once = RunFacts(together, len(together) + left_out, allows_unmeasured=allows)
    assert conclude(once)[0] == conclude(as_before)[0]
    assert [one.kind for one in other_blockers(once)] == [one.kind for one in other_blockers(as_before)]


def test_of_a_workload_the_most_gpus_count_and_throughput_before_a_ratio() -> None:
    ratio = replace(throughput("a", 99.0, 64), id="ratio", metric="generation_ratio")
    found = loss_of(throughput("a", 99.0, 1), ratio, throughput("a", 95.0, 8))
    assert found is not None
    assert found.requirement == "a-8"
    of_ratio = loss_of(ratio)
    assert of_ratio is not None
    assert of_ratio.requirement == "ratio"


def test_no_loss_is_excluded_beside_a_workload_that_shows_one() -> None:
    assert loss_of(throughput("a", 101.0), throughput("b", 2.0, outcome="failed")) is None


def test_machines_that_beat_the_published_value_lose_nothing() -> None:
    found = loss_of(throughput("a", 101.0))
    assert found is not None
    assert found.fraction == 0.0


@rows(
    "verdict",
    [
        throughput("a", 94.0, outcome="failed"),
        throughput("a", 94.0, outcome="inconclusive"),
        replace(throughput("a", 94.0), published=None),
        replace(throughput("a", 94.0), metric="weak_scaling_efficiency"),
    ],
)
def test_what_did_not_pass_or_was_not_published_says_nothing(verdict: Verdict) -> None:
    assert loss_of(verdict) is None


def test_too_few_rounds_for_the_higher_confidence_say_nothing() -> None:
    without = replace(throughput("a", 94.0), interval=None, outcome="inconclusive")
    assert uniform_loss([throughput("a", 94.0)], 0.95, lambda *_: without) is None


@pytest.mark.parametrize("message", ["n2 was silent for 30 s", "n2 was silent for 30 s\nrank 3: timed block"])
def test_a_host_that_was_lost_at_the_end_is_in_the_way(message: str) -> None:
    outcome, why = conclude(RunFacts([PASSED], 1, lost={"n2": message}))
    assert (outcome, why) == (
        "incomplete", "n2 was lost while measuring: n2 was silent for 30 s (1 of 1 requirement passed)"
    )  # fmt: skip
