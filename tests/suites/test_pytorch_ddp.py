"""PyTorch's DDP benchmark: its sizes, its refusal of unlike hosts, and the form of its tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.compare.ddp_benchmark_file import FILE_NAME, read_ddp_benchmark
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.launch.supervisor import NotAdmitted
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.session import measure
from pytest_ddpscale.suites.ddp_benchmark_table import BenchmarkRow, benchmark_lines
from pytest_ddpscale.suites.pytorch_ddp import PytorchDdp, _arms
from pytest_ddpscale.util.command_parser import USER_ERROR
from tests.suites.conftest import MeasuredAndTold

SMALL = ("suite", "pytorch-ddp", "--gpu-sku=cpu", "--models=squeezenet1_1", "--batch=2", "--image-size=64",
         "--bucket-sizes=1", "--ddp-block=0.01s", "--ddp-gpus-per-node=2")  # fmt: skip


def test_sizes_are_one_gpu_a_node_and_whole_nodes() -> None:
    names = [arm.name for arm in _arms(8, 2, 32, [1.0])]
    usual = "+broadcast_buffers=False"
    assert names == [
        "alone", f"ddp@1{usual}", f"ddp@2{usual}", f"ddp@4{usual}", f"ddp@8{usual}", f"ddp@16{usual}",
        "ddp@16+bucket_cap_mb=1,broadcast_buffers=False",
    ]  # fmt: skip


def test_buckets_are_compared_at_every_size_as_the_document_does_if_that_is_asked_for() -> None:
    arms = list(_arms(8, 2, 32, [1.0, 5.0], every_size=True))
    sizes = [1, 2, 4, 8, 16]
    assert [(arm.world_size, arm.variant.bucket_cap_mb) for arm in arms[6:]] == [
        (n, mb) for n in sizes for mb in (1, 5)
    ]


def test_a_line_reads_as_in_that_benchmark() -> None:
    row = BenchmarkRow(1, "no ddp", {50: 0.097, 75: 0.097, 90: 0.097, 95: 0.0972})
    line = "   1 GPUs --   no ddp:  p50:  0.097s     329/s  p75:  0.097s     329/s  p90:  0.097s     329/s  p95:  0.097s     329/s"  # noqa: E501 (theirs)
    assert list(benchmark_lines("resnet50", 32, [row]))[-1] == line


def test_hosts_of_another_topology_are_refused() -> None:
    surveys = [
        Survey(host=host, unix_s=0.0, topology=topology) for host, topology in (("a", "X"), ("b", "X"), ("c", "Y"))
    ]
    assert list(PytorchDdp().unfit_of(surveys)) == ["c"]


class SurveyedTopologies:
    """In place of the supervisor: says what `nvidia-smi topo -m` says on each node, and whom it would have launched."""

    launched: list[Plan] = []  # noqa: RUF012 (each test has a list of its own)
    topologies: tuple[str, ...] = ()

    def __init__(
        self, launch: Launch, run: RunDirectory, limits: object, listener: object, *, isolate: bool, judge: object,
        admit: Callable[[Sequence[Survey]], str],
    ) -> None:  # fmt: skip
        self._hosts, self._run, self._admit = launch.hosts, run, admit

    def measure(self, plan: Plan) -> None:
        surveys = [
            Survey(host=host, unix_s=1.7e9, topology=topology)
            for host, topology in zip(self._hosts, self.topologies, strict=True)
        ]
        self._run.append_records(surveys if plan.survey else [])
        refused = self._admit(surveys) if plan.survey else ""
        if refused:
            raise NotAdmitted(refused)
        self.launched.append(plan)


@pytest.mark.parametrize(("third", "is_refused"), [("GPU0 X NV1", False), ("GPU0 X SYS", True)])
def test_nothing_is_launched_where_a_host_has_another_topology(
    third: str, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launched: list[Plan] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SurveyedTopologies, "launched", launched)
    monkeypatch.setattr(SurveyedTopologies, "topologies", ("GPU0 X NV1", "GPU0 X NV1", third))
    monkeypatch.setattr(measure, "Supervisor", SurveyedTopologies)
    code = main([*SMALL, "--ddp-hosts=n1,n2,n3", "--ddp-exec=true {host}"])
    assert (launched == []) == is_refused
    told = capsys.readouterr().out
    assert ("n3: its topology differs from the first node's" in told) == is_refused
    if is_refused:
        assert code == 1


def test_one_node_of_gpus_has_its_topology_above_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SurveyedTopologies, "launched", [])
    monkeypatch.setattr(SurveyedTopologies, "topologies", ("GPU0 X NV1",))
    monkeypatch.setattr(measure, "Supervisor", SurveyedTopologies)
    main([*SMALL, "--gpu-sku=v100", "--ddp-hosts=n1", "--ddp-exec=true {host}"])  # of which nothing is launched
    assert "\nDistributed backend: nccl\n\nGPU0 X NV1\n" in capsys.readouterr().out


def test_ctrl_c_leaves_a_report_of_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(SurveyedTopologies):
        def measure(self, plan: Plan) -> None:
            super().measure(plan)
            raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SurveyedTopologies, "topologies", ("GPU0 X NV1", "GPU0 X NV1"))
    monkeypatch.setattr(measure, "Supervisor", Interrupted)
    assert main([*SMALL, "--ddp-hosts=n1,n2", "--ddp-exec=true {host}", "--ddp-run-dir=run"]) == 130
    assert "report: " in capsys.readouterr().out
    assert RunDirectory.open(tmp_path / "run").read_run().status == "interrupted"
    assert "GPU0 X NV1" in (tmp_path / "run" / "report.md").read_text()


@pytest.mark.lab
def test_it_is_measured_reported_and_told_again(
    measured_and_told: MeasuredAndTold, capsys: pytest.CaptureFixture[str]
) -> None:
    run, told = measured_and_told(*SMALL, "--buckets-at-every-size", "--ddp-confidence=0.9")
    assert "   2 GPUs --    1M/2G:  p50:" in told
    assert "against 25 90 % interval" in " ".join(told.split())  # a column is as wide as noise makes its numbers
    found = json.loads(run.suite_json.read_text())["benchmarks"]["squeezenet1_1"]
    assert [row["name"] for row in found["rows"]] == ["no ddp", "1M/1G", "1M/2G"]
    assert [one["size"] for one in found["against_bucket_25"]] == ["1M/1G", "1M/2G"]
    assert "<h2>squeezenet1_1</h2>" in (run.path / "report.html").read_text()
    for name in (FILE_NAME, "pytorch-ddp-bucket-1.json"):
        (benchmark,) = read_ddp_benchmark(run.path / name).benchmarks
        assert [len(one.ranks) for one in benchmark.result] == [1, 1, 2]

    run.write_json(run.suite_json, {"suite": "pytorch-ddp", "confidence": 0.99})
    assert main(["report", str(run.path)]) == 0
    assert "against 25 99 % interval" in " ".join(capsys.readouterr().out.split())
    wider = json.loads(run.suite_json.read_text())["benchmarks"]["squeezenet1_1"]
    for at_99, at_90 in zip(wider["against_no_ddp"], found["against_no_ddp"], strict=True):
        # How much wider it is, test_ddp_benchmark_export.py asks of rounds that no busy machine spoils: where these
        # drift, both intervals reach to where the drift leads, and noise may leave the upper end open.
        high_99, high_90 = (one["high"] or math.inf for one in (at_99, at_90))
        assert at_99["low"] <= at_90["low"] <= at_90["ratio"] == at_99["ratio"] <= high_90 <= high_99
    run.write_json(run.suite_json, {"suite": "pytorch-ddp", "confidence": "high"})
    assert main(["report", str(run.path)]) == USER_ERROR
    assert "confidence 'high'; expected a number such as 0.95" in capsys.readouterr().err
