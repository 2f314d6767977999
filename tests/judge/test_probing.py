"""Every place that was planned has to keep a probe's bound."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest

from pytest_ddpscale.judge.deciding import arms_needed
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import ProbeStudy
from pytest_ddpscale.run.verdicts import Verdict
from tests.builders.measurements import ProbeMeasurement
from tests.judge.probed import (
    ALL_REDUCE,
    CONFIDENCE,
    MATMUL,
    SEND_RECV,
    judge_steady,
    measure_probe,
    probe_case,
    probe_evidence,
    probe_plan,
    steady,
)
from tests.rows import rows

ALL = (MATMUL, Arm("memory-copy"), Arm("host-to-device"), ALL_REDUCE, Arm("all-gather-1mib", 4), SEND_RECV)
BOUND = 100.0


@rows("probe", ALL, ids=lambda probe: str(probe.name))
@rows("nodes", [1, 2])
def test_a_probe_passes_if_every_place_keeps_the_bound(probe: Arm, nodes: int) -> None:
    verdict = judge_steady(probe, BOUND, steady(110.0), nodes=nodes)
    assert verdict.outcome == "passed", verdict.reason
    assert (verdict.rounds, verdict.culprits) == (8, ())
    assert verdict.workload == probe.kind


def test_the_verdict_shows_the_worst_place() -> None:
    verdict = judge_steady(MATMUL, BOUND, steady(130.0, {(5,): 110.0}), nodes=2)
    assert verdict.value == pytest.approx(110.0, rel=0.01)
    assert verdict.reason == "the whole interval keeps the bound on each of 16 GPUs; GPU 5 of n0 is nearest to it"


@rows(
    ("probe", "missing"),
    [
        (MATMUL, "measured on 15 of 16 GPUs; local rank 3 of n1 is missing"),
        (ALL_REDUCE, "measured on 1 of 2 nodes; n1 is missing"),
        (
            SEND_RECV,
            "measured on 49 of 56 pairs; local ranks 0 and 3 of n1, local ranks 1 and 3 of n1, "
            "local ranks 2 and 3 of n1 and 4 more are missing",
        ),
    ],
    ids=lambda case: str(getattr(case, "id", "")),
)
def test_a_missing_rank_makes_it_not_measured_and_is_named(probe: Arm, missing: str) -> None:
    verdict = judge_steady(probe, BOUND, steady(110.0), nodes=2, without=[11])
    assert (verdict.outcome, verdict.value) == ("not_measured", None)
    assert verdict.reason == missing


def test_a_missing_node_is_named_by_those_that_took_no_part() -> None:
    verdict = judge_steady(MATMUL, BOUND, steady(110.0), nodes=2, without=range(8, 16), hosts=["n0", "n7"])
    assert verdict.outcome == "not_measured"
    assert verdict.reason == "measured on 8 of 16 GPUs; node 2 of 2 is missing (no results from n7)"


def test_a_place_that_fails_counts_although_another_is_missing() -> None:
    verdict = judge_steady(MATMUL, BOUND, steady(110.0, {(2,): 90.0}), without=[3])
    assert verdict.outcome == "failed"
    assert [culprit.gpu_index for culprit in verdict.culprits] == [2]
    assert any("local rank 3 of n0 is missing" in note for note in verdict.notes)


def test_nothing_measured_is_no_pass() -> None:
    verdict = judge_steady(MATMUL, BOUND, steady(110.0), without=range(8))
    assert (verdict.outcome, verdict.reason) == ("not_measured", "no complete round of matmul-bf16")


@rows("probes", [None, ProbeStudy((Arm("matmul-fp16"),), 8, 0.5)])
def test_what_was_not_planned_was_not_measured(probes: ProbeStudy | None) -> None:
    plan = replace(probe_plan(MATMUL), probes=probes)
    verdict = judge(probe_case(MATMUL, BOUND), probe_evidence(plan, []), CONFIDENCE)
    assert (verdict.outcome, verdict.reason) == ("not_measured", "matmul-bf16 was not probed in this run")


def test_a_probe_of_fewer_ranks_does_not_answer_for_more() -> None:
    four = Arm("all-reduce-32mib", 4)
    plan = probe_plan(four)
    evidence = probe_evidence(plan, measure_probe(plan, four, steady(110.0)))
    assert judge(probe_case(ALL_REDUCE, BOUND), evidence, CONFIDENCE).outcome == "not_measured"


def test_a_study_that_broke_is_an_error() -> None:
    verdict = judge_steady(MATMUL, BOUND, steady(110.0), errors={"probes": "rank 3 was killed"})
    assert (verdict.outcome, verdict.reason) == ("error", "rank 3 was killed")


def test_an_interrupted_study_measured_nothing() -> None:
    verdict = judge_steady(MATMUL, BOUND, steady(110.0), interrupted={"probes": "interrupted: by the user"})
    assert (verdict.outcome, verdict.reason) == ("not_measured", "interrupted: by the user")


def test_more_time_would_not_help_what_a_gpu_cannot_do() -> None:
    plan, case = probe_plan(MATMUL), probe_case(MATMUL, BOUND)
    verdict = judge(
        case, probe_evidence(plan, [], out_of_time={"probes"}, unsupported={MATMUL.name: "n0: too old"}), CONFIDENCE
    )
    assert (verdict.outcome, verdict.notes) == ("not_measured", ())


def test_what_a_gpu_cannot_do_is_not_measured() -> None:
    reason = "n0: an A100 has no fp8"
    verdict = judge_steady(Arm("matmul-fp8"), BOUND, steady(110.0), unsupported={"matmul-fp8": reason})
    assert (verdict.outcome, verdict.reason) == ("not_measured", f"matmul-fp8 could not be done: {reason}")


def test_a_case_without_a_probe_is_the_callers_mistake() -> None:
    case = replace(probe_case(MATMUL, BOUND), probe=None)
    with pytest.raises(ValueError, match="has no probe"):
        judge(case, probe_evidence(probe_plan(MATMUL), []), CONFIDENCE)


def test_a_round_that_is_missing_on_one_gpu_decides_nothing() -> None:
    plan = probe_plan(MATMUL)
    measured = measure_probe(plan, MATMUL, steady(110.0), rounds=9)
    lacking = [one for one in measured if (one.rank, one.round) != (4, 6)]
    verdict = judge(probe_case(MATMUL, BOUND), probe_evidence(plan, lacking), CONFIDENCE)
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.startswith("GPU 4 of n0, one of 8 GPUs: only 8 of 9 rounds are complete")


@rows(("timed", "outcome"), [(["memory-copy"], "passed"), (["matmul-bf16"], "inconclusive")])
def test_a_round_that_left_the_probe_out_is_not_missed(timed: list[str], outcome: str) -> None:
    plan = probe_plan(MATMUL)
    measured = measure_probe(plan, MATMUL, steady(110.0))
    timed_arms = {"probes": {**{number: ["matmul-bf16"] for number in range(8)}, 8: timed}}
    evidence = probe_evidence(plan, measured, timed_arms=timed_arms)
    assert judge(probe_case(MATMUL, BOUND), evidence, CONFIDENCE).outcome == outcome


@rows(("value", "outcome"), [(104.0, "passed"), (106.0, "inconclusive")])
def test_more_than_the_data_sheet_promises_is_implausible(value: float, outcome: str) -> None:
    plan = probe_plan(MATMUL)
    measured = measure_probe(plan, MATMUL, steady(95.0, {(6,): value}))
    case = probe_case(MATMUL, 90.0, peak=100.0)
    verdict = judge(case, probe_evidence(plan, measured), CONFIDENCE)
    assert verdict.outcome == outcome
    if outcome == "inconclusive":
        assert verdict.reason.startswith("GPU 6 of n0, one of 8 GPUs: implausible: 106.1 TFLOPS is more than the 100")
        assert "implausible" in verdict.notes


def test_without_a_peak_nothing_is_implausible() -> None:
    assert judge_steady(ALL_REDUCE, BOUND, steady(1e4)).outcome == "passed"


def test_a_failure_that_may_be_chance_on_one_of_many_is_inconclusive() -> None:
    noise = random.Random(4)
    values = {key: 99.0 * (1 + noise.gauss(0, 0.01)) for key in product(range(8), range(64))}
    found: dict[int, Verdict] = {}
    for ranks_per_node in (1, 64):
        plan = probe_plan(MATMUL, ranks_per_node=ranks_per_node, rounds=8)
        measured = measure_probe(
            plan, MATMUL, lambda number, ranks: values[number, 0] if ranks == (0,) else 110.0 + number % 3
        )
        found[ranks_per_node] = judge(
            probe_case(MATMUL, _just_failing(measured)), probe_evidence(plan, measured), CONFIDENCE
        )
    assert found[1].outcome == "failed"
    assert found[64].outcome == "inconclusive"
    assert "on one of 64 GPUs this may be chance" in found[64].reason


def _just_failing(measured: list[ProbeMeasurement]) -> float:
    """A bound that the first rank misses by nearly nothing, judged alone."""
    alone = [one for one in measured if one.rank == 0]
    verdict = judge(probe_case(MATMUL, 1.0), probe_evidence(probe_plan(MATMUL, ranks_per_node=1), alone), CONFIDENCE)
    assert verdict.interval is not None
    return verdict.interval[1] * 1.0001


def _needed(bound: float, value: float, rounds: int, noise: float = 0.0, **keys: float) -> list[str]:
    other = Arm("memory-copy")
    plan = replace(probe_plan(MATMUL), probes=ProbeStudy((other, MATMUL), 16, 0.5))
    chance = random.Random(1)
    measured = measure_probe(plan, MATMUL, lambda number, ranks: value * (1 + chance.gauss(0, noise)), rounds)
    measured += measure_probe(plan, other, steady(1000.0), rounds)
    cases = [probe_case(MATMUL, bound, **keys), probe_case(other, 1.0)]
    assert plan.probes is not None
    probes = [probe.name for probe in plan.probes.arms]
    evidence = probe_evidence(plan, measured)
    return arms_needed(probes, [case for case in cases if judge(case, evidence, CONFIDENCE).is_open])


def test_only_what_is_undecided_needs_further_rounds() -> None:
    assert _needed(100.0, 110.0, 2) == ["memory-copy", "matmul-bf16"]
    assert _needed(100.0, 100.5, 8, noise=0.01) == ["matmul-bf16"]
    assert _needed(100.0, 120.0, 8, noise=0.01) == []
    assert _needed(100.0, 80.0, 8, noise=0.01) == []


def test_further_rounds_do_not_make_a_value_plausible() -> None:
    assert _needed(50.0, 100.0, 8, noise=0.01, peak=60.0) == []


def test_a_failure_does_not_end_it_while_others_may_fail_too() -> None:
    plan = probe_plan(MATMUL)
    chance = random.Random(2)
    measured = measure_probe(
        plan, MATMUL, lambda number, ranks: (80.0 if ranks == (0,) else 100.0) * (1 + chance.gauss(0, 0.01))
    )
    evidence, case = probe_evidence(plan, measured), probe_case(MATMUL, 100.0)
    verdict = judge(case, evidence, CONFIDENCE)
    assert verdict.outcome == "failed"
    assert "undecided" in verdict.flags
    assert any("more rounds may fail further GPUs: undecided on" in note for note in verdict.notes)
    assert verdict.is_open


def test_what_a_missing_gpu_keeps_from_passing_may_still_be_told_bad() -> None:
    plan = probe_plan(MATMUL)
    chance = random.Random(3)
    measured = measure_probe(plan, MATMUL, lambda number, ranks: 100.0 * (1 + chance.gauss(0, 0.01)), without=[7])
    evidence, case = probe_evidence(plan, measured), probe_case(MATMUL, 100.0)
    assert judge(case, evidence, CONFIDENCE).outcome == "not_measured"
    assert judge(case, evidence, CONFIDENCE).is_open
    easy = probe_case(MATMUL, 50.0)
    assert not judge(easy, evidence, CONFIDENCE).is_open


def test_an_implausible_value_beside_a_failure_needs_no_further_rounds() -> None:
    plan = probe_plan(MATMUL)
    measured = measure_probe(plan, MATMUL, steady(110.0, {(1,): 90.0, (2,): 200.0}))
    evidence, case = probe_evidence(plan, measured), probe_case(MATMUL, 100.0, peak=120.0)
    verdict = judge(case, evidence, CONFIDENCE)
    assert verdict.outcome == "failed"
    assert "GPU 2 of n0: implausible" in verdict.notes
    assert not verdict.is_open
