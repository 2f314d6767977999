"""Measure pairs of nodes, round by round, to find a slow node or link."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import repeat
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore

from pytest_ddpscale.plan.pairing import (
    SLOW_SHARES,
    NodePair,
    PairResult,
    PairStudy,
    are_stalled,
    is_undecided,
    next_round,
)
from pytest_ddpscale.run.block import STEP_S, RankBlock, joined, step_bytes
from pytest_ddpscale.run.records import EndReason, Rank
from pytest_ddpscale.worker.context import RankContext
from pytest_ddpscale.worker.device import Timing

RankPair = tuple[int, int]
_FP32_BYTES = 4


class PairSearch:
    """One rank's part in the search for a slow node or link, which runs once per gang.

    Rank 0 decides before each round which nodes form pairs. All ranks of a node are measured at the same time, each
    with the rank of the same number on the other node. Ranks without a partner wait at the store, their device idle.
    """

    def __init__(self, study: PairStudy, context: RankContext) -> None:
        self._study, self._context = study, context
        self._device, self._control, self._progress = context.device, context.control, context.progress
        self._slow_share = SLOW_SHARES["cpu" if context.device.torch_device.type == "cpu" else "cuda"]
        self._results: list[PairResult] = []  # on rank 0

    def run(self) -> EndReason:
        """Measure pairs until it is known whether a node or link is slow, and which; all ranks call this.

        Returns:
            Reason of the end, as in `StudyEnd`: ``decided``, ``rounds`` or ``budget``.

        Raises:
            RuntimeError: two ranks could not communicate; the message names them and their hosts.
            torch.distributed.DistStoreError: a rank did not answer within the store's timeout.
        """
        progress, number, per_node = self._progress, 0, self._control.layout.ranks_per_node
        ended: EndReason | None
        ended, pairs = self._control.decided(f"{self._study.id}/next", self._next_round)
        while not ended:
            progress.round = number
            # The ranks that communicate: those with the same number on the nodes of a pair.
            rails = [(a * per_node + slot, b * per_node + slot) for a, b in pairs for slot in range(per_node)]
            part = self._measured(number, rails)
            progress.arm, progress.phase = None, "gathering"
            key, ranks = f"{self._study.id}/{number}", [rank for rail in rails for rank in rail]

            def join(parts: list[RankBlock], number: int = number, pairs: Sequence[NodePair] = pairs) -> Any:
                self._record(number, [(pair, other) for pair, other in pairs], parts)
                return self._next_round()

            ended, pairs = self._context.gather(key, ranks, part, RankBlock, join)
            number += 1
        progress.arm, progress.round = None, None
        return ended

    def _next_round(self) -> tuple[EndReason | None, Sequence[NodePair]]:
        """On rank 0: why the next round does not begin, or else its node pairs."""
        nodes = self._control.layout.nodes
        if pairs := next_round(nodes, self._results, self._slow_share):
            return ("budget", ()) if self._context.is_out_of_time else (None, pairs)
        return ("rounds" if is_undecided(nodes, self._results, self._slow_share) else "decided"), ()

    def _measured(self, number: int, rails: Sequence[RankPair]) -> RankBlock | None:
        """The all-reduces of this rank's pair, as it saw them; None if it has no partner in this round."""
        rank = self._control.rank
        group, ranks = next(((group, rail) for group, rail in enumerate(rails) if rank in rail), (0, None))
        if ranks is None:
            self._progress.phase = "pausing"  # all ranks enter equally many phases, so none seems to be behind
            return None
        self._progress.arm = f"ranks {ranks[0]} and {ranks[1]}"
        self._progress.phase = "pair"
        other = ranks[1] if rank == ranks[0] else ranks[0]
        # Read before anything fails, and the store with it.
        mine, peer = self._control.hear_all([f"startup/{rank}", f"startup/{other}"], Rank)
        try:
            timing = self._timed_all_reduces(f"{self._study.id}/{number}/{ranks[0]}/group", ranks)
        except RuntimeError as error:
            raise RuntimeError(
                f"all-reduce of rank {rank} on {mine.place.host} with rank {other} on {peer.place.host}: {error}"
            ) from error
        return RankBlock(
            rank=rank,
            group=group,
            work=self._study.message_bytes,
            began_unix_s=timing.started_unix_s,
            seconds=timing.block_s,
            series={STEP_S: step_bytes(timing.step_s)},
        )

    def _record(self, number: int, pairs: Sequence[NodePair], parts: Sequence[RankBlock]) -> None:
        """Write the record of a round, and keep the speed of each node pair: that of its slowest rail."""
        study, common = self._study, {"round": number, "gang": self._context.gang, "count": self._study.iterations}
        block = joined(parts, study=study.id, arm=study.arms[0].name, **common)
        self._context.sink.append_record(block)
        slowest_s = block.each(STEP_S).min(axis=1).reshape(len(pairs), -1).max(axis=1)
        gbps = (study.message_bytes / slowest_s.astype(float) / 1e9).tolist()
        stalled = np.any(are_stalled(block.each(STEP_S)).reshape(len(pairs), -1), axis=1)
        self._results += map(PairResult, repeat(number), pairs, gbps, stalled.tolist())

    def _timed_all_reduces(self, name: str, ranks: RankPair) -> Timing:
        """Time each all-reduce. The fastest counts: disturbances affect it least, and a slow link is slow in all.

        With healthy pairs of ranks on two busy cores, four fifths were within 0.7 … 1.4 of the median pair by the
        fastest all-reduce, and within 0.7 … 1.9 by the median all-reduce.
        """
        numbers = self._study.message_bytes // _FP32_BYTES
        tensor = torch.zeros(numbers, dtype=torch.float32, device=self._device.torch_device)
        store = PrefixStore(name, self._control.store)
        with group_of_two(self._device.backend, store, ranks.index(self._control.rank), self._context.timeout) as group:

            def all_reduce() -> None:
                group.allreduce([tensor]).wait()
                self._progress.count_step()

            all_reduce()  # connects both ranks and synchronizes them
            return self._device.time_steps(all_reduce, self._study.iterations)


@contextmanager
def group_of_two(backend: str, store: PrefixStore, rank: int, timeout: timedelta) -> Iterator[Any]:
    """A process group of two ranks, created without the other ranks.

    Not `dist.new_group`: it names a group created by its members only after the number of earlier groups, which differs
    for ranks that sat out a round, and then waits forever (pytorch/pytorch#173608). A pair that is measured again could
    also get the name, and with it the addresses, of its first group.

    Args:
        store: used by this group only.
    """
    kind: Any = dist.ProcessGroupNCCL if backend == "nccl" else dist.ProcessGroupGloo
    group = kind(store, rank, 2, timeout)
    yield group
    group.shutdown()  # not in a finally: after a failure in a collective it may hang
