"""The conftest.py of a site whose gang measures at once: in place of the supervisor and all it starts.

What it does is read from the environment: `GANG_HOST` is the host's name, `GANG_SPEED` how many times as fast as usual
it is, and `GANG_ENDS` how studies end whose id begins with ``strong``: a reason of `StudyEnd`, or ``killed`` for a
SIGKILL to pytest in the middle of it, or ``full`` for a disk that is.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.records import StudyEnd, StudyStart
from pytest_ddpscale.session import evidence
from tests.builders.sessions import SAMPLES_PER_S, InstantGang

WHY = {"error": "rank 1 on node1 broke", "interrupted": "the job reached its time limit"}


class GangOfASite(InstantGang):
    """Measures every study of a plan, to the end that it is to have."""

    hosts = (os.environ.get("GANG_HOST", "node1"),)
    samples_per_s = SAMPLES_PER_S * float(os.environ.get("GANG_SPEED", "1"))

    def measure(self, plan: Plan) -> None:
        launched = len([*self.run.logs.glob("gang-*.log")])
        (self.run.logs / f"gang-{launched}.log").touch()
        super().measure(plan)

    def rounds_of(self, study: Study) -> int:
        return 2 if self.how(study) else FEWEST_ROUNDS + 1

    def how(self, study: Study) -> str:
        return os.environ.get("GANG_ENDS", "") if study.scaling == "strong" else ""

    def end(self, study: Study) -> None:
        reason: Any = self.how(study) or "rounds"
        if reason == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if reason == "full":
            free = os.statvfs(self.run.path)
            with (self.run.path.parent / "filler").open("wb") as filler:
                os.posix_fallocate(filler.fileno(), 0, free.f_bavail * free.f_frsize)
            while True:  # until the last page of the file is full too
                self.run.append_record(StudyStart(study="x" * 200, unix_s=1.0))
        self.run.append_record(StudyEnd(study.id, reason, WHY.get(reason, "")))


vars(evidence)["Supervisor"] = GangOfASite
