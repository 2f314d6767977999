"""`ddpscale find-max-batch`, as a person types it, with what a gang would say played; and one batch, whose gang is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.json import encode

from pytest_ddpscale.errors import GangError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.find_batch import trial as trials
from pytest_ddpscale.find_batch.find_max_batch import MULTIPLE, largest_fitting
from pytest_ddpscale.find_batch.trial import (
    STEPS_PER_BLOCK,
    BatchTrial,
    questions_of,
    trial_plan,
    try_batch,
    why_out_of_memory,
)
from pytest_ddpscale.launch import gang as gang_module
from pytest_ddpscale.launch.gang_state import GangEnd, RankEnd
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.node.protocol import Failed
from pytest_ddpscale.node.survey import GpusHere
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.session import open as opening
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.approved import assert_approved
from tests.builders.clusters import thresholds
from tests.builders.launches import playing
from tests.builders.records import gang_on
from tests.builders.sessions import gpu
from tests.suites.conftest import exit_code, refused

GIB = 2**30
ENDS: dict[int, BaseException] = {}  # what ends the trial of a batch
Capture = pytest.CaptureFixture[str]
multiples = st.integers(1, 300).map(lambda number: MULTIPLE * number)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Plans whose batches were tried, of which those up to 40 fit; no rank starts."""
    plans: list[Plan] = []

    def play(plan: Plan, *_: Any) -> BatchTrial:
        batch = plan.studies[0].workload.batch_size
        if batch in ENDS:
            raise ENDS[batch]
        plans.append(plan)
        if batch >= 64:
            return BatchTrial(batch, False, "OutOfMemoryError on rank 0 in warm-up")
        fits = batch <= 40
        why = "" if fits else "more than 90 % of the memory"
        return BatchTrial(batch, fits, why, batch * GIB, 100 * GIB, 100.0 - batch if fits else 200.0)

    monkeypatch.setattr(trials, "try_batch", play)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2 * GIB))
    return plans


def run(options: str) -> int:
    return exit_code("find-max-batch", "--gpu-sku=cpu", "--ranks=2", *options.split())


def test_each_workload_or_a_model_is_tried_on_all_ranks_and_told_as_approved(
    tried: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A model of one's own is trained as the SKU trains it, or as usual on GPUs."""
    for name, value in (("SLURM_JOB_ID", "1"), ("SLURM_JOB_NODELIST", "n[1-2]")):  # of which it takes this node
        monkeypatch.setenv(name, value)
    file = tmp_path / "found.json"
    assert run(f"--json {file}") == 0
    print(file.read_text().replace("},", "},\n"))
    assert file.with_suffix(".csv").read_text().startswith("workload,batch,samples_per_s_per_gpu")
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    for options, code in (
        ("--workload shufflenet-fp32 --least=40 --most=40", 0), ("--workload shufflenet-fp32 --least=48", 1),
        ("--model=resnet34 --precision=bf16 --image-size=96 --ranks=3 --most=8", 0),
    ):  # fmt: skip
        assert run(options) == code
    monkeypatch.setattr(
        opening, "gpus_here", lambda skus: GpusHere([gpu(at, "NVIDIA A100-SXM4-80GB") for at in range(4)])
    )
    on_a100 = "find-max-batch", "--most=8"
    for options in (
        "--model=vit_b_16 --precision=bf16", "--model=resnet34 --precision=fp16 --image-size=128",
        "--workload resnet50-fp16 resnet152-fp16",
    ):  # fmt: skip
        assert exit_code(*on_a100, *options.split()) == 0
    assert (tried[-1].sku, tried[-1].device_type, tried[-1].world_size) == ("a100-sxm4-80gb", "cuda", 4)
    assert_approved("find-max-batch.txt", capsys.readouterr().out)
    assert "found 5" in refused(capsys, *on_a100, "--gpu-sku=a100", "--ranks=5")
    assert "written beside it" in refused(capsys, *on_a100, "--gpu-sku=a100", "--json=found.csv")


@given(largest=st.integers(0, 2500), least=multiples, most=multiples)
def test_batches_are_doubled_and_then_halved_between_until_the_largest_is_found(
    largest: int, least: int, most: int
) -> None:
    most, asked = max(least, most), list[int]()

    def fits(batch: int) -> bool:
        asked.append(batch)
        return batch <= largest

    found = largest_fitting(fits, least, most)
    assert len(set(asked)) == len(asked) <= 2 * (max(most // least, 1)).bit_length() + 8
    assert all(batch % MULTIPLE == 0 and least <= batch <= most for batch in asked)
    if found is None:
        assert largest < least
        return
    assert found <= largest
    assert found == most or found + MULTIPLE in asked  # so that the next one was seen not to fit


def test_what_ends_a_search_is_a_sentence_and_keeps_what_was_tried(
    tried: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    file, failed = tmp_path / "found.json", GangError("r with 16 images per rank", "rank 1 failed")
    for end, code, said in (
        (failed, 3, "r with 16 images per rank: rank 1 failed."),
        (KeyboardInterrupt(), 130, "interrupted."),
    ):
        file.write_text("yesterday's")
        monkeypatch.setitem(ENDS, 16, end)
        for least, kept in ((16, "yesterday's"), (8, '"batch":8,')):
            assert run(f"--json {file} --least={least}") == code
            assert capsys.readouterr().err == f"ddpscale: {said}\n"
            assert kept in file.read_text()


def test_a_new_file_extends_the_thresholds(
    tried: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    site, new, third = map(Path, ("site.yaml", "new.yaml", "third.yaml"))
    ours = "schema_version: 2\nextends: packaged\nskus:\n  cpu:\n    batch: {shuffle96-fp32: {per_gpu: 8}}\n"
    site.write_text(ours)
    assert run("--workload shuffle96-fp32 --thresholds site.yaml --write new.yaml") == 0
    assert site.read_text() == ours
    assert "extends: site.yaml\n" in new.read_text()
    assert load_thresholds(new).thresholds.skus["cpu"].workloads["shuffle96-fp32"].batch_size == 40
    assert f"{new.read_text()}\nWrote new.yaml. Next: pytest --gpu-sku=cpu" in capsys.readouterr().out
    assert run("--least=48 --write third.yaml") == 1
    assert not third.exists()
    assert run("--write third.yaml") == 0
    assert "extends: packaged\n" in third.read_text()


MINE = Workload("mine", ImageFamily("resnet18"), "fp32", 16)
STUDY = Study("weak", MINE, (Arm("alone", 1, 16), Arm("ddp", 2, 16)), 2, 0.01, 0.0)


def record(kind: str, **fields: object) -> str:
    """Source that sends a line of the study."""
    return f"record({kind!r}, study={STUDY.id!r}, **{fields!r})\n"


def memory(*ranks: tuple[int, int, int | None]) -> str:
    """Source that says what ranks took: bytes of their own, shared ones, and all that their device has."""
    names = "own_bytes", "shared_bytes", "total_bytes"
    return record("memory", ranks=[dict(zip(names, rank, strict=True)) for rank in ranks])


def timed(arm: str, number: int, *seconds: float) -> str:
    """Source that says how long ranks took for three steps."""
    ranks = [*range(len(seconds))]
    fields = {"gang": 0, "ranks": ranks, "count": 3, "work": 16.0, "began_unix_s": 1.0, "seconds": [*seconds]}
    return record("timed", arm=arm, round=number, **fields)


def failing(type_: str, message: str) -> str:
    """Source of a rank that fails."""
    failed = {"rank": 1, "local_rank": 1, "phase": "warm-up", "type": type_, "message": message}
    return f"say('failed', **{failed})\norder()\nsay('exit', code=1)\n"


END = record("study_end", reason="rounds")
GANG = f"send('records', {encode(gang_on(['n1'], 2, 'cpu'))!r} + b'\\n')\n"
ONE, NO_MODEL = memory((1, 0, None)), failing("ValueError", "no such model")
PACES = timed("alone", 0, 0.1) + timed("ddp@2", 0, 1.0, 2.0) + timed("ddp@2", 1, 1.0, 4.0)


def test_what_a_gang_says_is_told_as_approved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that ranks share count once, the fullest GPU counts, and the slowest rank of the largest arm."""
    for name, seconds in {"POLL_S": 0.02, "COLLECT_S": 0.1, "GRACE_S": 3.0, "FAREWELL_S": 5.0}.items():
        monkeypatch.setattr(gang_module, name, seconds)
    lines = list[str]()
    for what, source in {
        "two ranks": memory((300, 90, None), (310, 100, None)) + END, "just the share": memory((900, 0, None)) + END,
        "a byte more": memory((901, 0, None)) + END, "GPUs": memory((800, 0, 880), (850, 0, 1000)) + END,
        "paces 24 and 12": GANG + PACES + ONE + END, "another error": NO_MODEL,
        "out of memory": failing("OutOfMemoryError", "CUDA out of memory"),
        "another error at the end": ONE + NO_MODEL, "no end": ONE, "no memory": END,
    }.items():  # fmt: skip
        launch = Launch(playing(f"serve()\n{source}"), {})
        try:
            found: object = try_batch(Plan("cpu", "cpu", (STUDY,)), launch, 0.9, 1000, tmp_path / "gang-0.log")
        except GangError as error:
            found = error
        lines.append(f"{what}: {found}")
    assert_approved("batch-trials.txt", "\n".join([*lines, ""]))


MESSAGES = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.", "MemoryError: ",
    "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: 99 bytes.",
    "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be reported",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "RuntimeError: FIND was unable to find an engine to execute this computation",
    "RuntimeError: GET was unable to find an engine to execute this computation",
    "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    "RuntimeError: CUDA driver error: out of memory", "RuntimeError: Triton Error [CUDA]: out of memory",
    "DistBackendError: ncclUnhandledCudaError: …\nCuda failure 2 'out of memory'",
    "DistBackendError: ncclUnhandledCudaError: …\nFailed to CUDA calloc async 4194304 bytes",
    "RuntimeError: the loss is nan", "RuntimeError: no memory of what happened", "RuntimeError: NCCL error: invalid",
)  # fmt: skip
ENDED = ((-9, 1), (-9, 0), (None, 1), (None, 0), (-11, 0), (1, 1))


def test_why_a_gang_ended_is_lack_of_memory_as_approved() -> None:
    """One rank that says so is enough, whatever its partners say."""
    ends = {
        f"exit code {code}, {kills} OOM kills": GangEnd(1, rank_ends=(RankEnd("rank 1", code),), oom_kills=kills)
        for code, kills in ENDED
    }
    for text in MESSAGES:
        type_, _, message = text.partition(": ")
        both = ((0, "DistBackendError", "Connection closed by peer [127.0.0.1]:1"), (1, type_, message))
        failures = (Failed(node=0, host="n1", local_rank=rank, rank=rank, phase="warm-up", type=kind, message=said)
                    for rank, kind, said in both)  # fmt: skip
        ends[repr(text)] = GangEnd(1, failures=tuple(failures))
    lines = (f"{what}: {why_out_of_memory(end) or 'no'}" for what, end in ends.items())
    assert_approved("batch-ends.txt", "\n".join([*lines, ""]))


def test_a_trial_has_the_arms_of_a_run_and_of_all_ranks_at_its_batch() -> None:
    """Also of a workload that no requirement asks, for three ranks of ResNet-50."""
    file, sku, lines = thresholds(), "v100-sxm2-16gb", list[str]()
    v100 = file.thresholds.skus[sku].workloads
    for workload, ranks in ((v100["resnet152-fp16"], 8), (v100["resnet50-fp16"], 3), (MINE, 1), (MINE, 2), (MINE, 6)):
        for steps in (8, 9, 12, 13):
            plan = trial_plan(Plan(sku, "cuda", ()), questions_of(file, sku, workload, ranks), 40, steps)
            [study] = plan.studies
            trained = (1 + study.rounds) * STEPS_PER_BLOCK  # a block of warm-up, and one a round
            assert steps <= trained < steps + STEPS_PER_BLOCK
        batches = {study.workload.batch_size, *(arm.batch_size for arm in study.arms)}
        plans = plan.world_size, plan.survey, plan.probes, study.scaling, study.warmup_s, study.block_s
        lines.append(f"{workload.name}: {sorted(arm.name for arm in study.arms)} of {batches}, {plans}")
    assert_approved("batch-plans.txt", "\n".join([*lines, ""]))
