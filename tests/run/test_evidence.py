"""Evidence is refused where a run directory contradicts itself, and what has no end is an error."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.pairing import PairStudy
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.columns import Columns, columns_of
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.profile_record import ArmProfile
from pytest_ddpscale.run.records import EndReason, SeededStep, StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import start_run
from tests.builders.records import gang_on, steady_block
from tests.rows import rows

STUDY = Study("weak", Workload("r", ImageFamily("resnet18"), "fp32", 4), (Arm("alone", 1, 4),), 5, 1.0, 1.0)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "run")
    start_run(run, "cpu", (), tmp_path, "ab" * 32)
    run.write_json(run.plan_json, Plan("cpu", "cpu", (STUDY,)))
    return run


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_study_without_an_end_is_an_error(run: RunDirectory) -> None:
    assert "the run died" in read_evidence(run).errors[STUDY.id]


def test_a_search_over_pairs_of_nodes_without_an_end_says_why(run: RunDirectory) -> None:
    pairs = PairStudy((Arm("all-reduce-1mib", 2),), 1)
    plan = Plan("cpu", "cpu", (STUDY,), nodes=2, ranks_per_node=1, pairs=pairs)
    run.write_json(run.plan_json, plan)
    run.append_record(StudyEnd(STUDY.id, "rounds"))
    full = str(run.unwritten(run.measurements_jsonl, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    assert read_evidence(run, full).errors == {pairs.id: full}


@pytest.mark.parametrize("reason", ["rounds", "budget"])
def test_a_study_that_ended_is_none(run: RunDirectory, reason: EndReason) -> None:
    run.append_record(StudyEnd(STUDY.id, reason))
    assert read_evidence(run).errors == {}


def test_imported_results_have_no_ends_to_record(run: RunDirectory) -> None:
    edit(run.run_json, status="imported")
    assert read_evidence(run).errors == {}


def test_a_plan_of_another_sku_is_refused(run: RunDirectory) -> None:
    edit(run.run_json, sku="b200")
    with pytest.raises(RunDirectoryError, match=r"plans for cpu, but run\.json measured b200"):
        read_evidence(run)


def test_two_studies_of_one_id_are_refused(run: RunDirectory) -> None:
    run.write_json(run.plan_json, Plan("cpu", "cpu", (STUDY, STUDY)))
    with pytest.raises(RunDirectoryError, match="two studies with the same id"):
        read_evidence(run)


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
    evidence = Evidence(Plan("cpu", "cpu", (STUDY,)), Columns(), {}, seeded_steps={STUDY.id: told})
    assert evidence.seeded_checksums(STUDY.id) == checksums
    assert evidence.seeded_checksums("weak/other") == {}


def test_the_latest_profiles_of_planned_arms_are_evidence(run: RunDirectory) -> None:
    run.append_record(gang_on(["n1"], 1))
    first, again = (ArmProfile(study=STUDY.id, arm="alone", gang=0, rank=0, problem=text) for text in "ab")
    run.append_records([first, again])
    assert read_evidence(run).profiles == (again,)
    run.append_records([ArmProfile(study=STUDY.id, arm="ddp@2", gang=0, rank=0, problem="c")])
    with pytest.raises(RunDirectoryError, match=r"line 4 has ddp@2 of weak/r, which plan\.json does not"):
        read_evidence(run)


def test_a_rank_that_is_elsewhere_in_another_gang_contradicts_itself() -> None:
    other = gang_on(["n0"], 2, "GPU-1{}", 1)
    blocks = [steady_block("weak/r", Arm("ddp", 2, 4), number, (0, 1), 100.0, gang=number) for number in range(2)]
    with pytest.raises(ValueError, match="rank 0 was measured in two places by gangs 0, 1"):
        columns_of(blocks, [gang_on(["n0"], 2, "GPU-{}"), other])
