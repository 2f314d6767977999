"""Progress turns records into lines: which study, round, speed and time left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.plan.estimate import (
    PAIRS_ROUND_S,
    estimate,
    round_seconds,
    study_seconds,
    warm_up_seconds,
)
from pytest_ddpscale.plan.pairing import pair_study
from pytest_ddpscale.plan.probe import Probe, ProbeStudy
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.progress import Progress, load_warning
from pytest_ddpscale.results.notices import Idle, Notice, Queued
from pytest_ddpscale.results.pair_record import PairRound
from pytest_ddpscale.results.probe_record import ProbeBlock
from pytest_ddpscale.results.record_lines import AnyRecord
from pytest_ddpscale.results.records import Block, EndReason, GangRecord, StudyEnd, StudyStart
from pytest_ddpscale.results.survey_record import Survey
from tests.builders.whole_runs import epoch_of, plan_of, training_run

WORKLOAD = Workload("r", "resnet18", "fp32", 8, global_batch_size=8)
WEAK = Study("weak", WORKLOAD, (Arm("alone", 1, 8), Arm("ddp", 2, 8)), rounds=6, block_s=5.0, warmup_s=10.0)
STRONG = Study("strong", WORKLOAD, (Arm("alone", 1, 8), Arm("ddp", 2, 4)), rounds=6, block_s=5.0, warmup_s=10.0)
PLAN = Plan("cpu", "cpu", (WEAK, STRONG))
STARTUP = GangRecord(gang=0, hosts=("a", "a"), local_ranks=(0, 1), devices=("cpu", "cpu"), versions={"torch": "2.9.0"})
BEGIN = StudyStart(study="weak/r", unix_s=1.7e9)


def clock(seconds: float) -> str:
    return f"{round(seconds) // 60}:{round(seconds) % 60:02d}"


def block(arm: str, round_: int, rank: int = 0, block_s: float = 4.0, study: str = "weak/r") -> Block:
    return Block(
        study=study, arm=arm, round=round_, gang=0, batch_size=8, steps=10, ranks=(rank,), started_unix_s=1.7e9,
        block_s=block_s,
    )  # fmt: skip


class Terminal:
    """What was shown, and a clock that is set by hand."""

    def __init__(self, plan: Plan = PLAN) -> None:
        self.shown: list[tuple[str, bool]] = []
        self.seconds = 100.0
        self.progress = Progress(plan, lambda line, passing: self.shown.append((line, passing)), lambda: self.seconds)

    def feed(self, *records: AnyRecord | Notice) -> tuple[str, bool]:
        """The last line shown after these records, and whether it may be overwritten."""
        for record in records:
            self.progress(record)
        return self.shown[-1]


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def test_waiting_for_ranks_says_how_long_it_all_will_take(terminal: Terminal) -> None:
    assert terminal.feed(Idle()) == (f"starting ranks, {clock(estimate(PLAN).seconds)} estimated", True)




def test_a_host_that_others_work_on_is_warned_of() -> None:
    assert load_warning(8.0, 8) == ""
    assert load_warning(9.24, 8).startswith("WARNING: load average 9.2 on 8 cores before measuring starts")


def test_a_line_is_not_repeated(terminal: Terminal) -> None:
    terminal.feed(Idle(), Idle(), Idle())
    assert len(terminal.shown) == 1


def percent(done_s: float) -> str:
    return f"{int(100 * done_s / WHOLE_S):2d}"


WARM_UP_S, BLOCK_S = warm_up_seconds(WEAK), round_seconds(WEAK, WEAK.arms) / 2
WHOLE_S = study_seconds(WEAK) + study_seconds(STRONG)


def test_a_round_shows_every_arms_speed_and_the_time_left(terminal: Terminal) -> None:
    terminal.feed(BEGIN)
    terminal.seconds += WARM_UP_S + BLOCK_S
    left = clock(WHOLE_S - WARM_UP_S - BLOCK_S)
    line = f"[ {percent(WARM_UP_S + BLOCK_S)} %  {left} left ] weak/r: round 1/6  alone 20 img/s per rank"
    assert terminal.feed(block("alone", 0)) == (line, True)
    terminal.seconds += BLOCK_S
    left = clock(WHOLE_S - WARM_UP_S - 2 * BLOCK_S)
    line = f"[ {percent(WARM_UP_S + 2 * BLOCK_S)} %  {left} left ] weak/r: round 2/6  alone 20  ddp@2 40 img/s per rank"
    assert terminal.feed(block("ddp@2", 1, block_s=2.0)) == (line, True)


def test_the_time_left_follows_the_pace_of_what_was_timed(terminal: Terminal) -> None:
    """Of a machine that takes three times as long as planned, and of the study after it."""
    terminal.feed(BEGIN)
    terminal.seconds += 3 * (WARM_UP_S + BLOCK_S)
    line, _ = terminal.feed(block("alone", 0))
    assert f"  {clock(3 * (WHOLE_S - WARM_UP_S - BLOCK_S))} left ] " in line
    terminal.feed(StudyEnd("weak/r", "decided"), StudyStart(study="strong/r", unix_s=1.7e9))
    terminal.seconds += 3 * (WARM_UP_S + BLOCK_S)
    line, _ = terminal.feed(block("alone", 0, study="strong/r"))
    assert f"  {clock(3 * (study_seconds(STRONG) - WARM_UP_S - BLOCK_S))} left ] " in line


def test_the_round_never_goes_back(terminal: Terminal) -> None:
    line, _ = terminal.feed(BEGIN, block("alone", 3), block("alone", 1))
    assert " ] weak/r: round 4/6" in line


def test_only_the_first_rank_speaks(terminal: Terminal) -> None:
    assert terminal.feed(BEGIN, block("ddp@2", 0, rank=1)) == ("weak/r: warming up", True)


def test_time_left_is_never_negative(terminal: Terminal) -> None:
    terminal.feed(BEGIN)
    blocks = [block("alone", number) for number in range(100)]
    terminal.seconds += WARM_UP_S + 100 * BLOCK_S
    line, _ = terminal.feed(*blocks)
    assert f"  {clock(study_seconds(STRONG))} left ] " in line


@pytest.mark.parametrize(
    ("reason", "message", "shown"),
    [
        ("rounds", "", "6 rounds in 1:05"),
        ("decided", "", "decided after 6 rounds in 1:05"),
        ("budget", "", "time limit reached after 6 rounds in 1:05"),
        ("interrupted", "the job was preempted", "interrupted after 6 rounds: the job was preempted"),
        (
            "error",
            "rank 1 on node7 failed in warm-up: no memory",
            "ERROR: rank 1 on node7 failed in warm-up: no memory",
        ),
    ],
)
def test_the_end_of_a_study_stays(terminal: Terminal, reason: EndReason, message: str, shown: str) -> None:
    terminal.feed(BEGIN, block("alone", 0), block("alone", 5))
    terminal.seconds += 65
    assert terminal.feed(StudyEnd("weak/r", reason, message)) == (f"weak/r: {shown}", False)
    line = terminal.feed(StudyEnd("strong/r", "interrupted", "the job was preempted"))
    assert line == ("strong/r: not started: the job was preempted", False)


def test_a_settled_study_takes_no_more_time(terminal: Terminal) -> None:
    terminal.feed(BEGIN, StudyEnd("weak/r", "error", "x"), StudyStart(study="strong/r", unix_s=1.7e9))
    terminal.seconds += WARM_UP_S + BLOCK_S
    line, _ = terminal.feed(block("alone", 0, study="strong/r"))
    assert f"  {clock(study_seconds(STRONG) - WARM_UP_S - BLOCK_S)} left ] " in line


def test_unknown_records_and_studies_do_no_harm(terminal: Terminal) -> None:
    terminal.progress(Survey("n", 1.0))
    terminal.progress(StudyStart(study="weak/unknown", unix_s=1.7e9))
    terminal.progress(block("alone", 0))
    assert terminal.shown == [("weak/unknown: warming up", True)]


class TestProbes:
    PLAN = replace(PLAN, probes=ProbeStudy((Probe("matmul-fp32"), Probe("all-reduce-1mib", 2)), 6, 0.5), survey=True)
    BEGIN = StudyStart(study="probes", unix_s=1.7e9)

    @pytest.fixture
    def terminal(self) -> Terminal:
        return Terminal(self.PLAN)

    def probe(self, name: str, round_: int) -> ProbeBlock:
        size = 1 if name == "matmul-fp32" else 2
        return ProbeBlock(
            study="probes", probe=name, world_size=size, round=round_, gang=0, iterations=1, ranks=(0,), work=1.0,
            seconds=1.0, started_unix_s=1.0, is_correct=True,
        )  # fmt: skip

    def test_show_their_round_which_never_goes_back(self, terminal: Terminal) -> None:
        assert terminal.feed(self.BEGIN) == ("probes: warming up", True)
        line, passing = terminal.feed(self.probe("matmul-fp32", 0))
        assert (line.split(" ] ")[1], passing) == ("probes: round 1/6  matmul-fp32", True)
        later = terminal.feed(self.probe("all-reduce-1mib", 2))
        assert later[0].endswith(" ] probes: round 3/6  all-reduce-1mib")
        assert terminal.feed(self.probe("all-reduce-1mib", 0)) == later

    def test_of_no_plan_do_no_harm(self) -> None:
        terminal = Terminal()
        terminal.progress(self.probe("matmul-fp32", 0))
        assert terminal.shown == []


class TestPairsOfNodes:
    """Four nodes: three rounds, and more where a pair was slow."""

    BEGIN = StudyStart(study="pairs", unix_s=1.7e9)

    @pytest.fixture
    def terminal(self) -> Terminal:
        return Terminal(replace(PLAN, studies=(WEAK,), nodes=4, ranks_per_node=1, pairs=pair_study("cpu")))

    @staticmethod
    def round_of(number: int) -> PairRound:
        return PairRound(
            study="pairs", round=number, gang=0, message_bytes=1, iterations=1, ranks=((0, 1),), busbw_gbps=1.0
        )

    def test_show_per_cent_and_time_left(self, terminal: Terminal) -> None:
        terminal.feed(STARTUP, BEGIN)
        terminal.seconds += study_seconds(WEAK)
        terminal.feed(*(block(arm, number) for number in range(6) for arm in ("alone", "ddp")))
        terminal.feed(StudyEnd("weak/r", "rounds"), self.BEGIN)
        terminal.seconds += 2
        whole_s = study_seconds(WEAK) + 3 * PAIRS_ROUND_S
        done = int(100 * (1 - 2 * PAIRS_ROUND_S / whole_s))
        assert terminal.feed(self.round_of(0)) == (f"[ {done} %  0:04 left ] pairs of nodes: round 1/3", True)
        assert terminal.feed(self.round_of(2))[0].startswith("[ 99 %  0:00 left ] pairs of nodes: round 3/3")


