"""How often the verdicts of this project are wrong, and how soon they come, by simulation.

    python benchmarks/wrong_verdicts.py --json wrong_verdicts.json
    python benchmarks/wrong_verdicts.py --runs 200

A run is judged after each round from the eighth to the limit and stops at its first decision. Three rules judge the
same rounds: the verdict of this project; its confidence sequence alone, without regard to further rounds (the former
verdict); and a group-sequential t-test at 0.8 % a look, 5 % in all with independent noise, the obvious first approach.
Scenarios, all in logarithms of the value over the bound:

* on the bound: the true value is the bound, so every decision is wrong. Noise: Gaussian, Student-t with 3 degrees of
  freedom, AR(1) between rounds, slow waves; hiccups, blocks that take up to ten standard deviations of a round longer,
  in the judged arm (the value falls) or in its baseline (it rises). The truth is the value without hiccups, or their
  mean.
* off the bound: by a margin, with the independent noise of a GPU (0.3 % and 0.6 % a round) and of a shared CPU (2 %).
  The fixed design that is sized for a margin of one standard deviation has 16 rounds (two-sided α = 0.05, power 0.95).
* ramps: the value falls by 3 %, or by 1 to 5 %, in a straight line from the first to the last round before the limit
  and ends 0.5 % below the bound, so a pass is wrong; steps: it falls by 3 % to that value after half of the rounds.
* warm-ups: the value starts 3 % below its final level, which is 2 % above the bound, and approaches it by a factor of e
  in four rounds, or rises in a straight line to 0.5 % above the bound; a failure is wrong.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
from reporting import Share, argument_parser, keep, positive_int, table

from pytest_ddpscale.judge.stats import NEGLIGIBLE_DRIFT, estimate, find_drifts, intervals, t_quantile
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES
from pytest_ddpscale.simulate.machine import Noise
from pytest_ddpscale.util.arrays import FloatArray

CONFIDENCE = 0.95
NAIVE_ALPHA_PER_LOOK = 0.008
CORRELATIONS = (0.0, 0.3, 0.5, 0.7, 0.9)
GAUSSIAN, STUDENT = TAILS = ("Gaussian", "Student-t, 3 degrees")
MARGINS = (0.02, 0.05, 0.10)
NOISES = {"GPU": 0.003, "noisy GPU": 0.006, "shared CPU": 0.02}
# Share of blocks with a hiccup, and whether all have the maximum length, the worst case for a mean.
HICCUPS = {"5 %, up to 10 sd": (0.05, False), "10 %, all of 10 sd": (0.10, True), "20 %, all of 10 sd": (0.20, True)}
HICCUP_SDS = 10.0
# Slow waves: period in rounds, and standard deviation.
WAVES, WAVE_SD = (12, 24, 48), 0.01
# How far moving values fall, where they end below the bound, and where warm ones stay above it, relative.
FALL, END, WARM = 0.03, 0.005, 0.02
RAMPS = (0.01, 0.015, 0.02, 0.03, 0.05)
# Takes logarithms of value over bound, (runs, rounds), and the limit of rounds; gives 1 for above the bound, -1 for
# below, 0 for undecided, (runs,).
Rule = Callable[[FloatArray, int], FloatArray]


@dataclass(frozen=True)
class Tailed(Noise):
    """Noise whose innovations are of one of `TAILS`; a Student-t is scaled to variance 1."""

    tail: str = GAUSSIAN

    def innovations(self, chance: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """As `Noise.innovations`."""
        student = chance.standard_t(3, shape) / math.sqrt(3) if self.tail == STUDENT else None
        return super().innovations(chance, shape) if student is None else student


@dataclass(frozen=True)
class Scenario:
    """A simulated scenario.

    Attributes:
        group: of scenarios.
        name: in it.
        noise: of the logarithms of times: what takes longer has a lower value.
        path: logarithms of the value over the bound without noise, of rounds counted from 0 and of the limit.
        right: the decision that is right: 1, -1; 0 if each is wrong.
        promise: largest share of wrong decisions that the documents promise; None without a promise.
        sign: -1 for noise of the arm that is judged, 1 for that of its baseline.
        hiccups: share of blocks that take `HICCUP_SDS` longer, beside those of `noise`.
        truth: the value that the interval should contain; None if the value changes.
        wave_rounds: period of a wave with the standard deviation `WAVE_SD`, from a random phase; 0 without one.
    """

    group: str
    name: str
    noise: Noise
    path: Callable[[FloatArray, int], FloatArray]
    right: int
    promise: float | None = None
    sign: int = -1
    hiccups: float = 0.0
    truth: float | None = None
    wave_rounds: float = 0.0

    def series(self, runs: int, limit: int, seed: int) -> FloatArray:
        """Values of all runs, (runs, rounds)."""
        chance = np.random.default_rng([seed, *f"{self.group}/{self.name}".encode()])
        noise = self.noise.of_rounds(chance, limit, runs)
        noise += HICCUP_SDS * self.noise.round_sd * (chance.random(noise.shape) < self.hiccups)
        if self.wave_rounds:
            phases = 2 * math.pi * chance.random((runs, 1))
            noise += math.sqrt(2) * WAVE_SD * np.sin(2 * math.pi * np.arange(limit) / self.wave_rounds + phases)
        return np.asarray(self.path(np.arange(limit, dtype=np.float64), limit) + self.sign * noise)


def verdicts(logs: FloatArray, limit: int) -> FloatArray:
    """Verdicts of this project, for values so near the bound that none is far from it."""
    found = estimate(np.exp(logs), "factors", CONFIDENCE, limit, alike=1)
    return found.against(1.0, 1)[0].astype(np.float64)


def interval_alone(logs: FloatArray, _: int) -> FloatArray:
    """The confidence sequence, widened by a drift."""
    _, low, high = intervals(logs, CONFIDENCE)
    decided = np.where(low >= 0, 1.0, np.where(high <= 0, -1.0, 0.0))
    drifts, gone_on = find_drifts(logs, NEGLIGIBLE_DRIFT)
    return np.where(~np.isnan(drifts) & (gone_on * decided < 0), 0.0, decided)


def naive(logs: FloatArray, _: int) -> FloatArray:
    """A t-test at every look, at a level that would be right for independent rounds."""
    rounds = logs.shape[1]
    means, errors = logs.mean(axis=1), logs.std(axis=1, ddof=1) / math.sqrt(rounds)
    is_far = np.abs(means) > t_quantile(1 - NAIVE_ALPHA_PER_LOOK / 2, rounds - 1) * errors
    return np.where(is_far, np.sign(means), 0.0)


RULES: dict[str, Rule] = {"t-test": naive, "interval alone": interval_alone, "verdict": verdicts}


@dataclass(frozen=True)
class Endings:
    """How runs of a scenario ended under a rule.

    Attributes:
        above: share that was decided to lie above the bound.
        below: share that was decided to lie below.
        wrong: share that was decided wrongly.
        wrong_interval: of that, 95 %.
        rounds: mean number.
        coverage: share of runs whose final interval contains the truth; None without a truth, or if not computed.
    """

    above: float
    below: float
    wrong: float
    wrong_interval: tuple[float, float]
    rounds: float
    coverage: float | None


def ended(rule: Rule, logs: FloatArray, limit: int) -> tuple[FloatArray, FloatArray]:
    """Decision and rounds of each run, judged after each round until it is decided."""
    decided, rounds, running = np.zeros(len(logs)), np.full(len(logs), float(limit)), np.arange(len(logs))
    for count in range(FEWEST_ROUNDS, limit + 1):
        found = rule(logs[running, :count], limit)
        stops = running[found != 0]
        decided[stops], rounds[stops] = found[found != 0], count
        running = running[found == 0]
        if not len(running):
            break
    return decided, rounds


def endings(scenario: Scenario, rule: Rule, logs: FloatArray, limit: int, *, with_coverage: bool) -> Endings:
    """Results of all runs."""
    decided, rounds = ended(rule, logs, limit)
    above, below = float((decided == 1).mean()), float((decided == -1).mean())
    wrong = int(((decided != 0) & (decided != scenario.right)).sum())
    told = scenario.truth is not None and with_coverage
    coverage = _coverage(scenario.truth, logs, rounds) if scenario.truth is not None and told else None
    return Endings(above, below, wrong / len(logs), Share(wrong, len(logs)).interval, float(rounds.mean()), coverage)


def _coverage(truth: float, logs: FloatArray, rounds: FloatArray) -> float:
    missed = 0
    for count in np.unique(rounds).astype(int).tolist():
        found = estimate(np.exp(logs[rounds == count, :count]), "factors", CONFIDENCE, alike=1)
        missed += int(((found.low > math.exp(truth)) | (found.high < math.exp(truth))).sum())
    return 1 - missed / len(logs)


def on_the_bound() -> list[Scenario]:
    """Every decision is wrong."""

    def nought(numbers: FloatArray, _: int) -> FloatArray:
        return np.zeros_like(numbers)

    found = [
        Scenario("on the bound", f"{tail}, ρ {rho:g}", Tailed(0.01, correlation=rho, tail=tail), nought, 0, truth=0.0,
                 promise=1 - CONFIDENCE if rho <= 0.5 else None)
        for tail in TAILS
        for rho in CORRELATIONS
    ]  # fmt: skip
    found += [
        Scenario("on the bound", f"a wave of {rounds} rounds", Noise(0.003), nought, 0, truth=0.0,
                 wave_rounds=rounds)
        for rounds in WAVES
    ]  # fmt: skip
    for name, (share, is_long) in HICCUPS.items():
        noise = Noise(0.01, hiccup_share=0.0 if is_long else share, hiccup_sds=HICCUP_SDS)
        mean = 0.01 * HICCUP_SDS * share * (1.0 if is_long else 0.5)
        base = Scenario(
            "on the bound", "", noise, nought, 0, promise=1 - CONFIDENCE, hiccups=share if is_long else 0.0, truth=0.0
        )
        for sign, arm in ((1, "baseline"), (-1, "arm")):
            found.append(replace(base, name=f"hiccups of the {arm}, {name}", sign=sign))
            found.append(
                replace(base, name=f"same, truth is the mean ({arm}, {name})", sign=sign, path=_level(-sign * mean))
            )
    return found


def _level(value: float) -> Callable[[FloatArray, int], FloatArray]:
    return lambda numbers, _: np.full_like(numbers, value)


def off_the_bound() -> list[Scenario]:
    """Scenarios with a constant margin."""
    pairs = [(source, sd, margin) for source, sd in NOISES.items() for margin in MARGINS]
    pairs += [("noisy GPU", 0.006, 0.006), ("noisy GPU", 0.006, 0.010)]
    return [
        Scenario(
            "off the bound", f"{source} ({sd:.1%}), margin {margin:.1%}", Noise(sd), _level(math.log1p(margin)), 1,
            truth=math.log1p(margin),
        )
        for source, sd, margin in pairs
    ]  # fmt: skip


def moving() -> list[Scenario]:
    """Scenarios whose value changes over the rounds."""
    end, fall = math.log1p(-END), -math.log1p(-FALL)

    def ramp(numbers: FloatArray, limit: int, by: float = fall) -> FloatArray:
        return np.asarray(end + by * (1 - numbers / (limit - 1)))

    def step(numbers: FloatArray, limit: int) -> FloatArray:
        return np.asarray(end + fall * (2 * numbers < limit))

    def rise(numbers: FloatArray, limit: int) -> FloatArray:
        return np.asarray(-ramp(numbers, limit))

    def warm_up(numbers: FloatArray, _: int) -> FloatArray:
        return np.asarray(math.log1p(WARM) - fall * np.exp(-numbers / 4))

    noises = [(sd, rho) for rho in (0.0, 0.5, 0.7) for sd in (0.003, 0.006, 0.01)]
    found = [
        Scenario("ramp by -3 %", f"noise {sd:.1%}, ρ {rho:g}", Noise(sd, correlation=rho), ramp, -1,
                 promise=0.10 if rho == 0 and sd < 0.01 else None)
        for sd, rho in noises
    ]  # fmt: skip
    found += [
        Scenario("ramps", f"by -{by:.1%}, noise 0.3%, ρ {rho:g}", Noise(0.003, correlation=rho),
                 partial(ramp, by=-math.log1p(-by)), -1, promise=0.10 if rho == 0 else None)
        for rho in (0.0, 0.5)
        for by in RAMPS
    ]  # fmt: skip
    for group, path, right in (("step by -3 %", step, -1), ("ramp by +3 %", rise, 1), ("warm-up", warm_up, 1)):
        found += [Scenario(group, f"noise {sd:.1%}", Noise(sd), path, right) for sd in (0.003, 0.006, 0.01)]
    return found


def rows_of(scenarios: Sequence[Scenario], runs: int, limit: int, seed: int) -> dict[Scenario, dict[str, Endings]]:
    """Result of each scenario under each rule."""
    found: dict[Scenario, dict[str, Endings]] = {}
    for scenario in scenarios:
        logs = scenario.series(runs, limit, seed)
        found[scenario] = {
            name: endings(scenario, rule, logs, limit, with_coverage=rule is verdicts) for name, rule in RULES.items()
        }
    return found


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=positive_int, default=2000, help="simulated runs a row (%(default)s)")
    parser.add_argument("--limit", type=positive_int, default=PACES["cuda"].rounds, help="rounds (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> int:
    """Run the script. Returns its exit code: 1 if verdicts of this project are wrong more often than promised."""
    arguments = parse_arguments()
    given = arguments.runs, arguments.limit, arguments.seed
    print(f"{arguments.runs} runs a row, looks after rounds {FEWEST_ROUNDS} … {arguments.limit}\n")
    found: dict[Scenario, dict[str, Endings]] = {}
    for scenarios in (on_the_bound(), off_the_bound(), moving()):
        rows = rows_of(scenarios, *given)
        _print_rows(rows)
        found |= rows
    result = [
        {"group": s.group, "name": s.name, "rules": {rule: asdict(one) for rule, one in by_rule.items()}}
        for s, by_rule in found.items()
    ]
    keep(arguments.json, "wrong_verdicts", {"scenarios": result})
    return int(any(_is_broken(scenario, by_rule["verdict"]) for scenario, by_rule in found.items()))


def _is_broken(scenario: Scenario, found: Endings) -> bool:
    return scenario.promise is not None and found.wrong_interval[0] > scenario.promise


def _print_rows(rows: dict[Scenario, dict[str, Endings]]) -> None:
    for group in dict.fromkeys(scenario.group for scenario in rows):
        of_group = {scenario: by_rule for scenario, by_rule in rows.items() if scenario.group == group}
        header = (group, *(f"{rule}: above below rounds" for rule in RULES), "coverage")
        print(table(header, [_cells(scenario, by_rule) for scenario, by_rule in of_group.items()]) + "\n")


def _cells(scenario: Scenario, by_rule: dict[str, Endings]) -> tuple[str, ...]:
    ends = [f"{one.above:6.1%} {one.below:6.1%} {one.rounds:5.1f}" for one in by_rule.values()]
    coverage = by_rule["verdict"].coverage
    return scenario.name, *ends, "" if coverage is None else f"{coverage:.1%}"


if __name__ == "__main__":
    sys.exit(main())
