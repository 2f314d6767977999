"""Width of intervals by rounds, by simulation.

    python benchmarks/width.py --json width.json
    python benchmarks/width.py --runs 200

Half of the interval after a number of rounds: its median over the runs and the half-width that 80 % of them reach, in
standard deviations of a round, and the median relative to the value. benchmarks/wrong_verdicts.py has the coverage of
the interval at the end of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.judge.stats import intervals
from pytest_ddpscale.util.arrays import FloatArray

CONFIDENCE = 0.95
ROUNDS = (5, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32)
NOISES = (0.003, 0.006, 0.02)


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


def widths(runs: int, seed: int) -> list[Width]:
    """After each number of rounds."""
    series: FloatArray = np.random.default_rng(seed).standard_normal((runs, max(ROUNDS)))
    found = []
    for rounds in ROUNDS:
        _, low, high = intervals(series[:, :rounds], CONFIDENCE)
        median, most = np.quantile((high - low) / 2, (0.5, 0.8)).tolist()
        found.append(Width(rounds, median, most))
    return found


def show_widths(found: Sequence[Width]) -> None:
    """Print the table."""
    rows = [
        (str(one.rounds), f"{one.median:.2f}", f"{one.most:.2f}", *(f"± {one.median * noise:.2%}" for noise in NOISES))
        for one in found
    ]
    columns = ("rounds", "median, σ", "80 %, σ", *(f"median at {noise:.1%}" for noise in NOISES))
    print(table(columns, rows))


def main() -> None:
    """Run the script."""
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=positive_int, default=1000, help="simulated runs (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found = widths(arguments.runs, arguments.seed)
    show_widths(found)
    keep(arguments.json, "width", {"by_rounds": list(map(asdict, found))})


if __name__ == "__main__":
    main()
