"""Suites on real ranks: measured, and told again by `ddpscale report`."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from tests.approved import assert_approved
from tests.forks.launcher import forking_here

HERE = "--gpu-sku=cpu --ddp-gpus-per-node=2 --ddp-run-dir=run"
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")  # 1: the kernel refuses nobody memory, and ends whoever uses it


@pytest.mark.lab
@pytest.mark.parametrize(("suite", "options", "code", "said", "cells"), [
    ("suite collectives", "--sizes=1KiB:256KiB:256 --iteration-limit=1m --ddp-block=0.01s",
     0, r"\nall-to-all +2 +1 KiB ", "collectives operation size_bytes wrong checked rounds"),
    # The supervisor hears so late of a run of seconds that too much of it may be unexplained.
    ("suite whole-run --model=minute --image-size=32 --made=64 --batch=4",
     "--epochs=3 --ranks=1,2 --at-most-time-to-train=0.5",
     1, r"made-64@2: time_to_train ([\d.]+, failed|–, not measured); the bound is 0.5", "epochs run epoch"),
    ("suite convergence --samples=1024 --hidden=32", "--ranks=1,2 --global-batch=64 --loss=0.8 --lr=0.05",
     0, "learning-rate rule constant", "convergence run world_size global_batch reached"),
    ("suite pytorch-ddp --models=minute --batch=2 --image-size=64",
     "--bucket-sizes=1 --ddp-block=0.01s --ddp-confidence=0.9",
     0, r"   2 CPUs --    1M/2G:  p50:", "pytorch-ddp size bucket_cap_mb"),
    # A million images are 602 GB. A rank with three images does not keep up with one that has two each.
    ("tune --model=minute --precision=fp32 --image-size=224 --batch=2 --ddp-block=0.01s",
     "--try='uneven_share=0.5 batch_size=999999'",
     1, r"batch_size=999999: 0 of 8 rounds: rank \d .*alloc_cpu", "tune setting note is_recommended"),
])  # fmt: skip
def test_a_suite_is_measured_reported_and_told_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, suite: str, options: str,
    code: int, said: str, cells: str,
) -> None:  # fmt: skip
    """Ranks are forks and hardly warm up: how fast they are is nothing that is asked here."""
    if "999999" in options and OVERCOMMIT.read_text().strip() == "1":
        pytest.skip("vm.overcommit_memory is 1: no allocation fails")
    monkeypatch.chdir(tmp_path)
    with forking_here():
        assert main(shlex.split(f"{suite} {options} {HERE}")) == code
    told = capsys.readouterr().out
    assert re.search(said, told), told
    assert main(["report", "run"]) == code
    assert capsys.readouterr().out.splitlines()[:-1] == told.splitlines()[:-1]
    (table, *keys), tables = cells.split(), json.loads(Path("run/suite.json").read_text())["tables"]
    lines = (" ".join(str(row[key]) for key in keys) for row in tables[table])
    pictures = sorted(one.name for one in Path("run").glob("plots/*"))
    assert_approved(f"measured-{table}.txt", "\n".join([*lines, *pictures, ""]))
