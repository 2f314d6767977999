"""What one rank of a gang does, as the only one of it."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from msgspec import structs
from torch.distributed import HashStore, PrefixStore, TCPStore

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.block import Block, read_steps
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.rank_folder import LOGS
from pytest_ddpscale.run.records import GangRecord, Rank, StudyEnd, StudyStart, Sustained
from pytest_ddpscale.worker.__main__ import who_i_am
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice, Forwards, Timing
from pytest_ddpscale.worker.numa import Binding
from pytest_ddpscale.worker.rank import GangMember
from tests.builders.trained import TIMEOUT, study

from .kept_records import KeptRecords, context_on_cpu


class NeverUsed(CpuDevice):
    """A device that nobody may train on."""

    def time_steps(self, step: Callable[[], None], steps: int, forwards: Forwards | None = None) -> Timing:
        raise AssertionError("trained after the budget")


def test_a_study_is_not_prepared_once_the_budget_is_spent() -> None:
    """Preparing one and warming it up may take minutes."""
    weak = study(Arm("alone", 1, 2))
    control = Control(HashStore(), rank=0, local_rank=0, world_size=1)
    sink = KeptRecords()
    context = context_on_cpu(NeverUsed(), control, TIMEOUT, sink=sink, deadline_unix_s=time.time() - 1)
    GangMember(Plan("cpu", "cpu", (weak,)), context).run_study(weak.id)
    began, ended = sink.records
    assert isinstance(began, StudyStart)
    assert (began.study, ended) == (weak.id, StudyEnd(weak.id, "budget"))


def test_ranks_say_what_a_study_took_where_that_is_tried(gloo_of_one: None) -> None:
    weak = replace(study(Arm("alone", 1, 2)), rounds=1, block_s=0.01, warmup_s=0.0)
    sink = KeptRecords()
    for tries_memory in (False, True):
        control = Control(HashStore(), rank=0, local_rank=0, world_size=1)
        context = replace(context_on_cpu(CpuDevice(), control, TIMEOUT, sink=sink), tries_memory=tries_memory)
        GangMember(Plan("cpu", "cpu", (weak,)), context).run_study(weak.id)
        assert sink.records[-1] == StudyEnd(weak.id, "rounds")
    [said] = sink.memory
    [rank] = said.ranks
    assert said.study == weak.id
    assert rank.own_bytes > 2**20


@pytest.mark.parametrize(("left_s", "sustained_s"), [(None, 0.5), (3600.0, 0.5), (3600.0, 1000.0)])
def test_an_arm_is_trained_in_one_stretch_before_the_rounds_where_there_is_time(
    gloo_of_one: None, left_s: float | None, sustained_s: float
) -> None:
    two = study(Arm("alone", 1, 2), Arm("ddp", 1, 2))
    weak = replace(two, rounds=1, block_s=0.05, warmup_s=0.0, sustained_s=sustained_s, stretched_ranks=1)
    is_trained = sustained_s < 1
    sink, control = KeptRecords(), Control(HashStore(), rank=0, local_rank=0, world_size=1)
    deadline_unix_s = None if left_s is None else time.time() + left_s
    context = context_on_cpu(CpuDevice(), control, TIMEOUT, sink=sink, deadline_unix_s=deadline_unix_s)
    GangMember(Plan("cpu", "cpu", (weak,)), context).run_study(weak.id)
    said = [one for one in sink.records if isinstance(one, Sustained | Block)]
    assert [type(one) for one in said] == [Sustained] * is_trained + [Block] * 2
    for one in said[:is_trained]:
        assert isinstance(one, Sustained)
        [rank] = one.ranks
        assert (one.study, one.arm, rank.rank, rank.sm_clock_mhz) == (weak.id, "ddp@1", 0, None)
        assert 0.1 < read_steps(rank.step_s).sum() < 5


def test_arms_are_profiled_after_the_study_has_ended_where_that_is_asked(gloo_of_one: None, tmp_path: Path) -> None:
    weak = replace(study(Arm("alone", 1, 2), Arm("ddp", 1, 2)), rounds=1, block_s=0.01, warmup_s=0.0)
    sink = KeptRecords()
    sink.folder = tmp_path
    (tmp_path / LOGS).mkdir()
    control = Control(HashStore(), rank=0, local_rank=0, world_size=1)
    context = replace(context_on_cpu(CpuDevice(), control, TIMEOUT, sink=sink), profile_steps=2)
    profiled_before: list[int] = []
    sink.after_study = lambda: profiled_before.append(len(sink.profiles))
    GangMember(Plan("cpu", "cpu", (weak,)), context).run_study(weak.id)
    assert sink.records[-1] == StudyEnd(weak.id, "rounds")
    assert profiled_before == [0], "whatever a profiler does, the study is measured"
    alone, ddp = sink.profiles
    assert (alone.arm, len(alone.steps), alone.buckets, alone.problem) == ("alone", 2, (), "")
    assert (ddp.arm, len(ddp.steps), ddp.problem) == ("ddp@1", 2, "")
    assert sum(bucket.bytes or 0 for bucket in ddp.buckets) > 10**6
    trace = json.loads(gzip.decompress((tmp_path / LOGS / ddp.trace).read_bytes()))
    assert "ddpscale:backward" in {event.get("name") for event in trace["traceEvents"]}


def test_a_budget_that_is_spent_costs_the_profile(gloo_of_one: None) -> None:
    weak = replace(study(Arm("alone", 1, 2)), rounds=1, block_s=0.01, warmup_s=0.0)
    control = Control(HashStore(), rank=0, local_rank=0, world_size=1)
    sink = KeptRecords()
    context = context_on_cpu(CpuDevice(), control, TIMEOUT, sink=sink, deadline_unix_s=time.time() + 3600)
    member = GangMember(Plan("cpu", "cpu", (weak,)), replace(context, profile_steps=2))
    sink.after_study = lambda: object.__setattr__(member._context, "deadline_unix_s", time.time() - 1)
    member.run_study(weak.id)
    [profile] = sink.profiles
    assert profile.problem == "there was no time left for it (--ddp-budget)"


def test_the_first_rank_records_who_all_ranks_are_and_any_may_read_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))
    sinks = [KeptRecords() for _ in range(4)]

    def announce(rank: int) -> None:
        own = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)
        control = Control(PrefixStore("gang", own), rank, rank % 2, world_size=4, nodes=2)
        device = CpuDevice()
        who = who_i_am(control, device, Binding())
        versions = {"torch": "other"} if rank == 3 else who.versions
        who = structs.replace(who, place=Place(f"n{rank // 2}", rank % 2, f"GPU-{rank}"), versions=versions)
        GangMember(Plan("cpu", "cpu", ()), context_on_cpu(device, control, TIMEOUT, sink=sinks[rank])).announce(who)
        control.hear_all([f"startup/{other}" for other in range(4)], Rank)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(announce, range(4)))
    [gang] = sinks[0].records
    assert isinstance(gang, GangRecord)
    assert [place.name for place in gang.places] == [f"GPU of local rank {rank % 2} (GPU-{rank})" for rank in range(4)]
    assert [rank.versions is None for rank in gang.ranks] == [False, True, True, False], "said once"
    assert [gang.versions_of(rank)["torch"] for rank in (1, 3)] == [torch.__version__, "other"]
    assert [bool(rank.environment) for rank in gang.ranks] == [True, False, False, False]
