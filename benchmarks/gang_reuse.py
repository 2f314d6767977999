"""Time saved by keeping one gang of ranks warm, and the share of a session spent in timed blocks.

    python benchmarks/gang_reuse.py --json gang_reuse.json
    python benchmarks/gang_reuse.py --run ddpscale-runs/latest

The first form measures the CPU workload of thresholds.yaml twice, on two ranks: all rounds of all arms by one
gang, and again with a fresh torchrun for each arm of each round, the cost of interleaved rounds without a gang. Both
warm each arm up and time its blocks equally long. The second form reads the run directory of a
finished session, such as that of `pytest --gpu-sku=cpu`, and measures nothing.

Yield is the time inside rank 0's timed blocks over the wall time of the session. With its defaults the first form
takes some nine minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.launch.limits import Limits
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.launch.torchrun import launch_here
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import PACES
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import ended
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

SKU, WORKLOAD, RANKS = "cpu", "shuffle96-fp32", 2
EXPECTED_RATIO, EXPECTED_YIELD = 3.0, 0.6
LIMITS = Limits(inactivity_s=120.0)


@dataclass(frozen=True)
class Cost:
    """Cost of a measurement.

    Attributes:
        launches: times torchrun was started.
        wall_s: from the first launch to the last one's end, in seconds.
        timed_s: inside rank 0's timed blocks, in seconds.
        timed_steps: in those blocks.
    """

    launches: int
    wall_s: float
    timed_s: float
    timed_steps: int

    @property
    def session_yield(self) -> float:
        """Share of the wall time that was measured, 0 … 1."""
        return self.timed_s / self.wall_s

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.launches + other.launches,
            self.wall_s + other.wall_s,
            self.timed_s + other.timed_s,
            self.timed_steps + other.timed_steps,
        )

    def as_json(self) -> dict[str, Any]:
        """The cost as JSON types."""
        return asdict(self) | {"yield": self.session_yield}


def cost_of(records: Iterable[object], launches: int, wall_s: float) -> Cost:
    """The cost of a session, from what its rank 0 measured."""
    blocks = [(block, block.each("ranks") == 0) for block in records if isinstance(block, Block)]
    block_s = sum(float(block.each("seconds")[is_rank_0].sum()) for block, is_rank_0 in blocks)
    steps = sum(int(block.each("count")[is_rank_0].sum()) for block, is_rank_0 in blocks)
    return Cost(launches, wall_s, block_s, steps)


def wall_ratio(gang: Cost, fresh: Cost) -> float:
    """How many times longer fresh launches take than one gang, for each second that is timed.

    A block holds whole steps, whose number each warm-up chooses anew: per timed second, neither side gains
    from having chosen fewer.
    """
    return (fresh.wall_s / fresh.timed_s) / (gang.wall_s / gang.timed_s)


def whole_study(rounds: int, block_s: float, warmup_s: float) -> Study:
    """Weak scaling of the CPU workload of the packaged thresholds: `alone` and `ddp@2`."""
    workload = load_thresholds(packaged("thresholds.yaml")).thresholds.skus[SKU].workloads[WORKLOAD]
    arms = (Arm("alone", 1, workload.batch_size), Arm("ddp", RANKS, workload.batch_size))
    return Study("weak", workload, arms, rounds, block_s, warmup_s)


def single_blocks(study: Study) -> Iterator[Study]:
    """The same study as one study for each arm of each round, with each arm's own share of the warm-up."""
    share_s = study.warmup_s / len(study.arms)
    for _ in range(study.rounds):
        for arm in study.arms:
            yield replace(study, arms=(arm,), rounds=1, warmup_s=share_s)


def measure(study: Study, directory: Path) -> Cost:
    """Measure a study with one launch.

    Raises:
        SystemExit: it could not be measured; the message says why.
    """
    run = RunDirectory.create(directory)
    plan = Plan(SKU, "cpu", (study,))
    run.write_json(run.plan_json, plan)
    began = time.perf_counter()
    supervisor = Supervisor(launch_here("cpu"), run, LIMITS)
    supervisor.measure(plan)
    wall_s = time.perf_counter() - began
    for message in ended(run.read_records(), "error").values():
        raise SystemExit(f"{directory.name} was not measured: {message}")
    return cost_of(run.read_records(), supervisor.gangs_started, wall_s)


def measure_fresh(study: Study, directory: Path) -> Cost:
    """Measure a study with a launch for each arm of each round. Raises SystemExit as `measure`."""
    total = Cost(0, 0.0, 0.0, 0)
    for number, part in enumerate(single_blocks(study), start=1):
        total += measure(part, directory / f"launch-{number}")
        say(f"{number} of {study.rounds * len(study.arms)} fresh launches, {total.wall_s:.0f} s")
    return total


def session_cost(run: RunDirectory) -> Cost:
    """The cost of a finished session, from its run directory.

    Raises:
        SystemExit: the session did not finish, or measured nothing.
        RunDirectoryError: the directory is broken.
    """
    record = run.read_run()
    if record.finished_at is None:
        raise SystemExit(f"{run.path}: run.json has no finished_at; expected a session that finished")
    started, finished = map(datetime.fromisoformat, (record.started_at, record.finished_at))
    launches = len(gangs_by_number(run.read_records()))
    cost = cost_of(run.read_records(), launches, (finished - started).total_seconds())
    if not cost.timed_s:
        raise SystemExit(f"{run.path} holds no measurement; expected at least one")
    return cost


def say(line: str) -> None:
    """Progress, apart from the result."""
    print(line, file=sys.stderr, flush=True)


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure both ways, print the table and return the result."""
    study = whole_study(arguments.rounds, arguments.block_s, arguments.warmup_s)
    with tempfile.TemporaryDirectory(prefix="gang-reuse-") as folder:
        gang = measure(study, Path(folder) / "gang")
        say(f"one gang: {gang.wall_s:.0f} s")
        fresh = measure_fresh(study, Path(folder))
    ratio = wall_ratio(gang, fresh)
    print(cost_table({"one gang": gang, "a torchrun per block": fresh}))
    print(f"wall time of fresh launches / one gang: {fresh.wall_s / gang.wall_s:.2f}")
    print(f"the same per timed second: {ratio:.2f} (expected at least {EXPECTED_RATIO:g})")
    return {
        "study": to_builtins(study),
        "gang": gang.as_json(),
        "fresh": fresh.as_json(),
        "wall_ratio": fresh.wall_s / gang.wall_s,
        "wall_ratio_per_timed_second": ratio,
        "expected_ratio": EXPECTED_RATIO,
    }


def read(directory: Path) -> dict[str, Any]:
    """Print the yield of a finished session and return the result."""
    run = RunDirectory.open(directory)
    cost = session_cost(run)
    print(cost_table({str(run.path): cost}))
    print(f"yield: {cost.session_yield:.3f} (expected at least {EXPECTED_YIELD:g})")
    return {"session": cost.as_json(), "argv": run.read_run().argv, "expected_yield": EXPECTED_YIELD}


def cost_table(costs: dict[str, Cost]) -> str:
    """One line for each way of measuring."""
    rows = [
        (name, str(c.launches), f"{c.wall_s:.1f}", f"{c.timed_s:.1f}", str(c.timed_steps), f"{c.session_yield:.3f}")
        for name, c in costs.items()
    ]
    return table(("measured by", "launches", "wall s", "timed s", "timed steps", "yield"), rows)


def main() -> int:
    """Run the script. Returns its exit code."""
    pace = PACES["cpu"]
    parser = argument_parser(__doc__)
    parser.add_argument("--run", type=Path, metavar="RUN_DIR", help="read this finished session; measure nothing")
    # As many blocks as a session with the packaged thresholds, which has two studies.
    parser.add_argument("--rounds", type=positive_int, default=pace.rounds, help="(%(default)s)")
    parser.add_argument("--block-s", type=float, default=pace.block_s, help="length of a timed block (%(default)s)")
    parser.add_argument(
        "--warmup-s", type=float, default=pace.warmup_s, help="warm-up of both arms together (%(default)s)"
    )
    arguments = parser.parse_args()
    result = read(arguments.run) if arguments.run else compare(arguments)
    keep(arguments.json, "gang_reuse", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
