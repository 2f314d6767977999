"""Reasons to withhold a verdict that the numbers alone would give.

Each caveat looks at all places of a requirement at once. A place that passes and that no caveat concerns needs no full
verdict. To add one, write a function that returns a `Caveat` and add it to `CAVEATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from pytest_ddpscale.judge.devices import with_stalled_devices
from pytest_ddpscale.judge.probes import JudgedPlace
from pytest_ddpscale.judge.rounds import TERA, ArmRounds, Groups
from pytest_ddpscale.judge.slow import SlowRanks, culprits_of
from pytest_ddpscale.judge.values import Values
from pytest_ddpscale.plan.metric_catalogue import (
    MATMUL_TFLOPS,
    MOST_EFFICIENCY,
    THROUGHPUT_PER_GPU,
)
from pytest_ddpscale.run.column_record import BoolArray, FloatArray
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import BUDGET_SPENT, POWER_UNKNOWN, Flag, Verdict
from pytest_ddpscale.thresholds.cases import Case, NodeCase
from pytest_ddpscale.util.digits import percent

# Below this, a GPU under strong scaling waits for its host: published ResNet-152 rows show 58-74 %
# there, while every row that scales shows 95 % and more (willgpaik/pytorch-ddp-scaling-benchmark).
HOST_BOUND_UTILIZATION = 0.90
# Skipped steps are cheaper, and training that skips many does not converge.
MOST_SKIPPED_STEPS = 0.05
# Clocks and data sheets are a few per cent off; a value further above the peak cannot be right.
MOST_OF_PEAK = 1.05
# 3 × 3 convolutions by the algorithms of Lavin & Gray (CVPR 2016), which fp32 uses, take down to a quarter of the
# multiplications that the counter counts.
MOST_OF_FP32_PEAK = 4.0
# On a CPU efficiencies above 1 and costs below 0 occur, because parts of a batch fit caches and other programs disturb;
# twice the ideal, or half of the time saved, is more than that explains.
MOST_EFFICIENCY_ON_CPU, LEAST_COST_ON_CPU = 2.0, -0.5
# Per core, in FLOP/s: matrix units with 2,048 bf16 operations a cycle reach 8 · 10¹² at 4 GHz. A node of unknown size
# has no more than 512 cores.
MOST_FLOPS_OF_CORE, MOST_CORES = 1e13, 512
_SHARE_OF_FORWARD = (
    1 / 3
)  # of the FLOPs of a training step: the backward pass has two products for each of the forward's


@dataclass(frozen=True, eq=False)
class Asked:
    """A requirement and what was measured for it.

    Attributes:
        case: the requirement, on training or a probe.
        evidence: of the run.
        values: of its question or probe.
        confidence: of intervals, 0 … 1.
        limit: largest number of rounds; 0 if no more will come.
        due: number of rounds that were begun and timed every arm of the question.
        groups: complete rounds of the arms, by place; empty for a probe.
        peers: the slow ranks; None for a probe, and if not each of several nodes is judged.
    """

    case: Case | NodeCase
    evidence: Evidence
    values: Values[str] | Values[JudgedPlace]
    confidence: float
    limit: int = 0
    due: int = 0
    groups: Sequence[Groups] = ()
    peers: SlowRanks | None = None

    @property
    def value_of(self) -> FloatArray:
        """Value of each place, (places,)."""
        return self.values.estimated(self.confidence, self.limit).values

    def rounds(self, place: str) -> ArmRounds:
        """Complete rounds of the measured arm at a place."""
        one = next(one for one in self.groups if place in one.places)
        return one.at(one.places.index(place))[-1]

    def sums(self, of_rounds: Callable[[ArmRounds], FloatArray]) -> tuple[FloatArray, FloatArray]:
        """For each place the sum over its rounds of a value of the measured arm, where known, and their number."""
        row = {place: number for number, place in enumerate(self.values.places)}
        total, count = np.zeros((2, len(row)))
        for one in self.groups:
            rows, at = one.arms[-1], [row[place] for place in one.places]
            values = np.asarray(of_rounds(rows), np.float64)
            is_known, node = ~np.isnan(values), rows.measured.node
            total[at] = np.bincount(node[is_known], values[is_known], minlength=len(at))
            count[at] = np.bincount(node[is_known], minlength=len(at))
        return total, count


@dataclass(frozen=True, eq=False)
class Caveat:
    """Places whose verdict it may change, (places,); what changes it there, by index; and notes on all others."""

    where: BoolArray
    apply: Callable[[Verdict, int], Verdict]
    notes: tuple[str, ...] = ()


def _doubted(verdict: Verdict, reason: str, *flags: Flag) -> Verdict:
    """The verdict, inconclusive; a flag is a note, too."""
    notes = (*verdict.notes, *flags)
    return replace(verdict, outcome="inconclusive", reason=reason, notes=notes, flags=flags or verdict.flags)


def missing_rounds(asked: Asked) -> Caveat | None:
    """Rounds are incomplete: those may be the ones that would have failed."""

    def apply(verdict: Verdict, _: int) -> Verdict:
        if verdict.outcome not in ("passed", "failed") or verdict.rounds >= asked.due:
            return verdict
        return _doubted(
            verdict, f"only {verdict.rounds} of {asked.due} rounds are complete; the others could change the result"
        )

    return Caveat(asked.values.rounds() < asked.due, apply)


def plausibility(asked: Asked) -> Caveat | None:
    """The value is not credible, such as a utilization or efficiency far above 1."""
    if not isinstance(asked.case, Case):
        return None
    value_of, definition = asked.value_of, asked.case.requirement.definition
    least, most = definition.range_at(asked.case.world_size, "credible")
    if asked.evidence.plan.device_type == "cpu":
        is_cost = definition.unit == "fraction" and np.isfinite(least)
        least, most = LEAST_COST_ON_CPU if is_cost else -np.inf, most * MOST_EFFICIENCY_ON_CPU / MOST_EFFICIENCY

    def apply(verdict: Verdict, _: int) -> Verdict:
        value = verdict.value
        if value is None or least <= value <= most:
            return verdict
        side = f"more than {most:g}" if value > most else f"less than {least:g}"
        return _doubted(verdict, f"implausible: {value:.3g} is {side}; the measurement or its baseline was disturbed")

    return Caveat(~((least <= value_of) & (value_of <= most)), apply)


def beyond_the_peak(asked: Asked) -> Caveat | None:
    """The value of a probe exceeds the peak of the hardware: the measurement must be wrong."""
    if not isinstance(asked.case, NodeCase):
        return None
    most, of_what = _most_of_probe(asked.case, asked.evidence)

    def apply(verdict: Verdict, _: int) -> Verdict:
        if verdict.value is None or verdict.value <= most:
            return verdict
        return _doubted(
            verdict, f"implausible: {verdict.value:.4g} {verdict.unit} is more than {of_what}", "implausible"
        )

    return Caveat(~(asked.value_of <= most), apply)


def _most_of_probe(case: NodeCase, evidence: Evidence) -> tuple[float, str]:
    """The largest value of a probe that hardware can reach, and whose it is, in words."""
    if case.peak is not None:
        return MOST_OF_PEAK * case.peak, f"the {case.peak:.4g} of the data sheet"
    most = case.requirement.definition.range_at(case.world_size)[1]
    if case.requirement.definition is MATMUL_TFLOPS and evidence.plan.device_type == "cpu":
        cores = _cores(evidence)
        return MOST_FLOPS_OF_CORE * cores / TERA, f"{cores} CPU cores can compute"
    return most, f"any hardware reaches ({most:g})"


def impossible_pace(asked: Asked) -> Caveat | None:
    """A rank computed faster in some round than its hardware can: that block, or its clock, is wrong."""
    case, evidence = asked.case, asked.evidence
    if not isinstance(case, Case):
        return None
    row = {place: number for number, place in enumerate(asked.values.places)}
    why = [""] * len(row)
    for one in asked.groups:
        for rounds in one.arms:
            arm = rounds.measured
            flops = evidence.flops_per_sample.get(arm.study)
            most, of_what = _most_samples_per_s(case, evidence, flops, is_trained=not arm.arm.startswith("infer"))
            paces = np.zeros(len(one.places))
            np.maximum.at(paces, arm.node, np.max(np.where(arm.present, arm.per_second, 0.0), axis=1, initial=0.0))
            for number in np.flatnonzero(paces > most).tolist():
                place, pace = row[one.places[number]], f"{paces[number]:.4g} {evidence.plan.samples}/s"
                why[place] = f"implausible: {pace} of a rank in {arm.arm} are more than {of_what}"

    def apply(verdict: Verdict, place: int) -> Verdict:
        is_decided = verdict.outcome in ("passed", "failed")
        return _doubted(verdict, why[place], "implausible") if why[place] and is_decided else verdict

    return Caveat(np.array([bool(one) for one in why], np.bool_), apply) if any(why) else None


def _most_samples_per_s(
    case: Case, evidence: Evidence, flops_per_sample: float | None, *, is_trained: bool
) -> tuple[float, str]:
    """The most samples that a rank can process each second, and whose limit that is, in words."""
    if flops_per_sample is None or (case.peak_tflops is None and evidence.plan.device_type == "cuda"):
        most = THROUGHPUT_PER_GPU.range_at(1)[1]
        return most, f"any hardware reaches ({most:g})"
    flops = flops_per_sample * (1.0 if is_trained else _SHARE_OF_FORWARD)
    if case.peak_tflops is None:
        cores = _cores(evidence)
        return MOST_FLOPS_OF_CORE * cores / flops, f"{cores} CPU cores can compute"
    most = case.peak_tflops * (MOST_OF_FP32_PEAK if case.workload.precision == "fp32" else MOST_OF_PEAK)
    return most * TERA / flops, f"a peak of {case.peak_tflops:.4g} TFLOPS allows"


def _cores(evidence: Evidence) -> int:
    """CPU cores of the largest node."""
    return max((survey.cores or MOST_CORES for survey in evidence.surveys.values()), default=MOST_CORES)


def host_bound(asked: Asked) -> Caveat | None:
    """GPUs wait for their host: strong scaling then says nothing about GPUs or links."""
    case, is_cuda = asked.case, asked.evidence.plan.device_type == "cuda"
    if case.requirement.definition.scaling != "strong" or not is_cuda or not isinstance(case, Case):
        return None
    total, count = asked.sums(lambda rounds: rounds.utilization)
    busy = total / np.where(count > 0, count, np.nan)

    def apply(verdict: Verdict, place: int) -> Verdict:
        if not busy[place] < HOST_BOUND_UTILIZATION:
            return verdict
        reason = (
            f"host-bound: GPUs were {percent(busy[place])} busy (below {percent(HOST_BOUND_UTILIZATION)}); a global "
            f"batch of {case.workload.global_batch_size} is too small for {case.world_size} GPUs, so this result means "
            "nothing"
        )
        return _doubted(verdict, reason, "host-bound")

    return Caveat(busy < HOST_BOUND_UTILIZATION, apply)


def stalled_devices(asked: Asked) -> Caveat | None:
    """Devices only wait: their utilization, which NVML counts as busy, proves nothing."""
    if not asked.case.requirement.definition.reads_utilization:
        return None
    evidence, places = asked.evidence, asked.values.places

    def apply(verdict: Verdict, place: int) -> Verdict:
        rounds = asked.rounds(str(places[place]))
        arm = rounds.measured
        return with_stalled_devices(verdict, rounds, evidence.telemetry.of_arm(arm.study, arm.arm, arm.ranks.by_host))

    where = np.array([place in evidence.telemetry.hosts for place in places], np.bool_)
    # A node without telemetry gets the note that `apply` would make of it.
    return Caveat(where, apply, () if evidence.plan.device_type == "cpu" else (POWER_UNKNOWN,))


def skipped_steps(asked: Asked) -> Caveat | None:
    """Fp16 loss scaling skipped steps, which are cheaper; a few are noted, many make a pass inconclusive."""
    skipped, _ = asked.sums(lambda rounds: np.nansum(rounds.measured.reading("skipped_steps"), axis=1))
    if not skipped.any():
        return None
    steps, _ = asked.sums(lambda rounds: rounds.measured.count.sum(axis=1))

    def apply(verdict: Verdict, place: int) -> Verdict:
        if not skipped[place]:
            return verdict
        note = f"loss scaling skipped {skipped[place]:.0f} of {steps[place]:.0f} optimizer steps"
        verdict = replace(verdict, notes=(*verdict.notes, note))
        if verdict.outcome != "passed" or skipped[place] <= MOST_SKIPPED_STEPS * steps[place]:
            return verdict
        return _doubted(verdict, f"{note}: the rest is not the training that was to be measured")

    return Caveat(skipped > 0, apply)


def slow_node(asked: Asked) -> Caveat | None:
    """Most ranks of one of several nodes are slow: it scales well only relative to slow ranks."""
    peers = asked.peers
    if peers is None or asked.case.requirement.definition.baseline != "alone":
        return None
    places, found, ranks = asked.values.places, peers.slow, peers.pace.ranks
    hosts, most = ranks.hosts[found.at], asked.evidence.plan.layout.ranks_per_node / 2

    def apply(verdict: Verdict, place: int) -> Verdict:
        rows = np.flatnonzero(hosts == places[place])
        if verdict.outcome != "passed" or len(rows) <= most:
            return verdict
        culprits = culprits_of(ranks, found, rows)
        slow = f"{len(rows)} of its ranks are slow without communication ({culprits[0].evidence})"
        verdict = replace(verdict, culprits=tuple(culprits))
        return _doubted(verdict, f"{slow}; good scaling relative to slow ranks is no pass")

    return Caveat(np.array([place in set(hosts) for place in places], np.bool_), apply)


Rule: TypeAlias = Callable[[Asked], Caveat | None]
# In the order in which they are applied.
CAVEATS: Sequence[Rule] = (
    missing_rounds, plausibility, beyond_the_peak, impossible_pace, host_bound, stalled_devices, skipped_steps,
    slow_node,
)  # fmt: skip
# Those that concern the number itself.
ON_NUMBERS: Sequence[Rule] = (plausibility, beyond_the_peak, impossible_pace, host_bound, skipped_steps)


def caveats_on(asked: Asked, rules: Sequence[Rule] = CAVEATS) -> list[Caveat]:
    """The caveats that may concern any of its places."""
    return [found for rule in rules if (found := rule(asked)) is not None]


def with_spent_budget(verdict: Verdict, study_id: str, out_of_time: Collection[str]) -> Verdict:
    """Note that an open verdict is open because --ddp-budget ran out, not because of the machine."""
    if study_id not in out_of_time or verdict.outcome not in ("inconclusive", "not_measured"):
        return verdict
    return replace(verdict, notes=(*verdict.notes, BUDGET_SPENT))
