"""PyTorch's DDP benchmark as a suite: its sizes, its table, and the files that it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.suites.comparing import diff_of
from pytest_ddpscale.suites.ddp_benchmark import (
    FILE_NAME,
    DdpBenchmarkFile,
    PytorchDdp,
    results_of_file,
)
from pytest_ddpscale.suites.engine import MeasuredSuite
from pytest_ddpscale.suites.results import Results
from tests.approved import assert_approved
from tests.builders.judged import STEPS, evidence_of_plan, measure
from tests.suites.conftest import MeasuredAndTold
from tests.suites.planned import planned
from tests.suites.run_records import SUITE_RECORD, text_of

SMALL = ("suite", "pytorch-ddp", "--gpu-sku=cpu", "--models=squeezenet1_1", "--batch=2", "--image-size=64",
         "--bucket-sizes=1", "--ddp-block=0.01s", "--ddp-gpus-per-node=2")  # fmt: skip
ROUNDS, BATCH = 9, 32
Pace = Callable[[Arm, int, int], float]


def test_sizes_are_one_gpu_a_node_and_whole_nodes_and_buckets_are_compared_at_each() -> None:
    of_two = ("--gpu-sku=v100", "--ddp-hosts=n1,n2", "--ddp-exec=true {host}")
    first, other = planned(
        PytorchDdp(), "--bucket-sizes=5,25", "--models=resnet50,resnet101", gpus=6, sku=of_two
    ).studies
    assert [study.workload.name for study in (first, other)] == ["resnet50", "resnet101"]
    alone, *arms = first.arms
    assert (alone.name, alone.world_size) == ("alone", 1)
    assert [(arm.variant.bucket_cap_mb, arm.world_size) for arm in arms] == [
        (bucket, size) for bucket in (None, 5) for size in (1, 2, 4, 6, 12)
    ]
    assert {arm.variant.broadcast_buffers for arm in arms} == {False}


def usual_pace(arm: Arm, number: int, rank: int) -> float:
    """Larger sizes are slower, and so is every other round; rank 1 and the others differ."""
    return 320.0 * (1 - 0.01 * arm.world_size * (arm.kind == "ddp")) * (1 + 0.02 * (number % 2)) * (1 + 0.001 * rank)


def reported(nodes: int = 1, pace: Pace = usual_pace, without: str = "", confidence: float = 0.95) -> Results:
    """The suite on so many nodes of two ranks, the second slow; the arm `without` was not measured."""
    hosts = ("--gpu-sku=cpu", f"--ddp-hosts={','.join(('n1', 'n2')[:nodes])}", "--ddp-exec=true {host}")
    plan = planned(PytorchDdp(), "--models=resnet50", "--bucket-sizes=1", f"--ddp-rounds={ROUNDS}", gpus=2, sku=hosts)
    (study,) = plan.studies
    first = [one for one in measure(study, ROUNDS, pace, 2) if one.arm != without]
    second = [
        replace(one, rank=one.rank + 2, host="node1", device=f"GPU-{one.rank + 2}", step_s=(1.0,) * STEPS)
        for one in first
        if nodes > 1 and not one.arm.startswith("ddp@4")
    ]
    return PytorchDdp().results(MeasuredSuite(evidence_of_plan(plan, first + second), confidence, SUITE_RECORD))


def file_of(results: Results, name: str = FILE_NAME) -> DdpBenchmarkFile:
    return msgspec.convert(json.loads(json.dumps(results.files[name])), DdpBenchmarkFile)


def test_the_report_has_its_table_and_each_ratio_with_an_interval() -> None:
    assert_approved("suite-pytorch-ddp.txt", text_of(reported(), reported(without="alone")))

    def noisy(arm: Arm, number: int, rank: int) -> float:
        slow = 0.9 if arm.variant.bucket_cap_mb == 1 else 1.0
        return usual_pace(arm, number, rank) * slow * (1 - 0.01 * (arm.kind == "ddp") * (number % 3))

    at_90, at_99 = (reported(pace=noisy, confidence=one).tables[0].rows for one in (0.9, 0.99))
    for at in (2, 4):  # two GPUs against one, and 1 MiB against 25
        (narrow, (low, high)), (wide, (least, most)) = at_90[at]["ratio"], at_99[at]["ratio"]
        assert least < low < narrow == wide < high < most
    assert at_90[4]["ratio"].interval[1] < 1


def test_its_files_have_each_rank_s_steps_one_rank_after_the_other_and_read_back_as_its_table() -> None:
    found = reported()
    usual, bucket = file_of(found), file_of(found, "pytorch-ddp-bucket-1.json")
    assert [*usual.configuration.values()] == ["25", "None", "gloo", "2.15"]
    by_rank = [
        BATCH / (313.6 * faster * (1 + 0.02 * (number % 2)))
        for faster in (1.0, 1.001) for number in range(ROUNDS) for _ in range(STEPS)
    ]  # fmt: skip
    for file in (usual, bucket):
        (benchmark,) = file.benchmark_results
        assert [len(one.ranks) for one in benchmark.result] == [1, 1, 2], "another bucket has its own file"
        assert benchmark.result[-1].measurements == pytest.approx(by_rank, rel=1e-5)
    for row, own in zip(results_of_file(usual).tables[0].rows, found.tables[0].rows, strict=False):
        assert row.items() <= own.items()
    assert [row["bucket_cap_mb"] for row in found.tables[0].rows] == [25, 25, 25, 1, 1]
    assert reported(without="alone").files == {}


def test_of_several_machines_a_size_that_fits_one_is_of_the_first() -> None:
    sizes = [row["size"] for row in results_of_file(file_of(reported(2))).tables[0].rows]
    assert sizes == ["no ddp", "1M/1G", "1M/2G", "2M/2G"]
    of_two, of_one = (file_of(reported(nodes)).benchmark_results[0].result for nodes in (2, 1))
    assert of_two[:3] == of_one


def test_two_of_them_are_compared_over_rounds() -> None:
    files = (file_of(reported(pace=pace)) for pace in (usual_pace, lambda *of: 0.9 * usual_pace(*of)))
    for row in diff_of(*map(results_of_file, files)).table.rows:
        change, (low, high) = row["change"]
        assert (row["result"], change) == ("higher", pytest.approx(1 / 0.9 - 1, rel=1e-4))
        assert low < change < high


@pytest.mark.lab
def test_it_is_measured_reported_and_told_again(
    measured_and_told: MeasuredAndTold, capsys: pytest.CaptureFixture[str]
) -> None:
    run, told = measured_and_told(*SMALL, "--ddp-confidence=0.9")
    assert "   2 GPUs --    1M/2G:  p50:" in told
    assert "90 % interval" in told
    found = json.loads(run.suite_json.read_text())["tables"]["pytorch-ddp"]
    sizes = [(one["size"], one["bucket_cap_mb"]) for one in found]
    assert sizes == [("no ddp", 25), ("1M/1G", 25), ("1M/2G", 25), ("1M/1G", 1), ("1M/2G", 1)]
    run.write_json(run.suite_json, {"suite": "pytorch-ddp", "confidence": 0.99})
    assert main(["report", str(run.path)]) == 0
    assert "99 % interval" in capsys.readouterr().out
