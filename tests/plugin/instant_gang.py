"""The conftest.py of a site whose gang measures at once: in place of the supervisor and all it starts.

What it does is read from the environment: `GANG_HOST` is the host's name, and `GANG_ENDS` says by study how it ends, in
JSON: a reason of `StudyEnd`, or ``killed`` for a SIGKILL to pytest in the middle of it, or ``full`` for a disk that is.
"""

from __future__ import annotations

import json
import math
import os
import signal

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.results.records import Measurement, StudyEnd
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.session import session

ROUNDS = FEWEST_ROUNDS + 1
IMG_PER_S = {"ddp@2": 90.0}  # of a rank
ALONE_IMG_PER_S = 100.0


class InstantGang:
    """Takes what the supervisor takes, and measures a plan."""

    def __init__(self, *arguments: object, **_: object) -> None:
        self.run = next(one for one in arguments if isinstance(one, RunDirectory))
        self.host = os.environ.get("GANG_HOST", "node1")

    def measure(self, plan: Plan) -> None:
        """Every study of it, to the end that it is to have."""
        launched = len(list(self.run.logs.glob("gang-*.log")))
        (self.run.logs / f"gang-{launched}.log").write_text(f"{len(plan.studies)} studies\n", encoding="utf-8")
        for rank in range(plan.world_size):
            self.run.append_record(self._startup(rank))
        ends = json.loads(os.environ.get("GANG_ENDS", "{}"))
        for study in plan.studies:
            self._measure(study, ends.get(study.id, "rounds"))

    def _startup(self, rank: int) -> dict[str, object]:
        return {
            "kind": "startup", "rank": rank, "local_rank": rank, "world_size": 2, "host": self.host, "pid": 4711,
            "device": "cpu", "device_name": "CPU", "import_s": 1.0, "rendezvous_s": 1.0,
            "versions": {"torch": "2.9.0"}, "environment": {},
        }  # fmt: skip

    def _measure(self, study: Study, end: str) -> None:
        self.run.append_record({"kind": "study_start", "study": study.id, "unix_s": 1.7e9})
        for number in range(ROUNDS if end in ("rounds", "decided") else 2):
            for arm in study.arms:
                for rank in [study.turn(0, number)] if arm.world_size == 1 else range(arm.world_size):
                    self.run.append_record(self._measurement(study, arm, number, rank).as_json())
            arms = [arm.name for arm in study.arms]
            self.run.append_record({"kind": "round_end", "study": study.id, "round": number, "arms": arms})
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "full":
            self._fill_the_disk()
        message = {"error": "rank 1 on node1 broke", "interrupted": "the job reached its time limit"}.get(end, "")
        self.run.append_record(StudyEnd(study.id, end, message).as_json())

    def _fill_the_disk(self) -> None:
        free = os.statvfs(self.run.path)
        with (self.run.path.parent / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, free.f_bavail * free.f_frsize)
        while True:  # until the last page of the file is full too
            self.run.append_record({"kind": "padding", "of": "x" * 200})

    def _measurement(self, study: Study, arm: Arm, number: int, rank: int) -> Measurement:
        rate = IMG_PER_S.get(arm.name, ALONE_IMG_PER_S) * (1 + 0.0005 * math.sin(1.7 * number + arm.world_size))
        return Measurement(
            study=study.id, arm=arm.name, round=number, rank=rank, local_rank=rank, host=self.host, device="cpu",
            batch_size=arm.batch_size, steps=10, block_s=arm.batch_size * 10 / rate, started_unix_s=1.7e9 + number,
        )  # fmt: skip


vars(session)["Supervisor"] = InstantGang
