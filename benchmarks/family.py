"""How often a machine that keeps all its bounds is rejected, with and without --ddp-family-confidence.

    python benchmarks/family.py --json family.json
    python benchmarks/family.py --runs 200

First table: one requirement exactly on its bound: share of runs in which it fails, by confidence and by the correlation
between rounds, and that share relative to the level, 1 - confidence.

Second table: a machine exactly on the bounds of many requirements, 0.3 % noise per round. Requirements share noise, so
any two correlate by 0, 0.5 or 0.9; successive rounds correlate by 0, by 0.5, the maximum that the method allows for, or
by 0.7, which exceeds it. Like a real run it judges after each round from the eighth to the limit, and stops measuring a
requirement once it is decided; with the option a failure is decided once it would count whatever the others give.

Third table: the same machine, but one requirement is missed by a number of standard deviations of a round: share of
runs rejected, and rounds of that requirement.

Fourth table: simulated A100 nodes of eight GPUs, of which one is slow, with the shipped requirements on ResNet-152
(fp16): share of runs rejected.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from reporting import Share, argument_parser, keep, positive_int, table
from simulated_session import decide

from pytest_ddpscale.plan.per_round import Sample
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES
from pytest_ddpscale.results.verdicts import Verdict, VerdictOutcome
from pytest_ddpscale.simulate.faults import Faults, parse_fault
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.simulated_cluster import ClusterOptions, open_cluster
from pytest_ddpscale.stats.sequential import EProcesses, FloatArray
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.model import Requirement, Source
from pytest_ddpscale.util.packaged import packaged
from pytest_ddpscale.verdict.bounds import against_bound
from pytest_ddpscale.verdict.estimating import estimate_of
from pytest_ddpscale.verdict.family import ANY_P_VALUE, is_open, with_family_confidence

CONFIDENCE = FAMILY_CONFIDENCE = 0.95
NOISE = 0.003
BETWEEN_ROUNDS = (0.0, 0.5)
BEYOND = 0.7
BETWEEN_REQUIREMENTS = (0.0, 0.5, 0.9)
CONFIDENCES = (0.9, 0.95, 0.99)
MISSES = (0.5, 1.0, 2.0, 3.0)
SLOW = (1.03, 1.06)
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


def judged(logs: FloatArray, name: str, confidence: float) -> Verdict:
    """The verdict of this project on logarithms of value over bound, one a round."""
    values = np.exp(logs)
    blank = verdict_of("not_measured", name)
    samples = [Sample(value) for value in values.tolist()]
    return against_bound(blank, REQUIREMENT, values, lambda: estimate_of(samples, "factors", confidence))


def run(logs: FloatArray, confidence: float, level: float = ANY_P_VALUE) -> list[Verdict]:
    """Judge after each round; a decided requirement is no longer measured.

    Args:
        logs: of value over bound, (requirements, rounds).
        confidence: of the intervals.
        level: p value from which on a failure is decided.
    """
    limit, going_on = logs.shape[1], np.arange(len(logs))
    found = [verdict_of("inconclusive", str(row), limit) for row in range(len(logs))]
    for rounds in range(FEWEST_ROUNDS, limit + 1):
        # Only where the bound is outside the interval anything may be decided: the judge is slower to ask.
        against = EProcesses(logs[going_on, :rounds]).log_evidence(np.zeros(len(going_on)))
        asked = going_on[against >= -np.log(1 - confidence) - 1e-6].tolist()
        verdicts = {row: judged(logs[row, :rounds], str(row), confidence) for row in asked}
        for row, verdict in verdicts.items():
            if not is_open(verdict, level) or rounds == limit:
                found[row] = verdict
        going_on = np.array([row for row in going_on if row not in verdicts or is_open(verdicts[row], level)])
        if not len(going_on):
            break
    return found


def run_both(logs: FloatArray, confidence: float, level: float) -> tuple[list[Verdict], list[Verdict]]:
    """Results of `run` without and with the level, which only prolongs failed requirements."""
    by_itself = run(logs, confidence)
    failed = [row for row, verdict in enumerate(by_itself) if verdict.outcome == "failed"]
    longer = dict(zip(failed, run(logs[failed], confidence, level), strict=True)) if failed else {}
    both = [replace(longer[row], id=str(row)) if row in longer else one for row, one in enumerate(by_itself)]
    return by_itself, both


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
class Family:
    """A machine on its bounds, or with one requirement missed by `missed` standard deviations of a round."""

    between_rounds: float
    between_requirements: float
    missed: float
    alone: float
    alone_interval: tuple[float, float]
    together: float
    together_interval: tuple[float, float]
    alone_rounds: float
    together_rounds: float


@dataclass(frozen=True)
class SlowGpu:
    """A simulated node with one slow GPU: share of runs rejected."""

    slowness: float
    alone: float
    together: float


def alone_on_the_bound(runs: int, limit: int, seed: int) -> list[Alone]:
    """The first table."""
    found = []
    for confidence in CONFIDENCES:
        for remembered in BETWEEN_ROUNDS:
            logs = NOISE * noise(np.random.default_rng([seed, int(10 * remembered)]), runs, limit, 0.0, remembered)
            failed = sum(one.outcome == "failed" for one in run(logs, confidence))
            found.append(Alone(confidence, remembered, failed / runs, Share(failed, runs).interval))
    return found


def together(
    runs: int, requirements: int, limit: int, seed: int, between_rounds: float, between_requirements: float,
    missed: float = 0.0,
) -> Family:  # fmt: skip
    """One row of the second or third table."""
    counts, rounds = [0, 0], [list[int](), list[int]()]
    level = (1 - FAMILY_CONFIDENCE) / requirements
    for number in range(runs):
        logs = noise(np.random.default_rng([seed, number]), requirements, limit, between_requirements, between_rounds)
        logs[0] -= missed
        by_itself, longer = run_both(NOISE * logs, CONFIDENCE, level)
        for which, verdicts in enumerate((by_itself, with_family_confidence(longer, FAMILY_CONFIDENCE))):
            counts[which] += is_rejected(verdicts)
            rounds[which].append(verdicts[0].rounds)
    shares = [Share(count, runs) for count in counts]
    return Family(
        between_rounds, between_requirements, missed, shares[0].value, shares[0].interval, shares[1].value,
        shares[1].interval, statistics.fmean(rounds[0]), statistics.fmean(rounds[1]),
    )  # fmt: skip


def slow_gpus(runs: int, seed: int) -> list[SlowGpu]:
    """The fourth table."""
    cluster = open_cluster(
        load_thresholds(packaged("thresholds.yaml")), ClusterOptions("a100", 8, workloads=("resnet152-fp16",))
    )
    plan = cluster.plan(short_blocks=True)
    found = []
    for slowness in SLOW:
        counts = [0, 0]
        for number in range(runs):
            chance = random.Random(f"{seed}/{slowness}/{number}")
            fault = parse_fault(f"slow-gpu:{chance.randrange(8)}:{slowness}", plan.layout)
            simulated = SimulatedRun(plan, cluster.performance, Faults((fault,), plan.layout), chance.getrandbits(64))
            for which, family_confidence in enumerate((None, FAMILY_CONFIDENCE)):
                studies = decide(simulated, cluster.cases, CONFIDENCE, family_confidence)
                verdicts = tuple(one for study in studies for one in study.verdicts)
                if family_confidence is not None:
                    verdicts = with_family_confidence(verdicts, family_confidence)
                counts[which] += any(one.outcome == "failed" and one.severity == "fail" for one in verdicts)
        found.append(SlowGpu(slowness, counts[0] / runs, counts[1] / runs))
    return found


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
    """Run the script. Returns its exit code: 1 if a machine on its bounds is rejected more often than asked for."""
    given = parse_arguments()
    alone = alone_on_the_bound(20 * given.runs, given.limit, given.seed)
    print(f"one requirement on its bound, {20 * given.runs} runs, looks after rounds {FEWEST_ROUNDS} … {given.limit}")
    rows = [
        (f"{r.confidence:.0%}", f"{r.between_rounds:.1f}", f"{r.failed:.2%}", _span(r.interval),
         f"{r.failed / (1 - r.confidence):.3f}")
        for r in alone
    ]  # fmt: skip
    print(table(("confidence", "ρ of rounds", "fails", "95 % interval", "÷ level"), rows))
    families = [
        together(given.runs, given.requirements, given.limit, given.seed, rounds, requirements)
        for rounds in (*BETWEEN_ROUNDS, BEYOND)
        for requirements in BETWEEN_REQUIREMENTS
    ]
    print(f"\na machine exactly on all {given.requirements} bounds, {given.runs} runs a row: rejected")
    _print_families(families)
    missed = [together(given.runs, given.requirements, given.limit, given.seed, 0.0, 0.0, miss) for miss in MISSES]
    print("\nthe same, but one bound is missed by so many standard deviations of a round: rejected")
    _print_families(missed)
    nodes = max(given.runs // 10, 1)
    slow = slow_gpus(nodes, given.seed)
    print(f"\nsimulated A100 nodes with one slow GPU, {nodes} runs a row: rejected")
    rows_of_slow = [(f"{r.slowness - 1:.0%}", f"{r.alone:.1%}", f"{r.together:.1%}") for r in slow]
    print(table(("slower by", "by itself", "family"), rows_of_slow))
    keep(given.json, "family", {
        "alone": [asdict(r) for r in alone], "on_the_bounds": [asdict(r) for r in families],
        "missed": [asdict(r) for r in missed], "slow_gpus": [asdict(r) for r in slow],
    })  # fmt: skip
    return int(any(r.together_interval[0] > 1 - FAMILY_CONFIDENCE for r in families if r.between_rounds != BEYOND))


def _print_families(found: Sequence[Family]) -> None:
    header = ("ρ of rounds", "of requirements", "missed by", "by itself", "95 % interval", "family", "95 % interval",
              "rounds of one", "with family")  # fmt: skip
    rows = [
        (f"{r.between_rounds:.1f}", f"{r.between_requirements:.1f}", f"{r.missed:g} σ", f"{r.alone:.1%}",
         _span(r.alone_interval), f"{r.together:.1%}", _span(r.together_interval), f"{r.alone_rounds:.1f}",
         f"{r.together_rounds:.1f}")
        for r in found
    ]  # fmt: skip
    print(table(header, rows))


def _span(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.2%} … {interval[1]:.2%}"


if __name__ == "__main__":
    sys.exit(main())
