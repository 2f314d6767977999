"""Progress lines while measuring: per cent done, time left, study, round, throughput."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from pytest_ddpscale.plan.estimate import UNKNOWN
from pytest_ddpscale.plan.pairing import first_rounds
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.report.text import headline_of
from pytest_ddpscale.report.time_left import TimeLeft
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.record_lines import AnyRecord, Idle, Notice, Queued, Unfit
from pytest_ddpscale.run.records import GangRecord, StudyEnd, StudyStart, TrainedEpoch
from pytest_ddpscale.util.document import shortened

_ENDED = {"budget": "time limit reached after ", "decided": "decided after "}
_SHORTEST_NAME = 8
_MOST_LASTING = 12


class Progress:
    """Turns records into progress lines as they are written.

    `left` is the time left, `doing` what goes on now, `lasting` the latest lines that may not be overwritten.

    Args:
        plan: what is being measured.
        show: called with a line and whether the next line may overwrite it.
        now: clock, in seconds.
        samples_per_s: expected throughput per GPU, by workload name.
        isolate: whether each study has a gang of its own.
        budget_s: limit of the wall time; None for no limit.
        width: returns the characters of a line that may be overwritten, which must fit; None if any length does.
    """

    def __init__(
        self, plan: Plan, show: Callable[[str, bool], None] = lambda line, passing: None,
        now: Callable[[], float] = time.monotonic, samples_per_s: Mapping[str, float] = UNKNOWN, *,
        isolate: bool = False, budget_s: float | None = None, width: Callable[[], int | None] = lambda: None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.left = TimeLeft(plan, samples_per_s, isolate=isolate, budget_s=budget_s, now=now)
        self._show = show
        self._now = now
        self._width = width
        self._begun = now()
        self._study: Study | None = None
        self._current = ""  # id of the study, probes or pairs in progress
        self._study_begun = self._begun
        self._round = 0
        self._has_settled = False
        self._samples_per_s: dict[str, float] = {}
        self._last = ""
        self.doing = "starting ranks"
        self.lasting: deque[str] = deque(maxlen=_MOST_LASTING)
        self._queued_for = ""

    def __call__(self, record: AnyRecord | Notice) -> None:
        """Handle one record or notice."""
        self.left.hear(record)
        match record:
            case GangRecord():
                torch = record.versions_of(0).get("torch")
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
                if not self._current and not self._has_settled:
                    self._pass("", "starting ranks")

    def _queue(self, state: str) -> None:
        """Report that the scheduler has no nodes for us yet: a lasting line for the reason, a passing one for time."""
        self.doing = f"waiting for nodes: {state}"
        if state != self._queued_for:
            self._queued_for = state
            self._say(self.doing, passing=False)
        else:
            self._say(f"waiting for nodes: {_clock(self._now() - self._begun)}", passing=True)

    def _begin(self, study_id: str) -> None:
        self._study = self.plan.study(study_id)
        self._current = study_id
        self._study_begun = self._now()
        self._round = 0
        self._samples_per_s = {}
        compiles = self._study is not None and self._study.workload.compile
        self._pass(study_id, f": {'compiling and ' if compiles else ''}warming up")

    def _measured(self, block: Block) -> None:
        if self._study is None:
            self._probed(block)
            return
        of_rank_0 = block.each("ranks") == 0
        if not of_rank_0.any():
            return
        self._samples_per_s[block.arm] = float(block.per_second[of_rank_0][0])
        self._round = max(self._round, block.round + 1)
        unit = f"{self._study.workload.family.unit}/s per rank"
        how_far = f": round {self._round}/{self._study.rounds}  "
        speeds = "  ".join(f"{arm} {speed:.0f}" for arm, speed in sorted(self._samples_per_s.items()))
        latest = f"{block.arm} {self._samples_per_s[block.arm]:.0f}"
        self._pass(self._study.id, f"{how_far}{speeds} {unit}", f"{how_far}{latest} {unit}")

    def _probed(self, block: Block) -> None:
        """Probes and pairs of nodes."""
        self._round = max(self._round, block.round + 1)
        if self.plan.probes is not None and block.study == self.plan.probes.id:
            self._pass("probes", f": round {self._round}/{self.plan.probes.rounds}  {block.arm.partition('@')[0]}")
        elif self.plan.pairs is not None and block.study == self.plan.pairs.id:
            usual = len(first_rounds(self.plan.nodes))
            of = f"/{usual}" if self._round <= usual else ", slow pairs again"
            self._pass("pairs of nodes", f": round {self._round}{of}")

    def _trained(self, epoch: TrainedEpoch) -> None:
        run, self._round = self.plan.training_run(epoch.study), epoch.epoch + 1
        if run is not None:
            unit, loss = run.workload.family.unit, epoch.mean_loss
            found = f"{epoch.samples_per_s:.4g} {unit}/s  loss {loss:.4g}"
            how_far = f": epoch {self._round}/{run.epochs}  {found}"
            self._pass(run.id, f"{how_far}  accuracy {100 * epoch.accuracy:.1f} %", how_far)

    def _end(self, end: StudyEnd) -> None:
        self._has_settled = True
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
            why = _ENDED.get(end.reason, "")
            what = "rounds" if self.plan.training_run(end.study) is None else "epochs"
            self._say(f"{end.study}: {why}{self._round} {what} in {_clock(seconds)}", passing=False)
        self._study, self._current = None, ""

    def _pass(self, name: str, *rest: str) -> None:
        """Show a line that may be overwritten: share done, time left, a name, and the longest `rest` that fits.

        The name is shortened before anything is cut off.
        """
        per_cent, left = self.left.per_cent, self.left.text()
        head = f"[ {per_cent:2d} %  {left} ] " if left and per_cent is not None else ""
        self.doing, room = f"{name}{rest[0]}", self._width()
        fits = [one for one in rest if room is None or len(head + name + one) <= room]
        line = fits[0] if fits else rest[-1]
        if room is not None:
            name = shortened(name, max(min(_SHORTEST_NAME, len(name)), room - len(head + line)))
        self._say(f"{head}{name}{line}", passing=True)

    def _say(self, line: str, *, passing: bool) -> None:
        if line != self._last:
            self._last = line
            if not passing:
                self.lasting.append(line)
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
