"""Keeps a gang working: starts it, watches it, ends it, and starts another for what is left."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import GangError
from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.launch.launcher import GangSpec, Launcher
from pytest_ddpscale.launch.post_mortem import describe, failure_reports
from pytest_ddpscale.launch.processes import GANG_VARIABLE, interrupted_by_termination, stop_gang
from pytest_ddpscale.launch.steering import Judge, Steering
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.records import StudyEnd, parse_strict_json
from pytest_ddpscale.results.run_directory import RunDirectory

POLL_S = 0.2
GRACE_S = 10.0
Listener = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Limits:
    """How long measuring may take.

    Attributes:
        budget_s: wall time for all measuring; no round starts after it. None: as long as it takes.
        inactivity_s: a gang that records nothing for this long is ended.
    """

    budget_s: float | None = None
    inactivity_s: float = 600.0


class Supervisor:
    """Has a plan's studies measured.

    Args:
        launcher: how ranks start.
        run: where records go.
        limits: when to stop.
        listener: called with every record as it is written, and with nothing (``{}``) while waiting.
        isolate: a fresh gang for each study instead of one for all.
        judge: asked after each round whether the study has told enough; None measures all rounds.
    """

    def __init__(
        self,
        launcher: Launcher,
        run: RunDirectory,
        limits: Limits,
        listener: Listener = lambda record: None,
        *,
        isolate: bool = False,
        judge: Judge | None = None,
    ) -> None:
        self._launcher = launcher
        self._run = run
        self._limits = limits
        self._listener = listener
        self._isolate = isolate
        self._steering = Steering(judge, run) if judge else None
        self._gangs = 0
        self._deadline_unix_s: float | None = None

    @property
    def gangs_started(self) -> int:
        """How many launches it took."""
        return self._gangs

    def measure(self, plan: Plan) -> None:
        """Measure every study of the plan, or record why not.

        A study whose gang dies is recorded as an error; a new gang goes on with the next one.
        """
        if self._limits.budget_s is not None:
            self._deadline_unix_s = time.time() + self._limits.budget_s
        pending = [study.id for study in plan.studies]
        with interrupted_by_termination():
            while pending:
                batch = pending[:1] if self._isolate else pending
                ended = self._run_gang(plan, batch)
                pending = [study for study in pending if study not in ended]

    def _run_gang(self, plan: Plan, studies: list[str]) -> set[str]:
        """One launch. Returns the studies that are settled by it, well or badly; never none."""
        # Counted on from earlier supervisors of this run, whose logs stay.
        log = self._run.logs / f"gang-{len(list(self._run.logs.glob('gang-*.log')))}.log"
        tail = _Tail(self._run.measurements_jsonl)
        started_unix_s = time.time()
        try:
            with self._gang(plan, studies, log) as process:
                timed_out = self._watch(process, tail)
        except _NotStarted as error:
            for study in studies:
                self._record(StudyEnd(study, "error", str(error)).as_json())
            return set(studies)
        self._gangs += 1
        seen = _Progress(tail.records)
        if process.returncode == 0 and seen.ended.issuperset(studies):
            return seen.ended
        reports = failure_reports(self._run.logs, started_unix_s)
        self._keep_reports(log.with_suffix(""))
        why = describe(reports, None if timed_out else process.returncode, log, log.with_suffix(""))
        if timed_out:
            why = f"nothing was recorded for {self._limits.inactivity_s:g} s, so the gang was ended. {why}"
        blamed = [seen.current] if seen.current else [s for s in studies if s not in seen.ended]
        self._run.cut_torn_line()
        for study in blamed:
            self._record(StudyEnd(study, "error", why).as_json())
        return seen.ended | set(blamed)

    def _keep_reports(self, folder: Path) -> None:
        """Put failure reports of ranks beside their logs, where the next gang's do not replace them."""
        folder.mkdir(exist_ok=True)
        for report in self._run.logs.glob("rank-*.error.json"):
            report.replace(folder / report.name)

    @contextmanager
    def _gang(self, plan: Plan, studies: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
        command = self._launcher.command(
            GangSpec(
                ranks_per_node=plan.world_size,
                log_dir=log.with_suffix(""),
                worker_arguments=self._worker_arguments(studies),
            )
        )
        gang_id = uuid.uuid4().hex
        environment = worker_environment(os.environ, plan.device_type) | {GANG_VARIABLE: gang_id}
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches us, and we end the gang in order
                )
            except OSError as error:
                raise _NotStarted(command, error) from None
            try:
                yield process
            finally:
                stop_gang(process, gang_id, GRACE_S)

    def _worker_arguments(self, studies: list[str]) -> list[str]:
        arguments = ["--run-dir", str(self._run.path), "--studies", ",".join(studies), "--version", __version__]
        arguments += ["--timeout-s", f"{self._limits.inactivity_s:g}"]
        if self._steering is not None:
            arguments += ["--steered"]
        if self._deadline_unix_s is not None:
            arguments += ["--deadline-unix-s", f"{self._deadline_unix_s:.3f}"]
        return arguments

    def _watch(self, process: subprocess.Popen[bytes], tail: _Tail) -> bool:
        """Pass records on until the gang ends. Returns whether it was given up for inactivity."""
        heard = time.monotonic()
        while True:
            running = process.poll() is None
            fresh = tail.read()
            for record in fresh or [{}]:
                self._hear(record)
            if fresh:
                heard = time.monotonic()
            if not running:
                return False
            if time.monotonic() - heard > self._limits.inactivity_s:
                return True
            time.sleep(POLL_S)

    def _record(self, record: dict[str, Any]) -> None:
        self._run.append_record(record)
        self._hear(record)

    def _hear(self, record: dict[str, Any]) -> None:
        if self._steering is not None:
            self._steering.hear(record)
        self._listener(record)


class _NotStarted(GangError):
    """The launcher could not be started, so that no rank ran."""

    def __init__(self, command: list[str], error: OSError) -> None:
        super().__init__(
            command[0],
            f"could not be started ({error.strerror or error})",
            "a program that this user may run",
            "Check that it is still there, with its virtual environment, and that processes can be started here; "
            # Last, because it is long, and a terminal shows the beginning.
            f"then measure again. The command was: {shlex.join(command)}",
        )


class _Tail:
    """New complete lines of a file that another process appends to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self.records: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """Records appended since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        fresh = [parse_strict_json(line.decode("utf-8")) for line in whole.splitlines()]
        self.records.extend(fresh)
        return fresh


class _Progress:
    """How far a gang came, from its records."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.ended = {record["study"] for record in records if record["kind"] == "study_end"}
        begun = [record["study"] for record in records if record["kind"] == "study_start"]
        self.current = begun[-1] if begun and begun[-1] not in self.ended else None
