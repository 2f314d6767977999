"""Time left: from the earliest decisions to all rounds, at the pace measured so far."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.estimate import STARTUP_S, SURVEY_S, round_seconds, study_times, warm_up_seconds
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.pairing import pair_study
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.time_left import TimeLeft, range_text
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import StudyEnd, StudyStart
from tests.builders.records import gang_on
from tests.builders.whole_runs import plan_of, training_run
from tests.rows import rows

WORKLOAD = Workload("r", ImageFamily("resnet18"), "fp32", 8, global_batch_size=8)
WEAK = Study("weak", WORKLOAD, (Arm("alone", 1, 8), Arm("ddp", 2, 8)), rounds=20, block_s=5.0, warmup_s=10.0)
STRONG = Study("strong", WORKLOAD, (Arm("alone", 1, 8), Arm("ddp", 2, 4)), rounds=6, block_s=5.0, warmup_s=10.0)
PLAN = Plan("cpu", "cpu", (WEAK, STRONG), survey=True)
GANG = gang_on(["a"], 2)
WEAK_BEGINS = StudyStart(study="weak/r", unix_s=1.7e9)
WARM_UP_S, ROUND_S = warm_up_seconds(WEAK), round_seconds(WEAK, WEAK.arms)
STRONG_S = study_times(PLAN)["strong/r"].seconds(6)  # that is decided after its six rounds or never


class Clocked:
    """A plan's time left on a clock that is set by hand."""

    def __init__(self, plan: Plan = PLAN, **options: object) -> None:
        self.now_s = 100.0
        self.left = TimeLeft(plan, now=lambda: self.now_s, **options)  # type: ignore[arg-type]

    def hear(self, *records: AnyRecord, after_s: float = 0.0) -> Clocked:
        self.now_s += after_s
        for record in records:
            self.left.hear(record)
        return self

    def rounds(self, number: int, pace: float = 1.0) -> Clocked:
        """As many rounds of `WEAK` after its warm-up, at so many times the planned seconds."""
        self.hear(GANG, WEAK_BEGINS)
        self.now_s += pace * WARM_UP_S
        for round_ in range(number):
            for arm in WEAK.arms:
                self.hear(self.block(arm.name, round_, pace * ROUND_S / 2), after_s=pace * ROUND_S / 2)
        return self

    def block(self, arm: str, round_: int, seconds: float) -> Block:
        """One that ends at so many seconds from now."""
        return Block(
            study="weak/r", arm=arm, round=round_, gang=0, ranks=(0,), count=10, work=8.0, seconds=seconds,
            began_unix_s=1.7e9 + self.now_s,
        )  # fmt: skip


@rows(
    ("low_s", "high_s", "text"),
    [
        (41.0, 89.0, "40 to 90 s"), (0.0, 3.0, "up to 10 s"), (0.0, 0.0, "up to 10 s"), (50.0, 50.0, "50 s"),
        (55.0, 57.0, "50 to 60 s"), (301.0, 700.0, "5 to 12 min"), (45.0, 301.0, "up to 6 min"),
        (1000.0, 1030.0, "16 to 18 min"), (3500.0, 3600.0, "60 min"), (3500.0, 7300.0, "0.5 to 2.5 h"),
        (36000.0, 36600.0, "10.5 h"),
    ],
)  # fmt: skip
def test_ranges_are_rounded_outwards_and_close_ends_are_one(low_s: float, high_s: float, text: str) -> None:
    assert range_text(low_s, high_s) == text


def test_before_anything_has_run_the_plan_is_left_and_starting_it() -> None:
    clocked = Clocked()
    fewest_s, most_s = WARM_UP_S + 8 * ROUND_S + STRONG_S, WARM_UP_S + 20 * ROUND_S + STRONG_S
    assert clocked.left.seconds() == pytest.approx((fewest_s, most_s + STARTUP_S + SURVEY_S))
    clocked.hear(GANG, after_s=1000.0)
    assert clocked.left.seconds() == pytest.approx((fewest_s, most_s)), "time in a queue is no pace"
    assert clocked.left.per_cent == 0


@rows("pace", [0.5, 1.0, 3.0])
def test_the_study_goes_on_at_its_own_pace_and_later_ones_are_never_faster_than_planned(pace: float) -> None:
    found = Clocked().rounds(3, pace).left.seconds()
    low_s, high_s = 5 * pace * ROUND_S + pace * STRONG_S, 17 * pace * ROUND_S + max(1.0, pace) * STRONG_S
    assert found == pytest.approx((low_s, high_s))


def test_after_the_fewest_rounds_the_next_may_decide() -> None:
    clocked = Clocked().rounds(10)
    assert clocked.left.seconds() == pytest.approx((STRONG_S, 10 * ROUND_S + STRONG_S))
    clocked.hear(clocked.block("alone", 10, ROUND_S / 2), after_s=ROUND_S / 2)
    assert clocked.left.seconds() == pytest.approx((ROUND_S / 2 + STRONG_S, 9.5 * ROUND_S + STRONG_S))


def test_a_warm_up_that_compiles_and_lines_that_arrive_late_say_nothing_about_rounds() -> None:
    clocked = Clocked().hear(GANG, WEAK_BEGINS, StudyEnd("strong/r", "error", "x"))
    clocked.now_s += 10 * WARM_UP_S
    alone = clocked.block("alone", 0, ROUND_S / 2)
    clocked.now_s += ROUND_S / 2
    clocked.hear(alone, clocked.block("ddp@2", 0, ROUND_S / 2), after_s=ROUND_S)
    assert clocked.left.seconds() == pytest.approx((7 * ROUND_S, 19 * ROUND_S))


def test_what_has_ended_takes_no_more_time() -> None:
    clocked = Clocked().rounds(8)
    per_cent = clocked.left.per_cent or 0
    clocked.hear(StudyEnd("weak/r", "decided"))
    assert clocked.left.seconds() == pytest.approx((STRONG_S, STRONG_S))
    assert (clocked.left.per_cent or 0) > per_cent
    assert clocked.hear(StudyEnd("strong/r", "rounds")).left.seconds() == (0.0, 0.0)
    assert clocked.left.per_cent == 99


def test_each_further_launch_starts_ranks_again() -> None:
    later = tuple(replace(WEAK, launch=number, rounds=8) for number in (1, 2, 3))
    clocked = Clocked(replace(PLAN, studies=later, launches=3, survey=False))
    whole_s = 3 * (WARM_UP_S + 8 * ROUND_S)
    assert clocked.left.seconds() == pytest.approx((whole_s, whole_s + 3 * STARTUP_S))
    clocked.hear(GANG, WEAK_BEGINS)
    assert clocked.left.seconds() == pytest.approx((whole_s, whole_s + 2 * STARTUP_S))
    clocked.hear(StudyEnd("weak/r", "error", "x")).hear(GANG, after_s=40.0)
    whole_s *= 2 / 3
    assert clocked.left.seconds() == pytest.approx((whole_s, whole_s + 2 * 40.0)), "as slow as the slowest so far"
    alone = Clocked(replace(PLAN, survey=False), isolate=True).hear(GANG, WEAK_BEGINS, StudyEnd("weak/r", "error", "x"))
    assert alone.left.seconds() == pytest.approx((STRONG_S, STRONG_S + STARTUP_S))


def test_a_budget_ends_it_after_the_round_that_has_begun() -> None:
    clocked = Clocked(budget_s=100.0).rounds(2)
    left_s = 100.0 - WARM_UP_S - 2 * ROUND_S
    assert clocked.left.seconds() == pytest.approx((left_s, left_s + ROUND_S))


def test_probes_and_pairs_count() -> None:
    probes = ProbeStudy((Arm("matmul-fp32"),), 16, 0.5, swept_rounds=12)
    plan = replace(PLAN, nodes=4, ranks_per_node=1, probes=probes, pairs=pair_study("cpu"))
    whole, without = Clocked(plan).left.seconds(), Clocked().left.seconds()
    times = study_times(plan)
    assert (times["probes"].fewest, times["probes"].most, times["pairs"].fewest) == (12, 16, 3)
    assert whole is not None
    assert without is not None
    least = times["probes"].seconds(12) + times["pairs"].seconds(3)
    assert whole[0] - without[0] == pytest.approx(least)
    assert whole[1] - without[1] == pytest.approx(times["probes"].seconds(16) + times["pairs"].seconds(11))


def test_the_time_of_whole_training_runs_is_unknown() -> None:
    left = Clocked(plan_of([training_run(2)])).left
    assert left.seconds() is None
    assert left.per_cent is None
    assert left.text() == ""
