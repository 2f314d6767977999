"""How often the verdicts of this project would be wrong, and how soon they come, by simulation.

    python benchmarks/wrong_verdicts.py --json wrong_verdicts.json
    python benchmarks/wrong_verdicts.py --runs 200

First table: the true value lies exactly on the bound, so that every decision is wrong, whichever way. A run looks after
each round from the eighth to the limit and stops at the first decision. Noise: Gaussian; Student-t with 3 degrees of
freedom; each independent and as AR(1) with correlation ρ between rounds. Beside the verdicts of this project: a
group-sequential t-test calibrated for 5 % with independent noise (0.8 % at each look), which is what one would write
first.

Second table: the true value lies a margin away from the bound, with the independent Gaussian noise of a GPU (0.3 % a
round) and of a shared CPU (2 %): share of runs decided rightly and wrongly, mean rounds. Beside it the fixed design
that is sized for a margin of one standard deviation: 16 rounds (two-sided α = 0.05, power 0.95).
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.plan.per_round import Sample
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES
from pytest_ddpscale.simulate.power import Share
from pytest_ddpscale.stats.intervals import t_quantile
from pytest_ddpscale.verdict.estimating import estimate_of

CONFIDENCE = 0.95
NAIVE_ALPHA_PER_LOOK = 0.008
FIXED_ROUNDS = 16
CORRELATIONS = (0.0, 0.3, 0.5)
MARGINS = (0.02, 0.05, 0.10)
NOISES = {"GPU": 0.003, "shared CPU": 0.02}
# Takes logarithms of value over bound, one a round; gives 1 for above the bound, -1 for below, 0 for undecided.
Design = Callable[[Sequence[float]], int]


@dataclass(frozen=True)
class Ending:
    """How one simulated run ended.

    Attributes:
        decision: 1 above the bound, -1 below, 0 undecided.
        rounds: after which it stopped.
    """

    decision: int
    rounds: int


def noise(chance: random.Random, tail: str, correlation: float, rounds: int) -> list[float]:
    """A stationary AR(1) series with variance 1, of Gaussian or Student-t (3 degrees) innovations."""
    values: list[float] = []
    for _ in range(rounds):
        fresh = chance.gauss(0, 1) if tail == "Gaussian" else _student_3(chance)
        values.append(correlation * values[-1] + math.sqrt(1 - correlation**2) * fresh if values else fresh)
    return values


def _student_3(chance: random.Random) -> float:
    """Student-t with 3 degrees of freedom, scaled to variance 1."""
    chi_square = sum(chance.gauss(0, 1) ** 2 for _ in range(3))
    return chance.gauss(0, 1) / math.sqrt(chi_square / 3) / math.sqrt(3)


def our_design(logs: Sequence[float]) -> int:
    """The verdict of this project on ratios to the bound."""
    samples = [Sample(math.exp(value)) for value in logs]
    estimate = estimate_of(samples, "factors", CONFIDENCE).estimate
    if estimate is None:
        return 0
    low, high = estimate.interval
    return 1 if low >= 1 else -1 if high < 1 else 0


def naive_design(logs: Sequence[float]) -> int:
    """A t-test at every look, at a level that would be right for independent rounds."""
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    far = abs(mean) > t_quantile(1 - NAIVE_ALPHA_PER_LOOK / 2, len(logs) - 1) * error
    return (1 if mean > 0 else -1) if far else 0


def run(design: Design, logs: Sequence[float]) -> Ending:
    """Look after each round until decided."""
    for rounds in range(FEWEST_ROUNDS, len(logs) + 1):
        decision = design(logs[:rounds])
        if decision:
            return Ending(decision, rounds)
    return Ending(0, len(logs))


@dataclass(frozen=True)
class OnTheBound:
    """Wrong verdicts where every decision is wrong.

    Attributes:
        design: whose.
        tail: of the noise.
        correlation: between rounds.
        wrong: share of runs that decided.
        interval: of it, 95 %.
    """

    design: str
    tail: str
    correlation: float
    wrong: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class OffTheBound:
    """Verdicts where the truth is a margin away from the bound.

    Attributes:
        noise: whose.
        margin: true distance from the bound, relative.
        right: share of runs decided rightly.
        wrong: share of runs decided wrongly.
        mean_rounds: that a run took.
    """

    noise: str
    margin: float
    right: float
    wrong: float
    mean_rounds: float


def on_the_bound(runs: int, limit: int, seed: int) -> list[OnTheBound]:
    """The first table."""
    found = []
    for name, design in (("e-process", our_design), ("naive t-test", naive_design)):
        for tail in ("Gaussian", "Student-t, 3 degrees"):
            for correlation in CORRELATIONS:
                chance = random.Random(f"{seed}/{tail}/{correlation}")
                series = ([0.02 * v for v in noise(chance, tail, correlation, limit)] for _ in range(runs))
                wrong = sum(run(design, logs).decision != 0 for logs in series)
                found.append(OnTheBound(name, tail, correlation, wrong / runs, Share(wrong, runs).interval))
    return found


def off_the_bound(runs: int, limit: int, seed: int) -> list[OffTheBound]:
    """The second table."""
    found = []
    for source, deviation in NOISES.items():
        for margin in MARGINS:
            chance = random.Random(f"{seed}/{source}/{margin}")
            endings = [
                run(our_design, [math.log1p(margin) + deviation * v for v in noise(chance, "Gaussian", 0.0, limit)])
                for _ in range(runs)
            ]
            decisions = [ending.decision for ending in endings]
            rounds = statistics.fmean(ending.rounds for ending in endings)
            right, wrong = decisions.count(1) / runs, decisions.count(-1) / runs
            found.append(OffTheBound(source, margin, right, wrong, rounds))
    return found


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=positive_int, default=2000, help="simulated runs a row (%(default)s)")
    parser.add_argument("--limit", type=positive_int, default=PACES["cuda"].rounds, help="rounds (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> int:
    """Run the script. Returns its exit code: 1 if verdicts of this project are wrong more often than they say."""
    arguments = parse_arguments()
    on = on_the_bound(arguments.runs, arguments.limit, arguments.seed)
    rows = [
        (r.design, r.tail, f"{r.correlation:.1f}", f"{r.wrong:.2%}", f"{r.interval[0]:.2%} … {r.interval[1]:.2%}")
        for r in on
    ]
    print(f"truth on the bound, {arguments.runs} runs a row, looks after rounds {FEWEST_ROUNDS} … {arguments.limit}")
    print(table(("design", "noise", "ρ", "wrong", "95 % interval"), rows))
    print(f"expected of the e-process: at most {1 - CONFIDENCE:.0%}\n")
    off = off_the_bound(arguments.runs, arguments.limit, arguments.seed)
    _print_off(off)
    keep(arguments.json, "wrong_verdicts", {"on_the_bound": [asdict(r) for r in on], "off": [asdict(r) for r in off]})
    return int(any(r.interval[0] > 1 - CONFIDENCE for r in on if r.design == "e-process"))


def _print_off(off: Sequence[OffTheBound]) -> None:
    rows = [
        (r.noise, f"{r.margin:.0%}", f"{r.right:.1%}", f"{r.wrong:.2%}", f"{r.mean_rounds:.1f}", str(FIXED_ROUNDS))
        for r in off
    ]
    print(table(("noise of", "true margin", "decided rightly", "wrongly", "mean rounds", "fixed design"), rows))
    mean = statistics.fmean(r.mean_rounds for r in off)
    print(f"mean over all rows: {mean:.1f} rounds, {FIXED_ROUNDS / mean:.2f} x fewer than the fixed design")


if __name__ == "__main__":
    sys.exit(main())
