"""A run compared with the site's history of the same nodes: by requirement, by GPU and by node."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_ddpscale.compare.compared_run import ComparedRun
from pytest_ddpscale.compare.comparing import ComparedRequirement
from pytest_ddpscale.compare.requirements_beside_past import requirements_beside_past
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.history.baseline import missing_gpus, read_baseline
from pytest_ddpscale.history.key_values import KeyValue, key_values_of
from pytest_ddpscale.history.prediction import FEWEST_VALUES
from pytest_ddpscale.history.recording import history_sku, started_at_of
from pytest_ddpscale.history.regression import Compared, Regression, regression_of
from pytest_ddpscale.judge.intervals import ValueChange
from pytest_ddpscale.run.gpu_name import gpu_number


@dataclass(frozen=True)
class ValueBesidePast:
    """Value of a place compared with the geometric mean of its earlier runs.

    Attributes:
        value: the run's value.
        past: the mean, in the value's unit.
        runs: number of earlier runs in the mean.
        ratio: value ÷ past, inverted if a lower value is better: below 1 is slower.
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
    def place(self) -> str:
        """Name of the node or GPU."""
        value = self.value
        if value.gpu_uuid is None:
            return value.host
        return f"{gpu_number(value.gpu_index, None, value.gpu_uuid)} of {value.host}"

    @property
    def name(self) -> str:
        """What was measured, and where."""
        return f"{self.value.what} on {self.place}"

    @property
    def difference(self) -> Literal["faster", "slower", "no difference shown"]:
        """Whether the interval shows a difference."""
        if not ValueChange(self.ratio - 1, self.low - 1, self.high - 1).is_shown:
            return "no difference shown"
        return "slower" if self.ratio < 1 else "faster"


@dataclass(frozen=True)
class RunBesidePast:
    """A run compared with earlier runs of its nodes.

    Attributes:
        confidence: of each requirement's interval alone, and of the intervals of all places together, 0 … 1.
        requirements: each with the mean of earlier runs of exactly these nodes, if there are enough.
        values: of places with enough earlier runs.
        without_past: number of values with too few earlier runs.
        lost: requirements and GPUs with values in earlier runs but not in this one.
        changes: of the software since then, by host.
    """

    run: ComparedRun
    history: str
    confidence: float
    requirements: tuple[ComparedRequirement, ...]
    values: tuple[ValueBesidePast, ...]
    without_past: int
    lost: tuple[str, ...]
    changes: tuple[tuple[str, tuple[str, ...]], ...]

    def worse_by(self, share: float) -> list[str]:
        """Requirements and places that certainly are worse than before by more than `share`."""
        slower = [one for one in self.values if one.difference == "slower" and one.high < 1 - share]
        return [one.id for one in self.requirements if one.is_worse_by(share)] + [one.name for one in slower]


def beside_past(run: ComparedRun, history_file: Path, confidence: float) -> RunBesidePast:
    """Compare a run with earlier runs of the same places: of its SKU, not rejected, started before it.

    Raises:
        HistoryError: the history cannot be used.
        OptionError: no value of the run has enough earlier runs.
    """
    sku = history_sku(run.record.sku, is_simulated=run.is_simulated)
    baseline = read_baseline(history_file, sku, run.hosts, started_at_of(run.record))
    current = key_values_of(run.evidence)
    found: Regression = regression_of(current, baseline, confidence, run.versions)
    of_requirements = requirements_beside_past(run, history_file, current, confidence)
    if not found.compared and not any(one.change for one in of_requirements.requirements):
        raise OptionError(
            "RUN_DIR", f"{run.path} cannot be compared with {history_file}: none of its values has {FEWEST_VALUES} "
            "earlier runs of the same places", "a run of nodes with enough runs in the history",
        )  # fmt: skip
    missing = missing_gpus(baseline.places, [one.series for one in current])
    return RunBesidePast(
        run, str(history_file), confidence, of_requirements.requirements, tuple(map(_value, found.compared)),
        len(found.without_past), (*of_requirements.lost, *(f"GPU {gpu} of {host}" for host, gpu in missing)),
        tuple(sorted((host, tuple(said)) for host, said in found.changes.items())),
    )  # fmt: skip


def _value(one: Compared) -> ValueBesidePast:
    return ValueBesidePast(one.value, math.exp(one.past.log_mean), one.past.number, one.ratio, *one.interval)
