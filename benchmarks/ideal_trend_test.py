"""The fewest minutes of the published 8x A100 matrix if a test that knows the noise detected trends.

    python benchmarks/ideal_trend_test.py

A verdict must wait until rounds distinguish a sound machine from one that falls by 3 % over the limit of rounds. The
test here is Wald's sequential probability ratio test of the slope: no slope against that one, whatever the level. It
knows the noise, that rounds are independent, and the slope. For identically distributed looks it needs the fewest
rounds on average of all tests with the same error rates (Wald and Wolfowitz 1948), and about the fewest here; a rule
that has to estimate the noise needs more. All requirements but efficiencies are assumed to be decided after the
minimum of rounds. An arm ends with the last requirement on it, `ddp@1` with all of them, as in
benchmarks/time_to_verdict.py, which also gives the seconds per round.

A row is a threshold: share of runs in which such ramps pass at noises of a round of 0.3 and 0.6 %, and at that of a
ratio of two arms with 0.3 %; mean rounds of an efficiency and of the last of three; minutes of the matrix.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from reporting import argument_parser, positive_int, table
from time_to_verdict import published_cluster

from pytest_ddpscale.plan.estimate import STARTUP_S, round_seconds, warm_up_seconds
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES
from pytest_ddpscale.simulate.round_noise import FloatArray
from pytest_ddpscale.util.packaged import packaged

NOISE, MOST_NOISE = 0.003, 0.006
LIMIT = PACES["cuda"].rounds
FALL = math.log1p(-0.03)
THRESHOLDS = (0.5, 1.0, 1.25, 1.5, 1.75, 2.0)


def rounds_to_pass(series: FloatArray, noise: float, threshold: float) -> FloatArray:
    """Rounds after which each series counts as steady, at most `LIMIT`, (runs,)."""
    ended = np.full(len(series), float(LIMIT))
    for rounds in range(LIMIT - 1, FEWEST_ROUNDS - 1, -1):
        numbers = np.arange(rounds) - (rounds - 1) / 2
        squares = float(numbers @ numbers)
        falls = series[:, :rounds] @ numbers / squares * (LIMIT - 1)
        error = noise * (LIMIT - 1) / math.sqrt(squares)
        evidence = ((falls - FALL) ** 2 - falls**2) / (2 * error**2)
        ended[evidence >= threshold] = rounds
    return ended


def main() -> int:
    """Run the script."""
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=positive_int, default=20000, help="simulated runs per row (%(default)s)")
    runs, chance = parser.parse_args().runs, np.random.default_rng(0)
    ratio = math.sqrt(2) * NOISE
    ramp, noise = FALL * np.arange(LIMIT) / (LIMIT - 1), chance.standard_normal((runs, 4, LIMIT))
    cluster = published_cluster(packaged("thresholds.yaml"), NOISE)
    speeds = {name: expectation.samples_per_s for name, expectation in cluster.performance.expectations.items()}
    studies = cluster.plan(seed=0).studies
    least_s = STARTUP_S + sum(
        warm_up_seconds(study, speeds) + FEWEST_ROUNDS * round_seconds(study, study.arms, speeds) for study in studies
    )
    weak_s = [round_seconds(study, study.arms[:1], speeds) for study in studies if study.scaling == "weak"]
    rows = []
    for threshold in THRESHOLDS:
        passed = [
            float((rounds_to_pass(ramp + sd * noise[:, 0], sd, threshold) < LIMIT).mean())
            for sd in (NOISE, ratio, MOST_NOISE)
        ]
        efficiencies = NOISE * (noise[:, 1:] - noise[:, :1])
        ended = np.stack([rounds_to_pass(efficiencies[:, arm], ratio, threshold) for arm in range(3)])
        last = ended.max(axis=0)
        blocks = ((ended - FEWEST_ROUNDS).sum(axis=0) + last - FEWEST_ROUNDS).mean()
        minutes = (least_s + blocks * sum(weak_s)) / 60
        told = (f"{threshold:g}", *(f"{share:.1%}" for share in passed), f"{ended.mean():.1f}", f"{last.mean():.1f}")
        rows.append((*told, f"{minutes:.1f}"))
    header = ("threshold", *(f"ramps at {sd:.2%}" for sd in (NOISE, ratio, MOST_NOISE)), "rounds", "last", "minutes")
    print(table(header, rows))
    print(f"\n{FEWEST_ROUNDS} rounds of everything: {least_s / 60:.1f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
