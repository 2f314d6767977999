"""What cannot be measured, read or compared is said in one sentence, before anything is measured or written."""

from __future__ import annotations

import copy
import json
import math
import re
import shlex
import shutil
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import ResultFileError
from pytest_ddpscale.suites.ddp_benchmark import read_ddp_benchmark
from pytest_ddpscale.suites.paik_import import import_paik
from pytest_ddpscale.suites.registry import SUITES, TUNE
from pytest_ddpscale.util.packaged import packaged
from tests.approved import assert_approved
from tests.builders.clusters import thresholds
from tests.builders.image_folder import image_folder
from tests.builders.nights import judged_run
from tests.suites.conftest import exit_code, refused
from tests.suites.published_ddp_benchmark import REPORT

Capture = pytest.CaptureFixture[str]
PUBLISHED = Path(__file__).parents[1] / "data/paik_a100_80gb/2gpu_weak_resnet152_fp16_132-145-197-242.json"
PACKAGED = str(packaged("thresholds.yaml"))
CPU = "--gpu-sku=cpu --ddp-gpus-per-node=2"
SMALL = f"{CPU} --image-size=32"
COMMANDS = {
    f"suite collectives {CPU}":
        ("--sizes=1KB", "--operations=gather", "--iteration-limit=fast", "--ddp-gpus-per-node=1", "--ddp-judge=run"),
    f"suite inference {SMALL}": ("--model=resnet51", "--batches=4,none", "--batches=5000000", "--precision=fp16"),
    f"suite data-parallel {CPU}": ("--ddp-gpus-per-node=1",),
    f"suite factors {SMALL}": ("--models=alexnet,vit_b_16", "--world-sizes=1,3", "--hidden-sizes="),
    f"suite pytorch-ddp {SMALL}":
        ("--models=resnet50,resnet51", "--bucket-sizes=0", "--bucket-sizes=1e6", "--gpu-sku=b201"),
    f"suite input-pipeline {CPU} --folder=images": ("--workers=1,x", "--prefetch=0", "--folder=."),
    f"suite convergence {CPU} --samples=1024":
        ("--ranks=1,2 --global-batch=33", "--loss=-1", "--mnist=/nowhere", "--hidden=0"),
    f"suite whole-run {SMALL} --made=32 --batch=4": (
        "--ranks=1,3", "--batch=40", "--precision=fp16", "--lr=0", "--epochs=0", "--model=resnet51",
        "--folder=/nowhere", "--at-least-accuracy=40",
    ),
    "suite whole-run --gpu-sku=a6000 --ddp-hosts=n1,n2 --ddp-exec='true {host}'": ("--ddp-gpus-per-node=4 --ranks=6",),
    "tune --gpu-sku=cpu": (
        "--try=NCCL_ALGOO=Ring", "--try=NCCL_P2P=0", "--batch=5000000",
        "--try=bucket_cap=1", "--try=static_graph=maybe", "--try=precision=fp8",
        "--try=accumulation_steps=0", "--try=uneven_share=0.99", "--try=nccl_algo=Ring", "--try=batch_size=none",
        "--try=bucket_cap_mb", "--try=precision=fp32",
    ),
    "find-max-batch --gpu-sku=cpu --ranks=2": (
        "--least=12", "--most=0", "--least=64 --most=32", "--steps=4", "--fraction=90", "--ranks=none",
        "--workload resnet19", "--model=resnet18", "--model=resnet --precision=fp32", "--precision=fp32",
        "--model=resnet18 --precision=fp32 --workload x", "--image-size=96",
        "--model=vit_b_16 --precision=fp32 --image-size=225", "--thresholds=/nowhere.yaml",
        "--write site.yaml", "--write nowhere/file", "--json nowhere/file",
        "--model=resnet34 --precision=fp32 --write new.yaml",
    ),
    "make-dataset made": (
        "--images=10", "--images=10 --classes=2 --image-size=0", "--like=micro-224 --classes=9999",
    ),
    "compare sound.json": ("other.json", "sound.json", "run", ""),
    "compare run": ("sound.json",),
    "import pytorch-ddp": ("none.json",),
    "import paik --out new": ("nowhere", "twice"),
}  # fmt: skip
# Of a sound file other values at some keys, and what is no such file at all.
OF_BENCHMARK = [
    ("benchmark_results", []), ("gpus_per_machine", "8"), ("benchmark_results.0", {}),
    ("benchmark_results.0.batch_size", 0), ("benchmark_results.0.result.0.ranks", [0, 1]),
    ("benchmark_results.0.result.1.measurements", []), ("benchmark_results.0.result.1.measurements.3", 0.0),
    ("benchmark_results.0.result.1.measurements.3", math.nan),
    ("benchmark_results.0.result.2.measurements", [0.1] * 3),
]  # fmt: skip
OF_PAIK: list[tuple[str, Any]] = [
    ("world_size", None), ("per_rank.1.mean_step_sec", 0), ("per_rank.1.mean_step_sec", True),
    ("per_rank.1.mean_step_sec", 10**400), ("per_rank.1.stdev_step_sec", -1), ("per_rank.1.n_steps", 0),
    ("per_rank.1.peak_mem_gb", -1), ("per_rank.1.rank", 0), ("per_rank.1.gpu_sampling", {}),
    ("per_rank.1.gpu_sampling.gpu_activity_pct.mean", -1), ("scaling_mode", "medium"),
    ("model", "../../etc"), ("torch_version", "\ud800"), ("bench_sec_target", 0),
]  # fmt: skip
NO_FILES = (
    "", "{", "\xff\xfe", "not json", '{"nodes": 1e999}', '{"per_rank": -Infinity}', "[" * 100_000, "1" * 5000, "[]",
    "3", "null", '"text"', "{}", '{"schema_version": 1, "sku": "cpu"}',
)  # fmt: skip


def import_all(path: Path) -> None:
    import_paik(path.parents[1], path.parents[2] / "run", None, thresholds().thresholds)


def test_a_mistake_is_one_line_that_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    image_folder(tmp_path / "images", images=3)
    judged_run(Path("run"), 0, {"n1": [100.0] * 2})
    Path("site.yaml").write_text("# ours\n")
    for name in ("a", "b"):
        shutil.copytree(PUBLISHED.parent, f"twice/{name}")
    for name in ("sound", "other"):
        Path(f"{name}.json").write_text(json.dumps(REPORT).replace("resn", name))
    before, lines = {one: one.stat().st_mtime_ns for one in tmp_path.rglob("*")}, list[str]()
    for command, mistakes in COMMANDS.items():
        lines.append(f"ddpscale {command}")
        lines += (f"  {one}: {refused(capsys, *shlex.split(f'{command} {one}'))}" for one in mistakes)
    monkeypatch.setenv("DDPSCALE_ROUNDS", "32")  # which nothing reads
    lines.append(refused(capsys, "suite", "inference", "--gpu-sku=cpu"))
    assert {one: one.stat().st_mtime_ns for one in tmp_path.rglob("*")} == before
    assert_approved(
        "mistakes.txt", "\n".join([*lines, ""]).replace(str(tmp_path), "FOLDER").replace(PACKAGED, "PACKAGED")
    )


@pytest.mark.parametrize(("read", "sound", "spoilt"), [
    (read_ddp_benchmark, REPORT, OF_BENCHMARK), (import_all, json.loads(PUBLISHED.read_text()), OF_PAIK),
])  # fmt: skip
def test_an_unsound_file_is_refused_by_file_and_key(
    tmp_path: Path, read: Callable[[Path], Any], sound: Any, spoilt: list[tuple[str, Any]]
) -> None:
    lines, file = list[str](), tmp_path / "results/below/bad.json"
    file.parent.mkdir(parents=True)
    shutil.copy(PUBLISHED, tmp_path / "results")

    def refusal(text: str) -> str:
        file.write_text(text, "latin-1")
        with pytest.raises(
            ResultFileError, match=r"bad\.json: (is not a valid result|cannot be read as a report) \("
        ) as said:
            read(file)
        return str(said.value)

    for where, value in spoilt:
        *path, key = (int(one) if one.isdecimal() else one for one in where.split("."))
        broken = copy.deepcopy(sound)
        reduce(getitem, path, broken)[key] = value
        lines.append(f"{where}: {refusal(json.dumps(broken))}")
    for text in NO_FILES:
        refusal(text)
    assert not (tmp_path / "run").exists()
    assert_approved(f"{read.__name__}.txt", "\n".join([*lines, ""]).replace(str(tmp_path), "FOLDER"))


def test_each_suite_takes_the_options_that_have_an_effect_on_it(capsys: Capture) -> None:
    """Any other is unknown."""
    lines = list[str]()
    for name in SUITES:
        assert exit_code(*["suite"] * (name != TUNE), name, "--help") == 0
        flags = re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
        lines.append(f"{name}: {' '.join(flags)}")
    assert_approved("suite-options.txt", "\n".join([*lines, ""]))
