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
from pytest_ddpscale.run.records import EndReason
from pytest_ddpscale.worker.control import host_name
from pytest_ddpscale.worker.device import Timing
from pytest_ddpscale.worker.rank_context import RankContext

RankPair = tuple[int, int]
_FP32_BYTES = 4


class PairSearch:
    """One rank's part in the search for a slow node or link, which runs once per gang.

    Rank 0 decides before each round which nodes form pairs. All ranks of a node are measured at the same time, each
    with the rank of the same number on the other node. Ranks without a partner wait at the store, their device idle.
    """

    def __init__(self, study: PairStudy, context: RankContext) -> None:
        self._study = study
        self._context = context
        self._device, self._control, self._progress = context.device, context.control, context.progress
        self._slow_share = SLOW_SHARES["cpu" if context.device.torch_device.type == "cpu" else "cuda"]

    def run(self) -> EndReason:
        """Measure pairs until it is known whether a node or link is slow, and which; all ranks call this.

        Returns:
            Reason of the end, as in `StudyEnd`: ``decided``, ``rounds`` or ``budget``.

        Raises:
            RuntimeError: two ranks could not communicate; the message names them and their hosts.
            torch.distributed.DistStoreError: a rank did not answer within the store's timeout.
        """
        here = self._progress
        results: list[PairResult] = []
        number = 0
        while True:
            ended, pairs = self._next_round(number, results)
            if ended:
                here.arm, here.round = None, None
                return ended
            here.round = number
            self._measure_mine(number, pairs)
            here.arm, here.phase = None, "gathering"
            if self._control.rank == 0:
                results += self._gather(number, pairs)
            number += 1

    def _next_round(self, number: int, results: Sequence[PairResult]) -> tuple[EndReason | None, list[NodePair]]:
        """Why round `number` does not begin, or else its node pairs, decided by rank 0 for all ranks."""

        def decide() -> tuple[EndReason | None, Sequence[NodePair]]:
            nodes = self._control.layout.nodes
            if pairs := next_round(nodes, results, self._slow_share):
                return ("budget", ()) if self._context.is_out_of_time else (None, pairs)
            return ("rounds" if is_undecided(nodes, results, self._slow_share) else "decided"), ()

        ended, pairs = self._control.decided(f"{self._study.id}/{number}/next", decide)
        return ended, [(one, other) for one, other in pairs]

    def _measure_mine(self, number: int, pairs: Sequence[NodePair]) -> None:
        """Time the pair of this rank, if it has one, and publish its part of the round."""
        node, slot = divmod(self._control.rank, self._control.layout.ranks_per_node)
        mine = next((pair for pair in pairs if node in pair), None)
        if mine is None:
            self._progress.phase = "pausing"  # all ranks enter equally many phases, so none seems to be behind
            return
        ranks = self._ranks(mine, slot)
        self._progress.arm = f"ranks {ranks[0]} and {ranks[1]}"
        self._progress.phase = "pair"
        timing = self._measure(number, ranks)
        part = RankBlock(
            rank=self._control.rank,
            group=self._rails(pairs).index(ranks),
            work=self._study.message_bytes,
            began_unix_s=timing.started_unix_s,
            seconds=timing.block_s,
            series={STEP_S: step_bytes(timing.step_s)},
        )
        self._control.say(self._record_key(number, self._control.rank), part)

    def _measure(self, number: int, ranks: RankPair) -> Timing:
        """The all-reduces of a pair, as this rank saw them."""
        control = self._control
        key = f"{self._study.id}/{number}/{ranks[0]}"
        other = ranks[1] if control.rank == ranks[0] else ranks[0]
        # Hosts are exchanged first, so an error can name the other one.
        control.say(f"{key}/who/{control.rank}", host_name())
        host = self._take(f"{key}/who/{other}")
        try:
            return self._timed_all_reduces(f"{key}/group", ranks)
        except RuntimeError as error:
            raise RuntimeError(
                f"all-reduce of rank {control.rank} on {host_name()} with rank {other} on {host}: {error}"
            ) from error

    def _gather(self, number: int, pairs: Sequence[NodePair]) -> list[PairResult]:
        """Write the record of a round. Returns the speed of each node pair: that of its slowest rail."""
        ranks = [rank for rail in self._rails(pairs) for rank in rail]
        keys = [self._record_key(number, rank) for rank in ranks]
        study, common = self._study, {"round": number, "gang": self._context.gang, "count": self._study.iterations}
        parts = self._control.hear_all(keys, RankBlock)
        block = joined(parts, study=study.id, arm=study.arms[0].name, **common)
        self._context.sink.append_record(block)
        for key in keys:
            self._control.forget(key)
        slowest_s = block.each(STEP_S).min(axis=1).reshape(len(pairs), -1).max(axis=1)
        gbps = (study.message_bytes / slowest_s.astype(float) / 1e9).tolist()
        stalled = np.any(are_stalled(block.each(STEP_S)).reshape(len(pairs), -1), axis=1)
        return list(map(PairResult, repeat(number), pairs, gbps, stalled.tolist()))

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

    def _ranks(self, pair: NodePair, slot: int) -> RankPair:
        per_node = self._control.layout.ranks_per_node
        return pair[0] * per_node + slot, pair[1] * per_node + slot

    def _rails(self, pairs: Sequence[NodePair]) -> list[RankPair]:
        """The ranks that communicate: those with the same number on the nodes of a pair."""
        slots = range(self._control.layout.ranks_per_node)
        return [self._ranks(pair, slot) for pair in pairs for slot in slots]

    def _record_key(self, number: int, rank: int) -> str:
        return f"{self._study.id}/{number}/{rank}/record"

    def _take(self, key: str) -> Any:
        """Read and remove a key that only this rank reads, so the store does not grow with the rounds."""
        data = self._control.hear(key)
        self._control.forget(key)
        return data


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
