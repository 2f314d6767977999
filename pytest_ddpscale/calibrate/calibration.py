"""From runs of trusted nodes to bounds: which nodes belong, how nodes and launches differ, and the margin they need.

A healthy node may fail its whole run with a chance of at most `false_reject_rate`. Each of the R calibrated
requirements gets rate ÷ R of it (Bonferroni, which holds for any dependence). The bound is the one-sided prediction
bound of one further node in one further launch at that chance (`random_effects.py`), on logarithms if the metric errs
by factors. It is widened by the reach of the judge's confidence interval after all rounds (median
over nodes and launches), because a node passes only if its whole interval meets the bound, and a healthy node should
pass, not merely not fail. So

    bound = mean ∓ (t(1 − rate ÷ R, degrees) · sd + reach)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_ddpscale.calibrate.excluding import FEWEST_OTHERS, Deviation, ValueSet, deviating_nodes
from pytest_ddpscale.calibrate.node_values import NodeValue, node_values, unfit_nodes, why_no_values
from pytest_ddpscale.calibrate.random_effects import NextValue, next_value
from pytest_ddpscale.calibrate.trusted_runs import FEWEST_LAUNCHES, FEWEST_NODES, TrustedRun
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.thresholds.cases import AnyCase, cases_for
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Requirement
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few

# A wider margin would pass clearly slow nodes: there are too few nodes or launches, or they differ too much.
MOST_MARGIN_PCT = 10.0
# Least spread assumed; relative, for shares in points. As in `pytest_ddpscale.history.prediction`.
LEAST_SPREAD = 0.001
# Likewise: nodes that differ by less are alike, however steady they are.
LEAST_GAP = 0.01
_DIGITS = 4
_ONE_IN_TWENTY = statistics.NormalDist().inv_cdf(0.95)

ByLaunch = Mapping[str, Mapping[str, NodeValue]]  # by host, then by launch


@dataclass(frozen=True)
class CalibratedRequirement:
    """A requirement with a bound of the site.

    Attributes:
        requirement: the row of thresholds.yaml, with its old bound.
        name: ``throughput_per_gpu[resnet152-bf16-1gpu]``.
        value: mean of the nodes that belong, in the metric's unit, rounded.
        node_sd: standard deviation between nodes; relative if the metric errs by factors, else in its unit.
        launch_sd: standard deviation of one node between launches, likewise.
        reach: distance from the judge's estimate to the end of its confidence interval, likewise.
        margin_pct: from `value` to `bound`, in per cent of `value`.
        bound: in the metric's unit.
        nodes: number of nodes behind the bound.
        launches: mean number of launches of each node.
        unit: of value and bounds.
    """

    requirement: Requirement
    name: str
    value: float
    node_sd: float
    launch_sd: float
    reach: float
    margin_pct: float
    bound: float
    nodes: int
    launches: float
    unit: str

    @property
    def found_from_pct(self) -> float:
        """The loss in per cent of `value` at which 19 of 20 nodes fail, because their whole interval misses."""
        definition = self.requirement.definition
        beyond = self.reach + _ONE_IN_TWENTY * math.hypot(self.node_sd, self.launch_sd)
        if definition.scale == "differences":
            return self.margin_pct + 100 * beyond / self.value
        lost = math.exp(beyond if definition.upper_bound else -beyond) * self.bound / self.value
        return 100 * abs(lost - 1)

    @property
    def is_weaker(self) -> bool:
        """Whether the bound is weaker than a published one."""
        old, upper = self.requirement.bound, self.requirement.definition.upper_bound
        return not self.requirement.provisional and (self.bound > old if upper else self.bound < old)


@dataclass(frozen=True)
class ExcludedNode:
    """A node that was left out, with the reason and, for an outlier, its deviation."""

    node: str
    reason: str
    deviation: Deviation | None = None


@dataclass(frozen=True)
class Calibration:
    """Result of a calibration.

    Attributes:
        sku: canonical name.
        rate: highest chance that a healthy node fails its whole run.
        nodes: nodes of the calibration, sorted.
        calibrated: requirements with new bounds, in the order of the file.
        excluded: nodes that were left out.
        left: requirements that keep their bounds, by name, with the reason.
        unseen: names of measured requirements on speed that keep a provisional bound.
    """

    sku: str
    rate: float
    nodes: tuple[str, ...]
    calibrated: tuple[CalibratedRequirement, ...]
    excluded: tuple[ExcludedNode, ...]
    left: Mapping[str, str] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()

    def accepts_by(self, one: CalibratedRequirement) -> bool:
        """Whether the new bound may accept a machine, not only reject it.

        Where the bound was provisional, and other speeds still have only provisional bounds, it may not: a node that
        is slow in one of those would be accepted.
        """
        is_new = one.requirement.provisional and one.requirement.definition.carries_acceptance
        return not (is_new and self.unseen)


def calibrate(
    file: ThresholdsFile,
    sku: str,
    runs: Sequence[TrustedRun],
    false_reject_rate: float,
    max_excluded: float,
) -> Calibration:
    """Bounds for the requirements that a single node can decide.

    Args:
        file: thresholds with the SKU.
        sku: canonical name.
        runs: of trusted nodes, on the same software.
        false_reject_rate: highest chance that a healthy node fails its whole run, 0 … 0.5.
        max_excluded: largest share of nodes that may be left out.

    Raises:
        OptionError: too many nodes are outliers, or too few nodes or launches remain.
    """
    layout = Layout(1, runs[0].evidence.plan.layout.ranks_per_node)
    every_case = cases_for(file, sku, layout)
    cases, reasons = _answerable(every_case)
    unfit = _unfit(every_case, runs)
    values = {case.id: _by_host(case, runs, unfit) for case in cases}
    hosts = sorted({host for run in runs for host in run.hosts})
    excluded = [ExcludedNode(host, why) for host, why in sorted(unfit.items())]
    excluded += excluded_nodes(cases, values, [host for host in hosts if host not in unfit], max_excluded)
    _refuse_too_many(excluded, hosts, max_excluded)
    gone = {one.node for one in excluded}
    kept = {
        case.id: {host: by_launch for host, by_launch in values[case.id].items() if host not in gone} for case in cases
    }
    spreads: dict[str, NextValue] = {}
    for case in cases:
        spread = _spread(case, kept[case.id])
        if isinstance(spread, NextValue):
            spreads[case.id] = spread
        else:
            reasons[case.id] = spread if kept[case.id] else why_no_values(case, runs[0].evidence)
    calibrated: list[CalibratedRequirement] = []
    for case in cases:
        if case.id in spreads:
            chance = false_reject_rate / len(spreads)
            bounded = _bounded(case, spreads[case.id], kept[case.id], chance)
            if isinstance(bounded, CalibratedRequirement):
                calibrated.append(bounded)
            else:
                reasons[case.id] = bounded
    remaining = tuple(host for host in hosts if host not in gone)
    return Calibration(
        sku, false_reject_rate, remaining, tuple(calibrated), tuple(excluded), reasons,
        _unseen(cases, kept, calibrated),
    )  # fmt: skip


def _unseen(
    cases: Sequence[AnyCase], measured: Mapping[str, ByLaunch], calibrated: Sequence[CalibratedRequirement]
) -> tuple[str, ...]:
    """Measured requirements on speed that keep a provisional bound, which only warns and may be far off."""
    bounded = {one.name for one in calibrated}
    return tuple(
        case.id
        for case in cases
        if case.requirement.provisional and case.requirement.definition.tells_speed
        if measured[case.id] and case.id not in bounded
    )


def _answerable(cases: Sequence[AnyCase]) -> tuple[list[AnyCase], dict[str, str]]:
    """Cases that a single node decides by a varying number, each once, and why the others are left."""
    found: dict[object, AnyCase] = {}
    reasons: dict[str, str] = {}
    for case in cases:
        definition = case.requirement.definition
        if definition.subject == "check" or definition.compares_results:
            reasons[case.id] = "exact: there is nothing to calibrate"
        elif definition.subject == "node":
            reasons[case.id] = "depends on each node's own history"
        elif case.requirement.key() in found:
            reasons[case.id] = "another row requires the same"
        else:
            found[case.requirement.key()] = case
    return list(found.values()), reasons


def _unfit(cases: Sequence[AnyCase], runs: Sequence[TrustedRun]) -> dict[str, str]:
    found: dict[str, str] = {}
    for run in runs:
        for host, why in unfit_nodes(cases, run.evidence).items():
            found.setdefault(host, why)
    return found


def _by_host(case: AnyCase, runs: Sequence[TrustedRun], unfit: Mapping[str, str]) -> dict[str, dict[str, NodeValue]]:
    found: dict[str, dict[str, NodeValue]] = {}
    for run in runs:
        for host, value in node_values(case, run.evidence).items():
            if host in run.gpus and host not in unfit:
                found.setdefault(host, {})[run.name] = value
    return found


def _errs_by_factors(case: AnyCase) -> bool:
    return case.requirement.definition.scale == "factors"


def _transformed(case: AnyCase, value: float) -> float:
    return math.log(value) if _errs_by_factors(case) else value


def _least_sd(case: AnyCase, centre: float) -> float:
    """Least spread assumed, in transformed values."""
    return LEAST_SPREAD * _scale_of(case, centre)


def _least_gap(case: AnyCase, centre: float) -> float:
    """Least distance between nodes that can make one an outlier, in transformed values."""
    return LEAST_GAP * _scale_of(case, centre)


def _scale_of(case: AnyCase, centre: float) -> float:
    """Scale of a relative difference: 1 for logarithms and shares, else the value."""
    is_share = case.requirement.definition.unit == "fraction"
    return 1.0 if _errs_by_factors(case) or is_share else abs(centre)


def excluded_nodes(
    cases: Sequence[AnyCase], values: Mapping[str, ByLaunch], hosts: Sequence[str], max_excluded: float
) -> list[ExcludedNode]:
    """Outliers, in the mean over launches or in one launch with enough other nodes.

    Args:
        cases: requirements.
        values: of each requirement, by its name.
        hosts: all nodes.
        max_excluded: largest share of nodes that may be left out of one set of values at a time.
    """
    sets: list[ValueSet] = []
    of_case = {case.id: case for case in cases}
    for case in cases:
        logs = {
            host: {launch: _transformed(case, one.value) for launch, one in by_launch.items()}
            for host, by_launch in values[case.id].items()
        }
        means = {host: math.fsum(by_launch.values()) / len(by_launch) for host, by_launch in logs.items()}
        centre = math.fsum(means.values()) / len(means) if means else 0.0
        least = _least_sd(case, centre), _least_gap(case, centre), _errs_by_factors(case)
        sets.append(ValueSet(case.id, means, *least))
        launches = dict.fromkeys(launch for by_launch in logs.values() for launch in by_launch)
        for launch in launches if len(launches) > 1 else ():
            in_launch = {host: by_launch[launch] for host, by_launch in logs.items() if launch in by_launch}
            if len(in_launch) > FEWEST_OTHERS:
                sets.append(ValueSet(case.id, in_launch, *least, launch))
    found = []
    for deviation in deviating_nodes(sets, math.floor(max_excluded * len(hosts))):
        case = of_case[deviation.name]
        found.append(ExcludedNode(deviation.node, _why(case, deviation, values[case.id][deviation.node]), deviation))
    return found


def _why(case: AnyCase, deviation: Deviation, of_node: Mapping[str, NodeValue]) -> str:
    definition, back = case.requirement.definition, math.exp if _errs_by_factors(case) else float
    value, centre = back(deviation.value), back(deviation.centre)
    unit = "" if case.unit in ("fraction", "x") else f" {case.unit}"
    in_launch = f" in {deviation.launch}" if deviation.launch else ""
    worst = max if definition.upper_bound else min
    place = worst(of_node.values(), key=lambda one: one.value).place
    at = f" ({place})" if place != deviation.node else ""
    apart = percent(value / centre - 1, 1, signed=True) if centre else f"{value - centre:+.3g}"
    return (
        f"{case.id}{in_launch}: {value:.4g}{unit}{at}, the others {centre:.4g} ({apart}, "
        f"{deviation.distance:.1f} times their spread)"
    )


def _refuse_too_many(excluded: Sequence[ExcludedNode], hosts: Sequence[str], max_excluded: float) -> None:
    if len(excluded) > max_excluded * len(hosts):
        names = first_few([one.node for one in excluded], 5)
        raise OptionError(
            "RUN_DIR", f"{len(excluded)} of {len(hosts)} nodes are outliers or unfit ({names})",
            f"at most {percent(max_excluded)}",
            f"First: {excluded[0].node}, {excluded[0].reason}. Repair or leave them out.",
        )  # fmt: skip
    left = len(hosts) - len(excluded)
    if left < FEWEST_NODES:
        raise OptionError("RUN_DIR", f"{left} nodes remain", f"at least {FEWEST_NODES}")


def _spread(case: AnyCase, kept: ByLaunch) -> NextValue | str:
    """Prediction for a further node, or why there is none."""
    if len(kept) < FEWEST_NODES:
        return f"measured on {len(kept)} nodes; expected at least {FEWEST_NODES}"
    logs = {
        host: {launch: _transformed(case, one.value) for launch, one in by_launch.items()}
        for host, by_launch in kept.items()
    }
    repeated = sum(len(by_launch) >= FEWEST_LAUNCHES for by_launch in logs.values())
    if 2 * repeated < len(logs):
        return (
            f"only {repeated} of {len(logs)} nodes had {FEWEST_LAUNCHES} launches, too few for a deviation between "
            "launches; add a run of another day"
        )
    return next_value(logs)


def _reach(kept: ByLaunch) -> float:
    """Half a confidence interval of the judge, the median over nodes and launches."""
    return statistics.median(one.reach for by_launch in kept.values() for one in by_launch.values())


def _bounded(case: AnyCase, spread: NextValue, kept: ByLaunch, chance: float) -> CalibratedRequirement | str:
    """The bound with a margin in per cent, rounded away from the value, or why there is none."""
    requirement, definition = case.requirement, case.requirement.definition
    back = math.exp if _errs_by_factors(case) else float
    sign = 1 if definition.upper_bound else -1
    reach = _reach(kept)
    predicted = spread.bound(chance, _least_sd(case, spread.mean), upper=definition.upper_bound)
    exact = back(predicted + sign * reach)
    value = float(f"{back(spread.mean):.{_DIGITS}g}")
    if value <= 0:
        return f"the nodes reach {value:g}, so there is no margin in per cent"
    margin_pct = max(0.1, math.ceil(round(sign * (exact / value - 1) * 1000, 6)) / 10)
    if margin_pct > MOST_MARGIN_PCT:
        return f"needs a margin of more than {MOST_MARGIN_PCT:g} %: too few nodes or launches, or too different ones"
    bound = value * (1 + sign * margin_pct / 100)
    least, most = definition.range_at(case.world_size)
    if not (least <= bound < most if definition.upper_bound else least <= bound <= most):
        return f"a bound of {bound:.4g} would judge nothing; expected {least:g} to {most:g}"
    launches = sum(map(len, kept.values())) / len(kept)
    sds = spread.node_sd, spread.launch_sd, reach
    return CalibratedRequirement(requirement, case.id, value, *sds, margin_pct, bound, len(kept), launches, case.unit)
