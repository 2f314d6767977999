"""PyTorch's DDP benchmark: its sizes and files, the tables that it publishes, and two of its reports compared.

Each computed value of the published tables has to lie within what the rounding of what it is computed from, and of what
was printed, allows.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.launch.supervisor import NotAdmitted
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.session import evidence as measuring
from pytest_ddpscale.suites.ddp_benchmark import (
    FILE_NAME,
    ReportDiff,
    benchmark_lines,
    ddp_benchmark_of,
    diff_of,
    overheads,
    read_ddp_benchmark,
    results_of_file,
    size_rows,
)
from pytest_ddpscale.suites.engine import MeasuredSuite
from pytest_ddpscale.suites.pytorch_ddp import PytorchDdp, arms_of
from pytest_ddpscale.suites.results import Results, Row
from pytest_ddpscale.util.command_parser import USER_ERROR
from tests.approved import assert_approved
from tests.builders.judged import STEPS, evidence_of_plan, measure
from tests.builders.nights import judged_run
from tests.suites.conftest import MeasuredAndTold
from tests.suites.published_ddp_benchmark import (
    BATCH,
    DIFF,
    EXAMPLE,
    Printed,
    bucket_size_1_report,
    example_report,
    report,
    written,
)
from tests.suites.run_records import SUITE_RECORD, text_of

Capture = pytest.CaptureFixture[str]
SMALL = ("suite", "pytorch-ddp", "--gpu-sku=cpu", "--models=squeezenet1_1", "--batch=2", "--image-size=64",
         "--bucket-sizes=1", "--ddp-block=0.01s", "--ddp-gpus-per-node=2")  # fmt: skip
ROUNDS, ROUNDING_S, ROUNDING_PERCENT = 9, 0.0005, 0.05
Pace = Callable[[Arm, int, int], float]


def test_sizes_are_one_gpu_a_node_and_whole_nodes_and_buckets_at_every_size_if_asked() -> None:
    usual = "+broadcast_buffers=False"
    assert [arm.name for arm in arms_of(8, 2, 32, [1.0])] == [
        "alone", f"ddp@1{usual}", f"ddp@2{usual}", f"ddp@4{usual}", f"ddp@8{usual}", f"ddp@16{usual}",
        "ddp@16+bucket_cap_mb=1,broadcast_buffers=False",
    ]  # fmt: skip
    arms = [*arms_of(8, 2, 32, [1.0, 5.0], every_size=True)]
    assert [(arm.world_size, arm.variant.bucket_cap_mb) for arm in arms[6:]] == [
        (n, mb) for n in (1, 2, 4, 8, 16) for mb in (1, 5)
    ]


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


class Interrupted(SurveyedTopologies):
    def measure(self, plan: Plan) -> None:
        super().measure(plan)
        raise KeyboardInterrupt


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[Plan]]]:
    def run(*options: str, topologies: tuple[str, ...], kind: type = SurveyedTopologies) -> tuple[int, list[Plan]]:
        plans = list[Plan]()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(SurveyedTopologies, "launched", plans)
        monkeypatch.setattr(SurveyedTopologies, "topologies", topologies)
        monkeypatch.setattr(measuring, "Supervisor", kind)
        return main([*SMALL, *options, "--ddp-exec=true {host}"]), plans

    return run


def test_nothing_is_launched_where_a_host_has_another_topology(
    launched: Callable[..., tuple[int, list[Plan]]], capsys: Capture
) -> None:
    for third, is_refused in (("GPU0 X NV1", False), ("GPU0 X SYS", True)):
        code, plans = launched("--ddp-hosts=n1,n2,n3", topologies=("GPU0 X NV1", "GPU0 X NV1", third))
        assert (plans == []) == is_refused
        assert ("n3: its topology differs from the first node's" in capsys.readouterr().out) == is_refused
    assert code == 1
    launched("--gpu-sku=v100", "--ddp-hosts=n1", topologies=("GPU0 X NV1",))  # of which nothing is launched
    assert "\nDistributed backend: nccl\n\nGPU0 X NV1\n" in capsys.readouterr().out


def test_ctrl_c_leaves_a_report_of_what_was_measured(
    launched: Callable[..., tuple[int, list[Plan]]], tmp_path: Path, capsys: Capture
) -> None:
    code, _ = launched("--ddp-hosts=n1,n2", "--ddp-run-dir=run", topologies=("GPU0 X NV1",) * 2, kind=Interrupted)
    assert code == 130
    assert "report: " in capsys.readouterr().out
    assert RunDirectory.open(tmp_path / "run").read_run().status == "interrupted"
    assert "GPU0 X NV1" in (tmp_path / "run" / "report.md").read_text()


def usual_pace(arm: Arm, number: int, rank: int) -> float:
    """Larger sizes are slower, and so is every other round; rank 1 and the others differ."""
    return 320.0 * (1 - 0.01 * arm.world_size * (arm.kind == "ddp")) * (1 + 0.02 * (number % 2)) * (1 + 0.001 * rank)


def reported(nodes: int = 1, pace: Pace = usual_pace, without: str = "", confidence: float = 0.95) -> Results:
    """The suite on so many nodes of two ranks, the second slow; the arm `without` was not measured."""
    study = Study(
        "weak", Workload("resnet50", ImageFamily("resnet50"), "fp32", BATCH), tuple(arms_of(2, nodes, BATCH, [1.0])),
        ROUNDS, 1.0, 1.0,
    )  # fmt: skip
    plan = Plan("cpu", "cpu", (study,), nodes=nodes, ranks_per_node=2)
    first = [one for one in measure(study, ROUNDS, pace, 2) if one.arm != without]
    second = [
        replace(one, rank=one.rank + 2, host="node1", device=f"GPU-{one.rank + 2}", step_s=(1.0,) * STEPS)
        for one in first
        if nodes > 1 and not one.arm.startswith("ddp@4")
    ]
    return PytorchDdp().results(MeasuredSuite(evidence_of_plan(plan, first + second), confidence, SUITE_RECORD))


def test_the_report_has_its_table_each_efficiency_with_an_interval_and_the_buckets() -> None:
    found = reported()
    assert_approved("suite-pytorch-ddp.txt", text_of(found, reported(without="alone")))
    two, bucket = found.tables[0].rows[2:]
    assert (two["size"], round(two["efficiency"], 3), round(two["efficiency_ddp"], 3)) == ("1M/2G", 0.981, 0.991)
    low, high = two["against_no_ddp"].interval
    assert low - 1e-9 <= 0.98 <= high + 1e-9
    assert (bucket["bucket_cap_mb"], bucket["against_no_ddp"]) == (1, None)

    def noisy(arm: Arm, number: int, rank: int) -> float:
        slow = 0.9 if arm.variant.bucket_cap_mb == 1 else 1.0
        return usual_pace(arm, number, rank) * slow * (1 - 0.01 * (arm.kind == "ddp") * (number % 3))

    at_90, at_99 = (reported(pace=noisy, confidence=one).tables[0].rows for one in (0.9, 0.99))
    for key, at in (("against_no_ddp", 2), ("against_bucket_25", 3)):
        narrow, wide = at_90[at][key], at_99[at][key]
        assert (
            wide.interval[0] < narrow.interval[0] < narrow.value == wide.value < narrow.interval[1] < wide.interval[1]
        )
    assert at_90[3]["against_bucket_25"].interval[1] < 1


def test_the_file_reads_back_as_the_suite_s_own_table(tmp_path: Path) -> None:
    found = reported()
    file = read_ddp_benchmark(Path(written(tmp_path / FILE_NAME, found.files[FILE_NAME])))
    rows = results_of_file(file).tables[0].rows
    assert [row["size"] for row in rows] == ["no ddp", "1M/1G", "1M/2G"]
    for row, own in zip(rows, found.tables[0].rows, strict=False):
        for p in (50, 75, 90, 95):
            assert row[f"p{p}_s"] == pytest.approx(own[f"p{p}_s"], rel=1e-6)


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


def test_each_size_of_bucket_has_a_file_of_its_own_of_the_first_machine() -> None:
    before, after = (ddp_benchmark_of(said, name) for name, said in reported().files.items())
    assert (before.path, after.path) == (FILE_NAME, "pytorch-ddp-bucket-1.json")
    assert (before.configuration["bucket_size"], after.configuration["bucket_size"]) == (25, 1)
    assert [len(one.ranks) for one in before.benchmarks[0].result] == [1, 1, 2]
    assert [len(one.ranks) for one in after.benchmarks[0].result] == [1, 2], "on all GPUs only, unless asked for"
    of_two = ddp_benchmark_of(reported(2).files[FILE_NAME], "")
    assert of_two.benchmarks[0].result[:3] == before.benchmarks[0].result
    sizes = [row["size"] for row in results_of_file(of_two).tables[0].rows]
    assert sizes == ["no ddp", "1M/1G", "1M/2G", "2M/2G"]
    assert FILE_NAME not in reported(without="alone").files


def test_two_of_them_are_compared_over_rounds() -> None:
    def slower(arm: Arm, number: int, rank: int) -> float:
        return usual_pace(arm, number, rank) * (0.9 if arm.world_size == 2 else 1.0)

    before, after = (ddp_benchmark_of(reported(pace=pace).files[FILE_NAME], "") for pace in (usual_pace, slower))
    one, two = diff_of(before, after, 0.95).sizes
    assert (one["result"], two["result"], two["over"]) == ("no difference shown", "slower", f"{ROUNDS} rounds")
    low, high = two["change"].interval
    assert two["change"].value == pytest.approx(1 - 1 / 0.9, rel=1e-4)
    assert low < 1 - 1 / 0.9 < high


@pytest.mark.lab
def test_it_is_measured_reported_and_told_again(measured_and_told: MeasuredAndTold, capsys: Capture) -> None:
    run, told = measured_and_told(*SMALL, "--buckets-at-every-size", "--ddp-confidence=0.9")
    assert "   2 GPUs --    1M/2G:  p50:" in told
    assert "90 % interval" in told
    found = json.loads(run.suite_json.read_text())["tables"]["pytorch-ddp"]
    sizes = [(one["size"], one["bucket_cap_mb"]) for one in found]
    assert sizes == [("no ddp", None), ("1M/1G", None), ("1M/2G", None), ("1M/1G", 1.0), ("1M/2G", 1.0)]
    for name in (FILE_NAME, "pytorch-ddp-bucket-1.json"):
        (benchmark,) = read_ddp_benchmark(run.path / name).benchmarks
        assert [len(one.ranks) for one in benchmark.result] == [1, 1, 2]
    run.write_json(run.suite_json, {"suite": "pytorch-ddp", "confidence": 0.99})
    assert main(["report", str(run.path)]) == 0
    assert "99 % interval" in capsys.readouterr().out
    wider = json.loads(run.suite_json.read_text())["tables"]["pytorch-ddp"]
    for at_99, at_90 in zip(wider[1:3], found[1:3], strict=True):
        # How much wider it is, rounds are asked that no busy machine spoils: where these drift, both intervals reach to
        # where the drift leads, and noise may leave the upper end open.
        (low_99, high_99), (low_90, high_90) = (one["against_no_ddp"]["interval"] for one in (at_99, at_90))
        assert low_99 <= low_90 <= (high_90 or math.inf) <= (high_99 or math.inf)
    run.write_json(run.suite_json, {"suite": "pytorch-ddp", "confidence": "high"})
    assert main(["report", str(run.path)]) == USER_ERROR
    assert "confidence 'high'; expected a number such as 0.95" in capsys.readouterr().err


# Cells of the second table whose baseline cannot be the run of the first: docs/evidence/documents.md says why.
OTHER_BASELINE = {
    ("resnet101", "1M/1G", 75), ("resnet101", "1M/1G", 95), ("resnet101", "1M/8G", 75), ("resnet101", "1M/8G", 95),
    ("resnet101", "2M/8G", 75), ("resnet101", "2M/8G", 95), ("resnext50_32x4d", "1M/2G", 75),
    ("resnext50_32x4d", "1M/4G", 75), ("resnext50_32x4d", "2M/8G", 75), ("resnext101_32x8d", "1M/1G", 75),
    ("resnext101_32x8d", "1M/2G", 95), ("resnext101_32x8d", "1M/4G", 95), ("resnext101_32x8d", "1M/8G", 95),
    ("resnext101_32x8d", "2M/8G", 95),
}  # fmt: skip


def rows_of(model: str) -> list[Row]:
    found = results_of_file(ddp_benchmark_of(example_report(), "example")).tables[0].rows
    return [row for row in found if row["model"] == model]


def published() -> ReportDiff:
    return diff_of(ddp_benchmark_of(example_report(), "25"), ddp_benchmark_of(bucket_size_1_report(), "1"), 0.95)


def cells() -> Iterator[tuple[str, str, int, Printed]]:
    for table in (EXAMPLE, DIFF):
        for model, rows in table.items():
            for size, row in rows.items():
                for per_cent, printed in row.items():
                    yield model, size, per_cent, printed


def limits_s(printed: Printed) -> tuple[float, float]:
    """Between which the time was, by its rounding and by the examples per second, which are cut off."""
    least = max(printed.s_per_iter - ROUNDING_S, BATCH / (printed.examples_per_s + 1))
    return least, min(printed.s_per_iter + ROUNDING_S, BATCH / printed.examples_per_s)


def test_times_and_examples_per_second_agree_in_every_cell_of_the_whole_tables() -> None:
    assert [len(rows) for rows in EXAMPLE.values()] == [6] * 4
    assert [len(rows) for rows in DIFF.values()] == [5] * 4
    assert len([*cells()]) == 4 * (6 * 4 + 5 * 2)
    for model, size, per_cent, printed in cells():
        least, most = limits_s(printed)
        assert least <= most, (model, size, per_cent)


@pytest.mark.parametrize("model", EXAMPLE)
def test_the_table_is_printed_as_published(model: str) -> None:
    lines = [*benchmark_lines(model, BATCH, rows_of(model))][3:]
    for line, (size, row) in zip(lines, EXAMPLE[model].items(), strict=True):
        assert f" GPUs -- {size:>8}:  p50:" in line
        found = re.findall(r"p(\d\d): +([\d.]+)s +(\d+)/s", line)
        for (per_cent, seconds, rate), (asked, printed) in zip(found, row.items(), strict=True):
            assert (int(per_cent), float(seconds)) == (asked, printed.s_per_iter)
            least, most = printed.s_per_iter - ROUNDING_S, printed.s_per_iter + ROUNDING_S
            assert int(BATCH / most) <= int(rate) <= int(BATCH / least)
            assert int(BATCH / most) <= printed.examples_per_s <= int(BATCH / least)


def test_the_diff_is_the_published_one_where_its_baseline_can_be_the_published_run() -> None:
    rows, deviating = iter(published().sizes), set()
    for model, sizes in DIFF.items():
        for size, of_size in sizes.items():
            found = next(rows)
            for per_cent, printed in of_size.items():
                a, b = (found[f"p{per_cent}_s_{of}"] for of in ("baseline", "test"))
                assert b == pytest.approx(printed.s_per_iter)
                assert printed.diff < 0, "25 beats 1 in every row, as the document concludes"
                base = EXAMPLE[model][size][per_cent]
                (a_least, a_most), (b_least, b_most) = limits_s(base), limits_s(printed)
                low, high = -100 * (b_most / a_least - 1), -100 * (b_least / a_most - 1)
                reach = 100 * ROUNDING_S * 2.1 / base.s_per_iter
                assert low - reach <= 100 * (a - b) / a <= high + reach
                if not low - ROUNDING_PERCENT <= printed.diff <= high + ROUNDING_PERCENT:
                    deviating.add((model, size, per_cent))
            assert found["p75_s_test"] > found["p75_s_baseline"]
    assert deviating == OTHER_BASELINE


@pytest.mark.parametrize(("model", "overhead", "two_machines"), [
    ("resnet50", 3.1, 0.933), ("resnet101", 5.6, 0.905), ("resnext50_32x4d", 1.4, 0.924),
    ("resnext101_32x8d", 2.4, 0.922),
])  # fmt: skip
def test_overhead_and_efficiency_are_those_that_thresholds_yaml_takes_from_it(
    model: str, overhead: float, two_machines: float
) -> None:
    rows = rows_of(model)
    assert [*overheads(rows)] == [f"{model}: DDP on one GPU: +{overhead} % step time (p50)."]
    by_name = {row["size"]: row for row in rows}
    assert by_name["2M/8G"]["efficiency"] == pytest.approx(two_machines, abs=0.0005)
    assert by_name["1M/1G"]["efficiency_ddp"] == 1.0
    efficiencies = [row["efficiency"] for row in rows[1:]]
    assert efficiencies == sorted(efficiencies, reverse=True), "no size is more efficient than a smaller one"


def test_a_line_reads_as_in_that_benchmark() -> None:
    line = "   1 GPUs --   no ddp:  p50:  0.097s     329/s  p75:  0.097s     329/s  p90:  0.097s     329/s  p95:  0.097s     329/s"  # noqa: E501 (theirs)
    rows = size_rows("resnet50", [("no ddp", 1, {50: 0.097, 75: 0.097, 90: 0.097, 95: 0.0972})])
    assert [*benchmark_lines("resnet50", 32, rows)][-1] == line


# What PyTorch's own diff.py prints of the two reports that published_ddp_benchmark.py makes.
THEIRS = """\
                                 baseline                      test
                     --------------------      --------------------
bucket_size:                           25  vs                     1
cuda_version:                        10.0  vs                  10.0
distributed_backend:                 nccl  vs                  nccl
pytorch_version:          1.4.0a0+05140f0  vs       1.4.0a0+05140f0

Benchmark: resnet50 with batch size 32

                  sec/iter    ex/sec      diff        sec/iter    ex/sec      diff
   1 GPUs:  p75:    0.101s     316/s     -1.0%  p95:    0.101s     316/s     -1.0%
   2 GPUs:  p75:    0.104s     307/s     -1.0%  p95:    0.104s     307/s     -1.0%
   4 GPUs:  p75:    0.105s     304/s     -1.9%  p95:    0.105s     304/s     -1.9%
   8 GPUs:  p75:    0.107s     299/s     -2.9%  p95:    0.107s     299/s     -2.9%
  16 GPUs:  p75:    0.108s     296/s     -3.8%  p95:    0.122s     262/s    -17.3%

Benchmark: resnet101 with batch size 32

                  sec/iter    ex/sec      diff        sec/iter    ex/sec      diff
   1 GPUs:  p75:    0.172s     186/s     -0.6%  p95:    0.172s     186/s     -0.0%
"""


def test_the_commands_tell_what_the_document_tells(tmp_path: Path, capsys: Capture) -> None:
    usual, small = written(tmp_path / "25.json", example_report()), written(tmp_path / "1.json", bucket_size_1_report())
    assert main(["import", "pytorch-ddp", usual]) == 0
    told = capsys.readouterr().out
    assert "   1 GPUs --   no ddp:  p50:  0.097s     329/s  p75:  0.097s     329/s  p90:  0.097s     329/s" in told
    assert "resnet50: DDP on one GPU: +3.1 % step time (p50)." in told
    assert "Benchmark: resnext101_32x8d with batch size 32" in told
    assert main(["compare", usual, small]) == 0
    answer, _, as_published = capsys.readouterr().out.partition("\n\n")
    assert answer == "Of 20 sizes the test is slower in 17, faster in 0; 3 show no difference, 0 have no interval."
    assert as_published.startswith(THEIRS.rstrip("\n"))


def steps(seed: int, count: int = 10, slower: float = 1.0, correlation: float = 0.0, model: str = "vgg16") -> Any:
    """A report of one model on one and two GPUs, with 1 % of noise a step that both ranks have alike."""
    draw, results = random.Random(seed), []
    for ranks in (1, 1, 2):
        noise, times = 0.0, []
        for _ in range(count):
            noise = correlation * noise + 0.01 * draw.gauss(0, 1)
            times.append(0.1 * slower * (1 + noise))
        own = [time * (1 + 1e-4 * draw.gauss(0, 1)) for _ in range(ranks) for time in times]
        results.append({"ranks": list(range(ranks)), "measurements": own})
    return report({}) | {"benchmark_results": [{"model": model, "batch_size": 32, "result": results}]}


def on_two(a: Any, b: Any) -> Any:
    return diff_of(ddp_benchmark_of(a, "a"), ddp_benchmark_of(b, "b"), 0.95).sizes[-1]


def test_a_slower_step_is_shown_with_an_interval_and_steps_of_ranks_count_once() -> None:
    found = on_two(steps(1), steps(2, slower=1.1))
    low, high = found["change"].interval
    assert (found["result"], found["over"]) == ("slower", "10 steps")
    assert low < -0.1 < high
    assert on_two(steps(1, count=5), steps(2))["result"] == "no interval: baseline: 5 steps; expected at least 8"
    ends = [
        on_two(steps(1), steps(2, count=400, correlation=one, slower=1.1))["change"].interval for one in (0.0, 0.97)
    ]
    independent, alike = (high - low for low, high in ends)
    assert alike > 2 * independent, "steps that correlate much have a wide interval"


def test_where_nothing_differs_hardly_anything_is_shown_though_steps_correlate() -> None:
    found = [on_two(steps(2 * n, correlation=0.5), steps(2 * n + 1, correlation=0.5))["result"] for n in range(100)]
    assert sum(one in ("slower", "faster") for one in found) <= 2


def test_the_exit_code_says_whether_anything_is_surely_slower(tmp_path: Path, capsys: Capture) -> None:
    paths = [
        written(tmp_path / name, said)
        for name, said in (("a.json", steps(1, 20)), ("b.json", steps(2, 20, slower=1.1)))
    ]
    assert main(["compare", *paths, "--fail-below", "5%"]) == 1
    assert "FAIL: worse by more than 5 %: 2: vgg16 with batch size 32 on 1 GPUs, vgg16" in capsys.readouterr().out
    assert main(["compare", *paths, "--fail-below", "20%"]) == 0
    assert "Nothing is certainly worse by more than 20 %." in capsys.readouterr().out
    assert main(["compare", *paths, "--fail-below", "10%"]) == 0, "the far end of an interval fails nothing"
    assert main(["compare", *reversed(paths), "--fail-below", "5%"]) == 0, "faster is no loss"
    capsys.readouterr()
    assert main(["compare", *paths, "--format", "json", "--fail-below", "5%"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (len(said["worse"]), said["lost"], said["fails"]) == (2, [], True)
    change = said["sizes"][-1]["change"]
    assert change["interval"][0] < change["value"] < change["interval"][1] < 0


def test_what_only_one_of_them_has_is_named(tmp_path: Path, capsys: Capture) -> None:
    first, second = example_report(), bucket_size_1_report()
    del first["benchmark_results"][0]["result"][-1]
    del second["benchmark_results"][2]
    second["benchmark_results"].reverse()
    paths = [written(tmp_path / "a.json", first), written(tmp_path / "b.json", second)]
    assert main(["compare", *paths]) == 0
    told = capsys.readouterr().out
    assert "only in the baseline: resnext50_32x4d with batch size 32\n" in told
    assert "only in the test: resnet50 with batch size 32 on 16 GPUs\n" in told
    assert "Of 14 sizes" in told, "in whatever order they stand"


def test_what_the_test_lacks_fails_unless_it_is_allowed(tmp_path: Path, capsys: Capture) -> None:
    whole, fewer, short = steps(1), steps(2), steps(3, count=5)
    del fewer["benchmark_results"][0]["result"][-1]
    for said, lost in ((fewer, ["2 GPUs"]), (short, ["1 GPUs", "2 GPUs"])):
        paths = [written(tmp_path / "a.json", whole), written(tmp_path / "b.json", said)]
        assert main(["compare", *paths, "--fail-below", "50%", "--format", "json"]) == 1
        assert json.loads(capsys.readouterr().out)["lost"] == [f"vgg16 with batch size 32 on {one}" for one in lost]
        assert main(["compare", *paths, "--fail-below", "50%", "--allow-missing"]) == 0
        assert main(["compare", *paths]) == 0
        assert main(["compare", *reversed(paths), "--fail-below", "50%"]) == 0, "what was added is not lost"
        capsys.readouterr()


def test_what_cannot_be_compared_is_one_sentence(tmp_path: Path, capsys: Capture) -> None:
    a = written(tmp_path / "a.json", steps(1))
    other = written(tmp_path / "b.json", steps(1, model="resnet50"))
    run = str(judged_run(tmp_path / "run", 0, {"n1": [100.0] * 2}).path)
    none = "is missing or has no report of PyTorch's DDP benchmark; the other"
    for arguments, why in (
        ([a, a], "found one report twice"), ([a, other], "no model and batch size in common"),
        ([a, run], f"{run}: {none}"), ([run, a], f"{run}: {none}"), ([a, str(tmp_path / "none.json")], f"json: {none}"),
        ([a], "found 1; expected two runs"),
    ):  # fmt: skip
        assert main(["compare", *arguments]) == USER_ERROR
        told = capsys.readouterr().err
        assert why in told
        assert len(told.splitlines()) == 1
