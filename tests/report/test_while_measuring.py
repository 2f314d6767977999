"""While measuring: lines that say which study, round, speed and time left, and the live part of the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.estimate import round_seconds, study_times, warm_up_seconds
from pytest_ddpscale.plan.pairing import pair_study
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.while_measuring import Progress, load_warning, range_text
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.record_lines import AnyRecord, Idle, Notice, Queued, Unfit
from pytest_ddpscale.run.records import StudyEnd, StudyStart
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.util.document import html
from tests.approved import assert_approved
from tests.builders.judgements import HOSTILE
from tests.builders.records import gang_on, steady_block
from tests.builders.whole_runs import epoch_of, plan_of, training_run
from tests.report.page_text import page_text
from tests.rows import rows

WORKLOAD = Workload("r", ImageFamily("resnet18"), "fp32", 8, global_batch_size=8)
WEAK = Study("weak", WORKLOAD, (Arm("alone", 1, 8), Arm("ddp", 2, 8)), rounds=20, block_s=5.0, warmup_s=10.0)
STRONG = Study("strong", WORKLOAD, (Arm("alone", 1, 8), Arm("ddp", 2, 4)), rounds=6, block_s=5.0, warmup_s=10.0)
PLAN = Plan("cpu", "cpu", (WEAK, STRONG), survey=True)
PROBES = ProbeStudy((Arm("matmul-fp32"), Arm("all-reduce-1mib", 2)), 6, 0.5)
GANG = gang_on(["a"], 2, versions={"torch": "2.9.0"})
BEGIN = "begin weak/r"
WARM_UP_S, ROUND_S = warm_up_seconds(WEAK), round_seconds(WEAK, WEAK.arms)
STRONG_S = study_times(PLAN)["strong/r"].seconds(6)  # that is decided after its six rounds or never


def record(line: str) -> AnyRecord:
    """``begin weak/r``, ``block weak/r ddp@2 1`` of that round, 0 to 9, or ``end weak/r decided`` and why."""
    kind, study, *more = line.split(maxsplit=3)
    if kind == "begin":
        return StudyStart(study=study, unix_s=1.7e9)
    return block(more[0], int(more[1]), study) if kind == "block" else StudyEnd(study, *more)  # type: ignore[arg-type]


def block(arm: str, number: int, study: str = "weak/r", block_s: float = 4.0, rank: int = 0) -> Block:
    return Block(
        study=study, arm=arm, round=number, gang=0, ranks=(rank,), count=10, work=8.0, began_unix_s=1.7e9,
        seconds=block_s,
    )  # fmt: skip


class Clocked:
    """What is shown of a plan, on a clock that is set by hand."""

    def __init__(self, plan: Plan = PLAN, **options: object) -> None:
        self.shown: list[tuple[str, bool]] = []
        self.now_s = 100.0
        show, now = lambda line, passing: self.shown.append((line, passing)), lambda: self.now_s
        self.progress = Progress(plan, show, now, **options)  # type: ignore[arg-type]

    def hear(self, *records: AnyRecord | Notice | str, each_s: float = 0.0) -> Clocked:
        for one in records:
            self.progress(record(one) if isinstance(one, str) else one)
            self.now_s += each_s
        return self


def test_a_session_shows_what_was_approved() -> None:
    """Each line with whether it passes; ten seconds go by from record to record."""
    weak, compiled = replace(WEAK, rounds=6), replace(STRONG, workload=replace(WORKLOAD, compile=True))
    pairs = pair_study("cpu")
    plan = Plan("cpu", "cpu", (weak, compiled), nodes=4, ranks_per_node=1, probes=PROBES, pairs=pairs)
    waiting = Queued("job 17 queued and waiting for resources")
    shown = Clocked(plan).hear(
        Idle(), Idle(), waiting, waiting, Unfit({"n2": "gpus: GPU 3: lost", "n4": "disk: 0.1 GiB are free"}),
        GANG, GANG, "begin probes", Idle(), "block probes matmul-fp32@1 0", "block probes all-reduce-1mib@2 2",
        "block probes all-reduce-1mib@2 0", "end probes decided", BEGIN, "block weak/r alone 0",
        block("ddp@2", 1, rank=1), block("ddp@2", 1, block_s=2.0), "end weak/r rounds", Idle(), Survey("n", 1.0),
        "begin weak/unknown", "begin strong/r", "end strong/r error rank 1 on node7 failed: no memory", "begin pairs",
        *(f"block pairs all-reduce-1mib@2 {number}" for number in (0, 2, 3)),
        "end pairs interrupted the job was preempted", Idle(), each_s=10.0,
    ).shown  # fmt: skip
    for of_one_that_did_not_begin in ("budget", "interrupted the job was preempted"):
        shown += Clocked(plan).hear(f"end strong/r {of_one_that_did_not_begin}").shown
    run = training_run(2)
    epochs = epoch_of(run, 0), epoch_of(run, 1)
    shown += Clocked(plan_of([run])).hear(Idle(), f"begin {run.id}", *epochs, f"end {run.id} rounds").shown
    lines = [f"{'passes' if passes else 'stays '} {line}" for line, passes in shown]
    assert_approved("progress.txt", "\n".join([*lines, load_warning(8.0, 8), load_warning(9.24, 8)]) + "\n")


@rows(
    ("low_s", "high_s", "text"),
    [
        (41.0, 89.0, "40 to 90 s"), (0.0, 3.0, "up to 10 s"), (0.0, 0.0, "up to 10 s"), (50.0, 50.0, "50 s"),
        (55.0, 57.0, "50 to 60 s"), (301.0, 700.0, "5 to 12 min"), (45.0, 301.0, "up to 6 min"),
        (7300.0, 9100.0, "121 to 152 min"),
    ],
)  # fmt: skip
def test_a_range_is_rounded_outwards(low_s: float, high_s: float, text: str) -> None:
    assert range_text(low_s, high_s) == text


def rounds(number: int, pace: float = 1.0, plan: Plan = PLAN, **options: object) -> Clocked:
    """In the middle of this round of `WEAK`, at so many times the planned seconds."""
    clocked = Clocked(plan, **options).hear(GANG, BEGIN)
    clocked.now_s += pace * (WARM_UP_S + ROUND_S / 2)
    clocked.hear(block("alone", 0, block_s=pace * ROUND_S / 2))
    clocked.now_s += pace * (number - 1) * ROUND_S
    return clocked.hear(block("alone", number - 1))


TWO_LAUNCHES = replace(PLAN, studies=(WEAK, replace(WEAK, launch=2)), launches=2, survey=False)
WHOLE_S = WARM_UP_S + 8 * ROUND_S, WARM_UP_S + 20 * ROUND_S


@rows(
    ("clocked", "low_s", "high_s"),
    [
        (Clocked(), WHOLE_S[0] + STRONG_S, WHOLE_S[1] + STRONG_S),
        (rounds(2), 6.5 * ROUND_S + STRONG_S, 18.5 * ROUND_S + STRONG_S),
        (rounds(2, 3.0), 3 * (6.5 * ROUND_S + STRONG_S), 3 * (18.5 * ROUND_S + STRONG_S)),
        (rounds(2, 0.5), (6.5 * ROUND_S + STRONG_S) / 2, 18.5 * ROUND_S + STRONG_S),
        (rounds(10), STRONG_S, 10.5 * ROUND_S + STRONG_S),
        (rounds(2, budget_s=100.0), 100 - WARM_UP_S - 1.5 * ROUND_S, 100 - WARM_UP_S - 1.5 * ROUND_S),
        (rounds(8).hear("end weak/r decided"), STRONG_S, STRONG_S),
        (rounds(8).hear("end weak/r decided", "end strong/r rounds"), 0.0, 0.0),
        (Clocked(TWO_LAUNCHES), 2 * WHOLE_S[0], 2 * WHOLE_S[1]),
    ],
    ids=(
        "all", "of two rounds", "slow", "fast says little of the next", "the next round may decide", "a budget",
        "one has ended", "all have", "launches",
    ),
)  # fmt: skip
def test_the_time_left_is_from_the_fewest_rounds_to_all(clocked: Clocked, low_s: float, high_s: float) -> None:
    assert clocked.progress.seconds() == pytest.approx((low_s, high_s))


def shown(clocked: Clocked) -> str:
    return html(*clocked.progress.section("2026-03-01T10:00:00+00:00"))


def test_the_page_has_a_line_for_each_rank_of_the_latest_block_of_most_ranks_or_the_slowest() -> None:
    both = (steady_block("strong/r", Arm("ddp", 2, 4), number, (0, 1), 100.0 + number) for number in range(2))
    clocked = Clocked().hear(gang_on(["n1", "n2"], 1), BEGIN, "block weak/r alone 0", "end weak/r decided")
    clocked.hear("begin strong/r", *both, steady_block("strong/r", Arm("alone", 1, 4), 1, (0,), 999.0))
    first, later = shown(clocked), shown(clocked.hear(gang_on(["n1", "n2"], 1, number=1)))  # with no block of its own
    seconds = tuple(1.0 + 0.01 * rank for rank in range(100))
    each = steady_block("weak/r", Arm("each", 100, 8), 0, tuple(range(100)), 100.0, seconds=seconds, series={})
    many = shown(Clocked().hear(gang_on(["n1"], 100), BEGIN, each))
    assert_approved("live.txt", "\n".join(map(page_text, (first, later, many))))


def test_names_from_records_stay_text() -> None:
    for one in StudyStart(study=HOSTILE, unix_s=1.0), StudyEnd(HOSTILE, "error", HOSTILE):
        section = shown(Clocked().hear(one))
        assert "<script" not in section
        assert "&lt;script&gt;" in section
