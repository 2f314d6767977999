"""Sessions on real ranks: one that is interrupted leaves nobody, and another finishes its run."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.record_lines import line_of
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import ends_of
from tests.builders.tiny_site import tiny_thresholds
from tests.integration.sites import QUICK, make_site, measured, session, verdicts_of

THRESHOLDS = tiny_thresholds(
    "throughput_per_gpu: {2: 500}, bound: 0.01", "strong_scaling_speedup: {2: 1.9}, bound: 0.001"
)
FIRST, SECOND = "weak/tiny", "strong/tiny"
# As Ctrl-C would, as soon as the second study has a block.
INTERRUPTING = """
import os
import signal

from pytest_ddpscale.run.run_directory import RunDirectory

append_lines = RunDirectory.append_lines


def append_and_interrupt(run, lines):
    append_lines(run, lines)
    blocks = [line for line in lines.splitlines() if b'"kind":"timed"' in line and b'"study":"strong/tiny"' in line]
    if blocks and os.environ.pop("INTERRUPTED", ""):
        os.kill(os.getpid(), signal.SIGINT)


RunDirectory.append_lines = append_and_interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
"""


def blocks(run: RunDirectory, study: str) -> list[Block]:
    return [one for one in run.read_records() if isinstance(one, Block) and one.study == study]


def test_what_is_interrupted_is_resumed_to_the_end(tmp_path: Path) -> None:
    site = make_site(tmp_path / "site", THRESHOLDS)
    (site / "conftest.py").write_text(INTERRUPTING, encoding="utf-8")
    interrupted, run = measured(site, INTERRUPTED="1"), RunDirectory(site / "run")
    assert interrupted.returncode == pytest.ExitCode.INTERRUPTED, interrupted.stdout
    assert "KeyboardInterrupt" not in interrupted.stdout
    assert "Exit: interrupted at " in interrupted.stdout, "and why"
    assert {study: end.reason for study, end in ends_of(run.read_records()).items()} == {
        FIRST: "rounds", SECOND: "interrupted",
    }  # fmt: skip
    assert verdicts_of(site)["outcome"] == "incomplete"
    ranks = [rank.pid for gang in gangs_by_number(run.read_records()).values() for rank in gang.ranks]
    assert [pid for pid in ranks if psutil.pid_exists(pid)] == []

    first = [line_of(one) for one in blocks(run, FIRST)]
    finished = session(site, "--ddp-resume=run", *QUICK)
    assert finished.returncode == pytest.ExitCode.OK, finished.stdout
    assert [line_of(one) for one in blocks(run, FIRST)] == first
    assert {one.round for one in blocks(run, SECOND)} == set(range(8))
    assert [list(one.measured_anew) for one in run.read_run().resumed] == [[SECOND]]
    assert verdicts_of(site)["outcome"] == "accepted"
