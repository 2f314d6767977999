"""The cost of control messages between ranks by world size: the gang's own messages over a real TCPStore.

    python benchmarks/control_plane.py --json control_plane.json
    python benchmarks/control_plane.py --ranks 64,128 --rounds 5

Every simulated rank has its own thread and connection; the store's server has its own process, like torchrun's agent.
In each round and for each world size, in random order, ranks do the work of a gang for one arm: all read rank 0's
message (word) and send their record; rank 0 reads all records (gather); all wait until they are written and delete
their own (release). `one by one` is the former method: rank 0 reads and deletes one key after the other.

All ranks share the cores of this machine, whereas a real rank has its own: times that depend on all of them waking
(`word`, `release`) are upper bounds. `CPU` is the CPU time of the server's single thread: a lower bound.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_double
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawArray
from typing import Any

from reporting import argument_parser, keep, positive_int, table
from torch.distributed import TCPStore

from pytest_ddpscale.run.strict_json import parse_strict_json, strict_json
from pytest_ddpscale.worker.control import Control

RANKS = (64, 128, 256, 512, 1024, 2048)
FAR = 8192
BLOCK_S = 2.0
RANKS_PER_PROCESS = 128
TIMEOUT = timedelta(seconds=120)
POLL_S = 0.002
SPARE_FILES = 256
ALL_AT_ONCE, ONE_BY_ONE = "all at once", "one by one"
WAYS = (ALL_AT_ONCE, ONE_BY_ONE)
# Moments that each rank notes down of each turn.
HEARD, SAID, LEFT = range(3)
MOMENTS = 3
PARTS = ("word_s", "gather_s", "release_s", "word_cpu_s", "arm_cpu_s")
STATUS_LINE = strict_json(
    {"pid": 4242, "rank": 4095, "local_rank": 7, "phase": "timed block", "study": "weak/resnet50-bf16",
     "arm": "no_sync@8", "round": 11, "entered": 345, "steps": 4711}
)  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """The messages of one arm.

    Attributes:
        ranks: world size.
        way: one of `WAYS`.
    """

    ranks: int
    way: str

    def key(self, number: int) -> str:
        """The key of its messages in turn `number`."""
        return f"weak/resnet50-bf16/{number}/no_sync@{self.ranks}"


@dataclass(frozen=True)
class Cost:
    """Times of a turn.

    Attributes:
        word_s: from rank 0 saying a word to the last rank having heard it.
        gather_s: rank 0 getting all records, which are all there: what all ranks wait for.
        release_s: from then until the last rank may go on.
        word_cpu_s: of the server's process, until all have heard the word and their records have come.
        arm_cpu_s: of the server's process from then on.
    """

    word_s: float
    gather_s: float
    release_s: float
    word_cpu_s: float
    arm_cpu_s: float


@dataclass(frozen=True)
class Growth:
    """How a cost grows with the number of ranks n.

    Attributes:
        fixed_s: a of a + b·n, by least squares.
        per_rank_s: b.
        exponent: of the power law through the same points: slope of log(cost) over log(n); 1 is linear.
        exponent_stderr: standard error of that slope.
        last_doubling: exponent between the two largest n, where a fixed cost weighs least.
    """

    fixed_s: float
    per_rank_s: float
    exponent: float
    exponent_stderr: float
    last_doubling: float

    def at(self, ranks: int) -> float:
        """The line's seconds for so many ranks, measured or not."""
        return self.fixed_s + self.per_rank_s * ranks


def growth(seconds: dict[int, float]) -> Growth:
    """Fit costs by number of ranks. Needs three numbers of ranks at least."""
    ranks, costs = zip(*sorted(seconds.items()), strict=True)
    line = statistics.linear_regression(ranks, costs)
    log_n, log_cost = [math.log(n) for n in ranks], [math.log(cost) for cost in costs]
    power = statistics.linear_regression(log_n, log_cost)
    residuals = [y - power.intercept - power.slope * x for x, y in zip(log_n, log_cost, strict=True)]
    mean = statistics.fmean(log_n)
    spread = sum((x - mean) ** 2 for x in log_n)
    stderr = math.sqrt(sum(r * r for r in residuals) / (len(residuals) - 2) / spread)
    (before, last) = list(pairwise(zip(log_n, log_cost, strict=True)))[-1]
    return Growth(line.intercept, line.slope, power.slope, stderr, (last[1] - before[1]) / (last[0] - before[0]))


def schedule(ranks: Sequence[int], rounds: int, seed: int) -> list[Turn]:
    """Every world size with each method once a round, in a random order per round."""
    rng = random.Random(seed)
    turns = [Turn(n, way) for n in ranks for way in WAYS]
    return [turn for _ in range(rounds) for turn in rng.sample(turns, len(turns))]


class Moments:
    """Times of all ranks' moments on the common monotonic clock, in memory that all processes share.

    Args:
        turns: of the schedule.
    """

    def __init__(self, turns: Sequence[Turn]) -> None:
        starts = [0]
        for turn in turns:
            starts.append(starts[-1] + turn.ranks * MOMENTS)
        self._starts = starts
        self._seconds = RawArray(c_double, starts[-1])

    def note(self, turn: int, rank: int, moment: int) -> None:
        """Store the time of a moment: now."""
        self._seconds[self._starts[turn] + rank * MOMENTS + moment] = time.perf_counter()

    def last(self, turn: int, moment: int) -> float:
        """Time at which the last rank reached a moment; waits for it.

        Raises:
            TimeoutError: it never did so.
        """
        deadline = time.monotonic() + TIMEOUT.total_seconds()
        while time.monotonic() < deadline:
            noted = self._seconds[self._starts[turn] + moment : self._starts[turn + 1] : MOMENTS]
            if all(noted):
                return max(noted)
            time.sleep(POLL_S)
        raise TimeoutError(f"{noted.count(0.0)} of {len(noted)} ranks did not get so far in {TIMEOUT}")


def host_stores(count: int, pipe: Connection) -> None:
    """The server's process: a store for each number of ranks; answers every message with its CPU seconds so far."""
    stores = [TCPStore("127.0.0.1", 0, is_master=True, multi_tenant=True, wait_for_workers=False) for _ in range(count)]
    pipe.send([store.port for store in stores])
    while pipe.recv():
        pipe.send(time.process_time())


def connect(port: int, rank: int, ranks: int) -> Control:
    """A rank's connection to a store, as a worker makes it."""
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)
    return Control(store, rank, rank, ranks)


def follow(rank: int, turns: Sequence[Turn], ports: dict[int, int], moments: Moments, record: dict[str, Any]) -> None:
    """All turns of any rank but the first."""
    controls = {ranks: connect(port, rank, ranks) for ranks, port in ports.items() if rank < ranks}
    for number, turn in enumerate(turns):
        if rank >= turn.ranks:
            continue
        control, key = controls[turn.ranks], turn.key(number)
        control.hear(f"{key}/next")
        moments.note(number, rank, HEARD)
        control.say(f"{key}/{rank}", record)
        moments.note(number, rank, SAID)
        if turn.way == ALL_AT_ONCE:
            control.wait_for(f"{key}/done")
            control.forget(f"{key}/{rank}")
        else:
            control.hear(f"{key}/done")
        moments.note(number, rank, LEFT)


def lead(
    number: int, turn: Turn, control: Control, moments: Moments, record: dict[str, Any], cpu_s: Callable[[], float]
) -> Cost:
    """A turn of rank 0; `cpu_s` tells what the server has used so far."""
    key = turn.key(number)
    cpu_before_s = cpu_s()
    began = time.perf_counter()
    control.say(f"{key}/next", ["", ["alone", "each@8", "no_sync@8", "ddp@8"]])
    moments.note(number, 0, HEARD)
    control.say(f"{key}/0", record)
    moments.note(number, 0, SAID)
    heard = moments.last(number, HEARD)
    moments.last(number, SAID)  # all records are there, as after a block that all ranks end together
    cpu_between_s = cpu_s()
    gathering = time.perf_counter()
    gather(control, [f"{key}/{rank}" for rank in range(turn.ranks)], turn.way)
    gathered = time.perf_counter()
    control.say(f"{key}/done", True)
    if turn.way == ALL_AT_ONCE:
        control.forget(f"{key}/0")
    moments.note(number, 0, LEFT)
    left = moments.last(number, LEFT)
    return Cost(
        word_s=heard - began,
        gather_s=gathered - gathering,
        release_s=left - gathered,
        word_cpu_s=cpu_between_s - cpu_before_s,
        arm_cpu_s=cpu_s() - cpu_between_s,
    )


def gather(control: Control, keys: Sequence[str], way: str) -> list[Any]:
    """Rank 0 collects all records."""
    if way == ALL_AT_ONCE:
        return control.hear_all(keys, dict)
    records = []
    for key in keys:
        records.append(control.hear(key))
        control.forget(key)
    return records


def follow_all(ranks: Sequence[int], *arguments: Any) -> None:
    """A process of ranks, each in a thread of its own."""
    threads = [threading.Thread(target=follow, args=(rank, *arguments)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def machine(turns: Sequence[Turn], record: dict[str, Any]) -> Iterator[Callable[[int], Cost]]:
    """Server and ranks; yields what takes a turn by its number. Turns have to be taken in order."""
    sizes = sorted({turn.ranks for turn in turns})
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed"])
    ours, theirs = context.Pipe()
    processes = [context.Process(target=host_stores, args=(len(sizes), theirs), daemon=True)]
    try:
        processes[0].start()
        ports = dict(zip(sizes, ours.recv(), strict=True))
        moments = Moments(turns)
        for first in range(1, sizes[-1], RANKS_PER_PROCESS):
            ranks = range(first, min(first + RANKS_PER_PROCESS, sizes[-1]))
            arguments = (ranks, turns, ports, moments, record)
            processes.append(context.Process(target=follow_all, args=arguments, daemon=True))
            processes[-1].start()
        controls = {ranks: connect(port, 0, ranks) for ranks, port in ports.items()}

        def server_cpu_s() -> float:
            ours.send(True)
            return float(ours.recv())

        def take(number: int) -> Cost:
            turn = turns[number]
            return lead(number, turn, controls[turn.ranks], moments, record, server_cpu_s)

        yield take
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def measure(ranks: Sequence[int], rounds: int, record_bytes: int, seed: int) -> dict[Turn, list[Cost]]:
    """Costs by number of ranks and way; the first round, in which connections are made, is not among them."""
    turns = schedule(ranks, rounds + 1, seed)
    record = {"kind": "measurement", "step_s": "0" * (record_bytes - 40)}
    found: dict[Turn, list[Cost]] = {Turn(n, way): [] for n in ranks for way in WAYS}
    with machine(turns, record) as take:
        for number, turn in enumerate(turns):
            found[turn].append(take(number))
            if (number + 1) % (len(WAYS) * len(ranks)) == 0:
                print(f"round {(number + 1) // (len(WAYS) * len(ranks))} is done", file=sys.stderr, flush=True)
    return {turn: costs[1:] for turn, costs in found.items()}


def median_cost(costs: Sequence[Cost]) -> Cost:
    """Each part's median."""
    return Cost(**{part: statistics.median(getattr(cost, part) for cost in costs) for part in PARTS})


def parsing_us(lines: int, repeats: int) -> float:
    """Microseconds per line for the supervisor to read what node agents say of ranks: the fastest of some passes."""
    text = [STATUS_LINE] * lines
    passes = []
    for _ in range(repeats):
        began = time.perf_counter()
        for line in text:
            parse_strict_json(line)
        passes.append(time.perf_counter() - began)
    return min(passes) / lines * 1e6


def growths(costs: dict[Turn, Cost]) -> dict[str, dict[str, Growth]]:
    """Growth by method and part."""
    ranks = sorted({turn.ranks for turn in costs})
    return {
        way: {part: growth({n: getattr(costs[Turn(n, way)], part) for n in ranks}) for part in PARTS} for way in WAYS
    }


def show(costs: dict[Turn, Cost], fits: dict[str, dict[str, Growth]]) -> None:
    """Print the tables."""
    rows = []
    for turn in sorted(costs, key=lambda turn: (turn.way, turn.ranks)):
        milliseconds = [f"{1000 * getattr(costs[turn], part):.2f}" for part in PARTS]
        arm_s = costs[turn].gather_s + costs[turn].release_s
        rows.append((f"{turn.way}, {turn.ranks}", *milliseconds, f"{arm_s / BLOCK_S:.2%}"))
    print(table(("median ms, ranks", "word", "gather", "release", "word CPU", "arm CPU", "arm / block"), rows))
    print()
    print(table(("growth", "fixed ms", "µs/rank", "exponent", "last doubling", f"ms at {FAR} *"), fit_rows(fits)))
    print(f"* extrapolated along the line, not measured; a block takes {BLOCK_S:g} s")


def fit_rows(fits: dict[str, dict[str, Growth]]) -> list[tuple[str, ...]]:
    """A line for each method and part."""
    return [
        (
            f"{way}, {part.removesuffix('_s').replace('_', ' ')}",
            f"{1e3 * fit.fixed_s:.2f}",
            f"{1e6 * fit.per_rank_s:.1f}",
            f"{fit.exponent:.2f} ± {fit.exponent_stderr:.2f}",
            f"{fit.last_doubling:.2f}",
            f"{1e3 * fit.at(FAR):.0f}",
        )
        for way, parts in fits.items()
        for part, fit in parts.items()
    ]


def allow_files(wanted: int) -> None:
    """Raise this process's and its children's limit of open files.

    Raises:
        SystemExit: the system does not allow that many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise SystemExit(f"--ranks: needs {wanted} open files, and `ulimit -Hn` allows {hard}; ask for fewer ranks")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def numbers(text: str) -> tuple[int, ...]:
    """An argument like ``64,128``."""
    return tuple(sorted({positive_int(part) for part in text.split(",")}))


def main() -> int:
    """Run the script. Returns its exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument("--ranks", type=numbers, default=RANKS, metavar="N,N,N", help="(64,128 … 2048)")
    parser.add_argument("--rounds", type=positive_int, default=15, help="timed ones (%(default)s)")
    parser.add_argument("--record-bytes", type=positive_int, default=700, help="size of a rank's record (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order within each round")
    arguments = parser.parse_args()
    if len(arguments.ranks) < 3:
        raise SystemExit("--ranks: expected at least three different numbers, as two always lie on a line")
    allow_files(sum(arguments.ranks) + SPARE_FILES)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else each connection that has no host name is named
    found = measure(arguments.ranks, arguments.rounds, arguments.record_bytes, arguments.seed)
    costs = {turn: median_cost(all_costs) for turn, all_costs in found.items()}
    fits = growths(costs)
    show(costs, fits)
    us_per_line = parsing_us(FAR, repeats=10)
    print(f"a line from a node agent ({len(STATUS_LINE)} bytes): {us_per_line:.1f} µs to parse")
    result = {
        "record_bytes": arguments.record_bytes,
        "rounds": arguments.rounds,
        "costs": [asdict(turn) | {"all": [asdict(cost) for cost in all_costs]} for turn, all_costs in found.items()],
        "growth": {way: {part: asdict(fit) for part, fit in parts.items()} for way, parts in fits.items()},
        "parsing_us_per_line": us_per_line,
    }
    keep(arguments.json, "control_plane", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
