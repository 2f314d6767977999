"""How training scales: one number for each quantity and world size, for figures, tables and `ddpscale scaling`.

The number is the verdict's where a requirement judged it; elsewhere it is estimated as the judge would.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.metrics import merged
from pytest_ddpscale.judge.values import worst_value
from pytest_ddpscale.plan.arm import USUAL, Arm, OneGpu
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import (
    STRONG_SCALING_EFFICIENCY,
    STRONG_SCALING_SPEEDUP,
    THROUGHPUT_PER_GPU,
    WEAK_SCALING_EFFICIENCY,
    Metric,
)
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Scaling, Study
from pytest_ddpscale.report.charts import Curve, Point
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import WATERMARK
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.run.verdicts import Verdict, read_judged
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Section, Table, bullets, table, text_lines
from pytest_ddpscale.util.listing import count_text

SATURATED_GAIN = 0.05  # a doubling that saves a smaller share of the time is not worth it
GOOD_EFFICIENCY = 0.9
IMAGENET = 1.28e6  # images of one epoch
_CONFIDENCE = 0.95  # without verdicts: a session's default
_ABSENT = "-"
_WORST_NODE = "worst node"


@dataclass(frozen=True)
class Quantity:
    """The quantity that one figure shows for each study.

    Attributes:
        title: ``{device}`` is GPU or rank.
        metric: verdicts on it give the values of studies of its kind of scaling; of others, all are estimated.
    """

    file: str
    title: str
    metric: Metric


THROUGHPUT = Quantity("throughput", "throughput per {device}", THROUGHPUT_PER_GPU)
EFFICIENCY = Quantity("efficiency", "efficiency against one {device}", WEAK_SCALING_EFFICIENCY)
SPEEDUP = Quantity("speedup", "speed-up over one {device}", STRONG_SCALING_SPEEDUP)
PLOTS: tuple[tuple[Scaling, Quantity], ...] = (
    ("weak", THROUGHPUT), ("weak", EFFICIENCY), ("strong", THROUGHPUT), ("strong", SPEEDUP),
)  # fmt: skip


def scaling_curve(study: Study, quantity: Quantity, evidence: Evidence, verdicts: Sequence[Verdict]) -> Curve:
    """The curve of one study with packed ranks, in the metric's unit, by ascending world size.

    It is named after the workload, and has no points if nothing was measured.
    """
    metric, arms = replace(quantity.metric, scaling=study.scaling), usual_arms(study)
    judged = [
        one for one in map(_as_speedup, verdicts)
        if one.metric == metric.name and metric.scaling == quantity.metric.scaling
        and one.workload == study.workload.name and one.placement == "packed"
    ]  # fmt: skip
    confidence = verdicts[0].confidence if verdicts else _CONFIDENCE
    of_one = {arm.kind for arm in arms if arm.world_size == 1}
    others = [one for one in verdicts if one.workload == study.workload.name and one.one_gpu in of_one]
    ways = (one.one_gpu for one in (*judged, *others) if one.one_gpu)
    one_gpu: OneGpu = next(ways, "ddp" if "ddp" in of_one else "alone")
    points = []
    for size in sorted({arm.world_size for arm in arms}):
        question = Question(metric, study.workload, size, one_gpu=one_gpu)
        of_size = [one for one in judged if one.world_size == size]
        # Other quantities than throughput begin at several ranks, unless somebody asks for one.
        is_shown = size > 1 or quantity is THROUGHPUT or of_size
        if not is_shown or not all((study.id, arm.name) in evidence.columns.arms for arm in question.arms):
            continue
        valued = [one for one in of_size if one.value is not None and math.isfinite(one.value)]
        # A failed one, then the one nearest to its bound.
        worst = min(valued, key=lambda one: (one.outcome != "failed", one.margin or 0.0), default=None)
        found = worst or worst_value(question, evidence, confidence)
        if found is not None and found.value is not None:
            is_failed = isinstance(found, Verdict) and found.outcome == "failed"
            nodes = _nodes(size, evidence.plan.layout)
            note = f"{nodes} ({found.place})" if nodes and found.place else nodes
            points.append(Point(size, found.value, found.interval, is_failed, nodes == _WORST_NODE, note))
    bounds = [Point(one.world_size, one.bound_value) for one in judged]
    return Curve(study.workload.name, points, bounds)


def usual_arms(study: Study) -> list[Arm]:
    """The arms of its curves: packed, as the workload says, one rank alone or several under DDP."""
    arms = [
        arm for arm in study.arms
        if arm.placement == "packed" and arm.kind in ("alone", "ddp") and arm.variant == USUAL
    ]  # fmt: skip
    if study.scaling == "weak":
        return arms
    return [arm for arm in arms if arm.world_size * arm.batch_size == study.workload.global_batch_size]


def _as_speedup(verdict: Verdict) -> Verdict:
    """A verdict on efficiency at a fixed batch as one on speed-up; others as they are."""
    if verdict.metric != STRONG_SCALING_EFFICIENCY.name:
        return verdict
    size, interval = verdict.world_size, verdict.interval
    return replace(
        verdict,
        metric=STRONG_SCALING_SPEEDUP.name,
        bound={key: bound * size for key, bound in verdict.bound.items()},
        value=None if verdict.value is None else verdict.value * size,
        interval=interval and (interval[0] * size, interval[1] * size),
    )


def _nodes(world_size: int, layout: Layout) -> str:
    """The nodes of a value; empty if it is of all."""
    if layout.nodes > 1 and world_size <= layout.ranks_per_node:
        return _WORST_NODE
    nodes = -(-world_size // layout.ranks_per_node)
    return f"first {nodes} of {layout.nodes} nodes" if nodes < layout.nodes else ""


@dataclass(frozen=True)
class MeasuredSize:
    """One world size.

    Attributes:
        gpus: ranks that trained together.
        samples_per_s: of all ranks together, at the slowest rank's pace.
        energy_j_per_sample: mean of the GPUs; None if any rank's is unknown.
        efficiency: judged or estimated round by round; None to take that of the `samples_per_s`.
        nodes: of the values, ``worst node (n3)``; empty if they are of all.
    """

    gpus: int
    samples_per_s: float
    energy_j_per_sample: float | None = None
    efficiency: float | None = None
    nodes: str = ""


@dataclass(frozen=True)
class ScalingSeries:
    """One study and the facts of its sizes, ascending.

    Attributes:
        study: ``weak/resnet50-fp16``.
        unit: of the samples, ``img``.
        device: GPU or rank.
    """

    study: str
    facts: Sequence[ScalingFact]
    unit: str
    device: str

    def table(self, costs: Sequence[str]) -> Table:
        """Its facts; `costs` are the titles of both costs."""
        rate = f"{self.unit}/s"
        titles = (
            f"{self.device}s",
            rate,
            "speed-up",
            "efficiency",
            "gain",
            "time",
            "saved",
            *costs,
            "nodes",
        )
        return table(titles, map(_cells, self.facts), of_numbers=True, names=0)

    def lines(self, spots: Mapping[str, int | None]) -> list[str]:
        """What the facts are relative to, and what follows for choosing a size."""
        said = {
            "deadline": "sweet spot for deadline: {}",
            "efficiency": "sweet spot for efficiency of 90 %: {}",
            "gpu_cost": f"sweet spot for {self.device}-hours: {{}}",
            "energy_cost": "sweet spot for energy: {}",
            "saturation": f"saturated at {{}}: a doubling saves less than {percent(SATURATED_GAIN)} of the time",
            "relative": f"one {self.device} was not measured: relative to {{}}",
        }
        least = self.facts[0].gpus
        found = {"relative": least if least > 1 else None, **spots}
        return [said[aim].format(count_text(gpus, self.device)) for aim, gpus in found.items() if gpus is not None]


def scaling_series(evidence: Evidence, verdicts: Sequence[Verdict], job: TrainingJob) -> list[ScalingSeries]:
    """A series for each study with a measured round, in the plan's order, with the numbers of `scaling_curve`."""
    plan, found = evidence.plan, []
    for study in plan.studies:
        compared = EFFICIENCY if study.scaling == "weak" else SPEEDUP
        relative = {one.x: one.value for one in scaling_curve(study, compared, evidence, verdicts).points}
        energy_j = {arm.world_size: energy_j_per_sample(merged(evidence.columns, study.id, arm, plan.layout))
                    for arm in usual_arms(study)}  # fmt: skip
        sizes = []
        for one in scaling_curve(study, THROUGHPUT, evidence, verdicts).points:
            size, efficiency = int(one.x), relative.get(one.x)
            if efficiency is not None and compared is SPEEDUP:
                efficiency /= size
            sizes.append(MeasuredSize(size, size * one.value, energy_j[size], efficiency, one.note))
        if sizes:
            name, unit = f"{study.scaling}/{study.workload.name}", study.workload.family.unit
            found.append(ScalingSeries(name, scaling_facts(sizes, job), unit, plan.device))
    return found


def energy_j_per_sample(groups: ArmRounds) -> float | None:
    """Joules per image over all blocks of an arm; None if unknown."""
    cells = groups.present
    energy = float(groups.reading("energy_j")[cells].sum())
    images = float((groups.work * groups.count)[cells].sum())
    return energy / images if math.isfinite(energy) and energy > 0 else None


@dataclass(frozen=True)
class TrainingJob:
    """A training job: images (above 0), seconds that more GPUs do not shorten, and prices or None."""

    images: float
    fixed_s: float = 0.0
    gpu_hour_price: float | None = None
    kwh_price: float | None = None


@dataclass(frozen=True)
class ScalingFact:
    """One size.

    Attributes:
        gpus: number of ranks.
        samples_per_s: of all ranks together.
        speedup: efficiency times `gpus` where that is known; else over the smallest size, times that size's GPUs.
        efficiency: `speedup` over `gpus`.
        train_s: fixed seconds plus images over throughput, or the measured time.
        gpu_cost: GPU-hours times their price; None without a price.
        energy_cost: kWh of the GPUs times their price; None without a price or a measured energy.
        more_samples_per_s: throughput above the next smaller size's; None for the smallest.
        gain: of throughput over the next smaller size, per doubling: 0.69 is 69 %; None for the smallest.
        saved_share: of the next smaller size's `train_s`; None for the smallest.
        saved_per_doubling: `saved_share`, split evenly over the doublings between the sizes; None for the smallest.
        nodes: of the values; empty if they are of all.
    """

    gpus: int
    samples_per_s: float
    speedup: float
    efficiency: float
    train_s: float
    gpu_cost: float | None
    energy_cost: float | None
    more_samples_per_s: float | None = None
    gain: float | None = None
    saved_share: float | None = None
    saved_per_doubling: float | None = None
    nodes: str = ""


def scaling_facts(
    sizes: Sequence[MeasuredSize], job: TrainingJob, measured_s: Sequence[float] = ()
) -> list[ScalingFact]:
    """One fact for each size, ascending; `measured_s` is each size's time if whole runs were timed."""
    found: list[ScalingFact] = []
    for place, size in enumerate(sizes):
        gpus, rate, efficiency = size.gpus, size.samples_per_s, size.efficiency
        if efficiency is None:
            efficiency = rate / gpus / (sizes[0].samples_per_s / sizes[0].gpus)
        train_s = measured_s[place] if measured_s else job.fixed_s + job.images / rate
        cost = kwh_cost = None
        if job.gpu_hour_price is not None:
            cost = gpus * train_s / 3600 * job.gpu_hour_price
        if job.kwh_price is not None and size.energy_j_per_sample is not None:
            kwh_cost = size.energy_j_per_sample * job.images / 3.6e6 * job.kwh_price
        fact = ScalingFact(gpus, rate, efficiency * gpus, efficiency, train_s, cost, kwh_cost, nodes=size.nodes)
        for before in found[-1:]:
            shorter, doublings = train_s / before.train_s, math.log2(gpus / before.gpus)
            fact = replace(
                fact, more_samples_per_s=rate - before.samples_per_s,
                gain=(rate / before.samples_per_s) ** (1 / doublings) - 1,
                saved_share=1 - shorter, saved_per_doubling=1 - shorter ** (1 / doublings),
            )  # fmt: skip
        found.append(fact)
    return found


def sweet_spots(facts: Sequence[ScalingFact], deadline_s: float | None) -> dict[str, int | None]:
    """Number of GPUs among the measured sizes for each aim; None if no size meets it, or its number is missing.

    The aims are ``deadline`` (fewest that train within it), ``efficiency`` (most with at least `GOOD_EFFICIENCY`),
    ``gpu_cost`` and ``energy_cost`` (cheapest), and ``saturation`` (fewest from which a doubling saves less than
    `SATURATED_GAIN` of the time).
    """
    in_time = [one.gpus for one in facts if deadline_s is not None and one.train_s <= deadline_s]
    efficient = [one.gpus for one in facts if one.efficiency >= GOOD_EFFICIENCY]
    flat = [one.gpus for one, after in itertools.pairwise(facts) if (after.saved_per_doubling or 0.0) < SATURATED_GAIN]
    return {
        "deadline": min(in_time, default=None),
        "efficiency": max(efficient, default=None),
        "gpu_cost": _cheapest((one.gpu_cost, one.gpus) for one in facts),
        "energy_cost": _cheapest((one.energy_cost, one.gpus) for one in facts),
        "saturation": min(flat, default=None),
    }


def _cheapest(priced: Iterable[tuple[float | None, int]]) -> int | None:
    return min(((cost, gpus) for cost, gpus in priced if cost is not None), default=(0.0, None))[1]


def scaling_tables(evidence: Evidence, verdicts: Sequence[Verdict]) -> list[Section]:
    """Each study with at least two sizes: a table for one epoch of ImageNet, and what follows for choosing a size."""
    # A price of 1 makes the costs GPU-hours and kWh.
    every = scaling_series(evidence, verdicts, TrainingJob(IMAGENET, gpu_hour_price=1.0, kwh_price=1.0))
    return [
        Section(
            one.study, [one.table([f"{one.device}-hours", "kWh"]), bullets(one.lines(sweet_spots(one.facts, None)))]
        )
        for one in every if len(one.facts) > 1
    ]  # fmt: skip


def _cells(fact: ScalingFact) -> tuple[str, ...]:
    share, cost = partial(percent, decimals=1), "{:.2f}".format
    told = (fact.gain, share), (fact.saved_share, share), (fact.gpu_cost, cost), (fact.energy_cost, cost)
    gain, saved, *costs = (_ABSENT if value is None else number(value) for value, number in told)
    return (
        str(fact.gpus), f"{fact.samples_per_s:.0f}", f"{fact.speedup:.2f}x", share(fact.efficiency),
        gain, f"{fact.train_s:.0f} s", saved, *costs, fact.nodes,
    )  # fmt: skip


def print_scaling(arguments: argparse.Namespace) -> None:
    """Print scaling facts of the measured sizes of a run. Raises BadInput."""
    job = TrainingJob(arguments.images or IMAGENET, arguments.fixed_s, arguments.gpu_hour_price, arguments.kwh_price)
    run = RunDirectory.open(arguments.directory)
    evidence = read_evidence(run)
    found = scaling_series(evidence, read_judged(run, run).verdicts if run.verdicts_json.exists() else (), job)
    if not found:
        raise OptionError("RUN_DIR", f"{run.path} has no complete round of training", "a run with training")
    is_simulated = run.read_run().is_simulated(evidence.columns.devices)
    said: list[dict[str, Any]] = []
    lines = [WATERMARK] if is_simulated else []
    for one in found:
        spots = sweet_spots(one.facts, arguments.deadline)
        said.append(
            {"simulated": is_simulated, "study": one.study, "job": asdict(job),
             "sizes": [asdict(fact) for fact in one.facts], "sweet_spots": spots}
        )  # fmt: skip
        lines.append(f"{one.study}: {job.images:.4g} images and {job.fixed_s:g} s fixed")
        rows = text_lines(one.table([f"{one.device} cost", "energy cost"]))
        lines += [f"  {line}" for line in (*rows, *one.lines(spots))]
        if arguments.deadline is not None and spots["deadline"] is None:
            lines.append(f"  deadline of {arguments.deadline:g} s: met by no measured number of {one.device}s")
    print(strict_json(said) if arguments.format == "json" else "\n".join(lines))
