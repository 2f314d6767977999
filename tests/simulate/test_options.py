"""Options and faults: read strictly, told in help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.simulate.options import FAULTS, parse_faults

FACTOR, SHARE = "FACTOR a number from 1 to 1000", "SHARE a number from 1e-06 to 1"
REFUSED = {
    "": "one of slow-gpu:RANK|all:FACTOR, ramp:",
    "slow:3": "one of slow-gpu:RANK|all:FACTOR, ramp:",
    "slow-gpu:3": "slow-gpu:RANK|all:FACTOR (computes FACTOR times as long)",
    "slow-gpu:3:1.1:2": "slow-gpu:RANK|all:FACTOR (computes FACTOR times as long)",
    "missing-rank": "missing-rank:RANK[:ROUND] (no records from ROUND (1) of a study on)",
    "missing-rank:3:2:1": "missing-rank:RANK[:ROUND]",
    "slow-gpu:three:1.1": "RANK|all a whole number from 0 to 15",
    "slow-gpu:16:1.1": "RANK|all a whole number from 0 to 15",
    "slow-gpu:-1:1.1": "RANK|all a whole number from 0 to 15",
    "slow-gpu:3-4:1.1": "RANK|all a whole number from 0 to 15",
    "corrupt-rank:all": "RANK a whole number from 0 to 15",
    "throttle:all:1.1": "NODE a whole number from 0 to 1",
    "slow-gpu:3:fast": FACTOR,
    "slow-gpu:3:0.9": FACTOR,
    "slow-gpu:3:nan": FACTOR,
    "slow-gpu:3:inf": FACTOR,
    "slow-link:0:0": SHARE,
    "lossy-link:0:1.5": SHARE,
    "drift:-60": "PERCENT a number from -50 to 1000",
    "step:3:1.05:-1": "ROUND a whole number from 0 to 100000",
    "at-times:3:1.05:0": "ROUNDS a whole number from 1 to 100000",
    "missing-rank:3:x": "ROUND a whole number from 0 to 100000",
    "slow-probe:3:copy:0.5": "PROBE a probe such as memory-copy",
    "bad-gpu:3:heat": "one of ecc, lanes, nvlink, clock",
    "slow-link:2:0.5": "NODE|NODE-NODE a whole number from 0 to 1",
    "slow-link:0-:0.5": "NODE|NODE-NODE a whole number from 0 to 1",
    "slow-link:0--1:0.5": "NODE|NODE-NODE a whole number from 0 to 1",
    "slow-link:1-1:0.5": "two nodes",
    "slow-pair:3:3:0.5": "two ranks of one node",
    "slow-pair:3:8:0.5": "two ranks of one node",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_fault_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_faults(["slow-gpu:3:1.1", text], Layout(2, 8))
    assert str(refused.value).startswith(f"--fault: found {text!r}; expected ")
    assert REFUSED[text] in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--gpus=0", "--gpus: found '0'; expected a whole number from 1 to 1000000"),
        ("--gpus=10000000", "--gpus: found '10000000'; expected a whole number from 1 to 1000000"),
        ("--gpus=12", "--gpus: found 12; expected a multiple of 8, the GPUs per node"),
        ("--gpus-per-node=0", "--gpus-per-node: found '0'; expected a whole number from 1"),
        ("--gpus=8 --gpus-per-node=99", "--gpus-per-node: found 99; expected at most the 8 GPUs of the cluster"),
        ("--noise=-0.1", "--noise: found '-0.1'; expected a number from 0 to 0.2"),
        ("--gpu-spread=much", "--gpu-spread: found 'much'; expected a number from 0 to 0.2"),
        ("--node-spread=0.3", "--node-spread: found '0.3'"),
        ("--launch-spread=nan", "--launch-spread: found 'nan'"),
        ("--nodes-seed=-1", "--nodes-seed: found '-1'; expected a whole number from 0"),
        ("--seed=-1", "--seed: found '-1'; expected a whole number from 0"),
        ("--correlation=1", "--correlation: found '1'; expected a number from 0 to 0.99"),
        ("--hiccups=2", "--hiccups: found '2'; expected a number from 0 to 1"),
        ("--rounds=4", f"--rounds: found '4'; expected a whole number from {FEWEST_ROUNDS} to 1000"),
        ("--workloads=resnet152", "--workloads: found resnet152; expected some of "),
        ("--workloads=,", "--workloads: found no name; expected some of "),
        ("--gpu-sku=a1000", "no SKU 'a1000'; expected one of its"),
        ("--fault=slow-gpu:8:1.1 --gpus=8", "--fault: found 'slow-gpu:8:1.1'; expected"),
        ("--thresholds=/nowhere.yaml", "/nowhere.yaml"),
        # A workload that the A100 has and no requirement names.
        ("--workloads=resnet101-bf16", "no training requirement on resnet101-bf16 for 1 or fewer GPUs"),
    ],
)
def test_mistakes_are_sentences_and_leave_nothing_behind(
    asked: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--gpu-sku=a100", f"--out={tmp_path / 'run'}", *asked.split()]) == 4
    assert said in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_help_has_a_line_for_each_kind_of_fault_and_needs_nothing_heavy() -> None:
    code = (
        "import sys; from pytest_ddpscale.cli import main\n"
        "try: main(['simulate', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'pydantic', 'yaml', 'torch', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env={"COLUMNS": "80"}
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    of_faults = [line for line in lines if line[2:].startswith((*FAULTS,))]
    assert of_faults == [f"  {form:<35}  {meaning}" for form, meaning in FAULTS.items()]
    assert len(lines) <= 60
    assert max(map(len, lines[: lines.index("example:")])) <= 80
