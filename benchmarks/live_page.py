"""Whether a round of a real run is slower right after report.html has been written.

    python benchmarks/live_page.py --json live_page.json
    python benchmarks/live_page.py --rounds 64

Two CPU ranks really train, all rounds in one gang. In each pair of successive rounds a random one follows a page, which
is fully rendered and written right before it; real sessions write it much less often, every 5 s at most and in at most
0.5 % of the time. Each pair gives ratios with / without: of the throughput of each arm and of all together (their
geometric mean), and of the CPU time of both ranks for the round, which has the same steps in both. Other load lengthens
blocks, but hardly changes their CPU time. Shown are the median of the ratios with its 95 % interval, and the seconds
that pages took.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.run_directory import RunDirectory

CONFIDENCE = 0.95
FEWEST_PAIRS = 6  # fewer have no such interval
CHECKOUT = Path(__file__).parents[1]
ALL_ARMS, CPU_TIME = "all arms", "CPU time"
# Pages are written before the rounds that follow.json names; what ranks have used of the CPU is read after each round.
_CONFTEST = """\
import json
from pathlib import Path
from pytest_ddpscale.run.records import GangRecord, RoundEnd
from pytest_ddpscale.session import live_page
from pytest_ddpscale.judge.deciding import Decider

Decider.needed_arms = lambda self, study_id: [arm.name for arm in self._plan.study(study_id).arms]  # all rounds
live_page.LARGEST_SHARE, live_page.EVERY_S = 1e9, 0.0
FOLLOW = set(json.loads(Path("follow.json").read_text()))
SEEN = {"pids": [], "pages_s": [], "cpu_s": {}}
hear = live_page.LivePage.hear

def cpu_s(pid):
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in tasks) / 1e9

def before_some_rounds(self, record):
    if isinstance(record, GangRecord):
        SEEN["pids"] = record.pids
    before_s = self._spent_s
    follows = isinstance(record, RoundEnd) and record.round + 1 in FOLLOW
    self._next_s = 0.0 if follows else float("inf")
    self._is_stale = True
    hear(self, record)
    if self._spent_s > before_s:
        SEEN["pages_s"].append(self._spent_s - before_s)
    if isinstance(record, RoundEnd):
        SEEN["cpu_s"][record.round] = sum(map(cpu_s, SEEN["pids"]))
        Path("seen.json").write_text(json.dumps(SEEN))

live_page.LivePage.hear = before_some_rounds
"""


@dataclass(frozen=True)
class RoundPair:
    """Two successive rounds: the number of the one that follows a page, and of the other."""

    after_page: int
    other: int


def drawn_pairs(rounds: int, seed: int) -> list[RoundPair]:
    """Pairs of the rounds before which a page can be written; a random one of each pair follows a page."""
    coin = Random(seed)
    firsts = range(FEWEST_ROUNDS, rounds - 1, 2)
    return [RoundPair(*coin.sample((first, first + 1), 2)) for first in firsts]


def measure(pairs: Sequence[RoundPair], rounds: int, folder: Path) -> tuple[dict[str, list[float]], list[float]]:
    """Ratios with / without by what was measured, one for each pair of rounds; and seconds of each page.

    Raises:
        SystemExit: the session did not measure.
    """
    sys.path.insert(0, str(CHECKOUT))
    from tests.builders.tiny_site import tiny_thresholds

    shutil.copytree(CHECKOUT / "acceptance", folder / "acceptance", ignore=shutil.ignore_patterns("__pycache__"))
    rows = "throughput_per_gpu: {2: 500}, bound: 0.01", "weak_scaling_efficiency: {2: 0.97}, bound: 0.001"
    (folder / "thresholds.yaml").write_text(tiny_thresholds(*rows))
    (folder / "conftest.py").write_text(_CONFTEST)
    (folder / "follow.json").write_text(json.dumps([pair.after_page for pair in pairs]))
    options = [
        f"--ddp-rounds={rounds}",
        "--ddp-block=0.25s",
        "--ddp-gpus-per-node=2",
    ]
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--gpu-sku=cpu", "--ddp-run-dir=run"]
    ended = subprocess.run([*pytest, *options], cwd=folder, capture_output=True, text=True, check=False)
    if not (folder / "seen.json").exists():
        raise SystemExit(f"no round ended:\n{ended.stdout[-4000:]}")
    seen = json.loads((folder / "seen.json").read_text())
    cpu_s = {int(number): total_s for number, total_s in seen["cpu_s"].items()}
    blocks = [one for one in RunDirectory(folder / "run").read_records() if isinstance(one, Block)]
    speeds = {(one.arm, one.round): _samples_per_s(one) for one in blocks}
    ratios: dict[str, list[float]] = {}
    for pair in pairs:
        for name, ratio in _ratios(pair, speeds, cpu_s):
            ratios.setdefault(name, []).append(ratio)
    return ratios, seen["pages_s"]


def _ratios(
    pair: RoundPair, speeds: Mapping[tuple[str, int], float], cpu_s: Mapping[int, float]
) -> Iterator[tuple[str, float]]:
    """Ratios of one pair; none for rounds that were not measured."""
    arms = {arm for arm, number in speeds if number == pair.after_page}
    of_arms = {
        arm: speeds[arm, pair.after_page] / speeds[arm, pair.other] for arm in arms if (arm, pair.other) in speeds
    }
    yield from of_arms.items()
    if of_arms:
        yield ALL_ARMS, statistics.geometric_mean(of_arms.values())
    took = [
        cpu_s[number] - cpu_s[number - 1]
        for number in (pair.after_page, pair.other)
        if {number, number - 1} <= cpu_s.keys()
    ]
    if len(took) == 2:
        yield CPU_TIME, took[0] / took[1]


def _samples_per_s(block: Block) -> float:
    return float(block.per_second.min())


def median_and_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Median of at least `FEWEST_PAIRS` with its interval, of order statistics: whatever the distribution is."""
    ordered, number = sorted(ratios), len(ratios)
    below, place = 0.0, -1  # half of the interval's error is left on each side
    while (below := below + math.comb(number, place + 1) / 2**number) <= (1 - CONFIDENCE) / 2:
        place += 1
    return statistics.median(ordered), ordered[place], ordered[-1 - place]


def main() -> int:
    """Run the script. Returns its exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=positive_int, default=400, help="rounds of the study (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random choice (%(default)s)")
    arguments = parser.parse_args()
    pairs = drawn_pairs(arguments.rounds, arguments.seed)
    with tempfile.TemporaryDirectory(prefix="live-page-") as folder:
        ratios, pages_s = measure(pairs, arguments.rounds, Path(folder))
    found = {arm: median_and_interval(values) for arm, values in sorted(ratios.items()) if len(values) >= FEWEST_PAIRS}
    rows = [
        (arm, str(len(ratios[arm])), f"{median:.3f}", f"{low:.3f} to {high:.3f}")
        for arm, (median, low, high) in found.items()
    ]
    print(table(("of", "pairs", "with ÷ without", "95 % interval"), rows))
    print(f"\n{len(pages_s)} pages in full, median {statistics.median(pages_s):.3f} s, most {max(pages_s):.3f} s")
    keep(arguments.json, "live_page", {"ratios": found, "pages_s": pages_s})
    return 0


if __name__ == "__main__":
    sys.exit(main())
