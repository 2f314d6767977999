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
from tests.approved import assert_approved
from tests.builders.clusters import thresholds
from tests.builders.launches import playing
from tests.builders.records import gang_on
from tests.rows import rows

pytestmark = pytest.mark.usefixtures("little_patience")

MINE = Workload("mine", ImageFamily("resnet18"), "fp32", 16)
STUDY = Study("weak", MINE, (Arm("alone", 1, 16), Arm("ddp", 2, 16)), 2, 0.01, 0.0)
END = f"record('study_end', study={STUDY.id!r}, reason='rounds')\n"


def memory(*ranks: tuple[int, int, int | None]) -> str:
    """Source that says what ranks took: bytes of their own, shared ones, and all that their device has."""
    names = "own_bytes", "shared_bytes", "total_bytes"
    return f"record('memory', study={STUDY.id!r}, ranks={[dict(zip(names, one, strict=True)) for one in ranks]})\n"


def timed(arm: str, number: int, *seconds: float) -> str:
    """Source that says how long ranks took for three steps."""
    ranks = [*range(len(seconds))]
    return (f"record('timed', study={STUDY.id!r}, arm={arm!r}, round={number}, gang=0, ranks={ranks}, count=3, "
            f"work=16.0, began_unix_s=1.0, seconds={[*seconds]})\n")  # fmt: skip


def failing(type_: str, message: str) -> str:
    """Source of a rank that fails."""
    return (f"say('failed', rank=1, local_rank=1, phase='warm-up', type={type_!r}, message={message!r})\n"
            "order()\nsay('exit', code=1)\n")  # fmt: skip


GANG = f"send('records', {encode(gang_on(['n1'], 2, 'cpu'))!r} + b'\\n')\n"
ONE, NO_MODEL = memory((1, 0, None)), failing("ValueError", "no such model")


def test_what_a_gang_says_is_told_as_approved(tmp_path: Path) -> None:
    """Libraries that ranks share count once, the fullest GPU counts, and the slowest rank of the largest arm."""
    lines = []
    for what, source in {
        "two ranks": memory((300, 90, None), (310, 100, None)) + END, "just the share": memory((900, 0, None)) + END,
        "a byte more": memory((901, 0, None)) + END, "GPUs": memory((800, 0, 880), (850, 0, 1000)) + END,
        "paces 24 and 12": GANG + timed("alone", 0, 0.1) + timed("ddp@2", 0, 1.0, 2.0) + timed("ddp@2", 1, 1.0, 4.0)
        + ONE + END,
        "out of memory": failing("OutOfMemoryError", "CUDA out of memory"), "another error": NO_MODEL,
        "another error at the end": ONE + NO_MODEL, "no end": ONE, "no memory": END,
    }.items():  # fmt: skip
        launch = Launch(playing(f"serve()\n{source}"), {})
        try:
            found: object = try_batch(Plan("cpu", "cpu", (STUDY,)), launch, 0.9, 1000, tmp_path / "gang-0.log")
        except GangError as error:
            found = error
        lines.append(f"{what}: {found}")
    assert_approved("batch-trials.txt", "\n".join(lines))


MESSAGES = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.", "MemoryError: ",
    "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes.",
    "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "RuntimeError: FIND was unable to find an engine to execute this computation",
    "RuntimeError: GET was unable to find an engine to execute this computation",
    "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    "RuntimeError: CUDA driver error: out of memory", "RuntimeError: Triton Error [CUDA]: out of memory",
    "DistBackendError: ncclUnhandledCudaError: …\nLast error:\nCuda failure 2 'out of memory'",
    "DistBackendError: ncclUnhandledCudaError: …\nLast error:\nFailed to CUDA calloc async 4194304 bytes",
    "RuntimeError: the loss is nan", "RuntimeError: no memory of what happened", "RuntimeError: NCCL error: invalid",
)  # fmt: skip
ENDED = ((-9, 1), (-9, 0), (None, 1), (None, 0), (-11, 0), (1, 1))


def test_why_a_gang_ended_is_lack_of_memory_as_approved() -> None:
    """One rank that says so is enough, whatever its partners say."""
    lines = [f"exit code {code}, {kills} OOM kills: "
             f"{why_out_of_memory(GangEnd(1, rank_ends=(RankEnd('rank 1', code),), oom_kills=kills)) or 'no'}"
             for code, kills in ENDED]  # fmt: skip
    for type_, _, message in (one.partition(": ") for one in MESSAGES):
        both = ((0, "DistBackendError", "Connection closed by peer [127.0.0.1]:1"), (1, type_, message))
        failures = (Failed(node=0, host="n1", local_rank=rank, rank=rank, phase="warm-up", type=kind, message=said)
                    for rank, kind, said in both)  # fmt: skip
        lines.append(f"{type_}: {message!r}: {why_out_of_memory(GangEnd(1, failures=tuple(failures))) or 'no'}")
    assert_approved("batch-ends.txt", "\n".join(lines))


THRESHOLDS = thresholds()
SKU = "v100-sxm2-16gb"
V100 = THRESHOLDS.thresholds.skus[SKU].workloads


@rows(("workload", "ranks", "arms"), [
    (V100["resnet152-fp16"], 8, "alone ddp@1 ddp@2 ddp@4 ddp@8 each@8 no_sync@8"),
    (V100["resnet50-fp16"], 3, "alone ddp@3 each@3"),  # which no requirement asks
    (MINE, 1, "alone"), (MINE, 2, "alone ddp@2 each@2 no_sync@2"),
    (MINE, 6, "alone ddp@2 ddp@4 ddp@6 each@6 no_sync@6"),
])  # fmt: skip
def test_a_trial_has_the_arms_of_a_run_and_of_all_ranks_at_its_batch(workload: Workload, ranks: int, arms: str) -> None:
    for steps in (8, 9, 12, 13):
        plan = trial_plan(Plan(SKU, "cuda", ()), questions_of(THRESHOLDS, SKU, workload, ranks), 40, steps)
        [study] = plan.studies
        assert " ".join(sorted(arm.name for arm in study.arms)) == arms
        assert {study.workload.batch_size, *(arm.batch_size for arm in study.arms)} == {40}
        assert (plan.world_size, plan.survey, plan.probes, study.scaling) == (ranks, False, None, "weak")
        trained = (1 + study.rounds) * STEPS_PER_BLOCK  # a block of warm-up, and one a round
        assert steps <= trained < steps + STEPS_PER_BLOCK
        assert (study.warmup_s, study.block_s < 0.1) == (0.0, True)


@rows(("own", "limits", "least"), [
    ("unit", {"slice": 2, "slice/unit": "max"}, "slice"), ("unit", {"slice": 2, "slice/unit": 1}, "slice/unit"),
    ("unit", {"slice": "max", "slice/unit": "max"}, None),
    ("gone", {".": 1, "slice": "max"}, "."),  # in a container the path is the host's
])  # fmt: skip
def test_the_limit_is_what_is_free_or_less_by_a_cgroup_or_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, limits: dict[str, Any], least: str | None
) -> None:
    groups = tmp_path / "fs"
    (groups / "slice/unit").mkdir(parents=True, exist_ok=True)
    for folder, limit in limits.items():
        (groups / folder / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "own").write_text(f"0::/slice/{own}\n")
    monkeypatch.setattr(trials, "CGROUPS", groups)
    monkeypatch.setattr(trials, "OWN_CGROUP", tmp_path / "own")
    found, of = memory_limit()
    where = f"of the memory cgroup {groups / least}" if least else "that is free on this machine"
    assert (found > 1000, of) == (not least, where)
