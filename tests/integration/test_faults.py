"""Real ranks that break: each costs its own study, which says who and where, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale.launch.environment import launch_here
from pytest_ddpscale.report.words.reasons import say
from tests.forks.agent import TORCHRUN
from tests.forks.launcher import forked_here
from tests.integration import faults
from tests.integration.faults import Watch, weak

# The kernel's SIGKILL, where it can be had: it needs root and the memory controller of cgroup v1.
KILLED = "out-of-memory" if faults.CAN_LIMIT_MEMORY else "killed"
FAULTS = (KILLED, "stopped-in-a-collective", "device-stuck", "torchrun-killed")
WHOLE = weak("whole", rounds=5)
UNKNOWN = weak("unknown", model="resnet9000")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Watch:
    """One run: a study that is whole, one that cannot be prepared, and one for each fault."""
    return faults.measure(tmp_path_factory.mktemp("faults"), forked_here(), FAULTS, [WHOLE], [UNKNOWN])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_the_error_of_its_study_with_who_where_and_how_and_leaves_nothing(broken: Watch, name: str) -> None:
    assert list(broken.wrong(name)) == []


@pytest.mark.lab
def test_so_is_each_of_the_others(tmp_path: Path) -> None:
    others = [
        name for name in faults.FAULTS if name not in FAULTS and (name != "out-of-memory" or faults.CAN_LIMIT_MEMORY)
    ]
    by_torchrun = ["exits-early", "garbage"]  # which tells of them
    real = ["agent-stopped"]  # torchrun has it for a parent
    forks = forked_here()
    with_torchrun = replace(forks, environment={**forks.environment, TORCHRUN: "1"})
    watches = [
        faults.measure(tmp_path / "forks", forks, sorted({*others} - {*by_torchrun, *real})),
        faults.measure(tmp_path / "torchrun", with_torchrun, by_torchrun),
        faults.measure(tmp_path / "real", launch_here("cpu"), real, model="squeezenet1_1"),
    ]
    wrong = {name: [*watch.wrong(name)] for watch in watches for name in others if f"weak/{name}" in watch.ends}
    assert wrong == {name: [] for name in others}


def test_a_study_that_cannot_be_prepared_is_blamed_with_the_error(broken: Watch) -> None:
    end = broken.ends[UNKNOWN.id]
    assert end.reason == "error"
    said = say(end.message)
    assert "failed in preparation (study weak/unknown)" in said
    assert "resnet9000" in said
    assert broken.rounds(UNKNOWN.id) == set()


def test_the_studies_before_and_after_are_measured_in_as_many_gangs_as_break(broken: Watch) -> None:
    assert broken.ends[WHOLE.id].reason == "rounds"
    assert broken.survivors[WHOLE.id], "its gang goes on: the search finds what there is"
    assert len(list(broken.run.logs.glob("gang-*.log"))) == 1 + len(FAULTS)


@pytest.mark.parametrize("name", FAULTS[:-1])  # without torchrun no rank lives on
def test_ranks_that_still_lived_left_their_stacks_or_their_error(broken: Watch, name: str) -> None:
    number = FAULTS.index(name)
    logs = list((broken.run.logs / f"gang-{number}").glob("*/attempt_0/0/stderr.log"))
    text = "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)
    assert "most recent call" in text
