"""Progress turns records into lines: which study, round, speed and time left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.pairing import pair_study
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.progress import Progress, load_warning
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.record_lines import AnyRecord, Idle, Notice, Queued, Unfit
from pytest_ddpscale.run.records import StudyEnd, StudyStart
from pytest_ddpscale.run.survey_record import Survey
from tests.approved import assert_approved
from tests.builders.records import gang_on
from tests.builders.whole_runs import epoch_of, plan_of, training_run
from tests.rows import rows

WORKLOAD = Workload("r", ImageFamily("resnet18"), "fp32", 8, global_batch_size=8)
WEAK = Study("weak", WORKLOAD, (Arm("alone", 1, 8), Arm("ddp", 2, 8)), rounds=6, block_s=5.0, warmup_s=10.0)
STRONG = Study("strong", WORKLOAD, (Arm("alone", 1, 8), Arm("ddp", 2, 4)), rounds=6, block_s=5.0, warmup_s=10.0)
PLAN = Plan("cpu", "cpu", (WEAK, STRONG))
STARTUP = gang_on(["a"], 2, versions={"torch": "2.9.0"})
BEGIN = StudyStart(study="weak/r", unix_s=1.7e9)


def block(arm: str, round_: int, rank: int = 0, block_s: float = 4.0, study: str = "weak/r") -> Block:
    return Block(
        study=study, arm=arm, round=round_, gang=0, ranks=(rank,), count=10, work=8.0, began_unix_s=1.7e9,
        seconds=block_s,
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


def test_the_round_never_goes_back(terminal: Terminal) -> None:
    line, _ = terminal.feed(BEGIN, block("alone", 3), block("alone", 1))
    assert " ] weak/r: round 4/6" in line


def test_only_the_first_rank_speaks(terminal: Terminal) -> None:
    line, passes = terminal.feed(BEGIN, block("ddp@2", 0, rank=1))
    assert (line.rpartition(" ] ")[2], passes) == ("weak/r: warming up", True)


@rows("width", [110, 80, 74])
def test_a_line_that_passes_fits_and_keeps_its_unit(width: int) -> None:
    name = "resnet152-bf16-channels-last-b256"
    study = replace(WEAK, workload=replace(WORKLOAD, name=name))
    lines: list[str] = []
    progress = Progress(replace(PLAN, studies=(study,)), lambda line, passing: lines.append(line), width=lambda: width)
    progress(StudyStart(study=study.id, unix_s=1.7e9))
    for arm in ("alone", "no_sync@2"):
        progress(block(arm, 0, study=study.id))
    assert max(map(len, lines)) <= width
    assert lines[-1].endswith("no_sync@2 20 img/s per rank")
    assert lines[-1].startswith("[ ")


def test_unknown_records_and_studies_do_no_harm(terminal: Terminal) -> None:
    terminal.progress(Survey("n", 1.0))
    terminal.progress(StudyStart(study="weak/unknown", unix_s=1.7e9))
    terminal.progress(block("alone", 0))
    assert [line.rpartition(" ] ")[2] for line, _ in terminal.shown] == ["weak/unknown: warming up"]
    nothing = Terminal()
    nothing.progress(probe("matmul-fp32", 0))
    assert nothing.shown == []


def probe(name: str, round_: int) -> Block:
    size = 1 if name == "matmul-fp32" else 2
    return Block(
        study="probes", arm=Arm(name, size).name, round=round_, gang=0, ranks=(0,), count=1, work=1.0, seconds=1.0,
        began_unix_s=1.0,
    )  # fmt: skip


def pair_round(number: int) -> Block:
    return Block(
        study="pairs", arm="all-reduce-1mib@2", round=number, gang=0, ranks=(0, 1), count=1, work=2.0**20, seconds=1.0,
        began_unix_s=1.0,
    )  # fmt: skip


def test_a_session_shows_what_was_approved() -> None:
    """Each line with whether it passes; ten seconds go by from record to record."""
    compiled = replace(STRONG, workload=replace(WORKLOAD, compile=True))
    probes = ProbeStudy((Arm("matmul-fp32"), Arm("all-reduce-1mib", 2)), 6, 0.5)
    terminal = Terminal(
        replace(PLAN, studies=(WEAK, compiled), nodes=4, ranks_per_node=1, probes=probes, pairs=pair_study("cpu"))
    )
    waiting = Queued("job 17 queued and waiting for resources")
    steps: list[AnyRecord | Notice] = [
        Idle(), Idle(), waiting, waiting, Unfit({"n2": "gpus: GPU 3: lost", "n4": "disk: 0.1 GiB are free"}),
        STARTUP, STARTUP, StudyStart(study="probes", unix_s=1.7e9), Idle(), probe("matmul-fp32", 0),
        probe("all-reduce-1mib", 2), probe("all-reduce-1mib", 0), StudyEnd("probes", "decided"),
        BEGIN, block("alone", 0), block("ddp@2", 1, block_s=2.0), StudyEnd("weak/r", "rounds"), Idle(),
        StudyStart(study="strong/r", unix_s=1.7e9), StudyEnd("strong/r", "error", "rank 1 on node7 failed: no memory"),
        StudyStart(study="pairs", unix_s=1.7e9), pair_round(0), pair_round(2), pair_round(3),
        StudyEnd("pairs", "interrupted", "the job was preempted"),
    ]  # fmt: skip
    for step in steps:
        terminal.progress(step)
        terminal.seconds += 10
    for reason in ("budget", "interrupted"):  # of studies that did not begin
        other = Terminal()
        other.feed(StudyEnd("strong/r", reason, "the job was preempted" if reason == "interrupted" else ""))
        terminal.shown += other.shown
    run = training_run(2)
    whole = Terminal(plan_of([run]))
    whole.feed(Idle(), StudyStart(study=run.id, unix_s=1.7e9), epoch_of(run, 0), epoch_of(run, 1))
    whole.feed(StudyEnd(study=run.id, reason="rounds"))
    lines = [f"{'passes' if passes else 'stays '} {line}" for line, passes in terminal.shown + whole.shown]
    assert_approved("progress.txt", "\n".join([*lines, load_warning(8.0, 8), load_warning(9.24, 8)]) + "\n")
