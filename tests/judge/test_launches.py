"""Several launches are judged by their means, and whatever forbids a verdict in one of them forbids it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from pytest_ddpscale.judge.deciding import Decider
from pytest_ddpscale.judge.estimating import Found, estimate_of, over_launches
from pytest_ddpscale.judge.intervals import geometric_mean_estimate, mean_estimate
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.values import Values, samples_of, values
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, Pace, build_plan
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import THIS_LAUNCH_ONLY, Verdict
from pytest_ddpscale.thresholds.cases import Case
from tests.builders.judged import CONFIDENCE, evidence_of_plan, make_case, measure
from tests.builders.measurements import Measurement
from tests.judge.nodes import ROUNDS, equal, measure_nodes, nodes_evidence, slow_node
from tests.rows import rows

LAUNCHES = 3
SPEEDS = (100.0, 104.0, 97.0)  # images per second, of each launch
THROUGHPUT = make_case("throughput_per_gpu", 60.0, 2)
UNIFORMITY = make_case("weak_scaling_efficiency", 1.05, 4)
# Of a rank in a launch: how many times slower it computes.
Slowness = Callable[[int, int], float]


def plan_of(case: Case, launches: int = LAUNCHES, device_type: DeviceType = "cuda", nodes: int = 1) -> Plan:
    empty = Plan("a100", device_type, (), nodes=nodes, ranks_per_node=None if nodes == 1 else 4)
    return build_plan(empty, [case.question], Pace(16, 1.0, 1.0, launches=launches))


def measured(plan: Plan, speeds: Sequence[float] = SPEEDS, slowness: Slowness = lambda *_: 1.0) -> list[Measurement]:
    """All studies; the rounds of each launch about its speed, but no two alike."""

    def samples_per_s(launch: int) -> Callable[[Arm, int, int], float]:
        def of(arm: Arm, number: int, rank: int) -> float:
            return speeds[launch - 1] * (1 + 0.001 * (number % 3 - 1)) / slowness(launch, rank)

        return of

    return [
        one for study in plan.studies for one in measure(study, FEWEST_ROUNDS, samples_per_s(study.launch))
    ]  # fmt: skip


def judged(case: Case = THROUGHPUT, plan: Plan | None = None, **changes: object) -> Verdict:
    plan = plan or plan_of(case)
    return judge(case, replace(evidence_of_plan(plan, measured(plan)), **changes), CONFIDENCE)  # type: ignore[arg-type]


def id_of(launch: int) -> str:
    return plan_of(THROUGHPUT).of_launch(launch).studies[0].id


class TestTheInterval:
    def test_is_that_of_the_means_of_launches(self) -> None:
        verdict = judged()
        expected = geometric_mean_estimate(SPEEDS, CONFIDENCE)
        assert verdict.passed
        assert (verdict.launches, verdict.rounds) == (LAUNCHES, LAUNCHES * FEWEST_ROUNDS)
        assert verdict.value == pytest.approx(expected.value, rel=1e-3)
        assert verdict.interval == pytest.approx(expected.interval, rel=5e-3)
        assert verdict.launch_sd == pytest.approx(np.std(np.log(SPEEDS), ddof=1), rel=0.05)

    def test_of_differences_is_not_of_logarithms(self) -> None:
        found = [Found(value, (value, value)) for value in (0.0, 0.1, 0.2)]
        together = over_launches(found, "differences", CONFIDENCE)
        assert (together.value, together.interval) == mean_estimate((0.0, 0.1, 0.2), CONFIDENCE)
        assert together.launch_sd == pytest.approx(1.0)

    def test_decides_nothing_where_launches_lie_on_both_sides_of_the_bound(self) -> None:
        """Though the rounds of each launch alone would decide."""
        case = make_case("throughput_per_gpu", 99.0, 2)
        assert judged(case).outcome == "inconclusive"
        assert judge(case, evidence_of_plan(plan_of(case, 1), measured(plan_of(case, 1))), CONFIDENCE).passed

    def test_of_a_node_that_passes_in_each_launch_may_still_hold_the_bound(self) -> None:
        case = make_case("throughput_per_gpu", 90.0, 2)
        plan, found = plan_of(case, nodes=2), list[Measurement]()
        for launch, ratio in enumerate((1.0, 1.03, 1.08), start=1):
            found += measure_nodes(plan.of_launch(launch), slow_node(1, ratio))
            alone = plan_of(case, 1, nodes=2)
            assert judge(case, nodes_evidence(alone, measure_nodes(alone, slow_node(1, ratio))), CONFIDENCE).passed
        verdict = judge(case, nodes_evidence(plan, found), CONFIDENCE)
        assert verdict.outcome == "inconclusive"
        assert verdict.reason == "launch 1 of 3: n1, one of 2 nodes: the bound lies inside the interval"

    def test_of_a_launch_that_was_not_steady_reaches_where_it_went(self) -> None:
        """Else three launches that all fall alike would agree on a value that none of them stays at."""
        fallen = estimate_of([100.0 - 2 * number for number in range(9)], "factors", CONFIDENCE)
        assert fallen.interval is not None
        assert "not steady" in fallen.note
        found = over_launches([fallen] * 3, "factors", CONFIDENCE)
        assert found.interval is not None
        assert found.interval == pytest.approx(fallen.interval)
        assert found.note.startswith("launch 1: not steady")

    @rows("launches", [3, 5])
    def test_holds_where_launches_differ_by_twice_what_rounds_do(self, launches: int) -> None:
        """And that of a single launch does not: that is why there are several."""
        runs, round_sd, chance = 1000, 0.02, np.random.default_rng(launches)
        logs = 2 * round_sd * chance.standard_normal((launches, runs, 1))
        logs = logs + round_sd * chance.standard_normal((launches, runs, FEWEST_ROUNDS))
        places, numbers = [str(run) for run in range(runs)], np.arange(FEWEST_ROUNDS)
        errors = np.full((launches, runs), np.nan)
        values = Values("factors", places, numbers, np.exp(logs), {}, [None] * launches, errors)
        hits = sum(holds(values.found(run, CONFIDENCE), 1.0) for run in range(runs))
        hits_alone = sum(holds(values.estimated(CONFIDENCE).found(run), 1.0) for run in range(runs))
        assert hits >= 0.93 * runs
        assert hits_alone < 0.8 * runs


def holds(found: Found, truth: float) -> bool:
    assert found.interval is not None
    low, high = found.interval
    return low <= truth <= high


class TestOneLaunch:
    """What forbids a verdict in it forbids the verdict on all."""

    def test_that_was_not_begun_for_lack_of_time_is_not_measured(self) -> None:
        plan = plan_of(THROUGHPUT)
        kept = [one for one in measured(plan) if one.study != id_of(3)]
        evidence = replace(evidence_of_plan(plan, kept), out_of_time={id_of(3)})
        verdict = judge(THROUGHPUT, evidence, CONFIDENCE)
        assert verdict.outcome == "not_measured"
        assert verdict.reason.startswith("launch 3 of 3: no complete round")
        assert verdict.notes == ("launch 3: --ddp-budget ran out before this was decided",)

    def test_that_is_implausible_is_open_though_the_mean_is_not(self) -> None:
        case = make_case("weak_scaling_efficiency", 0.5, 2)
        plan = plan_of(case)
        later, first = plan.studies[1].id, plan.studies[0].id

        def speed(study: str) -> Callable[[Arm, int, int], float]:
            ddp = {later: 125.0, first: 95.0}.get(study, 96.0)
            return lambda arm, number, rank: (ddp if arm.kind == "ddp" else 100.0) * (1 + 0.001 * (number % 3 - 1))

        found = [one for study in plan.studies for one in measure(study, FEWEST_ROUNDS, speed(study.id))]
        verdict = judge(case, evidence_of_plan(plan, found), CONFIDENCE)
        assert verdict.outcome == "inconclusive"
        assert verdict.reason.startswith("launch 2 of 3: implausible: 1.2")
        assert verdict.value is not None
        assert verdict.value < 1.1

    def test_in_which_results_differ_is_a_failure_whatever_else_is_missing(self) -> None:
        case = make_case("replica_agreement", 1.0, 2)
        plan = plan_of(case)
        found = [
            replace(one, parameters_checksum="decade") if (one.study, one.rank) == (id_of(2), 1) else one
            for one in measured(plan)
        ]
        verdict = judge(case, evidence_of_plan(plan, found, errors={id_of(3): "died"}), CONFIDENCE)
        assert verdict.outcome == "failed"
        assert "wrong-data" in verdict.flags
        assert judge(case, evidence_of_plan(plan, measured(plan)), CONFIDENCE).passed

    def test_that_the_plan_lacks_is_not_measured(self) -> None:
        plan = plan_of(THROUGHPUT)
        verdict = judged(plan=replace(plan, studies=plan.studies[:2]))
        assert verdict.outcome == "not_measured"


class TestCulprits:
    @rows(("launches", "is_certain"), [(1, False), (2, True)])
    def test_are_told_with_the_launches_in_which_they_were_slow(self, launches: int, is_certain: bool) -> None:
        """Who was slow in one of three launches may be the launch's fault: nobody is drained for that."""
        plan = plan_of(UNIFORMITY)
        found = measured(plan, slowness=lambda launch, rank: 1.4 if rank == 2 and launch <= launches else 1.0)
        verdict = judge(UNIFORMITY, evidence_of_plan(plan, found), CONFIDENCE)
        assert verdict.outcome == "inconclusive"
        (culprit,) = verdict.culprits
        assert (culprit.host, culprit.is_certain) == ("node2", is_certain)
        assert culprit.evidence.endswith(f"; in {launches} of 3 launches")

    def test_are_certain_where_they_are_slow_in_all(self) -> None:
        plan = plan_of(UNIFORMITY)
        found = measured(plan, slowness=lambda launch, rank: 1.4 + 0.01 * launch if rank == 2 else 1.0)
        verdict = judge(UNIFORMITY, evidence_of_plan(plan, found), CONFIDENCE)
        assert verdict.outcome == "failed"
        assert [(one.host, one.is_certain) for one in verdict.culprits] == [("node2", True)]

    @rows(("rounds_slow", "named"), [(2, ["node2"]), (1, [])])
    def test_slow_in_a_quarter_of_the_rounds_are_named_by_those_of_all_launches(
        self, rounds_slow: int, named: list[str]
    ) -> None:
        """Each launch has too few to tell."""
        plan = plan_of(UNIFORMITY)

        def samples_per_s(arm: Arm, number: int, rank: int) -> float:
            return 100 * (1 + 0.001 * (number % 3 - 1)) / (1.4 if rank == 2 and number < rounds_slow else 1.0)

        found = [one for study in plan.studies for one in measure(study, FEWEST_ROUNDS, samples_per_s)]
        verdict = judge(UNIFORMITY, evidence_of_plan(plan, found), CONFIDENCE)
        assert not verdict.passed
        assert [one.host for one in verdict.culprits] == named
        for one in verdict.culprits:
            assert one.is_certain
            assert one.evidence == "1.40× the median of 3 peers in 6 of 24 rounds (25 %); in 3 of 3 launches"


class TestSeveralNodes:
    """Each is judged by its own launches."""

    CASE = make_case("throughput_per_gpu", 90.0, 4)

    def evidence(self, slow_in: Sequence[int]) -> Evidence:
        plan = plan_of(self.CASE, nodes=2)
        found = []
        for launch in range(1, LAUNCHES + 1):
            slowness = slow_node(1) if launch in slow_in else equal
            found += measure_nodes(plan.of_launch(launch), slowness)
        return nodes_evidence(plan, found)

    def test_are_open_where_one_was_slow_in_a_single_launch(self) -> None:
        assert judge(self.CASE, self.evidence((2,)), CONFIDENCE).outcome == "inconclusive"

    def test_keep_their_values_where_a_launch_lacks_one(self) -> None:
        plan = plan_of(self.CASE, nodes=2)
        launches = [plan.of_launch(number) for number in range(1, LAUNCHES + 1)]
        found = [
            one
            for number, launch in enumerate(launches)
            for one in measure_nodes(launch, slow_node(1, 1.3 + 0.001 * number), without=[0] if number == 1 else [])
        ]
        verdict = judge(self.CASE, nodes_evidence(plan, found), CONFIDENCE)
        assert (verdict.outcome, verdict.place) == ("failed", "n1")
        assert values(self.CASE.question, nodes_evidence(plan, found)).rounds(1).tolist() == [0, ROUNDS]


def test_a_single_launch_on_a_cpu_is_marked_and_one_on_gpus_is_not() -> None:
    plan = plan_of(THROUGHPUT, 1, "cpu")
    verdict = judge(THROUGHPUT, evidence_of_plan(plan, measured(plan)), CONFIDENCE)
    assert verdict.launches == 1
    assert verdict.launch_sd is None
    assert THIS_LAUNCH_ONLY in verdict.flags
    several = plan_of(THROUGHPUT, 3, "cpu")
    assert judge(THROUGHPUT, evidence_of_plan(several, measured(several)), CONFIDENCE).flags == ()
    on_gpus = plan_of(THROUGHPUT, 1)
    assert judge(THROUGHPUT, evidence_of_plan(on_gpus, measured(on_gpus)), CONFIDENCE).flags == ()


def test_no_launch_ends_early() -> None:
    """Its requirements may be decided; the length of a launch must not depend on what was measured."""
    plan = plan_of(THROUGHPUT)
    decider = Decider(plan, [THROUGHPUT], CONFIDENCE)
    for study in plan.studies:
        assert decider.needed_arms(study.id) == [arm.name for arm in study.arms]


def test_a_test_of_the_site_gets_the_rounds_of_all_launches() -> None:
    plan = plan_of(THROUGHPUT)
    values = samples_of(THROUGHPUT.question, evidence_of_plan(plan, measured(plan)))
    assert len(values) == LAUNCHES * FEWEST_ROUNDS
    assert math.isclose(values[0], SPEEDS[0], rel_tol=0.01)
    assert math.isclose(values[-1], SPEEDS[-1], rel_tol=0.01)
