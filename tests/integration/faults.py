"""Real faults of a rank on this CPU, and what they do to its gang: two gloo ranks train until one breaks.

Each fault has its own study, and so its own gang. Out of memory needs root and the memory controller of cgroup v1.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.launch.launcher import Launch
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.node.processes import GANG_VARIABLE
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import ends_of
from tests.builders.trained import MODEL, TINY
from tests.builders.workloads import with_settings

SITE = Path(__file__).with_name("fault_site")
CGROUP = Path("/sys/fs/cgroup/memory")
CAN_LIMIT_MEMORY = os.access(CGROUP, os.W_OK) and (CGROUP / "memory.limit_in_bytes").exists()
INACTIVITY_S = 10.0
# From the fault to the record of it, with the limits and grace periods between, on a machine that is busy.
DEADLINE_S = 60.0
ARMS = (Arm("alone", 1, 2), Arm("ddp", 2, 2), Arm("vanilla_parallel", 1, 2, devices=2))
STOPPED = (
    rf"ranks recorded nothing for {INACTIVITY_S:g} s.* WHO is stopped \(SIGSTOP, or a debugger\) in timed block PLACE"
)


@dataclass(frozen=True)
class Fault:
    """A fault of a rank, and the expected error.

    Attributes:
        kind: a fault of `fault_site`.
        rank: the rank that breaks.
        arm: in `alone` rank 0 computes and rank 1 waits for its message; in `ddp@2` the other rank waits for this one.
        said: a pattern. WHO stands for rank and host, HOST for the host, PLACE for study, arm and round.
    """

    kind: str
    rank: int
    arm: str
    said: str

    def message(self, study: str) -> re.Pattern[str]:
        """The pattern at the start of its study's error."""
        host = re.escape(os.uname().nodename)
        who = f"rank {self.rank} on {host}"
        place = rf"\(study {study}, arm {self.arm}, round 2\)"
        return re.compile(self.said.replace("WHO", who).replace("PLACE", place).replace("HOST", host), re.DOTALL)


FAULTS = {
    "torchrun-killed": Fault(
        "has its torchrun killed", 1, "ddp@2", "torchrun on HOST was killed by SIGKILL from outside"
    ),
    "agent-stopped": Fault(
        "has its agent stopped",
        1,
        "ddp@2",
        rf"ranks recorded nothing for {INACTIVITY_S:g} s.* the agent on HOST sent nothing meanwhile: stopped, or",
    ),
    "killed": Fault("is killed", 1, "ddp@2", "WHO was killed by SIGKILL in timed block PLACE"),
    "stopped-in-a-collective": Fault("is stopped", 1, "ddp@2", STOPPED),
    "stopped-computing": Fault("is stopped", 0, "alone", STOPPED),
    # The kernel takes its time, in which the rank goes on.
    "out-of-memory": Fault(
        "runs out of memory", 1, "ddp@2", "WHO was killed by SIGKILL in [^:]*: the kernel's OOM killer ended it"
    ),
    "exits-early": Fault("exits 0 early", 1, "ddp@2", "WHO left early, with exit code 0, in timed block PLACE"),
    # Rank 1 idles while rank 0 drives the devices of both.
    "device-stuck": Fault(
        "waits for a device",
        0,
        "vanilla_parallel@2",
        rf"ranks recorded nothing for {INACTIVITY_S:g} s.* WHO is furthest behind of 2 ranks, in timed block "
        r"\(study weak/device-stuck, arm vanilla_parallel@2, round \d+\)",
    ),
    "garbage": Fault("prints garbage and raises", 1, "ddp@2", "WHO failed in timed block PLACE: ArithmeticError"),
}


@dataclass
class Watch:
    """State at the moment when a study's end was recorded.

    Attributes:
        run: its directory.
        ended_unix_s: when, by study.
        survivors: processes of the run at that moment, by study.
    """

    run: RunDirectory
    ended_unix_s: dict[str, float] = field(default_factory=dict)
    survivors: dict[str, list[str]] = field(default_factory=dict)

    def hear(self, record: object) -> None:
        """Look around at the end of a study."""
        if isinstance(record, StudyEnd):
            self.ended_unix_s[record.study] = time.time()
            self.survivors[record.study] = list(_processes_with(self._log))

    @property
    def _log(self) -> Path:
        return self.run.path.with_name("faults.jsonl")

    @property
    def ends(self) -> dict[str, StudyEnd]:
        """How each study ended."""
        return ends_of(self.run.read_records())

    def seconds(self, study: str) -> float:
        """Seconds from its fault to the record of its end."""
        happened = [json.loads(line) for line in self._log.read_text(encoding="utf-8").splitlines()]
        [unix_s] = [float(one["unix_s"]) for one in happened if one["study"] == study]
        return self.ended_unix_s[study] - unix_s

    def rounds(self, study: str) -> set[int]:
        """Rounds with a measurement."""
        return {one.round for one in self.run.read_records() if isinstance(one, Block) and one.study == study}

    def wrong(self, name: str) -> Iterator[str]:
        """What a fault did not come to: the error of its study in time, no process left, earlier rounds kept."""
        study, end = f"weak/{name}", self.ends[f"weak/{name}"]
        if end.reason != "error" or not FAULTS[name].message(study).match(say(end.message)):
            yield f"{end.reason}: {say(end.message)}"
        if (seconds := self.seconds(study)) > DEADLINE_S:
            yield f"its end was recorded after {seconds:.0f} s"
        yield from self.survivors[study]
        if not {0, 1} <= self.rounds(study):
            yield "earlier measurements are gone"


def _processes_with(log: Path) -> Iterator[str]:
    """Agents, torchrun and ranks of this run, wherever they are: what they were started with is their own."""
    for process in psutil.process_iter():
        try:
            environ = process.environ()
            if GANG_VARIABLE in environ and environ.get("FAULTS_LOG") == str(log):
                yield f"{process.pid} {process.status()} {' '.join(process.cmdline())[:100]}"
        except (psutil.Error, OSError):
            continue


def weak(name: str, model: str = MODEL, rounds: int = 10_000) -> Study:
    """A study of that name."""
    return Study("weak", with_settings(TINY, name=name, model=model), ARMS, rounds, block_s=0.05, warmup_s=0.1)


def measure(
    folder: Path, launch: Launch, names: Sequence[str], before: Sequence[Study] = (), after: Sequence[Study] = (),
    model: str = MODEL,
) -> Watch:  # fmt: skip
    """One run whose studies each meet a fault, in a gang of its own each.

    Args:
        folder: for the run.
        names: of the faults, in order.
        before: studies to measure before them.
        after: and after them.
        model: what is trained; ranks that are no forks know only torchvision's own.
        launch: how gangs are started; default: as on any machine.
    """
    folder.mkdir(exist_ok=True)
    run = RunDirectory.create(folder / "run")
    plan = Plan("cpu", "cpu", (*before, *(weak(name, model) for name in names), *after))
    run.write_json(run.plan_json, plan)
    watch = Watch(run)
    faults = {f"weak/{name}": (FAULTS[name].kind, FAULTS[name].rank, FAULTS[name].arm) for name in names}
    path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    told = {"FAULTS": json.dumps(faults), "FAULTS_LOG": str(folder / "faults.jsonl"), "PYTHONPATH": path}
    launch = replace(launch, environment={**launch.environment, **told})
    Supervisor(launch, run, Limits(inactivity_s=INACTIVITY_S), watch.hear).measure(plan)
    for group in CGROUP.glob("ddpscale-test-*"):
        group.rmdir()
    return watch
