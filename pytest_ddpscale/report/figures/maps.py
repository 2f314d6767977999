"""Maps of a cluster: step time of each GPU by node, and bandwidth of each pair of nodes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_ddpscale.judge.links import rails_of
from pytest_ddpscale.judge.metrics import slowness_of
from pytest_ddpscale.judge.slow import own_pace_s, pace_in
from pytest_ddpscale.judge.values import values_of_probe
from pytest_ddpscale.plan.metric_catalogue import PAIR_BANDWIDTH_GBPS
from pytest_ddpscale.report.digits import number_text
from pytest_ddpscale.report.figures.drawing import INK, NARROW, PAPER, SMALL, Drawing, Sheet, bare_number, drawable
from pytest_ddpscale.report.text import one_line, shorten
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.util.arrays import FloatArray, IntArray
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import by_number
from pytest_ddpscale.util.tables import Table, table

GpuValues: TypeAlias = Mapping[tuple[str, str], float]  # by host and name of the GPU
PairValues: TypeAlias = Mapping[tuple[str, str], float]
MOST_NODES = 64
MOST_ROWS = 50
# From typical to slow; luminance falls steadily, so that the map can be read without seeing colours.
SHADES = ("#ece3d6", "#fbd9b4", "#f4a35c", "#d9560b", "#7a2800")
# Slowdowns, and shares of the typical bandwidth, from which cells have the next shade.
_SLOWER = (1.02, 1.05, 1.1, 1.2)
_LESS = (0.95, 0.9, 0.8, 0.5)
_LEFT, _RIGHT, _ABOVE, _BELOW = 1.35, 0.1, 0.27, 0.45  # margins of the cells, in inches
_CELL, _SMALL_CELL = 0.27, 0.09  # heights; small ones where more than `_MOST_TALL` rows are shown
_MOST_TALL, _MOST_WITH_NUMBERS = 24, 16
_LONGEST_NAME = 18


@dataclass(frozen=True)
class _Map:
    """Cells and what is written around and in them.

    Attributes:
        cells: (rows, columns), NaN where nothing was measured; so are `shades`, which index `SHADES`.
        down: names of the rows, as `across` of the columns, which may be empty.
        outlined: rows and columns of cells to outline; None stands for all.
        number: writes the number in a cell.
        scale: what is shaded, then the meaning of each shade.
    """

    cells: FloatArray
    shades: IntArray
    down: Sequence[str]
    across: Sequence[str]
    outlined: Collection[tuple[int | None, int | None]]
    number: Callable[[float], str]
    scale: Sequence[str]

    @property
    def cell(self) -> tuple[float, float]:
        """Width and height in inches."""
        rows, columns = self.cells.shape
        return (NARROW - _LEFT - _RIGHT) / columns, _CELL if rows <= _MOST_TALL else _SMALL_CELL

    def drawing(self, said: str) -> Drawing:
        """What to draw; `said` is the map in words."""
        return Drawing(said, NARROW, len(self.cells) * self.cell[1] + _ABOVE + _BELOW, self._paint)

    def _paint(self, sheet: Sheet) -> None:
        from matplotlib.collections import LineCollection
        from matplotlib.patches import Rectangle

        (rows, columns), (width, height) = self.cells.shape, self.cell
        axes, top = sheet.plain(), sheet.height - _ABOVE
        for shade, colour in enumerate(SHADES):
            runs = _runs(~np.isnan(self.cells) & (self.shades == shade))
            boxes = [_box(_LEFT + first * width, top - row * height, (end - first) * width, height)
                     for row, first, end in runs]  # fmt: skip
            _fill(axes, boxes, colour)
        across, down = _LEFT + np.arange(columns + 1) * width, top - np.arange(rows + 1) * height
        lines = [[(across[0], y), (across[-1], y)] for y in down] + [[(x, down[0]), (x, down[-1])] for x in across]
        gap = 1.2 if max(rows, columns) <= _MOST_TALL else 0.4
        axes.add_collection(LineCollection(lines, colors=PAPER, linewidths=gap))
        for row, column in self.outlined:
            corner = float(across[column or 0]), float(down[rows if row is None else row + 1])
            size = width * (columns if column is None else 1), height * (rows if row is None else 1)
            axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor=INK, linewidth=2.0, zorder=4))
        self._write(sheet, across, down)
        _draw_scale(sheet, axes, self.scale)

    def _write(self, sheet: Sheet, across: FloatArray, down: FloatArray) -> None:
        rows, (width, height) = len(self.cells), self.cell
        bad = {row for row, _ in self.outlined if row is not None}
        for row, name in enumerate(self.down):
            # Of small rows each fourth has a name, unless it would touch that of a row with a culprit.
            if row in bad or rows <= _MOST_TALL or (row % 4 == 0 and not {row - 1, row + 1} & bad):
                sheet.text(
                    _LEFT - 0.08, down[row] - height / 2, drawable(name, _LONGEST_NAME), ha="right",
                    va="center_baseline", fontsize=SMALL, fontweight="bold" if row in bad else "normal",
                )  # fmt: skip
        for column, name in enumerate(self.across):
            sheet.text(across[column] + width / 2, down[0] + 0.07, drawable(name, 14), ha="center", fontsize=SMALL)
        if rows <= _MOST_WITH_NUMBERS and width > 0.2:
            for (row, column), value in np.ndenumerate(self.cells):
                if not math.isnan(value):
                    sheet.text(
                        across[column] + width / 2, down[row] - height / 2, self.number(value), ha="center",
                        va="center_baseline", fontsize=SMALL if width > 0.3 else 5.5,
                        color="#ffffff" if self.shades[row, column] > 2 else "#111111",
                    )  # fmt: skip


def _draw_scale(sheet: Sheet, axes: Any, scale: Sequence[str]) -> None:
    """The shades side by side with their meaning, below the cells."""
    about, *names = scale
    sheet.text(_LEFT - 0.08, 0.21, about, ha="right", fontsize=SMALL)
    width = (NARROW - _LEFT - _RIGHT) / len(names)
    for shade, name in enumerate(names):
        _fill(axes, [_box(_LEFT + shade * width, 0.34, width, 0.15)], SHADES[shade])
        sheet.text(_LEFT + (shade + 0.5) * width, 0.06, name, ha="center", fontsize=SMALL)


def _box(left: float, top: float, width: float, height: float) -> list[tuple[float, float]]:
    corners = [(left, top), (left + width, top), (left + width, top - height), (left, top - height)]
    return [*corners, corners[0]]


def _fill(axes: Any, boxes: Sequence[Sequence[tuple[float, float]]], colour: str) -> None:
    """Fill boxes as one path, so that thousands of cells need few elements."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    if boxes:
        path = Path.make_compound_path_from_polys(np.array(boxes))
        axes.add_patch(PathPatch(path, facecolor=colour, edgecolor="none", linewidth=0))


def _runs(marked: npt.NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    """Runs of marked cells within a row: row, first column, column after the last."""
    edges = np.diff(np.pad(marked.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    rows, first = np.nonzero(edges == 1)
    return list(zip(rows.tolist(), first.tolist(), np.nonzero(edges == -1)[1].tolist(), strict=True))


def slowness_by_gpu(evidence: Evidence) -> GpuValues:
    """Step time without communication relative to the typical GPU; the slowest workload counts."""
    found: dict[tuple[str, str], float] = {}
    for study in evidence.plan.studies:
        for arm in (one for one in study.arms if one.kind == "each"):
            pace = pace_in(study, arm, evidence)
            times_s = own_pace_s(pace)
            times_s = times_s[~np.isnan(times_s).any(axis=1)]
            slowness = slowness_of(times_s, [np.arange(len(pace.ranks))]).tolist() if len(times_s) else []
            for place, factor in zip(pace.ranks.rank_places, slowness, strict=False):
                gpu = place.host, place.number
                found[gpu] = max(factor, found.get(gpu, 0.0))
    return found


def pair_bandwidths(evidence: Evidence) -> PairValues:
    """GB/s of each pair of nodes, by their sorted names: the slowest rail, each rail as the median of its rounds.

    The values come from the search for slow nodes and links, or from send-recv probes if there was no search.
    """
    rails: dict[tuple[str, str], dict[tuple[Place, ...], list[float]]] = {}

    def add(ends: tuple[Place, ...], gbps: Sequence[float]) -> None:
        first, second = sorted(end.host for end in ends)
        rails.setdefault((first, second), {}).setdefault(ends, []).extend(gbps)

    measured = rails_of(evidence)
    for ends, gbps in zip(measured.places[measured.ends].tolist(), measured.gbps.tolist(), strict=True):
        add((*ends,), [gbps])
    if not rails and evidence.plan.probes is not None:
        sent = [probe for probe in evidence.plan.probes.arms if probe.operation.kind == "send-recv"]
        # The probe with the most ranks spans several nodes if any probe does.
        for probe in sorted(sent, key=lambda probe: (-probe.world_size, -(probe.operation.message_bytes or 0)))[:1]:
            for place, values in values_of_probe(probe, evidence).items():
                if place.is_between_nodes:
                    add(place.ends, values.tolist())
    return {hosts: min(map(statistics.median, by_rail.values())) for hosts, by_rail in rails.items()}


def pair_bandwidths_within(evidence: Evidence) -> PairValues:
    """GB/s of each pair of local ranks: the median over rounds on the slowest node, by the ranks' names.

    The values come from the send-recv probe with the largest message.
    """
    study = evidence.plan.probes
    sent = [probe for probe in (study.arms if study else ()) if probe.operation.kind == "send-recv"]
    found: dict[tuple[str, str], float] = {}
    for probe in sorted(sent, key=lambda probe: -(probe.operation.message_bytes or 0)):
        for place, values in values_of_probe(probe, evidence).items():
            if not place.is_between_nodes:
                one, other = (f"rank {end.local_rank}" for end in place.ends)
                gbps = statistics.median(values.tolist())
                found[one, other] = min(gbps, found.get((one, other), math.inf))
        if found:
            break
    return found


def heat_map(values: GpuValues, verdicts: Iterable[Verdict] = ()) -> Drawing | None:
    """Nodes as rows and their GPUs as columns; dark is slow, and whoever is at fault is outlined."""
    if not values:
        return None
    bins, names = _binned({host for host, _ in values})
    gpus = sorted({gpu for _, gpu in values}, key=by_number)
    column = {gpu: number for number, gpu in enumerate(gpus)}
    cells = np.full((len(names), len(gpus)), np.nan)
    for (host, gpu), factor in values.items():
        at = bins[host], column[gpu]
        cells[at] = np.fmax(cells[at], factor)
    blamed = {
        (one.host, None if one.kind == "node" else one.place.number): None
        for verdict in verdicts for one in verdict.culprits
        if one.is_certain and (one.kind == "gpu" or (one.kind == "node" and one.slowdown is not None))
    }  # fmt: skip
    outlined = [
        (bins[host], None if gpu is None else column[gpu])
        for host, gpu in blamed if host in bins and (gpu is None or gpu in column)
    ]  # fmt: skip
    across = [gpu.replace("GPU of local ", "") if len(gpus) <= 8 else gpu.rpartition(" ")[2] for gpu in gpus]
    worst = max(values, key=lambda place: values[place])
    said = f"{len(values)} GPUs; slowest: {worst[1]} on {worst[0]} with {values[worst]:.2f} times the typical time"
    if outlined:
        said += "; at fault and outlined: " + ", ".join(f"{gpu or 'all GPUs'} on {host}" for host, gpu in blamed)
    # Shades are those of the numbers in cells, as they are written.
    shades = np.searchsorted(_SLOWER, np.round(cells, 2), side="right")
    scale = ["step time", "typical", *(f"≥ {factor:.2f}×" for factor in _SLOWER)]
    return _Map(cells, shades, names, across, outlined, "{:.2f}".format, scale).drawing(said)


def pair_matrix(values: PairValues, verdicts: Iterable[Verdict] = ()) -> Drawing | None:
    """A matrix of nodes, or of ranks within a node; dark is slow, and whoever is at fault is outlined."""
    if not values:
        return None
    typical = statistics.median(values.values())
    bins, names = _binned({host for hosts in values for host in hosts})
    cells = np.full((len(names), len(names)), np.nan)
    for (first, second), gbps in values.items():
        for at in ((bins[first], bins[second]), (bins[second], bins[first])):
            cells[at] = np.fmin(cells[at], gbps)
    worst = min(values, key=lambda hosts: values[hosts])
    said = (
        f"{len(values)} pairs, typically {number_text(typical, 'GB/s')}; slowest: {worst[0]} and {worst[1]} "
        f"with {number_text(values[worst], 'GB/s')}"
    )
    blamed = [
        one for verdict in verdicts if verdict.metric == PAIR_BANDWIDTH_GBPS.name for one in verdict.culprits
        if one.is_certain and all(host in bins for host in one.hosts)
    ]  # fmt: skip
    outlined: dict[tuple[int | None, int | None], None] = {}
    for one in blamed:
        row, column = (*(bins[host] for host in one.hosts), None)[:2]
        outlined |= {(row, column): None, (column, row): None}
    if blamed:
        names_of = dict.fromkeys(" and ".join(one.hosts) for one in blamed)
        said += f"; at fault and outlined: {', '.join(names_of)}"
    shades = np.searchsorted([-share for share in _LESS], -cells / typical, side="right")
    across = [str(i) for i in range(1, len(names) + 1)] if len(names) <= _MOST_TALL else []
    down = (
        [f"{shorten(one_line(name), _LONGEST_NAME - 5)} ({i})" for i, name in enumerate(names, 1)] if across else names
    )
    scale = [f"of {number_text(typical, 'GB/s')}", "typical", *(f"≤ {percent(share)}" for share in _LESS)]
    return _Map(cells, shades, down, across, outlined, partial(bare_number, unit="GB/s"), scale).drawing(said)


def slowest_gpus(values: GpuValues) -> Table | None:
    """A table of the slowest GPUs; None if the map shows each node in a row of its own."""
    if len({host for host, _ in values}) <= MOST_NODES:
        return None
    worst = sorted(values.items(), key=lambda one: -one[1])[:MOST_ROWS]
    rows = [(host, gpu.removeprefix("GPU ").removeprefix("of "), number_text(x, "x")) for (host, gpu), x in worst]
    return table(("Node", "GPU", "Relative step time"), rows)


def slowest_pairs(values: PairValues) -> Table | None:
    """A table of the slowest pairs; None if the matrix shows each node in a row of its own."""
    if len({host for hosts in values for host in hosts}) <= MOST_NODES:
        return None
    worst = sorted(values.items(), key=lambda one: one[1])[:MOST_ROWS]
    return table(("Node", "Node", "GB/s"), [(*hosts, number_text(gbps, "GB/s")) for hosts, gbps in worst])


def _binned(unordered: Collection[str]) -> tuple[dict[str, int], list[str]]:
    """The row of each host, and the names of at most `MOST_NODES` rows, each of equally many neighbours."""
    hosts = sorted(unordered, key=by_number)
    size = -(-len(hosts) // MOST_NODES)
    groups = [hosts[i : i + size] for i in range(0, len(hosts), size)]
    names = [
        group[0] if len(group) == 1 else f"{shorten(one_line(group[0]), _LONGEST_NAME - 5)} + {len(group) - 1}"
        for group in groups
    ]
    return {host: i for i, group in enumerate(groups) for host in group}, names
