"""What one rank of a gang does, as the only one of it, also with a sampler that answers by heart."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from msgspec import structs
from torch.distributed import HashStore

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.run.block import Block, read_steps
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import GangRecord, Rank, StudyEnd, StudyMemory, StudyStart, Sustained
from pytest_ddpscale.run.telemetry import GpuReadings, TelemetryBlock
from pytest_ddpscale.telemetry.windows import Sampler
from pytest_ddpscale.worker.__main__ import rank_record
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice, Forwards, Timing
from pytest_ddpscale.worker.numa import Binding
from pytest_ddpscale.worker.rank import GangMember, refuse_other_layout
from tests.builders.trained import TIMEOUT, study

from .kept_records import KeptRecords, context_on_cpu, control_of_one

WEAK = replace(study(Arm("alone", 1, 2), Arm("ddp", 1, 2)), rounds=1, block_s=0.05, warmup_s=0.0)
PROBES = ProbeStudy((Arm("memory-copy"),), rounds=2, block_s=0.01)


def said_of(asked: Study | ProbeStudy, left_s: float = 3600.0, **fields: Any) -> KeptRecords:
    """What a rank writes of a study that has so much time for it."""
    sink, studies = KeptRecords(), (asked,) if isinstance(asked, Study) else ()
    context = context_on_cpu(
        fields.pop("device", CpuDevice()), control_of_one(), sink=sink, deadline_unix_s=time.time() + left_s, **fields
    )
    GangMember(Plan("cpu", "cpu", studies, probes=PROBES), context).run_study(asked.id)
    return sink


class NeverUsed(CpuDevice):
    """A device that nobody may train on."""

    def time_steps(self, step: Callable[[], None], steps: int, forwards: Forwards | None = None) -> Timing:
        raise AssertionError("trained after the budget")


def test_a_study_is_not_prepared_once_the_budget_is_spent() -> None:
    """Preparing one and warming it up may take minutes."""
    began, ended = said_of(WEAK, left_s=-1, device=NeverUsed()).records
    assert isinstance(began, StudyStart)
    assert (began.study, ended) == (WEAK.id, StudyEnd(WEAK.id, "budget"))


@pytest.mark.parametrize(("left_s", "sustained_s"), [(3600.0, 1.0), (30.0, 10.0)])
def test_a_study_has_a_stretch_before_its_rounds_where_there_is_time_and_says_its_memory_where_that_is_tried(
    gloo_of_one: None, monkeypatch: pytest.MonkeyPatch, left_s: float, sustained_s: float
) -> None:
    if both := sustained_s == 1:
        monkeypatch.setattr(
            "pytest_ddpscale.worker.rank.steps_for_block", lambda step_s, seconds, *_: round(100 * seconds)
        )
    asked = replace(WEAK, sustained_s=sustained_s, stretched_ranks=1)
    said = said_of(asked, left_s, tries_memory=both)
    kinds = [type(record) for record in said.records if isinstance(record, Sustained | Block | StudyMemory | StudyEnd)]
    assert kinds == [Sustained] * both + [Block] * 2 + [StudyMemory] * both + [StudyEnd]
    assert said.records[-1] == StudyEnd(WEAK.id, "rounds")
    assert context_on_cpu(CpuDevice(), control_of_one()).has_time_for(1e9), "without a deadline"
    for one in said.of(Sustained):
        [rank] = one.ranks
        assert (one.study, one.arm, rank.rank, rank.sm_clock_mhz) == (WEAK.id, "ddp@1", 0, None)
        assert len(read_steps(rank.step_s)) == 100, "those of the stretch, and not of a block"
    for memory in said.of(StudyMemory):
        assert (memory.study, memory.ranks[0].own_bytes > 2**20) == (WEAK.id, True)


class ToldSampler(Sampler):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def wait_for_first_poll(self, timeout_s: float = 5.0) -> None:
        self.calls.append("wait")

    def cut(self, start_s: float, end_s: float, *, tells_errors: bool = True) -> GpuReadings:
        self.calls.append("cut")
        return GpuReadings(started_unix_s=start_s, ended_unix_s=end_s, polls=3, utilization=0.5, energy_j=7.0)


@pytest.mark.parametrize(
    ("asked", "essence"),
    [(replace(WEAK, arms=WEAK.arms[:1], rounds=2), {"utilization": 0.5, "energy_j": 7.0}), (PROBES, {})],
    ids=["weak", "probes"],
)
def test_each_block_has_its_telemetry_before_it_and_waits_for_the_sampler(
    gloo_of_one: None, asked: Study | ProbeStudy, essence: dict[str, float]
) -> None:
    sampler = ToldSampler()
    said = said_of(asked, sampler=sampler)
    told = [type(record) for record in said.records if isinstance(record, Block | TelemetryBlock)]
    assert told == [TelemetryBlock, Block] * 2
    for telemetry, block in zip(said.of(TelemetryBlock), said.of(Block), strict=True):
        assert (telemetry.study, telemetry.arm, telemetry.round) == (block.study, block.arm, block.round)
        assert telemetry.started_unix_s == block.began_unix_s
        assert telemetry.ended_unix_s == block.each("began_unix_s")[0] + block.each("seconds")[0]
        assert block.readings == block.readings | essence
        assert ("energy_j" in block.readings) == bool(essence)
    assert sampler.calls == ["wait", "cut"] * 2


def test_the_first_rank_records_who_all_ranks_are_and_any_may_read_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    store, sinks = HashStore(), [KeptRecords() for _ in range(4)]
    store.set_timeout(TIMEOUT)

    def announce(rank: int) -> None:
        control = Control(store, rank, rank % 2, world_size=4, nodes=2)
        context = context_on_cpu(CpuDevice(), control, sink=sinks[rank])
        who = structs.replace(
            rank_record(control, context.device, Binding()), place=Place(f"n{rank // 2}", rank % 2, f"GPU-{rank}")
        )
        if rank == 3:
            who = structs.replace(who, versions={"torch": "other"})
        GangMember(Plan("cpu", "cpu", ()), context).announce(who)
        control.hear_all([f"startup/{other}" for other in range(4)], Rank)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(announce, range(4)))
    [gang] = sinks[0].of(GangRecord)
    assert [place.name for place in gang.places] == [f"GPU of local rank {rank % 2} (GPU-{rank})" for rank in range(4)]
    assert [rank.versions is None for rank in gang.ranks] == [False, True, True, False], "said once"
    assert [gang.versions_of(rank)["torch"] for rank in (1, 3)] == [torch.__version__, "other"]
    assert [bool(rank.environment) for rank in gang.ranks] == [True, False, False, False]


BY_FOUR, SPREAD = Arm("ddp", 4, 2), Arm("ddp", 4, 2, "spread")


@pytest.mark.parametrize(
    ("arm", "planned", "found", "refused"),
    [
        (BY_FOUR, Layout(3, 4), Layout(2, 4), ""),
        (SPREAD, Layout(4, 4), Layout(5, 4), ""),
        (SPREAD, Layout(3, 4), Layout(2, 4), "planned for 3 nodes of 4 ranks; this gang has 2 of 4"),
        (BY_FOUR, Layout(2, 4), Layout(4, 2), "ddp@4 of weak/tiny is planned for 2 nodes of 4 ranks"),
    ],
)
def test_a_gang_measures_only_what_is_where_it_was_planned(
    arm: Arm, planned: Layout, found: Layout, refused: str
) -> None:
    """Of fewer nodes what each does by itself, but ranks spread as planned, and none across nodes that fitted one."""
    asked = study(Arm("alone", 1, 2), arm, Arm("ddp", 8, 2))
    with pytest.raises(RuntimeError, match=refused) if refused else nullcontext():
        refuse_other_layout(asked, planned, found)
