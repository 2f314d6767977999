"""Node pairs measured by real all-reduces over gloo, one thread a rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import PrefixStore, TCPStore

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import PairStudy
from pytest_ddpscale.run import records
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.worker.context import RankProgress
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice, Forwards, Timing
from pytest_ddpscale.worker.pairs import PairSearch, group_of_two
from tests.builders.judged import rails_of, slow_links
from tests.builders.probes import pair_evidence
from tests.builders.records import gang_at

from .kept_records import KeptRecords, context_on_cpu

STUDY = PairStudy((Arm("all-reduce-4kib", 2),), 3)
TIMEOUT = timedelta(seconds=20)
FAST_S, SLOW_S = 1e-5, 1e-3


class ScriptedCpu(CpuDevice):
    """Takes part in every all-reduce, and says that each took a given time: a shared machine's own are no test."""

    def __init__(self, step_s: float, device_id: str) -> None:
        super().__init__()
        self.step_s = step_s
        self.id = device_id
        self.steps = 0

    def time_steps(self, step: Callable[[], None], steps: int, forwards: Forwards | None = None) -> Timing:
        for _ in range(steps):
            step()
        self.steps += steps
        # The first is disturbed by something else.
        step_s = (5 * self.step_s, *(steps - 1) * [self.step_s])
        return Timing(0.0, step_s, sum(step_s), None, None)


class Rank:
    """One rank, to be run in a thread of its own."""

    def __init__(self, rank: int, nodes: int, per_node: int, store: TCPStore, step_s: float) -> None:
        self.host = f"n{rank // per_node + 1}"
        self.control = Control(store, rank, rank % per_node, nodes * per_node, nodes)
        self.device = ScriptedCpu(step_s, f"cpu-{rank}")
        self.progress = RankProgress()
        self.sink = KeptRecords()
        self.deadline_unix_s: float | None = None
        self.timeout = TIMEOUT

    def run(self) -> str:
        who = records.Rank(Place(self.host, self.control.local_rank, self.device.id))
        self.control.say(f"startup/{self.control.rank}", who)
        context = context_on_cpu(
            self.device, self.control, self.timeout, sink=self.sink, progress=self.progress,
            deadline_unix_s=self.deadline_unix_s,
        )  # fmt: skip
        return PairSearch(STUDY, context).run()


def gang(nodes: int, per_node: int = 1, slow_ranks: tuple[int, ...] = ()) -> list[Rank]:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    stores = [server] + [
        TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)
        for _ in range(nodes * per_node - 1)
    ]
    return [
        Rank(rank, nodes, per_node, store, SLOW_S if rank in slow_ranks else FAST_S)
        for rank, store in enumerate(stores)
    ]


def started(ranks: list[Rank]) -> list[Future[str]]:
    pool = ThreadPoolExecutor(len(ranks))
    futures = [pool.submit(rank.run) for rank in ranks]
    pool.shutdown(wait=False)
    return futures


def measured(ranks: list[Rank]) -> tuple[list[str], Evidence]:
    """What each rank returned, and what the first one wrote."""
    ended = [future.result(timeout=60) for future in started(ranks)]
    assert all(not rank.sink.records for rank in ranks[1:]), "only rank 0 writes"
    who = gang_at([Place(rank.host, rank.control.local_rank, rank.device.id) for rank in ranks])
    return ended, pair_evidence([who, *ranks[0].sink.records])


def test_a_slow_node_is_isolated_by_measuring_it_again() -> None:
    ranks = gang(nodes=3, slow_ranks=(1,))
    ended, evidence = measured(ranks)
    found = rails_of(evidence)
    assert ended == ["decided"] * 3
    assert found.hosts[found.pairs[found.of[:3], :2]].tolist() == [["n2", "n3"], ["n1", "n3"], ["n1", "n2"]]
    assert found.pairs[found.of, 2].tolist() == [0, 1, 2, 3, 4], "confirmed twice"
    assert [fault.host for fault in slow_links(evidence)] == ["n2"]


def test_a_record_says_who_was_measured_and_the_bandwidth_of_the_slower_end() -> None:
    found = rails_of(measured(gang(nodes=2, slow_ranks=(1,)))[1])
    assert found.pairs[found.of, 2].tolist() == [0]
    assert found.places[found.ends].tolist() == [[Place("n1", 0, "cpu-0"), Place("n2", 0, "cpu-1")]]
    assert found.gbps == pytest.approx([4096 / SLOW_S / 1e9])


def test_all_ranks_of_a_node_are_measured_at_once_each_with_its_like() -> None:
    found = rails_of(measured(gang(nodes=2, per_node=2, slow_ranks=(3,)))[1])
    ends = [[(end.host, end.local_rank) for end in rail] for rail in found.places[found.ends]]
    assert ends == [[("n1", 0), ("n2", 0)], [("n1", 1), ("n2", 1)]]
    assert found.pairs[found.of, 2].tolist() == [0, 0]
    assert found.gbps[0] > 10 * found.gbps[1]


def test_a_node_pair_is_as_fast_as_its_slowest_rail() -> None:
    ranks = gang(nodes=3, per_node=2, slow_ranks=(5,))
    (fault,) = slow_links(measured(ranks)[1])
    assert (fault.host, fault.place.local_rank, fault.place.uuid) == ("n3", 1, "cpu-5")


def test_without_a_fault_each_rank_measures_each_partner_once() -> None:
    ranks = gang(nodes=3)
    measured(ranks)
    assert [rank.device.steps for rank in ranks] == [2 * STUDY.iterations] * 3


def test_no_round_starts_after_the_deadline() -> None:
    ranks = gang(nodes=3)
    ranks[0].deadline_unix_s = time.time() - 1
    ended, found = measured(ranks)
    assert (ended, len(rails_of(found).of)) == (["budget"] * 3, 0)


def test_a_single_node_has_nothing_to_measure_whatever_the_time() -> None:
    ranks = gang(nodes=1)
    ranks[0].deadline_unix_s = time.time() - 1
    ended, found = measured(ranks)
    assert (ended, len(rails_of(found).of)) == (["decided"], 0)


def test_the_store_keeps_no_records() -> None:
    ranks = gang(nodes=3)
    measured(ranks)
    left = [ranks[0].control.store.check([f"control/pairs/{n}/{rank}"]) for n in range(3) for rank in range(3)]
    assert not any(left)


def test_a_failure_says_with_whom_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = gang(nodes=2)
    for rank in ranks:
        rank.timeout = timedelta(seconds=2)

    def fail(step: Callable[[], None], steps: int) -> Timing:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(ranks[1].device, "time_steps", fail)
    first, second = started(ranks)
    with pytest.raises(RuntimeError, match="all-reduce of rank 1 on n2 with rank 0 on n1: Connection closed by peer"):
        second.result(timeout=60)
    assert (ranks[1].progress.arm, ranks[1].progress.round) == ("ranks 0 and 1", 0)
    assert ranks[1].progress.phase == "pair"
    with pytest.raises(RuntimeError):
        first.result(timeout=60)


def test_a_pair_can_be_grouped_again_in_the_same_store() -> None:
    """Other groups may have been made in between, by one of both only."""
    both = [rank.control.store for rank in gang(nodes=2)]

    def group_twice(rank: int) -> int:
        sizes = 0
        for name in ("first", "second"):
            with group_of_two("gloo", PrefixStore(name, both[rank]), rank, TIMEOUT) as group:
                sizes += group.size()
        return sizes

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(group_twice, range(2))) == [4, 4]
