"""Profiled steps on two real ranks over gloo, what a profiler that cannot work costs, and traces with known overlap."""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.rank_folder import LOGS, TRACES
from pytest_ddpscale.run.records import ArmProfile, ProfiledBucket, ProfiledStep
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.profiling import (
    StudyProfile,
    TracedStep,
    buckets_of,
    covered,
    in_words,
    length_of,
    merged,
    message_bytes,
    profiled_step,
    recorded,
    traced_steps,
    without,
)
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


TRAINS, GLOO = 1, 2
# A DDP training of ResNet-50 on two A100 with NCCL 2.17, three steps of rank 0 as Kineto wrote them. Cut from
# tests/data/nccl_parser_config/nccl_data.json.gz of facebookresearch/HolisticTraceAnalysis@f4d0062 (MIT License,
# Copyright (c) Meta Platforms, Inc. and affiliates): kernels, their launches and the ranges of steps, with our names.
OF_TWO_GPUS = Path(__file__).parents[1] / "data" / "kineto-ddp-2gpu.json.gz"
RESNET50_PARAMETERS = 25_557_032  # torchvision's, which DDP reduces in fp32


def event(cat: str, name: str, begin_ms: float, end_ms: float, tid: int = TRAINS, **args: Any) -> dict[str, Any]:
    ts, dur = 1e9 + 1000 * begin_ms, 1000 * (end_ms - begin_ms)
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": args}


def operator(name: str, begin_ms: float, end_ms: float) -> dict[str, Any]:
    return event("cpu_op", name, begin_ms, end_ms)


def gloo(name: str, begin_ms: float, end_ms: float, elements: int = 1000, tid: int = GLOO) -> dict[str, Any]:
    shape = {"Input Dims": [[elements]], "Input type": ["float"]}
    return event("user_annotation", f"gloo:{name}", begin_ms, end_ms, tid, **shape)


def step_range(name: str, begin_ms: float, end_ms: float) -> dict[str, Any]:
    return event("user_annotation", f"ddpscale:{name}", begin_ms, end_ms)


def steps_of(*events: dict[str, Any], device_type: DeviceType = "cpu") -> list[TracedStep]:
    return traced_steps(json.dumps({"traceEvents": events, "schemaVersion": 1}).encode(), device_type)


# Forward 0–30, backward 30–90 with a wait from 70 to 85 for the second bucket, optimizer 90–100.
CPU_STEP = (
    step_range("step", 0, 100),
    step_range("forward", 0, 30),
    operator("c10d::broadcast_", 1, 2),
    gloo("broadcast", 2, 5),
    operator("aten::conv2d", 5, 30),
    operator("aten::mkldnn_convolution", 6, 29),
    step_range("backward", 30, 90),
    operator("autograd::engine::evaluate_function: ConvolutionBackward0", 30, 70),
    operator("aten::convolution_backward", 30, 60),
    operator("c10d::allreduce_", 60, 62),
    gloo("all_reduce", 50, 68, 3000),
    gloo("all_reduce", 66, 85, 500, tid=3),
    operator("torch.distributed.ddp.reducer::copy_bucket_to_grad", 85, 90),
    step_range("optimizer", 90, 100),
    operator("aten::add_", 91, 99),
)


def test_a_cpu_step_is_split_into_computing_waiting_and_idle_time() -> None:
    (step,) = steps_of(*CPU_STEP)
    assert profiled_step(step) == ProfiledStep(
        step_ms=100,
        compute_ms=25 + 38 + 5 + 8,  # handing a bucket over, 60–62, is none
        waiting_ms=3 + 2 + 15,  # broadcast 2–5, 60–62 while the first bucket is under way, 70–85
        idle_ms=2 + 1 + 1,
        all_reduce_ms=35,
        hidden_ms=10 + 8,  # 50–60 and 62–70
    )


def test_buckets_of_a_cpu_step_have_their_sizes_and_what_is_hidden_of_each() -> None:
    first, second = buckets_of(steps_of(*CPU_STEP))
    assert first == ProfiledBucket(bytes=12_000, begins_ms=50, took_ms=18, hidden_ms=16)
    assert second == ProfiledBucket(bytes=2_000, begins_ms=66, took_ms=19, hidden_ms=4)


def test_what_gloo_does_for_another_step_counts_there_and_a_step_is_cut_at_its_ends() -> None:
    second = [{**one, "ts": one["ts"] + 100_000} for one in CPU_STEP]
    late = gloo("all_reduce", 95, 110)
    one, two = steps_of(*CPU_STEP, *second, late)
    assert one.all_reduces[-1].tolist() == [95, 100]
    assert two.all_reduces[0].tolist() == [0, 10]


# Kernels run later than they are launched: the GPU is a step behind the host.
GPU_STEPS = tuple(
    one
    for number, host, gpu in ((0, 0, 10), (1, 40, 110))
    for one in (
        step_range("step", host, host + 40),
        step_range("forward", host, host + 10),
        step_range("backward", host + 10, host + 30),
        step_range("optimizer", host + 30, host + 39),
        *(
            launched
            for n, (launch, name, begin, end, args) in enumerate(
                (
                    (1, "gemm_forward", 0, 30, {}),
                    (11, "gemm_backward", 30, 60, {}),
                    (15, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 40, 55,
                     {"In msg nelems": 250, "dtype": "Float"}),
                    (20, "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymkDevWorkArgs)", 55, 80,
                     {"In msg nelems": 500, "dtype": "BFloat16"}),
                    (31, "multi_tensor_apply", 85, 95, {}),
                )
            )
            for launched in (
                event("cuda_runtime", "cudaLaunchKernel", host + launch, host + launch + 0.1,
                      correlation=10 * number + n),
                event("kernel", name, gpu + begin, gpu + end, 7, correlation=10 * number + n, **args),
            )
        ),
    )
)  # fmt: skip


def test_a_gpu_step_begins_with_its_first_kernel_and_communication_is_hidden_by_other_kernels() -> None:
    of_both = {"compute_ms": 70, "waiting_ms": 20, "all_reduce_ms": 40, "hidden_ms": 20}  # 60–80 and 40–60
    steps = list(map(profiled_step, steps_of(*GPU_STEPS, device_type="cuda")))
    assert steps == [ProfiledStep(step_ms=95, idle_ms=5, **of_both)] * 2  # idle before the optimizer


def test_buckets_of_a_gpu_step_are_where_their_kernels_run() -> None:
    assert buckets_of(steps_of(*GPU_STEPS, device_type="cuda")) == (
        ProfiledBucket(bytes=1000, begins_ms=40, took_ms=15, hidden_ms=15),
        ProfiledBucket(bytes=1000, begins_ms=55, took_ms=25, hidden_ms=5),
    )


def test_a_gpu_trace_without_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match="no GPU kernel"):
        steps_of(*CPU_STEP, device_type="cuda")


@pytest.mark.parametrize("data", [b"", b"{", b'{"traceEvents": 1}', b"\xff\xff"])
def test_what_is_no_trace_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"the trace of torch\.profiler cannot be read"):
        traced_steps(data, "cpu")


def test_a_trace_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="has no step"):
        steps_of(operator("aten::add", 0, 1))


def test_a_real_trace_of_nccl_tells_the_gradients_of_the_model_and_parts_that_add_up() -> None:
    steps = traced_steps(gzip.decompress(OF_TWO_GPUS.read_bytes()), "cuda")
    buckets = buckets_of(steps)
    assert sum(bucket.bytes or 0 for bucket in buckets) == 4 * RESNET50_PARAMETERS
    assert [len(step.all_reduces) for step in steps] == [5, 5, 5]
    assert all(0 < step.hidden_ms < step.all_reduce_ms for step in map(profiled_step, steps))


@pytest.mark.parametrize(
    ("args", "size"),
    [
        ({"In msg nelems": 10, "dtype": "Half"}, 20),
        ({"In msg nelems": 10, "dtype": "Unheard"}, None),
        ({"Input Dims": [[2, 3]], "Input type": ["c10::BFloat16"]}, 12),
        ({"Input Dims": [[]], "Input type": [""]}, None),
        ({}, None),
    ],
)
def test_the_size_of_a_message_is_told_or_is_unknown(args: dict[str, Any], size: int | None) -> None:
    assert message_bytes(args) == size


SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted), max_size=12)


def cells(spans: Any) -> set[int]:
    return {cell for begin, end in spans for cell in range(int(begin), int(end))}


@given(SPANS, SPANS)
def test_merging_and_subtracting_spans_is_what_it_is_with_sets_of_moments(ours: Any, theirs: Any) -> None:
    one, other = (merged(np.array(spans, np.float64).reshape(-1, 2)) for spans in (ours, theirs))
    assert cells(one.tolist()) == cells(ours)
    assert length_of(one) == len(cells(ours))
    assert cells(without(one, other).tolist()) == cells(ours) - cells(theirs)
    assert sum(covered(begin, end, other) for begin, end in one.tolist()) == len(cells(ours) & cells(theirs))
    assert np.all(one[1:, 0] > one[:-1, 1])
