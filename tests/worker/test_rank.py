"""What one rank of a gang does, as the only one of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from torch.distributed import HashStore

from pytest_ddpscale.plan.study import Arm, Plan
from pytest_ddpscale.results.records import StudyEnd, StudyStart
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice, Timing
from pytest_ddpscale.worker.rank import GangMember
from tests.builders.trained import TIMEOUT, study

from .kept_records import KeptRecords, context_on_cpu


class NeverUsed(CpuDevice):
    """A device that nobody may train on."""

    def time_steps(self, step: Callable[[], None], steps: int) -> Timing:
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
