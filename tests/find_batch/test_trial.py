"""One batch: what its gang says becomes whether it fits, and how much and how fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.json import encode

from pytest_ddpscale.errors import GangError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.find_batch import trial as trials
from pytest_ddpscale.find_batch.trial import (
    STEPS_PER_BLOCK,
    BatchTrial,
    memory_limit,
    questions_of,
    trial_plan,
    try_batch,
    why_out_of_memory,
)
from pytest_ddpscale.launch.gang_state import GangEnd, RankEnd
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.node.protocol import Failed
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from tests.builders.clusters import thresholds
from tests.builders.launches import playing
from tests.builders.records import gang_on
from tests.rows import rows

pytestmark = pytest.mark.usefixtures("little_patience")

ARMS = Arm("alone", 1, 16), Arm("ddp", 2, 16)
STUDY = Study("weak", Workload("r", ImageFamily("resnet18"), "fp32", 16), ARMS, 2, 0.01, 0.0)
PLAN = Plan("cpu", "cpu", (STUDY,))
END = f"record('study_end', study={STUDY.id!r}, reason='rounds')\n"
ONE = {"own_bytes": 1}


def memory(*ranks: dict[str, int]) -> str:
    """Source that says what ranks took."""
    return f"record('memory', study={STUDY.id!r}, ranks={[*ranks]})\n"


def timed(arm: str, number: int, *seconds: float) -> str:
    """Source that says how long ranks took for three steps."""
    ranks = [*range(len(seconds))]
    return (f"record('timed', study={STUDY.id!r}, arm={arm!r}, round={number}, gang=0, ranks={ranks}, count=3, "
            f"work=16.0, began_unix_s=1.0, seconds={[*seconds]})\n")  # fmt: skip


def failing(type_: str, message: str) -> str:
    """Source of a rank that fails."""
    return (f"say('failed', rank=1, local_rank=1, phase='warm-up', type={type_!r}, message={message!r})\n"
            "order()\nsay('exit', code=1)\n")  # fmt: skip


def tried(source: str, tmp_path: Path, limit_bytes: int | None = 1000) -> BatchTrial:
    launch = Launch(playing(f"serve()\n{source}"), {})
    return try_batch(PLAN, launch, 0.9, limit_bytes, tmp_path / "gang-0.log")


@rows(("ranks", "limit", "used", "share", "why"), [
    ([{"own_bytes": 300, "shared_bytes": 90}, {"own_bytes": 310, "shared_bytes": 100}], 1000, 710, 0.71, ""),
    ([{"own_bytes": 901}], 1000, 901, 0.901, "more than 90 % of the memory"),
    ([{"own_bytes": 900}], 1000, 900, 0.9, ""), ([{"own_bytes": 5}], None, 5, None, ""),
    ([{"own_bytes": 800, "total_bytes": 880}, {"own_bytes": 850, "total_bytes": 1000}], None, 800, 800 / 880,
     "more than 90 % of the memory"),
])  # fmt: skip
def test_memory_is_of_all_ranks_whose_libraries_count_once_or_of_the_fullest_gpu(
    tmp_path: Path, ranks: list[dict[str, int]], limit: int | None, used: int, share: float | None, why: str
) -> None:
    trial = tried(memory(*ranks) + END, tmp_path, limit)
    assert (trial.fits, trial.why_not, trial.peak_bytes, trial.share) == (not why, why, used, share)
    assert trial.samples_per_s_per_gpu is None


def test_throughput_is_that_of_all_ranks_at_the_slowest_pace(tmp_path: Path) -> None:
    gang = f"send('records', {encode(gang_on(['n1'], 2, 'cpu'))!r} + b'\\n')\n"
    source = gang + timed("alone", 0, 0.1) + timed("ddp@2", 0, 1.0, 2.0) + timed("ddp@2", 1, 1.0, 4.0)
    pace = tried(source + memory(ONE) + END, tmp_path).samples_per_s_per_gpu
    assert pace == pytest.approx((16 * 3 / 2 + 16 * 3 / 4) / 2)


def test_one_rank_out_of_memory_is_enough(tmp_path: Path) -> None:
    found = tried(failing("OutOfMemoryError", "CUDA out of memory"), tmp_path)
    assert found == BatchTrial(16, False, "OutOfMemoryError on rank 1 in warm-up")


NO_MODEL = failing("ValueError", "no such model")


@rows(("source", "why"), [
    (NO_MODEL, "rank 1 on n1 failed in warm-up: ValueError: no such model"),
    (memory(ONE) + NO_MODEL, "rank 1 on n1 failed in warm-up: ValueError: no such model"),
    (memory(ONE), "the gang ended early for an unknown reason"), (END, "the gang ended early for an unknown reason"),
])  # fmt: skip
def test_another_end_ends_the_search_and_says_who_and_with_what(tmp_path: Path, source: str, why: str) -> None:
    with pytest.raises(GangError) as refused:
        tried(source, tmp_path)
    assert str(refused.value) == f"r with 16 images per rank: the search stopped for a reason other than memory: {why}."


def failed(rank: int, type_: str, message: str) -> Failed:
    return Failed(node=0, host="n1", local_rank=rank, rank=rank, phase="warm-up", type=type_, message=message)


@rows(("type_", "message"), [
    ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 MiB."), ("MemoryError", ""),
    ("RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."),
    ("RuntimeError", "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("RuntimeError", "FIND was unable to find an engine to execute this computation"),
    ("RuntimeError", "GET was unable to find an engine to execute this computation"),
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
    ("RuntimeError", "CUDA driver error: out of memory"), ("RuntimeError", "Triton Error [CUDA]: out of memory"),
    ("DistBackendError", "ncclUnhandledCudaError: …\nLast error:\nCuda failure 2 'out of memory'"),
    ("DistBackendError", "ncclUnhandledCudaError: …\nLast error:\nFailed to CUDA calloc async 4194304 bytes"),
])  # fmt: skip
def test_one_rank_that_says_so_is_enough(type_: str, message: str) -> None:
    partner = failed(0, "DistBackendError", "Connection closed by peer [127.0.0.1]:1")
    end = GangEnd(1, "something", failures=(partner, failed(1, type_, message)))
    assert why_out_of_memory(end) == f"{type_} on rank 1 in warm-up"


@rows(("end", "why"), [
    *((GangEnd(1, "x", rank_ends=(RankEnd("rank 1", code),), oom_kills=kills), why) for code, kills, why in (
        (-9, 1, "the kernel ended rank 1 for lack of memory"), (-9, 0, "rank 1 was killed by SIGKILL"),
        (None, 1, "the kernel ended rank 1 for lack of memory"), (None, 0, ""), (-11, 0, ""), (1, 1, ""),
    )),
    *((GangEnd(1, "x", failures=(failed(0, "RuntimeError", said),)), "") for said in (
        "the loss is nan", "no memory of what happened", "NCCL error: invalid usage",
    )),
])  # fmt: skip
def test_a_killed_rank_lacked_memory_and_other_errors_did_not(end: GangEnd, why: str) -> None:
    assert why_out_of_memory(end) == why


THRESHOLDS = thresholds()
V100, CPU = (THRESHOLDS.thresholds.skus[name].workloads for name in ("v100-sxm2-16gb", "cpu"))
MINE = Workload("mine", ImageFamily("resnet18"), "fp32", 8)


@rows(("sku", "workload", "ranks", "arms", "without"), [
    ("v100-sxm2-16gb", V100["resnet152-fp16"], 8, "alone ddp@2 ddp@4 ddp@8 each@8", ""),
    ("v100-sxm2-16gb", V100["resnet50-fp16"], 3, "ddp@3", "ddp@4 ddp@8"),  # which no requirement asks
    ("cpu", MINE, 1, "alone", "ddp@1 ddp@2"), ("cpu", MINE, 2, "alone ddp@2 no_sync@2 each@2", "ddp@1"),
    ("cpu", MINE, 6, "alone ddp@2 ddp@4 ddp@6 no_sync@6 each@6", "ddp@3 no_sync@2 ddp@8"),
])  # fmt: skip
def test_a_trial_has_the_arms_of_a_run_and_of_all_ranks_at_its_batch(
    sku: str, workload: Workload, ranks: int, arms: str, without: str
) -> None:
    plan = trial_plan(Plan(sku, "cuda", ()), questions_of(THRESHOLDS, sku, workload, ranks), 40, 8)
    [study] = plan.studies
    found = {arm.name: arm.batch_size for arm in study.arms}
    assert {*arms.split()} <= found.keys()
    assert not {*without.split()} & found.keys()
    assert ({*found.values()}, study.workload.batch_size, study.workload.name) == ({40}, 40, workload.name)
    assert (plan.world_size, plan.survey, plan.probes, study.scaling) == (ranks, False, None, "weak")


@rows(("steps",), [(8,), (9,), (12,), (20,), (21,)])
def test_each_arm_trains_at_least_as_many_steps_as_asked(steps: int) -> None:
    questions = questions_of(THRESHOLDS, "cpu", CPU["shuffle96-fp32"], 2)
    [study] = trial_plan(Plan("cpu", "cpu", ()), questions, 8, steps).studies
    trained = (1 + study.rounds) * STEPS_PER_BLOCK  # a block of warm-up, and one a round
    assert steps <= trained < steps + STEPS_PER_BLOCK
    assert (study.warmup_s, study.block_s < 0.1) == (0.0, True)


@pytest.mark.parametrize(("own", "limits", "least"), [
    ("slice/unit", {"slice": 2, "slice/unit": "max"}, "slice"), ("slice/unit", {"slice/unit": 1}, "slice/unit"),
    ("slice/unit", {"slice": 2, "slice/unit": 1}, "slice/unit"),
    ("slice/unit", {"slice": "max", "slice/unit": "max"}, None),
    ("kubepods/pod7/c1", {".": 1}, "."),  # in a container the path is the host's
])  # fmt: skip
def test_the_limit_is_what_is_free_or_less_by_a_cgroup_or_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, limits: dict[str, Any], least: str | None
) -> None:
    (tmp_path / "fs/slice/unit").mkdir(parents=True)
    for folder, limit in limits.items():
        (tmp_path / "fs" / folder / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "own").write_text(f"0::/{own}\n")
    monkeypatch.setattr(trials, "CGROUPS", tmp_path / "fs")
    monkeypatch.setattr(trials, "OWN_CGROUP", tmp_path / "own")
    found, of = memory_limit()
    where = least and f"of the memory cgroup {tmp_path / 'fs' / least}"
    assert (found > 1000, of) == (least is None, where or "that is free on this machine")
