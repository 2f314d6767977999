"""How often decisions on simulated series are wrong, and how wide intervals are: docs/evidence/verdicts.md.

    python benchmarks/sequences.py
    python benchmarks/sequences.py --runs 200 --match 'ramp|machine'

Each line of benchmarks/verdicts/sequences.txt is a scenario: fields of `Scenario`, and its name. A run is judged
after each round from the eighth to the limit and stops at its first decision. Two rules judge the same rounds: the
verdict of this project, and a group-sequential t-test at 0.8 % a look, 5 % in all with independent noise. Above and
below are shares of runs decided to lie on that side of the bound; a machine with many requirements is below if it is
rejected, one of them being below. Coverage is of the interval at the end. Values are logarithms of the value over the
bound. Exit code 1 if the verdict breaks a promise.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from reporting import Share, arguments, table, typed

from pytest_ddpscale.judge.stats import estimate, intervals, t_quantile
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES
from pytest_ddpscale.simulate.machine import Noise
from pytest_ddpscale.util.arrays import FloatArray

LISTED = Path(__file__).with_name("verdicts") / "sequences.txt"
CONFIDENCE, NAIVE_ALPHA_PER_LOOK = 0.95, 0.008
HICCUP_SDS, WAVE_SD = 10.0, 0.01
END, WARM = math.log1p(-0.005), math.log1p(0.02)  # where moving values end below the bound, and warm ones stay above it
ROUNDS, NOISES = (5, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32), (0.003, 0.006, 0.02)
# Takes logarithms of value over bound, (runs, rounds), and the limit of rounds; gives 1 for above the bound, -1 for
# below, 0 for undecided, (runs,).
Rule = Callable[[FloatArray, int], FloatArray]


@dataclass(frozen=True)
class Tailed(Noise):
    """Noise whose innovations may be Student-t with 3 degrees of freedom, scaled to variance 1."""

    is_student: bool = False

    def innovations(self, chance: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """As `Noise.innovations`."""
        student = chance.standard_t(3, shape) / math.sqrt(3) if self.is_student else None
        return super().innovations(chance, shape) if student is None else student


@dataclass(frozen=True)
class Scenario:
    """A simulated scenario.

    Attributes:
        group: of scenarios, the heading above its line.
        name: in it.
        sd: of a round.
        rho: correlation of successive rounds.
        student: 1 for noise with heavy tails.
        wave: period, in rounds, of a wave with the deviation `WAVE_SD`, from a random phase; 0 without one.
        short: share of blocks that take up to `HICCUP_SDS` longer.
        long: share of blocks that take `HICCUP_SDS` longer.
        sign: -1 for noise of the arm that is judged, 1 for that of its baseline.
        margin: of the true value over the bound.
        shift: what hiccups take from a series whose mean is the truth, as a logarithm.
        path: ``ramp``, ``step``, ``rise`` or ``warm`` of a value that moves; then there is no coverage.
        by: how far it falls.
        right: the decision that is right, 1 or -1; 0 if each is wrong.
        promise: largest share of wrong decisions that the documents promise; NaN without a promise.
        requirements: of a machine that is on all its bounds; 0 for one series.
        shared: correlation between any two of them in one round.
    """

    group: str
    name: str
    sd: float = 0.003
    rho: float = 0.0
    student: float = 0.0
    wave: float = 0.0
    short: float = 0.0
    long: float = 0.0
    sign: float = -1.0
    margin: float = 0.0
    shift: float = 0.0
    path: str = ""
    by: float = 0.0
    right: float = 0.0
    promise: float = math.nan
    requirements: float = 0.0
    shared: float = 0.0

    def true_values(self, limit: int) -> FloatArray:
        """Of each round, (rounds,)."""
        numbers, fall = np.arange(limit, dtype=np.float64), -math.log1p(-self.by)
        ramp = END + fall * (1 - numbers / (limit - 1))
        moving = {"": np.full(limit, math.log1p(self.margin) + self.shift), "ramp": ramp, "rise": -ramp}
        moving |= {"step": END + fall * (2 * numbers < limit), "warm": WARM - fall * np.exp(-numbers / 4)}
        return np.asarray(moving[self.path])

    def series(self, runs: int, limit: int, seed: int) -> FloatArray:
        """Values of all runs, (runs, rounds); of a machine those of each requirement, (runs * requirements, rounds)."""
        if self.requirements:
            drawn = [self._machine(np.random.default_rng([seed, number]), limit) for number in range(runs)]
            return self.sd * np.concatenate(drawn)
        chance = np.random.default_rng([seed, *f"{self.group}/{self.name}".encode()])
        kind = Tailed(self.sd, correlation=self.rho, hiccup_share=self.short, is_student=bool(self.student))
        noise = kind.of_rounds(chance, limit, runs)
        noise += HICCUP_SDS * self.sd * (chance.random(noise.shape) < self.long)
        if self.wave:
            phases = 2 * math.pi * chance.random((runs, 1))
            noise += math.sqrt(2) * WAVE_SD * np.sin(2 * math.pi * np.arange(limit) / self.wave + phases)
        return self.true_values(limit) + self.sign * noise

    def _machine(self, chance: np.random.Generator, limit: int) -> FloatArray:
        """Noise of variance 1 that the requirements share, (requirements, rounds)."""
        own, common = chance.standard_normal((int(self.requirements), limit)), chance.standard_normal(limit)
        values = np.sqrt(self.shared) * common + np.sqrt(1 - self.shared) * own
        values[:, 1:] *= np.sqrt(1 - self.rho**2)
        for number in range(1, limit):
            values[:, number] += self.rho * values[:, number - 1]
        return np.asarray(values)


def scenarios() -> Iterator[Scenario]:
    """Those of the list."""
    group = ""
    for line in LISTED.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            group = line[2:]
        elif line:
            words, _, name = line.partition(" : ")
            yield Scenario(group, name, **typed(Scenario, words.split()))


def verdicts(logs: FloatArray, limit: int) -> FloatArray:
    """Verdicts of this project, for values so near the bound that none is far from it."""
    found = estimate(np.exp(logs), "factors", CONFIDENCE, limit, alike=1)
    return found.against(1.0, 1)[0].astype(np.float64)


def naive(logs: FloatArray, _: int) -> FloatArray:
    """A t-test at every look, at a level that would be right for independent rounds."""
    rounds = logs.shape[1]
    means, errors = logs.mean(axis=1), logs.std(axis=1, ddof=1) / math.sqrt(rounds)
    is_far = np.abs(means) > t_quantile(1 - NAIVE_ALPHA_PER_LOOK / 2, rounds - 1) * errors
    return np.where(is_far, np.sign(means), 0.0)


RULES: dict[str, Rule] = {"t-test": naive, "verdict": verdicts}


@dataclass(frozen=True)
class Endings:
    """Shares of runs that a rule decided to lie above, below and wrongly, mean rounds, and coverage."""

    above: float
    below: float
    wrong: Share
    rounds: float
    coverage: float | None


def ended(rule: Rule, logs: FloatArray, limit: int) -> tuple[FloatArray, FloatArray]:
    """Decision and rounds of each series, judged after each round until it is decided."""
    decided, rounds, running = np.zeros(len(logs)), np.full(len(logs), float(limit)), np.arange(len(logs))
    for count in range(FEWEST_ROUNDS, limit + 1):
        found = rule(logs[running, :count], limit)
        stops = running[found != 0]
        decided[stops], rounds[stops] = found[found != 0], count
        running = running[found == 0]
    return decided, rounds


def endings(scenario: Scenario, name: str, logs: FloatArray, limit: int) -> Endings:
    """Results of all runs under a rule. Of many requirements none waits for the limit of others."""
    if requirements := int(scenario.requirements):
        each, rounds = (one.reshape(-1, requirements) for one in ended(lambda x, _: verdicts(x, 0), logs, limit))
        decided, rounds = np.where((each < 0).any(axis=1), -1.0, each.min(axis=1)), rounds.max(axis=1)
    else:
        decided, rounds = ended(RULES[name], logs, limit)
    wrong = Share(int(((decided != 0) & (decided != scenario.right)).sum()), len(decided))
    coverage, missed, truth = None, 0, 1 + scenario.margin
    if name == "verdict" and not (scenario.path or scenario.requirements):
        for count in np.unique(rounds).astype(int).tolist():
            found = estimate(np.exp(logs[rounds == count, :count]), "factors", CONFIDENCE, alike=1)
            missed += int(((found.low > truth) | (found.high < truth)).sum())
        coverage = 1 - missed / len(logs)
    sides = float((decided == 1).mean()), float((decided == -1).mean())
    return Endings(*sides, wrong, float(rounds.mean()), coverage)


def row_of(scenario: Scenario, runs: int, limit: int, seed: int) -> dict[str, Endings]:
    """Results of a scenario by rule."""
    logs = scenario.series(runs, limit, seed)
    rules = ["verdict"] if scenario.requirements else RULES
    return {name: endings(scenario, name, logs, limit) for name in rules}


def widths(runs: int, seed: int) -> dict[int, tuple[float, float]]:
    """Half of the interval after each of `ROUNDS`, in deviations of a round: the median, and of 80 % of the runs."""
    series = np.random.default_rng(seed).standard_normal((runs, max(ROUNDS)))
    ends = {rounds: intervals(series[:, :rounds], CONFIDENCE) for rounds in ROUNDS}
    return {rounds: tuple(np.quantile((high - low) / 2, (0.5, 0.8))) for rounds, (_, low, high) in ends.items()}


def main() -> int:
    """Run the script. Returns its exit code."""
    given = arguments(
        __doc__,
        runs=(2000, "simulated runs a row"),
        limit=(PACES["cuda"].rounds, "rounds"),
        match=("", "groups and names that contain this regular expression; all"),
        seed=(0, "other seeds are other runs"),
    )
    wanted = [one for one in scenarios() if re.search(given.match, f"{one.group}/{one.name}")]
    found = {one: row_of(one, given.runs, given.limit, given.seed) for one in wanted}
    print(f"{given.runs} runs a row, looks after rounds {FEWEST_ROUNDS} … {given.limit}")
    for group in dict.fromkeys(one.group for one in found):
        of_group = {one.name: by_rule for one, by_rule in found.items() if one.group == group}
        rules = [f"{rule}: above, below, rounds" for rule in next(iter(of_group.values()))]
        rows = []
        for name, by_rule in of_group.items():
            ends = [f"{one.above:.1%}, {one.below:.1%}, {one.rounds:.1f}" for one in by_rule.values()]
            coverage = by_rule["verdict"].coverage
            rows.append((name, *ends, "–" if coverage is None else f"{coverage:.1%}"))
        print("\n" + table((group, *rules, "coverage"), rows))
    half = widths(given.runs, given.seed)
    widest = [
        (rounds, f"{median:.2f}", f"{most:.2f}", *(f"± {median * sd:.2%}" for sd in NOISES))
        for rounds, (median, most) in half.items()
    ]
    print("\n" + table(("rounds", "median, σ", "80 %, σ", *(f"median at {sd:.1%}" for sd in NOISES)), widest))
    return int(any(by_rule["verdict"].wrong.interval[0] > one.promise for one, by_rule in found.items()))


if __name__ == "__main__":
    sys.exit(main())
