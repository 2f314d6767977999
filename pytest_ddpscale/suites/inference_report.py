"""Report of inference: tables of throughput and latency by batch, a picture, and where throughput saturates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytest_ddpscale.plan.metric_catalogue import INFERENCE_LATENCIES
from pytest_ddpscale.report.charts import About, Curve, LineAxes, Point, curves
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.suites.found_text import found_cells, found_value
from pytest_ddpscale.suites.inference_values import (
    SATURATED,
    InferredArm,
    InferredBatch,
    Saturation,
    inferred_batches,
    saturation,
)
from pytest_ddpscale.suites.ratio_text import interval_title
from pytest_ddpscale.suites.suite import MeasuredSuite, incomplete_text
from pytest_ddpscale.suites.suite_report import SuiteReport, SuiteSection, SuiteTable
from pytest_ddpscale.util.digits import percent

_SHARING = (
    "Kept at once: throughput of a {device} while the others of its node work too, relative to the same {device} alone "
    "in the same round. Nothing communicates, so any loss comes from sharing the host."
)
_LATENCY = (
    "Time of one forward pass of a batch that is already on the device; passes follow each other without a pause. "
    "Percentiles are of each round, over all passes and ranks; with fewer than 100 passes p99 is nearly the slowest."
)


def inference_report(measured: MeasuredSuite) -> SuiteReport:
    """The whole report."""
    batches, evidence = inferred_batches(measured), measured.evidence
    found = [one for one in batches if one.arms]
    where = saturation(found)
    sections = [_throughput(evidence, found, where, measured.confidence), _latency(found)] if found else []
    problems = [f"batch {one.batch}: {one.problem}" for one in batches if one.problem]
    values = {"batches": [_values(one) for one in batches], "saturating_batch": where.surely if where else None}
    return SuiteReport(_headline(evidence, found, len(batches), where), sections, problems, values)


def _headline(evidence: Evidence, found: Sequence[InferredBatch], planned: int, where: Saturation | None) -> str:
    of = next((study.workload for study in evidence.plan.studies), None)
    what = f"Inference of {of.family.model} in {of.precision}" if of else "Inference"
    if not found:
        return f"{what}: none of {planned} batches was measured"
    fastest = max(found, key=lambda one: one.arms[-1].samples_per_s.value)
    best, device = fastest.arms[-1], evidence.plan.device
    together = f"{best.ranks} at once" if best.ranks > 1 else "alone"
    parts = [f"{best.samples_per_s.value:.4g} {evidence.plan.unit}/s per {device} ({together}, batch {fastest.batch})"]
    if fastest.kept is not None:
        is_loss = fastest.kept.interval is not None and fastest.kept.interval[1] < 1
        parts.append(f"{percent(fastest.kept.value, 1)} of one alone" if is_loss else "no loss at once shown")
    parts += [saturation_text(where)] if where else []
    missing = [f"{planned - len(found)} of {planned} batches not measured"] if len(found) < planned else []
    missing += incomplete_text(sum(bool(one.problem) for one in found), planned, "batches")
    return f"{what}: {'; '.join([*parts, *missing])}"


def saturation_text(where: Saturation) -> str:
    """The batch from which throughput hardly grows, as far as the intervals show."""
    if where.is_largest:
        return f"throughput still grows at batch {where.least}, the largest measured"
    if where.surely == where.least:
        return f"saturated from batch {where.least} on"
    if where.surely is None:
        return f"saturated from batch {where.least} on or later (intervals are too wide to say where)"
    return f"saturated from a batch between {where.least} and {where.surely} on"


def _throughput(
    evidence: Evidence, found: Sequence[InferredBatch], where: Saturation | None, confidence: float
) -> SuiteSection:
    device = evidence.plan.device
    interval, rate = interval_title(confidence), f"{evidence.plan.unit}/s"
    columns = ["Batch", f"Alone {rate}", interval]
    ranks = max(one.arms[-1].ranks for one in found)
    if ranks > 1:
        columns += [f"{ranks} at once, {rate} per {device}", interval, f"Total {rate}", "Kept at once", interval]
    rows = [[str(one.batch), *_throughput_cells(one, ranks)] for one in found]
    said = [_SHARING.format(device=device)] if ranks > 1 else []
    if where is not None:
        said.append(
            f"{saturation_text(where).capitalize()}. A batch is saturated if it reaches {percent(SATURATED)} of the "
            "highest throughput measured. Batches are measured one after the other, not in one round."
        )
    axes = LineAxes(f"batch per {device}", f"{rate} per {device}", x_is_log=True)
    figure = curves(About("inference", f"Throughput per {device} by batch"), axes, {"": _curves(found)})
    return SuiteSection("Throughput", said, [SuiteTable(columns, rows)], figures=[figure])


def _curves(found: Sequence[InferredBatch]) -> list[Curve]:
    """Throughput by batch, of one device alone and of all at once."""
    points: dict[int, list[Point]] = {}
    for one in found:
        for arm in one.arms:
            points.setdefault(arm.ranks, []).append(
                Point(one.batch, arm.samples_per_s.value, arm.samples_per_s.interval)
            )
    return [Curve(f"{ranks} at once" if ranks > 1 else "alone", of) for ranks, of in sorted(points.items())]


def _throughput_cells(one: InferredBatch, ranks: int) -> Iterator[str]:
    by_ranks = {arm.ranks: arm for arm in one.arms}
    alone, together = by_ranks.get(1), by_ranks.get(ranks)
    yield from found_cells(alone.samples_per_s if alone else None)
    if ranks > 1:
        yield from found_cells(together.samples_per_s if together else None)
        yield f"{together.total_samples_per_s.value:.4g}" if together else ABSENT
        yield from found_cells(one.kept, "{:.1%}")


def _latency(found: Sequence[InferredBatch]) -> SuiteSection:
    columns = ["Batch", "Ranks at once", "Passes a round"]
    for per_cent in INFERENCE_LATENCIES:
        columns += [f"p{per_cent} ms", "interval"]
    rows = [
        [
            str(one.batch), str(arm.ranks), str(arm.passes * arm.ranks),
            *(cell for per_cent in INFERENCE_LATENCIES for cell in found_cells(arm.latencies_ms[per_cent])),
        ]
        for one in found
        for arm in one.arms
    ]  # fmt: skip
    return SuiteSection("Latency", [_LATENCY], [SuiteTable(columns, rows)])


def _values(one: InferredBatch) -> dict[str, Any]:
    return {
        "batch": one.batch,
        "problem": one.problem,
        "kept_at_once": found_value(one.kept),
        "arms": [_arm_values(arm) for arm in one.arms],
    }


def _arm_values(arm: InferredArm) -> dict[str, Any]:
    return {
        "ranks": arm.ranks,
        "samples_per_s_per_gpu": found_value(arm.samples_per_s),
        "samples_per_s": found_value(arm.total_samples_per_s),
        "passes_per_rank_and_round": arm.passes,
        "latency_ms": {f"p{per_cent}": found_value(found) for per_cent, found in arm.latencies_ms.items()},
    }
