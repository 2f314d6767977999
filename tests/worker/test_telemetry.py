"""Telemetry of a rank's blocks, from a sampler that answers by heart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch.distributed import HashStore

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.run.block import Block, RankBlock
from pytest_ddpscale.run.rank_folder import RecordSink
from pytest_ddpscale.run.record_lines import line_of
from pytest_ddpscale.run.telemetry import GpuReadings, TelemetryBlock
from pytest_ddpscale.telemetry.windows import Sampler
from pytest_ddpscale.worker.context import RankContext
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.rank import GangMember
from tests.builders.trained import TIMEOUT, study

from .kept_records import context_on_cpu


def seen(start_s: float, end_s: float) -> GpuReadings:
    return GpuReadings(started_unix_s=start_s, ended_unix_s=end_s, polls=3, utilization=0.5, energy_j=7.0)


class ToldSampler(Sampler):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def wait_for_first_poll(self, timeout_s: float = 5.0) -> None:
        self.calls.append("wait")

    def cut(self, start_s: float, end_s: float, *, tells_errors: bool = True) -> GpuReadings:
        self.calls.append("cut")
        return seen(start_s, end_s)


class Sink(RecordSink):
    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.written: list[Any] = []

    def append_records(self, records: Sequence[Any]) -> None:
        self.written += records


def context_with(sampler: Sampler | None) -> tuple[RankContext, list[Any]]:
    sink, control = Sink(), Control(HashStore(), rank=0, local_rank=0, world_size=1)
    context = context_on_cpu(CpuDevice(), control, TIMEOUT, sink=sink)
    return replace(context, sampler=sampler), sink.written


def part(rank: int) -> RankBlock:
    return RankBlock(rank=rank, work=1.0, began_unix_s=10.0 + rank, seconds=2.0, readings={"utilization": None})


def test_a_part_has_the_readings_of_its_window_and_the_essence_also_of_its_own() -> None:
    context, _ = context_with(ToldSampler())
    told = msgspec.json.decode(line_of(context.sampled(part(3), "utilization", "energy_j")), type=RankBlock)
    assert told.telemetry == seen(13.0, 15.0)
    assert told.readings == {"utilization": 0.5, "energy_j": 7.0}
    assert context.sampled(part(3)).readings == {"utilization": None}
    assert context_with(None)[0].sampled(part(3), "utilization") == part(3)


def test_the_first_rank_writes_the_readings_of_the_ranks_that_have_some() -> None:
    context, written = context_with(ToldSampler())
    context.append_telemetry([context.sampled(part(4)), part(1), context.sampled(part(4))], "probes", "send-recv", 7)
    [block] = written
    assert (block.study, block.arm, block.round, block.gang, block.ranks) == ("probes", "send-recv", 7, 0, (4, 4))
    context.append_telemetry([part(1)], "probes", "matmul-fp8", 7)
    assert written == [block]


@pytest.mark.parametrize("name", ["weak", "probes"])
def test_each_block_has_its_telemetry_before_it_and_waits_for_the_sampler(gloo_of_one: None, name: str) -> None:
    sampler = ToldSampler()
    context, written = context_with(sampler)
    probes = ProbeStudy((Arm("memory-copy"),), rounds=2, block_s=0.01)
    weak = replace(study(Arm("alone", 1, 2)), rounds=2, block_s=0.01, warmup_s=0.0)
    plan = Plan("cpu", "cpu", (weak,), probes=probes)
    GangMember(plan, context).run_study(weak.id if name == "weak" else probes.id)
    told: list[Any] = [one for one in written if isinstance(one, Block | TelemetryBlock)]
    assert [type(one) for one in told] == [TelemetryBlock, Block] * 2
    for telemetry, block in zip(told[::2], told[1::2], strict=True):
        assert (telemetry.study, telemetry.arm, telemetry.round) == (block.study, block.arm, block.round)
        assert telemetry.started_unix_s == block.began_unix_s
        essence = {"utilization", "energy_j"} if name == "weak" else set()
        assert {*block.readings} & {"utilization", "energy_j"} == essence
    assert sampler.calls == ["wait", "cut"] * 2
