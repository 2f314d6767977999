"""Progress while measuring: per cent done, time left, study, round, throughput."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from pytest_ddpscale.plan.estimate import (
    STARTUP_S,
    SURVEY_S,
    TYPICAL_ROUNDS,
    UNKNOWN,
    pairs_seconds,
    probes_seconds,
    round_seconds,
    usual_seconds,
    warm_up_seconds,
)
from pytest_ddpscale.plan.pairing import first_rounds
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.report.text import headline_of
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.record_lines import AnyRecord, Idle, Notice, Queued, Unfit
from pytest_ddpscale.run.records import GangRecord, StudyEnd, StudyStart
from pytest_ddpscale.run.strict_json import each
from pytest_ddpscale.run.training_record import TrainedEpoch

_ENDED = {"budget": "time limit reached after ", "decided": "decided after "}


class Progress:
    """Turns records into progress lines as they are written.

    Args:
        plan: what is being measured.
        show: called with a line and whether the next line may overwrite it.
        now: clock, in seconds.
        samples_per_s: expected throughput per GPU, by workload name.
    """

    def __init__(
        self,
        plan: Plan,
        show: Callable[[str, bool], None],
        now: Callable[[], float] = time.monotonic,
        samples_per_s: Mapping[str, float] = UNKNOWN,
    ) -> None:
        self._plan = plan
        self._planned_s = {study.id: usual_seconds(plan, study, samples_per_s) for study in plan.studies}
        self._usual_rounds: dict[str, int] = {}  # of probes and pairs
        if plan.probes is not None:
            self._planned_s[plan.probes.id] = probes_seconds(plan.probes)
            self._usual_rounds[plan.probes.id] = min(plan.probes.rounds, TYPICAL_ROUNDS)
        if plan.pairs is not None:
            self._planned_s[plan.pairs.id] = pairs_seconds(plan.nodes)
            self._usual_rounds[plan.pairs.id] = len(first_rounds(plan.nodes))
        self._expected_samples_per_s = samples_per_s
        self._show = show
        self._now = now
        self._begun = now()
        self._study: Study | None = None
        self._current = ""  # id of the study, probes or pairs in progress
        self._study_begun = self._begun
        self._round = 0
        self._blocks = 0
        self._spent_s = self._planned_spent_s = 0.0  # of the studies that were completed
        self._settled: set[str] = set()
        self._samples_per_s: dict[str, float] = {}
        self._last = ""
        self._queued_for = ""

    def __call__(self, record: AnyRecord | Notice) -> None:
        """Handle one record or notice."""
        match record:
            case GangRecord():
                torch = each(record.versions, 1)[0].get("torch")
                self._say(f"ranks are up: {record.world_size} on torch {torch}", passing=False)
            case StudyStart():
                self._begin(record.study)
            case Block():
                self._measured(record)
            case TrainedEpoch():
                self._trained(record)
            case Unfit():
                for host, why in record.nodes.items():
                    self._say(f"{host} is unfit: {why}", passing=False)
            case StudyEnd():
                self._end(record)
            case Queued():
                self._queue(record.state)
            case Idle():
                self._wait()

    def _queue(self, state: str) -> None:
        """Report that the scheduler has no nodes for us yet: a lasting line for the reason, a passing one for time."""
        if state != self._queued_for:
            self._queued_for = state
            self._say(f"waiting for nodes: {state}", passing=False)
        else:
            self._say(f"waiting for nodes: {_clock(self._now() - self._begun)}", passing=True)

    def _begin(self, study_id: str) -> None:
        self._study = self._plan.study(study_id)
        self._current = study_id
        self._study_begun = self._now()
        self._round = self._blocks = 0
        self._samples_per_s = {}
        compiles = self._study is not None and self._study.workload.compile
        self._say(f"{study_id}: {'compiling and ' if compiles else ''}warming up", passing=True)

    def _measured(self, block: Block) -> None:
        if self._study is None:
            self._probed(block)
            return
        of_rank_0 = block.each("ranks") == 0
        if not of_rank_0.any():
            return
        self._blocks += 1
        self._samples_per_s[block.arm] = float(block.per_second[of_rank_0][0])
        self._round = max(self._round, block.round + 1)
        speeds = "  ".join(f"{arm} {speed:.0f}" for arm, speed in sorted(self._samples_per_s.items()))
        unit = self._study.workload.family.unit
        self._go_on(f"{self._study.id}: round {self._round}/{self._study.rounds}  {speeds} {unit}/s per rank")

    def _probed(self, block: Block) -> None:
        """Probes and pairs of nodes."""
        self._round = max(self._round, block.round + 1)
        usual = self._usual_rounds.get(block.study)
        if self._plan.probes is not None and block.study == self._plan.probes.id:
            self._go_on(f"probes: round {self._round}/{self._plan.probes.rounds}  {block.arm.partition('@')[0]}")
        elif usual is not None:
            of = f"/{usual}" if self._round <= usual else ", slow pairs again"
            self._go_on(f"pairs of nodes: round {self._round}{of}")

    def _trained(self, epoch: TrainedEpoch) -> None:
        run, self._round = self._plan.training_run(epoch.study), epoch.epoch + 1
        if run is not None:
            unit, loss = run.workload.family.unit, epoch.loss_of_iterations.mean()
            found = f"{epoch.samples_per_s:.4g} {unit}/s  loss {loss:.4g}"
            self._say(
                f"{run.id}: epoch {self._round}/{run.epochs}  {found}  accuracy {epoch.accuracy:.1%}", passing=True
            )

    def _end(self, end: StudyEnd) -> None:
        self._settled.add(end.study)
        seconds = self._now() - self._study_begun
        if end.reason == "error":
            self._say(f"{end.study}: ERROR: {headline_of(end.message)}", passing=False)
        elif end.reason == "interrupted":
            has_begun = self._current == end.study
            how_far = f"interrupted after {self._round} rounds" if has_begun else "not started"
            self._say(f"{end.study}: {how_far}: {headline_of(end.message)}", passing=False)
        elif self._current != end.study:  # no time was left for this launch
            self._say(f"{end.study}: not started: time limit reached", passing=False)
        else:
            if self._study is not None:
                self._spent_s += seconds
                self._planned_spent_s += self._planned_so_far_s()
            why = _ENDED.get(end.reason, "")
            what = "rounds" if self._plan.training_run(end.study) is None else "epochs"
            self._say(f"{end.study}: {why}{self._round} {what} in {_clock(seconds)}", passing=False)
        self._study, self._current = None, ""

    def _wait(self) -> None:
        if not self._current and not self._settled:
            planned_s = STARTUP_S + SURVEY_S * self._plan.survey + sum(self._planned_s.values())
            # The duration of whole training runs is unknown.
            estimated = "" if self._plan.training_runs else f", {_clock(planned_s)} estimated"
            self._say(f"starting ranks{estimated}", passing=True)

    def _planned_so_far_s(self) -> float:
        """Planned seconds of the part of the current study, probes or pairs that has been timed so far."""
        if self._study is None:
            usual = self._usual_rounds.get(self._current)
            return self._planned_s[self._current] * min(1.0, self._round / usual) if usual else 0.0
        expected = self._expected_samples_per_s
        rounds = self._blocks / len(self._study.arms)
        return warm_up_seconds(self._study, expected) + rounds * round_seconds(self._study, self._study.arms, expected)

    def _go_on(self, line: str) -> None:
        """Show the share done, the time left, and `line`."""
        planned_s = self._planned_so_far_s()
        own_s = max(0.0, self._planned_s.get(self._current, 0.0) - planned_s)
        later_s = sum(s for name, s in self._planned_s.items() if name not in self._settled and name != self._current)
        spent_s, timed_s = self._spent_s + self._now() - self._study_begun, self._planned_spent_s + planned_s
        left_s = (own_s + later_s) * (spent_s / timed_s if timed_s else 1.0)  # at the pace so far
        whole_s = sum(self._planned_s.values())
        done = 1 - (own_s + later_s) / whole_s if whole_s else 0.0
        per_cent = min(math.floor(100 * done), 99)  # 100 % would claim that nothing is left
        self._say(f"[ {per_cent:2d} %  {_clock(left_s)} left ] {line}", passing=True)

    def _say(self, line: str, *, passing: bool) -> None:
        if line != self._last:
            self._last = line
            self._show(line, passing)


def load_warning(load: float, cores: int) -> str:
    """Warning about a host's load average before ranks start; empty if the load is at most one per core."""
    if load <= cores:
        return ""
    return f"WARNING: load average {load:.1f} on {cores} cores before measuring starts: values will be too low"


def _clock(seconds: float) -> str:
    """``1:05``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
