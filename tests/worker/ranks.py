"""Two or more real ranks over gloo, for what one process cannot show."""

from __future__ import annotations

import multiprocessing
import os
import queue
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

RANKS = 2
_LIMIT_S = 120
# Forks of one process that has imported torch, which costs each rank seconds by itself.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["torch", "torchvision", "pytest_ddpscale.worker.arms"])


def on_two_ranks(program: Callable[[int], Any], folder: Path) -> list[Any]:
    """As `on_ranks`, on the least that communicates."""
    return on_ranks(program, folder, RANKS)


def on_ranks(program: Callable[[int], Any], folder: Path, count: int) -> list[Any]:
    """Run a module-level function with each rank as its argument; what each returned, by rank.

    Ranks have the environment of the first of them all, and are joined by gloo. A rank that waits for one that will not
    come ends the test.
    """
    answers = _FORKS.Queue()
    rendezvous = str(folder / "rendezvous")
    ranks = [_FORKS.Process(target=_run, args=(program, rank, count, rendezvous, answers)) for rank in range(count)]
    results: dict[int, Any] = {}
    try:
        for process in ranks:
            process.start()
        while len(results) < count:
            rank, result, failure = answers.get(timeout=_LIMIT_S)
            assert not failure, f"rank {rank} failed\n{failure}"
            results[rank] = result
    except queue.Empty:
        raise AssertionError(f"only ranks {sorted(results)} answered within {_LIMIT_S} s") from None
    finally:
        for process in ranks:
            if len(results) < count:
                process.kill()
            process.join(_LIMIT_S)
    return [results[rank] for rank in range(count)]


def _run(program: Callable[[int], Any], rank: int, count: int, rendezvous: str, answers: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=count)
        result = program(rank)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        answers.put((rank, None, traceback.format_exc()))
    else:
        answers.put((rank, result, ""))
