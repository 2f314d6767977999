"""Report of one process on several devices: tables by batch, a picture, and batches at which it is not worth it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.report.charts import About
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.suites.data_parallel_values import WAYS, SplitBatch, Way, is_below, split_batches
from pytest_ddpscale.suites.found_text import found_cells, found_value
from pytest_ddpscale.suites.ratio_text import estimate_texts, interval_title
from pytest_ddpscale.suites.suite import MeasuredSuite, incomplete_text
from pytest_ddpscale.suites.suite_report import SuiteReport, SuiteSection, SuiteTable, grouped_bars
from pytest_ddpscale.util.listing import first_few

_METHOD = (
    "Every column infers the same images in a pass: on one device; by one process that splits them over {devices} "
    "devices (replicate, scatter, parallel_apply, gather; the first rank of a node, while the others idle); and by "
    "{devices} ranks with a part each and without communication, as under DistributedDataParallel. Communication is "
    "the share of our pass outside our parallel_apply, which is timed in the same round with replicas and images in "
    "place; torch's own is not timed."
)
_FIGURES = (
    "Figures 4a and 4b of Banerjee and Shah, who time launching a pass and torch.cuda.synchronize() after it instead."
)
_CPU = (
    "nn.DataParallel: not measured. It needs at least two GPUs; on a CPU it only calls the model. Our DataParallel "
    "runs all devices on this CPU, with the cores of one rank: the logic is the same, times say nothing about GPUs."
)


def data_parallel_report(measured: MeasuredSuite) -> SuiteReport:
    """The whole report."""
    batches = split_batches(measured)
    found = [one for one in batches if one.ways]
    plan = measured.evidence.plan
    is_cpu = plan.device_type == "cpu"
    interval = interval_title(measured.confidence)
    sections = [_throughput(found, interval, plan, is_cpu=is_cpu), _worth(found, interval)] if found else []
    problems = [f"batch {one.batch}: {one.problem}" for one in batches if one.problem]
    values = {
        "batches": [_values(one) for one in batches],
        "not_measured": {WAYS["data_parallel"]: _CPU} if is_cpu else {},
    }
    return SuiteReport(_headline(measured, batches, found), sections, problems, values)


def _headline(measured: MeasuredSuite, batches: Sequence[SplitBatch], found: Sequence[SplitBatch]) -> str:
    what = "Inference by one process on several devices"
    for study in measured.evidence.plan.studies[:1]:
        what = f"Inference of {study.workload.family.model} in {study.workload.precision} by one process"
        what += f" on {batches[0].devices} devices"
    if not found:
        return f"{what}: none of {len(batches)} batches was measured"
    said = [worth_text(kind, found) for kind in _kinds(found)]
    lost = len(batches) - len(found)
    missing = [f"{lost} of {len(batches)} batches not measured"] if lost else []
    missing += incomplete_text(sum(bool(one.problem) for one in found), len(batches), "batches")
    return f"{what}: {'; '.join([*said, *missing])}"


def worth_text(kind: str, found: Sequence[SplitBatch]) -> str:
    """Batches at which one process is certainly slower than one device, and than a rank on each device."""
    ways = [(one.batch, way) for one in found for way in one.ways if way.kind == kind]
    below_one = [str(batch) for batch, way in ways if is_below(way.to_one)]
    below_ranks = [str(batch) for batch, way in ways if is_below(way.to_ranks)]
    said = [f"slower than one device at batch {first_few(below_one, 8)}"] if below_one else []
    said += [f"slower than a rank on each at batch {first_few(below_ranks, 8)}"] if below_ranks else []
    if not any(_is_known(way) for _, way in ways):
        return f"{WAYS[kind]} measured in too few rounds to compare"
    return f"{WAYS[kind]} {' and '.join(said) or 'not shown to be slower at any batch'}"


def _is_known(way: Way) -> bool:
    """Whether any comparison with it has an interval."""
    return any(ratio is not None and ratio.interval is not None for ratio in (way.to_one, way.to_ranks))


def _kinds(found: Sequence[SplitBatch]) -> list[str]:
    return list(dict.fromkeys(way.kind for one in found for way in one.ways))


def _way(one: SplitBatch, kind: str) -> Way | None:
    return next((way for way in one.ways if way.kind == kind), None)


def _throughput(found: Sequence[SplitBatch], interval: str, plan: Plan, *, is_cpu: bool) -> SuiteSection:
    devices, kinds, rate = found[0].devices, _kinds(found), f"{plan.unit}/s"
    columns = ["batch", f"one device {rate}", interval]
    for kind in kinds:
        columns += [f"{WAYS[kind]} {rate}", interval, "communication", interval]
    columns += [f"{devices} ranks {rate}", interval]
    rows = []
    for one in found:
        row = [str(one.batch), *found_cells(one.one)]
        for kind in kinds:
            way = _way(one, kind)
            row += found_cells(way.samples_per_s if way else None)
            row += found_cells(way.communication if way else None, "{:.1%}")
        rows.append([*row, *found_cells(one.ranks)])
    figure = grouped_bars(
        About("data-parallel", f"{plan.samples.capitalize()} per second by batch of all devices"),
        rate,
        [str(one.batch) for one in found],
        {"one device": [one.one for one in found]}
        | {f"{WAYS[kind]}, one process on {devices} devices": [
            way.samples_per_s if (way := _way(one, kind)) else None for one in found] for kind in kinds}
        | {f"{devices} ranks, one on each": [one.ranks for one in found]},
    )  # fmt: skip
    said = [_METHOD.format(devices=devices), _FIGURES, *([_CPU] if is_cpu else [])]
    return SuiteSection("Throughput", said, [SuiteTable(columns, rows)], figures=[figure])


def _worth(found: Sequence[SplitBatch], interval: str) -> SuiteSection:
    columns = ("batch", "one process", "against one device", interval, "against a rank on each", interval, "")
    rows = [
        (str(one.batch), WAYS[way.kind], *_ratio_cells(way.to_one), *_ratio_cells(way.to_ranks), _judged(way))
        for one in found
        for way in one.ways
    ]
    said = [f"{worth_text(kind, found)}." for kind in _kinds(found)]
    said.append("Not worth it: throughput is below that of one device or of the ranks, by the whole interval.")
    return SuiteSection("Whether it is worth it", said, [SuiteTable(columns, rows)])


def _judged(way: Way) -> str:
    if is_below(way.to_one):
        return "not worth it: one device is faster"
    if not _is_known(way):
        return "too few rounds"
    return "not worth it: ranks are faster" if is_below(way.to_ranks) else "not shown to be slower"


def _ratio_cells(ratio: Found | None) -> Iterator[str]:
    yield from estimate_texts(ratio) if ratio is not None else (ABSENT, ABSENT)


def _values(one: SplitBatch) -> dict[str, Any]:
    return {
        "batch": one.batch, "devices": one.devices, "problem": one.problem,
        "one_device_samples_per_s": found_value(one.one), "ranks_samples_per_s": found_value(one.ranks),
        "one_process": {
            way.kind: {
                "samples_per_s": found_value(way.samples_per_s), "communication_share": found_value(way.communication),
                "to_one_device": found_value(way.to_one), "to_ranks": found_value(way.to_ranks),
            }
            for way in one.ways
        },
    }  # fmt: skip
