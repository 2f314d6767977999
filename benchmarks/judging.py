"""The cost of simulating, judging and reporting a large cluster, and of steering one while it is measured.

    python benchmarks/judging.py --json judging.json
    python benchmarks/judging.py --gpus 64 512
    python benchmarks/judging.py --gpus 8192 --steering

Writes a run of B200s with `ddpscale simulate`, all default workloads and every step's time, and judges it with
`pytest --ddp-judge`, with all views and plots, each in its own process. CPU seconds are the kernel's user and system
time of a process and its children; memory is the largest resident set of either process. On a shared machine CPU time
varies less than wall time.

With `--steering` the records of a simulated run are also passed to the supervisor's judge round by round, as a gang
writes them: CPU seconds of reading and judging each round, of which the slowest is shown.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.judge.judge import Decider
from pytest_ddpscale.launch.environment import launch_here
from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.thresholds.cases import cases_for
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

SKU = "b200"
EXPECTED_CPU_S = {64: 2.0, 8192: 10.0}
EXPECTED_MIB = 1024
EXPECTED_S_PER_ROUND = 1.0
CONFIDENCE = 0.95
_FAILED_TESTS = 1  # pytest's exit code: a simulated cluster is never accepted
_MIB = 2**20


@dataclass(frozen=True)
class Cost:
    """Cost of one process.

    Attributes:
        cpu_s: user and system time, with that of its children.
        rss_mib: its largest resident set.
    """

    cpu_s: float
    rss_mib: float


@dataclass(frozen=True)
class Judging:
    """Costs of one cluster.

    Attributes:
        gpus: its size.
        file_mib: size of measurements.jsonl.
        simulating: `ddpscale simulate`.
        judging: `pytest --ddp-judge`, with its report.
        steering_s: CPU seconds of each round that was steered, in order; empty if none was.
    """

    gpus: int
    file_mib: float
    simulating: Cost
    judging: Cost
    steering_s: tuple[float, ...]

    @property
    def cpu_s(self) -> float:
        """CPU seconds of both processes."""
        return self.simulating.cpu_s + self.judging.cpu_s

    @property
    def rss_mib(self) -> float:
        """Memory of the larger process."""
        return max(self.simulating.rss_mib, self.judging.rss_mib)


def cost_of(command: Sequence[str | Path], folder: Path, expected: int) -> Cost:
    """Run a command in a folder and return its cost.

    Raises:
        SystemExit: it exited otherwise.
    """
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, cwd=folder, env=_environment())
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != expected:
            said.seek(0)
            raise SystemExit(f"{command[-1]} exited with {process.returncode}:\n{said.read()[-4000:]}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def _environment() -> dict[str, str]:
    """The environment without variables that change the session; one thread, so waiting threads add no CPU time.

    Modules are compiled once, as in an installed package.
    """
    changing = ("PYTEST_", "DDPSCALE_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(changing)}
    return kept | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def measure(gpus: int, rounds: int, folder: Path, *, steering: bool) -> Judging:
    """Simulate, judge and report one cluster.

    Args:
        gpus: its size.
        rounds: of every study.
        folder: where the run directory is made.
        steering: whether to steer it as well.
    """
    run = folder / f"gpus{gpus}"
    size = ["--gpus", str(gpus), "--rounds", str(rounds)]
    ddpscale = [sys.executable, "-c", "import sys; from pytest_ddpscale.cli import main; sys.exit(main())"]
    simulating = cost_of([*ddpscale, "simulate", "--gpu-sku", SKU, *size, "--out", run], folder, 0)
    # Only this project's tests need hypothesis: where it is installed, every session imports it at its end.
    others = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    pytest = [sys.executable, "-m", "pytest", *others, f"--rootdir={folder}"]
    judging = cost_of([*pytest, f"--gpu-sku={SKU}", f"--ddp-judge={run}"], folder, _FAILED_TESTS)
    file = run / "measurements.jsonl"
    steered = tuple(steer(run, folder / f"steered{gpus}")) if steering else ()
    return Judging(gpus, file.stat().st_size / _MIB, simulating, judging, steered)


def steer(source: Path, target: Path) -> Iterator[float]:
    """Write a run again round by round, as ranks would, and have each round judged.

    Args:
        source: a run directory.
        target: another one, made here.

    Yields:
        CPU seconds of the supervisor for each round.
    """
    plan = RunDirectory(source).read_plan()
    run = RunDirectory.create(target)
    run.measurements_jsonl.touch()
    judge = Decider(plan, cases_for(load_thresholds(packaged("thresholds.yaml")), plan.sku, plan.layout), CONFIDENCE)
    supervisor = Supervisor(launch_here("cpu"), run, Limits(), judge=judge)
    for lines in _rounds(source / "measurements.jsonl"):
        sent = b"".join(lines)
        began_s = time.process_time()
        for record in supervisor.keep(sent):
            supervisor.hear(record)
        yield time.process_time() - began_s


def _rounds(path: Path) -> Iterator[list[bytes]]:
    """The lines of a file, up to the end of each round."""
    lines: list[bytes] = []
    with path.open("rb") as file:
        for line in file:
            lines.append(line)
            if b'"round_end"' in line:
                yield lines
                lines = []


def show(found: Sequence[Judging]) -> None:
    """Print the table."""
    header = ("GPUs", "file MiB", "simulate s", "judge, report s", "both s", "RSS MiB", "slowest round s")
    rows = [
        (
            str(one.gpus), f"{one.file_mib:.1f}", f"{one.simulating.cpu_s:.1f}", f"{one.judging.cpu_s:.1f}",
            f"{one.cpu_s:.1f}", f"{one.rss_mib:.0f}", f"{max(one.steering_s):.2f}" if one.steering_s else "",
        )
        for one in found
    ]  # fmt: skip
    print(table(header, rows))
    most = ", ".join(f"{cpu_s:g} s of CPU at {gpus:,} GPUs" for gpus, cpu_s in EXPECTED_CPU_S.items())
    print(f"\nexpected: at most {most}, {EXPECTED_MIB} MiB, {EXPECTED_S_PER_ROUND:g} s for a steered round")


def result_of(found: Sequence[Judging]) -> dict[str, Any]:
    """The result as it is kept."""
    return {
        "sizes": [asdict(one) | {"cpu_s": one.cpu_s, "rss_mib": one.rss_mib} for one in found],
        "expected_cpu_s": {str(gpus): cpu_s for gpus, cpu_s in EXPECTED_CPU_S.items()},
        "expected_mib": EXPECTED_MIB,
        "expected_s_per_round": EXPECTED_S_PER_ROUND,
    }


def main() -> int:
    """Run the script. Returns its exit code."""
    parser = argument_parser(__doc__)
    sizes = [64, 512, 8192]
    parser.add_argument("--gpus", type=positive_int, nargs="+", default=sizes, help="cluster sizes (%(default)s)")
    parser.add_argument("--rounds", type=positive_int, default=16, help="rounds of every study (%(default)s)")
    parser.add_argument("--steering", action="store_true", help="steer each cluster, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="judging-") as folder:
        found = [measure(gpus, arguments.rounds, Path(folder), steering=arguments.steering) for gpus in arguments.gpus]
    show(found)
    keep(arguments.json, "judging", result_of(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
