"""Real ranks that break: each costs its own study, which says who and where, and nothing else.

Those that are killed otherwise, stop while they compute, exit early or print garbage are tried by benchmarks/faults.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpscale.report.words.reasons import say
from tests.benchmarks.scripts import benchmark
from tests.forks.launcher import forked_here

script = benchmark("faults")

# The kernel's SIGKILL, where it can be had: it needs root and the memory controller of cgroup v1.
KILLED = "out-of-memory" if script.CAN_LIMIT_MEMORY else "killed"
FAULTS = (KILLED, "stopped-in-a-collective", "device-stuck", "torchrun-killed")
WHOLE = script.weak("whole", rounds=5)
UNKNOWN = script.weak("unknown", model="resnet9000")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One run: a study that is whole, one that cannot be prepared, and one for each fault."""
    return script.measure(tmp_path_factory.mktemp("faults"), FAULTS, [WHOLE], [UNKNOWN], forked_here())


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_the_error_of_its_study_with_who_where_and_how(broken: Any, name: str) -> None:
    end = broken.ends[f"weak/{name}"]
    assert end.reason == "error"
    said = say(end.message)
    assert script.FAULTS[name].message(end.study).match(said), said


@pytest.mark.parametrize("name", FAULTS)
def test_the_gang_ends_within_its_deadline_and_leaves_no_process(broken: Any, name: str) -> None:
    assert broken.seconds(f"weak/{name}") < script.DEADLINE_S
    assert broken.survivors[f"weak/{name}"] == []


@pytest.mark.parametrize("name", FAULTS)
def test_what_was_measured_before_the_fault_stays(broken: Any, name: str) -> None:
    assert {0, 1} <= broken.rounds(f"weak/{name}")


def test_a_study_that_cannot_be_prepared_is_blamed_with_the_error(broken: Any) -> None:
    end = broken.ends[UNKNOWN.id]
    assert end.reason == "error"
    said = say(end.message)
    assert "failed in preparation (study weak/unknown)" in said
    assert "resnet9000" in said
    assert broken.rounds(UNKNOWN.id) == set()


def test_the_studies_before_and_after_are_measured_in_as_many_gangs_as_break(broken: Any) -> None:
    assert broken.ends[WHOLE.id].reason == "rounds"
    assert broken.survivors[WHOLE.id], "its gang goes on: the search finds what there is"
    assert len(list(broken.run.logs.glob("gang-*.log"))) == 1 + len(FAULTS)


@pytest.mark.parametrize("name", FAULTS[:-1])  # without torchrun no rank lives on
def test_ranks_that_still_lived_left_their_stacks_or_their_error(broken: Any, name: str) -> None:
    number = FAULTS.index(name)
    logs = list((broken.run.logs / f"gang-{number}").glob("*/attempt_0/0/stderr.log"))
    text = "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)
    assert "most recent call" in text
