"""Whether rounds that follow a writing of report.html are slower than those that do not, in one run.

    python benchmarks/live_page.py --json live_page.json
    python benchmarks/live_page.py --rounds 64

Two CPU ranks train for real. The page is rendered in full and written at the end of every second round from the eighth
on, much more often than otherwise: every 5 s at most, and in at most 0.5 % of the time. Throughput of each arm in a
round after a page is divided by that in the next round, without one; shown is the median of the ratios with its 95 %
interval, and the seconds that pages took.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.results.records import Block
from pytest_ddpscale.results.run_directory import RunDirectory

CONFIDENCE = 0.95
FEWEST_PAIRS = 6  # fewer have no such interval
CHECKOUT = Path(__file__).parents[1]
_THRESHOLDS = """\
schema_version: 2
sources: {paper: nobody}
workloads:
  tiny: {model: shufflenet_v2_x0_5, precision: fp32, image_size: 32, memory_format: contiguous, num_classes: 10}
skus:
  cpu:
    description: any CPU
    detect: {device: cpu}
    batch: {tiny: {per_gpu: 4, global: 8}}
    requirements:
      - {throughput_per_gpu: {2: 500}, of: tiny, published: paper, bound: 0.01, because: made up}
      - {weak_scaling_efficiency: {2: 0.97}, of: tiny, published: paper, bound: 0.001, because: made up}
"""
# Rounds 0, 2, 4 … end without a page, so that rounds 1, 3, 5 … do not follow one.
_CONFTEST = """\
import json
from pathlib import Path
from pytest_ddpscale.results.records import RoundEnd
from pytest_ddpscale.session import live_page

live_page.LARGEST_SHARE, live_page.EVERY_S = 1e9, 0.0
PAGES_S = []
hear = live_page.LivePage.hear

def every_second(self, record):
    before_s = self._spent_s
    self._next_s = 0.0 if isinstance(record, RoundEnd) and record.round % 2 else float("inf")
    self._is_stale = True
    hear(self, record)
    if self._spent_s > before_s:
        PAGES_S.append(self._spent_s - before_s)
        Path("pages.json").write_text(json.dumps(PAGES_S))

live_page.LivePage.hear = every_second
"""


def measure(rounds: int, folder: Path) -> tuple[dict[str, list[float]], list[float]]:
    """Ratio of throughput after a page to that without one, by arm, for each pair of rounds; and seconds of each page.

    Raises:
        SystemExit: the session did not measure.
    """
    shutil.copytree(CHECKOUT / "acceptance", folder / "acceptance", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "thresholds.yaml").write_text(_THRESHOLDS)
    (folder / "conftest.py").write_text(_CONFTEST)
    options = [f"--ddp-rounds={rounds}", "--ddp-block=0.5s", "--ddp-precision=0.01%", "--ddp-gpus-per-node=2"]
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--gpu-sku=cpu", "--ddp-run-dir=run"]
    ended = subprocess.run([*pytest, *options], cwd=folder, capture_output=True, text=True, check=False)
    if not (folder / "pages.json").exists():
        raise SystemExit(f"no page was written:\n{ended.stdout[-4000:]}")
    blocks = [one for one in RunDirectory(folder / "run").read_records() if isinstance(one, Block)]
    speeds = {(one.arm, one.round): _img_per_s(one) for one in blocks}
    ratios: dict[str, list[float]] = {}
    for (arm, number), speed in speeds.items():
        if number % 2 == 0 and number >= FEWEST_ROUNDS and (arm, number + 1) in speeds:
            ratios.setdefault(arm, []).append(speed / speeds[arm, number + 1])
    return ratios, json.loads((folder / "pages.json").read_text())


def _img_per_s(block: Block) -> float:
    return float((block.batch_size * block.each("steps") / block.each("block_s")).min())


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
    parser.add_argument("--rounds", type=positive_int, default=32, help="of the study (%(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="live-page-") as folder:
        ratios, pages_s = measure(arguments.rounds, Path(folder))
    found = {arm: median_and_interval(values) for arm, values in sorted(ratios.items()) if len(values) >= FEWEST_PAIRS}
    rows = [
        (arm, str(len(ratios[arm])), f"{median:.3f}", f"{low:.3f} to {high:.3f}")
        for arm, (median, low, high) in found.items()
    ]
    print(table(("arm", "pairs", "with ÷ without", "95 % interval"), rows))
    print(f"\n{len(pages_s)} pages in full, median {statistics.median(pages_s):.3f} s, most {max(pages_s):.3f} s")
    keep(arguments.json, "live_page", {"ratios": found, "pages_s": pages_s})
    return 0


if __name__ == "__main__":
    sys.exit(main())
