from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.records import GangRecord, StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.strict_json import strict_json
from tests.builders.json_types import as_json, run_record
from tests.builders.measurements import Measurement, measurements_in, measurements_of
from tests.builders.records import lines_of
from tests.rows import rows

PLAN = Plan(
    sku="cpu",
    device_type="cpu",
    studies=(
        Study(
            scaling="strong",
            workload=Workload("r18", ImageFamily("resnet18", image_size=64), "fp32", 8, global_batch_size=8),
            arms=(Arm("alone", 1, 8), Arm("ddp", 2, 4)),
            rounds=6,
            block_s=2.0,
            warmup_s=1.0,
        ),
    ),
    seed=7,
)


def measurement(round_: int = 0, host: str = "nöde-1") -> Measurement:
    return Measurement(
        study="strong/r18", arm="ddp@2", round=round_, rank=0, local_rank=0, host=host, device="cpu",
        batch_size=4, steps=3, block_s=1.5, started_unix_s=10.0, step_s=(0.5, 0.5, 0.5), step_stdev_s=0.0,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "runs" / "one")
    run.write_json(run.run_json, run_record())
    return run


def measured(run: RunDirectory, rounds: int = 3) -> list[Measurement]:
    """Append a gang and its blocks."""
    number = len([one for one in run.read_records() if isinstance(one, GangRecord)])
    who, *blocks = lines_of([measurement(number) for number in range(rounds)], gang=number)
    run.append_records([who, *blocks])
    return measurements_of([who, *blocks])


class TestCreate:
    def test_makes_the_directory_with_its_logs(self, tmp_path: Path) -> None:
        run = RunDirectory.create(tmp_path / "a" / "b")
        assert run.logs.is_dir()
        assert [path.name for path in run.path.iterdir()] == ["logs"]

    @pytest.mark.parametrize("below", ["", "sub"])
    def test_refuses_where_a_file_is_in_the_way(self, tmp_path: Path, below: str) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(RunDirectoryError, match=r"cannot be written .*a writable directory"):
            RunDirectory.create(tmp_path / "file" / below)
        assert (tmp_path / "file").read_text() == "in the way"

    def test_refuses_where_files_cannot_be_made(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A read-only file system, as root sees it: permissions do not stop root."""

        def read_only(**_: Any) -> None:
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
        with pytest.raises(RunDirectoryError, match="Read-only file system"):
            RunDirectory.create(tmp_path / "run")


class TestOpen:
    def test_reads_what_was_written(self, run: RunDirectory) -> None:
        assert RunDirectory.open(run.path).read_run() == run_record()

    def test_refuses_a_directory_without_a_run(self, tmp_path: Path) -> None:
        with pytest.raises(RunDirectoryError, match=r"has no run\.json"):
            RunDirectory.open(tmp_path)

    def test_refuses_a_newer_schema(self, run: RunDirectory) -> None:
        run.write_json(run.run_json, {"schema_version": 3})
        with pytest.raises(RunDirectoryError, match=r"has schema_version 3; expected 2.*upgrade"):
            RunDirectory.open(run.path)

    @rows("content", ["{}", "[]", "3", '{"schema_version": "1"}', '{"schema_version": true}'])
    def test_refuses_a_run_without_a_version(self, run: RunDirectory, content: str) -> None:
        run.run_json.write_text(content)
        with pytest.raises(RunDirectoryError, match="has no schema_version"):
            RunDirectory.open(run.path)

    @rows("content", ["", "{", '{"schema_version": 2, "load": NaN}'])
    def test_refuses_a_run_that_is_not_strict_json(self, run: RunDirectory, content: str) -> None:
        run.run_json.write_text(content)
        with pytest.raises(RunDirectoryError, match=r"run\.json: cannot be read"):
            RunDirectory.open(run.path)

    def test_refuses_a_run_that_is_not_utf8(self, run: RunDirectory) -> None:
        run.run_json.write_bytes(b'{"schema_version": 2, "host": "\xff"}')
        with pytest.raises(RunDirectoryError, match=r"run\.json: cannot be read"):
            RunDirectory.open(run.path)


class TestPlan:
    def test_survives_being_written(self, run: RunDirectory) -> None:
        run.write_json(run.plan_json, PLAN)
        assert run.read_plan() == PLAN

    @rows(
        ("version", "what_next"),
        [(99, "A newer .* upgrade"), (5, "An older .* measure again, or judge with the version that run.json names")],
    )
    def test_of_another_version_is_refused_first(self, run: RunDirectory, version: int, what_next: str) -> None:
        run.write_json(run.run_json, as_json(run_record()) | {"site": "a field of that version"})
        run.write_json(run.plan_json, as_json(PLAN) | {"schema_version": version})
        with pytest.raises(
            RunDirectoryError, match=rf"plan\.json: has schema_version {version}; expected 7.*{what_next}"
        ):
            RunDirectory.open(run.path)

    @rows(
        "change",
        [{"studies": 3}, {"studies": [{}]}, {"studies": ["weak"]}, {"sku": None, "studies": [{"workload": 1}]}],
    )
    def test_refuses_what_describes_no_plan(self, run: RunDirectory, change: dict[str, Any]) -> None:
        run.write_json(run.plan_json, as_json(PLAN) | change)
        with pytest.raises(RunDirectoryError, match=r"plan\.json: has invalid content .* at `\$"):
            run.read_plan()

    def test_refuses_a_run_without_one(self, run: RunDirectory) -> None:
        with pytest.raises(RunDirectoryError, match=r"plan\.json: cannot be read"):
            run.read_plan()


class TestMeasurements:
    def test_none_yet_is_an_empty_list(self, run: RunDirectory) -> None:
        assert measurements_in(run) == []

    def test_come_back_in_order_without_the_other_records(self, run: RunDirectory) -> None:
        first = measured(run, 2)
        run.append_record(StudyEnd("strong/r18", "rounds"))
        second = measured(run, 1)
        assert measurements_in(run) == first + second
        kinds = [type(record) for record in run.read_records()]
        assert kinds == [GangRecord, Block, Block, StudyEnd, GangRecord, Block]

    def test_records_appended_together_are_what_they_are_one_by_one(self, tmp_path: Path) -> None:
        records = lines_of([measurement(number) for number in range(3)])
        one_by_one, together = (RunDirectory.create(tmp_path / name) for name in ("one", "all"))
        for record in records:
            one_by_one.append_record(record)
        together.append_records(records[:2])
        together.append_records([])
        together.append_records(records[2:])
        assert together.measurements_jsonl.read_bytes() == one_by_one.measurements_jsonl.read_bytes()

    def test_of_records_appended_together_none_is_written_if_one_could_not_be_read(self, run: RunDirectory) -> None:
        made = measured(run, 1)
        block = run.read_records()[-1]
        assert isinstance(block, Block)
        for impossible in (math.nan, math.inf, -1.0):
            with pytest.raises(ValueError):
                run.append_records([block, msgspec.structs.replace(block, seconds=impossible)])
        assert measurements_in(run) == made

    def test_are_read_once_until_there_are_more(self, run: RunDirectory) -> None:
        measured(run, 2)
        first = run.read_records()
        assert run.read_records() is first
        run.append_record(StudyEnd("strong/r18", "rounds"))
        assert run.read_records()[len(first) :] == [StudyEnd("strong/r18", "rounds")]

    @settings(deadline=None)  # a busy disk is no failure
    @given(rounds=st.integers(1, 5), share=st.floats(0, 1))
    def test_a_killed_run_keeps_every_finished_measurement(self, rounds: int, share: float) -> None:
        with tempfile.TemporaryDirectory() as directory:
            run = RunDirectory(Path(directory))
            made = measured(run, rounds)
            content = run.measurements_jsonl.read_bytes()
            kept = content[: round(share * len(content))]
            run.measurements_jsonl.write_bytes(kept)
            assert measurements_in(run) == made[: max(0, kept.count(b"\n") - 1)], "the first line is the gang's"

    @rows("damage", ["", "{", "\0\0\0", "3", "[]", '{"kind": NaN}', '{"kind":"measurement"'])
    @rows("number", [1, 2, 3])
    def test_a_corrupted_line_is_refused_with_its_number(self, run: RunDirectory, damage: str, number: int) -> None:
        run.measurements_jsonl.unlink(missing_ok=True)
        measured(run, 3)
        lines = run.measurements_jsonl.read_text(encoding="utf-8").splitlines()
        lines[number - 1] = damage
        run.measurements_jsonl.write_text("\n".join(lines) + "\n", encoding="utf-8")
        with pytest.raises(RunDirectoryError, match=rf"measurements\.jsonl: line {number} is not a record"):
            measurements_in(run)


def test_json_with_nan_is_not_written(run: RunDirectory) -> None:
    with pytest.raises(ValueError):
        run.write_json(run.run_json, {"schema_version": 2, "load": math.nan})
    assert run.read_run() == run_record()


def test_json_ends_in_a_newline(run: RunDirectory) -> None:
    assert run.run_json.read_text() == strict_json(run_record()) + "\n"


def test_a_torn_line_is_cut_so_that_the_next_record_does_not_join_it(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.append_record(StudyEnd("a", "rounds"))
    whole = run.measurements_jsonl.read_text()
    run.measurements_jsonl.write_text(whole + '{"kind": "study_e')
    run.cut_torn_line()
    assert run.measurements_jsonl.read_text() == whole
    run.append_record(StudyEnd("b", "rounds"))
    assert run.read_records() == [StudyEnd("a", "rounds"), StudyEnd("b", "rounds")]
