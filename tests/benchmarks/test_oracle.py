"""The oracle finds nothing where nothing changed, and says where and how a verdict differs."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.scripts import BENCHMARKS

RUN, ID = "recorded-rtx-lost-gpu", "node_check[pcie]"


def test_it_reports_a_tampered_expectation_and_nothing_else(tmp_path: Path) -> None:
    facts = json.loads(lzma.decompress((BENCHMARKS / "oracle" / "facts.json.xz").read_bytes()))
    assert facts[RUN][ID]["outcome"] == "failed"
    facts[RUN][ID]["outcome"] = "passed"
    (tmp_path / "facts.json.xz").write_bytes(lzma.compress(json.dumps(facts).encode(), preset=0))
    command = [sys.executable, str(BENCHMARKS / "oracle.py"), "--check", "--only", RUN, "--data", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    first, last = done.stdout.splitlines()
    assert (done.returncode, first) == (1, f"{RUN} {ID}: outcome: passed → failed")
    assert last.startswith("1 differences in 1 runs")
