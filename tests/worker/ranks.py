"""Two or more real ranks over gloo, for what one process cannot show.

``python -m tests.worker.ranks FOLDER RANK COUNT`` is one of them.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.forks.start import command

RANKS = 2
_LIMIT_S = 120
_POLL_S = 0.01


def on_two_ranks(program: Callable[[int], Any], folder: Path) -> list[Any]:
    """As `on_ranks`, on the least that communicates."""
    return on_ranks(program, folder, RANKS)


def on_ranks(program: Callable[[int], Any], folder: Path, count: int) -> list[Any]:
    """Run a module-level function with each rank as its argument; what each returned, by rank.

    Ranks are forks, joined by gloo. A rank that waits for one that will not come ends the test.
    """
    (folder / "program").write_bytes(pickle.dumps(program))
    waiting = {
        rank: subprocess.Popen(command("tests.worker.ranks", str(folder), str(rank), str(count)))
        for rank in range(count)
    }
    results: dict[int, Any] = {}
    ends_s = time.monotonic() + _LIMIT_S
    try:
        while waiting:
            for rank in [rank for rank, process in waiting.items() if process.poll() is not None]:
                code = waiting.pop(rank).returncode
                assert code == 0, f"rank {rank} ended with exit code {code}"
                results[rank], failure = pickle.loads((folder / f"answer-{rank}").read_bytes())
                assert not failure, f"rank {rank} failed\n{failure}"
            assert time.monotonic() < ends_s, f"only ranks {sorted(results)} answered within {_LIMIT_S} s"
            time.sleep(_POLL_S)
    finally:
        for process in waiting.values():
            process.kill()
            process.wait()
    return [results[rank] for rank in range(count)]


def main() -> None:
    """As the module says."""
    import torch
    import torch.distributed as dist

    folder, rank, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    answer: tuple[Any, str]
    try:
        program = pickle.loads((folder / "program").read_bytes())
        dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=count)
        answer = program(rank), ""
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        answer = None, traceback.format_exc()
    (folder / f"answer-{rank}").write_bytes(pickle.dumps(answer))


if __name__ == "__main__":
    main()
