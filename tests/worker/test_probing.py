"""Rounds of probes on one rank, and on three real ranks over gloo that are started once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import permutations, product
from typing import Any, NamedTuple, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.operation import COLLECTIVES
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import ProbeStudy
from pytest_ddpscale.run.block import Block, Unsupported
from pytest_ddpscale.worker import context as contexts
from pytest_ddpscale.worker import probing, work
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice, Forwards, Timing
from pytest_ddpscale.worker.probing import ProbeRounds
from pytest_ddpscale.worker.work import CannotProbeError, Exchange, open_work
from tests.builders.measurements import ProbeMeasurement
from tests.builders.records import gang_on, probes_of

from .kept_records import KeptRecords, SteadyCpu, context_on_cpu, control_of_one
from .ranks import on_ranks

COPIES = (Arm("memory-copy"), Arm("host-to-device"), Arm("device-to-host"))
FP8 = Arm("matmul-fp8")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "buffer_bytes", lambda kind, device: 4096)


class Session:
    """A gang of one rank."""

    def __init__(self, device: SteadyCpu | None = None, **fields: Any) -> None:
        self.device, self.sink = device or SteadyCpu(0.01), KeptRecords()
        self.context = context_on_cpu(self.device, control_of_one(), sink=self.sink, **fields)

    def run(self, *probes: Arm, rounds: int = 2, **limits: Any) -> str:
        return ProbeRounds(ProbeStudy(probes, rounds, 0.2, **limits), self.context, seed=1).run()

    @property
    def measured(self) -> list[ProbeMeasurement]:
        return probes_of([gang_on(["n1"], 1), *self.sink.records])


def test_each_round_has_each_probe_once_in_an_order_of_its_own() -> None:
    session, numbers = Session(), range(8)
    assert session.run(*COPIES, rounds=8) == "rounds"
    assert session.sink.rounds == [(number, [probe.name for probe in COPIES]) for number in numbers]
    every, order = list(product(numbers, COPIES)), [(one.round, one.probe) for one in session.measured]
    assert sorted(order) == sorted((number, probe.kind) for number, probe in every)
    assert len({tuple(probe for number, probe in order if number == i) for i in numbers}) > 2
    store = session.context.control.store
    for left, said in ((0, "said/0"), (1, "0/0/ready")):  # the latter of the last block
        assert sum(store.check([f"control/probes/{number}/{probe.name}/{said}"]) for number, probe in every) == left
    assert session.device.iterations >= sum(one.iterations for one in session.measured), "each step is counted"
    assert (session.context.progress.arm, session.context.progress.phase) == (None, "cleaning up")


@pytest.mark.parametrize(("iteration_s", "iterations"), [(0.01, 20), (0.001, 200), (0.15, 1), (3.0, 1)])
def test_iterations_fill_a_block_and_are_at_least_one(iteration_s: float, iterations: int) -> None:
    session = Session(SteadyCpu(iteration_s))
    session.run(COPIES[0])
    assert [one.iterations for one in session.measured] == [iterations] * 2
    assert [one.seconds for one in session.measured] == pytest.approx([iterations * iteration_s] * 2)


def test_probes_that_nobody_needs_any_more_are_left_out_and_the_last_one_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def needed(folder: object, study: str, number: int, patience_s: float) -> list[str]:
        asked.append(number)
        return ["memory-copy"] if number < FEWEST_ROUNDS else []

    monkeypatch.setattr(contexts, "needed_arms", needed)
    session = Session(steered=True)
    assert session.run(*COPIES, rounds=20) == "decided"
    assert [len(arms) for _, arms in session.sink.rounds] == [3] * FEWEST_ROUNDS + [1]
    assert session.sink.rounds[-1] == (FEWEST_ROUNDS, ["memory-copy"])
    assert asked == [FEWEST_ROUNDS - 1, FEWEST_ROUNDS], "not before there are enough rounds to decide"


def test_no_round_starts_after_the_deadline() -> None:
    session = Session(deadline_unix_s=time.time() - 1)
    assert session.run(*COPIES) == "budget"
    assert (session.sink.records, session.device.iterations) == ([], 0)


def test_a_probe_that_no_rank_can_do_is_told_and_left_out() -> None:
    session, nothing = Session(), Session()
    assert session.run(FP8, Arm("matmul-fp32-528")) == "rounds"
    [(name, ranks, why)] = session.sink.unsupported
    assert (name, ranks) == (FP8.name, (0,))
    assert "need a GPU with fp8 units" in why
    assert session.sink.rounds == [(0, ["matmul-fp32-528"]), (1, ["matmul-fp32-528"])]
    assert {(one.work, one.is_correct) for one in session.measured} == {(2.0 * 528**3, True)}, "as its name says"
    assert nothing.run(FP8) == "rounds"
    assert [type(record) for record in nothing.sink.records] == [Unsupported]


@pytest.mark.parametrize(
    ("iteration_s", "unlimited", "measured"), [(0.2, (), 2), (0.3, (), 0), (3.0, ("memory-copy",), 1)]
)
def test_a_probe_that_takes_longer_than_the_limit_is_left_out_and_told_if_nothing_is_required_of_it(
    iteration_s: float, unlimited: tuple[str, ...], measured: int
) -> None:
    session = Session(SteadyCpu(iteration_s))
    assert session.run(*COPIES[:2], iteration_limit_s=0.25, without_limit=unlimited) == "rounds"
    assert sorted(one.probe for one in session.measured) == sorted(2 * [one.kind for one in COPIES[:measured]])
    why = f"one iteration takes {iteration_s:.2g} s, more than the limit of 0.25 s"
    assert session.sink.unsupported == [(one.name, (0,), why) for one in COPIES[measured:2]]


class Interrupted(SteadyCpu):
    """In its first attempt."""

    def time_steps(self, step: Callable[[], None], steps: int, forwards: Forwards | None = None) -> Timing:
        is_first, timing = not self.iterations, super().time_steps(step, steps)
        return replace(timing, block_s=1.0) if is_first else timing


def test_one_interrupted_attempt_does_not_leave_a_probe_out() -> None:
    session = Session(Interrupted(0.01))
    session.run(COPIES[0], iteration_limit_s=0.25)
    assert len(session.measured) == 2


def test_what_takes_many_times_the_limit_is_not_tried_twice() -> None:
    session = Session(SteadyCpu(3.0))
    session.run(COPIES[0], iteration_limit_s=0.25)
    assert session.device.iterations == 2


RANKS, KIB = 3, 2**10
COPY, REFUSED_COPY, _ = COPIES
EXCHANGES = [Arm(f"{kind}-48kib", RANKS) for kind in COLLECTIVES]
BY_TWO = Arm("all-reduce-64kib", 2)
UNEVEN = Arm("all-reduce-1kib", RANKS)  # 256 numbers, which three ranks do not share evenly
PAIRS = Arm("send-recv-16kib", RANKS)
# What goes wrong where: rank 1 gathers one wrong number, rank 2 receives one and has no memory for two probes.
SPOILED = Arm("all-gather-6kib", RANKS)
SPOILED_PAIRS = Arm("send-recv-6kib", RANKS)
REFUSED = Arm("all-reduce-4kib", RANKS)
SPOILED_NUMBERS = 6 * KIB // 4
EACH, BOTH_WAYS = [(rank, None) for rank in range(RANKS)], list(permutations(range(RANKS), 2))
# A probe, which ranks measure it with which peer, bytes, and who finds wrong numbers.
PROBES: list[tuple[Arm, Sequence[tuple[int, int | None]], int, set[int]]] = [
    *((probe, EACH, 48 * KIB, set()) for probe in (COPY, *EXCHANGES)),
    (BY_TWO, EACH[:2], 64 * KIB, set()),
    (UNEVEN, EACH, 3 * 85 * 4, set()),
    (PAIRS, BOTH_WAYS, 16 * KIB, set()),
    (SPOILED, EACH, 6 * KIB, {1}),
    (SPOILED_PAIRS, BOTH_WAYS, 6 * KIB, {2}),
    (REFUSED, [], 0, set()),
    (REFUSED_COPY, EACH[:2], 24 * KIB, set()),
]
SMALL, MEDIUM, LARGER, LARGEST = (Arm(f"all-reduce-{size}", RANKS) for size in ("4kib", "1mib", "16mib", "1gib"))
S_PER_MIB = 0.05


class Spoiled(Exchange):
    def __call__(self) -> None:
        super().__call__()
        if len(self.received) == SPOILED_NUMBERS and dist.get_rank() == (1 if len(self._sent) < SPOILED_NUMBERS else 2):
            self.received[-1] += 1


def open_with_little_memory(probe: Arm, turn: int, *rest: Any) -> Any:
    if probe in (REFUSED, REFUSED_COPY) and dist.get_rank() == 2:
        raise CannotProbeError("not enough memory")
    return open_work(probe, turn, *rest)


class SlowByBytes(SteadyCpu):
    """On which messages take as long as they are large, whatever else the machine does."""

    largest = 0.0

    def open_work(self, *arguments: Any) -> Any:
        opened = open_work(*arguments)
        size = opened.work if opened else 1.0
        self.seconds, self.largest = size / 2**20 * S_PER_MIB, max(size, self.largest)
        return opened


class Told(NamedTuple):
    """What one rank wrote of both studies, and found right of messages."""

    said: KeptRecords
    within_limit: KeptRecords
    largest: float
    judged: dict[str, list[bool]]
    among_others: list[bool]
    silent_broadcast: bool
    too_short: str


def _probed(rank: int, device: CpuDevice, *probes: Arm, limit_s: float | None = None) -> KeptRecords:
    store = PrefixStore(type(device).__name__, dist.distributed_c10d._get_default_store())
    sink = KeptRecords()
    context = context_on_cpu(device, Control(store, rank, rank, RANKS), timedelta(seconds=30), sink=sink)
    assert ProbeRounds(ProbeStudy(probes, 2, 0.01, limit_s), context).run() == "rounds"
    return sink


def _exchange(kind: str, size: int, ranks: dist.ProcessGroup) -> Exchange:
    return Exchange(kind, size, ranks, torch.device("cpu"))


def _is_right_if_silent(exchange: Exchange) -> bool:
    exchange._run = lambda: None
    return exchange.is_correct()


def _all_of_it(rank: int) -> Told:
    all_ranks, others = cast("list[dist.ProcessGroup]", [dist.new_group([0, 1, 2]), dist.new_group([1, 2])])
    judged = {}
    for kind in COLLECTIVES:
        exchange = _exchange(kind, 3 * 700 * 4, all_ranks)
        right = exchange.is_correct()
        if rank == 1:
            exchange.received[len(exchange.received) // 2] += 1
        judged[kind] = [right, exchange._is_expected(), _is_right_if_silent(exchange)]
    among_others = [_exchange(kind, 4096, others).is_correct() for kind in COLLECTIVES if rank]
    with pytest.raises(CannotProbeError) as refused:
        _exchange("all-reduce", 3, all_ranks)
    device = SlowByBytes(0.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(probing, "open_work", device.open_work)
        within_limit = _probed(rank, device, SMALL, MEDIUM, LARGER, LARGEST, limit_s=0.1)
        patched.setattr(work, "buffer_bytes", lambda kind, device: 24 * KIB)
        patched.setattr(work, "Exchange", Spoiled)
        patched.setattr(probing, "open_work", open_with_little_memory)
        said = _probed(rank, CpuDevice(), *(probe for probe, *_ in PROBES))
        patched.setattr(work, "_RANKS_APART", 1)  # the ranks' messages are alike, as those of ranks 97 apart
        silent_broadcast = _is_right_if_silent(_exchange("broadcast", 4096, all_ranks))
    return Told(
        said, within_limit, device.largest, judged, among_others, silent_broadcast, str(refused.value)
    )  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """By rank."""
    return on_ranks(_all_of_it, tmp_path_factory.mktemp("probes"), RANKS)


@pytest.mark.parametrize(("probe", "ends", "size", "wrong"), PROBES, ids=[probe.name for probe, *_ in PROBES])
def test_each_rank_of_a_probe_measures_it_once_a_round_and_tells_what_it_has_wrong(
    told: list[Told], probe: Arm, ends: list[tuple[int, int | None]], size: int, wrong: set[int]
) -> None:
    every = probes_of([gang_on(["n1"], RANKS), *told[0].said.records])
    measured = [one for one in every if (one.probe, one.world_size) == (probe.kind, probe.world_size)]
    found = sorted((one.round, (one.rank, one.peer_rank)) for one in measured)
    assert found == list(product(range(2), ends))
    assert {one.work for one in measured} == ({size} if ends else set())
    assert {one.rank for one in measured if not one.is_correct} == wrong
    assert len({one.iterations for one in measured}) <= 1


def test_ranks_do_not_wait_for_one_that_cannot_take_part_and_the_first_one_writes(told: list[Told]) -> None:
    first, *others = (one.said for one in told)
    assert [one.records for one in others] == [[], []]
    why = "not enough memory"
    assert first.unsupported == [(probe.name, (2,), why) for probe in (REFUSED, REFUSED_COPY)], "each once"
    assert first.rounds == [(number, [probe.name for probe, *_ in PROBES if probe != REFUSED]) for number in range(2)]


def test_messages_larger_than_one_that_takes_too_long_are_not_even_tried(told: list[Told]) -> None:
    said = told[0].within_limit
    assert {block.arm for block in said.of(Block)} == {SMALL.name, MEDIUM.name}
    (larger, _, why), largest = said.unsupported
    assert (larger, largest) == (LARGER.name, (LARGEST.name, (0, 1, 2), why))
    assert max(one.largest for one in told) <= 2**24


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_each_collective_is_right_and_a_wrong_number_or_a_silent_one_is_found(told: list[Told], kind: str) -> None:
    """Of a reduce by its root alone: what is in the other buffers is not defined."""
    right, spoiled, silent = zip(*(one.judged[kind] for one in told), strict=True)
    assert all(right)
    assert spoiled == (True, kind == "reduce", True)
    expected = {"reduce": (False, True, True), "broadcast": (True, False, False)}
    assert silent == expected.get(kind, (False, False, False))


def test_a_rank_that_received_nothing_is_not_saved_by_what_it_had(told: list[Told]) -> None:
    assert [one.silent_broadcast for one in told] == [True, False, False]


def test_the_root_is_the_first_rank_of_the_group(told: list[Told]) -> None:
    assert [one.among_others for one in told] == [[], *[[True] * len(COLLECTIVES)] * 2]


def test_a_message_without_a_number_for_each_rank_is_refused(told: list[Told]) -> None:
    assert {one.too_short for one in told} == {"a message of 3 bytes has no number for each of 3 ranks"}
