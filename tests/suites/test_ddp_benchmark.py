"""PyTorch's DDP benchmark: its reports are printed and compared as it publishes them, and the suite writes such files.

Each computed value of the published tables has to lie within what the rounding of what it is computed from, and of what
was printed, allows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.judge.stats import Estimate
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.suites.comparing import diff_of
from pytest_ddpscale.suites.ddp_benchmark import (
    FILE_NAME,
    DdpBenchmarkFile,
    DdpBenchmarkResult,
    PytorchDdp,
    results_of_file,
)
from pytest_ddpscale.suites.engine import MeasuredSuite
from pytest_ddpscale.suites.results import Column, Results, Rows
from tests.approved import assert_approved
from tests.builders.judged import STEPS, evidence_of_plan, measure
from tests.suites.planned import SUITE_RECORD, planned, text_of
from tests.suites.published_ddp_benchmark import BATCH, DIFF, EXAMPLE, REPORT, SMALL_BUCKETS, Printed

ROUNDING_S, ROUNDING_PERCENT, ROUNDS = 0.0005, 0.05, 9
# Cells of the second table whose baseline cannot be the run of the first: docs/evidence/documents.md says why.
OTHER_BASELINE = {
    "resnet101": ["1M/1G 75", "1M/1G 95", "1M/8G 75", "1M/8G 95", "2M/8G 75", "2M/8G 95"],
    "resnext50_32x4d": ["1M/2G 75", "1M/4G 75", "2M/8G 75"],
    "resnext101_32x8d": ["1M/1G 75", "1M/2G 95", "1M/4G 95", "1M/8G 95", "2M/8G 95"],
}
# At p50: what DDP costs on one GPU, and the efficiency of 16 GPUs, which thresholds.yaml takes from it.
OVERHEAD, TWO_MACHINES = (0.031, 0.056, 0.014, 0.024), (0.933, 0.905, 0.924, 0.922)
Pace = Callable[[Arm, int, int], float]


def limits_s(printed: Printed) -> tuple[float, float]:
    """Between which the time was, by its rounding and by the examples per second, which are cut off."""
    least = max(printed.s_per_iter - ROUNDING_S, BATCH / (printed.examples_per_s + 1))
    most = min(printed.s_per_iter + ROUNDING_S, BATCH / printed.examples_per_s)
    assert least <= most, "time and examples per second agree"
    return least, most


def cells_of(lines: list[str]) -> list[tuple[int, float, float]]:
    """Per cent, seconds and the number after examples per second of each printed time, of a diff its share."""
    found = re.findall(r"p(\d\d): +([\d.]+)s +(\d+)/s(?: +([+-][\d.]+)%)?", "\n".join(lines))
    return [(int(percent), float(seconds), float(share or rate)) for percent, seconds, rate, share in found]


def file_of(said: Any) -> DdpBenchmarkFile:
    return msgspec.convert(json.loads(json.dumps(said)), DdpBenchmarkFile)


def test_published_tables_are_printed_as_published_but_for_cells_of_another_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """PyTorch's own diff.py prints the same lines of these two reports, from bucket_size to the first model's last."""
    monkeypatch.chdir(tmp_path)
    Path("25.json").write_text(json.dumps(REPORT))
    Path("1.json").write_text(json.dumps(SMALL_BUCKETS))
    assert main(["import", "pytorch-ddp", "25.json"]) == 0
    table = capsys.readouterr().out
    assert main(["compare", "25.json", "1.json"]) == 0
    diff = capsys.readouterr().out
    assert_approved("ddp-benchmark.txt", table + diff)
    cells = iter(cells_of(table.splitlines()))
    for row in (row for sizes in EXAMPLE.values() for row in sizes.values()):
        for printed, asked in zip(row, (50, 75, 90, 95), strict=True):
            percent, seconds, rate = next(cells)
            assert (percent, seconds) == (asked, printed.s_per_iter)
            least, most = limits_s(printed)
            assert int(BATCH / (most + ROUNDING_S)) <= rate <= int(BATCH / (least - ROUNDING_S))
    cells, deviating = iter(cells_of(diff.splitlines())), dict[str, list[str]]()
    for model, size, row in ((model, size, row) for model, sizes in DIFF.items() for size, row in sizes.items()):
        for printed, base in zip(row, EXAMPLE[model][size][1::2], strict=True):
            percent, seconds, share = next(cells)
            assert printed.s_per_iter == seconds
            assert printed.diff < 0, "25 beats 1 in every row, as the document concludes"
            (a_least, a_most), (b_least, b_most) = limits_s(base), limits_s(printed)
            low, high = -100 * (b_most / a_least - 1), -100 * (b_least / a_most - 1)
            reach = 100 * ROUNDING_S * 2.1 / base.s_per_iter + ROUNDING_PERCENT
            assert low - reach <= share <= high + reach
            if not low - ROUNDING_PERCENT <= printed.diff <= high + ROUNDING_PERCENT:
                deviating.setdefault(model, []).append(f"{size} {percent}")
    assert deviating == OTHER_BASELINE


def test_published_efficiencies_are_those_that_thresholds_yaml_takes() -> None:
    rows = results_of_file(file_of(REPORT)).tables[0].rows
    for model, overhead, two_machines in zip(EXAMPLE, OVERHEAD, TWO_MACHINES, strict=True):
        efficiencies = [row["efficiency"] for row in rows if row["model"] == model][1:]
        assert (1 / efficiencies[0] - 1, efficiencies[-1]) == pytest.approx((overhead, two_machines), abs=0.0005)
        assert efficiencies == sorted(efficiencies, reverse=True), "no size is more efficient than a smaller one"


def test_steps_of_ranks_that_wait_for_each_other_count_once() -> None:
    result = DdpBenchmarkResult((0, 1), (1.0, 2.0, 3.0, 3.0, 2.0, 5.0))
    assert result.separate_s == [2.0, 2.0, 4.0]
    assert DdpBenchmarkResult((0, 1), result.measurements, (1, 2)).separate_s == [2.0, 3.0]


def steps(slower: float = 1.0, lengths: tuple[int, ...] = (20, 20, 20)) -> Any:
    """A report of one model, on one GPU without DDP, with it, and on two, whose steps differ by 1 %."""
    times = [0.1 * slower * (1 + 0.01 * (number * 7 % 5 - 2)) for number in range(20)]
    results = [
        {"ranks": [*range(ranks)], "measurements": times[:length] * ranks}
        for ranks, length in zip((1, 1, 2), lengths, strict=False)
    ]
    return REPORT | {"benchmark_results": [{"model": "vgg16", "batch_size": 32, "result": results}]}


def test_slower_files_and_steps_too_few_for_an_interval_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"usual": steps(), "slow": steps(1.1), "short": steps(lengths=(20, 20, 5)), "less": steps(lengths=(20, 20))}
    for name, said in files.items():
        Path(name).write_text(json.dumps(said))
    told = list[str]()
    for pair in (["slow", "usual"], ["usual", "slow"], ["usual", "short"], ["short", "less"]):
        code = main(["compare", *pair, "--format=json", "--fail-below=5%"])
        found = json.loads(capsys.readouterr().out)
        told.append(f"{pair}: {code}, {[found[key] for key in ('kind', 'fails', 'worse', 'lost')]}")
    assert_approved("ddp-benchmark-gate.txt", "\n".join([*told, ""]))


def usual_pace(arm: Arm, number: int, rank: int) -> float:
    """Larger sizes are slower, and so is every other round; rank 1 and the others differ."""
    return 320.0 * (1 - 0.01 * arm.world_size * (arm.kind == "ddp")) * (1 + 0.02 * (number % 2)) * (1 + 0.001 * rank)


def reported(
    nodes: int = 1, pace: Pace = usual_pace, without: str = "", confidence: float = 0.95, steps: int = STEPS
) -> Results:  # fmt: skip
    """The suite on so many nodes of two ranks, the second slow; `without` an arm, and so many steps in round 0."""
    hosts = ("--gpu-sku=cpu", f"--ddp-hosts={','.join(('n1', 'n2')[:nodes])}", "--ddp-exec=true {host}")
    plan = planned(PytorchDdp(), "--models=resnet50", "--bucket-sizes=1", f"--ddp-rounds={ROUNDS}", gpus=2, sku=hosts)
    (study,) = plan.studies
    measured = (one for one in measure(study, ROUNDS, pace, 2) if one.arm != without)
    first = [replace(one, steps=steps, step_s=one.step_s[:steps]) if one.round == 0 else one for one in measured]
    second = [
        replace(one, rank=one.rank + 2, host="node1", device=f"GPU-{one.rank + 2}", step_s=(1.0,) * STEPS)
        for one in first
        if nodes > 1 and not one.arm.startswith("ddp@4")
    ]
    return PytorchDdp().results(MeasuredSuite(evidence_of_plan(plan, first + second), confidence, SUITE_RECORD))


def noisy_pace(arm: Arm, number: int, rank: int) -> float:
    slow = 0.9 if arm.variant.bucket_cap_mb == 1 else 1.0
    return usual_pace(arm, number, rank) * slow * (1 - 0.01 * (arm.kind == "ddp") * (number % 3))


def test_the_report_has_its_table_and_each_ratio_with_an_interval() -> None:
    """Of several machines a size that fits one is of the first. More confidence has wider intervals."""
    found = [reported(), reported(without="alone"), reported(2)]
    found += (reported(pace=noisy_pace, confidence=one) for one in (0.9, 0.99))
    assert_approved("suite-pytorch-ddp.txt", text_of(*found))


def test_its_files_have_each_rank_s_steps_one_rank_after_the_other_and_are_compared_over_rounds() -> None:
    found = reported()
    usual, bucket = (found.files[name] for name in (FILE_NAME, "pytorch-ddp-bucket-1.json"))
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
    assert reported(without="alone").files == {}
    fewer = reported(steps=STEPS - 1).files[FILE_NAME].benchmark_results[0].result[-1]
    assert fewer.steps_per_round == (STEPS - 1, *[STEPS] * (ROUNDS - 1))
    assert fewer.measurements == pytest.approx([s for n, s in enumerate(by_rank) if n % (ROUNDS * STEPS)], rel=1e-5)
    slower = reported(pace=lambda *of: 0.9 * usual_pace(*of)).files[FILE_NAME]
    diff = diff_of(*map(results_of_file, (usual, slower)))
    assert_approved("suite-pytorch-ddp-slower.txt", "\n".join([*diff.lines(), ""]))


def test_a_row_that_the_second_lacks_is_lost_also_without_an_interval() -> None:
    """As a size of whole runs is."""
    columns = (Column("size", "Size"), Column("seconds", "Seconds"))
    both = Rows("a", "", columns, [{"size": 1, "seconds": Estimate(2.0, (1.9, 2.1))}])
    first, second = (
        Results("x", [], [both, Rows("b", "", columns, [{"size": size, "seconds": 1.5} for size in sizes])])
        for sizes in ((2, 4), (2,))
    )
    assert diff_of(first, second).lost == ["4"]
