"""`ddpscale find-max-batch`, as a person types it; what a gang would say is played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import GangError
from pytest_ddpscale.find_batch import trial
from pytest_ddpscale.find_batch.find_max_batch import MULTIPLE, largest_fitting
from pytest_ddpscale.find_batch.trial import BatchTrial
from pytest_ddpscale.node.survey import GpusHere
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.session import open as opening
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.approved import assert_approved
from tests.builders.sessions import gpu
from tests.suites.conftest import exit_code

GIB = 2**30
MORE, WHY = "more than 90 % of the memory", "OutOfMemoryError on rank 0 in warm-up"
ENDS: dict[int, BaseException] = {}  # what ends the trial of a batch
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
        took = (batch * GIB, 100 * GIB, 100.0 - batch if batch <= 40 else 200.0) if batch < 64 else ()
        return BatchTrial(batch, batch <= 40, "" if batch <= 40 else MORE if took else WHY, *took)

    monkeypatch.setattr(trial, "try_batch", play)
    monkeypatch.setattr(trial, "memory_limit", lambda: (2 * GIB, "that is free on this machine"))
    return plans


def run(*arguments: str) -> int:
    return exit_code("find-max-batch", "--gpu-sku=cpu", "--ranks=2", *arguments)


def test_each_workload_or_a_model_is_tried_on_all_ranks_and_told_as_approved(
    tried: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("SLURM_JOB_ID", "1"), ("SLURM_JOB_NODELIST", "n[1-2]")):  # of which it takes this node
        monkeypatch.setenv(name, value)
    file = tmp_path / "found.json"
    assert run("--json", str(file)) == 0
    assert [plan.studies[0].workload.batch_size for plan in tried] == 2 * [8, 16, 32, 64, 48, 40]
    print(file.read_text().replace("},", "},\n"))
    assert run("--workload", "shufflenet-fp32", "--least=40", "--most=40") == 0
    assert run("--workload", "shufflenet-fp32", "--least=48") == 1, "nothing fits"
    assert run("--model=resnet34", "--precision=bf16", "--image-size=96", "--ranks=3", "--most=8") == 0
    monkeypatch.setattr(opening, "gpus_here", lambda: GpusHere([gpu(at, "NVIDIA A100-SXM4-80GB") for at in range(4)]))
    on_a100 = "find-max-batch", "--most=8", "--workload", "resnet50-fp16", "resnet152-fp16"
    assert exit_code(*on_a100) == 0
    assert (tried[-1].sku, tried[-1].device_type, tried[-1].world_size) == ("a100-sxm4-80gb", "cuda", 4)
    assert_approved("find-max-batch.txt", capsys.readouterr().out)
    assert exit_code(*on_a100, "--gpu-sku=a100", "--ranks=5") == 4


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


MISTAKES = (
    "--least=12", "--most=0", "--least=64 --most=32", "--steps=4", "--fraction=90", "--ranks=none",
    "--workload resnet19", "--model=resnet18", "--model=resnet --precision=fp32", "--precision=fp32",
    "--model=resnet18 --precision=fp32 --workload x", "--image-size=96",
    "--model=vit_b_16 --precision=fp32 --image-size=225", "--thresholds=/nowhere.yaml",
    "--write site.yaml", "--write nowhere/file", "--json nowhere/file",
    "--model=resnet34 --precision=fp32 --write new.yaml",
)  # fmt: skip


def test_a_mistake_is_told_in_a_line_before_anything_is_tried_or_written(
    tried: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("site.yaml").write_text("# ours\n")
    assert [run(*arguments.split()) for arguments in MISTAKES] == len(MISTAKES) * [4]
    said = capsys.readouterr().err.splitlines()
    assert_approved("find-max-batch-mistakes.txt", "\n".join(map(" -> ".join, zip(MISTAKES, said, strict=True))))
    assert (tried, Path("site.yaml").read_text(), len([*tmp_path.iterdir()])) == ([], "# ours\n", 1)


@pytest.mark.parametrize(("end", "code", "said"), [
    (GangError("r with 16 images per rank", "rank 1 failed"), 3, "r with 16 images per rank: rank 1 failed."),
    (KeyboardInterrupt(), 130, "interrupted."),
])  # fmt: skip
def test_what_ends_a_search_is_a_sentence_and_keeps_what_was_tried(
    tried: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    end: BaseException, code: int, said: str,
) -> None:  # fmt: skip
    file = tmp_path / "found.json"
    file.write_text("yesterday's")
    monkeypatch.setitem(ENDS, 16, end)
    for least, kept in ((16, "yesterday's"), (8, '"batch":8,')):
        assert run("--json", str(file), f"--least={least}") == code
        assert capsys.readouterr().err == f"ddpscale: {said}\n"
        assert kept in file.read_text()


def test_a_new_file_extends_the_thresholds(
    tried: list[Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, new, third = (tmp_path / f"{name}.yaml" for name in ("site", "new", "third"))
    ours = "schema_version: 2\nextends: packaged\nskus:\n  cpu:\n    batch: {shuffle96-fp32: {per_gpu: 8}}\n"
    site.write_text(ours)
    assert run("--workload", "shuffle96-fp32", "--thresholds", str(site), "--write", str(new)) == 0
    assert site.read_text() == ours
    assert "extends: site.yaml\n" in new.read_text()
    assert load_thresholds(new).thresholds.skus["cpu"].workloads["shuffle96-fp32"].batch_size == 40
    assert f"{new.read_text()}\nWrote {new}. Next: pytest --gpu-sku=cpu" in capsys.readouterr().out
    assert run("--least=48", "--write", str(third)) == 1
    assert not third.exists()
    assert run("--write", str(third)) == 0
    assert "extends: packaged\n" in third.read_text()
