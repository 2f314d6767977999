"""Telemetry of a gang of two nodes with two ranks each, over real stores, one thread a rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from torch.distributed import PrefixStore, Store, TCPStore

from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.block import RankBlock, Value
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.rank_folder import RecordSink
from pytest_ddpscale.run.telemetry import GpuReadings, TelemetryBlock
from pytest_ddpscale.telemetry.windows import Sampler
from pytest_ddpscale.worker.context import GangTelemetry, TimedWindow, with_telemetry
from pytest_ddpscale.worker.control import Control
from tests.builders.records import gang_at
from tests.builders.telemetry import Telemetry, telemetry_of
from tests.nvml_stand_in.fixtures import machine, nvml_library_directory
from tests.nvml_stand_in.machine import A100, Changing, PlayedMachine, at_work, uuid_of
from tests.telemetry.sampled import GENEROUS_S, wait_until

__all__ = ["machine", "nvml_library_directory"]

NODES, PER_NODE = 2, 2
RANKS = range(NODES * PER_NODE)
UUIDS = [f"GPU-{rank}" for rank in RANKS]
TIMEOUT = timedelta(seconds=20)
KEY = "weak/r/0/ddp@4"
BEGAN_UNIX_S = 1.7e9
Window = tuple[str, float, float]
Starts = Callable[[Iterable[str], Path], Sampler]


class ToldSampler(Sampler):
    """Answers by heart: a GPU draws as many joules as its number and is half busy."""

    def __init__(self, uuids: Iterable[str], path: Path) -> None:
        self.uuids, self.is_closed, self.waits = list(uuids), False, 0
        self.asked: list[list[Window]] = []

    def wait_for_first_poll(self, timeout_s: float = 5.0) -> None:
        self.waits += 1

    def cut(self, windows: Sequence[Window]) -> tuple[GpuReadings, ...]:
        self.asked.append(list(windows))
        return tuple(
            GpuReadings(
                started_unix_s=begin, ended_unix_s=end, polls=3, utilization=0.5,
                energy_j=float(uuid.removeprefix("GPU-")),
            )
            for uuid, begin, end in windows
        )  # fmt: skip

    def close(self) -> None:
        self.is_closed = True


class Sink(RecordSink):
    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.written: list[Any] = []

    def append_records(self, records: Sequence[Any]) -> None:
        self.written += records


class Rank:
    """One rank of the gang, with what rank 0 writes."""

    def __init__(self, rank: int, store: Store, device_type: DeviceType, sampler: Starts) -> None:
        self.rank = rank
        self.control = Control(store, rank, rank % PER_NODE, len(RANKS), NODES)
        self.samplers: list[Sampler] = []

        def started(uuids: Iterable[str], path: Path) -> Sampler:
            self.samplers.append(sampler(uuids, path))
            return self.samplers[-1]

        sink = Sink()
        self.written: list[TelemetryBlock] = sink.written
        self.telemetry = GangTelemetry(self.control, device_type, sink, 0, started)

    def begin(self, device: str) -> None:
        self.control.say(f"startup/{self.rank}", device)
        self.telemetry.start(lambda ranks: self.control.hear_all([f"startup/{rank}" for rank in ranks], str))

    def block(self, key: str, ranks: Sequence[int], said: Windows) -> list[TelemetryBlock]:
        """As ranks do it around a timed block. Returns what rank 0 writes."""
        self.telemetry.wait_for_first_poll()
        if self.rank in ranks:
            self.control.say(f"{key}/{self.rank}", [list(window) for window in said])
        self.telemetry.tell(key, ranks, self.windows)
        if self.rank == 0:
            self.telemetry.collect(key, ranks, "weak/r", "ddp@4", 0)
            self.control.say(f"{key}/done", True)
        else:
            self.control.wait_for(f"{key}/done")
        if self.rank in ranks:
            self.control.forget(f"{key}/{self.rank}")
        self.telemetry.forget(key, ranks)
        return self.written

    def windows(self, keys: Sequence[str]) -> list[TimedWindow]:
        return [TimedWindow(*window) for said in self.control.hear_all(keys, list) for window in said]


Windows = Sequence[TimedWindow]


def measured(rank: int, began_unix_s: float = BEGAN_UNIX_S, seconds: float = 2.0) -> Windows:
    """One block; of a probe there may be several, or none."""
    return [TimedWindow(rank, began_unix_s + rank, seconds)]


class Gang:
    """All ranks, each in a thread of its own."""

    def __init__(
        self, stores: Sequence[Store], device_type: DeviceType = "cuda", sampler: Starts = ToldSampler
    ) -> None:
        self.ranks = [Rank(rank, store, device_type, sampler) for rank, store in enumerate(stores)]

    def all(self, do: Callable[[Rank], Any]) -> list[Any]:
        """What each rank returns, by rank."""
        with ThreadPoolExecutor(len(self.ranks)) as pool:
            return [done.result(timeout=60) for done in [pool.submit(do, rank) for rank in self.ranks]]

    def begin(self, devices: Sequence[str] = UUIDS) -> Gang:
        self.all(lambda rank: rank.begin(devices[rank.rank]))
        return self

    def block(
        self, said: Callable[[int], Windows] = measured, ranks: Sequence[int] = RANKS, key: str = KEY
    ) -> list[TelemetryBlock]:
        """What rank 0 has written after a block."""
        self.all(lambda rank: rank.block(key, ranks, said(rank.rank)))
        assert [rank.written for rank in self.ranks[1:]] == [[]] * len(RANKS[1:]), "only rank 0 writes"
        return self.ranks[0].written

    @property
    def samplers(self) -> list[ToldSampler]:
        return [one for rank in self.ranks for one in rank.samplers if isinstance(one, ToldSampler)]

    @property
    def keys(self) -> int:
        return int(self.ranks[0].control.store.num_keys())


@pytest.fixture(scope="module")
def connected() -> list[TCPStore]:
    """A store for all tests, and each rank's connection to it."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    return [server] + [
        TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False, timeout=TIMEOUT) for _ in RANKS[1:]
    ]


@pytest.fixture
def stores(connected: list[TCPStore], request: pytest.FixtureRequest) -> list[Store]:
    """Of each rank, for one test."""
    return [PrefixStore(request.node.name, store) for store in connected]


def gpus_of(written: Sequence[TelemetryBlock], devices: Sequence[str] = UUIDS) -> list[Telemetry]:
    """What was written, GPU by GPU."""
    places = [Place(f"n{rank // PER_NODE + 1}", rank % PER_NODE, devices[rank]) for rank in RANKS]
    return telemetry_of(written, {0: gang_at(places)})


def part(rank: int, **changes: Any) -> RankBlock:
    fields: dict[str, Any] = {
        "rank": rank, "work": 1.0, "began_unix_s": 1.0, "seconds": 2.0, "readings": {"utilization": None},
    }  # fmt: skip
    return RankBlock(**(fields | changes))


def essence(part: RankBlock) -> tuple[Value, Value]:
    """What telemetry adds to it."""
    return part.readings.get("utilization"), part.readings.get("energy_j")


def test_each_node_has_one_sampler_for_its_gpus(stores: list[Store]) -> None:
    gang = Gang(stores).begin()
    assert [len(rank.samplers) for rank in gang.ranks] == [1, 0, 1, 0]
    assert [sampler.uuids for sampler in gang.samplers] == [["GPU-0", "GPU-1"], ["GPU-2", "GPU-3"]]
    gang.all(lambda rank: rank.telemetry.close())
    assert [sampler.is_closed for sampler in gang.samplers] == [True, True]


def test_all_of_a_block_is_written_and_its_ranks_have_the_essence(stores: list[Store]) -> None:
    written = Gang(stores).begin().block()
    found = gpus_of(written)
    assert [(one.host, one.local_rank, one.rank) for one in found] == [
        ("n1", 0, 0),
        ("n1", 1, 1),
        ("n2", 0, 2),
        ("n2", 1, 3),
    ]
    assert {(one.study, one.arm, one.round) for one in found} == {("weak/r", "ddp@4", 0)}
    assert [(one.device, one.started_unix_s, one.ended_unix_s) for one in found] == [
        (f"GPU-{rank}", BEGAN_UNIX_S + rank, BEGAN_UNIX_S + rank + 2.0) for rank in RANKS
    ]
    parts = with_telemetry([part(rank) for rank in (*RANKS, 9)], written[0])
    assert list(map(essence, parts)) == [*((0.5, float(rank)) for rank in RANKS), (None, None)]


def test_only_the_first_block_may_wait_for_the_sampler(stores: list[Store]) -> None:
    gang = Gang(stores).begin()
    gang.block()
    gang.block(key="weak/r/1/ddp@4")
    assert [sampler.waits for sampler in gang.samplers] == [1, 1]


@pytest.mark.parametrize("ranks", [(0,), (0, 1), (0, 2), (1, 2, 3)])
def test_only_ranks_that_timed_a_block_are_told_of(stores: list[Store], ranks: tuple[int, ...]) -> None:
    gang = Gang(stores).begin()
    assert [one.rank for one in gpus_of(gang.block(ranks=ranks))] == list(ranks)
    windows = [[uuid for asked in sampler.asked for uuid, _, _ in asked] for sampler in gang.samplers]
    assert windows == [[f"GPU-{rank}" for rank in ranks if rank // PER_NODE == node] for node in range(NODES)]


def test_what_was_told_is_forgotten(stores: list[Store]) -> None:
    gang = Gang(stores).begin()
    gang.block()
    before = gang.keys
    for number in (1, 2):
        gang.block(key=f"weak/r/{number}/ddp@4")
        gang.block(ranks=(0, 2), key=f"probes/{number}")
    assert gang.keys - before == 4, "of each block, that it is done"


def test_a_probe_has_a_window_for_each_of_its_turns(stores: list[Store]) -> None:
    gang = Gang(stores).begin()

    def turns(rank: int) -> Windows:
        again = measured(rank, BEGAN_UNIX_S + 10, 0.5) if rank else []
        return [*measured(rank, seconds=0.5), *again]

    found = gpus_of(gang.block(turns, ranks=(0, 3), key="probes/0/send-recv"))
    assert [(one.rank, one.started_unix_s, one.ended_unix_s) for one in found] == [
        (0, BEGAN_UNIX_S, BEGAN_UNIX_S + 0.5),
        (3, BEGAN_UNIX_S + 3, BEGAN_UNIX_S + 3.5),
        (3, BEGAN_UNIX_S + 13, BEGAN_UNIX_S + 13.5),
    ]


def test_a_probe_that_could_not_be_done_has_none(stores: list[Store]) -> None:
    gang = Gang(stores).begin()
    written = gang.block(lambda rank: [] if rank else measured(rank), key="probes/0/matmul-fp8")
    assert [one.rank for one in gpus_of(written)] == [0]
    gang.block(lambda rank: [], key="probes/1/matmul-fp8")
    assert len(written) == 1


def test_cpus_are_not_sampled(stores: list[Store]) -> None:
    gang = Gang(stores, "cpu").begin()
    assert gang.block() == []
    assert gang.samplers == []


def real_sampler(machine: PlayedMachine, monkeypatch: pytest.MonkeyPatch) -> Starts:
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    return lambda uuids, path: Sampler(uuids, Path(mkdtemp(dir=machine.file.parent), path.name), 0.1)


def test_the_real_sampler_finds_the_gpus_of_its_ranks(
    stores: list[Store], machine: PlayedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By UUID: ranks have the machine's GPUs in another order than NVML, and the last one is of another machine."""
    machine.play([at_work(A100), A100, A100])
    uuids = [uuid_of(1), uuid_of(2), uuid_of(0), "GPU-of-nowhere"]

    gang = Gang(stores, sampler=real_sampler(machine, monkeypatch)).begin(uuids)
    for rank in (0, 2):  # the first poll takes an interpreter's start
        gang.ranks[rank].samplers[0].wait_for_first_poll(GENEROUS_S)
    written = gang.block(lambda rank: measured(rank, time.time() - 3 - rank, 1.0))
    gang.all(lambda rank: rank.telemetry.close())
    found = gpus_of(written, uuids)
    assert list(found[3].unreadable) == ["device"]
    busy = A100.work.utilization_pct
    assert not isinstance(busy, Changing)
    parts = with_telemetry([part(rank) for rank in RANKS], written[0])
    assert [essence(one)[0] for one in parts] == [0.0, 0.0, pytest.approx(busy / 100), None]


def test_errors_of_the_first_block_are_counted_however_long_the_sampler_takes_to_start(
    stores: list[Store], machine: PlayedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.play([at_work(A100), A100])

    uuids = [uuid_of(rank % PER_NODE) for rank in RANKS]
    gang = Gang(stores, sampler=real_sampler(machine, monkeypatch)).begin(uuids)
    gang.all(lambda rank: rank.telemetry.wait_for_first_poll())
    began = time.time()
    wait_until(began + 0.1)
    written = gang.block(lambda rank: [TimedWindow(rank, began, 0.1)])
    gang.all(lambda rank: rank.telemetry.close())
    assert [one.ecc_uncorrected for one in gpus_of(written, uuids)] == [0] * len(RANKS)
