"""Whether `ddpscale find-max-batch` finds the same batch each time, and whether that batch is the largest that trains.

    python benchmarks/find_max_batch.py --json find_max_batch.json

Real ranks run on this machine's CPU in their own memory cgroup, which needs root. The search is repeated, each time in
a new cgroup of the same size. Then the supervisor of sessions, not the search, trains a session's study for 20 steps of
each arm in such a cgroup: with the batch found, and with the next multiple of 8, which the kernel has to end. Exit code
1 otherwise.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' cgroup

from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.find_batch.find_max_batch import MULTIPLE
from pytest_ddpscale.find_batch.trial import questions_of, trial_plan
from pytest_ddpscale.launch.environment import launch_here
from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.words import Precision
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import ends_of
from pytest_ddpscale.suites.options import workload_of
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged
from tests.small_memory import small_memory

SKU, MODEL, IMAGE_SIZE, RANKS = "cpu", "mobilenet_v3_small", 224, 2
PRECISION: Precision = "fp32"
LEAST, MOST, FRACTION, STEPS = 16, 128, 1.0, 20
LIMIT_S = 1800.0  # of one search on a machine that is busy


@dataclass(frozen=True)
class Search:
    """Result of one search."""

    largest: int | None
    trials: list[dict[str, Any]]
    seconds: float


def search(limit_bytes: int, json_file: Path) -> Search:
    """One search in a new cgroup."""
    options = [
        f"--gpu-sku={SKU}", f"--model={MODEL}", f"--precision={PRECISION}", f"--image-size={IMAGE_SIZE}",
        f"--ranks={RANKS}", f"--least={LEAST}", f"--most={MOST}", f"--fraction={FRACTION:g}", "--steps=8",
        f"--json={json_file}",
    ]  # fmt: skip
    command = [sys.executable, "-c", "import sys; from pytest_ddpscale.cli import main; sys.exit(main())"]
    began = time.monotonic()
    with small_memory(limit_bytes) as group:
        done = group.run([*command, "find-max-batch", *options], LIMIT_S)
    print(done.stdout + done.stderr, flush=True)
    [found] = json.loads(json_file.read_text(encoding="utf-8"))["workloads"]
    return Search(found["largest"], found["trials"], time.monotonic() - began)


def plan_at(batch: int) -> Plan:
    """The study of a session with that batch."""
    file = load_thresholds(packaged("thresholds.yaml"))
    workload = workload_of(file.thresholds.skus[SKU], MODEL, PRECISION, IMAGE_SIZE, "cpu")
    return trial_plan(Plan(SKU, "cpu", ()), questions_of(file, SKU, workload, RANKS), batch, STEPS)


def train(batch: int, folder: Path) -> str:
    """Train it as a session does, in this process's cgroup. Returns why the study ended otherwise; empty if it did not.

    In a process of its own: it is this script with --train.
    """
    plan = plan_at(batch)
    run = RunDirectory.create(folder)
    run.write_json(run.plan_json, plan)
    Supervisor(launch_here("cpu"), run, Limits(inactivity_s=300.0)).measure(plan)
    [end] = ends_of(run.read_records()).values()
    return "" if end.reason == "rounds" else say(end.message).partition("\n")[0]


def trained(batch: int, limit_bytes: int, folder: Path) -> str:
    """Result of 20 steps in a new cgroup."""
    with small_memory(limit_bytes) as group:
        argv = [sys.executable, __file__, f"--train={batch}", f"--folder={folder / str(batch)}"]
        return group.run(argv, LIMIT_S).stdout.strip()


def main() -> int:
    """Run the script. Returns its exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument("--times", type=positive_int, default=5, metavar="N", help="searches; default: %(default)s")
    parser.add_argument("--mib", type=positive_int, default=3072, help="memory of the cgroup; default: %(default)s")
    parser.add_argument("--train", type=positive_int, metavar="BATCH", help="internal: train this batch")
    parser.add_argument("--folder", type=Path, help="likewise")
    arguments = parser.parse_args()
    if arguments.train:
        print(train(arguments.train, arguments.folder) or "trained")
        return 0
    limit_bytes = arguments.mib * 2**20
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="find-max-batch-") as name:
        searches = [search(limit_bytes, Path(name, f"{number}.json")) for number in range(arguments.times)]
        largest = searches[0].largest or 0
        steps = {batch: trained(batch, limit_bytes, Path(name)) for batch in (largest, largest + MULTIPLE) if batch}
    rows = [(str(one.largest), str(len(one.trials)), f"{one.seconds:.0f}") for one in searches]
    print(table(("largest batch", "batches tried", "seconds"), rows))
    print(*(f"{STEPS} steps of the study with {batch}: {said}" for batch, said in steps.items()), sep="\n")
    found = [{"largest": one.largest, "trials": one.trials, "seconds": round(one.seconds)} for one in searches]
    keep(arguments.json, "find_max_batch", {"mib": arguments.mib, "searches": found, "20_steps": steps})
    is_same = {one.largest for one in searches} == {largest}
    has_trained = steps.get(largest) == "trained" and steps.get(largest + MULTIPLE) != "trained"
    return 0 if is_same and has_trained else 1


if __name__ == "__main__":
    sys.exit(main())
