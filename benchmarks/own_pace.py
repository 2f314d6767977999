"""Each rank's own pace by its forward passes, on two real gloo ranks: against its steps alone, and what it costs.

    python benchmarks/own_pace.py [--rounds 16] [--image-size 96] [--batch-size 8]

Each rank has a core of its own and trains through the product's `StudyArms`. Three situations: both cores free; a busy
process pinned to rank 1's core; rank 1 late, because it sleeps before each step of ddp@2. In every round all ranks time
each@2 and then ddp@2. Printed are medians over rounds of rank 1 over rank 0, by steps of each@2, by steps of ddp@2, by
forward passes in ddp@2 (the reading), and how much longer than its inner module the wrapper's forward pass takes on
rank 0, in ms. At last ddp@2 with and without hooks on free cores, in pairs: the ratio of step times and its interval.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.device import CpuDevice, Timing
from pytest_ddpscale.worker.forward_hooks import ForwardHooks, Forwards

LATE_S = 0.02
TIMEOUT = timedelta(seconds=120)
BUSY = "while True: pass"


class BenchedDevice(CpuDevice):
    """A CPU that may be late before each step, without hooks, or may time the wrapper's forward passes."""

    late_s = 0.0
    has_hooks = True
    wrapper: torch.nn.Module | None = None
    wrapper_s = 0.0

    def time_steps(self, step: Callable[[], None], steps: int, forwards: Forwards | None = None) -> Timing:
        """As `CpuDevice`; `wrapper_s` has the seconds of a step that the wrapper's forward pass took."""

        def late() -> None:
            if self.late_s:
                time.sleep(self.late_s)
            step()

        marks: list[float] = []
        around: AbstractContextManager[object] = nullcontext()
        if self.wrapper is not None:
            around = ForwardHooks(Forwards(self.wrapper, 1), steps, lambda: marks.append(time.perf_counter()))
        with around:
            timing = super().time_steps(late, steps, forwards if self.has_hooks else None)
        self.wrapper_s = sum(e - b for b, e in zip(marks[::2], marks[1::2], strict=True)) / steps
        return timing


class Rank:
    """One of two ranks, on a core of its own."""

    def __init__(self, rank: int, folder: Path, options: argparse.Namespace) -> None:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
        self.rank, self.options, self.device = rank, options, BenchedDevice()
        family = ImageFamily("shufflenet_v2_x0_5", options.image_size, "contiguous", num_classes=100)
        self.each, self.ddp = (Arm(kind, 2, options.batch_size) for kind in ("each", "ddp"))
        workload = Workload("shuffle", family, "fp32", options.batch_size)
        study = Study("weak", workload, (self.each, self.ddp), rounds=1, block_s=0.1, warmup_s=0.1)
        self.arms = StudyArms(study, self.device, rank, Layout(1, 2), TIMEOUT)
        for arm in (self.each, self.ddp):
            self.arms.time_block(arm, 5)

    def situation(self, *, busy: bool = False, late: bool = False) -> dict[str, list[float]]:
        """Ratios of rank 1 to rank 0 in each round, and the wrapper's extra milliseconds on rank 0."""
        neighbour = subprocess.Popen([sys.executable, "-c", BUSY]) if busy and self.rank == 1 else None
        found: dict[str, list[float]] = {"each steps": [], "ddp steps": [], "ddp forward": [], "wrapper ms": []}
        try:
            for _ in range(self.options.rounds):
                steps_alone = self._block(self.each).block_s / self.options.steps
                self.device.late_s = LATE_S if late and self.rank == 1 else 0.0
                self.device.wrapper = self.arms._replicas.of(self.ddp).call
                ddp = self._block(self.ddp)
                self.device.late_s, self.device.wrapper = 0.0, None
                assert ddp.forward_s is not None, ddp.unread
                inner_s = ddp.forward_s / self.options.steps
                mine = steps_alone, ddp.block_s, ddp.forward_s, 1000 * (self.device.wrapper_s - inner_s)
                said: list[tuple[float, ...]] = [(), ()]
                dist.all_gather_object(said, mine)
                for name, first, second in zip(list(found)[:3], *said, strict=False):
                    found[name].append(second / first)
                found["wrapper ms"].append(said[0][3])
        finally:
            if neighbour is not None:
                neighbour.kill()
                neighbour.wait()
        return found

    def cost(self) -> list[float]:
        """Step time with hooks over that without, in each round, in alternating order; of both ranks the slower."""
        found = []
        for number in range(4 * self.options.rounds):
            took = {}
            for has_hooks in (number % 2 == 0, number % 2 == 1):
                self.device.has_hooks = has_hooks
                took[has_hooks] = self._block(self.ddp).block_s
            found.append(took[True] / took[False])
        self.device.has_hooks = True
        return found

    def _block(self, arm: Arm) -> Timing:
        dist.barrier()
        return self.arms.time_block(arm, self.options.steps)


def _run(rank: int, folder: Path, options: argparse.Namespace) -> None:
    one = Rank(rank, folder, options)
    found = {"free": one.situation(), "busy neighbour": one.situation(busy=True), "late": one.situation(late=True)}
    cost = one.cost()
    if rank == 0:
        (folder / "found.json").write_text(json.dumps({"situations": found, "cost": cost}), encoding="utf-8")
    one.arms.close()
    dist.barrier()
    dist.destroy_process_group()


def _middle(values: Sequence[float]) -> str:
    low, median, high = statistics.quantiles(values, n=4)
    return f"{median:.3f} ({low:.3f} … {high:.3f})"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("rounds", 16), ("steps", 10), ("image-size", 96), ("batch-size", 8)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder, fresh = Path(made), multiprocessing.get_context("spawn")
        ranks = [fresh.Process(target=_run, args=(rank, folder, options)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            sys.exit("a rank failed")
        found = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    print(f"median (quartiles) over {options.rounds} rounds of {options.steps} steps; ratios are rank 1 ÷ rank 0")
    print(
        "| situation | steps, each@2 | steps, ddp@2 | forward passes, ddp@2 | wrapper beyond its module, rank 0, ms |"
    )
    print("| --- | --- | --- | --- | --- |")
    for name, columns in found["situations"].items():
        print(f"| {name} | {' | '.join(map(_middle, columns.values()))} |")
    logs = [math.log(ratio) for ratio in found["cost"]]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(mean - 1.96 * error), math.exp(mean + 1.96 * error)
    print(f"step time with hooks ÷ without: {math.exp(mean):.4f} ({low:.4f} … {high:.4f}, 95 %, {len(logs)} pairs)")


if __name__ == "__main__":
    main()
