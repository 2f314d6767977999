"""Real ranks that break: each costs its own study, which says who and where, and nothing else."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from pytest_ddpscale.launch.limits import Limits
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.launch.torchrun import launch_here
from pytest_ddpscale.node.processes import GANG_VARIABLE
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.results.records import StudyEnd
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_record import ends_of
from tests.builders.measurements import measurements_in

pytestmark = pytest.mark.slow

FAULT_SITE = Path(__file__).with_name("fault_site")
INACTIVITY_S = 20.0
# From the fault to the record of it, with the limits and grace periods between, on a machine that is busy.
DEADLINE_S = 50.0
CGROUP = Path("/sys/fs/cgroup/memory")
WORKLOAD = Workload("w", "squeezenet1_1", "fp32", 2, 32, "contiguous", 4, num_classes=10)
ARMS = (Arm("alone", 1, 2), Arm("ddp", 2, 2))
CAN_LIMIT_MEMORY = os.access(CGROUP, os.W_OK) and (CGROUP / "memory.limit_in_bytes").exists()
# Study → what befalls which rank in which arm. `alone` is computation, and rank 1 waits for rank 0's word; in `ddp@2`
# the other rank waits in a collective.
FAULTS = {
    "weak/killed": ("is killed", 1, "ddp@2"),
    "weak/stopped-computing": ("is stopped", 0, "alone"),
    "weak/stopped-in-a-collective": ("is stopped", 1, "ddp@2"),
    "weak/out-of-memory": ("runs out of memory", 1, "ddp@2"),
    "weak/exits-early": ("exits 0 early", 1, "ddp@2"),
    "weak/garbage": ("prints garbage and raises", 1, "ddp@2"),
}
EXPECTED = {
    "weak/killed": r"rank 1 on HOST was killed by SIGKILL in timed block \(study weak/killed, arm ddp@2, round 2\)",
    "weak/stopped-computing":
        r"nothing was recorded for 20 s.* rank 0 on HOST is stopped \(SIGSTOP, or a debugger\) in timed block"
        r" \(study weak/stopped-computing, arm alone, round 2\)",
    "weak/stopped-in-a-collective":
        r"nothing was recorded for 20 s.* rank 1 on HOST is stopped \(SIGSTOP, or a debugger\) in timed block"
        r" \(study weak/stopped-in-a-collective, arm ddp@2, round 2\)",
    "weak/out-of-memory":
        r"rank 1 on HOST was killed by SIGKILL in timed block \(study weak/out-of-memory, arm ddp@2, round 2\): "
        r"the kernel ended it for lack of memory",
    "weak/exits-early":
        r"rank 1 on HOST left early, with exit code 0, in timed block \(study weak/exits-early, arm ddp@2, round 2\)",
    "weak/garbage": r"rank 1 on HOST failed in timed block \(study weak/garbage, arm ddp@2, round 2\): ArithmeticError",
}  # fmt: skip


STUDIES = [
    pytest.param(
        study,
        marks=pytest.mark.skipif(
            study == "weak/out-of-memory" and not CAN_LIMIT_MEMORY,
            reason=f"needs root and the memory controller of cgroup v1: mount -t cgroup -o memory none {CGROUP}",
        ),
    )
    for study in FAULTS
]
HAPPENING = [study for study in FAULTS if study != "weak/out-of-memory" or CAN_LIMIT_MEMORY]


@dataclass
class Watch:
    """What was there the moment a study's end was recorded."""

    run: RunDirectory
    ended_unix_s: dict[str, float] = field(default_factory=dict)
    survivors: dict[str, list[str]] = field(default_factory=dict)

    def hear(self, record: object) -> None:
        if isinstance(record, StudyEnd):
            self.ended_unix_s[record.study] = time.time()
            self.survivors[record.study] = list(_processes_with(self.run.path.with_name("faults.jsonl")))

    @property
    def ends(self) -> dict[str, StudyEnd]:
        return ends_of(self.run.read_records())


def _processes_with(log: Path) -> Iterator[str]:
    """Agents, torchrun and ranks of this run, wherever they are: what they were started with is their own."""
    for process in psutil.process_iter():
        try:
            environ = process.environ()
            if GANG_VARIABLE in environ and environ.get("FAULTS_LOG") == str(log):
                yield f"{process.pid} {process.status()} {' '.join(process.cmdline())[:100]}"
        except (psutil.Error, OSError):
            continue


def _study(name: str, rounds: int = 10_000) -> Study:
    return Study("weak", replace(WORKLOAD, name=name), ARMS, rounds, block_s=0.05, warmup_s=0.1)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Watch:
    """One run whose studies each meet a fault but the last, in a gang of its own each."""
    folder = tmp_path_factory.mktemp("faults")
    run = RunDirectory.create(folder / "run")
    studies = (*(_study(name.removeprefix("weak/")) for name in HAPPENING), _study("whole", rounds=5))
    plan = Plan("cpu", "cpu", studies)
    run.write_json(run.plan_json, plan)
    watch = Watch(run)
    launch = launch_here("cpu")
    fault = {"FAULTS": json.dumps(FAULTS), "FAULTS_LOG": str(folder / "faults.jsonl")}
    path = os.pathsep.join(filter(None, [str(FAULT_SITE), os.environ.get("PYTHONPATH")]))
    launch = replace(launch, environment={**launch.environment, **fault, "PYTHONPATH": path})
    Supervisor(launch, run, Limits(inactivity_s=INACTIVITY_S), watch.hear).measure(plan)
    for group in CGROUP.glob("ddpscale-test-*"):
        group.rmdir()
    return watch


@pytest.fixture(scope="module")
def fault_unix_s(broken: Watch) -> dict[str, float]:
    """When each fault happened."""
    log = broken.run.path.with_name("faults.jsonl").read_text(encoding="utf-8")
    return {one["study"]: one["unix_s"] for one in map(json.loads, log.splitlines())}


@pytest.mark.parametrize("study", STUDIES)
def test_a_fault_is_the_error_of_its_study_with_who_where_and_how(broken: Watch, study: str) -> None:
    end = broken.ends[study]
    assert end.reason == "error"
    host = os.uname().nodename
    assert re.match(EXPECTED[study].replace("HOST", re.escape(host)), end.message, re.DOTALL), end.message


@pytest.mark.parametrize("study", STUDIES)
def test_the_gang_ends_within_its_deadline_and_leaves_no_process(
    broken: Watch, fault_unix_s: dict[str, float], study: str
) -> None:
    assert broken.ended_unix_s[study] - fault_unix_s[study] < DEADLINE_S
    assert broken.survivors[study] == []


@pytest.mark.parametrize("study", STUDIES)
def test_what_was_measured_before_the_fault_stays(broken: Watch, study: str) -> None:
    rounds = {one.round for one in measurements_in(broken.run) if one.study == study}
    assert {0, 1} <= rounds


def test_the_other_studies_go_on_in_a_new_gang(broken: Watch) -> None:
    assert broken.ends["weak/whole"].reason == "rounds"
    assert broken.survivors["weak/whole"], "its gang is still to be ended then: the search finds what there is"
    assert len(list(broken.run.logs.glob("gang-*.log"))) == len(HAPPENING) + 1


@pytest.mark.parametrize(
    ("study", "rank"), [("weak/killed", 0), ("weak/stopped-in-a-collective", 0), ("weak/exits-early", 0)]
)
def test_ranks_that_still_lived_left_their_stacks_or_their_error(broken: Watch, study: str, rank: int) -> None:
    number = HAPPENING.index(study)
    logs = list((broken.run.logs / f"gang-{number}").glob(f"*/attempt_0/{rank}/stderr.log"))
    text = "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)
    assert "most recent call" in text
