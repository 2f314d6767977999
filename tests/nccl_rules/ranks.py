"""Ranks whose groups are recorded: the real worker, in processes that are made fit for it here.

``python -m tests.nccl_rules.ranks < GANGS`` has gangs measure, one after the other, for a list of `GangOrder` in JSON.
All ranks are forks of this process. Prints for each gang whether it failed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

import tests.builders.trained  # noqa: F401 (registers its model)
from pytest_ddpscale.node.addresses import reserved_port
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.run.rank_folder import Assignment, write_message
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.worker.__main__ import run
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.context import RankProgress
from pytest_ddpscale.worker.device import CpuDevice, Timing
from tests.forks.server import fork
from tests.nccl_rules.defects import DEFECTS
from tests.nccl_rules.recording import BACKEND, record

RUN_DIR_VARIABLE = "NCCL_RULES_RUN_DIR"  # which run ranks write logs for that torchrun starts


@dataclass(frozen=True)
class GangOrder:
    """A gang to start on this machine.

    Attributes:
        run_dir: where its plan is.
        studies: ids, in order.
        ranks: how many.
        timeout_s: for one collective.
        budget_s: no round starts after so long; None for no limit.
        breaks: a rank, and the arm that it breaks in at the second block.
        defect: of `DEFECTS`, planted in the code of all ranks.
    """

    run_dir: str
    studies: tuple[str, ...]
    ranks: int
    timeout_s: float
    budget_s: float | None = None
    breaks: tuple[int, str] | None = None
    defect: str = ""


def logs_of(run_dir: Path) -> Path:
    """Where the ranks of a run write what NCCL would be asked for."""
    return run_dir / "nccl"


def ranks_folder(run_dir: Path) -> Path:
    """What an agent would share with the ranks of a run."""
    return run_dir / "ranks"


def take_over(folder: Path, run: RunDirectory) -> None:
    """Write what ranks without an agent have left in a file where it is sent otherwise."""
    run.append_lines((folder / "records").read_bytes())


def make_recorded(run_dir: Path, rank: int) -> None:
    """Have this process's worker make groups that are recorded."""
    record(logs_of(run_dir) / f"rank-{rank}.jsonl", rank)
    CpuDevice.backend = BACKEND


def measure(order: GangOrder) -> bool:
    """Have a gang measure. Returns whether a rank failed; the others are then killed."""
    folder = ranks_folder(Path(order.run_dir))
    folder.mkdir()
    plan = (Path(order.run_dir) / "plan.json").read_bytes()
    deadline_unix_s = None if order.budget_s is None else time.time() + order.budget_s
    write_message(
        folder,
        Assignment(
            plan=msgspec.Raw(plan), studies=order.studies, timeout_s=order.timeout_s, deadline_unix_s=deadline_unix_s
        ),
    )
    with reserved_port(order.run_dir) as reserved:
        port = int(reserved.getsockname()[1])
        ranks = {fork(partial(_rank, order, rank, port)) for rank in range(order.ranks)}
        has_failed = False
        while ranks:
            pid, status = os.wait()
            ranks.discard(pid)
            if status != 0 and not has_failed:
                has_failed = True
                for other in ranks:
                    os.kill(other, signal.SIGKILL)
    return has_failed


def _rank(order: GangOrder, rank: int, port: int) -> None:
    place = {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": order.ranks, "DDPSCALE_NODE_INDEX": 0, "DDPSCALE_NODES": 1}
    os.environ.update({name: str(number) for name, number in place.items()}, DDPSCALE_STORE=f"127.0.0.1:{port}")
    make_recorded(Path(order.run_dir), rank)
    if order.breaks is not None and order.breaks[0] == rank:
        _break_in(order.breaks[1])
    if order.defect:
        DEFECTS[order.defect](rank)
    run(ranks_folder(Path(order.run_dir)), RankProgress())


def _break_in(arm_name: str) -> None:
    """Fail in the second block of an arm."""
    original, blocks = StudyArms.time_block, []

    def time_block(self: StudyArms, arm: Arm, *arguments: Any) -> Timing:
        blocks.append(arm.name)
        if blocks.count(arm_name) == 2:
            raise ArithmeticError("broken on purpose")
        return original(self, arm, *arguments)

    StudyArms.time_block = time_block  # type: ignore[assignment,method-assign]


def main() -> None:
    """As the module says."""
    torch.set_num_threads(1)
    for order in json.load(sys.stdin):
        print(json.dumps(measure(GangOrder(**order))), flush=True)


if __name__ == "__main__":
    main()
