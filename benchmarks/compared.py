"""Our verdict on a node beside those of other procedures, in one table from one simulation.

    python benchmarks/compared.py --json compared.json
    python benchmarks/compared.py --runs 40 --fault-runs 20 --noises "0.3 %"

A simulated 8x A100 node, as fast as published except for its fault, trains ResNet-152 in fp16; `compared_procedures.py`
defines the procedures. All see the same node: the same noise, the same spread between GPUs, the same fault, with a slow
GPU at a random place. Each decides whether to accept the node.

The first table has, for each noise: sound nodes rejected or undecided; minutes of machine time; shares of nodes with
some faults that are accepted; the smallest fault that, with every larger one, is rejected in 95 % of the runs. The
second has accepted and rejected nodes by size of the fault. A link's fault is the share of its bandwidth that is left:
at 512 images per GPU, training hides most of a loss.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from compared_procedures import GPUS, Node, Outcomes, Superbench, all_procedures
from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.simulate.simulated_cluster import ClusterOptions, SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.spread import NodeSpread
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

SKU, WORKLOAD = "a100-sxm4-80gb", "resnet152-fp16"
NOISES: dict[str, dict[str, Any]] = {
    "0.3 %": {},
    "0.6 %": {"round_noise": 0.006},
    "0.3 %, AR(1) 0.5": {"correlation": 0.5},
    "0.3 %, 5 % hiccups": {"hiccups": 0.05},
    "0.3 %, GPUs 1 % apart": {"spread": NodeSpread(gpu_sd=0.01)},
}
# Sizes from small to large: per cent slower, and per cent of the bandwidth left.
ONE_GPU, ALL_GPUS, LINK = "1 GPU", "all", "link"
SIZES: dict[str, tuple[float, ...]] = {
    ONE_GPU: (1, 2, 3, 4, 5, 6, 8),
    ALL_GPUS: (2, 3, 4, 5, 6, 8),
    LINK: (1, 0.6, 0.5, 0.4),
}
# Whose acceptance the first table counts.
WRONG_PASSES = ((ONE_GPU, 3), (ONE_GPU, 5), (ALL_GPUS, 3), (ALL_GPUS, 6), (LINK, 0.4))
FOUND_IN = 0.95
FLEET = 20  # sound nodes that SuperBench's criteria are learned from
FLEET_SEED = 10**6


@dataclass(frozen=True)
class Cell:
    """A procedure's results on the runs with one fault.

    Attributes:
        noise: a key of `NOISES`.
        procedure: whose.
        kind: of the fault, a key of `SIZES`; empty for a sound node.
        size: of it.
        accepted: share of the runs.
        rejected: share of the runs.
        minutes: of machine time, their mean.
    """

    noise: str
    procedure: str
    kind: str
    size: float
    accepted: float
    rejected: float
    minutes: float


def cluster_of(noise: str) -> SimulatedCluster:
    """A node with that noise."""
    options = ClusterOptions(SKU, gpus=GPUS, workloads=(WORKLOAD,), **NOISES[noise])
    return open_cluster(load_thresholds(packaged("thresholds.yaml")), options)


def faults_of(kind: str, size: float, seed: int) -> tuple[str, ...]:
    """Faults in the form of `--fault`."""
    place = random.Random(seed).randrange(GPUS)
    if kind == LINK:
        return (f"slow-link:0:{size / 100}",)
    return (f"slow-gpu:{place if kind == ONE_GPU else 'all'}:{1 + size / 100}",) if kind else ()


def measure(noise: str, runs: int, fault_runs: int) -> list[Cell]:
    """All procedures under one noise: on sound nodes, and with each fault."""
    cluster = cluster_of(noise)
    superbench = Superbench.learned([Node(cluster, (), FLEET_SEED + number) for number in range(FLEET)])
    cells: list[Cell] = []
    for kind, size in [("", 0.0), *((kind, size) for kind, sizes in SIZES.items() for size in sizes)]:
        nodes = (Node(cluster, faults_of(kind, size, seed), seed) for seed in range(fault_runs if kind else runs))
        cells += cells_of(noise, kind, size, [all_procedures(node, superbench) for node in nodes])
    return cells


def cells_of(noise: str, kind: str, size: float, runs: Sequence[Outcomes]) -> list[Cell]:
    """Shares of the runs, a cell for each procedure."""
    cells = []
    for procedure in runs[0]:
        said = Counter(run[procedure].decision for run in runs)
        minutes = statistics.fmean(run[procedure].seconds for run in runs) / 60
        shares = said["accepted"] / len(runs), said["rejected"] / len(runs)
        cells.append(Cell(noise, procedure, kind, size, *shares, minutes))
    return cells


def smallest_found(cells: Iterable[Cell], kind: str) -> float | None:
    """The smallest size from which every fault is rejected often enough; None if not even the largest is."""
    found = None
    rejected = {cell.size: cell.rejected for cell in cells if cell.kind == kind}
    for size in reversed(SIZES[kind]):
        if rejected[size] < FOUND_IN:
            break
        found = size
    return found


def by_procedure(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """The cells of each procedure."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.procedure, []).append(cell)
    return found


def errors_table(cells: Sequence[Cell]) -> str:
    """Under one noise: errors, minutes, and the smallest faults found."""
    header = (
        "", "sound: rejected", "undecided", "minutes",
        *(_fault(*fault) for fault in WRONG_PASSES), *(f"found: {kind}" for kind in SIZES),
    )  # fmt: skip
    rows = []
    for procedure, own in by_procedure(cells).items():
        of = {(cell.kind, cell.size): cell for cell in own}
        sound = of["", 0.0]
        undecided = _per_cent(max(0.0, 1 - sound.accepted - sound.rejected))  # no -0 % of rounding
        passes = (_per_cent(of[fault].accepted) for fault in WRONG_PASSES)
        found = (_found(smallest_found(own, kind), kind) for kind in SIZES)
        rows.append((procedure, _per_cent(sound.rejected), undecided, f"{sound.minutes:.1f}", *passes, *found))
    return table(header, rows)


def sizes_table(cells: Sequence[Cell], kind: str) -> str:
    """Under one noise: accepted / rejected, in per cent, by size of one kind of fault."""
    rows = []
    for procedure, own in by_procedure(cells).items():
        of: Mapping[float, Cell] = {cell.size: cell for cell in own if cell.kind == kind}
        shares = (f"{100 * of[size].accepted:.0f} / {100 * of[size].rejected:.0f}" for size in SIZES[kind])
        rows.append((procedure, *shares))
    return table(("", *(_fault(kind, size) for size in SIZES[kind])), rows)


def _fault(kind: str, size: float) -> str:
    return f"{kind} {_size(kind, size)}"


def _size(kind: str, size: float) -> str:
    return f"{size:g} % left" if kind == LINK else f"{size:g} %"


def _found(size: float | None, kind: str) -> str:
    return "none" if size is None else _size(kind, size)


def _per_cent(share: float) -> str:
    return f"{100 * share:.0f} %"


def main() -> int:
    """Run it."""
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=positive_int, default=200, help="simulated sound nodes (%(default)s)")
    parser.add_argument("--fault-runs", type=positive_int, default=40, help="nodes with each fault (%(default)s)")
    parser.add_argument("--noises", nargs="+", choices=NOISES, default=list(NOISES), metavar="NOISE",
        help="some of: %(choices)s (all)")  # fmt: skip
    arguments = parser.parse_args()
    cells: list[Cell] = []
    for noise in arguments.noises:
        print(f"simulating {noise} …", file=sys.stderr)
        found = measure(noise, arguments.runs, arguments.fault_runs)
        print(f"\nNoise of a round: {noise}. Of faulty nodes: share accepted, smallest fault rejected in 95 % of runs.")
        print(f"\n{errors_table(found)}\n\nAccepted / rejected, per cent:")
        for kind in SIZES:
            print(f"\n{sizes_table(found, kind)}", flush=True)
        cells += found
    result = {"runs": arguments.runs, "fault_runs": arguments.fault_runs, "cells": [asdict(cell) for cell in cells]}
    keep(arguments.json, "compared", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
