"""A run in which something measured cannot be so is refused, with the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.evidence.evidence import read_evidence
from pytest_ddpscale.plan.study import Arm, DeviceType, Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.results.paik import import_paik
from pytest_ddpscale.results.records import Measurement, StudyEnd
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_record import start_run
from pytest_ddpscale.thresholds.loading import load_thresholds

STUDY = Study("weak", Workload("r", "resnet18", "fp32", 4), (Arm("alone", 1, 4),), 5, 1.0, 1.0)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "run")
    start_run(run, "cpu", (), tmp_path, "ab" * 32)
    plan_for(run, "cpu")
    return run


def imported(run: RunDirectory) -> None:
    run.write_json(run.run_json, json.loads(run.run_json.read_text(encoding="utf-8")) | {"status": "imported"})


def measured(run: RunDirectory, **changes: Any) -> Measurement:
    """Append a block of eight seconds, sound but for the changes."""
    fields: dict[str, Any] = {
        "study": STUDY.id, "arm": "ddp@2", "round": 0, "rank": 0, "local_rank": 0, "host": "n1", "device": "cpu",
        "batch_size": 4, "steps": 4, "block_s": 8.0, "started_unix_s": 1.7e9, "step_s": (1.0, 2.0, 2.0, 3.0),
    }  # fmt: skip
    one = Measurement(**(fields | changes))
    run.append_record(one.as_json())
    return one


def plan_for(run: RunDirectory, device_type: DeviceType) -> None:
    run.write_json(run.plan_json, Plan("cpu", device_type, (STUDY,)).as_json())


def refusal(run: RunDirectory) -> str:
    with pytest.raises(RunDirectoryError) as raised:
        read_evidence(run)
    assert raised.value.where == str(run.measurements_jsonl)
    return str(raised.value)


def test_sound_measurements_are_the_evidence(run: RunDirectory) -> None:
    made = [measured(run, rank=rank, step_s=step_s) for rank in (0, 1) for step_s in ((), (1.0, 2.0, 2.0, 3.0))]
    assert read_evidence(run).measurements == made


class TestSteps:
    @pytest.mark.parametrize(
        ("changes", "found"),
        [
            ({"steps": 5}, "has 4 step times (step_s) of 5 steps"),
            ({"steps": 3}, "has 4 step times (step_s) of 3 steps"),
            ({"step_s": (8.0,)}, "has 1 step times (step_s) of 4 steps"),
            ({"block_s": 7.6}, "has steps of 8 s in all (step_s) in a block of 7.6 s"),
            ({"block_s": 8.5}, "has steps of 8 s in all (step_s) in a block of 8.5 s"),
            ({"step_s": (1.0, 2.0, 2.0, 1e300)}, "has steps of 1e+300 s in all"),
            ({"step_s": (-1.0, 3.0, 3.0, 3.0)}, "has a step of -1 s (step_s)"),
            ({"step_s": (0.0, 2.0, 3.0, 3.0)}, "has a step of 0 s (step_s)"),
        ],
    )
    @pytest.mark.parametrize("is_imported", [False, True])
    def test_that_contradict_their_block_are_refused_with_their_line(
        self, run: RunDirectory, is_imported: bool, changes: dict[str, Any], found: str
    ) -> None:
        if is_imported:
            imported(run)
        measured(run)
        run.append_record(StudyEnd(STUDY.id, "rounds").as_json())
        measured(run, rank=1, **changes)
        message = refusal(run)
        assert f"measurements.jsonl: line 3 {found}" in message
        assert message.endswith("Restore it from a copy, or measure again.")

    @pytest.mark.parametrize("block_s", [7.7, 8.4])
    def test_may_differ_by_less_than_a_twentieth(self, run: RunDirectory, block_s: float) -> None:
        assert read_evidence(run).measurements == []
        one = measured(run, block_s=block_s)
        assert read_evidence(run).measurements == [one]


class TestDevices:
    @pytest.mark.parametrize(("device_type", "device"), [("cuda", "cpu"), ("cpu", "GPU-1")])
    def test_of_another_type_than_the_plan_are_refused(
        self, run: RunDirectory, device_type: DeviceType, device: str
    ) -> None:
        plan_for(run, device_type)
        measured(run, device="cpu" if device_type == "cpu" else "GPU-0")
        measured(run, rank=1, device=device)
        assert f"line 2 was measured on '{device}', but plan.json plans for {device_type}" in refusal(run)

    def test_under_two_ranks_are_refused(self, run: RunDirectory) -> None:
        plan_for(run, "cuda")
        run.append_record({"kind": "startup"})
        for rank, device in enumerate(["GPU-a", "GPU-b", "GPU-a"]):
            measured(run, arm="ddp@3", round=4, rank=rank, device=device)
        message = refusal(run)
        assert f"line 4: rank 2 of {STUDY.id}, ddp@3, round 4 trained on GPU-a, as did rank 0 on line 2" in message
        assert "expected a GPU of its own for every rank" in message

    def test_of_one_host_are_not_taken_for_those_of_another(self, run: RunDirectory) -> None:
        plan_for(run, "cuda")
        measured(run, rank=0, host="n1", device="GPU-a")
        measured(run, rank=1, host="n2", device="GPU-a")
        assert "as did rank 0" in refusal(run), "a UUID is of one GPU in the world"

    @pytest.mark.parametrize("changes", [{"round": 1}, {"arm": "each@2"}, {"study": "strong/r"}, {"rank": 0}])
    def test_may_serve_another_rank_at_another_time(self, run: RunDirectory, changes: dict[str, Any]) -> None:
        """And a measurement of the same rank may have been repeated."""
        plan_for(run, "cuda")
        made = [measured(run, device="GPU-a"), measured(run, **({"rank": 1, "device": "GPU-a"} | changes))]
        assert read_evidence(run).measurements == made

    def test_of_an_imported_run_are_made_up(self, run: RunDirectory) -> None:
        plan_for(run, "cuda")
        imported(run)
        made = [measured(run, rank=rank, device=device) for rank, device in enumerate(["unknown", "unknown", "cpu"])]
        assert read_evidence(run).measurements == made


def test_published_results_are_evidence(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    thresholds = load_thresholds(root / "thresholds.yaml").thresholds
    published = import_paik(root / "tests" / "data" / "paik_a100_80gb", tmp_path / "a100", None, thresholds)
    evidence = read_evidence(published)
    assert len(evidence.measurements) == 96
    assert evidence.errors == {}


def test_a_throughput_no_device_has_is_refused_with_its_line(run: RunDirectory) -> None:
    measured(run)
    run.append_record(measured(run, rank=1).as_json() | {"block_s": 1e-300})
    assert "line 3 is no measurement (batch_size=4, steps=4, block_s=1e-300 are 1.6e+301 img/s" in refusal(run)
