"""Report of a sweep of collectives: nccl-tests' tables, curves, pairs and bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.operation import size_text
from pytest_ddpscale.report.charts import About, Cells, Curve, LineAxes, Point, curves
from pytest_ddpscale.report.digits import bound_text, limits_text, point_text
from pytest_ddpscale.report.figures import pair_bandwidths, pair_matrix
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.report.words.verdicts import verdict_word
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.suites.collective_bounds import cases_of_run
from pytest_ddpscale.suites.collective_rows import CollectiveRow, collective_rows
from pytest_ddpscale.suites.collective_table import grouped, nccl_lines, not_measured
from pytest_ddpscale.suites.ratio_text import interval_title
from pytest_ddpscale.suites.suite import MeasuredSuite, why_missing
from pytest_ddpscale.suites.suite_report import SuiteReport, SuiteSection, SuiteTable
from pytest_ddpscale.thresholds.cases import NodeCase
from pytest_ddpscale.util.printable import one_line

Judged = Sequence[tuple[NodeCase, Verdict]]


def collectives_report(measured: MeasuredSuite) -> SuiteReport:
    """The whole report."""
    evidence, confidence = measured.evidence, measured.confidence
    rows = collective_rows(evidence, confidence)
    cases, no_bounds = cases_of_run(measured.record, evidence.plan)
    judged = [(case, worded(judge(case, evidence, confidence))) for case in cases]
    sections = [
        _section([row for row in rows if row.probe.world_size == world_size], judged, confidence)
        for world_size in sorted({row.probe.world_size for row in rows})
    ]
    return SuiteReport(
        _headline(rows, judged) + ("; bounds not judged" if no_bounds else ""),
        [*sections, _bounds(judged, no_bounds), *_pairs(measured)],
        problems=[*_problems(measured, rows, judged), *([f"bounds: {one_line(no_bounds)}"] if no_bounds else [])],
        failures=_failures(rows, judged),
        values={
            "rows": [_row_values(row) for row in rows],
            "bounds": [_bound_values(case, verdict) for case, verdict in judged],
            "pairs_within_nodes_gbps": _pair_values(pair_bandwidths(evidence, within_nodes=True)),
            "pairs_of_nodes_gbps": _pair_values(pair_bandwidths(evidence)),
        },
    )


def _headline(rows: Sequence[CollectiveRow], judged: Judged) -> str:
    """Peak bandwidth of the largest group, whether results were right, and bounds met."""
    there = [row for row in rows if row.busbw_gbps is not None]
    if not there:
        return "Collectives: nothing was measured"
    most = max(row.probe.world_size for row in there)
    best = max((row for row in there if row.probe.world_size == most), key=lambda row: row.busbw_gbps or 0.0)
    wrong = sum(row.wrong for row in rows)
    said = [
        f"Collectives over {most} ranks reach up to {_gbps(best.busbw_gbps or 0.0)} of bus bandwidth "
        f"({best.operation.kind} of {size_text(best.operation.message_bytes or 0)})",
        "all results right" if not wrong else f"{wrong} wrong results",
    ]
    if judged:
        said.append(f"{sum(verdict.passed for _, verdict in judged)} of {len(judged)} bounds met")
    return "; ".join(said)


def _section(rows: Sequence[CollectiveRow], judged: Judged, confidence: float) -> SuiteSection:
    """One world size: curves and the table of nccl-tests."""
    world_size, nodes = rows[0].probe.world_size, rows[0].expected_places
    where = f"{world_size} ranks of each node" if nodes > 1 else f"{world_size} ranks"
    drawn = [_bandwidths(theirs, judged) for theirs in grouped(rows)]
    axes = LineAxes("message size", "busbw (GB/s)", x_is_log=True, x_name=lambda size: size_text(int(size)))
    figure = curves(About(f"sweep-{world_size}", f"Bus bandwidth over {where}"), axes, {"": drawn})
    how = (
        "Bus bandwidth, algorithm bandwidth and time by the formulas of nccl-tests, for the slowest rank"
        + (" on the slowest node" if nodes > 1 else "")
        + f"; ± is half of the {interval_title(confidence)} over the rounds. #wrong counts results (one per rank and "
        "round) that differ from the known values."
    )
    listing = "\n".join(nccl_lines(rows))
    return SuiteSection(f"Over {where}", [how], listings=[listing], figures=[figure])


def _gbps(value: float) -> str:
    return f"{value:.3g} GB/s"


def _bandwidths(rows: Sequence[CollectiveRow], judged: Judged) -> Curve:
    cases = {case.probe: (case.requirement.bound, verdict.outcome == "failed") for case, verdict in judged}
    points, bounds = [], []
    for row in rows:
        if row.busbw_gbps is not None:
            size, (bound, is_failed) = row.operation.message_bytes or 0, cases.get(row.probe, (None, False))
            points.append(Point(size, row.busbw_gbps, row.interval, is_failed))
            bounds += [Point(size, bound)] if bound is not None else []
    return Curve(rows[0].operation.kind, points, bounds)


def _bounds(judged: Judged, why_none: str) -> SuiteSection:
    """Bounds of the thresholds and their verdicts."""
    if why_none:
        return SuiteSection("Bounds", [f"Nothing was judged: {one_line(why_none)}."])
    if not judged:
        return SuiteSection("Bounds", ["The thresholds have no bound for any measured operation and size."])
    rows = [(case.id, point_text(one), limits_text(one), bound_text(one), verdict_word(one)) for case, one in judged]
    table = SuiteTable(("requirement", "value", "limits", "bound", "verdict"), rows, "Requirements on the sweep")
    how = (
        "Judged like an acceptance run, with up to twice as many rounds. These intervals are wider, because they are "
        "valid whenever measuring stops."
    )
    why = [f"{case.id}: {one_line(verdict.reason)}" for case, verdict in judged if not verdict.passed]
    return SuiteSection("Bounds", [how, *why], [table])


def _pairs(measured: MeasuredSuite) -> Iterator[SuiteSection]:
    """Matrices of pairs of ranks within a node and of pairs of nodes, as far as they were measured."""
    within, between = (pair_bandwidths(measured.evidence, within_nodes=one) for one in (True, False))
    figures = [
        pair_matrix(About("pairs-within", "Bandwidth between ranks of a node"), within),
        pair_matrix(About("pairs-between", "Bandwidth between nodes"), between),
    ]
    said = [
        _range_of(pairs, noun)
        for pairs, noun in ((within, "ranks of a node"), (between, "neighbouring nodes"))
        if pairs
    ]
    if said:
        yield SuiteSection("Pairs", said, figures=figures)


def _range_of(pairs: Cells, noun: str) -> str:
    slowest = min(pairs, key=lambda pair: pairs[pair])
    return (
        f"Pairs of {noun} ({len(pairs)}): from {_gbps(pairs[slowest])} ({' and '.join(slowest)}) to "
        f"{_gbps(max(pairs.values()))} in each direction, with both directions active."
    )


def _problems(measured: MeasuredSuite, rows: Sequence[CollectiveRow], judged: Judged) -> list[str]:
    """Measurements that are missing without reason; sizes left out by a limit do not count."""
    evidence = measured.evidence
    assert evidence.plan.probes is not None  # of a sweep
    why = why_missing(evidence, evidence.plan.probes.id)
    if why:
        return [f"all or part of the sweep: {one_line(why)}"]
    found = [
        f"{row.operation.kind} over {row.probe.world_size} ranks, of any size: {one_line(row.why_not)}"
        for row, *others in grouped(rows)
        if all(one.why_not for one in (row, *others))
    ]
    lacking = [row for row in rows if not (row.why_not and row.probe.name in evidence.unsupported)]
    unjudged = [
        f"{case.id}: {one_line(verdict.reason)}"
        for case, verdict in judged
        if verdict.outcome == "not_measured" and verdict.blocks()
    ]
    return [*found, *not_measured(lacking), *unjudged]


def _failures(rows: Sequence[CollectiveRow], judged: Judged) -> list[str]:
    """Wrong results, and bounds that are not met."""
    wrong = [
        f"{row.probe.name} gave {row.wrong} wrong results of {row.checked}" for row in rows if row.wrong
    ]  # fmt: skip
    not_kept = [(case, verdict) for case, verdict in judged if verdict.blocks() and verdict.outcome != "not_measured"]
    return wrong + [f"{case.id}: {verdict_word(verdict)}, {one_line(verdict.reason)}" for case, verdict in not_kept]


def _row_values(row: CollectiveRow) -> dict[str, Any]:
    return {
        "operation": row.operation.kind, "world_size": row.probe.world_size, "size_bytes": row.size_bytes,
        "count": row.count, "type": "float", "redop": row.redop, "root": row.root,
        "time_us": row.time_us, "time_interval_us": row.time_interval_us, "alg_bw_gbps": row.algbw_gbps,
        "bus_bw_gbps": row.busbw_gbps, "bus_bw_interval_gbps": row.interval, "rounds": row.rounds,
        "place": None if row.place is None else row.place.name, "measured_places": row.measured_places,
        "expected_places": row.expected_places, "wrong": row.wrong, "checked": row.checked, "why_not": row.why_not,
    }  # fmt: skip


def _bound_values(case: NodeCase, verdict: Verdict) -> dict[str, Any]:
    return {
        "requirement": case.id, "bound": case.requirement.bound, "outcome": verdict.outcome,
        "severity": verdict.severity, "value": verdict.value, "interval": verdict.interval, "reason": verdict.reason,
    }  # fmt: skip


def _pair_values(pairs: Cells) -> list[dict[str, Any]]:
    return [{"pair": list(names), "gbps": gbps} for names, gbps in sorted(pairs.items())]
