"""Share done and time left of a measurement, from its records."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from pytest_ddpscale.plan.estimate import STARTUP_S, SURVEY_S, UNKNOWN, study_times
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.record_lines import AnyRecord, Notice
from pytest_ddpscale.run.records import GangRecord, StudyEnd, StudyStart

# Unit, its seconds, the step to which times are rounded, and the time from which on it is used.
_UNITS = (("h", 3600, 0.5, 7200), ("min", 60, 1, 120), ("s", 1, 10, 0))


class TimeLeft:
    """How far a plan is.

    The time left is a range, because studies end once they are decided: from the fewest rounds of everything to all
    rounds, at the pace measured so far.

    Args:
        plan: what is being measured.
        samples_per_s: expected throughput per GPU, by workload name.
        isolate: whether each study has a gang of its own.
        budget_s: limit of the wall time from when the ranks are up; None for no limit.
        now: clock, in seconds.
    """

    def __init__(
        self, plan: Plan, samples_per_s: Mapping[str, float] = UNKNOWN, *,
        isolate: bool = False, budget_s: float | None = None, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._plan = plan
        self._times = study_times(plan, samples_per_s)
        self._pending = dict.fromkeys(plan.study_ids)
        self._isolate = isolate
        self._budget_s = budget_s
        self._now = now
        self._up_s: float | None = None  # when the first gang's ranks were up
        self._starts = 0  # gangs that are up or were
        self._startup_s = STARTUP_S
        self._ended_s: float | None = None  # when the latest study ended
        self._current = ""
        self._begun_s = 0.0
        # Of the study's blocks, by their ranks' clock: lines of several blocks arrive together.
        self._first_unix_s = self._last_unix_s = 0.0
        self._round, self._blocks, self._arms = 0, 0, 1
        # Of training studies that have ended, as measured and as planned.
        self._spent_s = self._planned_s = 0.0

    def hear(self, record: AnyRecord | Notice) -> None:
        """Process one record."""
        if isinstance(record, GangRecord):
            self._starts += 1
            if self._ended_s is not None:
                self._startup_s = max(self._startup_s, self._now() - self._ended_s)
            self._up_s = self._now() if self._up_s is None else self._up_s
        elif isinstance(record, StudyStart):
            self._current, self._begun_s = record.study, self._now()
            self._round = self._blocks = 0
            self._arms = next((len(one.arms) for one in self._plan.timed if one.id == record.study), 1)
        elif isinstance(record, Block) and record.study == self._current:
            self._measured(record)
        elif isinstance(record, StudyEnd):
            if record.study == self._current:
                spent_s, planned_s = self._paces()
                self._spent_s, self._planned_s = self._spent_s + spent_s, self._planned_s + planned_s
                self._current = ""
            self._pending.pop(record.study, None)
            self._ended_s = self._now()

    def _measured(self, block: Block) -> None:
        began_unix_s = block.each("began_unix_s")
        if not self._rounds:
            self._first_unix_s = float(began_unix_s.min())
        self._last_unix_s = float((began_unix_s + block.each("seconds")).max())
        if block.round > self._round:
            self._round, self._blocks, self._arms = block.round, 0, self._blocks or self._arms
        self._blocks += not block.turn

    @property
    def _rounds(self) -> float:
        """Rounds of the current study that have been timed; a round in progress counts in parts."""
        return self._round + min(1.0, self._blocks / self._arms)

    def _paces(self) -> tuple[float, float]:
        """Seconds of the current study so far, as measured and as planned, if it trains."""
        found = self._times.get(self._current)
        if found is None or self._plan.study(self._current) is None or not self._rounds:
            return 0.0, 0.0
        return self._now() - self._begun_s, found.seconds(self._rounds)

    @property
    def per_cent(self) -> int | None:
        """Share done, if studies need the usual number of rounds; None if it is unknown."""
        whole_s = sum(one.seconds(one.usual) for one in self._times.values())
        if not whole_s or self._trains_whole_runs:
            return None
        left_s = sum(one.seconds(one.usual) for name, one in self._times.items() if name in self._pending)
        if (own := self._times.get(self._current)) is not None and self._rounds:
            left_s -= own.seconds(min(self._rounds, own.usual))
        return min(max(math.floor(100 * (1 - left_s / whole_s)), 0), 99)  # 100 % would claim that nothing is left

    def seconds(self) -> tuple[float, float] | None:
        """Seconds until the end at the earliest, and if everything needs all rounds; None if they are unknown."""
        if self._trains_whole_runs:
            return None
        spent_s, planned_s = self._paces()
        spent_s, planned_s = self._spent_s + spent_s, self._planned_s + planned_s
        pace = spent_s / planned_s if planned_s else 1.0
        later = [one for name, one in self._times.items() if name in self._pending and name != self._current]
        low_s, high_s = self._own_seconds(pace)
        low_s += pace * sum(one.seconds(one.fewest) for one in later)
        # What is planned is also the least that is expected: a study that ran fast says little of the next.
        high_s += max(1.0, pace) * sum(one.seconds(one.most) for one in later)
        high_s += self._gangs_to_start() * self._startup_s + SURVEY_S * (self._plan.survey and not self._starts)
        if self._budget_s is not None:
            end_s = self._budget_s - (self._now() - self._up_s if self._up_s is not None else 0.0)
            low_s, high_s = min(low_s, max(0.0, end_s)), min(high_s, max(0.0, end_s) + self._round_s(pace))
        return low_s, max(low_s, high_s)

    def _own_seconds(self, pace: float) -> tuple[float, float]:
        """Of the current study."""
        found = self._times.get(self._current)
        if found is None:
            return 0.0, 0.0
        rounds, round_s = self._rounds, self._round_s(pace)
        if not rounds:
            once_s = max(0.0, found.once_s * pace - (self._now() - self._begun_s))
            return once_s + found.fewest * round_s, once_s + found.most * max(1.0, pace) * found.round_s
        least = max(found.fewest, math.ceil(rounds))
        return (least - rounds) * round_s, max(least - rounds, found.most - rounds) * round_s

    def _round_s(self, pace: float) -> float:
        """Seconds of a round of the current study: measured, or expected before its first block."""
        found = self._times.get(self._current)
        if found is None:
            return 0.0
        if not self._rounds:
            return pace * found.round_s
        return (self._last_unix_s - self._first_unix_s) / self._rounds

    def _gangs_to_start(self) -> int:
        named = {self._plan.launch_of(name) for name in self._pending}
        gangs = len(self._pending) if self._isolate else len(named)
        is_up = self._current in self._pending or (self._starts > 0 and not self._isolate and self._plan.launches == 1)
        return gangs - is_up if gangs else 0

    @property
    def _trains_whole_runs(self) -> bool:
        """Whether something is left of which the duration is unknown."""
        return any(run.id in self._pending for run in self._plan.training_runs)

    def text(self) -> str:
        """``5 to 12 min left``; empty if it is unknown."""
        found = self.seconds()
        return "" if found is None else f"{range_text(*found)} left"


def range_text(low_s: float, high_s: float) -> str:
    """``5 to 12 min``, ``40 to 90 s``, ``up to 3 min``; ``3 h`` if both ends are the same."""
    unit, length_s, step, _ = next(one for one in _UNITS if high_s >= one[3])
    low, high = math.floor(low_s / length_s / step) * step, math.ceil(high_s / length_s / step) * step
    if low <= 0:
        return f"up to {max(high, step):g} {unit}"
    return f"{high:g} {unit}" if low >= 0.9 * high else f"{low:g} to {high:g} {unit}"
