"""The health check returns at once whatever happens, and acts once on a verdict that is new."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.slurm_lab.polling import wait_until
from tests.slurm_scripts.stage import Stage

DEADLINE_S = 20
AT_ONCE_S = 5  # on a busy machine; slurmd waits for 60 s


class CheckedNode:
    """Node n2, its runs of several nights, and a stand-in for drain_failed.sh."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.runs = stage.path / "runs"
        self.state = stage.path / "state"
        self.provide("")

    def provide(self, script: str) -> None:
        """What drain_failed.sh does."""
        self.stage.provide("drain_failed.sh", script)

    def judge(self, night: str = "2026-01-31", node: str = "n2", age_hours: float = 1) -> Path:
        """A run of the node that was judged so many hours ago."""
        run = self.runs / "nightly" / night / node
        run.mkdir(parents=True, exist_ok=True)
        (run / "verdicts.json").write_text("{}", encoding="utf-8")
        written = time.time() - age_hours * 3600
        os.utime(run / "verdicts.json", (written, written))
        return run

    @property
    def settings(self) -> dict[str, str]:
        return {
            "SLURMD_NODENAME": "n2",
            "DDPSCALE_SCRIPTS": str(self.stage.path / "venv" / "bin"),
            "DDPSCALE_RUNS": str(self.runs),
            "DDPSCALE_HEALTH_STATE": str(self.state),
        }

    def look(self) -> subprocess.CompletedProcess[str]:
        """What the health check does in the background, done here and to its end."""
        self.state.mkdir(exist_ok=True)
        return self.stage.run("health_check.sh", "--look", settings=self.settings)

    def check(self) -> subprocess.CompletedProcess[str]:
        """The health check as slurmd calls it, which has to return at once."""
        start = time.monotonic()
        result = self.stage.run("health_check.sh", settings=self.settings)
        assert time.monotonic() - start < AT_ONCE_S
        assert result.returncode == 0, result.stderr
        return result

    @property
    def drained_for(self) -> list[str]:
        """The run of every call of drain_failed.sh."""
        calls = self.stage.calls("drain_failed.sh")
        assert all(call[:3] == ["--apply", "--node", "n2"] for call in calls)
        return [call[3] for call in calls]


@pytest.fixture
def node(stage: Stage) -> CheckedNode:
    return CheckedNode(stage)


def test_the_last_nights_verdict_on_this_node_is_acted_on(node: CheckedNode) -> None:
    node.judge("2026-01-30")
    last = node.judge("2026-01-31")
    node.judge("2026-02-01", node="n3")
    node.check()
    wait_until(lambda: (node.state / "seen").exists(), DEADLINE_S, "the verdict to be seen")
    assert node.drained_for == [str(last)]


def test_a_verdict_is_acted_on_once_so_that_a_resumed_node_stays_resumed(node: CheckedNode) -> None:
    first = node.judge("2026-01-30")
    node.look()
    node.look()
    assert node.drained_for == [str(first)]
    second = node.judge("2026-01-31")
    node.look()
    assert node.drained_for == [str(first), str(second)]


def test_a_node_that_was_judged_again_is_looked_at_again(node: CheckedNode) -> None:
    node.judge(age_hours=2)
    node.look()
    node.judge(age_hours=1)
    node.look()
    assert len(node.drained_for) == 2


def test_an_old_verdict_says_nothing(node: CheckedNode) -> None:
    node.judge(age_hours=37)
    assert node.look().returncode == 0
    assert node.drained_for == []


def test_a_node_that_was_never_checked_is_left_alone(node: CheckedNode) -> None:
    assert node.look().returncode == 0
    assert node.drained_for == []


def test_what_failed_is_tried_again(node: CheckedNode) -> None:
    node.judge()
    node.provide("exit 1")
    assert node.look().returncode != 0
    node.provide("")
    node.look()
    node.look()
    assert len(node.drained_for) == 2


def test_one_that_hangs_holds_up_neither_slurmd_nor_grows_in_number(node: CheckedNode) -> None:
    node.judge()
    release = node.stage.path / "release"
    os.mkfifo(release)
    node.provide(f"read -r _ <{release}")
    for _ in range(3):
        node.check()
    wait_until(lambda: len(node.drained_for) == 1, DEADLINE_S, "the first to hang")
    node.check()
    release.write_text("go on\n", encoding="utf-8")
    wait_until(lambda: (node.state / "seen").exists(), DEADLINE_S, "the first to end")
    assert len(node.drained_for) == 1
