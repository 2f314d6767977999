"""Results of a sweep of collectives, as rows of nccl-tests' table.

Rows come from the bus bandwidth of each round, by place, like verdicts; if several nodes measured the same at once, the
row is the slowest node's. Algorithm bandwidth and time follow by the definitions of nccl-tests
(github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): algbw = busbw / factor, time = size / algbw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pytest_ddpscale.compare.value_change import Estimate
from pytest_ddpscale.judge.metrics import GIGA
from pytest_ddpscale.judge.values import Values, values_of_probe
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.operation import COLLECTIVES, Operation
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import JudgedPlace
from pytest_ddpscale.suites.pace import geometric_mean_estimate
from pytest_ddpscale.util.arrays import FloatArray

_FP32_BYTES = 4
# For these operations, nccl-tests' `count` column has the elements of one rank, because ranks share the message.
_COUNTED_BY_RANK: tuple[str, ...] = ("all-gather", "reduce-scatter", "all-to-all")
_SUMMING: tuple[str, ...] = ("all-reduce", "reduce-scatter", "reduce")
_ROOTED: tuple[str, ...] = ("broadcast", "reduce")
_NO_ROOT = -1


@dataclass(frozen=True)
class CollectiveRow:
    """One operation with one message size and number of ranks.

    Attributes:
        probe: the probe that measured it.
        size_bytes: of the message, as `Operation` counts it; rounded down to whole elements for each rank.
        busbw_gbps: bus bandwidth of the slowest place, geometric mean over the rounds, in 10⁹ bytes per second; None if
            it was not measured.
        interval: Student-t interval of `busbw_gbps` over the rounds, whose number is fixed; None for a single round.
        place: the slowest place.
        measured_places: number of groups of ranks that measured it at once: one, or one per node.
        expected_places: number of groups that should have measured it.
        rounds: of the slowest place.
        wrong: results that differ from the known ones, over all ranks and rounds.
        checked: results that were checked.
        why_not: why there is no value; empty if there is one.
    """

    probe: Arm
    size_bytes: int
    expected_places: int
    busbw_gbps: float | None = None
    interval: tuple[float, float] | None = None
    place: JudgedPlace | None = None
    measured_places: int = 0
    rounds: int = 0
    wrong: int = 0
    checked: int = 0
    why_not: str = ""

    @property
    def operation(self) -> Operation:
        """The collective and its message size."""
        return self.probe.operation

    @property
    def algbw_gbps(self) -> float | None:
        """Algorithm bandwidth, size over time, in 10⁹ bytes per second."""
        return None if self.busbw_gbps is None else self.busbw_gbps / self._bus_factor

    @property
    def time_us(self) -> float | None:
        """Time of one operation, in microseconds."""
        return None if self.algbw_gbps is None else self._time_us(self.algbw_gbps)

    @property
    def time_interval_us(self) -> tuple[float, float] | None:
        """Interval of `time_us`, from the interval of the bandwidth."""
        if self.interval is None:
            return None
        low, high = (self._time_us(end / self._bus_factor) for end in reversed(self.interval))
        return low, high

    @property
    def relative_reach(self) -> float | None:
        """Half the interval's width, relative to the value."""
        if self.interval is None or self.busbw_gbps is None:
            return None
        return (self.interval[1] - self.interval[0]) / (2 * self.busbw_gbps)

    @property
    def count(self) -> int:
        """Number of elements, as nccl-tests counts them."""
        of_all = self.size_bytes // _FP32_BYTES
        return of_all // self.probe.world_size if self.operation.kind in _COUNTED_BY_RANK else of_all

    @property
    def redop(self) -> str:
        """``sum`` or ``none``."""
        return "sum" if self.operation.kind in _SUMMING else "none"

    @property
    def root(self) -> int:
        """Rank in the group that sends or receives everything; -1 without one."""
        return 0 if self.operation.kind in _ROOTED else _NO_ROOT

    @property
    def _bus_factor(self) -> float:
        return self.operation.bus_factor(self.probe.world_size)

    def _time_us(self, algbw_gbps: float) -> float:
        return self.size_bytes / (algbw_gbps * GIGA) * 1e6


def collective_rows(evidence: Evidence, confidence: float) -> list[CollectiveRow]:
    """One row for each planned collective, in the plan's order.

    Args:
        evidence: of a plan with probes.
        confidence: of the intervals, 0 … 1.
    """
    study = evidence.plan.probes
    probes = () if study is None else study.arms
    return [_row(probe, evidence, confidence) for probe in probes if probe.operation.kind in COLLECTIVES]


def _row(probe: Arm, evidence: Evidence, confidence: float) -> CollectiveRow:
    layout = evidence.plan.layout
    expected = len(layout.groups_of_round(probe))
    probed = evidence.probed(probe)
    found = _of_sweep(values_of_probe(probe, evidence), evidence)
    if probed is None or not found:
        return CollectiveRow(probe, probe.operation.message_bytes or 0, expected, why_not=_why_not(probe, evidence))
    place, estimate = _slowest(found, confidence)
    return CollectiveRow(
        probe, int(np.nanmax(probed.work)), expected, estimate.value,
        None if math.isnan(estimate.interval[0]) else estimate.interval,
        place, len(found), len(found[place]), int(probed.wrong.sum()), int(probed.present.sum()),
    )  # fmt: skip


def _of_sweep(found: Values[JudgedPlace], evidence: Evidence) -> dict[JudgedPlace, FloatArray]:
    """Values without rounds added to decide a bound: intervals with such optional stopping would be too narrow."""
    study = evidence.plan.probes
    assert study is not None  # it has the probe
    first = found.numbers < (study.swept_rounds or study.rounds)
    return dict(replace(found, numbers=found.numbers[first], samples=found.samples[:, first]).items())


def _slowest(found: Mapping[JudgedPlace, FloatArray], confidence: float) -> tuple[JudgedPlace, Estimate]:
    estimates = {place: _estimate(values, confidence) for place, values in found.items()}
    return min(estimates.items(), key=lambda one: (one[1].value, one[0].ranks))


def _estimate(values: FloatArray, confidence: float) -> Estimate:
    if len(values) == 1:
        return Estimate(float(values[0]), (math.nan, math.nan))
    return geometric_mean_estimate(values.tolist(), confidence)


def _why_not(probe: Arm, evidence: Evidence) -> str:
    study = evidence.plan.probes
    assert study is not None  # it has the probe
    for reasons, key in (
        (evidence.unsupported, probe.name),
        (evidence.errors, study.id),
        (evidence.interrupted, study.id),
    ):
        if key in reasons:
            return say(reasons[key])
    return "no complete round"
