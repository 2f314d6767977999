"""Width and coverage of intervals when measuring stops, by simulation.

    python benchmarks/width.py --json width.json
    python benchmarks/width.py --runs 200

First table: half of the interval after a number of rounds: its median over the runs and the half-width that 80 % of
them reach, in standard deviations of a round, and the median relative to the value.

Second table: the interval printed at the end of a run. A run is judged after each round from the eighth to the limit
and stops once the bound is decided. The truth lies a margin above the bound. Covered: share of runs whose printed
interval contains the truth.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from reporting import Share, argument_parser, keep, positive_int, table

from pytest_ddpscale.judge.estimating import estimate_of
from pytest_ddpscale.judge.intervals import Estimate
from pytest_ddpscale.judge.sequential import EProcesses
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES
from pytest_ddpscale.simulate.round_noise import FloatArray

CONFIDENCE = 0.95
ROUNDS = (5, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32)
NOISES = (0.003, 0.006, 0.02)
MARGINS = (0.01, 0.02, 0.05)
CORRELATIONS = (0.0, 0.5)


@dataclass(frozen=True)
class Width:
    """Half of an interval after some rounds, in standard deviations of a round.

    Attributes:
        rounds: after which.
        median: over the runs.
        most: of 80 % of the runs.
    """

    rounds: int
    median: float
    most: float


@dataclass(frozen=True)
class Stop:
    """Printed results of runs that end with the decision.

    Attributes:
        correlation: of successive rounds.
        noise: relative standard deviation of a round.
        margin: of the truth over the bound, relative.
        rounds: mean.
        half_width: of the printed interval, relative to the value; median.
        decided: share of runs that ended with a decision.
        covered: share of runs whose interval contains the truth.
        covered_interval: of that share, 95 %.
    """

    correlation: float
    noise: float
    margin: float
    rounds: float
    half_width: float
    decided: float
    covered: float
    covered_interval: tuple[float, float]


@dataclass(frozen=True)
class Look:
    """Interval and decision after a number of rounds, of ratios to the bound."""

    rounds: int
    estimate: Estimate

    @property
    def decision(self) -> int:
        """1 above the bound, -1 below, 0 undecided."""
        low, high = self.estimate.interval
        return 1 if low >= 1 else -1 if high < 1 else 0

    @property
    def half_width(self) -> float:
        """The larger half of the interval, relative to the value."""
        value, (low, high) = self.estimate
        return max(value - low, high - value) / value


def widths(runs: int, seed: int) -> list[Width]:
    """The first table."""
    series: FloatArray = np.random.default_rng(seed).standard_normal((runs, max(ROUNDS)))
    found = []
    for rounds in ROUNDS:
        low, high = EProcesses(series[:, :rounds]).intervals(CONFIDENCE).T
        median, most = np.quantile((high - low) / 2, (0.5, 0.8)).tolist()
        found.append(Width(rounds, median, most))
    return found


def noise_of(chance: random.Random, correlation: float, rounds: int) -> list[float]:
    """A stationary AR(1) series of Gaussian noise with variance 1."""
    values = [chance.gauss(0, 1)]
    while len(values) < rounds:
        values.append(correlation * values[-1] + math.sqrt(1 - correlation**2) * chance.gauss(0, 1))
    return values


def looks(logs: Sequence[float]) -> Iterator[Look]:
    """A look after each round, from the minimum for a decision on."""
    values = np.exp(logs)
    for rounds in range(FEWEST_ROUNDS, len(logs) + 1):
        found = estimate_of(values[:rounds], "factors", CONFIDENCE)
        if found.interval is not None:
            yield Look(rounds, Estimate(found.value, found.interval))


def stop(correlation: float, noise: float, margin: float, runs: int, limit: int, seed: int) -> Stop:
    """Results of runs that stop at the first look with a decision, or at the limit."""
    chance = random.Random(f"{seed}/{correlation}/{noise}/{margin}")
    ends = []
    for _ in range(runs):
        logs = [math.log1p(margin) + noise * value for value in noise_of(chance, correlation, limit)]
        for look in looks(logs):
            if look.decision:
                break
        ends.append(look)
    covered = sum(end.estimate.interval[0] <= 1 + margin <= end.estimate.interval[1] for end in ends)
    return Stop(
        correlation, noise, margin,
        rounds=statistics.fmean(end.rounds for end in ends),
        half_width=statistics.median(end.half_width for end in ends),
        decided=sum(end.decision != 0 for end in ends) / runs,
        covered=covered / runs,
        covered_interval=Share(covered, runs).interval,
    )  # fmt: skip


def show_widths(found: Sequence[Width]) -> None:
    """Print the first table."""
    rows = [
        (str(one.rounds), f"{one.median:.2f}", f"{one.most:.2f}", *(f"± {one.median * noise:.2%}" for noise in NOISES))
        for one in found
    ]
    columns = ("rounds", "median, σ", "80 %, σ", *(f"median at {noise:.1%}" for noise in NOISES))
    print(table(columns, rows))


def show_stops(found: Sequence[Stop]) -> None:
    """Print the second table."""
    rows = [
        (
            f"{one.correlation:.1f}", f"{one.noise:.1%}", f"{one.margin:.0%}", f"{one.rounds:.1f}",
            f"± {one.half_width:.2%}", f"{one.half_width / one.noise:.2f}", f"{one.decided:.0%}", f"{one.covered:.1%}",
            f"{one.covered_interval[0]:.1%} … {one.covered_interval[1]:.1%}",
        )
        for one in found
    ]  # fmt: skip
    columns = ("ρ", "noise", "margin", "rounds", "half-width", "σ", "decided", "covered", "95 % interval")
    print(table(columns, rows))


def main() -> int:
    """Run the script. Returns its exit code: 1 if intervals contain the truth more rarely than promised."""
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=positive_int, default=1000, help="simulated runs a row (%(default)s)")
    parser.add_argument("--limit", type=positive_int, default=PACES["cuda"].rounds, help="rounds (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    by_rounds = widths(arguments.runs, arguments.seed)
    show_widths(by_rounds)
    print()
    at_stop = [
        stop(correlation, noise, margin, arguments.runs, arguments.limit, arguments.seed)
        for correlation in CORRELATIONS
        for noise in NOISES
        for margin in MARGINS
    ]
    show_stops(at_stop)
    print(f"\nexpected: at least {CONFIDENCE:.0%} covered in each row")
    keep(arguments.json, "width", {"by_rounds": list(map(asdict, by_rounds)), "at_stop": list(map(asdict, at_stop))})
    return int(any(one.covered_interval[1] < CONFIDENCE for one in at_stop))


if __name__ == "__main__":
    sys.exit(main())
