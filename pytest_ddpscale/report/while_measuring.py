"""What is shown while measuring: lines on the terminal, share done, time left, and the live part of the page."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from pytest_ddpscale.plan.estimate import UNKNOWN, study_times
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.report.words.verdicts import headline_of
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.record_lines import AnyRecord, Idle, Notice, Queued, Unfit
from pytest_ddpscale.run.records import GangRecord, StudyEnd, StudyStart, TrainedEpoch
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.util import document
from pytest_ddpscale.util.document import Line, Table, bullets
from pytest_ddpscale.util.listing import alike, count_text
from pytest_ddpscale.util.printable import as_typed

REFRESH_S = 5
_ENDED = {"budget": "time limit reached after ", "decided": "decided after "}
_MOST_LASTING = 12
_MOST_RANKS = 16  # rows; of more ranks the slowest
_GIB = 2**30


class Progress:
    """Turns records into progress lines as they are written, and into the live part of the page.

    `doing` is what goes on now, `lasting` the latest lines that may not be overwritten.

    Args:
        plan: what is being measured.
        show: called with a line and whether the next line may overwrite it.
        now: clock, in seconds.
        samples_per_s: expected throughput per GPU, by workload name.
        budget_s: limit of the wall time from when the ranks are up; None for no limit.
    """

    def __init__(
        self, plan: Plan, show: Callable[[str, bool], None] = lambda line, passing: None,
        now: Callable[[], float] = time.monotonic, samples_per_s: Mapping[str, float] = UNKNOWN, *,
        budget_s: float | None = None,
    ) -> None:  # fmt: skip
        self._plan, self._show, self._now, self._budget_s = plan, show, now, budget_s
        self._times, self._pending = study_times(plan, samples_per_s), {*plan.study_ids}
        self._study_begun_s = now()
        self._up_s: float | None = None  # when the first gang's ranks were up
        self._study: Study | None = None
        self._current = ""  # id of the study, probes or pairs in progress
        self._round = 0  # begun ones of it
        self._done = 0  # per cent
        self._spent_s = self._planned_s = 0.0  # of training studies that have ended
        self._gang: GangRecord | None = None
        self._block: Block | None = None
        self._last = ""
        self.doing = "starting ranks"
        self.lasting: deque[str] = deque(maxlen=_MOST_LASTING)

    def __call__(self, record: AnyRecord | Notice) -> None:
        """Handle one record or notice."""
        match record:
            case GangRecord():
                self._gang, self._block = record, None
                self._up_s = self._now() if self._up_s is None else self._up_s
                self._say(f"ranks are up: {record.world_size} on torch {record.versions_of(0).get('torch')}")
            case StudyStart():
                self._study, self._current = self._plan.study(record.study), record.study
                self._study_begun_s, self._round = self._now(), 0
                compiles = self._study is not None and self._study.workload.compile
                self._pass(f"{'compiling and ' * compiles}warming up", record.study)
            case Block():
                if self._block is None or len(record.ranks) >= len(self._block.ranks):
                    self._block = record  # the latest of those of the most ranks, so that ranks compare
                self._measured(record)
            case TrainedEpoch():
                self._trained(record)
            case Unfit():
                for message in alike({host: f"{host} is unfit: {why}" for host, why in record.nodes.items()}):
                    self._say(message)
            case StudyEnd():
                self._end(record)
            case Queued():
                self.doing = f"waiting for nodes: {record.state}"
                self._say(self.doing)
            case Idle():
                if not self._current:
                    self._pass("waiting for ranks")

    def _measured(self, block: Block) -> None:
        of_rank_0 = block.each("ranks") == 0
        if self._study is not None and not of_rank_0.any():
            return
        self._round = max(self._round, block.round + 1)
        times, speed = self._times.get(block.study), ""
        if self._study is not None:
            speed = f" {block.per_second[of_rank_0][0]:.0f} {self._study.workload.family.unit}/s per rank"
        most = f"/{times.most}" if times else ""
        self._pass(f"round {self._round}{most}  {block.arm}{speed}", block.study)

    def _trained(self, epoch: TrainedEpoch) -> None:
        run, self._round = self._plan.training_run(epoch.study), epoch.epoch + 1
        if run is not None:
            speed = f"{epoch.samples_per_s:.4g} {run.workload.family.unit}/s"
            figures = f"loss {epoch.mean_loss:.4g}  accuracy {100 * epoch.accuracy:.1f} %"
            self._pass(f"epoch {self._round}/{run.epochs}  {speed}  {figures}", run.id)

    def _end(self, end: StudyEnd) -> None:
        is_current = self._current == end.study
        unit = "rounds" if self._plan.training_run(end.study) is None else "epochs"
        how_far = f"interrupted after {self._round} {unit}" if is_current else "not started"
        if end.reason == "error":
            message = f"ERROR: {headline_of(end.message)}"
        elif end.reason == "interrupted" or not is_current:  # without a message, no time was left for this launch
            message = f"{how_far}: {headline_of(end.message) or 'time limit reached'}"
        else:
            took = "{}:{:02d}".format(*divmod(round(self._now() - self._study_begun_s), 60))
            message = f"{_ENDED.get(end.reason, '')}{self._round} {unit} in {took}"
        self._say(f"{end.study}: {message}")
        self._spent_s, self._planned_s = self._paces_s()
        self._pending.discard(end.study)
        self._study, self._current, self._round = None, "", 0

    def _pass(self, doing: str, name: str = "") -> None:
        """Show a line that may be overwritten: share done, time left, and what is done to whom.

        The name is last, as a narrow terminal cuts what does not fit.
        """
        self.doing, how_far = f"{doing}  {name}".rstrip(), self.how_far()
        self._say(f"[ {how_far} ] {self.doing}" if how_far else self.doing, passing=True)

    def _say(self, line: str, *, passing: bool = False) -> None:
        line = as_typed(line)
        if line != self._last:
            self._last = line
            if not passing:
                self.lasting.append(line)
            self._show(line, passing)

    def _done_s(self) -> float:
        """Planned seconds of what is done of the study, probes or pairs in progress; a begun round is half done."""
        times = self._times.get(self._current)
        return times.seconds(self._round - 0.5) if times and self._round else 0.0

    def _paces_s(self) -> tuple[float, float]:
        """Seconds of training studies so far, as measured and as planned."""
        if self._study is None or not self._round:
            return self._spent_s, self._planned_s
        return self._spent_s + self._now() - self._study_begun_s, self._planned_s + self._done_s()

    def seconds(self) -> tuple[float, float] | None:
        """Seconds left: if each study ends after its fewest rounds, and if all need all rounds; None if unknown.

        Studies take their planned time at the pace of training so far, in the second no less: a study that ran fast
        says little of the next. Starts of ranks are left out.
        """
        if any(run.id in self._pending for run in self._plan.training_runs):
            return None
        spent_s, planned_s = self._paces_s()
        pace, low_s, high_s = spent_s / planned_s if planned_s else 1.0, 0.0, 0.0
        for name in self._pending & self._times.keys():
            time, done_s = self._times[name], self._done_s() if name == self._current else 0.0
            low_s += pace * max(0.0, time.seconds(time.fewest) - done_s)
            high_s += max(1.0, pace) * max(0.0, time.seconds(time.most) - done_s)
        if self._budget_s is not None:
            end_s = max(0.0, self._budget_s - (self._now() - (self._up_s or self._now())))
            low_s, high_s = min(low_s, end_s), min(high_s, end_s)
        return low_s, high_s

    def how_far(self) -> str:
        """``40 %  5 to 12 min left``; empty if it is unknown.

        The share is that of the time since the ranks were up in it and the mean of the time left. It never falls, nor
        reaches 100 %, which would claim that nothing is left.
        """
        left_s, now_s = self.seconds(), self._now()
        if left_s is None:
            return ""
        done_s = now_s - (self._up_s or now_s)
        self._done = max(self._done, min(int(100 * done_s / max(done_s + sum(left_s) / 2, 1.0)), 99))
        return f"{self._done:2d} %  {range_text(*left_s)} left"

    def section(self, written_at: str) -> list[document.Block]:
        """What stands above the headline of the page, with the date and time of writing."""
        how_far = self.how_far()
        done = (how_far.replace("%  ", "% done, "), " ") if how_far else ()
        written = (
            f"Written at {written_at}; this page reloads every {REFRESH_S} s. If the time stops changing, the run was "
            "killed: judge it, or continue it with --ddp-resume."
        )
        doing = Line((*done, self.doing), "live")
        return [doing, *self._ranks(), bullets(self.lasting), Line(written)]

    def _ranks(self) -> Iterator[document.Block]:
        """A table with a row for each rank of the latest block."""
        block, gang = self._block, self._gang
        if block is None or gang is None:
            return
        ranks, study = block.each("ranks"), self._plan.study(block.study)
        per_second = block.per_second if study is not None else np.full(len(ranks), np.nan)
        unit = self._plan.unit or "samples"
        columns = {
            f"{unit}/s": (per_second, ".1f"),
            "Memory, GiB": (block.each("peak_memory_bytes") / _GIB, ".1f"),
            "Utilization, %": (100 * block.each("utilization"), ".0f"),
        }
        rows = []
        for row in np.sort(np.argsort(per_second, kind="stable")[:_MOST_RANKS]).tolist():
            place = gang.ranks[int(ranks[row])].place
            numbers = [
                ABSENT if np.isnan(values[row]) else format(values[row], form) for values, form in columns.values()
            ]
            rows.append([str(ranks[row]), place.host, place.number, *numbers])
        titles = "Rank", "Node", "Device", *columns
        of = "" if len(rows) == len(ranks) else f"; the slowest of {count_text(len(ranks), 'rank')}"
        yield Line(f"Latest block of {block.study}: {block.arm}, round {block.round + 1}{of}")
        yield Table(titles, rows, names=1)


def range_text(low_s: float, high_s: float) -> str:
    """``5 to 12 min``, ``40 to 90 s``, ``up to 3 min``; ``50 s`` if both ends are the same."""
    unit, length_s, step = ("min", 60, 1) if high_s >= 120 else ("s", 1, 10)
    low, high = math.floor(low_s / length_s / step) * step, math.ceil(high_s / length_s / step) * step
    if low <= 0:
        return f"up to {max(high, step)} {unit}"
    return f"{high} {unit}" if low >= 0.9 * high else f"{low} to {high} {unit}"


def load_warning(load: float, cores: int) -> str:
    """Warning about a host's load average before ranks start; empty if the load is at most one per core."""
    if load <= cores:
        return ""
    return f"WARNING: load average {load:.1f} on {cores} cores before measuring starts: values will be too low"


def failed_so_far(judgement: Judgement) -> set[str]:
    """Ids of the requirements that fail; those that are not measured yet do not."""
    blocking = filter(judgement.is_blocked_by, judgement.verdicts)
    return {verdict.id for verdict in blocking if verdict.outcome in ("failed", "error")}
