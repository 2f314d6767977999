"""Whether ranks measure the speed of a bare DistributedDataParallel loop: docs/evidence/h200.md, cpu-two-cores.md.

    python benchmarks/fidelity.py --device cpu --json fidelity.json
    python benchmarks/fidelity.py --device cuda --model resnet50 --batch-size 128 --image-size 224 --precision fp16 \
        --memory-format channels_last --num-classes 1000 --launches 1 --rounds 100 --block-steps 10 --json fidelity.json

In the same ranks, short blocks of two loops alternate: that of `bare_ddp.py`, set up once, and the worker's
`StudyArms.time_block`. They are timed for one rank alone under DDP and for all ranks. The two blocks of a pair
are adjacent and in random order, balanced over every two rounds, so other load affects both alike. The ratio
worker / bare is the mean of the pairs' log-ratios, with its 95 % Student-t interval; the median beside it shows whether
a few disturbed pairs dominate the mean.

On a CPU, two equal models in one process differ by some per cent in speed, depending on memory placement, for as long
as the process lives. So everything is repeated in several launches, in which either loop is set up first in turn, and
the ratio of each launch is shown too: if these differ by more than the width of the interval, it is too narrow.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from reporting import arguments, keep, orders, table

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.node.survey import visible_gpus
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.suites.engine import geometric_mean_estimate

LOOPS = ("bare", "worker")
TOLERANCE, CONFIDENCE = 0.02, 0.95
WARM_STEPS = 1  # as many as the worker runs before each of its blocks
TIMEOUT = timedelta(minutes=10)
Seconds = Mapping[str, Sequence[float]]  # of each round's block, by loop


def sizes_of(job: argparse.Namespace) -> list[int]:
    """One rank, and all of them."""
    return sorted({1, job.ranks})


def study_of(job: argparse.Namespace) -> Study:
    """The training as the worker is told it, which leaves rounds and the length of blocks to others."""
    image = {"image_size": job.image_size, "memory_format": job.memory_format, "num_classes": job.num_classes}
    workload = Workload("fidelity", ImageFamily(job.model, **image), job.precision, job.batch_size)
    arms = tuple(Arm("ddp", size, job.batch_size) for size in sizes_of(job))
    return Study("weak", workload, arms, job.rounds, block_s=1.0, warmup_s=0.0)


def agreement(job: argparse.Namespace, size: int, launches: Sequence[Seconds]) -> dict[str, Any]:
    """Both loops on so many ranks.

    Returns:
        Samples per second of all ranks together, median by loop; the ratio worker / bare: its geometric mean over the
        pairs with the interval, its median, and the geometric mean of each launch.
    """
    images = job.batch_size * job.block_steps * size
    speeds = {loop: images / statistics.median(s for seconds in launches for s in seconds[loop]) for loop in LOOPS}
    ratios = [[b / w for b, w in zip(one["bare"], one["worker"], strict=True)] for one in launches]
    pairs = [ratio for launch in ratios for ratio in launch]
    found = geometric_mean_estimate(pairs, CONFIDENCE)
    return {
        "world_size": size, "pairs": len(pairs), "samples_per_s": speeds, "ratio": found._asdict(),
        "median_ratio": statistics.median(pairs), "ratio_by_launch": [*map(statistics.geometric_mean, ratios)],
    }  # fmt: skip


def run_ranks(job: argparse.Namespace) -> dict[int, Seconds]:
    """Start the ranks and wait for them. Returns seconds of the slowest rank by world size, loop and round."""
    with tempfile.TemporaryDirectory(prefix="fidelity-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(vars(job)), encoding="utf-8")
        _launch(job, folder)
        ranks = [json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in range(job.ranks)]
    return {
        size: {loop: [*map(max, zip(*(rank[str(size)][loop] for rank in ranks[:size]), strict=True))] for loop in LOOPS}
        for size in sizes_of(job)
    }


def _launch(job: argparse.Namespace, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # What an agent would tell `worker.control.connect`: one node, and where rank 0 hosts the store.
    told = {"DDPSCALE_NODES": "1", "DDPSCALE_NODE_INDEX": "0", "DDPSCALE_STORE": f"127.0.0.1:{port}"}
    environment = {"GLOO_SOCKET_IFNAME": "lo", **worker_environment(os.environ, job.device), **told}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0"]
    command = [*torchrun, f"--nproc-per-node={job.ranks}", __file__, "--rank", str(folder)]
    if exit_code := subprocess.run(command, env=environment, check=False).returncode:
        raise SystemExit(f"the ranks failed with exit code {exit_code}; their output is above")


def be_a_rank(folder: Path) -> None:
    """Time every block, and write this rank's seconds by world size and loop; nothing of arms of other ranks."""
    import torch.distributed as dist
    from bare_ddp import BareLoop, join

    from pytest_ddpscale.worker.arms import StudyArms
    from pytest_ddpscale.worker.control import connect
    from pytest_ddpscale.worker.device import open_device

    job = argparse.Namespace(**json.loads((folder / "job.json").read_text(encoding="utf-8")))
    control, study, began = connect(TIMEOUT), study_of(job), time.monotonic()
    device, bare = join(job.device), dict[int, BareLoop]()
    for loop in LOOPS if job.first_built == LOOPS[0] else LOOPS[::-1]:
        if loop == "worker":
            own = open_device(job.device, control.local_rank)
            arms = StudyArms(study, own, control.rank, control.layout, TIMEOUT)
            continue
        for size in sizes_of(job):
            group = dist.new_group(ranks=list(range(size)))
            if control.rank < size:
                bare[size] = BareLoop(job, device, group)

    def time_block(size: int, loop: str) -> float:
        if loop == "bare":
            return bare[size].train(job.block_steps, WARM_STEPS)
        return arms.time_block(study.arms[sizes_of(job).index(size)], job.block_steps).block_s

    seconds = {size: {loop: list[float]() for loop in LOOPS} for size in bare}
    # The first round makes connections and lets cuDNN choose its algorithms.
    by_size = {size: [LOOPS, *orders(LOOPS, job.rounds, f"{job.seed}/{size}")] for size in sizes_of(job)}
    for number in range(job.rounds + 1):
        for size, order in by_size.items():
            for loop in order[number]:
                took_s = time_block(size, loop) if size in bare else None
                # Ranks wait for each other through the store, so idle ranks use no core.
                key = f"{number}/{size}/{loop}"
                control.say(key, True) if control.rank == 0 else control.hear(key)
                if number and took_s is not None:
                    seconds[size][loop].append(took_s)
        if control.rank == 0 and number % 20 == 0:
            print(f"{number} of {job.rounds} rounds, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    (folder / f"rank-{control.rank}.json").write_text(json.dumps(seconds), encoding="utf-8")
    arms.close()
    dist.destroy_process_group()
    control.leave()


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    return arguments(
        __doc__,
        json=(Path, "write the result to this file"),
        device=(("auto", "cuda", "cpu"), "where"),
        ranks=(int, "one for each GPU; 2 on CPU"),
        model=("resnet18", "of torchvision"),
        batch_size=(16, "images per rank"),
        image_size=(64, "pixels"),
        precision=(("fp32", "fp16", "bf16"), "of training"),
        memory_format=(("contiguous", "channels_last"), "of images"),
        num_classes=(100, "of the model"),
        rounds=(30, "pairs in each launch, at least 2"),
        launches=(4, "of all ranks"),
        block_steps=(3, "timed steps in a block"),
        seed=(0, "of the order of the blocks"),
    )


def main() -> int:
    """Run the script. Returns its exit code."""
    if sys.argv[1:2] == ["--rank"]:
        be_a_rank(Path(sys.argv[2]))
        return 0
    job = parse_arguments()
    file, gpus = job.json, 0 if job.device == "cpu" else len(visible_gpus())
    if job.device == "cuda" and not gpus:
        raise SystemExit("--device cuda: NVML sees no GPU here; expected at least one, or --device cpu")
    job.ranks, job.device, job.json = job.ranks or gpus or 2, "cuda" if gpus else "cpu", None
    launches, seed = [], job.seed
    for number in range(job.launches):  # in another order of the blocks, and the other loop set up first
        job.seed, job.first_built = seed + number, LOOPS[number % 2]
        launches.append(run_ranks(job))
        print(f"launch {number + 1} of {job.launches} is done", file=sys.stderr, flush=True)
    found = [agreement(job, size, [launch[size] for launch in launches]) for size in sizes_of(job)]
    rows = []
    for one in found:
        speeds, ratio = (f"{one['samples_per_s'][loop]:.1f}" for loop in LOOPS), one["ratio"]
        numbers = (ratio["value"], *ratio["interval"], one["median_ratio"], *one["ratio_by_launch"])
        value, low, high, median, *each = (f"{number:.4f}" for number in numbers)
        rows.append(
            (f"ddp@{one['world_size']}", one["pairs"], *speeds, value, f"{low} … {high}", median, " ".join(each))
        )
    header = ("arm", "pairs", "bare img/s", "worker img/s", "worker/bare", "95 % interval", "median", "each launch")
    print(table(header, rows))
    print(f"expected: worker/bare within {TOLERANCE:.0%} of 1")
    keep(file, "fidelity", {"job": vars(job), "agreements": found, "block_s_by_launch": launches})
    return 0


if __name__ == "__main__":
    sys.exit(main())
