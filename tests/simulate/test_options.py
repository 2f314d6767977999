"""What `ddpscale simulate` refuses, of two nodes of eight: a line of refusals.txt.

ASKED | WORDS      options, and what stands in the refusal
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from pytest_ddpscale import cli
from pytest_ddpscale.simulate.options import FAULTS
from pytest_ddpscale.thresholds import loading
from tests.tables import assert_rows, each_block

TABLE = Path(__file__).with_name("refusals.txt")


@each_block(TABLE)
def test_a_mistake_is_a_sentence_and_leaves_nothing_behind(
    block: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, slow in (cli, "parser_of_commands"), (loading, "load_thresholds"):
        monkeypatch.setattr(module, slow, cache(getattr(module, slow)))
    usual = ["simulate", "--gpu-sku=a100", "--gpus=16", "--workloads=resnet152-fp16", "--fault=slow-gpu:3:1.1"]

    def why_wrong(row: str) -> str:
        asked, words = row.split(" | ")
        code, said = cli.main([*usual, f"--out={tmp_path / 'run'}", *asked.split()]), capsys.readouterr().err
        return "" if code == 4 and words in said and not any(tmp_path.iterdir()) else f"{code} {said}"

    assert_rows(block, why_wrong)


def test_help_has_a_line_for_each_kind_of_fault_and_needs_nothing_heavy() -> None:
    code = (
        "import sys; from pytest_ddpscale.cli import main\n"
        "try: main(['simulate', '--help'])\n"
        "except SystemExit: sys.exit({'pydantic', 'yaml', 'torch', 'numpy'} & {*sys.modules} or 0)"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60, env={"COLUMNS": "80"})
    lines = printed.splitlines()
    assert {f"  {form:<35}  {meaning}" for form, meaning in FAULTS.items()} <= {*lines}
    assert len(lines) <= 60
    assert max(map(len, lines[: lines.index("example:")])) <= 80
