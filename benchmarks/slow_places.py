"""Whether the same slow GPU gets the same verdict wherever it sits, by simulation of a whole 8x A100 node.

    nice -n 15 python benchmarks/slow_places.py --jobs 2 --json slow_places.json
    python benchmarks/slow_places.py --runs 4 --slower 3 --noise 0.6

Every requirement on training is judged on a simulated node that is as fast as published, except for one GPU that is
some per cent slower than the others. A run is `rejected` if a requirement that can reject fails, `incomplete` if none
fails and one is undecided, otherwise `accepted`. Every run has its own noise and order of turns.

The first table has the sound node, the node with all GPUs equally slow, and each size of the fault summed over all
places. The second compares places: the ACCEPTED share at each of them, the points by which the largest exceeds their
mean, and p of a chi-square test of outcome by place. p comes from 9999 permutations, because expected counts are small:
runs of one noise are assigned to the places at random. `both` is the sum of the statistics of all noises, permuted
within each.

Exits with 1 if at any size the test of `both` rejects at 1 %, or the ACCEPTED share of a place, over all noises, lies
more than 10 points above the mean. The level is not divided by the number of sizes, so the six sizes together would
fail by chance in 6 % of all cases.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import count

import numpy as np
from numpy.typing import NDArray
from reporting import argument_parser, keep, positive_int, table
from simulated_session import decide

from pytest_ddpscale.simulate.faults import Faults, parse_faults
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.simulated_cluster import ClusterOptions, SimulatedCluster, open_cluster
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

SKU, WORKLOAD, GPUS = "a100-sxm4-80gb", "resnet152-fp16", 8
CONFIDENCE = 0.95
OUTCOMES = ("accepted", "incomplete", "rejected")
LEVEL = 0.01
MOST_EXCESS_POINTS = 10.0
PERMUTATIONS = 9999
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Cell:
    """Some runs of one kind.

    Attributes:
        noise: of a round, in per cent.
        slower: the slow GPU, in per cent; 0 for a sound node.
        place: its rank; None for a sound node, or where all GPUs are slow.
        first_seed: of its first run.
    """

    noise: float
    slower: float
    place: int | None
    first_seed: int


@dataclass(frozen=True)
class Row:
    """Outcomes of the runs of a cell, and the mean number of rounds of a study."""

    noise: float
    slower: float
    place: int | None
    accepted: int
    incomplete: int
    rejected: int
    mean_rounds: float

    @property
    def counts(self) -> tuple[int, int, int]:
        """In the order of `OUTCOMES`."""
        return self.accepted, self.incomplete, self.rejected


@lru_cache(maxsize=4)
def cluster_of(noise: float) -> SimulatedCluster:
    """The node, with so much noise a round, in per cent."""
    options = ClusterOptions(SKU, gpus=GPUS, round_noise=noise / 100, workloads=(WORKLOAD,))
    return open_cluster(load_thresholds(packaged("thresholds.yaml")), options)


def measure(cell: Cell, runs: int) -> Row:
    """Simulate and judge some runs."""
    cluster = cluster_of(cell.noise)
    slow = range(GPUS) if cell.place is None else (cell.place,)
    texts = [f"slow-gpu:{rank}:{1 + cell.slower / 100}" for rank in slow]
    found: Counter[str] = Counter()
    rounds = []
    for seed in range(cell.first_seed, cell.first_seed + runs):
        plan = cluster.plan(seed=seed, short_blocks=True)
        faults: Faults = parse_faults(texts, plan.layout)
        studies = decide(SimulatedRun(plan, cluster.performance, faults, seed), cluster.cases, CONFIDENCE)
        rounds += [len(study.rounds) for study in studies]
        outcomes = {verdict.outcome for study in studies for verdict in study.verdicts if verdict.severity == "fail"}
        found["rejected" if "failed" in outcomes else "accepted" if outcomes == {"passed"} else "incomplete"] += 1
    counts = {outcome: found[outcome] for outcome in OUTCOMES}
    return Row(cell.noise, cell.slower, cell.place, **counts, mean_rounds=sum(rounds) / len(rounds))


def cells_of(arguments: argparse.Namespace) -> Iterator[Cell]:
    """All cells, with disjoint seeds."""
    seeds = count(step=arguments.runs)
    for noise in arguments.noise:
        yield Cell(noise, 0.0, None, next(seeds))
        yield from (Cell(noise, slower, None, next(seeds)) for slower in arguments.all_slower)
        for slower in arguments.slower:
            yield from (Cell(noise, slower, place, next(seeds)) for place in arguments.places)


def chi_square(tables: IntArray) -> NDArray[np.float64]:
    """Pearson's statistic of each table of counts, (tables, places, outcomes); empty outcomes add nothing."""
    rows, columns = tables.sum(axis=2, keepdims=True), tables.sum(axis=1, keepdims=True)
    expected = rows * columns / np.maximum(1, tables.sum(axis=(1, 2), keepdims=True))
    parts = (tables - expected) ** 2 / np.where(expected > 0, expected, 1.0)
    return np.asarray(parts.sum(axis=(1, 2)))


def permuted(counts: IntArray, chance: np.random.Generator) -> IntArray:
    """Tables of the same runs, dealt to the places at random, (permutations, places, outcomes); `counts` is one."""
    outcomes = np.repeat(np.arange(counts.shape[1]), counts.sum(axis=0))
    dealt = chance.permuted(np.tile(outcomes, (PERMUTATIONS, 1)), axis=1)
    ends = np.cumsum(counts.sum(axis=1))[:-1]
    of_places = np.split(dealt, ends, axis=1)
    return np.stack([np.stack([(of == k).sum(axis=1) for k in range(counts.shape[1])], 1) for of in of_places], 1)


@dataclass(frozen=True)
class Comparison:
    """A size of the fault at all its places.

    Attributes:
        noise: in per cent, or ``both``.
        slower: in per cent.
        shares: of the outcomes over all places, as `OUTCOMES`.
        accepted: share at each place.
        excess_points: of the largest of them over their mean.
        p: of the test that places are alike.
    """

    noise: str
    slower: float
    shares: tuple[float, ...]
    accepted: tuple[float, ...]
    excess_points: float
    p: float

    @property
    def is_refused(self) -> bool:
        """Whether places are not alike."""
        return self.p < LEVEL or self.excess_points > MOST_EXCESS_POINTS


def compare(slower: float, tables: dict[float, IntArray]) -> list[Comparison]:
    """Each noise by itself, and last all of them together.

    Args:
        slower: in per cent.
        tables: counts of outcomes by noise, (places, outcomes).
    """
    chance = np.random.default_rng(0)
    found, of_permuted, of_all = [], np.zeros(PERMUTATIONS), 0.0
    for noise, counts in tables.items():
        statistic, dealt = float(chi_square(counts[np.newaxis])[0]), chi_square(permuted(counts, chance))
        found.append(_comparison(f"{noise:g}%", slower, counts, statistic, dealt))
        of_permuted, of_all = of_permuted + dealt, of_all + statistic
    return [*found, _comparison("both", slower, np.sum(list(tables.values()), axis=0), of_all, of_permuted)]


def _comparison(
    noise: str, slower: float, counts: IntArray, statistic: float, dealt: NDArray[np.float64]
) -> Comparison:
    accepted = counts[:, 0] / counts.sum(axis=1)
    # sums of the same terms in another order differ in their last digits
    p = (1 + np.count_nonzero(dealt >= statistic - 1e-9)) / (1 + len(dealt))
    shares = tuple((counts.sum(axis=0) / counts.sum()).tolist())
    excess = 100 * float(accepted.max() - accepted.mean())
    return Comparison(noise, slower, shares, tuple(accepted.tolist()), excess, float(p))


def compared(rows: Sequence[Row]) -> list[Comparison]:
    """All sizes, in the order in which they were measured."""
    tables: dict[float, dict[float, list[tuple[int, int, int]]]] = {}
    for row in rows:
        if row.place is not None:
            tables.setdefault(row.slower, {}).setdefault(row.noise, []).append(row.counts)
    return [
        one
        for slower, by_noise in tables.items()
        for one in compare(slower, {noise: np.array(counts) for noise, counts in by_noise.items()})
    ]


def rows_table(rows: Sequence[Row]) -> str:
    """The table of results, cell by cell."""
    cells = [
        (f"{row.noise:g}%", f"{row.slower:g}%", _place(row), *map(str, row.counts), f"{row.mean_rounds:.1f}")
        for row in rows
    ]
    return table(("noise", "slower", "rank", *OUTCOMES, "rounds"), cells)


def _place(row: Row) -> str:
    return ("all" if row.slower else "none") if row.place is None else str(row.place)


def comparison_table(comparisons: Sequence[Comparison], places: Sequence[int]) -> str:
    """Whether places are alike."""
    cells = [
        (
            f"{one.slower:g}%", one.noise, *(f"{share:.1%}" for share in one.shares), f"{one.p:.4f}",
            f"{one.excess_points:+.1f}", *(f"{share:.0%}" for share in one.accepted),
        )
        for one in comparisons
    ]  # fmt: skip
    of_places = tuple(f"rank {place}" for place in places)
    return table(("slower", "noise", *OUTCOMES, "p", "excess, points", *of_places), cells)


def main() -> int:
    """Run it."""
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=positive_int, default=60, help="simulated runs a cell (%(default)s)")
    parser.add_argument("--slower", type=float, nargs="*", default=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], help="per cent")
    parser.add_argument("--all-slower", type=float, nargs="*", default=[2.0], help="slowness of all GPUs, per cent")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.3, 0.6], help="noise of a round, per cent")
    parser.add_argument("--places", type=int, nargs="+", default=list(range(GPUS)), help="ranks (all)")
    parser.add_argument("--jobs", type=positive_int, default=1, help="processes (%(default)s)")
    arguments = parser.parse_args()
    cells = list(cells_of(arguments))
    with ProcessPoolExecutor(arguments.jobs) as pool:
        rows = list(pool.map(measure, cells, [arguments.runs] * len(cells)))
    comparisons = compared(rows)
    print(rows_table(rows))
    print(f"\naccepted by place, and whether places are alike\n{comparison_table(comparisons, arguments.places)}")
    result = {"runs": arguments.runs, "rows": [asdict(row) for row in rows]}
    keep(arguments.json, "slow_places", result | {"comparisons": [asdict(one) for one in comparisons]})
    return int(any(one.is_refused for one in comparisons if one.noise == "both"))


if __name__ == "__main__":
    sys.exit(main())
