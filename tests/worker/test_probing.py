"""Rounds of probes on one rank: how many, of which, and what is told of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import ProbeStudy
from pytest_ddpscale.run.block import Unsupported
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import RoundEnd
from pytest_ddpscale.worker import context as contexts
from pytest_ddpscale.worker import work
from pytest_ddpscale.worker.context import RankProgress
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice, Forwards, Timing
from pytest_ddpscale.worker.probing import ProbeRounds
from pytest_ddpscale.worker.work import Copy
from tests.builders.measurements import ProbeMeasurement
from tests.builders.records import gang_on, probes_of

from .kept_records import KeptRecords, context_on_cpu

TIMEOUT = timedelta(seconds=20)
COPIES = (Arm("memory-copy"), Arm("host-to-device"), Arm("device-to-host"))
Needed = Callable[[int], Sequence[str] | None]


class SteadyCpu(CpuDevice):
    """Says that each iteration took a given time: a shared machine's own is no test."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.steps = 0
        self.on_step = self.count

    def count(self) -> None:
        self.steps += 1

    def time_steps(self, step: Callable[[], None], steps: int, forwards: Forwards | None = None) -> Timing:
        assert steps == 1
        before = self.steps
        step()
        block_s = (self.steps - before) * self.seconds
        return Timing(time.time(), (block_s,), block_s, None, None)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "buffer_bytes", lambda kind, device: 4096)


class Session:
    """A gang of one rank."""

    def __init__(self, iteration_s: float = 0.01) -> None:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        self.control = Control(store, rank=0, local_rank=0, world_size=1)
        self.device = SteadyCpu(iteration_s)
        self.sink = KeptRecords()
        self.progress = RankProgress()

    def run(
        self,
        probes: tuple[Arm, ...],
        rounds: int,
        needed: Needed | None = None,
        deadline: float | None = None,
        limit_s: float | None = None,
        without_limit: tuple[str, ...] = (),
    ) -> str:
        study = ProbeStudy(probes, rounds, 0.2, limit_s, without_limit)
        context = context_on_cpu(
            self.device, self.control, TIMEOUT, sink=self.sink, progress=self.progress, deadline_unix_s=deadline,
            steered=needed is not None,
        )  # fmt: skip
        with pytest.MonkeyPatch.context() as patched:
            if needed is not None:
                patched.setattr(contexts, "needed_arms", lambda folder, study, number, patience_s: needed(number))
            return ProbeRounds(study, context, seed=1).run()

    @property
    def records(self) -> list[AnyRecord]:
        return self.sink.records

    @property
    def measured(self) -> list[ProbeMeasurement]:
        return probes_of([gang_on(["n1"], 1), *self.records])

    def round_ends(self) -> list[tuple[int, list[str]]]:
        return [(record.round, list(record.arms)) for record in self.records if isinstance(record, RoundEnd)]


def test_each_round_has_each_probe_once_and_says_so() -> None:
    session = Session()
    assert session.run(COPIES, rounds=3) == "rounds"
    assert Counter((one.round, one.probe) for one in session.measured) == Counter(
        (number, probe.kind) for number in range(3) for probe in COPIES
    )
    assert session.round_ends() == [(number, [probe.name for probe in COPIES]) for number in range(3)]


def test_the_order_differs_between_rounds() -> None:
    session = Session()
    session.run(COPIES, rounds=8)
    orders = {tuple(one.probe for one in session.measured if one.round == number) for number in range(8)}
    assert len(orders) > 2


@pytest.mark.parametrize(("iteration_s", "iterations"), [(0.01, 20), (0.001, 200), (0.15, 1), (3.0, 1)])
def test_iterations_fill_a_block_and_are_at_least_one(iteration_s: float, iterations: int) -> None:
    session = Session(iteration_s)
    session.run(COPIES[:1], rounds=2)
    assert [one.iterations for one in session.measured] == [iterations] * 2
    assert session.measured[0].seconds == pytest.approx(iterations * iteration_s)


def test_a_matrix_product_has_the_size_of_its_name() -> None:
    session = Session()
    assert session.run((Arm("matmul-fp32"), Arm("matmul-fp32-528")), rounds=1) == "rounds"
    assert {one.probe: (one.work, one.is_correct) for one in session.measured} == {
        "matmul-fp32": (2.0 * 1024**3, True), "matmul-fp32-528": (2.0 * 528**3, True),
    }  # fmt: skip


def test_a_record_says_who_measured_what() -> None:
    session = Session()
    session.run(COPIES[:1], rounds=1)
    (one,) = session.measured
    assert (one.study, one.probe, one.world_size, one.round, one.rank) == ("probes", "memory-copy", 1, 0, 0)
    assert (one.device, one.work, one.is_correct, one.peer_rank) == ("cpu", 2 * 4096, True, None)
    assert one.work * one.iterations / one.seconds == pytest.approx(2 * 4096 / 0.01)


def test_a_wrong_result_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Copy.__call__

    def corrupt(copy: Copy) -> None:
        sound(copy)
        copy.destination[7] += 1

    monkeypatch.setattr(Copy, "__call__", corrupt)
    session = Session()
    session.run(COPIES[:1], rounds=2)
    assert [one.is_correct for one in session.measured] == [False, False]


def test_probes_that_nobody_needs_any_more_are_left_out_and_the_last_one_ends_it() -> None:
    asked: list[int] = []

    def needed(number: int) -> list[str]:
        asked.append(number)
        return ["memory-copy"] if number < FEWEST_ROUNDS else []

    session = Session()
    assert session.run(COPIES, rounds=20, needed=needed) == "decided"
    ends = session.round_ends()
    assert [len(arms) for _, arms in ends] == [3] * FEWEST_ROUNDS + [1]
    assert ends[-1] == (FEWEST_ROUNDS, ["memory-copy"])
    assert asked == [FEWEST_ROUNDS - 1, FEWEST_ROUNDS], "not before there are enough rounds to decide"


def test_no_round_starts_after_the_deadline() -> None:
    session = Session()
    assert session.run(COPIES, rounds=3, deadline=time.time() - 1) == "budget"
    assert session.records == []
    assert session.device.steps == 0


def test_a_probe_that_no_rank_can_do_is_told_and_left_out() -> None:
    session = Session()
    assert session.run((Arm("matmul-fp8"), COPIES[0]), rounds=2) == "rounds"
    (told,) = [record for record in session.records if isinstance(record, Unsupported)]
    assert (told.study, told.arm, told.ranks) == ("probes", "matmul-fp8", (0,))
    assert "need a GPU with fp8 units" in str(told.reasons)
    assert session.round_ends() == [(0, ["memory-copy"]), (1, ["memory-copy"])]


def test_without_any_probe_that_can_be_done_there_are_no_rounds() -> None:
    session = Session()
    assert session.run((Arm("matmul-fp8"),), rounds=3) == "rounds"
    assert [type(record) for record in session.records] == [Unsupported]


def test_steps_are_counted_and_the_last_word_is_that_of_the_study() -> None:
    session = Session()
    session.run(COPIES, rounds=1)
    assert session.device.steps >= sum(one.iterations for one in session.measured)
    assert (session.progress.arm, session.progress.phase) == (None, "cleaning up")


def test_the_store_keeps_what_ranks_meet_by_for_one_block_only() -> None:
    session = Session()
    session.run(COPIES, rounds=3)
    store = session.control.store
    said = [f"control/probes/{number}/{probe.name}" for number in range(3) for probe in COPIES]
    assert not any(store.check([f"{key}/said/0"]) for key in said)
    assert sum(store.check([f"{key}/0/0/ready"]) for key in said) == 1


def test_a_probe_that_takes_longer_than_the_limit_is_left_out_and_told() -> None:
    session = Session(iteration_s=0.3)
    assert session.run(COPIES[:1], rounds=2, limit_s=0.25) == "rounds"
    assert session.measured == []
    (told,) = [record for record in session.records if isinstance(record, Unsupported)]
    assert told.ranks == (0,)
    assert told.reasons == "one iteration takes 0.3 s, more than the limit of 0.25 s"


def test_a_probe_within_the_limit_is_measured() -> None:
    session = Session(iteration_s=0.2)
    session.run(COPIES[:1], rounds=2, limit_s=0.25)
    assert len(session.measured) == 2


def test_a_probe_of_which_something_is_required_has_no_limit() -> None:
    session = Session(iteration_s=3.0)
    session.run(COPIES[:2], rounds=2, limit_s=0.25, without_limit=(COPIES[0].name,))
    assert {one.probe for one in session.measured} == {COPIES[0].name}


def test_one_interrupted_attempt_does_not_leave_a_probe_out(monkeypatch: pytest.MonkeyPatch) -> None:
    session, timed = Session(iteration_s=0.01), list[float]()
    time_steps = session.device.time_steps

    def interrupted(step: Callable[[], None], steps: int) -> Timing:
        timing = time_steps(step, steps)
        timed.append(timing.block_s)
        return replace(timing, block_s=1.0) if len(timed) == 1 else timing

    monkeypatch.setattr(session.device, "time_steps", interrupted)
    session.run(COPIES[:1], rounds=2, limit_s=0.25)
    assert len(session.measured) == 2


def test_what_takes_many_times_the_limit_is_not_tried_twice() -> None:
    session = Session(iteration_s=3.0)
    session.run(COPIES[:1], rounds=2, limit_s=0.25)
    assert session.device.steps == 2
