"""Node pairs measured by real all-reduces over gloo, one thread a rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import HashStore

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import PairStudy
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import Rank
from pytest_ddpscale.worker.context import RankContext
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import Timing
from pytest_ddpscale.worker.pairs import PairSearch
from tests.builders.judged import gpu_pairs_of, slow_links
from tests.builders.probes import pair_evidence
from tests.builders.records import gang_at

from .kept_records import KeptRecords, SteadyCpu, context_on_cpu

STUDY = PairStudy((Arm("all-reduce-4kib", 2),), 3)
FAST_S, SLOW_S = 1e-5, 1e-3


class Gang:
    """Ranks of nodes n1, n2 …, each to be run in a thread of its own."""

    def __init__(
        self, nodes: int, per_node: int = 1, slow: tuple[int, ...] = (), timeout_s: int = 20, **fields: Any
    ) -> None:
        timeout, count = timedelta(seconds=timeout_s), nodes * per_node
        self.places = [Place(f"n{rank // per_node + 1}", rank % per_node, f"cpu-{rank}") for rank in range(count)]
        self.contexts: list[RankContext] = []
        store = HashStore()
        store.set_timeout(timeout)
        for rank, place in enumerate(self.places):
            control = Control(store, rank, rank % per_node, count, nodes)
            control.say(f"startup/{rank}", Rank(place))
            device = SteadyCpu(SLOW_S if rank in slow else FAST_S)
            self.contexts.append(context_on_cpu(device, control, timeout, **fields | {"sink": KeptRecords()}))

    def run(self) -> list[Future[str]]:
        with ThreadPoolExecutor(len(self.contexts)) as pool:
            return [pool.submit(PairSearch(STUDY, context).run) for context in self.contexts]

    def measured(self) -> tuple[set[str], Any, Any]:
        """Why it ended, and from what the first rank wrote the rails and what is slow."""
        ended = {future.result() for future in self.run()}
        records, *others = [context.sink.records for context in self.contexts]  # type: ignore[attr-defined]
        assert not any(others), "only rank 0 writes"
        evidence = pair_evidence([gang_at(self.places), *records])
        return ended, gpu_pairs_of(evidence), slow_links(evidence)


@pytest.mark.parametrize(
    ("slow", "rounds", "culprits"),
    [((), [0, 1, 2], []), ((3,), [0, 1, 2, 3, 4], [("n2", 1, "cpu-3")])],
    ids=["sound", "confirmed-twice"],
)
def test_each_pair_is_measured_once_and_a_slow_node_is_isolated_by_measuring_it_again(
    slow: tuple[int, ...], rounds: list[int], culprits: list[tuple[str, int, str]]
) -> None:
    gang = Gang(nodes=3, per_node=2, slow=slow)
    ended, found, faults = gang.measured()
    assert ended == {"decided"}
    inorder = found.pairs[found.of[::2]]  # of two rails each
    assert found.hosts[inorder[:3, :2]].tolist() == [["n2", "n3"], ["n1", "n3"], ["n1", "n2"]]
    assert inorder[:, 2].tolist() == rounds
    assert [(fault.host, fault.place.local_rank, fault.place.uuid) for fault in faults] == culprits
    store = gang.contexts[0].control.store
    assert not any(store.check([f"control/pairs/{n}/{rank}"]) for n in rounds for rank in range(6))


def test_all_ranks_of_a_node_are_measured_at_once_each_with_its_like_by_the_slower_end() -> None:
    _, found, _ = Gang(nodes=2, per_node=2, slow=(3,)).measured()
    rails = [[Place("n1", 0, "cpu-0"), Place("n2", 0, "cpu-2")], [Place("n1", 1, "cpu-1"), Place("n2", 1, "cpu-3")]]
    assert found.places[found.ends].tolist() == rails
    assert found.pairs[found.of, 2].tolist() == [0, 0]
    assert found.gbps == pytest.approx([4096 / seconds / 1e9 for seconds in (FAST_S, SLOW_S)])


@pytest.mark.parametrize(("nodes", "why"), [(3, "budget"), (1, "decided")])
def test_no_round_starts_after_the_deadline_and_a_single_node_needs_none(nodes: int, why: str) -> None:
    ended, found, _ = Gang(nodes, deadline_unix_s=time.time() - 1).measured()
    assert (ended, len(found.of)) == ({why}, 0)


def test_a_failure_says_with_whom_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    gang = Gang(nodes=2, timeout_s=2)

    def fail(step: Callable[[], None], steps: int) -> Timing:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(gang.contexts[1].device, "time_steps", fail)
    first, second = gang.run()
    with pytest.raises(RuntimeError, match="all-reduce of rank 1 on n2 with rank 0 on n1: Connection closed by peer"):
        second.result()
    here = gang.contexts[1].progress
    assert (here.arm, here.round, here.phase) == ("ranks 0 and 1", 0, "pair")
    with pytest.raises(RuntimeError):
        first.result()
