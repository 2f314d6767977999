"""Has a plan measured: starts a gang, settles the studies it came to, and starts another for what is left."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import WritingError
from pytest_ddpscale.launch.early_stop import EarlyStop, Judge
from pytest_ddpscale.launch.gang import Admit, Gang, GangEnd
from pytest_ddpscale.launch.gang_setup import GangSetup
from pytest_ddpscale.launch.interruption import interrupted_by_termination
from pytest_ddpscale.launch.launcher import GangSpec
from pytest_ddpscale.launch.limits import Limits
from pytest_ddpscale.launch.new_records import NewRecords
from pytest_ddpscale.launch.slurm_job import why_signalled
from pytest_ddpscale.node.protocol import SILENCE_S
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.records import LOST, StudyEnd
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.survey_record import STUDY_ID as SURVEY

Listener = Callable[[dict[str, Any]], None]
# About so many messages a second reach the supervisor from all nodes together, unless a node would then be taken for
# lost, as it is after SILENCE_S.
_NODES_PER_BEAT_S = 200.0
_LONGEST_BEAT_S = SILENCE_S / 3


class NotAdmitted(Exception):
    """The nodes are not fit to be measured, so that no rank was started; their surveys are recorded.

    Args:
        reason: what `Supervisor`'s `admit` said.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Supervisor:
    """Has a plan's studies measured.

    Args:
        place: where and how gangs start.
        run: where records go.
        limits: when to stop.
        listener: called with every record as it is written, and with ``{}`` or a kind ``waiting`` meanwhile; and with
            a kind ``interrupted`` as soon as somebody ends the session.
        isolate: a fresh gang for each study instead of one for all.
        judge: asked after each round whether the study has told enough; None measures all rounds.
        admit: given the surveys of all nodes, as records, where the plan wants a survey and once they are written:
            says why nothing shall be measured on these nodes, or nothing.
    """

    def __init__(
        self,
        place: GangSetup,
        run: RunDirectory,
        limits: Limits,
        listener: Listener = lambda record: None,
        *,
        isolate: bool = False,
        judge: Judge | None = None,
        admit: Admit = lambda records: "",
    ) -> None:
        self._place = place
        self._run = run
        self._limits = limits
        self._listener = listener
        self._isolate = isolate
        self._steering = EarlyStop(judge, run) if judge else None
        self._admit = admit
        self._is_surveyed = False
        self._has_nothing_to_run = False
        self._gangs = 0
        self._deadline_unix_s: float | None = None
        self._lost: set[str] = set()
        self._has_begun = False
        self._interruption = ""
        self._starts_again = 0

    @property
    def gangs_started(self) -> int:
        """How many launches it took."""
        return self._gangs

    def measure(self, plan: Plan) -> None:
        """Measure every study of the plan, or record why not.

        A study whose gang dies is recorded as an error; a new gang goes on with the next one, without
        nodes that were lost. What is not measured because somebody or Slurm ended the job is recorded
        as interrupted.

        Raises:
            KeyboardInterrupt: Ctrl-C, or a signal that ends the job.
            NotAdmitted: the nodes were not admitted; no study has an end.
        """
        pending = list(plan.study_ids)
        try:
            with interrupted_by_termination():
                if plan.survey and not pending:
                    self._only_survey(plan)
                while pending:
                    batch = pending[:1] if self._isolate else pending
                    ended = self._run_gang(plan, batch)
                    pending = [study for study in pending if study not in ended]
        except KeyboardInterrupt as interrupt:
            self._record_interruption(plan, self._interruption or _why_interrupted(interrupt))
            raise

    def _only_survey(self, plan: Plan) -> None:
        """Find out what the nodes are, and launch nothing on them."""
        self._has_nothing_to_run = True
        log = self._run.logs / f"gang-{len(list(self._run.logs.glob('gang-*.log')))}.log"
        end = self._gang(plan, [], log, NewRecords(self._run.measurements_jsonl)).run()
        self._gangs += end.was_started
        if not end.refused:
            self._end([SURVEY], "interrupted" if end.interrupted else "error", end.interrupted or end.why)

    def _run_gang(self, plan: Plan, studies: list[str]) -> set[str]:
        """One launch. Returns the studies that are settled by it, well or badly; none if it is to be tried again."""
        if unfit := self._unfit(plan, studies):
            return unfit
        # Counted on from earlier supervisors of this run, whose logs stay.
        log = self._run.logs / f"gang-{len(list(self._run.logs.glob('gang-*.log')))}.log"
        tail = NewRecords(self._run.measurements_jsonl)
        end = self._gang(plan, studies, log, tail).run()
        self._gangs += end.was_started
        if end.refused:
            raise NotAdmitted(end.refused)
        self._lost.update(end.lost_hosts)
        seen = _Progress(tail.records)
        self._has_begun = self._has_begun or seen.begun
        if end.exit_code == 0 and seen.ended.issuperset(studies):
            return seen.ended
        self._keep_reports(end, log.with_suffix(""))
        self._run.cut_torn_line()
        lost = [{"kind": LOST, "hosts": list(end.lost_hosts), "message": end.why}] if end.lost_hosts else []
        self._run.append_records([*end.post_mortems, *lost])
        left = [study for study in studies if study not in seen.ended]
        if end.interrupted:
            self._end(left, "interrupted", end.interrupted)
            return set(studies)
        if end.left:  # another gang would share the GPUs with it
            why = (
                f"{end.why}. Processes of its Slurm step {end.left} are left on the nodes, so that no other gang starts"
            )
            self._end(left, "error", f"{why}; see `squeue --steps`")
            return set(studies)
        if not seen.begun and self._may_start_again():
            return set()
        # Before any study began, nothing says that the next one would fare better.
        blamed = [seen.current] if seen.current else left
        self._end(blamed, "error", end.why)
        return seen.ended | set(blamed)

    def _may_start_again(self) -> bool:
        """Whether a gang that died before its first study is tried again: once, if an earlier one had come further."""
        self._starts_again += self._has_begun
        return self._has_begun and self._starts_again == 1

    def _unfit(self, plan: Plan, studies: Sequence[str]) -> set[str]:
        """Studies that cannot be measured any more, since a node was lost."""
        if not self._lost:
            return set()
        unfit = [study for study in studies if not plan.fits_nodes(study)]
        self._end(unfit, "error", f"needs all {plan.nodes} nodes, and {', '.join(sorted(self._lost))} was lost before")
        return set(unfit)

    def _gang(self, plan: Plan, studies: Sequence[str], log: Path, tail: NewRecords) -> Gang:
        hosts = tuple(host for host in self._place.hosts if host not in self._lost)
        nodes = len(hosts) if self._lost and hosts else plan.nodes
        gang_id = uuid.uuid4().hex
        # Its name is new, so that no file system remembers that it was not there.
        proof = log.resolve().with_name(f"seen-{gang_id}") if self._place.launcher.needs_shared_directory else None
        spec = GangSpec(
            gang_id=gang_id,
            nodes=nodes,
            ranks_per_node=plan.layout.ranks_per_node,
            log_dir=log.with_suffix("").resolve(),
            worker_arguments=self._worker_arguments(studies),
            hosts=hosts,
            beat_s=min(_LONGEST_BEAT_S, max(1.0, nodes * plan.layout.ranks_per_node / _NODES_PER_BEAT_S)),
            survey=plan.survey and not self._is_surveyed,
            has_gpus=plan.device_type == "cuda",
            post_mortem=plan.survey and plan.device_type == "cuda",
            proof=proof,
        )
        place, limits, hear = self._place, self._limits, self._hear
        return Gang(
            spec,
            place.launcher,
            place.environment,
            limits,
            log,
            tail,
            hear,
            self._deadline,
            self._take,
            self._interrupted,
        )

    def _take(self, surveys: list[dict[str, Any]]) -> str:
        """Write down what the nodes are: once, since it is found out before anything runs on them."""
        self._is_surveyed = True
        self._run.append_records(surveys)
        return self._admit(surveys) or ("nothing is to be run" if self._has_nothing_to_run else "")

    def _interrupted(self, interrupt: KeyboardInterrupt) -> None:
        self._interruption = _why_interrupted(interrupt)
        self._listener({"kind": "interrupted", "message": self._interruption})

    def _deadline(self) -> float | None:
        """When the budget is spent: counted from when the first gang's nodes were there."""
        if self._deadline_unix_s is None and self._limits.budget_s is not None:
            self._deadline_unix_s = time.time() + self._limits.budget_s
        return self._deadline_unix_s

    def _worker_arguments(self, studies: Sequence[str]) -> list[str]:
        # Absolute: in a container, or where a site's prolog changes it, the working directory is another one.
        arguments = [
            "--run-dir",
            str(self._run.path.resolve()),
            "--studies",
            ",".join(studies),
            "--version",
            __version__,
        ]
        # Longer than we wait for any rank: we see all of them, and can say which one keeps the others waiting.
        arguments += ["--timeout-s", f"{1.5 * self._limits.inactivity_s + 30:g}"]
        if self._steering is not None:
            arguments += ["--steered"]
        return arguments

    def _keep_reports(self, end: GangEnd, folder: Path) -> None:
        """Put failure reports of ranks beside their logs."""
        with suppress(OSError):  # a full disk: the message that follows has the first one's words
            folder.mkdir(exist_ok=True)
            for report in end.failures:
                name = f"rank-{report.get('rank', -1)}.error.json"
                (folder / name).write_text(json.dumps(report) + "\n", encoding="utf-8")

    def _record_interruption(self, plan: Plan, why: str) -> None:
        """Of every study that has no end yet, that it was cut short and why."""
        with suppress(WritingError):  # on a full disk a study without an end says as much
            self._run.cut_torn_line()
            ended = _Progress(self._run.read_records()).ended
            self._end([study for study in plan.study_ids if study not in ended], "interrupted", why)

    def _end(self, studies: Sequence[str], reason: str, why: str) -> None:
        for study in studies:
            record = StudyEnd(study, reason, why).as_json()
            self._run.append_record(record)
            self._hear(record)

    def _hear(self, record: dict[str, Any]) -> None:
        if self._steering is not None:
            self._steering.hear(record)
        self._listener(record)


def _why_interrupted(interrupt: KeyboardInterrupt) -> str:
    """What ended the session: Slurm, if it says so, or a signal, or a person."""
    named = str(interrupt)
    told = why_signalled(os.environ, datetime.now()) if named else ""
    return told or (f"{named} was received" if named else "Ctrl-C was pressed")


class _Progress:
    """How far a gang came, from its records."""

    def __init__(self, records: Sequence[dict[str, Any]]) -> None:
        self.ended = {record["study"] for record in records if record["kind"] == "study_end"}
        begun = [record["study"] for record in records if record["kind"] == "study_start"]
        self.begun = bool(begun)
        self.current = begun[-1] if begun and begun[-1] not in self.ended else None
