"""Evidence from lines: what has no end is an error, each rank has its own seeded step, and profiles are the latest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.evidence import DIED, Evidence, read_evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import Why
from pytest_ddpscale.run.records import ArmProfile, SeededStep
from pytest_ddpscale.run.table import Columns, columns_of
from tests.builders.records import gang_on, steady_block
from tests.rows import rows
from tests.run.sound_run import PLAN, STUDY, Change, absent, after, changed, read, refusal, unable, without, write

END = f"study_end {STUDY.id}"
CUT = changed(END, reason="interrupted", message="the job ended")


@rows(
    ("change", "of_run", "errors", "interrupted"),
    [
        (without(END), {}, DIED, ""),
        (without(END), {"status": "interrupted"}, "", say(DIED)),
        (without(END), {"status": "imported"}, "", ""),
        (changed(END, reason="error", message="no memory"), {}, "no memory", ""),
        (changed(END, reason="budget"), {}, "", ""),
        (CUT, {}, "", "interrupted: the job ended; --ddp-resume="),
        (after(CUT, without(f"study_start {STUDY.id}")), {}, "", "not started: the job ended; "),
    ],
)
def test_a_study_that_has_not_ended_well_says_why(
    tmp_path: Path, change: Change, of_run: dict[str, Any], errors: Why, interrupted: str
) -> None:
    evidence = read(tmp_path, change, **of_run)
    assert evidence.errors == ({STUDY.id: errors} if errors else {})
    assert evidence.interrupted.keys() == ({STUDY.id} if interrupted else set())
    assert say(evidence.interrupted.get(STUDY.id, "")).startswith(interrupted)


def test_an_end_that_could_not_be_written_says_why(tmp_path: Path) -> None:
    run = write(tmp_path, without("study_end pairs"))
    assert read_evidence(run, "full").errors == {"pairs": "full"}
    assert read_evidence(run, "full", goes_on=True).interrupted == {"pairs": "full"}


def test_a_killed_run_lacks_blocks_of_its_last_round_and_their_telemetry(tmp_path: Path) -> None:
    died = after(
        without("timed ddp@2 9"), without(f"round_end {STUDY.id} 9"), changed(END, reason="error", message="died")
    )
    whole, cut_short = read(tmp_path / "whole"), read(tmp_path, died)
    assert cut_short.errors == {STUDY.id: "died"}
    assert 0 < len(cut_short.telemetry) < len(whole.telemetry)


def test_a_utilization_that_power_contradicts_is_none_and_sm_activity_stands_beside(tmp_path: Path) -> None:
    wrong = {"utilization": [0, 0.9, 0, 0], "power_w": 390, "power_limit_w": 400, "sm_activity": 0.6, "energy_j": None}
    evidence = read(tmp_path, changed(f"telemetry {STUDY.id} ddp@2 2", **wrong))
    measured = evidence.columns.arms[STUDY.id, "ddp@2"]
    assert np.argwhere(np.isnan(measured.reading("utilization"))).tolist() == [[2, 0], [2, 2], [2, 3]]
    assert measured.reading("sm_activity")[2].tolist() == pytest.approx([0.6, np.nan, 0.6, 0.6], nan_ok=True)
    told = evidence.telemetry.of_arm(STUDY.id, "ddp@2")
    assert np.flatnonzero(np.isnan(told.utilization)).tolist() == [8, 10, 11]
    assert [one.get("utilization") for one in told.unreadable][8:10] == [
        "0 % busy, although it drew 390 W of 400 W", None,
    ]  # fmt: skip


def test_a_plan_of_another_run_is_refused(tmp_path: Path) -> None:
    assert "plans for a100-sxm4-80gb, but run.json measured b200" in refusal(tmp_path, sku="b200")
    twice = replace(PLAN, studies=(STUDY, STUDY))
    assert "has two studies with the same id" in refusal(tmp_path, plan=twice)


@rows(
    ("steps", "checksums"),
    [
        ("a b", {0: "a", 1: "b"}),
        ("a+b c+d e", dict.fromkeys(range(3), "not repeatable")),
        ("a a a+b", {0: "a", 1: "a", 2: "a+b"}),
    ],
)
def test_steps_that_most_ranks_can_repeat_are_compared(steps: str, checksums: dict[int, str]) -> None:
    """``a+b`` are two results of one rank."""
    told = {
        Place("node0", rank): SeededStep(rank=rank, checksum=one, repeats="+" not in one)
        for rank, one in enumerate(steps.split())
    }
    evidence = Evidence(PLAN, Columns(), {}, seeded_steps={STUDY.id: told})
    assert evidence.seeded_checksums(STUDY.id) == checksums
    assert evidence.seeded_checksums("weak/other") == {}


def test_the_latest_profiles_of_planned_arms_are_evidence(tmp_path: Path) -> None:
    run = write(tmp_path)
    first, again = (ArmProfile(study=STUDY.id, arm="alone", gang=0, rank=0, problem=text) for text in "ab")
    run.append_records([first, again])
    assert read_evidence(run).profiles == (again,)
    run.append_records([ArmProfile(study=STUDY.id, arm="ddp@64", gang=0, rank=0, problem="c")])
    with pytest.raises(RunDirectoryError, match="has ddp@64 of weak/resnet152-fp16, which plan"):
        read_evidence(run)


def test_a_device_keeps_its_column_in_a_later_gang() -> None:
    blocks = [steady_block("weak/r", Arm("ddp", 2, 4), number, (0, 1), 100.0, gang=number) for number in range(2)]
    [arm] = columns_of(blocks, [gang_on(["n0", "n1"], 1), gang_on(["n1", "n2"], 1, number=1)]).arms.values()
    assert list(arm.ranks.by_host) == ["n0", "n1", "n2"]
    assert arm.present.sum(axis=0).tolist() == [1, 2, 1]


def test_ranks_that_run_out_of_memory_in_a_later_round_keep_what_they_measured(tmp_path: Path) -> None:
    late = after(absent("timed matmul-bf16 9", 1), unable("probes", "matmul-bf16", 1))
    evidence = read(tmp_path, late, is_watched=False)
    assert evidence.unsupported == {"matmul-bf16": "n0: too old"}
    [probed] = [one for one in evidence.probes if one.arm == "matmul-bf16"]
    assert probed.present[:, 1].tolist() == [True] * 9 + [False]


def test_ranks_that_lack_a_reading_say_why(tmp_path: Path) -> None:
    lacking = changed("timed ddp@2", unread={"forward_s": ["", "no hooks", "no hooks", ""]})
    assert read(tmp_path, lacking).unread == [(STUDY.id, "ddp@2", "forward_s", "n0", 1, "no hooks", 2)]
