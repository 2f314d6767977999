"""The cost of simulating, judging, reporting and steering a large cluster: docs/evidence/README.md.

    python benchmarks/judging.py
    python benchmarks/judging.py --gpus 64 512

Writes a run of B200s with `ddpscale simulate`, all default workloads and every step's time, and judges it with
`pytest --ddp-judge`, with all views and plots, each in its own process. CPU seconds are the kernel's user and system
time of a process and its children; memory is the largest resident set of either process. On a shared machine CPU time
varies less than wall time.

The records of a run are also passed to the supervisor's judge round by round, as a gang writes them: CPU seconds of
reading and judging each round, of which the slowest is shown.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from reporting import Ended, argument_parser, positive_int, run, table

from pytest_ddpscale.judge.judge import Decider
from pytest_ddpscale.launch.environment import launch_here
from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.thresholds.cases import cases_for
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

SKU, CONFIDENCE = "b200", 0.95
EXPECTED = "at most 2 s of CPU at 64 GPUs, 10 s at 8,192, 1024 MiB, 1 s for a steered round"
HEADER = ("GPUs", "file MiB", "simulate s", "judge, report s", "both s", "RSS MiB", "slowest round s")
_FAILED_TESTS = 1  # pytest's exit code: a simulated cluster is never accepted
# Variables that change the session; modules are compiled once, as in an installed package.
_CHANGING = ("PYTEST_", "DDPSCALE_", "PYTHONDONTWRITEBYTECODE")


def cost_of(command: Sequence[str | Path], folder: Path, expected: int) -> Ended:
    """Run a command in a folder, with one thread, so waiting threads add no CPU time. Raises SystemExit: it failed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_CHANGING)}
    kept |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ended = run(command, folder, folder / "said", kept)
    if ended.code != expected:
        raise SystemExit(f"{command[-1]} exited with {ended.code}:\n{ended.said[-4000:]}")
    return ended


def measure(gpus: int, rounds: int, folder: Path) -> list[float]:
    """Simulate, judge, report and steer one cluster with so many rounds of every study. Returns costs by `HEADER`."""
    target = folder / f"gpus{gpus}"
    size = ["--gpus", str(gpus), "--rounds", str(rounds)]
    ddpscale = [sys.executable, "-c", "import sys; from pytest_ddpscale.cli import main; sys.exit(main())"]
    made = cost_of([*ddpscale, "simulate", "--gpu-sku", SKU, *size, "--out", target], folder, 0)
    # Only this project's tests need hypothesis: where it is installed, every session imports it at its end.
    others = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    pytest = [sys.executable, "-m", "pytest", *others, f"--rootdir={folder}"]
    judged = cost_of([*pytest, f"--gpu-sku={SKU}", f"--ddp-judge={target}"], folder, _FAILED_TESTS)
    mib = (target / "measurements.jsonl").stat().st_size / 2**20
    slowest_s = max(steer(target, folder / f"steered{gpus}"))
    costs = made.cpu_s, judged.cpu_s, made.cpu_s + judged.cpu_s, max(made.mib, judged.mib)
    return [gpus, mib, *costs, slowest_s]


def steer(source: Path, target: Path) -> Iterator[float]:
    """Write a run again round by round, as ranks would, and have each judged. Yields CPU seconds of the supervisor."""
    plan, steered = RunDirectory(source).read_plan(), RunDirectory.create(target)
    steered.measurements_jsonl.touch()
    judge = Decider(plan, cases_for(load_thresholds(packaged("thresholds.yaml")), plan.sku, plan.layout), CONFIDENCE)
    supervisor, sent = Supervisor(launch_here("cpu"), steered, Limits(), judge=judge), b""
    with (source / "measurements.jsonl").open("rb") as file:
        for line in file:
            sent += line
            if b'"round_end"' in line:
                began_s = time.process_time()
                for record in supervisor.keep(sent):
                    supervisor.hear(record)
                yield time.process_time() - began_s
                sent = b""


def main() -> int:
    """Run the script. Returns its exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--gpus", type=positive_int, nargs="+", default=[64, 512, 8192], help="cluster sizes (%(default)s)"
    )
    parser.add_argument("--rounds", type=positive_int, default=16, help="rounds of every study (%(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="judging-") as folder:
        found = [measure(gpus, given.rounds, Path(folder)) for gpus in given.gpus]
    print(table(HEADER, [[f"{value:.4g}" for value in one] for one in found]))
    print(f"\nexpected: {EXPECTED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
