"""How often slow ranks are named, and other ranks by mistake, in simulated step times.

    python benchmarks/straggler_roc.py --json straggler_roc.json
    python benchmarks/straggler_roc.py --runs 20 --ranks 8
    python benchmarks/straggler_roc.py --runs 300 --ranks 4 8 16 --healthy

Ranks train alone; `judge/stragglers.py` names some of them with the limit for GPUs.

First table: one rank is slower than the others by a gap. The others differ by a permanent spread (standard deviation
from GPU to GPU), with noise in each round. A cell is the share of runs in per cent in which that rank is named / only
noted; the last column is the share of these runs and of those without a slow rank in which another rank is named.

Second table: other faults among otherwise equal GPUs with 1 % of noise, by number of rounds: share of runs in which all
slow ranks are named / any other rank is named.

Third table: no rank is slow; share of runs in which any rank is named / noted; with `--healthy` only this table.

With more than 8 ranks there are fewer runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.judge.rounds import NO_ROUNDS, ArmRounds
from pytest_ddpscale.judge.stragglers import find_watched, stragglers_of
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.rank_columns import ranks_at
from pytest_ddpscale.run.records import RankPlace
from pytest_ddpscale.simulate.round_noise import RoundNoise

RANKS = (2, 4, 8, 64, 512)
GAPS = (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.10)
NOISES = (0.003, 0.01)
SPREADS = (0.0, 0.005, 0.015)
ROUNDS = (8, 16, 32)
CONFIDENCE = 0.95
PER_HOST = 8
LIMIT = 0.05  # of `peers:` for GPUs
# Takes the rounds; gives the relative slowness of a slow rank in each of them.
Shape = Callable[[int, np.random.Generator], FloatArray]


@dataclass(frozen=True)
class Share:
    """Shares of runs, in per cent.

    Attributes:
        named: in which all slow ranks were named.
        noted: in which a slow rank was noted and not named.
        false: in which anybody else was named.
        false_notes: in which anybody else was noted.
        runs: how many there were.
    """

    named: float
    noted: float
    false: float
    false_notes: float
    runs: int


def rounds_of(logs: FloatArray) -> ArmRounds:
    """Rounds of ranks that took these times.

    Args:
        logs: logarithms of step times, (ranks, rounds).
    """
    ranks, rounds = logs.shape
    numbers = np.arange(ranks)
    local_ranks = [number % PER_HOST for number in range(ranks)]
    who = ranks_at(numbers, [RankPlace(f"n{n // PER_HOST}", at, f"GPU-{n}", at) for n, at in enumerate(local_ranks)])
    found = replace(
        NO_ROUNDS.measured, numbers=np.arange(rounds), turn=np.zeros(rounds, np.int64), node=np.zeros(rounds, np.int64),
        ranks=who, present=np.ones((rounds, ranks), np.bool_), groups=np.zeros((rounds, ranks), np.int64),
        count=np.ones((rounds, ranks), np.int64), work=np.ones((rounds, ranks)), seconds=np.exp(logs.T),
    )  # fmt: skip
    return ArmRounds(found)


def always(gap: float) -> Shape:
    """Equally slow in all rounds."""
    return lambda rounds, chance: np.full(rounds, gap)


def ramp(gap: float) -> Shape:
    """Increasingly slow, up to the gap."""
    return lambda rounds, chance: np.linspace(0.0, gap, rounds, dtype=np.float64)


def late(gap: float) -> Shape:
    """Slow from the middle on."""
    return lambda rounds, chance: np.where(np.arange(rounds) >= rounds // 2, gap, 0.0)


def at_times(gap: float, share: float = 0.6) -> Shape:
    """Slow in a random share of the rounds."""
    return lambda rounds, chance: np.where(chance.permutation(rounds) < share * rounds, gap, 0.0)


def measure(
    ranks: int, rounds: int, noise: RoundNoise, spread: float, slow: Collection[int], shape: Shape, runs: int
) -> Share:
    """Simulate and judge some runs."""
    runs = runs if ranks <= PER_HOST else max(10, runs * PER_HOST // ranks)
    counts = np.zeros(4)
    for seed in range(runs):
        chance = np.random.default_rng([seed, ranks, rounds])
        logs = noise.series(chance, rounds, ranks) + spread * chance.standard_normal((ranks, 1))
        for rank in slow:
            logs[rank] += np.log1p(shape(rounds, chance))
        measured = rounds_of(logs)
        found = stragglers_of(measured, LIMIT)
        who, watched = {one.rank for one in found}, {one.rank for one in find_watched(measured, found, LIMIT)}
        is_named = bool(slow) and {*slow} <= who
        counts += is_named, bool({*slow} & watched), bool(who - {*slow}), bool(watched - {*slow})
    named, noted, false, false_notes = (100 * counts / runs).tolist()
    return Share(named, noted, false, false_notes, runs)


@dataclass(frozen=True)
class OneSlowRank:
    """A row of the first table: results by `GAPS`, and the share of all runs that named another rank."""

    ranks: int
    noise: float
    spread: float
    rounds: int
    by_gap: Sequence[Share]
    false: float


def one_slow_rank(all_ranks: Sequence[int], runs: int) -> list[OneSlowRank]:
    """The first table's rows."""
    rows = []
    for ranks in all_ranks:
        for sd, spread, rounds in ((n, s, r) for n in NOISES for s in SPREADS for r in ROUNDS):
            shares = [measure(ranks, rounds, RoundNoise(sd), spread, [1], always(gap), runs) for gap in GAPS]
            alike = measure(ranks, rounds, RoundNoise(sd), spread, (), always(0.0), runs)
            false = sum(one.false * one.runs for one in (*shares, alike)) / sum(one.runs for one in (*shares, alike))
            rows.append(OneSlowRank(ranks, sd, spread, rounds, shares, false))
    return rows


SCENARIOS: tuple[tuple[str, int, Sequence[int], Shape], ...] = (
    ("one of 8, 6 %", 8, (3,), always(0.06)),
    ("two of 8, 6 %", 8, (3, 5), always(0.06)),
    ("3 of 8, 10 %", 8, (0, 3, 5), always(0.10)),
    ("half of 8, 10 %", 8, range(4), always(0.10)),
    ("5 of 8, 10 %", 8, range(5), always(0.10)),
    ("two of 4, 10 %", 4, (0, 1), always(0.10)),
    ("one of 3, 10 %", 3, (1,), always(0.10)),
    ("two of 8 nodes, 6 %", 64, range(16, 32), always(0.06)),
    ("half of 8 nodes, 10 %", 64, range(32), always(0.10)),
    ("a ramp to 10 %", 8, (3,), ramp(0.10)),
    ("a ramp to 20 %", 8, (3,), ramp(0.20)),
    ("10 % in the last half", 8, (3,), late(0.10)),
    ("10 % in 60 % of rounds", 8, (3,), at_times(0.10)),
    ("20 % in half of rounds", 8, (3,), at_times(0.20, 0.5)),
    ("100 % in a quarter", 8, (3,), at_times(1.0, 0.25)),
)
HEALTHY: tuple[tuple[str, RoundNoise, float], ...] = (
    ("0.3 % noise, spread 1 %", RoundNoise(0.003), 0.01),
    ("0.3 % noise, spread 1.5 %", RoundNoise(0.003), 0.015),
    ("0.3 % noise, spread 2 %", RoundNoise(0.003), 0.02),
    ("1 % noise, spread 1.5 %", RoundNoise(0.01), 0.015),
    ("1 % noise", RoundNoise(0.01), 0.0),
    ("3 % noise", RoundNoise(0.03), 0.0),
    ("1 % noise, AR(1) 0.5", RoundNoise(0.01, correlation=0.5), 0.0),
    ("1 % noise, AR(1) 0.5, spread 1 %", RoundNoise(0.01, correlation=0.5), 0.01),
    ("1 % noise, hiccups", RoundNoise(0.01, hiccup_share=0.05), 0.0),
    ("1 % noise, AR(1) 0.5, hiccups", RoundNoise(0.01, correlation=0.5, hiccup_share=0.05), 0.0),
)


def show(one_slow: Sequence[OneSlowRank], others: dict[str, list[Share]], healthy: dict[str, list[Share]]) -> None:
    """Print the tables."""
    by_rounds = [f"{rounds} rounds" for rounds in ROUNDS]
    if one_slow:
        _show_faults(one_slow, others, by_rounds)
    told_healthy = [(name, *(f"{one.false:.1f}/{one.false_notes:.1f}" for one in row)) for name, row in healthy.items()]
    print(table(("nobody slow: named/noted", *by_rounds), told_healthy))


def _show_faults(one_slow: Sequence[OneSlowRank], others: dict[str, list[Share]], by_rounds: Sequence[str]) -> None:
    gaps = [f"{gap:.0%}" for gap in GAPS]
    rows = []
    for row in one_slow:
        cells = [f"{one.named:.0f}/{one.noted:.0f}" for one in row.by_gap]
        setting = f"{row.ranks} ranks, noise {row.noise:.1%}, spread {row.spread:.1%}, {row.rounds} rounds"
        rows.append((setting, *cells, f"{row.false:.1f}"))
    print(table(("one slow rank: named/noted", *gaps, "false"), rows))
    told_others = [(name, *(f"{one.named:.0f}/{one.false:.1f}" for one in row)) for name, row in others.items()]
    print("\n" + table(("other faults: named/false", *by_rounds), told_others) + "\n")


def main() -> int:
    """Run the script."""
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=positive_int, default=100, help="runs for each cell (%(default)s)")
    parser.add_argument("--ranks", type=positive_int, nargs="+", default=RANKS, help="how many (%(default)s)")
    parser.add_argument("--healthy", action="store_true", help="the third table only")
    arguments = parser.parse_args()
    if min(arguments.ranks) < 2:
        raise SystemExit(f"--ranks {min(arguments.ranks)}: a rank needs a peer to compare with; expected at least 2")
    one_slow = [] if arguments.healthy else one_slow_rank(arguments.ranks, arguments.runs)
    others = {
        name: [measure(ranks, rounds, RoundNoise(0.01), 0.0, slow, shape, arguments.runs) for rounds in ROUNDS]
        for name, ranks, slow, shape in (() if arguments.healthy else SCENARIOS)
    }
    healthy = {
        f"{ranks} ranks, {name}": [
            measure(ranks, rounds, noise, spread, (), always(0.0), 5 * arguments.runs) for rounds in ROUNDS
        ]
        for ranks in arguments.ranks
        for name, noise, spread in HEALTHY
    }
    show(one_slow, others, healthy)
    told: dict[str, list[Any]] = {"one slow rank": [asdict(row) for row in one_slow]}
    told |= {
        what: [{"what": name, "shares": [asdict(one) for one in row]} for name, row in rows.items()]
        for what, rows in (("other faults", others), ("nobody slow", healthy))
    }
    keep(arguments.json, "straggler_roc", told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
