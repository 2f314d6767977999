"""Runs a plan: starts a gang, settles the studies that it measured, and starts another gang for the rest.

Each of a plan's launches has its own gang, even without failures.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Protocol

import msgspec

from pytest_ddpscale.errors import WritingError
from pytest_ddpscale.launch.environment import travelling
from pytest_ddpscale.launch.gang import Gang
from pytest_ddpscale.launch.gang_state import GangEnd, GangOwner, Limits
from pytest_ddpscale.launch.launcher import Launch, why_signalled
from pytest_ddpscale.node.protocol import SILENCE_S, Task
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.rank_folder import Assignment, WantedArms
from pytest_ddpscale.run.reason import Why, because
from pytest_ddpscale.run.record_lines import AnyRecord, Interrupted, Listener, Notice, RecordReader
from pytest_ddpscale.run.records import (
    EndReason,
    GpuErrors,
    LaunchTime,
    Lost,
    RankGpuError,
    RoundEnd,
    StudyEnd,
    StudyStart,
)
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import ends_of
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.run.survey_record import STUDY_ID as SURVEY
from pytest_ddpscale.run.survey_record import Survey

Preflight = Callable[[Sequence[Survey]], str]
# Target rate of messages from all nodes together, as long as beats stay well within SILENCE_S.
_RANKS_PER_BEAT_S = 200.0
_LONGEST_BEAT_S = SILENCE_S / 3


class Judge(Protocol):
    """Decides when a study has enough rounds."""

    def hear(self, record: AnyRecord) -> None:
        """Process a record that was just written."""

    def needed_arms(self, study_id: str) -> Sequence[str]:
        """Names of the arms for which more rounds may decide something."""


class PreflightFailed(Exception):
    """The nodes are unfit, so no rank was started; their surveys are recorded. The message says why."""


class Supervisor(GangOwner):
    """Measures a plan's studies.

    Args:
        listener: called with every record as it is written, and with notices.
        isolate: start a fresh gang for each study instead of one for all.
        judge: asked after each round whether the study has enough rounds; None measures all rounds.
        preflight: called with the recorded surveys of all nodes if the plan wants a survey; returns why these nodes
            must not be measured, or an empty string.
    """

    _is_surveyed = False
    _has_nothing_to_run = False
    _deadline_unix_s: float | None = None
    _has_begun = _has_retried = False
    _interruption: Why = ""

    def __init__(
        self,
        launch: Launch,
        run: RunDirectory,
        limits: Limits,
        listener: Listener = lambda record: None,
        *,
        isolate: bool = False,
        judge: Judge | None = None,
        preflight: Preflight = lambda records: "",
    ) -> None:
        self._launch = launch
        self._run = run
        self._limits = limits
        self._listener = listener
        self._isolate = isolate
        self._judge = judge
        self._preflight = preflight
        self._last_gang = max((getattr(record, "gang", -1) for record in run.read_records()), default=-1)
        self._lost: set[str] = set()
        self._studies: list[StudyStart | StudyEnd] = []  # of the latest gang
        self._reader = RecordReader()

    def measure(self, plan: Plan) -> None:
        """Measure every study of the plan, or record why not.

        A study whose gang dies is recorded as an error; a new gang continues with the next study, without lost nodes.
        Studies not measured because a user or a scheduler ended the job are recorded as interrupted.

        Raises:
            KeyboardInterrupt: Ctrl-C, or a signal that ends the job.
            PreflightFailed: the nodes were not admitted; no study has an end.
        """
        pending = list(plan.study_ids)
        try:
            with interrupted_by_termination():
                if plan.survey and not pending:  # only survey the nodes, without launching ranks
                    self._has_nothing_to_run = True
                    end = self._launched(plan, [])
                    if not end.refused:
                        self._end([SURVEY], "interrupted" if end.interrupted else "error", end.interrupted or end.why)
                while pending:
                    first = _gang_of(plan, pending[0])
                    batch = [study for study in pending if _gang_of(plan, study) == first]
                    batch = batch[:1] if self._isolate else batch
                    ended = self._run_gang(plan, batch)
                    pending = [study for study in pending if study not in ended]
        except KeyboardInterrupt as interrupt:
            why = self._interruption or self._why_interrupted(interrupt)
            with suppress(WritingError):  # on a full disk, the missing end means the same
                self._run.cut_torn_line()
                ended = set(ends_of(self._run.read_records()))
                self._end([study for study in plan.study_ids if study not in ended], "interrupted", why)
            raise

    def _run_gang(self, plan: Plan, studies: list[str]) -> set[str]:
        """Run one gang. Returns the studies it settled, measured or not; none if it is to be tried again."""
        if self._deadline_unix_s is not None and time.time() >= self._deadline_unix_s:
            return self._end(studies, "budget", "")
        if unfit := [study for study in studies if self._lost and not plan.fits_nodes(study)]:
            return self._end(unfit, "error", because("needs-lost-nodes", plan.nodes, (*self._lost,)))
        end = self._launched(plan, studies)
        if end.refused:
            raise PreflightFailed(end.refused)
        self._lost.update(end.lost_hosts)
        begun = [record.study for record in self._studies if isinstance(record, StudyStart)]
        ended = {record.study for record in self._studies if isinstance(record, StudyEnd)}
        self._has_begun = self._has_begun or bool(begun)
        if end.exit_code == 0 and ended.issuperset(studies):
            return ended
        self._run.cut_torn_line()
        records: list[AnyRecord] = [*end.post_mortems]
        if end.lost_hosts:
            records.append(Lost(hosts=end.lost_hosts, message=end.why))
        left = [study for study in studies if study not in ended]
        # If no study had begun, all remaining ones fail: another gang would hardly get further.
        blamed = begun[-1:] if begun and begun[-1] not in ended else left
        if end.gpu_errors and not end.interrupted:
            layout = plan.layout_of(studies[0])
            errors = tuple(
                msgspec.structs.replace(error, peers=_working_together(plan, layout, error) - 1)
                for error in end.gpu_errors
            )
            records.append(
                GpuErrors(gang=self._last_gang, ranks=layout.world_size, errors=errors, studies=tuple(blamed))
            )
        self._run.append_records(records)
        if end.interrupted:
            return ended | self._end(left, "interrupted", end.interrupted)
        if end.left:  # another gang would share the GPUs with the leftover processes
            return ended | self._end(left, "error", because("both", end.why, end.left))
        # A gang that ended before its first study is tried again, once in a run: if an earlier one got further, or if a
        # GPU's error ended it, as a second tells the GPU.
        is_tried_again = self._has_begun or any(not error.peer for error in end.gpu_errors)
        if is_tried_again and not begun and not self._has_retried:
            self._has_retried = True
            return set()
        return ended | self._end(blamed, "error", end.why or because("ended-early"))

    def _launched(self, plan: Plan, studies: Sequence[str]) -> GangEnd:
        """Run a gang; return how it ended."""
        # Numbers continue after those of earlier supervisors of this run, whose logs are kept, but may be gone.
        kept = [int(log.stem.removeprefix("gang-")) for log in self._run.logs.glob("gang-*.log")]
        self._last_gang = 1 + max(self._last_gang, *kept, -1)
        log = self._run.logs / f"gang-{self._last_gang}.log"
        layout = plan.layout_of(studies[0]) if studies else plan.layout
        hosts = tuple(host for host in self._launch.hosts if host not in self._lost)[: layout.nodes]
        nodes = len(hosts) if self._lost and hosts else layout.nodes
        further = plan.environment_of(studies[0]) if studies else {}
        environment = {**self._launch.environment, **further}
        launch = replace(self._launch, hosts=hosts, nodes=nodes, gang_id=uuid.uuid4().hex, environment=environment)
        ranks = nodes * layout.ranks_per_node
        settings, shares = launch.launcher.settings, launch.launcher.shares_environment
        assignment = Assignment(
            plan=msgspec.Raw(strict_json(replace(plan, requirements=())).encode()),
            studies=tuple(studies),
            gang=self._last_gang,
            timeout_s=self._limits.timeout_s,
            startup_timeout_s=self._limits.startup_timeout_s,
            steered=self._judge is not None,
            profile_steps=settings.profile_steps or 0,
            nvtx=settings.nvtx,
            launched_unix_s=time.time(),
            secret=secrets.token_hex(),
        )
        task = Task(
            gang_id=launch.gang_id,
            nodes=nodes,
            ranks_per_node=layout.ranks_per_node,
            assignment=assignment,
            environment={} if shares else {**travelling(environment, pass_env=settings.pass_env), **further},
            beat_s=min(_LONGEST_BEAT_S, max(1.0, ranks / _RANKS_PER_BEAT_S)),
            survey=plan.survey and not self._is_surveyed,
            has_gpus=plan.device_type == "cuda",
            post_mortem=plan.survey and plan.device_type == "cuda",
        )
        gang = Gang(task, launch, self._limits, log, self)
        self._studies.clear()
        began_unix_s = time.time()
        end = gang.run()
        if any(isinstance(record, StudyEnd) for record in self._studies) and plan.training_run(studies[0]) is not None:
            seconds = gang.records_arrived_unix_s - began_unix_s
            self._run.append_record(LaunchTime(study=studies[0], gang=self._last_gang, seconds=seconds))
        return end

    def preflight(self, surveys: Sequence[Survey]) -> str:
        """See `GangOwner`; called once, before anything runs on the nodes."""
        self._is_surveyed, room = True, dict[str, int]()
        with suppress(OSError):  # the run directory is on this machine for all nodes
            system = os.statvfs(self._run.path)
            room = {"run_directory": system.f_bavail * system.f_frsize}
        surveys = [msgspec.structs.replace(survey, free_bytes=survey.free_bytes | room) for survey in surveys]
        self._write(surveys)
        return self._preflight(surveys) or ("nothing is to be run" if self._has_nothing_to_run else "")

    def interrupted(self, interrupt: KeyboardInterrupt) -> None:
        """See `GangOwner`."""
        self._interruption = self._why_interrupted(interrupt)
        self._listener(Interrupted(self._interruption))

    def deadline_unix_s(self) -> float | None:
        """End of the budget, counted from when the first gang's nodes were up."""
        if self._deadline_unix_s is None and self._limits.budget_s is not None:
            self._deadline_unix_s = time.time() + self._limits.budget_s
        return self._deadline_unix_s

    def keep(self, lines: bytes) -> list[AnyRecord]:
        """See `GangOwner`. An invalid line is kept but skipped here; judging refuses it later."""
        self._run.append_lines(lines)
        records = []
        for line in lines.splitlines():
            with suppress(ValueError):
                records.append(self._reader.read(line))
        return records

    def hear(self, record: AnyRecord | Notice) -> WantedArms | None:
        """See `GangOwner`."""
        wanted = None
        if isinstance(record, StudyStart | StudyEnd):
            self._studies.append(record)
        if self._judge is not None and not isinstance(record, Notice):
            self._judge.hear(record)
            if isinstance(record, RoundEnd):
                wanted = WantedArms(record.study, record.round, tuple(self._judge.needed_arms(record.study)))
        self._listener(record)
        return wanted

    def _end(self, studies: Sequence[str], reason: EndReason, why: Why) -> set[str]:
        """Settle studies without a measurement. Returns them."""
        self._write([StudyEnd(study=study, reason=reason, message=why) for study in studies])
        return set(studies)

    def _write(self, records: Sequence[AnyRecord]) -> None:
        """Write the supervisor's own records and process them."""
        if records:
            self._run.append_records(records)
        for record in records:
            self.hear(record)

    def _why_interrupted(self, interrupt: KeyboardInterrupt) -> Why:
        """What ended the session: a scheduler, if it says so, else a signal or Ctrl-C."""
        named = str(interrupt)
        cause = why_signalled(self._launch.launcher.settings, os.environ) if named else ""
        return cause or because("interrupted-by", named)


def _gang_of(plan: Plan, study_id: str) -> tuple[int, dict[str, str], str]:
    """Key of studies that share a gang: launch and environment; a whole run has its own gang."""
    own = study_id if plan.training_run(study_id) is not None else ""
    return plan.launch_of(study_id), plan.environment_of(study_id), own


@contextmanager
def interrupted_by_termination() -> Iterator[None]:
    """Let SIGTERM and SIGHUP (kill, scancel, a time limit, a lost ssh connection) interrupt like Ctrl-C.

    Does nothing outside the main thread, where Python does not allow signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _working_together(plan: Plan, layout: Layout, failed: RankGpuError) -> int:
    """How many ranks did the same work at the time: those of the arm, or all between arms."""
    arm = plan.arm(failed.study, failed.arm) if failed.study and failed.arm else None
    return layout.world_size if arm is None else len(layout.ranks([arm]))
