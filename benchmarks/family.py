"""How often a machine that keeps all its bounds is rejected.

    python benchmarks/family.py --json family.json
    python benchmarks/family.py --runs 200

First table: one requirement exactly on its bound: share of runs in which it fails, by confidence and by the correlation
between rounds, and that share relative to the level, 1 - confidence.

Second table: a machine exactly on the bounds of many requirements, 0.3 % noise per round. Requirements share noise, so
any two correlate by 0, 0.5 or 0.9; successive rounds correlate by 0, by 0.5, the maximum that the method allows for, or
by 0.7, which exceeds it. Like a real run it judges after each round from the eighth to the limit, and stops measuring a
requirement once it is decided.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from reporting import Share, argument_parser, keep, positive_int, table

from pytest_ddpscale.judge.stats import estimate
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES
from pytest_ddpscale.run.verdicts import Verdict, VerdictOutcome
from pytest_ddpscale.thresholds.model import Requirement, Source
from pytest_ddpscale.util.arrays import FloatArray

CONFIDENCE = 0.95
NOISE = 0.003
BETWEEN_ROUNDS = (0.0, 0.5)
BEYOND = 0.7
BETWEEN_REQUIREMENTS = (0.0, 0.5, 0.9)
CONFIDENCES = (0.9, 0.95, 0.99)
REQUIREMENT = Requirement("throughput_per_gpu", 1.0, Source(measured=1.0, margin_pct=0.0), workload="drawn")


def noise(chance: np.random.Generator, requirements: int, limit: int, shared: float, remembered: float) -> FloatArray:
    """Gaussian values of variance 1, (requirements, rounds).

    Args:
        chance: what is drawn from.
        requirements: how many series.
        limit: rounds.
        shared: correlation between any two requirements in one round.
        remembered: correlation between successive rounds of one requirement, AR(1).
    """
    own, common = chance.standard_normal((requirements, limit)), chance.standard_normal(limit)
    fresh = np.sqrt(shared) * common + np.sqrt(1 - shared) * own
    values: FloatArray = fresh.copy()
    for number in range(1, limit):
        values[:, number] = remembered * values[:, number - 1] + np.sqrt(1 - remembered**2) * fresh[:, number]
    return values


def verdict_of(outcome: VerdictOutcome, name: str, rounds: int = 0) -> Verdict:
    """A verdict on a simulated requirement, without values."""
    return Verdict(name, "throughput_per_gpu", "drawn", 1, "fail", {"at_least": 1.0}, outcome, rounds=rounds)


def run(logs: FloatArray, confidence: float) -> list[Verdict]:
    """Judge after each round; a decided requirement is no longer measured.

    Args:
        logs: of value over bound, (requirements, rounds).
        confidence: of the intervals.
    """
    limit, going_on = logs.shape[1], np.arange(len(logs))
    found = [verdict_of("inconclusive", str(row), limit) for row in range(len(logs))]
    for rounds in range(FEWEST_ROUNDS, limit + 1):
        asked = going_on.tolist()
        codes, _ = estimate(np.exp(logs[asked, :rounds]), "factors", confidence, alike=1).against(REQUIREMENT.bound, 1)
        for row, code in zip(asked, codes.tolist(), strict=True):
            if code:
                found[row] = verdict_of("passed" if code > 0 else "failed", str(row), rounds)
        going_on = going_on[[found[row].outcome == "inconclusive" for row in going_on.tolist()]]
        if not len(going_on):
            break
    return found


def is_rejected(verdicts: Sequence[Verdict]) -> bool:
    """Whether a machine is rejected."""
    return any(one.outcome == "failed" for one in verdicts)


@dataclass(frozen=True)
class Alone:
    """One requirement on its bound: share of runs in which it fails."""

    confidence: float
    between_rounds: float
    failed: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class OnAllBounds:
    """A machine exactly on all its bounds: share of runs in which it is rejected."""

    between_rounds: float
    between_requirements: float
    rejected: float
    interval: tuple[float, float]


def alone_on_the_bound(runs: int, limit: int, seed: int) -> list[Alone]:
    """The first table."""
    found = []
    for confidence in CONFIDENCES:
        for remembered in BETWEEN_ROUNDS:
            logs = NOISE * noise(np.random.default_rng([seed, int(10 * remembered)]), runs, limit, 0.0, remembered)
            failed = sum(one.outcome == "failed" for one in run(logs, confidence))
            found.append(Alone(confidence, remembered, failed / runs, Share(failed, runs).interval))
    return found


def on_all_bounds(
    runs: int, requirements: int, limit: int, seed: int, between_rounds: float, between_requirements: float
) -> OnAllBounds:
    """One row of the second table."""
    count = 0
    for number in range(runs):
        logs = noise(np.random.default_rng([seed, number]), requirements, limit, between_requirements, between_rounds)
        count += is_rejected(run(NOISE * logs, CONFIDENCE))
    share = Share(count, runs)
    return OnAllBounds(between_rounds, between_requirements, share.value, share.interval)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=positive_int, default=1000, help="simulated runs a row (%(default)s)")
    parser.add_argument(
        "--requirements", type=positive_int, default=84, help="requirements that can reject (%(default)s)"
    )
    parser.add_argument("--limit", type=positive_int, default=PACES["cuda"].rounds, help="rounds (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> int:
    """Run the script. Returns its exit code: 1 if one requirement fails more often than its confidence allows."""
    given = parse_arguments()
    alone = alone_on_the_bound(20 * given.runs, given.limit, given.seed)
    print(f"one requirement on its bound, {20 * given.runs} runs, looks after rounds {FEWEST_ROUNDS} … {given.limit}")
    rows = [
        (f"{r.confidence:.0%}", f"{r.between_rounds:.1f}", f"{r.failed:.2%}", _span(r.interval),
         f"{r.failed / (1 - r.confidence):.3f}")
        for r in alone
    ]  # fmt: skip
    print(table(("confidence", "ρ of rounds", "fails", "95 % interval", "÷ level"), rows))
    machines = [
        on_all_bounds(given.runs, given.requirements, given.limit, given.seed, rounds, requirements)
        for rounds in (*BETWEEN_ROUNDS, BEYOND)
        for requirements in BETWEEN_REQUIREMENTS
    ]
    print(f"\na machine exactly on all {given.requirements} bounds, {given.runs} runs a row")
    shares = [
        (f"{r.between_rounds:.1f}", f"{r.between_requirements:.1f}", f"{r.rejected:.1%}", _span(r.interval))
        for r in machines
    ]
    print(table(("ρ of rounds", "of requirements", "rejected", "95 % interval"), shares))
    keep(given.json, "family", {"alone": [asdict(r) for r in alone], "on_the_bounds": [asdict(r) for r in machines]})
    return int(any(r.interval[0] > 1 - r.confidence for r in alone))


def _span(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.2%} … {interval[1]:.2%}"


if __name__ == "__main__":
    sys.exit(main())
