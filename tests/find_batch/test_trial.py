"""One batch: what its gang says becomes whether it fits, and how much and how fast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ddpscale.errors import GangError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.find_batch import trial as trials
from pytest_ddpscale.find_batch.find_max_batch import fastest
from pytest_ddpscale.find_batch.trial import (
    STEPS_PER_BLOCK,
    BatchTrial,
    memory_limit,
    peak,
    questions_of,
    throughput,
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
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.records import RankMemory
from tests.builders.clusters import thresholds
from tests.builders.launches import playing

pytestmark = pytest.mark.usefixtures("little_patience")

STUDY = Study(
    "weak", Workload("r", ImageFamily("resnet18"), "fp32", 16), (Arm("alone", 1, 16), Arm("ddp", 2, 16)), 2, 0.01, 0.0
)
PLAN = Plan("cpu", "cpu", (STUDY,))
THRESHOLDS = thresholds()
SKUS = THRESHOLDS.thresholds.skus
GIB = 2**30
FAILED = """
say("failed", rank=1, local_rank=1, phase="warm-up", type={type!r}, message={message!r})
order()
say("exit", code=1)
"""


def memory(*ranks: dict[str, int]) -> str:
    """Source that says what ranks took."""
    line = json.dumps({"kind": "memory", "study": STUDY.id, "ranks": list(ranks)})
    return f"send('records', {line!r}.encode() + b'\\n')\n"


def end(reason: str = "rounds") -> str:
    return f"record('study_end', study={STUDY.id!r}, reason={reason!r})\n"


def tried(source: str, tmp_path: Path, limit_bytes: int | None = 1000) -> BatchTrial:
    launch = Launch(playing(f"serve()\n{source}"), {})
    return try_batch(PLAN, launch, 0.9, limit_bytes, tmp_path / "gang-0.log")


def test_on_a_cpu_ranks_share_what_there_is_and_libraries_count_once(tmp_path: Path) -> None:
    ranks = {"own_bytes": 300, "shared_bytes": 90}, {"own_bytes": 310, "shared_bytes": 100}
    trial = tried(memory(*ranks) + end(), tmp_path)
    assert trial == BatchTrial(16, True, "", 710, 1000)
    assert trial.share == 0.71


def test_more_than_the_share_that_may_be_taken_does_not_fit(tmp_path: Path) -> None:
    trial = tried(memory({"own_bytes": 901}) + end(), tmp_path)
    assert (trial.fits, trial.peak_bytes, trial.why_not) == (False, 901, "more than 90 % of the memory")


def test_all_of_the_share_may_be_taken(tmp_path: Path) -> None:
    assert tried(memory({"own_bytes": 900}) + end(), tmp_path).fits


def test_of_gpus_the_fullest_counts(tmp_path: Path) -> None:
    ranks = {"own_bytes": 700, "total_bytes": 1000}, {"own_bytes": 800, "total_bytes": 880}
    trial = tried(memory(*ranks) + end(), tmp_path, None)
    assert (trial.peak_bytes, trial.limit_bytes, trial.fits) == (800, 880, False)


def test_one_rank_out_of_memory_is_enough(tmp_path: Path) -> None:
    source = FAILED.format(type="OutOfMemoryError", message="CUDA out of memory")
    assert tried(source, tmp_path) == BatchTrial(16, False, "OutOfMemoryError on rank 1 in warm-up")


@pytest.mark.parametrize("reported", [True, False])
def test_another_failure_ends_the_search_and_says_who_and_with_what(tmp_path: Path, reported: bool) -> None:
    source = FAILED.format(type="ValueError", message="no such model")
    with pytest.raises(GangError) as refused:
        tried((memory({"own_bytes": 1}) if reported else "") + source, tmp_path)
    why = "rank 1 on n1 failed in warm-up: ValueError: no such model"
    assert str(refused.value) == f"r with 16 images per rank: the search stopped for a reason other than memory: {why}."


def test_a_study_that_has_no_end_does_not_fit_in_silence(tmp_path: Path) -> None:
    with pytest.raises(GangError, match="for an unknown reason"):
        tried(memory({"own_bytes": 1}), tmp_path)
    with pytest.raises(GangError, match="for an unknown reason"):
        tried(end(), tmp_path)


def block(arm: str, number: int, block_s: tuple[float, ...]) -> Block:
    """A block of three steps."""
    return Block(
        study=STUDY.id, arm=arm, round=number, gang=0, ranks=tuple(range(len(block_s))), count=3, work=16.0,
        began_unix_s=1.0, seconds=block_s,
    )  # fmt: skip


def test_throughput_is_that_of_all_ranks_at_the_slowest_pace() -> None:
    blocks = [block("alone", 0, (0.1,)), block("ddp@2", 0, (1.0, 2.0)), block("ddp@2", 1, (1.0, 4.0))]
    assert throughput(blocks, STUDY) == pytest.approx((16 * 3 / 2 + 16 * 3 / 4) / 2)
    assert throughput([], STUDY) is None


def test_without_a_known_limit_there_is_no_share() -> None:
    assert peak([RankMemory(own_bytes=5)], None) == (5, None)
    assert BatchTrial(16, True, "", 5).share is None


def test_the_fastest_is_one_that_fits() -> None:
    trials = [BatchTrial(8, True, samples_per_s=5.0), BatchTrial(16, True, samples_per_s=7.0), BatchTrial(24, True)]
    assert fastest([*trials, BatchTrial(32, False, samples_per_s=9.0)]) == trials[1]
    assert fastest([]) is None


def failed(rank: int, type_: str, message: str = "") -> Failed:
    return Failed(node=0, host="n1", local_rank=rank, rank=rank, phase="warm-up", type=type_, message=message)


def test_one_rank_that_says_so_is_enough() -> None:
    for type_, message in [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 MiB."),
        ("MemoryError", ""),
        ("RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."),
        ("RuntimeError", "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        ("AcceleratorError", "CUDA error: out of memory"),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        ("RuntimeError", "FIND was unable to find an engine to execute this computation"),
        ("RuntimeError", "GET was unable to find an engine to execute this computation"),
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
        ("RuntimeError", "CUDA driver error: out of memory"),
        ("RuntimeError", "Triton Error [CUDA]: out of memory"),
        ("DistBackendError", "ncclUnhandledCudaError: …\nLast error:\nCuda failure 2 'out of memory'"),
        ("DistBackendError", "ncclUnhandledCudaError: …\nLast error:\nFailed to CUDA calloc async 4194304 bytes"),
    ]:
        partner = failed(0, "DistBackendError", "Connection closed by peer [127.0.0.1]:1")
        end = GangEnd(1, "something", failures=(partner, failed(1, type_, message)))
        assert why_out_of_memory(end) == f"{type_} on rank 1 in warm-up"


@pytest.mark.parametrize(("exit_code", "oom_kills", "why"), [
    (-9, 1, "the kernel ended rank 1 on n1 for lack of memory"), (-9, 0, "rank 1 on n1 was killed by SIGKILL"),
    (None, 1, "the kernel ended rank 1 on n1 for lack of memory"), (None, 0, ""), (-11, 0, ""), (1, 1, ""),
])  # fmt: skip
def test_a_killed_rank(exit_code: int | None, oom_kills: int, why: str) -> None:
    end = GangEnd(1, "something", rank_ends=(RankEnd("rank 1 on n1", exit_code),), oom_kills=oom_kills)
    assert why_out_of_memory(end) == why


@pytest.mark.parametrize("message", ["the loss is nan", "no memory of what happened", "NCCL error: invalid usage"])
def test_other_errors_are_none_of_memory(message: str) -> None:
    assert why_out_of_memory(GangEnd(1, "x", failures=(failed(0, "RuntimeError", message),))) == ""


def arms_of(sku: str, workload: Workload, ranks: int, batch: int = 40) -> dict[str, int]:
    """Batches of the study's arms."""
    empty = Plan(sku, "cuda", ())
    plan = trial_plan(empty, questions_of(THRESHOLDS, sku, workload, ranks), batch, 8)
    [study] = plan.studies
    assert (plan.world_size, plan.survey, plan.probes) == (ranks, False, None)
    assert study.workload.batch_size == batch
    assert (study.scaling, study.workload.name) == ("weak", workload.name)
    return {arm.name: arm.batch_size for arm in study.arms}


def test_it_has_the_arms_of_a_run_at_the_batch_that_is_tried() -> None:
    arms = arms_of("v100-sxm2-16gb", SKUS["v100-sxm2-16gb"].workloads["resnet152-fp16"], 8)
    assert {"alone", "ddp@2", "ddp@4", "ddp@8", "each@8"} <= arms.keys()
    assert set(arms.values()) == {40}


def test_all_ranks_train_together_also_where_no_requirement_asks_it() -> None:
    arms = arms_of("v100-sxm2-16gb", SKUS["v100-sxm2-16gb"].workloads["resnet50-fp16"], 3)
    assert "ddp@3" in arms
    assert not {"ddp@4", "ddp@8"} & arms.keys()


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, {"alone"}),
        (2, {"alone", "ddp@2", "no_sync@2", "each@2"}),
        (6, {"alone", "ddp@2", "ddp@4", "ddp@6", "no_sync@6", "each@6"}),
    ],
)
def test_of_a_workload_that_nothing_requires_it_has_the_usual_arms(ranks: int, expected: set[str]) -> None:
    workload = Workload("mine", ImageFamily("resnet18"), "fp32", 8)
    assert arms_of("cpu", workload, ranks).keys() == expected


@pytest.mark.parametrize("steps", [8, 9, 12, 20, 21])
def test_each_arm_trains_at_least_as_many_steps_as_asked(steps: int) -> None:
    questions = questions_of(THRESHOLDS, "cpu", SKUS["cpu"].workloads["shuffle96-fp32"], 2)
    [study] = trial_plan(Plan("cpu", "cpu", ()), questions, 8, steps).studies
    trained = (1 + study.rounds) * STEPS_PER_BLOCK  # a block of warm-up, and one a round
    assert steps <= trained < steps + STEPS_PER_BLOCK
    assert (study.warmup_s, study.block_s < 0.1) == (0.0, True)


@pytest.mark.parametrize(("above", "below", "least"), [
    (2, "max", 2), (2, "1", 1), ("max", "max", None), ("max", "1", 1),
])  # fmt: skip
def test_the_limit_is_what_is_free_or_less_by_a_cgroup_or_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: object, below: str, least: int | None
) -> None:
    own, unit = tmp_path / "own", tmp_path / "fs/slice/unit"
    unit.mkdir(parents=True)
    for folder, limit in ((unit.parent, above), (unit, below)):
        (folder / "memory.max").write_text(f"{limit}\n")
    own.write_text("0::/slice/unit\n")
    monkeypatch.setattr(trials, "CGROUPS", tmp_path / "fs")
    monkeypatch.setattr(trials, "OWN_CGROUP", own)
    where = {1: unit, 2: unit.parent}.get(least or 0)
    found, of = memory_limit()
    if least is None:
        assert (found > 1000, of) == (True, "that is free on this machine")
    else:
        assert (found, of) == (least, f"of the memory cgroup {where}")
    (tmp_path / "fs/memory.max").write_text("1\n")
    own.write_text("0::/kubepods/pod7/c1\n")
    assert memory_limit() == (1, f"of the memory cgroup {tmp_path / 'fs'}"), "in a container the path is the host's"
