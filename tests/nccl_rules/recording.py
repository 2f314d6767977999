"""A backend of torch.distributed that is gloo, and writes down what NCCL would be asked for.

Every group's making, collectives, messages and end become a line of the rank's log, before they happen: what hangs is
its last line. DDP's own all-reduces come through here too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

BACKEND = "recorded"
# All that a process group may be asked for, by the names of any version of torch.
COLLECTIVES = (
    "allreduce",
    "allreduce_coalesced",
    "allgather",
    "all_gather_single",
    "_allgather_base",
    "allgather_coalesced",
    "alltoall",
    "all_to_all_single",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "_reduce_scatter_base",
    "scatter",
)


class Log:
    """What this rank asked for, line by line.

    Args:
        path: of the file.
        rank: global rank.
    """

    def __init__(self, path: Path, rank: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        self.rank = rank
        self.messages: list[dict[str, Any]] | None = None  # of the batch that is being put together
        self.is_last_sweep = False  # whether the default group is ended, and with it all that is left

    def write(self, kind: str, group: RecordedGroup, **details: Any) -> None:
        """Append a line, at once."""
        line = {"kind": kind, "group": group.id, "ranks": group.ranks, **details}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


class RecordedGroup(dist.ProcessGroup):
    """A gloo group that writes down what it is asked for.

    Args:
        log: where.
        gloo: what does it.
        id: the same on all members, and of no other group.
        ranks: global ranks of its members.
        timeout: that it was made with.
    """

    def __init__(self, log: Log, gloo: Any, id: str, ranks: list[int], timeout: timedelta) -> None:
        # Typed by its other constructor alone, from torch 2.14 on.
        init: Any = super().__init__
        init(gloo.rank(), gloo.size())
        self._log, self._gloo, self.id, self.ranks = log, gloo, id, ranks
        log.write("create", self, timeout_s=timeout.total_seconds())

    @property
    def group_name(self) -> Any:
        """As torch asks for it."""
        return self.id

    def getBackendName(self) -> str:  # noqa: N802
        """As torch asks for it."""
        return BACKEND

    def _get_backend(self, device: torch.device) -> Any:
        return self._gloo

    def collective(self, name: str, *arguments: Any) -> Any:
        """Ask gloo for a collective."""
        root = getattr(arguments[-1], "rootRank", None) if arguments else None
        asked = f"{name} {_sizes(arguments)}" + ("" if root is None else f" from member {root}")
        self._log.write("collective", self, asked=asked)
        return getattr(self._gloo, name)(*arguments)

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int = 0) -> Any:
        """Ask gloo to send to a member."""
        self._message("send", tensors, peer)
        return self._gloo.send(tensors, peer, tag)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int = 0) -> Any:
        """Ask gloo to receive from a member."""
        self._message("recv", tensors, peer)
        return self._gloo.recv(tensors, peer, tag)

    def shutdown(self) -> None:
        """End it: gloo's sockets close with the last reference."""
        self._log.write("destroy", self, is_left_over=self._log.is_last_sweep and self is not dist.group.WORLD)
        self._gloo = _Destroyed(self.id)

    def _message(self, way: str, tensors: list[torch.Tensor], peer: int) -> None:
        message = {"way": way, "peer": self.ranks[peer], "asked": _sizes(tensors)}
        if self._log.messages is None:
            self._log.write("exchange", self, messages=[message])
        else:
            self._log.messages.append(message)


def _collective(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: self.collective(name, *arguments)


for _name in COLLECTIVES:
    setattr(RecordedGroup, _name, _collective(_name))


class _Destroyed:
    """Where gloo was: nothing can be asked of it any more."""

    def __init__(self, id: str) -> None:
        self._id = id

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} in group {self._id}, which was destroyed")


def record(path: Path, rank: int) -> None:
    """From now on this process has `BACKEND`, and groups of gloo that are made without `new_group` are recorded, too.

    Args:
        path: of the log.
        rank: global rank of this process.
    """
    log = Log(path, rank)
    gloo = dist.ProcessGroupGloo

    def by_torch(options: Any, _: Any) -> RecordedGroup:
        ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        made = gloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)
        return RecordedGroup(log, made, f"group {options.group_id}", ranks, options.timeout)

    def by_hand(store: Any, rank: int, size: int, timeout: timedelta) -> RecordedGroup:
        store.set(f"recorded/{rank}", str(log.rank))
        ranks = [int(store.get(f"recorded/{member}")) for member in range(size)]
        # The store is the group's own, so that what is said in it once tells the group from others of the same ranks.
        if rank == 0:
            store.set("recorded/id", f"{os.getpid()}-{next(numbers)}")
        return RecordedGroup(log, gloo(store, rank, size, timeout), store.get("recorded/id").decode(), ranks, timeout)

    numbers = iter(range(10**9))
    dist.Backend.register_backend(BACKEND, by_torch, extended_api=True, devices=["cpu"])
    dist.ProcessGroupGloo = by_hand  # type: ignore[assignment,misc]
    dist.batch_isend_irecv = _in_batches(log, dist.batch_isend_irecv)
    dist.destroy_process_group = _in_sweeps(log, dist.destroy_process_group)


def _in_batches(log: Log, original: Callable[..., Any]) -> Callable[..., Any]:
    """`dist.batch_isend_irecv` whose messages are one line: NCCL starts them together."""

    def batch_isend_irecv(operations: list[Any]) -> Any:
        log.messages = []
        try:
            return original(operations)
        finally:
            log.write("exchange", operations[0].group, messages=log.messages)
            log.messages = None

    return batch_isend_irecv


def _in_sweeps(log: Log, original: Callable[..., Any]) -> Callable[..., Any]:
    """`dist.destroy_process_group` that says which groups it ends because nobody else has."""

    def destroy_process_group(group: Any = None) -> None:
        log.is_last_sweep = group is None
        original(group)

    return destroy_process_group


def _sizes(arguments: Any) -> str:
    """How many numbers of which type all tensors among arguments have; they come in lists of lists."""
    if isinstance(arguments, torch.Tensor):
        return f"{arguments.numel()} {arguments.dtype}"
    return ", ".join(_sizes(argument) for argument in arguments if isinstance(argument, (torch.Tensor, list, tuple)))
