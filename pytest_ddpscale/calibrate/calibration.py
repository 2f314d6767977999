"""From runs of trusted nodes to bounds: which nodes belong, how nodes and launches differ, and the margin they need.

A healthy node may fail its whole run with a chance of at most `false_reject_rate`. Each of the R calibrated
requirements gets rate ÷ R of it (Bonferroni, which holds for any dependence). The bound is the one-sided prediction
bound of one further node in one further launch at that chance (`random_effects.py`), on logarithms if the metric errs
by factors. It is widened by the reach of the judge's confidence interval after all rounds (median
over nodes and launches), because a node passes only if its whole interval meets the bound, and a healthy node should
pass, not merely not fail. So

    bound = mean ∓ (t(1 − rate ÷ R, degrees) · sd + reach)

**Outliers.** The method follows SuperBench (Xiong et al., USENIX ATC 2024), which needs no criterion of health: take
the centre of all nodes, leave out those too different from it, and repeat until none is left out. In SuperBench a node
is too different if its similarity is below 0.95. Here it is an outlier if it is beyond the spread of the remaining
nodes, at the chance `FALSE_EXCLUSIONS`. With few nodes, whose spread is uncertain, it is also an outlier if it is both
`UNLIKE` the others and `FAR` beyond their spread. Differences below `ValueSet.least_gap` never count.

In one set of values, the number of outliers is the largest k such that, of the k values farthest from the median, the
nearest is still beyond the prediction interval of the others. This finds two bad nodes that hide each other by widening
the spread (Rosner 1983, Technometrics 25(2), the generalized ESD test).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_ddpscale.calibrate.node_values import NodeValue, node_values, unfit_nodes, why_no_values
from pytest_ddpscale.calibrate.random_effects import NextValue, next_value
from pytest_ddpscale.calibrate.trusted_runs import FEWEST_LAUNCHES, FEWEST_NODES
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.history.past_run import PastRun
from pytest_ddpscale.judge.stats import t_quantile
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.report.digits import number_text
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
# Chance that any node of a sound cluster is left out, over all nodes and values.
FALSE_EXCLUSIONS = 0.01
FEWEST_OTHERS = 3  # nodes that a node is compared with
UNLIKE = 0.03  # relative to the others
FAR = 6.0  # standard deviations
_DIGITS = 4
_ONE_IN_TWENTY = statistics.NormalDist().inv_cdf(0.95)


@dataclass(frozen=True)
class Measured:
    """A requirement with the values of nodes, by host and launch."""

    case: AnyCase
    values: Mapping[str, Mapping[str, NodeValue]]

    @property
    def errs_by_factors(self) -> bool:
        """Whether the numbers are logarithms."""
        return self.case.requirement.definition.scale == "factors"

    @property
    def numbers(self) -> dict[str, dict[str, float]]:
        """What statistics take, by host and launch."""
        number = math.log if self.errs_by_factors else float
        return {host: {name: number(one.value) for name, one in of.items()} for host, of in self.values.items()}

    def value(self, number: float) -> float:
        """In the metric's unit."""
        return math.exp(number) if self.errs_by_factors else number

    def scale(self, centre: float) -> float:
        """Scale of a relative difference of numbers: 1 for logarithms and shares, else the value."""
        is_share = self.case.requirement.definition.unit == "fraction"
        return 1.0 if self.errs_by_factors or is_share else abs(centre)

    def without(self, nodes: Collection[str]) -> Measured:
        """Of the other nodes."""
        return Measured(self.case, {host: of for host, of in self.values.items() if host not in nodes})


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
class Calibration:
    """Result of a calibration.

    Attributes:
        sku: canonical name.
        rate: highest chance that a healthy node fails its whole run.
        nodes: nodes of the calibration, sorted.
        calibrated: requirements with new bounds, in the order of the file.
        excluded: nodes that were left out, with the reason.
        left: requirements that keep their bounds, by name, with the reason.
        unseen: names of measured requirements on speed that keep a provisional bound, which only warns and may be far
            off.
    """

    sku: str
    rate: float
    nodes: tuple[str, ...]
    calibrated: tuple[CalibratedRequirement, ...]
    excluded: Mapping[str, str]
    left: Mapping[str, str]
    unseen: tuple[str, ...] = ()

    def accepts_by(self, calibrated: CalibratedRequirement) -> bool:
        """Whether the new bound may accept a machine, not only reject it.

        Where the bound was provisional, and other speeds still have only provisional bounds, it may not: a node that
        is slow in one of those would be accepted.
        """
        is_new = calibrated.requirement.provisional and calibrated.requirement.definition.carries_acceptance
        return not (is_new and self.unseen)


def calibrate(
    file: ThresholdsFile, sku: str, runs: Sequence[PastRun], false_reject_rate: float, max_excluded: float, *,
    lowers: bool = False,
) -> Calibration:  # fmt: skip
    """Bounds for the requirements that a single node can decide.

    Args:
        file: thresholds with the SKU.
        sku: canonical name.
        runs: of trusted nodes, on the same software.
        false_reject_rate: highest chance that a healthy node fails its whole run, 0 … 0.5.
        max_excluded: largest share of nodes that may be left out.
        lowers: whether a published bound may become weaker.

    Raises:
        OptionError: too many nodes are outliers, or too few nodes or launches remain.
    """
    every_case = cases_for(file, sku, Layout(1, runs[0].evidence.plan.layout.ranks_per_node))
    cases, left = _answerable(every_case)
    unfit, hosts = dict[str, str](), sorted({host for run in runs for host in run.hosts})
    for run in reversed(runs):  # the first reason counts, of a node that was left out of that run, too
        unfit |= {host: why for host, why in unfit_nodes(every_case, run.evidence).items() if host in hosts}
    excluded = dict(sorted(unfit.items()))
    measured = {case.id: Measured(case, _by_host(case, runs)).without(unfit) for case in cases}
    sets = [value_set for of_one in measured.values() for value_set in _value_sets(of_one)]
    for node, outlier in deviating_nodes(sets, math.floor(max_excluded * (len(hosts) - len(unfit)))).items():
        excluded[node] = _why(measured[outlier.of.name], node, outlier)
    if len(excluded) > max_excluded * len(hosts):
        first, why = next(iter(excluded.items()))
        raise OptionError(
            "RUN_DIR", f"{len(excluded)} of {len(hosts)} nodes are outliers or unfit ({first_few([*excluded], 5)})",
            f"at most {percent(max_excluded)}", f"First: {first}, {why}. Repair or leave them out.",
        )  # fmt: skip
    nodes = tuple(host for host in hosts if host not in excluded)
    if len(nodes) < FEWEST_NODES:
        raise OptionError("RUN_DIR", f"{len(nodes)} nodes remain", f"at least {FEWEST_NODES}")
    kept = [of_case.without(excluded) for of_case in measured.values()]
    spreads = [
        _spread(of_case) if of_case.values else why_no_values(of_case.case, runs[0].evidence) for of_case in kept
    ]
    chance = false_reject_rate / max(1, sum(not isinstance(spread, str) for spread in spreads))
    calibrated, unseen = list[CalibratedRequirement](), list[str]()
    for of_case, spread in zip(kept, spreads, strict=True):
        bounded = spread if isinstance(spread, str) else _bounded(of_case, spread, chance, lowers=lowers)
        requirement = of_case.case.requirement
        if not isinstance(bounded, str):
            calibrated.append(bounded)
            continue
        left[of_case.case.id] = bounded
        unseen += [of_case.case.id] * bool(
            of_case.values and requirement.provisional and requirement.definition.tells_speed
        )
    return Calibration(sku, false_reject_rate, nodes, tuple(calibrated), excluded, left, tuple(unseen))


def _answerable(cases: Sequence[AnyCase]) -> tuple[list[AnyCase], dict[str, str]]:
    """Cases that a single node decides by a varying number, each once, and why the others are left."""
    cases_by_key: dict[object, AnyCase] = {}
    reasons: dict[str, str] = {}
    for case in cases:
        definition = case.requirement.definition
        if definition.subject == "check" or definition.compares_results:
            reasons[case.id] = "exact: there is nothing to calibrate"
        elif definition.subject == "node":
            reasons[case.id] = "depends on each node's own history"
        elif cases_by_key.setdefault(case.requirement.key(), case) is not case:
            reasons[case.id] = "another row requires the same"
    return list(cases_by_key.values()), reasons


def _by_host(case: AnyCase, runs: Sequence[PastRun]) -> dict[str, dict[str, NodeValue]]:
    by_host: dict[str, dict[str, NodeValue]] = {}
    for run in runs:
        for host, value in node_values(case, run.evidence).items():
            if host in run.gpus:
                by_host.setdefault(host, {})[run.path] = value
    return by_host


def _value_sets(measured: Measured) -> Iterator[ValueSet]:
    numbers = measured.numbers
    means = {host: math.fsum(by_launch.values()) / len(by_launch) for host, by_launch in numbers.items()}
    scale = measured.scale(math.fsum(means.values()) / len(means) if means else 0.0)
    least = LEAST_SPREAD * scale, LEAST_GAP * scale, measured.errs_by_factors
    yield ValueSet(measured.case.id, means, *least)
    launches = dict.fromkeys(launch for by_launch in numbers.values() for launch in by_launch)
    for launch in launches if len(launches) > 1 else ():
        in_launch = {host: by_launch[launch] for host, by_launch in numbers.items() if launch in by_launch}
        if len(in_launch) > FEWEST_OTHERS:
            yield ValueSet(measured.case.id, in_launch, *least, launch)


def _why(measured: Measured, node: str, outlier: Outlier) -> str:
    value, centre, case = measured.value(outlier.of.values[node]), measured.value(outlier.centre), measured.case
    worst = max if case.requirement.definition.upper_bound else min
    place = worst(measured.values[node].values(), key=lambda of_launch: of_launch.value).place
    where = f" in {outlier.of.launch}" * bool(outlier.of.launch)
    at = f" ({place})" if place != node else ""
    apart = percent(value / centre - 1, 1, signed=True) if centre else f"{value - centre:+.3g}"
    return (
        f"{case.id}{where}: {number_text(value, case.unit)}{at}, the others {number_text(centre, case.unit)} "
        f"({apart}, {outlier.distance:.1f} times their spread)"
    )


def _spread(measured: Measured) -> NextValue | str:
    """Prediction for a further node, or why there is none."""
    number = len(measured.values)
    repeated = sum(len(of_node) >= FEWEST_LAUNCHES for of_node in measured.values.values())
    if number < FEWEST_NODES:
        return f"measured on {number} nodes; expected at least {FEWEST_NODES}"
    if 2 * repeated < number:
        return (
            f"only {repeated} of {number} nodes had {FEWEST_LAUNCHES} launches, too few for a deviation between "
            "launches; add a run of another day"
        )
    return next_value(measured.numbers)


def _bounded(measured: Measured, spread: NextValue, chance: float, *, lowers: bool) -> CalibratedRequirement | str:
    """The bound with a margin in per cent, rounded away from the value, or why there is none."""
    case, requirement, definition = measured.case, measured.case.requirement, measured.case.requirement.definition
    sign = 1 if definition.upper_bound else -1
    values = [value for by_launch in measured.values.values() for value in by_launch.values()]
    reach = statistics.median(value.reach for value in values)
    least_sd = LEAST_SPREAD * measured.scale(spread.mean)
    exact = measured.value(spread.bound(chance, least_sd, upper=definition.upper_bound) + sign * reach)
    value = float(f"{measured.value(spread.mean):.{_DIGITS}g}")
    if value <= 0:
        return f"the nodes reach {value:g}, so there is no margin in per cent"
    margin_pct = max(0.1, math.ceil(round(sign * (exact / value - 1) * 1000, 6)) / 10)
    if margin_pct > MOST_MARGIN_PCT:
        return f"needs a margin of more than {MOST_MARGIN_PCT:g} %: too few nodes or launches, or too different ones"
    bound = value * (1 + sign * margin_pct / 100)
    least, most = definition.range_at(case.world_size)
    if not (least <= bound < most if definition.upper_bound else least <= bound <= most):
        return f"a bound of {bound:.4g} would judge nothing; expected {least:g} to {most:g}"
    calibrated = CalibratedRequirement(
        requirement, case.id, value, spread.node_sd, spread.launch_sd, reach, margin_pct, bound, len(measured.values),
        len(values) / len(measured.values), case.unit,
    )  # fmt: skip
    if calibrated.is_weaker and not lowers:
        return f"its {bound:.4g} would be weaker than the published {requirement.bound:.4g}; --lower takes it"
    return calibrated


@dataclass(frozen=True)
class ValueSet:
    """Values of nodes in one requirement.

    Attributes:
        name: of the requirement.
        values: one for each node.
        least_sd: least spread assumed.
        least_gap: nodes nearer than this to the others' median are never outliers.
        are_logs: whether differences of the values are relative.
        launch: of the values; empty for means over launches.
    """

    name: str
    values: Mapping[str, float]
    least_sd: float = 0.0
    least_gap: float = 0.0
    are_logs: bool = False
    launch: str = ""


class Outlier(NamedTuple):
    """The values in which a node is farthest from the others, their median, and its distance from their mean.

    The distance is in standard deviations of one more of them.
    """

    of: ValueSet
    centre: float
    distance: float


def deviating_nodes(sets: Sequence[ValueSet], most: int) -> dict[str, Outlier]:
    """Nodes to leave out, in the order in which they were found.

    Args:
        sets: of values; an outlier in any of them is left out of all.
        most: most outliers of one set at a time; the total may be larger.
    """
    number, outliers = max(1, sum(len(value_set.values) for value_set in sets)), dict[str, Outlier]()
    while True:
        more = dict[str, Outlier]()
        for value_set in sets:
            remaining = {node: value for node, value in value_set.values.items() if node not in outliers}
            for node, outlier in _outliers(value_set, remaining, most, FALSE_EXCLUSIONS / number).items():
                if node not in more or outlier.distance > more[node].distance:
                    more[node] = outlier
        if not more:
            return outliers
        outliers |= dict(sorted(more.items(), key=lambda outlier: -outlier[1].distance))


def _outliers(value_set: ValueSet, values: Mapping[str, float], most: int, chance: float) -> dict[str, Outlier]:
    """Outliers of one set, at this chance of leaving out a node that belongs."""
    middle = statistics.median(values.values()) if values else 0.0
    inside_out = sorted(values, key=lambda node: abs(values[node] - middle))
    for number in range(min(most, len(values) - FEWEST_OTHERS), 0, -1):
        core, outside = [values[node] for node in inside_out[:-number]], inside_out[-number:]
        mean, centre, nearest = statistics.fmean(core), statistics.median(core), values[outside[0]]
        sd = max(statistics.stdev(core), value_set.least_sd) * math.sqrt(1 + 1 / len(core))
        outliers = {
            node: Outlier(value_set, centre, abs(values[node] - mean) / sd if sd else math.inf) for node in outside
        }
        gap, reach = abs(nearest - centre), t_quantile(1 - chance / 2, len(core) - 1)
        enough = min(FAR, reach) if value_set.are_logs and gap > UNLIKE else reach
        if gap > value_set.least_gap and outliers[outside[0]].distance > enough:
            return outliers
    return {}
