"""What the suite measures is written as PyTorch's DDP benchmark writes it, and reads back as the same table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.compare.ddp_benchmark_diff import compare_reports
from pytest_ddpscale.compare.ddp_benchmark_file import FILE_NAME, ddp_benchmark_of, read_ddp_benchmark
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.suites.ddp_benchmark_import import benchmark_rows
from pytest_ddpscale.suites.pytorch_ddp import AS_THERE, _arms
from pytest_ddpscale.suites.pytorch_ddp_report import pytorch_ddp_report
from pytest_ddpscale.suites.suite import MeasuredSuite
from pytest_ddpscale.suites.suite_report import SuiteReport
from tests.builders.judged import STEPS, evidence_of_plan, measure
from tests.suites.published_ddp_benchmark import example_report, written
from tests.suites.run_records import SUITE_RECORD

ROUNDS = 9
BATCH = 32
Pace = Callable[[Arm, int, int], float]


def usual_pace(arm: Arm, number: int, rank: int) -> float:
    """Larger sizes are slower, and so is every other round; rank 1 and the others differ."""
    return 320.0 * (1 - 0.01 * arm.world_size * (arm.kind == "ddp")) * (1 + 0.02 * (number % 2)) * (1 + 0.001 * rank)


def reported(nodes: int = 1, pace: Pace = usual_pace, without: str = "", confidence: float = 0.95) -> SuiteReport:
    """The suite on so many nodes of two ranks, the second slow; the arm `without` was not measured."""
    arms = tuple(_arms(2, nodes, BATCH, [1.0]))
    study = Study("weak", Workload("resnet50", ImageFamily("resnet50"), "fp32", BATCH), arms, ROUNDS, 1.0, 1.0)
    plan = Plan("cpu", "cpu", (study,), nodes=nodes, ranks_per_node=2)
    first = [one for one in measure(study, ROUNDS, pace, 2) if one.arm != without]
    second = [
        replace(one, rank=one.rank + 2, host="node1", device=f"GPU-{one.rank + 2}", step_s=(1.0,) * STEPS)
        for one in first
        if nodes > 1 and not one.arm.startswith("ddp@4")
    ]
    measured = first + second
    return pytorch_ddp_report(MeasuredSuite(evidence_of_plan(plan, measured), SUITE_RECORD, confidence), AS_THERE)


def test_the_file_reads_back_as_the_suite_s_own_table(tmp_path: Path) -> None:
    report = reported()
    path = written(tmp_path / FILE_NAME, report.files[FILE_NAME])
    (benchmark,) = (file := read_ddp_benchmark(Path(path))).benchmarks
    rows = list(benchmark_rows(benchmark, file.gpus_per_machine))
    assert [row.name for row in rows] == ["no ddp", "1M/1G", "1M/2G"]
    told = report.values["benchmarks"]["resnet50"]["rows"]
    for row, own in zip(rows, told, strict=True):
        assert row.s_per_iter == pytest.approx(own["s_per_iter"], rel=1e-6)


def test_it_is_what_that_benchmark_s_diff_reads() -> None:
    said = json.loads(json.dumps(reported().files[FILE_NAME]))
    assert (said["pytorch_version"], said["distributed_backend"], said["bucket_size"]) == ("2.15", "gloo", 25)
    (benchmark,) = said["benchmark_results"]
    assert (benchmark["model"], benchmark["batch_size"]) == ("resnet50", BATCH)
    assert [one["ranks"] for one in benchmark["result"]] == [[0], [0], [0, 1]], "the size of another bucket is left out"
    last = benchmark["result"][-1]
    assert len(last["measurements"]) == 2 * ROUNDS * STEPS
    by_rank = [
        [BATCH / (313.6 * faster * (1 + 0.02 * (number % 2))) for number in range(ROUNDS) for _ in range(STEPS)]
        for faster in (1.0, 1.001)
    ]
    assert last["measurements"] == pytest.approx(by_rank[0] + by_rank[1], rel=1e-5), "rank after rank"


def test_each_size_of_bucket_has_a_file_of_its_own_to_compare() -> None:
    before, after = (ddp_benchmark_of(said, name) for name, said in reported().files.items())
    assert (before.path, after.path) == (FILE_NAME, "pytorch-ddp-bucket-1.json")
    assert (before.configuration["bucket_size"], after.configuration["bucket_size"]) == (25, 1)
    assert list(before.benchmarks[0].with_ddp) == [1, 2]
    assert list(after.benchmarks[0].with_ddp) == [2], "on all GPUs only, unless every size is asked for"


def test_a_size_of_bucket_is_said_to_be_slower_only_if_its_interval_says_so() -> None:
    def pace(arm: Arm, number: int, rank: int) -> float:
        return usual_pace(arm, number, rank) * (0.9 if arm.variant.bucket_cap_mb == 1 else 1.0)

    for at, said in ((pace, "slower"), (usual_pace, "no difference shown")):
        [buckets] = [one for one in reported(pace=at).sections[1].tables if one.title == "Bucket sizes"]
        assert [(row[0], row[1], row[-1]) for row in buckets.rows] == [("1M/2G", "1", said)]


def test_of_several_machines_the_first_has_the_smaller_sizes_as_there() -> None:
    (file_of_one, file_of_two) = (ddp_benchmark_of(reported(nodes).files[FILE_NAME], "") for nodes in (1, 2))
    assert file_of_two.benchmarks[0].result[:3] == file_of_one.benchmarks[0].result
    rows = benchmark_rows(file_of_two.benchmarks[0], file_of_two.gpus_per_machine)
    assert [row.name for row in rows] == ["no ddp", "1M/1G", "1M/2G", "2M/2G"]


def test_without_one_gpu_without_ddp_there_is_no_file() -> None:
    assert FILE_NAME not in reported(without="alone").files


def test_two_of_them_are_compared_over_rounds() -> None:
    def slower(arm: Arm, number: int, rank: int) -> float:
        return usual_pace(arm, number, rank) * (0.9 if arm.world_size == 2 else 1.0)

    before, after = (ddp_benchmark_of(reported(pace=pace).files[FILE_NAME], "") for pace in (usual_pace, slower))
    one, two = compare_reports(before, after, 0.95).benchmarks[0].sizes
    assert (one.result, two.result) == ("no difference shown", "slower")
    assert (two.of, two.numbers) == ("rounds", (ROUNDS, ROUNDS))
    assert two.change is not None
    assert two.change.size == pytest.approx(1 / 0.9 - 1, rel=1e-4)
    assert two.change.low < 1 / 0.9 - 1 < two.change.high


def test_the_report_tells_ddp_s_cost_and_each_size_s_efficiency_with_an_interval() -> None:
    (section,) = [one for one in reported().sections if one.title == "resnet50"]
    assert section.paragraphs == ["DDP on one GPU: +1.0 % step time (p50)."]
    medians, ratios, _ = section.tables
    assert medians.rows[-1] == ("1M/2G", "98.1 %", "99.1 %")
    name, ratio, interval, _ = ratios.rows[-1]
    assert (name, ratio) == ("1M/2G", "0.980×")
    low, high = map(float, interval.split(" … "))
    assert low <= 0.98 <= high


def test_intervals_are_as_wide_as_the_confidence_asks() -> None:
    def noisy(arm: Arm, number: int, rank: int) -> float:
        return usual_pace(arm, number, rank) * (1 - 0.01 * (arm.kind == "ddp") * (number % 3))

    at_90, at_99 = (
        reported(pace=noisy, confidence=one).values["benchmarks"]["resnet50"]["against_no_ddp"] for one in (0.9, 0.99)
    )
    assert [one["size"] for one in at_90] == ["1M/1G", "1M/2G"]
    for narrow, wide in zip(at_90, at_99, strict=True):
        assert wide["low"] < narrow["low"] < narrow["ratio"] == wide["ratio"] < narrow["high"] < wide["high"]


def test_a_report_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "pytorch-ddp", written(tmp_path / "theirs.json", example_report())]) == 0
    told = capsys.readouterr().out
    assert "resnext101_32x8d with batch size 32" in told
    assert "DDP on one GPU: +5.6 % step time (p50)." in told
