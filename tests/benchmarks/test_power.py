"""Which faults a thresholds file catches: the whole script, with one run of each fault."""

from __future__ import annotations

import sys

import pytest

from pytest_ddpscale.util.packaged import packaged
from tests.benchmarks.scripts import benchmark

power = benchmark("power")
ARGUMENTS = ["power.py", str(packaged("thresholds.yaml")), "--gpu-sku=a100", "--workloads=resnet152-fp16", "--trials=1"]


def test_a_gross_fault_is_caught_rejected_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = "--faults=slow-gpu:1.3,bad-gpu:ecc,slow-gpu:all:1.3"
    monkeypatch.setattr(sys, "argv", [*ARGUMENTS, faults])
    power.main()
    printed = capsys.readouterr()
    rows = [line.split() for line in printed.out.splitlines()[1:5]]
    yes, no = ["100%", "[21%,", "100%]"], ["0%", "[0%,", "79%]"]
    assert rows[0] == ["none", *no, *no, *no]
    assert rows[1][:11] == ["slow-gpu", "1.3", *yes, *yes, *yes]
    assert rows[2] == ["bad-gpu", "ecc", *yes, *yes, *yes, "node_check"]
    assert rows[3][:9] == ["slow-gpu", "all:1.3", *yes, *yes, "–"]
    assert "simulating bad-gpu:ecc" in printed.err
    assert "Not counted" in printed.out, "strong scaling is host-bound"


def test_a_fault_that_is_none_is_refused_before_anything_is_simulated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [*ARGUMENTS, "--faults=slow-gpu:1.1,slow-gpu:0.5"])
    with pytest.raises(SystemExit):
        power.main()
    said = capsys.readouterr().err
    assert "FACTOR a number from 1 to 1000" in said
    assert "simulating" not in said
