"""What one rank of a gang does, as the only one of it."""

from __future__ import annotations

import time
from collections.abc import Callable

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
