"""The conftest.py of a site whose gang measures at once: in place of the supervisor and all it starts.

What it does is read from the environment: `GANG_HOST` is the host's name, `GANG_SPEED` how many times as fast as usual
it is, and `GANG_ENDS` says by study how it ends, in JSON: a reason of `StudyEnd`, or ``killed`` for a SIGKILL to pytest
in the middle of it, or ``full`` for a disk that is.
"""

from __future__ import annotations

import json
import math
import os
import signal

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.run.block import Block, step_bytes
from pytest_ddpscale.run.records import RoundEnd, StudyEnd, StudyStart, gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.session import evidence
from tests.builders.records import gang_on

ROUNDS = FEWEST_ROUNDS + 1
SAMPLES_PER_S = {"ddp@2": 90.0}  # of a rank
ALONE_SAMPLES_PER_S = 100.0


class InstantGang:
    """Takes what the supervisor takes, and measures a plan."""

    def __init__(self, *arguments: object, **_: object) -> None:
        self.run = next(one for one in arguments if isinstance(one, RunDirectory))
        self.host = os.environ.get("GANG_HOST", "node1")

    def measure(self, plan: Plan) -> None:
        """Every study of it, to the end that it is to have."""
        launched = len(list(self.run.logs.glob("gang-*.log")))
        (self.run.logs / f"gang-{launched}.log").write_text(f"{len(plan.studies)} studies\n", encoding="utf-8")
        self.gang = len(gangs_by_number(self.run.read_records()))
        if plan.world_size:
            self.run.append_record(
                gang_on(
                    [self.host], plan.world_size, number=self.gang, device_name="CPU", pid=4711, import_s=1.0,
                    rendezvous_s=1.0, versions={"torch": "2.9.0"},
                )
            )  # fmt: skip
        ends = json.loads(os.environ.get("GANG_ENDS", "{}"))
        if plan.probes is not None:
            self._probe(plan.probes, plan.layout)
        for study in plan.studies:
            self._measure(study, ends.get(study.id, "rounds"))

    def _probe(self, study: ProbeStudy, layout: Layout) -> None:
        """Everything at 1 GB/s, on the ranks of one node."""
        self.run.append_record(StudyStart(study=study.id, unix_s=1.7e9))
        for number in range(study.rounds):
            for probe in study.arms:
                turns = [layout.groups(probe, turn) for turn in range(layout.turns(probe))]
                for turn, groups in enumerate(turns):
                    self.run.append_record(
                        Block(
                            study=study.id, arm=probe.name, round=number, turn=turn, gang=self.gang,
                            ranks=tuple(rank for group in groups for rank in group),
                            groups=tuple(place for place, group in enumerate(groups) for _ in group),
                            count=1, work=float(probe.operation.message_bytes or 1),
                            seconds=(probe.operation.message_bytes or 1) / 1e9 * (1 + 0.001 * (number % 3)),
                            began_unix_s=1.7e9 + number, readings={"is_correct": True},
                        )
                    )  # fmt: skip
            arms = tuple(probe.name for probe in study.arms)
            self.run.append_record(RoundEnd(study=study.id, round=number, arms=arms))
        self.run.append_record(StudyEnd(study.id, "rounds"))

    def _measure(self, study: Study, end: str) -> None:
        self.run.append_record(StudyStart(study=study.id, unix_s=1.7e9))
        for number in range(ROUNDS if end in ("rounds", "decided") else 2):
            for arm in study.arms:
                ranks = (study.turn(0, number),) if arm.world_size == 1 else tuple(range(arm.world_size))
                self.run.append_record(self._block(study, arm, number, ranks))
            arms = tuple(arm.name for arm in study.arms)
            self.run.append_record(RoundEnd(study=study.id, round=number, arms=arms))
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "full":
            self._fill_the_disk()
        message = {"error": "rank 1 on node1 broke", "interrupted": "the job reached its time limit"}.get(end, "")
        self.run.append_record(StudyEnd(study.id, end, message))  # type: ignore[arg-type]

    def _fill_the_disk(self) -> None:
        free = os.statvfs(self.run.path)
        with (self.run.path.parent / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, free.f_bavail * free.f_frsize)
        while True:  # until the last page of the file is full too
            self.run.append_record(StudyStart(study="x" * 200, unix_s=1.0))

    def _block(self, study: Study, arm: Arm, number: int, ranks: tuple[int, ...]) -> Block:
        rate = SAMPLES_PER_S.get(arm.name, ALONE_SAMPLES_PER_S) * float(os.environ.get("GANG_SPEED", "1"))
        rate *= 1 + 0.0005 * math.sin(1.7 * number + arm.world_size)
        block_s = arm.batch_size * 10 / rate
        return Block(
            study=study.id, arm=arm.name, round=number, gang=self.gang, work=float(arm.batch_size), count=10,
            ranks=ranks, began_unix_s=1.7e9 + number, seconds=block_s,
            series={"step_s": step_bytes([block_s / 10] * 10 * len(ranks))},
            digests="c0ffee" * 2 + "c0de" if arm.kind == "ddp" else None,
        )  # fmt: skip


vars(evidence)["Supervisor"] = InstantGang
