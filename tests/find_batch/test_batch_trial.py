"""One batch: the study it is tried in, and what its gang says becomes whether it fits, how much and how fast."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_ddpscale.errors import GangError, OptionError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.find_batch import batch_trial
from pytest_ddpscale.find_batch.batch_trial import (
    STEPS_PER_BLOCK,
    BatchTrial,
    host_memory,
    peak_memory,
    questions_of,
    throughput,
    trial_plan,
    try_batch,
    why_out_of_memory,
    workload_of,
)
from pytest_ddpscale.launch import gang as gang_module
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

GIB = 2**30
STUDY = Study(
    "weak", Workload("r", ImageFamily("resnet18"), "fp32", 16), (Arm("alone", 1, 16), Arm("ddp", 2, 16)), 2, 0.01, 0.0
)
PLAN = Plan("cpu", "cpu", (STUDY,))
FAILED = """
say("failed", rank=1, local_rank=1, phase="warm-up", type={type!r}, message={message!r})
order()
say("exit", code=1)
"""
END = f"record('study_end', study={STUDY.id!r}, reason='rounds')\n"
THRESHOLDS = thresholds()
SKUS = THRESHOLDS.thresholds.skus


def memory(*ranks: dict[str, int]) -> str:
    """Source that says what ranks took."""
    line = json.dumps({"kind": "memory", "study": STUDY.id, "ranks": list(ranks)})
    return f"send('records', {line!r}.encode() + b'\\n')\n"


def tried(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host_bytes: int | None = 1000) -> BatchTrial:
    # The gang is looked at often, and nobody waits for more bad news.
    for name, seconds in {"POLL_S": 0.02, "COLLECT_S": 0.1, "GRACE_S": 3.0, "FAREWELL_S": 5.0}.items():
        monkeypatch.setattr(gang_module, name, seconds)
    launch = Launch(playing(f"serve()\n{source}"), {})
    return try_batch(PLAN, launch, 0.9, host_bytes, tmp_path / "gang-0.log")


SHARED = {"own_bytes": 300, "shared_bytes": 90}, {"own_bytes": 310, "shared_bytes": 100}
TOO_MUCH = "more than 90 % of the memory"
GPUS = {"own_bytes": 700, "total_bytes": 1000}, {"own_bytes": 800, "total_bytes": 880}
OUT_OF_MEMORY = FAILED.format(type="OutOfMemoryError", message="CUDA out of memory")


@pytest.mark.parametrize(
    ("source", "host_bytes", "trial"),
    [
        (memory(*SHARED) + END, 1000, BatchTrial(16, True, "", 710, 1000)),  # pages of libraries count once
        (memory({"own_bytes": 901}) + END, 1000, BatchTrial(16, False, TOO_MUCH, 901, 1000)),
        (memory({"own_bytes": 900}) + END, 1000, BatchTrial(16, True, "", 900, 1000)),
        (memory(*GPUS) + END, None, BatchTrial(16, False, TOO_MUCH, 800, 880)),  # the fullest counts
        (OUT_OF_MEMORY, 1000, BatchTrial(16, False, "OutOfMemoryError on rank 1 in warm-up")),  # one rank is enough
    ],
)
def test_whether_a_batch_fits(
    source: str, host_bytes: int | None, trial: BatchTrial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tried(source, tmp_path, monkeypatch, host_bytes) == trial


FOREIGN = FAILED.format(type="ValueError", message="no such model")
SAID = "rank 1 on n1 failed in warm-up: ValueError: no such model."
UNKNOWN = "the gang ended early for an unknown reason."


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (memory({"own_bytes": 1}) + FOREIGN, SAID),
        (FOREIGN, SAID),
        (memory({"own_bytes": 1}), UNKNOWN),
        (END, UNKNOWN),
    ],
)
def test_another_end_ends_the_search_and_says_who_and_with_what(
    source: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GangError) as refused:
        tried(source, tmp_path, monkeypatch)
    assert str(refused.value) == f"r with 16 images per rank: the search stopped for a reason other than memory: {why}"


def test_throughput_is_that_of_all_ranks_at_the_slowest_pace() -> None:
    blocks = [
        Block(study=STUDY.id, arm=arm, round=number, gang=0, ranks=tuple(range(len(block_s))), count=3, work=16.0,
              began_unix_s=1.0, seconds=block_s)
        for arm, number, block_s in [("alone", 0, (0.1,)), ("ddp@2", 0, (1.0, 2.0)), ("ddp@2", 1, (1.0, 4.0))]
    ]  # fmt: skip
    assert throughput(blocks, STUDY) == pytest.approx((16 * 3 / 2 + 16 * 3 / 4) / 2)
    assert throughput([], STUDY) is None


def test_without_a_known_limit_there_is_no_share() -> None:
    assert peak_memory([RankMemory(own_bytes=5)], None) == (5, None)
    assert BatchTrial(16, True, "", 5).share is None


@pytest.mark.parametrize(
    ("type_", "message"),
    [
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
        ("", "the loss is nan"),
        ("", "no memory of what happened"),
        ("", "NCCL error: invalid usage"),
    ],
)
def test_one_rank_that_says_so_is_enough(type_: str, message: str) -> None:
    partner, other = (
        Failed(node=0, host="n1", local_rank=rank, rank=rank, phase="warm-up", type=name, message=said)
        for rank, name, said in [
            (0, "DistBackendError", "Connection closed by peer [127.0.0.1]:1"),
            (1, type_ or "RuntimeError", message),
        ]
    )
    said = why_out_of_memory(GangEnd(1, "something", failures=(partner, other)))
    assert said == (f"{type_} on rank 1 in warm-up" if type_ else "")


@pytest.mark.parametrize(
    ("exit_code", "oom_kills", "why"),
    [
        (-9, 1, "the kernel ended rank 1 on n1 for lack of memory"),
        (None, 1, "the kernel ended rank 1 on n1 for lack of memory"),
        (-9, 0, "rank 1 on n1 was killed by SIGKILL"),
        (None, 0, ""),
        (-11, 0, ""),
        (1, 1, ""),
    ],
)
def test_a_killed_rank(exit_code: int | None, oom_kills: int, why: str) -> None:
    end = GangEnd(1, "something", rank_ends=(RankEnd("rank 1 on n1", exit_code),), oom_kills=oom_kills)
    assert why_out_of_memory(end) == why


@pytest.mark.parametrize(
    ("limits", "found", "of"),
    [
        ({}, 2 * GIB, "that is free on this machine"),
        ({"slice/unit": "max"}, 2 * GIB, "that is free on this machine"),
        ({"slice": str(3 * GIB)}, 2 * GIB, "that is free on this machine"),
        ({"slice": str(GIB), "slice/unit": "max"}, GIB, "of the memory cgroup {}/slice"),
        ({"slice": str(2 * GIB), "slice/unit": str(GIB)}, GIB, "of the memory cgroup {}/slice/unit"),
        ({"": str(GIB)}, GIB, "of the memory cgroup {}"),  # in a container, where the path is the host's
    ],
)
def test_ranks_on_a_cpu_share_what_is_free_or_less_by_a_cgroup_here_or_above(
    limits: dict[str, str], found: int, of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, limit in limits.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "memory.max").write_text(f"{limit}\n")
    own = tmp_path / "cgroup"
    own.write_text("2:cpu:/elsewhere\n0::/slice/unit\n")
    monkeypatch.setattr(batch_trial, "OWN_CGROUP", own)
    monkeypatch.setattr(batch_trial, "CGROUPS", tmp_path)
    monkeypatch.setattr(
        batch_trial, "psutil", SimpleNamespace(virtual_memory=lambda: SimpleNamespace(available=2 * GIB))
    )
    assert host_memory() == (found, of.format(tmp_path))


def arms_of(sku: str, workload: Workload, ranks: int, batch: int = 40) -> dict[str, int]:
    """Batches of the study's arms."""
    plan = trial_plan(Plan(sku, "cuda", ()), questions_of(THRESHOLDS, sku, workload, ranks), batch, 8)
    [study] = plan.studies
    assert (plan.world_size, plan.survey, plan.probes) == (ranks, False, None)
    assert (study.workload.batch_size, study.scaling, study.workload.name) == (batch, "weak", workload.name)
    return {arm.name: arm.batch_size for arm in study.arms}


def test_the_study_has_the_arms_of_a_run_at_the_batch_that_is_tried() -> None:
    workloads = SKUS["v100-sxm2-16gb"].workloads
    arms = arms_of("v100-sxm2-16gb", workloads["resnet152-fp16"], 8)
    assert {"alone", "ddp@2", "ddp@4", "ddp@8", "each@8"} <= arms.keys()
    assert set(arms.values()) == {40}
    three = arms_of("v100-sxm2-16gb", workloads["resnet50-fp16"], 3)  # which no requirement asks
    assert "ddp@3" in three
    assert not {"ddp@4", "ddp@8"} & three.keys()


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


def test_a_workload_of_ones_own_is_trained_as_the_sku_trains_that_model() -> None:
    for model, size, device, name, trained_size, memory_format in [
        ("vit_b_16", None, "cuda", "vit-b-16-bf16", 224, "contiguous"),
        ("resnet34", 128, "cuda", "resnet34-bf16", 128, "channels_last"),
        ("resnet34", None, "cpu", "resnet34-bf16", 224, "contiguous"),
    ]:
        found = workload_of(SKUS["a100-sxm4-80gb"], model, "bf16", size, "cpu" if device == "cpu" else "cuda")
        family = found.family
        assert (found.name, found.precision) == (name, "bf16")
        assert (family.image_size, family.memory_format) == (trained_size, memory_format)
    with pytest.raises(OptionError, match="--model: found 'resnet51'"):
        workload_of(SKUS["cpu"], "resnet51", "fp32", None, "cpu")
