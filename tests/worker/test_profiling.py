"""Profiled steps on two real ranks over gloo, and what a profiler that cannot work costs."""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.run.rank_folder import LOGS, TRACES
from pytest_ddpscale.run.records import ArmProfile
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.profiling import StudyProfile, in_words, recorded, traced_steps
from pytest_ddpscale.worker.training import profiler_range
from tests.builders.trained import TIMEOUT, study

from .kept_records import KeptRecords, context_on_cpu
from .ranks import on_two_ranks

STEPS = 2
TWO_RANKS = study(Arm("alone", 1, 2), Arm("no_sync", 2, 2), Arm("ddp", 2, 2))


def profiled(control: Control, folder: Path, **changes: Any) -> list[ArmProfile]:
    """The profiles that this rank wrote down."""
    sink = KeptRecords()
    sink.folder = folder
    (folder / LOGS).mkdir(exist_ok=True)
    context = replace(context_on_cpu(CpuDevice(), control, TIMEOUT, sink=sink), profile_steps=STEPS, **changes)
    asked = TWO_RANKS if control.world_size == 2 else study(Arm("alone", 1, 2))
    arms = StudyArms(asked, CpuDevice(), control.rank, control.layout, TIMEOUT)
    StudyProfile(asked, arms, context, seed=0).run()
    arms.close()
    return sink.profiles


def one_of_two(rank: int) -> tuple[list[ArmProfile], dict[str, float]]:
    store = dist.PrefixStore("profile", dist.distributed_c10d._get_default_store())
    with TemporaryDirectory() as folder:
        found = profiled(Control(store, rank, rank, 2), Path(folder))
        traces = {one.arm: (Path(folder) / LOGS / one.trace).read_bytes() for one in found}
    events = {arm: json.loads(gzip.decompress(trace))["traceEvents"] for arm, trace in traces.items()}
    return found, {arm: sum(one.get("name") == "ddpscale:step" for one in of_arm) for arm, of_arm in events.items()}


def test_rank_0_profiles_each_arm_while_all_ranks_of_it_take_the_steps(tmp_path: Path) -> None:
    (found, traced), (by_the_other, _) = on_two_ranks(one_of_two, tmp_path)
    assert by_the_other == []
    assert [(one.arm, len(one.steps), one.problem) for one in found] == [
        ("alone", STEPS, ""), ("no_sync@2", STEPS, ""), ("ddp@2", STEPS, "")
    ]  # fmt: skip
    alone, no_sync, ddp = found
    assert {(step.all_reduce_ms, step.waiting_ms) for step in (*alone.steps, *no_sync.steps)} == {(0, 0)}
    assert min(step.all_reduce_ms for step in ddp.steps) > 0
    gradients = sum(4 * parameter.numel() for parameter in _tiny().parameters())
    assert sum(bucket.bytes or 0 for bucket in ddp.buckets) == gradients
    assert traced == {"alone": 1, "no_sync@2": 1, "ddp@2": 1}, "the trace that is kept has the typical step"


def _tiny() -> torch.nn.Module:
    arms = StudyArms(study(Arm("alone", 1, 2)), CpuDevice(), 0, Layout(1, 1), TIMEOUT)
    return arms.model


def of_one() -> Control:
    return Control(HashStore(), rank=0, local_rank=0, world_size=1)


class GpuThatNobodySees(CpuDevice):
    """A GPU of which torch.profiler sees nothing, as there is none here: so it is where CUPTI is refused."""

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_profiler_that_sees_no_gpu_costs_the_profile_and_no_step(gloo_of_one: None, tmp_path: Path) -> None:
    [found] = profiled(of_one(), tmp_path, device=GpuThatNobodySees())
    assert "no GPU kernel" in found.problem
    assert "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" in found.problem
    assert (found.steps, found.trace) == ((), "")


def test_a_trace_that_cannot_be_kept_costs_the_trace_and_no_number(gloo_of_one: None, tmp_path: Path) -> None:
    (tmp_path / LOGS).mkdir()
    (tmp_path / LOGS / TRACES).write_text("in the way")
    [found] = profiled(of_one(), tmp_path)
    assert (len(found.steps), found.trace, found.problem) == (STEPS, "", "")


def test_no_pass_begins_after_the_budget(gloo_of_one: None, tmp_path: Path) -> None:
    [found] = profiled(of_one(), tmp_path, deadline_unix_s=time.time() - 1)
    assert found.problem == "there was no time left for it (--ddp-budget)"


def test_what_a_step_raises_goes_on_its_way(tmp_path: Path) -> None:
    problems: list[str] = []
    with pytest.raises(ZeroDivisionError), recorded("cpu", tmp_path / "trace.json.gz", problems):
        _ = 1 // (0 if profiler_range("a") is not profiler_range("b") else 1)
    assert problems == []


def test_a_trace_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    problems: list[str] = []
    for path in (tmp_path / "nowhere" / "trace.json.gz", tmp_path / "trace.json.gz"):
        with recorded("cpu", path, problems):
            torch.zeros(1)
    (problem,) = problems
    assert "No such file" in problem
    with pytest.raises(ValueError, match="no step"):
        traced_steps(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()), "cpu")
    assert len(in_words(ValueError("x\n" * 1000))) == 400


def test_nothing_is_named_while_nobody_listens() -> None:
    assert profiler_range("a") is profiler_range("b")
