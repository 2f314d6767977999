"""The exact command line of a gang on one machine."""

from __future__ import annotations

import sys

from pytest_ddpscale.launch.container import Container
from pytest_ddpscale.launch.launcher import Launcher
from pytest_ddpscale.launch.torchrun import TorchrunLauncher
from tests.launch.sample import gang

AGENT = [
    "-m", "pytest_ddpscale.node", "--gang=g1", "--ranks-per-node=8", "--log-dir=run dir/logs/gang-0", "--beat-s=2",
    "--", "--run-dir", "run dir", "--studies", "weak/r,strong/r",
]  # fmt: skip


def test_the_agent_is_started_with_the_running_interpreter() -> None:
    launcher: Launcher = TorchrunLauncher()
    assert launcher.name == "torchrun"
    assert launcher.command(gang()) == [sys.executable, *AGENT]


def test_agents_are_told_to_survey_their_nodes_and_whether_for_gpus() -> None:
    options: list[list[str]] = [[], ["--survey"], ["--survey", "--no-gpu"], ["--post-mortem"]]
    gangs = (gang(has_gpus=False), gang(survey=True), gang(survey=True, has_gpus=False), gang(post_mortem=True))
    for spec, expected in zip(gangs, options, strict=True):
        command = TorchrunLauncher().command(spec)
        assert command[command.index("--beat-s=2") + 1 : command.index("--")] == expected


def test_in_a_container_with_its_own_interpreter() -> None:
    container = Container(command=("apptainer", "exec", "--nv", "image.sif"), python="python3")
    command = TorchrunLauncher(container).command(gang())
    assert command == ["apptainer", "exec", "--nv", "image.sif", "python3", *AGENT]


def test_seconds_between_beats_are_written_short() -> None:
    assert "--beat-s=12.8" in TorchrunLauncher().command(gang(beat_s=12.8))
