"""Profiled steps on two real ranks over gloo, what a profiler that cannot work costs, and traces with known overlap."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.rank_folder import LOGS, TRACES
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import ArmProfile, ProfiledBucket, ProfiledStep, StudyEnd
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.model import build_model
from pytest_ddpscale.worker.profiling import (
    StudyProfile,
    TracedStep,
    buckets_of,
    in_words,
    profiled_step,
    recorded,
    traced_steps,
)
from pytest_ddpscale.worker.rank import GangMember
from pytest_ddpscale.worker.training import profiler_range
from tests.builders.trained import CPU, TIMEOUT, TINY, study

from .kept_records import KeptRecords, context_on_cpu, control_of_one
from .ranks import on_two_ranks

STEPS = 2
ALONE = study(Arm("alone", 1, 2))
TRAINED = replace(study(*ALONE.arms, Arm("no_sync", 2, 2), Arm("ddp", 2, 2)), rounds=1, block_s=0.01, warmup_s=0.0)


def one_of_two(folder: Path, rank: int) -> list[AnyRecord]:
    store = dist.PrefixStore("profile", dist.distributed_c10d._get_default_store())
    sink = KeptRecords(folder)
    context = context_on_cpu(CpuDevice(), Control(store, rank, rank, 2), sink=sink, profile_steps=STEPS)
    GangMember(Plan("cpu", "cpu", (TRAINED,)), context).run_study(TRAINED.id)
    return sink.records


def test_rank_0_profiles_each_arm_after_its_study_while_all_ranks_of_it_take_the_steps(tmp_path: Path) -> None:
    (tmp_path / LOGS).mkdir()
    records, by_the_other = on_two_ranks(partial(one_of_two, tmp_path), tmp_path)
    assert by_the_other == []
    profiles = alone, no_sync, ddp = [record for record in records if isinstance(record, ArmProfile)]
    assert records[-4:] == [StudyEnd(study=TRAINED.id, reason="rounds"), *profiles], "first what was measured"
    assert [profile.arm for profile in profiles] == ["alone", "no_sync@2", "ddp@2"]
    assert {(len(profile.steps), profile.problem) for profile in profiles} == {(STEPS, "")}
    assert {(step.all_reduce_ms, step.waiting_ms) for step in (*alone.steps, *no_sync.steps)} == {(0, 0)}
    assert (alone.buckets, no_sync.buckets) == ((), ())
    assert min(step.all_reduce_ms for step in ddp.steps) > 0
    gradients = sum(4 * parameter.numel() for parameter in build_model(TINY, CPU).parameters())
    assert sum(bucket.bytes or 0 for bucket in ddp.buckets) == gradients
    for profile in profiles:
        trace = gzip.decompress((tmp_path / LOGS / profile.trace).read_bytes())
        names = [event.get("name") for event in json.loads(trace)["traceEvents"]]
        assert [names.count(f"ddpscale:{part}") for part in ("step", "backward")] == [1, 1], "of one typical step"


class GpuThatNobodySees(CpuDevice):
    """A GPU of which torch.profiler sees nothing, as there is none here: so it is where CUPTI is refused."""

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize(
    ("device", "left_s", "steps", "problem"),
    [
        (GpuThatNobodySees(), 60, 0, ".*saw no GPU kernel.* CUPTI_ERROR_INSUFFICIENT_PRIVILEGES.*"),
        (CpuDevice(), -1, 0, r"there was no time left for it \(--ddp-budget\)"),
        (CpuDevice(), 60, STEPS, ""),
    ],
    ids=["unseen", "late", "cannot-be-kept"],
)
def test_what_a_profiler_cannot_do_costs_the_profile_or_only_the_trace(
    gloo_of_one: None, tmp_path: Path, device: CpuDevice, left_s: int, steps: int, problem: str
) -> None:
    (tmp_path / LOGS).mkdir()
    (tmp_path / LOGS / TRACES).write_text("in the way")
    sink, ends_s = KeptRecords(tmp_path), time.time() + left_s
    context = context_on_cpu(device, control_of_one(), sink=sink, profile_steps=STEPS, deadline_unix_s=ends_s)
    arms = StudyArms(ALONE, CpuDevice(), 0, Layout(1, 1), TIMEOUT)
    StudyProfile(ALONE, arms, context, seed=0).run()
    arms.close()
    [found] = sink.of(ArmProfile)
    assert (len(found.steps), found.trace) == (steps, "")
    assert re.fullmatch(problem, found.problem)


def test_what_a_step_raises_goes_on_its_way(tmp_path: Path) -> None:
    problems: list[str] = []
    with pytest.raises(ZeroDivisionError), recorded("cpu", tmp_path / "trace.json.gz", problems):
        raise ZeroDivisionError
    assert problems == []


def test_a_trace_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    problems: list[str] = []
    for path in (tmp_path / "nowhere" / "trace.json.gz", tmp_path / "trace.json.gz"):
        with recorded("cpu", path, problems):
            torch.zeros(1)
    (problem,) = problems
    assert "No such file" in problem
    assert path.exists()
    assert len(in_words(ValueError("x\n" * 1000))) == 400


def test_nothing_is_named_while_nobody_listens() -> None:
    assert profiler_range("a") is profiler_range("b")


TRAINS, GLOO = 1, 2
# A DDP training of ResNet-50 on two A100 with NCCL 2.17, three steps of rank 0 as Kineto wrote them. Cut from
# tests/data/nccl_parser_config/nccl_data.json.gz of facebookresearch/HolisticTraceAnalysis@f4d0062 (MIT License,
# Copyright (c) Meta Platforms, Inc. and affiliates): kernels, their launches and the ranges of steps, with our names.
OF_TWO_GPUS = Path(__file__).parents[1] / "data" / "kineto-ddp-2gpu.json.gz"
KERNEL = b"ncclKernel_AllReduce_RING_LL_Sum_float("
RESNET50_PARAMETERS = 25_557_032  # torchvision's, which DDP reduces in fp32


def event(cat: str, name: str, begin_ms: float, end_ms: float, tid: int = TRAINS, **args: Any) -> dict[str, Any]:
    ts, dur = 1e9 + 1000 * begin_ms, 1000 * (end_ms - begin_ms)
    return {"ph": "X", "cat": cat, "name": name, "tid": tid, "ts": ts, "dur": dur, "args": args}


operator = partial(event, "cpu_op")
step_range = partial(event, "user_annotation", "ddpscale:step")


def gloo(name: str, begin_ms: float, end_ms: float) -> dict[str, Any]:
    shape = {"Input Dims": [[30, 100]], "Input type": ["float"]}
    return event("user_annotation", f"gloo:{name}", begin_ms, end_ms, GLOO, **shape)


def trace_of(events: Iterable[dict[str, Any]]) -> bytes:
    return json.dumps({"traceEvents": list(events), "schemaVersion": 1}).encode()


def steps_of(*events: dict[str, Any], device_type: DeviceType = "cpu") -> list[TracedStep]:
    return traced_steps(trace_of(events), device_type)


SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted), max_size=12)


def moments(spans: Any) -> set[int]:
    return {moment for span in spans for moment in range(*span)}


@given(SPANS, SPANS, SPANS, SPANS)
@example([(0, 5), (5, 9)], [], [], [])
def test_the_times_of_steps_and_of_their_buckets_are_those_of_sets_of_moments(
    computing: Any, handing_over: Any, broadcast: Any, reducing: Any
) -> None:
    """What is under way at its end counts for both."""
    events = [operator("aten::a", *span) for span in computing] + [operator("c10d::a", *span) for span in handing_over]
    events += [gloo("broadcast", *span) for span in broadcast] + [gloo("all_reduce", *span) for span in reducing]
    for begin, step in zip((0, 20), steps_of(step_range(0, 20), step_range(20, 40), *events), strict=True):
        within = set(range(begin, begin + 20))
        computes, reduces = within & moments(computing) - moments(handing_over), within & moments(reducing)
        communicates = reduces | within & moments(broadcast)
        assert profiled_step(step) == ProfiledStep(
            step_ms=20,
            compute_ms=len(computes),
            waiting_ms=len(communicates - computes),
            idle_ms=len(within - communicates - computes),
            all_reduce_ms=len(reduces),
            hidden_ms=len(reduces & computes),
        )
        assert np.all(step.compute[1:, 0] > step.compute[:-1, 1]), "merged"
        for bucket, (first, last) in zip(buckets_of([step]), step.all_reduces + begin, strict=True):
            took = set(range(int(first), int(last)))
            assert bucket == ProfiledBucket(
                bytes=12_000, begins_ms=first - begin, took_ms=len(took), hidden_ms=len(took & computes)
            )


UNREADABLE = r"the trace of torch\.profiler cannot be read"


@pytest.mark.parametrize(
    ("data", "device_type", "why"),
    [
        (b"", "cpu", UNREADABLE),
        (b'{"traceEvents": 1}', "cpu", UNREADABLE),
        (b"\xff\xff", "cpu", UNREADABLE),
        (trace_of([operator("aten::add", 0, 1)]), "cpu", "has no step"),
        (trace_of([step_range(0, 1), operator("aten::add", 0, 1)]), "cuda", "no GPU kernel"),
    ],
)
def test_what_is_no_trace_of_a_step_is_refused(data: bytes, device_type: DeviceType, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        traced_steps(data, device_type)


@pytest.mark.parametrize(
    "kernel", [KERNEL, b"ncclDevKernel_AllReduce_Sum_f32_RING_LL(", b"ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32("]
)
def test_a_real_trace_of_nccl_tells_the_gradients_of_the_model_and_parts_that_add_up(kernel: bytes) -> None:
    """A step is of the kernels that were launched in it, however late they run, and begins with the first of them."""
    trace = json.loads(gzip.decompress(OF_TWO_GPUS.read_bytes()).replace(KERNEL, kernel))
    for one in trace["traceEvents"]:
        one["ts"] += 150_000 * (one["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"))
    data = json.dumps(trace).encode()
    steps = traced_steps(data, "cuda")
    parts = {"compute_ms": 39.3907, "waiting_ms": 10.0473, "idle_ms": 166.3315}
    assert profiled_step(steps[0]) == ProfiledStep(step_ms=215.7695, all_reduce_ms=11.9503, hidden_ms=1.9418, **parts)
    assert [len(step.all_reduces) for step in steps] == [5, 5, 5]
    buckets = buckets_of(steps)
    assert buckets[0] == ProfiledBucket(bytes=8196000, begins_ms=101.3695, took_ms=3.307, hidden_ms=0.4575)
    assert sum(bucket.bytes or 0 for bucket in buckets) == 4 * RESNET50_PARAMETERS
    unheard = buckets_of(traced_steps(data.replace(b'"Float"', b'"Unheard"'), "cuda"))
    assert [bucket.bytes for bucket in unheard] == [None] * 5
