"""One rank of `fidelity.py`, which starts it: ``torchrun --nproc-per-node=N benchmarks/fidelity_rank.py FOLDER``.

Reads FOLDER/job.json and writes FOLDER/rank-R.json: seconds of every block, by world size and loop.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from bare_ddp import BareLoop, Options, join
from fidelity import LOOPS, Job, Loop

from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.control import Control, connect
from pytest_ddpscale.worker.device import open_device

# As many as the worker runs before each of its blocks.
WARM_STEPS = 1
TIMEOUT = timedelta(minutes=10)
ROUNDS_BETWEEN_REPORTS = 20


class Rank:
    """Both loops in every world size, on one rank.

    Args:
        job: what to train.
        control: ranks wait for each other through the store, so idle ranks use no core.
    """

    def __init__(self, job: Job, control: Control) -> None:
        self._job = job
        self._control = control
        self._device = join(job.device_type)
        self._bare: dict[int, BareLoop] = {}
        for loop in job.building_order:
            if loop == "bare":
                self._build_bare()
            else:
                device = open_device(job.device_type, control.local_rank)
                self._arms = StudyArms(job.study, device, control.rank, control.layout, TIMEOUT)

    def run(self) -> dict[str, dict[Loop, list[float]]]:
        """Time every block. Returns seconds by world size (as text) and loop; nothing for arms of other ranks."""
        sizes = [size for size in self._job.world_sizes if size in self._bare]
        seconds: dict[str, dict[Loop, list[float]]] = {str(size): {loop: [] for loop in LOOPS} for size in sizes}
        orders = {size: self._job.orders(size) for size in self._job.world_sizes}
        for size in self._job.world_sizes:
            for loop in LOOPS:
                self._together(f"first/{size}/{loop}", size, loop)  # connections, cuDNN's choice of algorithms
        began = time.monotonic()
        for number in range(self._job.rounds):
            for size, order in orders.items():
                for loop in order[number]:
                    took_s = self._together(f"{number}/{size}/{loop}", size, loop)
                    if took_s is not None:
                        seconds[str(size)][loop].append(took_s)
            self._report(number + 1, time.monotonic() - began)
        return seconds

    def close(self) -> None:
        """Free groups and memory."""
        self._arms.close()
        dist.destroy_process_group()

    def _build_bare(self) -> None:
        options = Options(**{name: getattr(self._job, name) for name in Options.__dataclass_fields__})
        for size in self._job.world_sizes:
            group: Any = dist.new_group(ranks=list(range(size)))
            if self._control.rank < size:
                self._bare[size] = BareLoop(options, self._device, group)

    def _together(self, key: str, size: int, loop: Loop) -> float | None:
        """One block; all ranks leave together. Returns its seconds, or None if this rank has no part in it."""
        took_s = self._block(size, loop) if size in self._bare else None
        if self._control.rank == 0:
            self._control.say(key, True)
        else:
            self._control.hear(key)
        return took_s

    def _block(self, size: int, loop: Loop) -> float:
        if loop == "bare":
            return self._bare[size].train(self._job.block_steps, WARM_STEPS)
        arm = next((arm for arm in self._job.study.arms if arm.name == f"ddp@{size}"), None)
        assert arm is not None
        return self._arms.time_block(arm, self._job.block_steps).block_s

    def _report(self, rounds: int, seconds: float) -> None:
        if self._control.rank == 0 and rounds % ROUNDS_BETWEEN_REPORTS == 0:
            print(f"{rounds} of {self._job.rounds} rounds, {seconds:.0f} s", file=sys.stderr, flush=True)


def main() -> None:
    """Run one rank."""
    folder = Path(sys.argv[1])
    job = Job(**json.loads((folder / "job.json").read_text(encoding="utf-8")))
    control = connect(TIMEOUT)
    rank = Rank(job, control)
    seconds = rank.run()
    (folder / f"rank-{control.rank}.json").write_text(json.dumps(seconds), encoding="utf-8")
    rank.close()
    control.leave()


if __name__ == "__main__":
    main()
