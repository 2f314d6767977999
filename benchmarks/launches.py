"""How far launches of one machine differ, and whether intervals over several of them hold.

    python benchmarks/launches.py --json launches.json
    python benchmarks/launches.py --count 4 --launches 5 -k throughput_per_gpu

Runs `pytest --gpu-sku=cpu --ddp-launches=3` the given number of times, one after the other, and reads throughput alone
and weak scaling on two ranks from each run's verdicts.json. For each run's interval it prints whether it contains the
mean of the other runs' values. Expected: nine of ten do, and half of the intervals reach no further than 25 % of the
value to either side. Exit code 1 if not, 2 if a run measured nothing. Ten runs take some thirty minutes on two
otherwise idle cores.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.run.verdicts import Verdict, read_judgement

REQUIREMENTS = ("throughput_per_gpu[shuffle96-fp32-1rank]", "weak_scaling_efficiency[shuffle96-fp32-2rank]")
ONLY_THESE = "(throughput_per_gpu and 1rank) or (weak_scaling_efficiency and 2rank)"
LEAST_SHARE, WIDEST_HALF = 0.9, 0.25


@dataclass(frozen=True)
class Interval:
    """One run's result on a requirement: value and both ends, in the metric's unit; and the spread of its launches."""

    value: float
    low: float
    high: float
    launch_sd: float | None

    @property
    def half_width(self) -> float:
        """The larger half of the interval relative to the value."""
        return max(self.value - self.low, self.high - self.value) / self.value

    def holds(self, truth: float) -> bool:
        """Whether a value lies in it."""
        return self.low <= truth <= self.high


@dataclass(frozen=True)
class Found:
    """Results of all runs on one requirement."""

    requirement: str
    intervals: tuple[Interval, ...]

    @property
    def hits(self) -> list[bool]:
        """For each interval, whether it contains the mean of the other runs' values."""
        values = [one.value for one in self.intervals]
        others = [statistics.fmean(values[:i] + values[i + 1 :]) for i in range(len(values))]
        return [one.holds(mean) for one, mean in zip(self.intervals, others, strict=True)]

    @property
    def median_half_width(self) -> float:
        """Relative to the value."""
        return statistics.median(one.half_width for one in self.intervals)

    @property
    def is_as_expected(self) -> bool:
        """Whether enough intervals hold, and half of them are narrow enough."""
        return sum(self.hits) >= LEAST_SHARE * len(self.hits) and self.median_half_width <= WIDEST_HALF


def interval_of(verdict: Verdict) -> Interval | None:
    """The interval of a verdict; None if it has none."""
    if verdict.value is None or verdict.interval is None:
        return None
    return Interval(verdict.value, *verdict.interval, verdict.launch_sd)


def measure(directory: Path, launches: int, selected: str) -> dict[str, Interval]:
    """One run: an interval for each requirement that has one."""
    command = [
        sys.executable, "-m", "pytest", "--gpu-sku=cpu", f"--ddp-launches={launches}", f"--ddp-run-dir={directory}",
        f"--ddp-history={directory.parent / 'history.sqlite'}", "-q", "-p", "no:cacheprovider", "-k", selected,
        str(Path(__file__).parents[1] / "acceptance"),
    ]  # fmt: skip
    said = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    path = directory / "verdicts.json"
    if not path.exists():
        print(said[-2000:], file=sys.stderr)
        return {}
    found = {one.id: interval_of(one) for one in read_judgement(path).verdicts if one.id in REQUIREMENTS}
    return {name: interval for name, interval in found.items() if interval is not None}


def lines_of(found: Found) -> str:
    """A table of all runs, and what they come to."""
    rows = [
        (
            str(i), f"{one.value:.4g}", f"{one.low:.4g} … {one.high:.4g}", f"± {one.half_width:.1%}",
            f"{one.launch_sd:.1%}" if one.launch_sd is not None else "–", "yes" if hit else "NO",
        )
        for i, (one, hit) in enumerate(zip(found.intervals, found.hits, strict=True), start=1)
    ]  # fmt: skip
    head = ("run", "value", "interval", "half", "launches differ by", "holds the others' mean")
    count = f"{sum(found.hits)} of {len(found.hits)} hold (expected at least {LEAST_SHARE:.0%})"
    width = f"median half-width {found.median_half_width:.1%} of the value (expected at most {WIDEST_HALF:.0%})"
    return f"{found.requirement}\n{table(head, rows)}\n{count}; {width}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns the exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument("--count", type=_at_least_two, default=10, metavar="N", help="runs; default: %(default)s")
    parser.add_argument(
        "--launches", type=positive_int, default=3, metavar="N", help="launches of each run; default: %(default)s"
    )
    parser.add_argument(
        "-k", dest="selected", default=ONLY_THESE, help="like pytest's -k; default: the two requirements"
    )
    asked = parser.parse_args(arguments)
    runs: list[dict[str, Interval]] = []
    with tempfile.TemporaryDirectory(prefix="ddpscale-launches-") as folder:
        for number in range(1, asked.count + 1):
            runs.append(measure(Path(folder) / f"run-{number}", asked.launches, asked.selected))
            values = ", ".join(f"{one.value:.4g} ± {one.half_width:.1%}" for one in runs[-1].values())
            print(f"run {number} of {asked.count}: {values or 'no interval'}", file=sys.stderr, flush=True)
    names = [name for name in REQUIREMENTS if any(name in run for run in runs)]
    if not names or not all(name in run for name in names for run in runs):
        print("a run has no interval: see above", file=sys.stderr)
        return 2
    found = [Found(name, tuple(run[name] for run in runs)) for name in names]
    for one in found:
        print(lines_of(one))
    result = [asdict(one) | {"hits": one.hits, "median_half_width": one.median_half_width} for one in found]
    keep(asked.json, "launches", {"launches": asked.launches, "requirements": result})
    return 0 if all(one.is_as_expected for one in found) else 1


def _at_least_two(text: str) -> int:
    """Raises argparse's own error for a single run, which has no others."""
    count = positive_int(text)
    if count < 2:
        raise argparse.ArgumentTypeError(f"{count} run; expected at least 2, to compare with each other")
    return count


if __name__ == "__main__":
    sys.exit(main())
