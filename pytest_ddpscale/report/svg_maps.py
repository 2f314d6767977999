"""Maps of a cluster: relative step time of each GPU, and bandwidth of each pair of nodes."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from pytest_ddpscale.judge.metrics import slowness_of
from pytest_ddpscale.judge.probes import values_of_probe
from pytest_ddpscale.judge.rounds import merged
from pytest_ddpscale.judge.slow_links import rails_of
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.report import svg_axes
from pytest_ddpscale.report.digits import number_text
from pytest_ddpscale.report.svg_axes import BAD, label, number, rectangle
from pytest_ddpscale.report.text import one_line, shorten
from pytest_ddpscale.run.column_record import FloatArray, IntArray
from pytest_ddpscale.run.columns import Columns
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.util.tables import html, table

MOST_NODES = 64
MOST_ROWS = 50
_LEFT, _TOP, _CELL_HEIGHT = 130.0, 24.0, 18.0
_LONGEST_NAME = 18
_MOST_LABELLED = 16  # with more rows, numbers do not fit into cells
_OPACITIES = (0.13, 0.25, 0.45, 0.7, 1.0)
# Slowdowns, and shares of the typical bandwidth, at which cells get the next darker shade.
_SLOWER = (1.02, 1.05, 1.1, 1.2)
_LESS = (0.95, 0.9, 0.8, 0.5)

GpuValues: TypeAlias = Mapping[tuple[str, str], float]  # by host and name of the GPU
PairValues: TypeAlias = Mapping[tuple[str, str], float]


def slowness_by_gpu(columns: Columns, plan: Plan) -> GpuValues:
    """Step time without communication relative to the typical GPU; the slowest workload counts."""
    found: dict[tuple[str, str], float] = {}
    for study in plan.studies:
        arms = [arm for arm in study.arms if arm.kind == "each"]
        for arm in arms:
            rounds = merged(columns, study.id, arm, plan.layout)
            names = {place[:2]: place.number for place in rounds.ranks.rank_places}
            for (host, local_rank), factor in slowness_of(rounds).items():
                if math.isfinite(factor):
                    gpu = host, names[host, local_rank]
                    found[gpu] = max(factor, found.get(gpu, 0.0))
    return found


def heat_map(key: str, values: GpuValues) -> str:
    """A map with nodes as rows and their GPUs as columns; dark is slow."""
    if not values:
        return ""
    bins, names = _binned({host for host, _ in values})
    gpus = sorted({gpu for _, gpu in values}, key=_by_number)
    column = {gpu: number for number, gpu in enumerate(gpus)}
    cells = np.full((len(names), len(gpus)), np.nan)
    for (host, gpu), factor in values.items():
        at = bins[host], column[gpu]
        cells[at] = np.fmax(cells[at], factor)
    across = [gpu.replace("GPU of local ", "") if len(gpus) <= 8 else gpu.rpartition(" ")[2] for gpu in gpus]
    keys = ["typical", *(f"from {factor:.2f}× on" for factor in _SLOWER)]
    worst = max(values, key=lambda place: values[place])
    said = f"{len(values)} GPUs; slowest: {worst[1]} on {worst[0]} with {values[worst]:.2f} times the typical time"
    shades = np.searchsorted(_SLOWER, cells, side="right")
    texts = _texts(cells, "{:.2f}")
    return _map(key, "Relative step time of each GPU", said, cells, shades, (names, across), keys, texts)


def slowest_table(values: GpuValues) -> str:
    """A table of the slowest GPUs; empty if the map shows each node in a row of its own."""
    if len({host for host, _ in values}) <= MOST_NODES:
        return ""
    worst = sorted(values.items(), key=lambda one: -one[1])[:MOST_ROWS]
    rows = [(host, gpu.removeprefix("GPU ").removeprefix("of "), number_text(x, "x")) for (host, gpu), x in worst]
    return html(table(("Node", "GPU", "Relative step time"), rows))


def pair_bandwidths(evidence: Evidence) -> PairValues:
    """GB/s of each pair of nodes, by their sorted names: the slowest rail, each rail as the median of its rounds.

    The values come from the search for slow nodes and links, or from send-recv probes if there was no search.
    """
    rails: dict[tuple[str, str], dict[tuple[int, ...], list[float]]] = {}

    def add(hosts: tuple[str, str], ranks: tuple[int, ...], gbps: Sequence[float]) -> None:
        first, second = sorted(hosts)
        rails.setdefault((first, second), {}).setdefault(ranks, []).extend(gbps)

    for one in rails_of(evidence):
        add(one.hosts, one.ranks, [one.gbps])
    if not rails and evidence.plan.probes is not None:
        sent = [probe for probe in evidence.plan.probes.arms if probe.operation.kind == "send-recv"]
        # The probe with the most ranks spans several nodes if any probe does.
        for probe in sorted(sent, key=lambda probe: (-probe.world_size, -(probe.operation.message_bytes or 0)))[:1]:
            for place, values in values_of_probe(probe, evidence).items():
                if place.peer_host is not None and place.peer_host != place.host:
                    add((place.host, place.peer_host), place.ranks, values.tolist())
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
            if place.end is not None and place.peer is not None and place.peer_host == place.host:
                pair = f"rank {place.end.local_rank}", f"rank {place.peer.local_rank}"
                gbps = statistics.median(values.tolist())
                found[pair] = min(gbps, found.get(pair, math.inf))
        if found:
            break
    return found


def pair_matrix(key: str, values: PairValues, title: str = "Bandwidth between nodes") -> str:
    """A matrix of nodes, or of GPUs within a node; dark is slow, empty was not measured."""
    if not values:
        return ""
    typical = statistics.median(values.values())
    bins, names = _binned({host for hosts in values for host in hosts})
    cells = np.full((len(names), len(names)), np.nan)
    for (first, second), gbps in values.items():
        for at in ((bins[first], bins[second]), (bins[second], bins[first])):
            cells[at] = np.fmin(cells[at], gbps)
    keys = ["typical", *(f"at most {share:.0%} of it".replace("%", " %") for share in _LESS)]
    worst = min(values, key=lambda hosts: values[hosts])
    said = (
        f"{len(values)} pairs, typically {number_text(typical, 'GB/s')}; slowest: {worst[0]} and {worst[1]} "
        f"with {number_text(values[worst], 'GB/s')}"
    )
    shades = np.searchsorted([-share for share in _LESS], -cells / typical, side="right")
    across = [str(i) for i in range(1, len(names) + 1)] if len(names) <= _MOST_LABELLED else []
    down = [f"{name} ({i})" for i, name in enumerate(names, 1)] if across else names
    return _map(key, title, said, cells, shades, (down, across), keys, _texts(cells, "{:.3g}"))


def slowest_pairs_table(values: PairValues) -> str:
    """A table of the slowest pairs; empty if the matrix shows each node in a row of its own."""
    if len({host for hosts in values for host in hosts}) <= MOST_NODES:
        return ""
    worst = sorted(values.items(), key=lambda one: one[1])[:MOST_ROWS]
    return html(table(("Node", "Node", "GB/s"), [(*hosts, number_text(gbps, "GB/s")) for hosts, gbps in worst]))


def _binned(unordered: Collection[str]) -> tuple[dict[str, int], list[str]]:
    """The row of each host, and the names of at most `MOST_NODES` rows, each of equally many neighbours."""
    hosts = sorted(unordered, key=_by_number)
    size = -(-len(hosts) // MOST_NODES)
    groups = [hosts[i : i + size] for i in range(0, len(hosts), size)]
    names = [
        group[0] if len(group) == 1 else f"{shorten(one_line(group[0]), _LONGEST_NAME - 5)} + {len(group) - 1}"
        for group in groups
    ]
    return {host: i for i, group in enumerate(groups) for host in group}, names


def _by_number(host: str) -> list[tuple[int, str]]:
    """Sort key that puts node2 before node10."""
    parts = (part.lstrip("0") if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", host)))
    return [(len(part) if i % 2 else 0, part) for i, part in enumerate(parts)]


def _texts(cells: FloatArray, form: str) -> list[list[str]]:
    if len(cells) > _MOST_LABELLED:
        return []
    return [["" if math.isnan(value) else form.format(value) for value in row] for row in cells.tolist()]


def _map(
    key: str, title: str, said: str, cells: FloatArray, shades: IntArray, names: tuple[Sequence[str], Sequence[str]],
    keys: Sequence[str], texts: Sequence[Sequence[str]],
) -> str:  # fmt: skip
    """Draw cells with one path per shade, so that thousands of cells need few elements."""
    rows, columns = cells.shape
    width, height = (480 - _LEFT) / columns, _CELL_HEIGHT if rows <= 24 else 9.0
    down, across = names
    parts = []
    for shade, opacity in enumerate(_OPACITIES):
        at = np.argwhere(~np.isnan(cells) & (shades == shade)).tolist()
        if at:
            size = f"h{number(width - 1)}v{number(height - 1)}h-{number(width - 1)}z"
            d = "".join(f"M{number(_LEFT + j * width)} {number(_TOP + i * height)}{size}" for i, j in at)
            parts.append(f'<path class="shade-{shade}" d="{d}" fill="{BAD}" fill-opacity="{opacity}"/>')
    small = f' font-size="{number(min(height + 2, 11))}"'
    every = 1 if rows <= 24 else 4
    parts += [_row_name(_TOP + i * height + height * 0.72, down[i], small) for i in range(0, rows, every)]
    for j, name in enumerate(across):
        parts.append(label(_LEFT + (j + 0.5) * width, _TOP - 8, name, "middle", small))
    if width >= 28:
        for i, row in enumerate(texts):
            for j, content in enumerate(row):
                x, y = _LEFT + (j + 0.5) * width, _TOP + i * height + height * 0.72
                parts.append(label(x, y, content, "middle", small) if content else "")
    top = _TOP + rows * height + 8
    for shade, name in enumerate(keys):
        parts.append(rectangle(_LEFT, top + 3, 18, 12, BAD, f' fill-opacity="{_OPACITIES[shade]}"'))
        parts.append(label(_LEFT + 26, top + 14, name))
        top += 19
    return svg_axes.svg(key, title, said, 480, top + 6, "".join(parts))


def _row_name(y: float, name: str, extra: str) -> str:
    """A row's name, shortened to fit left of the cells."""
    return label(_LEFT - 6, y, shorten(one_line(name), _LONGEST_NAME), "end", extra)
