"""Probes that communicate, on three real ranks over gloo."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.operation import COLLECTIVES
from pytest_ddpscale.plan.study import ProbeStudy
from pytest_ddpscale.run.block import Block, Unsupported
from pytest_ddpscale.run.record_lines import AnyRecord, RecordReader, line_of
from pytest_ddpscale.run.records import RoundEnd
from pytest_ddpscale.worker import probing, work
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice, Forwards, Timing
from pytest_ddpscale.worker.probing import ProbeRounds
from pytest_ddpscale.worker.work import CannotProbeError, Exchange, open_work
from tests.builders.measurements import ProbeMeasurement
from tests.builders.records import gang_on, probes_of

from .kept_records import KeptRecords, context_on_cpu
from .ranks import on_ranks

RANKS, KIB = 3, 2**10
COPY = Arm("memory-copy")
REDUCE = Arm("all-reduce-48kib", RANKS)
BY_TWO = Arm("all-reduce-64kib", 2)
GATHER = Arm("all-gather-48kib", RANKS)
SCATTER = Arm("reduce-scatter-48kib", RANKS)
BROADCAST = Arm("broadcast-48kib", RANKS)
TO_ROOT = Arm("reduce-48kib", RANKS)
ALL_TO_ALL = Arm("all-to-all-48kib", RANKS)
EXCHANGES = (REDUCE, GATHER, SCATTER, BROADCAST, TO_ROOT, ALL_TO_ALL)
UNEVEN = Arm("all-reduce-1kib", RANKS)  # 256 numbers, which three ranks do not share evenly
PAIRS = Arm("send-recv-16kib", RANKS)
# What goes wrong where: rank 1 gathers one wrong number, rank 2 receives one and has no memory for two probes.
SPOILED = Arm("all-gather-6kib", RANKS)
SPOILED_PAIRS = Arm("send-recv-6kib", RANKS)
REFUSED = Arm("all-reduce-4kib", RANKS)
REFUSED_COPY = Arm("host-to-device")
SPOILED_NUMBERS = 6 * KIB // 4
PROBES = (COPY, *EXCHANGES, BY_TWO, UNEVEN, PAIRS, SPOILED, SPOILED_PAIRS, REFUSED, REFUSED_COPY)


class Spoiled(Exchange):
    def __call__(self) -> None:
        super().__call__()
        if len(self.received) == SPOILED_NUMBERS and dist.get_rank() == (1 if len(self._sent) < SPOILED_NUMBERS else 2):
            self.received[-1] += 1


def _open_work(probe: Arm, turn: int, *rest: Any) -> Any:
    if probe in (REFUSED, REFUSED_COPY) and dist.get_rank() == 2:
        raise CannotProbeError("not enough memory")
    return open_work(probe, turn, *rest)


def _probe(rank: int) -> tuple[str, list[bytes]]:
    setattr(work, "buffer_bytes", lambda kind, device: 24 * KIB)  # noqa: B010 (which mypy lets pass)
    work.Exchange = Spoiled  # type: ignore[misc]
    setattr(probing, "open_work", _open_work)  # noqa: B010 (which mypy lets pass)
    store = PrefixStore("gang", dist.distributed_c10d._get_default_store())
    control = Control(store, rank, rank, RANKS)
    sink = KeptRecords()
    study = ProbeStudy(PROBES, rounds=2, block_s=0.01)
    context = context_on_cpu(CpuDevice(), control, timedelta(seconds=30), sink=sink)
    return ProbeRounds(study, context).run(), [line_of(record) for record in sink.records]


SMALL, MEDIUM, LARGER, LARGEST = (Arm(f"all-reduce-{size}", RANKS) for size in ("4kib", "1mib", "16mib", "1gib"))
S_PER_MIB = 0.05


class SlowByBytes(CpuDevice):
    """On which messages take as long as they are large, whatever else the machine does."""

    opened: ClassVar[list[float]] = []

    def time_steps(self, step: Callable[[], None], steps: int, forwards: Forwards | None = None) -> Timing:
        iterations: list[None] = []
        self.on_step = lambda: iterations.append(None)
        step()
        seconds = len(iterations) * self.opened[-1] / 2**20 * S_PER_MIB
        return Timing(time.time(), (seconds,), seconds, None, None)


def _open_slow_work(*arguments: Any) -> Any:
    opened = open_work(*arguments)
    SlowByBytes.opened.append(opened.work if opened else 1.0)
    return opened


def _within_limit(rank: int) -> tuple[list[bytes], list[float]]:
    """What rank 0 writes, and the messages that this rank made."""
    setattr(probing, "open_work", _open_slow_work)  # noqa: B010 (which mypy lets pass)
    store = PrefixStore("gang", dist.distributed_c10d._get_default_store())
    sink = KeptRecords()
    study = ProbeStudy((SMALL, MEDIUM, LARGER, LARGEST), rounds=2, block_s=0.01, iteration_limit_s=0.1)
    context = context_on_cpu(SlowByBytes(), Control(store, rank, rank, RANKS), timedelta(seconds=30), sink=sink)
    ProbeRounds(study, context).run()
    return [line_of(record) for record in sink.records], SlowByBytes.opened


def test_messages_larger_than_one_that_takes_too_long_are_not_even_tried(tmp_path: Path) -> None:
    answers = on_ranks(_within_limit, tmp_path, RANKS)
    reader = RecordReader()
    reader.read(line_of(WHO))
    records = [reader.read(line) for line in answers[0][0]]
    assert {record.arm for record in records if isinstance(record, Block)} == {SMALL.name, MEDIUM.name}
    unsupported = {record.arm: record for record in records if isinstance(record, Unsupported)}
    assert list(unsupported) == [LARGER.name, LARGEST.name]
    assert unsupported[LARGEST.name].ranks == (0, 1, 2)
    assert unsupported[LARGEST.name].reasons == unsupported[LARGER.name].reasons
    assert max(max(opened) for _, opened in answers) <= 2**24


Told = tuple[list[str], list[list[AnyRecord]]]
WHO = gang_on(["n1"], RANKS)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Why each rank ended, and what it wrote."""
    answers = on_ranks(_probe, tmp_path_factory.mktemp("probes"), RANKS)
    reader = RecordReader()
    reader.read(line_of(WHO))
    return [ended for ended, _ in answers], [[reader.read(line) for line in lines] for _, lines in answers]


def of(told: Told, probe: Arm) -> list[ProbeMeasurement]:
    found = [
        one for one in probes_of([WHO, *told[1][0]]) if (one.probe, one.world_size) == (probe.kind, probe.world_size)
    ]
    return sorted(found, key=lambda one: (one.round, one.rank, one.peer_rank or 0))


def ranks_of(measured: Sequence[ProbeMeasurement]) -> list[int]:
    return [one.rank for one in measured]


def test_all_ranks_come_to_the_end_and_the_first_one_writes(told: Told) -> None:
    ended, records = told
    assert ended == ["rounds"] * RANKS
    assert [len(one) > 0 for one in records] == [True, False, False]


def test_single_devices_are_measured_by_all_ranks(told: Told) -> None:
    assert ranks_of(of(told, COPY)) == [0, 1, 2] * 2


@pytest.mark.parametrize("probe", [*EXCHANGES, COPY])
def test_what_comes_out_is_correct_on_every_rank(told: Told, probe: Arm) -> None:
    measured = of(told, probe)
    assert ranks_of(measured) == [0, 1, 2] * 2
    assert all(one.is_correct for one in measured)
    assert {one.work for one in measured} == {48.0 * KIB}


def test_a_smaller_group_is_of_the_first_ranks_and_the_others_sit_out(told: Told) -> None:
    measured = of(told, BY_TWO)
    assert ranks_of(measured) == [0, 1] * 2
    assert all(one.is_correct for one in measured)


def test_a_message_is_rounded_down_to_what_ranks_share_evenly(told: Told) -> None:
    assert {one.work for one in of(told, UNEVEN)} == {3 * 85 * 4}


def test_all_ranks_of_a_probe_do_it_equally_often(told: Told) -> None:
    for probe in PROBES:
        assert len({one.iterations for one in of(told, probe)}) <= 1


def test_each_pair_sends_and_receives_once_a_round_and_both_ends_tell(told: Told) -> None:
    measured = of(told, PAIRS)
    pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert Counter((one.round, one.rank, one.peer_rank) for one in measured) == Counter(
        (number, *pair) for number in range(2) for pair in pairs
    )
    assert {one.work for one in measured} == {16 * KIB}
    assert all(one.is_correct for one in measured)


def test_a_wrong_number_is_told_by_the_rank_that_has_it(told: Told) -> None:
    assert [one.is_correct for one in of(told, SPOILED)] == [True, False, True] * 2
    assert {(one.rank, one.is_correct) for one in of(told, SPOILED_PAIRS)} == {(0, True), (1, True), (2, False)}


def test_ranks_do_not_wait_for_one_that_cannot_take_part(told: Told) -> None:
    assert of(told, REFUSED) == []
    unsupported = [record for record in told[1][0] if isinstance(record, Unsupported)]
    assert [(record.arm, record.ranks, record.reasons) for record in unsupported] == [
        (probe.name, (2,), "not enough memory") for probe in (REFUSED, REFUSED_COPY)
    ], "each once"
    assert all(REFUSED.name not in record.arms for record in told[1][0] if isinstance(record, RoundEnd))


def test_a_device_that_cannot_keeps_no_other_from_being_measured(told: Told) -> None:
    assert ranks_of(of(told, REFUSED_COPY)) == [0, 1] * 2


def test_one_wrong_number_of_a_sum_is_found(gloo_of_one: None) -> None:
    group = dist.group.WORLD
    assert group is not None
    for kind in COLLECTIVES:
        exchange = Exchange(kind, 300 * 4, group, torch.device("cpu"))
        assert exchange.is_correct()
        exchange.received[299] += 1
        assert not exchange._is_expected()


def group_of(ranks: list[int]) -> dist.ProcessGroup:
    group: Any = dist.new_group(ranks)
    return cast("dist.ProcessGroup", group)


def _judged(rank: int) -> dict[str, list[bool]]:
    """Of each collective, whether this rank finds right: what came, what one rank got wrong, what nobody sent."""
    found: dict[str, list[bool]] = {}
    group = group_of([0, 1, 2])
    for kind in COLLECTIVES:
        exchange = Exchange(kind, 3 * 700 * 4, group, torch.device("cpu"))
        verdicts = [exchange.is_correct()]
        if rank == 1:
            exchange.received[len(exchange.received) // 2] += 1
        verdicts.append(exchange._is_expected())
        exchange._run = lambda: None
        found[kind] = [*verdicts, exchange.is_correct()]
    return found


def test_each_collective_is_right_and_a_wrong_number_or_a_silent_one_is_found(tmp_path: Path) -> None:
    """Of a reduce by its root alone: what is in the other buffers is not defined."""
    by_rank = on_ranks(_judged, tmp_path, RANKS)
    for kind in COLLECTIVES:
        right, spoiled, silent = zip(*(found[kind] for found in by_rank), strict=True)
        assert all(right), kind
        assert spoiled == (True, kind == "reduce", True), kind
        expected = {"reduce": (False, True, True), "broadcast": (True, False, False)}
        assert silent == expected.get(kind, (False, False, False)), kind


def _silent_broadcast(rank: int) -> bool:
    """Where the ranks' messages are alike, as those of ranks 97 apart: whether nothing received counts as received."""
    work._RANKS_APART = 1
    exchange = Exchange("broadcast", 4096, group_of([0, 1, 2]), torch.device("cpu"))
    exchange._run = lambda: None
    return exchange.is_correct()


def test_a_rank_that_received_nothing_is_not_saved_by_what_it_had(tmp_path: Path) -> None:
    assert on_ranks(_silent_broadcast, tmp_path, RANKS) == [True, False, False]


def _among_others(rank: int) -> list[bool]:
    """Whether a root that is not rank 0 of the gang is found."""
    group = group_of([1, 2])
    if rank == 0:
        return []
    return [Exchange(kind, 4096, group, torch.device("cpu")).is_correct() for kind in COLLECTIVES]


def test_the_root_is_the_first_rank_of_the_group(tmp_path: Path) -> None:
    assert on_ranks(_among_others, tmp_path, RANKS) == [[], *[[True] * len(COLLECTIVES)] * 2]


def test_a_message_without_a_number_for_each_rank_is_refused(gloo_of_one: None) -> None:
    group = dist.group.WORLD
    assert group is not None
    with pytest.raises(CannotProbeError, match="a message of 3 bytes has no number for each of 1 ranks"):
        Exchange("all-reduce", 3, group, torch.device("cpu"))
