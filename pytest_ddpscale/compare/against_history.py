"""A run beside what the site's history has of the same places: GPU by GPU and node by node."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_ddpscale.compare.compared_run import ComparedRun
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.history.baseline import read_baseline
from pytest_ddpscale.history.key_values import KeyValue, key_values_of
from pytest_ddpscale.history.prediction import FEWEST_VALUES
from pytest_ddpscale.history.recording import history_sku, started_at_of
from pytest_ddpscale.history.regression import Compared, Regression, regression_of
from pytest_ddpscale.stats.value_change import ValueChange


@dataclass(frozen=True)
class ValueBesidePast:
    """What a place reached beside the geometric mean of its earlier runs.

    Attributes:
        past: that mean, in the value's unit.
        runs: how many earlier runs it is of.
        ratio: value ÷ past, turned over where a lower value is better: below 1 is slower.
        low: lower limit of the ratio, allowing for the spread of single runs.
        high: upper limit.
    """

    value: KeyValue
    past: float
    runs: int
    ratio: float
    low: float
    high: float

    @property
    def difference(self) -> Literal["faster", "slower", "no difference shown"]:
        """What that comes to."""
        if not ValueChange(self.ratio - 1, self.low - 1, self.high - 1).is_shown:
            return "no difference shown"
        return "slower" if self.ratio < 1 else "faster"


@dataclass(frozen=True)
class RunBesidePast:
    """All values of a run that have a past; the intervals hold together at the confidence.

    Attributes:
        without_past: how many values have too few earlier runs.
        changes: of the software since then, by host.
    """

    run: ComparedRun
    history: str
    confidence: float
    values: tuple[ValueBesidePast, ...]
    without_past: int
    changes: tuple[tuple[str, tuple[str, ...]], ...]

    def slower_by(self, share: float) -> list[ValueBesidePast]:
        """Values that surely are below their past by more than that."""
        return [one for one in self.values if one.difference == "slower" and one.high < 1 - share]


def beside_past(run: ComparedRun, history_file: Path, confidence: float) -> RunBesidePast:
    """What the run reached beside earlier runs of the same places: of its SKU, not rejected, begun before it.

    Raises:
        HistoryError: the history cannot be used.
        OptionError: nothing of the run has enough of a past.
    """
    sku = history_sku(run.record.sku, is_simulated=run.is_simulated)
    baseline = read_baseline(history_file, sku, run.hosts, started_at_of(run.record))
    found: Regression = regression_of(key_values_of(run.evidence), baseline, confidence, run.versions)
    if not found.compared:
        raise OptionError(
            "RUN_DIR", f"{run.path} cannot be compared with {history_file}: none of its values has {FEWEST_VALUES} "
            "earlier runs of the same places", "a run of nodes that the history knows",
        )  # fmt: skip
    return RunBesidePast(
        run, str(history_file), confidence, tuple(map(_value, found.compared)), len(found.without_past),
        tuple(sorted((host, tuple(said)) for host, said in found.changes.items())),
    )  # fmt: skip


def _value(one: Compared) -> ValueBesidePast:
    return ValueBesidePast(one.value, math.exp(one.past.log_mean), one.past.number, one.ratio, *one.interval)
