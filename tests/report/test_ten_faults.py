"""What the terminal says first of ten faults, and that no node is drained that a person should look at."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest

from pytest_ddpscale.report.causes import causes
from pytest_ddpscale.report.culprits import read_findings
from pytest_ddpscale.report.terminal import brief_lines, screen_lines
from tests.approved import assert_approved, masked
from tests.builders.simulated_runs import judged_run

# Faults as they are typed, GPUs in nodes of eight, and the study in which the run was interrupted.
FAULTS: dict[str, tuple[str, int, int | None]] = {
    "a slow GPU": ("slow-gpu:3:1.2", 16, None),
    "a slow node": ("throttle:1:1.2", 32, None),
    "a slow port of a node": ("slow-port:8:0.3", 32, None),
    "packets lost between nodes": ("lossy-link:1:0.05", 32, None),
    "a slow pair of GPUs": ("slow-pair:3:4:0.3", 8, None),
    "a GPU with a quarter of its PCIe lanes": ("bad-gpu:3:lanes", 16, None),
    "memory errors": ("bad-gpu:9:ecc", 16, None),
    "wrong data": ("corrupt-rank:3", 8, None),
    "a lost GPU": ("missing-rank:5:2", 8, None),
    "all GPUs slow": ("slow-gpu:all:1.2", 8, None),
    "a fault that comes and goes": ("at-times:3:1.3:3", 16, None),
    "an interrupted run": ("slow-gpu:3:1.0", 8, 2),
}
REMARKS = ("note:", "warning:", "All devices")
AGAIN = ("pytest", "--gpu-sku=a100", "acceptance")


def test_the_terminal_says_what_was_approved_of_ten_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # so that paths are as short everywhere
    told: list[str] = []
    for number, (name, (fault, gpus, studies)) in enumerate(FAULTS.items(), 1):
        # A measured run ends no round without all of its ranks, so this one stays simulated.
        again = () if fault.startswith("missing-rank") else AGAIN
        run, judgement = judged_run(Path(f"fault-{number}"), fault, gpus=gpus, again=again, studies=studies)
        lines = [line for line, _ in brief_lines(judgement, 100, run.read_run())]
        assert screen_lines(lines, 100) <= 20, name
        run.write_json(run.verdicts_json, judgement)
        found = read_findings(run.path, rehearses=not again).findings
        isolated = [one for one in causes(judgement) if one.category == "ISOLATE"]
        at_fault = {culprit.host for one in isolated for culprit in one.culprits if culprit.is_certain}
        is_alone = gpus == 8 and not isolated  # a rejected node without any other is drained whatever the cause
        assert is_alone or at_fault == {one.host for one in found if one.use == "drain"}, name
        told += [f"## {name}: {fault} on {gpus} GPUs", *takewhile(lambda line: not line.startswith(REMARKS), lines), ""]
    assert_approved("ten-faults.txt", masked("\n".join(told)))
