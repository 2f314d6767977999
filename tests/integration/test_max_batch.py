"""`ddpscale find-max-batch` with real ranks that run out of memory: one of them, or all by the kernel's word."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_ddpscale.cli import main
from tests.forks.launcher import forking_here
from tests.small_memory import small_memory, why_no_small_memory

SITE = Path(__file__).with_name("allocator_site")
COMMAND = [sys.executable, "-c", "import sys; from pytest_ddpscale.cli import main; sys.exit(main())"]
IMAGE_SIZE = 32
IMAGE_BYTES = 3 * IMAGE_SIZE**2 * 4


def options(json_file: Path, model: str, **others: int) -> list[str]:
    named = [f"--{name.replace('_', '-')}={value}" for name, value in others.items()]
    fixed = ["--gpu-sku=cpu", f"--model={model}", "--precision=fp32", "--steps=8", f"--json={json_file}"]
    return ["find-max-batch", *fixed, *named]


def found_in(json_file: Path) -> dict[str, Any]:
    [found] = json.loads(json_file.read_text())["workloads"]
    return dict(found)


def ranks_with(variable: str) -> list[int]:
    """Processes that were started with a variable of this test's own, but this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and variable in process.environ():
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def test_one_rank_out_of_memory_ends_its_gang_and_the_batch_before_is_the_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("TORCH_STAND_IN_BYTES", str(12 * IMAGE_BYTES))
    mark = f"TORCH_STAND_IN_{os.getpid()}"
    monkeypatch.setenv(mark, "1")
    file = tmp_path / "found.json"
    given = options(file, "shufflenet_v2_x0_5", image_size=IMAGE_SIZE, ranks=2, least=8, most=16)
    with forking_here():
        assert main(given) == 0
    found = found_in(file)
    fits, does_not = found["trials"]
    assert (found["largest"], found["arms"]) == (8, ["alone", "ddp@2", "each@2", "no_sync@2"])
    assert (fits["batch"], fits["fits"], fits["why_not"]) == (8, True, "")
    assert 100 * 2**20 < fits["peak_bytes"] < fits["limit_bytes"]
    assert fits["samples_per_s_per_gpu"] > 0
    assert (does_not["batch"], does_not["fits"]) == (16, False)
    assert does_not["why_not"] == "OutOfMemoryError on rank 1 in warm-up"
    assert "OutOfMemoryError on rank 1 in warm-up\nThe largest batch is 8 images per rank;" in capfd.readouterr().out
    assert ranks_with(mark) == []


@pytest.mark.lab
def test_what_the_kernel_ends_for_lack_of_memory_does_not_fit(tmp_path: Path) -> None:
    if why_not := why_no_small_memory():
        pytest.skip(why_not)
    file = tmp_path / "found.json"
    with small_memory(3 * 2**29) as group:  # a rank takes half a GiB, and such a batch ten
        done = group.run(
            [*COMMAND, *options(file, "mobilenet_v3_small", image_size=224, ranks=1, least=512, most=512)], 200.0
        )
        assert group.processes == []
    assert (done.returncode, done.stderr) == (1, "")
    [trial] = found_in(file)["trials"]
    assert trial["why_not"] == f"the kernel ended rank 0 on {os.uname().nodename} for lack of memory"
    assert "No batch fits, not even 512 images per rank: the kernel ended rank 0" in done.stdout
