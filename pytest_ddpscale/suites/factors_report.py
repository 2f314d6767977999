"""Report of the sweep of factors: tables and bars by factor, and data moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_ddpscale.report.charts import About
from pytest_ddpscale.suites.factors_values import Cell, Factor, Sweep, all_cells, centre_world_size, sweeps
from pytest_ddpscale.suites.found_text import found_cells, found_value
from pytest_ddpscale.suites.ratio_text import interval_title
from pytest_ddpscale.suites.suite import MeasuredSuite, incomplete_text
from pytest_ddpscale.suites.suite_report import SuiteReport, SuiteSection, SuiteTable, grouped_bars

_METHOD = (
    "Computation is the step time of no_sync@k: k ranks at once under DDP without communication (zeroing gradients, "
    "forward and backward pass, optimizer). Communication is the additional time of a ddp@k step in the same round: "
    "communication hidden by computation costs nothing, and noise can make the difference negative. Banerjee and Shah "
    "(“the document”) time torch.distributed.barrier() after the step instead: that is how long ranks wait for each "
    "other, while DDP's all-reduce is part of their computation."
)
_DATA = (
    "By the document: N ÷ (B · k) · trainable parameters, with N = 60000 images. Sent by DDP: 2 (k − 1) ÷ k · 4 bytes "
    "· trainable parameters by each rank in each step (ring all-reduce), times the steps of an epoch. The first falls "
    "as k grows only because there are fewer steps; a rank sends more in each step."
)
_LOSS = "Loss by step and epochs to a loss (figures 1b, 3a and 5b of the document): ddpscale suite convergence."
_FIGURES: dict[Factor, str] = {
    "batch": "figures 2a and 2b", "world size": "figure 1a", "model": "figure 3b", "trained parameters": "figure 5a",
}  # fmt: skip


def factors_report(measured: MeasuredSuite) -> SuiteReport:
    """The whole report."""
    found = sweeps(measured)
    cells = list(all_cells(found))
    filled = [sweep for sweep in found if sweep.measured]
    sections = [_section(sweep, measured.confidence, measured.evidence.plan.device) for sweep in filled]
    if filled:
        sections = [SuiteSection("Method", [_METHOD, _LOSS]), *sections, _data_section(filled)]
    problems = [f"{_name(cell)}: {cell.problem}" for cell in cells if cell.problem]
    values = {"factors": {sweep.factor: [_values(cell) for cell in sweep.cells] for sweep in found}}
    return SuiteReport(_headline(measured, cells), sections, problems, values)


def _headline(measured: MeasuredSuite, cells: Sequence[Cell]) -> str:
    studies = measured.evidence.plan.studies
    count = sum(cell.is_measured for cell in cells)
    ended = sum(cell.is_measured and bool(cell.problem) for cell in cells)
    told = "; ".join([f"{count} of {len(cells)} cells measured", *incomplete_text(ended, len(cells), "cells")])
    if not studies:
        return f"Computation and communication: {told}"
    centre, ranks = studies[0].workload, centre_world_size(studies)
    at = next((one for one in cells if one.workload == centre and one.world_size == ranks and one.is_measured), None)
    what = f"{centre.family.model}, frozen, batch {centre.batch_size}, {ranks} ranks"
    if at is None or at.computation_ms is None or at.communication_ms is None:
        return f"Computation and communication of {what}: not measured; {told}"
    computation, communication = (found_cells(found)[0] for found in (at.computation_ms, at.communication_ms))
    return f"{what}: computation {computation} ms, communication {communication} ms a step; {told}"


def _name(cell: Cell) -> str:
    return f"{cell.workload.name} on {cell.world_size}"


def _section(sweep: Sweep, confidence: float, device: str) -> SuiteSection:
    interval = interval_title(confidence)
    columns = (sweep.factor, "computation ms", interval, "communication ms", interval, "of the step", interval)
    rows = [
        (
            cell.label(sweep.factor), *found_cells(cell.computation_ms), *found_cells(cell.communication_ms),
            *found_cells(cell.communication_share, "{:.1%}"),
        )
        for cell in sweep.cells
    ]  # fmt: skip
    key = f"factor-{sweep.factor.replace(' ', '-')}"
    figure = grouped_bars(
        About(key, f"Computation and communication by {sweep.factor}"), "ms per step",
        [cell.label(sweep.factor) for cell in sweep.cells],
        {"computation": [cell.computation_ms for cell in sweep.cells],
         "communication not hidden by computation": [cell.communication_ms for cell in sweep.cells]},
    )  # fmt: skip
    return SuiteSection(
        f"By {sweep.factor}", [_at(sweep, device), f"The document's {_FIGURES[sweep.factor]}."],
        [SuiteTable(columns, rows)], figures=[figure],
    )  # fmt: skip


def _at(sweep: Sweep, device: str) -> str:
    """The factors that are kept constant, in a sentence."""
    one = sweep.cells[0]
    kept = {
        "model": one.workload.family.model, "batch": f"batch {one.workload.batch_size} per {device}",
        "world size": f"{one.world_size} ranks", "trained parameters": f"{one.data.parameters:,} trained parameters",
    }  # fmt: skip
    gone = {sweep.factor, "trained parameters"} if sweep.factor == "model" else {sweep.factor}
    return f"At {', '.join(said for factor, said in kept.items() if factor not in gone)}."


def _data_section(found: Sequence[Sweep]) -> SuiteSection:
    tables, figures = [], []
    for sweep in found:
        title, names = f"Data moved in an epoch by {sweep.factor}", [cell.label(sweep.factor) for cell in sweep.cells]
        columns = ["trained parameters", "by the document", "in GB", "sent by each rank, GB", "each step, MB"]
        rows = [_data_cells(cell) for cell in sweep.cells]
        if sweep.factor != "trained parameters":  # else the first column has them
            columns = [sweep.factor, *columns]
            rows = [[name, *row] for name, row in zip(names, rows, strict=True)]
        tables.append(SuiteTable(columns, rows, title))
        chart = grouped_bars(
            About(f"data-{sweep.factor.replace(' ', '-')}", title), "GB per epoch", names,
            {"by the document's formula": [cell.data.document_bytes / 1e9 for cell in sweep.cells],
             "sent by each rank (ring all-reduce)": [cell.data.sent_bytes / 1e9 for cell in sweep.cells]},
        )  # fmt: skip
        figures.append(chart)
    return SuiteSection("Data moved in an epoch", [_DATA, "The document's figure 6a."], tables, figures=figures)


def _data_cells(cell: Cell) -> list[str]:
    data = cell.data
    return [
        f"{data.parameters:,}", f"{data.document_parameters:.4g}", f"{data.document_bytes / 1e9:.4g}",
        f"{data.sent_bytes / 1e9:.4g}", f"{data.sent_bytes_per_step / 1e6:.4g}",
    ]  # fmt: skip


def _values(cell: Cell) -> dict[str, Any]:
    data = cell.data
    return {
        "workload": cell.workload.name, "model": cell.workload.family.model, "batch": cell.workload.batch_size,
        "world_size": cell.world_size, "hidden": cell.workload.family.classifier_hidden, "problem": cell.problem,
        "trained_parameters": data.parameters, "computation_ms": found_value(cell.computation_ms),
        "communication_ms": found_value(cell.communication_ms),
        "communication_share": found_value(cell.communication_share),
        "document_parameters_per_epoch": data.document_parameters, "document_bytes_per_epoch": data.document_bytes,
        "sent_bytes_per_rank_and_step": data.sent_bytes_per_step, "sent_bytes_per_rank_and_epoch": data.sent_bytes,
    }  # fmt: skip
