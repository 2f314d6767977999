"""Two or more real ranks over gloo, for what one process cannot show.

``python -m tests.worker.ranks FOLDER RANK COUNT`` is one of them.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.forks.start import command

_LIMIT_S = 120
_POLL_S = 0.01


def on_two_ranks(program: Callable[[int], Any], folder: Path) -> list[Any]:
    """As `on_ranks`, on the least that communicates."""
    return on_ranks(program, folder, 2)


def on_ranks(program: Callable[[int], Any], folder: Path, count: int) -> list[Any]:
    """Run a module-level function with each rank as its argument; what each returned, by rank.

    Ranks are forks, joined by gloo. The first that fails, or waits for one that will not come, ends the test; what it
    raised is on stderr.
    """
    (folder / "program").write_bytes(pickle.dumps(program))
    numbers = [str(rank) for rank in range(count)]
    ranks = [subprocess.Popen(command("tests.worker.ranks", str(folder), rank, str(count))) for rank in numbers]
    ends_s = time.monotonic() + _LIMIT_S
    try:
        while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
            assert time.monotonic() < ends_s, f"after {_LIMIT_S} s the exit codes of ranks are {codes}"
            time.sleep(_POLL_S)
        assert not any(codes), f"the exit codes of ranks are {codes}; see their stderr"
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [pickle.loads((folder / f"answer-{rank}").read_bytes()) for rank in numbers]


def main() -> None:
    """As the module says."""
    import torch
    import torch.distributed as dist

    folder, rank, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    program = pickle.loads((folder / "program").read_bytes())
    dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=count)
    answer = program(rank)
    dist.barrier()
    dist.destroy_process_group()
    (folder / f"answer-{rank}").write_bytes(pickle.dumps(answer))


if __name__ == "__main__":
    main()
