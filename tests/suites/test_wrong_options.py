"""What a suite cannot be measured with is said in one sentence that names the option, before anything is measured."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.settings import OPTIONS
from pytest_ddpscale.suites.registry import SUITES, TUNE
from pytest_ddpscale.util.command_parser import USER_ERROR
from tests.builders.image_folder import image_folder
from tests.suites.conftest import exit_code

COMMON = "--gpu-sku=cpu --ddp-gpus-per-node=2 --image-size=32 --ddp-block=0.01s"
MODEL = "expected a classification model of torchvision"
FROM_1 = "expected a whole number from 1"
PRECISION = ("--precision=fp16", "--precision: found 'fp16' on a CPU; expected fp32 or bf16")
MODEL_OF_NONE = ("--model=resnet51", f"--model: found 'resnet51'; {MODEL}")
WRONG = {
    "suite collectives --gpu-sku=cpu --ddp-gpus-per-node=2": [
        ("--sizes=1KB", "--sizes: found '1KB'; expected BEGIN:END or BEGIN:END:FACTOR"),
        ("--operations=gather", "--operations: found 'gather'; expected one of all-reduce"),
        ("--iteration-limit=fast", "--iteration-limit: found 'fast'; expected a time such as 90s"),
        ("--ddp-gpus-per-node=1", "--ddp-gpus-per-node: found one rank; expected at least 2"),
    ],
    f"suite inference {COMMON}": [
        MODEL_OF_NONE,
        ("--batches=4,none", f"--batches: found '4,none'; {FROM_1}"),
        PRECISION,
    ],
    f"suite factors {COMMON}": [
        ("--models=alexnet,vit_b_16", "classifier_hidden freezes vit_b_16, whose number of features is unknown;"),
        ("--world-sizes=1,3", "--world-sizes: found 3, but 2 can be used; expected at most 2"),
        ("--hidden-sizes=", f"--hidden-sizes: found ''; {FROM_1}"),
    ],
    f"suite pytorch-ddp {COMMON}": [
        ("--models=resnet50,resnet51", "--models: found 'resnet50,resnet51'; expected a classification model of torch"),
        ("--bucket-sizes=0", "--bucket-sizes: found '0'; expected a number above 0"),
        ("--bucket-sizes=1e6", "--bucket-sizes: found '1e6'; expected bucket_cap_mb above 0 and at most 100000 MiB"),
        ("--gpu-sku=b201", "--gpu-sku"),
    ],
    "suite input-pipeline --gpu-sku=cpu --ddp-gpus-per-node=2 --folder=images": [
        ("--workers=1,x", "--workers: found '1,x'; expected a whole number from 0 to 256"),
        ("--prefetch=0", "--prefetch: found '0'; expected a whole number from 1 to 1024"),
        ("--folder=.", " has no train/CLASS; expected train/CLASS/IMAGE (see ddpscale make-dataset)"),
    ],
    "suite convergence --gpu-sku=cpu --ddp-gpus-per-node=2 --samples=1024": [
        ("--ranks=1,2 --global-batch=33", "--global-batch: found 33 for 2 ranks; expected a multiple of 2"),
        ("--loss=-1", "--loss: found '-1'; expected a number above 0"),
        ("--mnist=/nowhere", "--mnist: /nowhere/train-images-idx3-ubyte.gz: No such file or directory; expected one"),
        ("--hidden=0", f"--hidden: found '0'; {FROM_1}"),
    ],
    "suite whole-run --gpu-sku=cpu --ddp-gpus-per-node=2 --image-size=32 --made=32 --batch=4": [
        ("--ranks=1,3", "--ranks: found 3, but 2 can be used; expected at most 2"),
        ("--batch=40", "made-32 has 32 images, fewer than one global batch of 40 (1 ranks, 40 each)"),
        PRECISION,
        ("--lr=0", "--lr: found '0'; expected a number above 0"),
        ("--epochs=0", f"--epochs: found '0'; {FROM_1}"),
        MODEL_OF_NONE,
        ("--folder=/nowhere", "--folder: /nowhere/train: No such file or directory; expected a folder train with"),
        ("--at-least-accuracy=40", "--at-least-accuracy: found '40'; expected a share such as 5%"),
    ],
    "tune --gpu-sku=cpu": [
        ("--try=NCCL_ALGOO=Ring", "not 'NCCL_ALGOO'; did you mean 'NCCL_ALGO'?"),
        ("--try=bucket_cap=1", "not 'bucket_cap'; did you mean 'bucket_cap_mb'?"),
        ("--try=static_graph=maybe", "static_graph as true or false"),
        ("--try=precision=fp8", "precision as one of fp32, fp16, bf16"),
        ("--try=accumulation_steps=0", "expected accumulation_steps as a whole number from 1 to 10000, not '0'"),
        ("--try=uneven_share=0.99", "expected uneven_share that leaves each rank one of"),
        ("--try=nccl_algo=Ring", "not 'nccl_algo'; did you mean 'NCCL_ALGO'?"),
        ("--try=batch_size=none", "batch_size as a whole number"),
        ("--try=bucket_cap_mb", "name=value"),
        ("--try=precision=fp32", "a setting that the workload does not have already"),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("wrong")
    image_folder(where / "images", images=3)
    return where


@pytest.mark.parametrize(("command", "options", "expected"), [(it, *row) for it, of in WRONG.items() for row in of])
def test_a_wrong_option_is_refused_in_one_sentence(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, options: str,
    expected: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(directory)
    before = sorted(directory.iterdir())
    assert exit_code(*shlex.split(command), *shlex.split(options)) == USER_ERROR
    told = capsys.readouterr().err
    assert expected in told
    assert len(told.splitlines()) == 1
    assert sorted(directory.iterdir()) == before


EFFECT = {
    "collectives": "rounds block confidence",
    "inference": "rounds block confidence nvtx",
    "data-parallel": "rounds block confidence nvtx",
    "whole-run": "confidence",
    "convergence": "",
}
NOWHERE = {"--ddp-judge", "--ddp-world-sizes", "--ddp-history", "--ddp-allow-incomplete",
           "--ddp-unfit", "--ddp-rehearse", "--ddp-warm-up"}  # fmt: skip
OF_SOME = {f"--ddp-{name}" for name in ("rounds", "block", "confidence", "nvtx", "profile")}


@pytest.mark.parametrize("name", [name for name in SUITES if name != TUNE])
def test_a_suite_refuses_options_that_it_would_ignore(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused = NOWHERE | (OF_SOME - {f"--ddp-{one}" for one in EFFECT[name].split()} if name in EFFECT else set())
    for flag in sorted(refused):
        folder = ["--folder=."] * (name == "input-pipeline")
        assert exit_code("suite", name, "--gpu-sku=cpu", *folder, flag) == USER_ERROR
        said, command = capsys.readouterr().err.splitlines()[-1], f"ddpscale suite {name}"
        assert said == f"{command}: unrecognized arguments: {flag}. See {command} --help."
    with pytest.raises(SystemExit):
        main(["suite", name, "--help"])
    told = set(re.findall(r"^  (--(?:ddp-[a-z-]+|gpu-sku|thresholds))\b", capsys.readouterr().out, re.MULTILINE))
    assert {option.flag for option in OPTIONS.values()} - refused <= told
    assert not told & NOWHERE


def test_a_variable_that_nothing_reads_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DDPSCALE_ROUNDS", "32")
    assert main(["suite", "inference", "--gpu-sku=cpu"]) == USER_ERROR
    assert "DDPSCALE_ROUNDS: is set, but not read" in capsys.readouterr().err
