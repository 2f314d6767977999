"""Real ranks that train on images from a folder: each once in an epoch, and what breaks is named and hangs nobody."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from tests.builders.image_folder import image_folder
from tests.forks.launcher import forking_here
from tests.forks.start import LOADER_SITE, command
from tests.integration.sites import HARDLY_WARM_UP

pytestmark = pytest.mark.lab

CHECKOUT = Path(__file__).parents[2]
DEADLINE_S = 120
SUITE = ("suite", "input-pipeline", "--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--model=minute",
         "--image-size=32", "--batch=4", "--ddp-block=0.02s", "--ddp-run-dir=measured")  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """37 images: two ranks with batches of 4 leave five of them out of each epoch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(LOADER_SITE))
    with forking_here():
        yield Path(image_folder(tmp_path / "images", images=37))


def values(run: RunDirectory) -> Any:
    return json.loads(run.suite_json.read_text())


def test_arms_read_the_folder_epoch_after_epoch_beside_synthetic_data(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of the tens of epochs is compared with what the ranks should have loaded: one that differs ends them."""
    assert main([*SUITE, f"--folder={folder}", "--workers=0,1"]) == 0
    told = capsys.readouterr().out
    run = RunDirectory.open(Path("measured"))
    synthetic, *loaded = values(run)["tables"]["input-pipeline"]
    assert [one["data"] for one in (synthetic, *loaded)] == ["data=synthetic", "workers=0", "workers=1,prefetch=2"]
    assert (synthetic["efficiency"], synthetic["waited_share"]) == (None, None)
    for one in loaded:
        low, high = one["efficiency"]["interval"]
        assert 0 < low < one["efficiency"]["value"] < high
        assert 0 < one["waited_share"] < 1
    blocks = [one for one in run.read_records() if isinstance(one, Block) and one.arm == "ddp@2+workers=1,prefetch=2"]
    assert len(blocks) == 8
    assert all(len(block.series["waited_s"]) == len(block.series["step_s"]) for block in blocks)
    assert sum(int(block.each("count")[0]) for block in blocks) > 3 * (37 // 2 // 4), "several epochs"
    assert main(["report", "measured"]) == 0
    assert capsys.readouterr().out == told


THRESHOLDS = """\
schema_version: 2
sources: {{paper: nobody}}
workloads:
  loaded:
    {{model: minute, precision: fp32, image_size: 32, memory_format: contiguous,
      data: {{folder: {folder}, workers: 1}}}}
skus:
  cpu:
    description: made up
    detect: {{device: cpu}}
    batch: {{loaded: 4}}
    requirements:
      - {{input_pipeline_efficiency: {{2: 0.001}}, of: loaded, provisional: tried here}}
"""


def test_a_threshold_can_ask_how_much_loading_may_cost(folder: Path) -> None:
    Path("thresholds.yaml").write_text(THRESHOLDS.format(folder=folder), encoding="utf-8")
    shutil.copytree(CHECKOUT / "acceptance", "acceptance", ignore=shutil.ignore_patterns("__pycache__"))
    asked = ("--gpu-sku=cpu", "--ddp-run-dir=run", "--ddp-rounds=8", "--ddp-block=0.05s", *HARDLY_WARM_UP)
    subprocess.run(command("pytest", *asked), capture_output=True, check=False)
    (verdict,) = json.loads(Path("run/verdicts.json").read_text())["verdicts"]
    assert (verdict["world_size"], verdict["outcome"]) == (2, "passed")
    assert verdict["value"] > 0.001
    assert "Waited for data, ms a step" in Path("run/report.html").read_text()


def test_a_broken_image_is_the_studys_error_with_rank_and_node(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for broken in sorted((folder / "train/class-1").iterdir())[:8]:  # more than an epoch leaves out
        broken.write_bytes(b"no image")
    assert main([*SUITE, f"--folder={folder}", "--workers=1"]) == 1
    told = capsys.readouterr().out
    path = re.escape(str(folder / "train/class-1/"))
    expected = rf"- .*: rank \d on \S+ failed in .*arm ddp@2\+workers=1.*: {path}/\d+\.jpg: cannot identify image"
    assert re.search(expected, told), told


def test_a_folder_that_is_missing_is_refused_before_ranks_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SUITE, f"--folder={tmp_path / 'nowhere'}"]) == 4
    assert re.fullmatch(
        r"ddpscale: --folder: \S+/nowhere has no train/CLASS; expected train/CLASS/IMAGE \(.*\)\.\n",
        capsys.readouterr().err,
    )


def test_an_empty_class_is_the_studys_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train/class-9").mkdir()
    assert main([*SUITE, f"--folder={folder}", "--workers=1"]) == 1
    expected = r"rank \d on \S+ failed in reading the folder .*images/train: Found no valid file for the classes"
    assert re.search(expected, capsys.readouterr().out)


@pytest.fixture
def measuring(folder: Path) -> Iterator[subprocess.Popen[str]]:
    program = "import sys; from pytest_ddpscale.cli import main; sys.exit(main())"
    suite = [word.replace("minute", "squeezenet1_1") for word in SUITE]  # the program is no fork
    words = [sys.executable, "-c", program, *suite, f"--folder={folder}", "--workers=1", "--ddp-rounds=10000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        yield process
        process.kill()


def ranks_that_load(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Both ranks, once they have timed an arm that loads."""
    ends_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < ends_s:
        run = RunDirectory(Path("measured"))
        records = run.read_records() if run.measurements_jsonl.exists() else []
        if any(isinstance(record, Block) for record in records):
            (gang,) = gangs_by_number(records).values()
            return [psutil.Process(rank.pid) for rank in gang.ranks]
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.05)
    raise AssertionError("nothing was measured")


def test_a_killed_loader_worker_is_named_and_nobody_stays(measuring: subprocess.Popen[str]) -> None:
    """Its rank fails and the other one is ended; tests of the loader kill a rank."""
    ranks = ranks_that_load(measuring)
    below = [one for rank in ranks for one in rank.children(recursive=True)]
    workers = [one for one in below if one.name() == "pt_data_worker"]
    assert len(workers) == 2
    workers[1].kill()
    told, _ = measuring.communicate(timeout=DEADLINE_S)
    assert measuring.returncode == 1
    assert re.search(r"rank \d on \S+ failed in .*: loading \S+/train: .*oader worker", told), told
    _, alive = psutil.wait_procs([*ranks, *below], timeout=0)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []
