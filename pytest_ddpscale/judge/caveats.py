"""Reasons to withhold a verdict that the numbers alone would give.

Each looks at all places of a requirement at once and sets those to open for which it holds. To add one, write a
function and add it to `CAVEATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from pytest_ddpscale.judge.devices import doubt_stalled_devices
from pytest_ddpscale.judge.judged import Judged
from pytest_ddpscale.judge.metrics import TERA, WHOLE
from pytest_ddpscale.judge.slow import culprits_of
from pytest_ddpscale.judge.stats import ABSENT, FAILED, OPEN, PASSED
from pytest_ddpscale.plan.metric_catalogue import (
    MATMUL_TFLOPS,
    MOST_EFFICIENCY,
    THROUGHPUT_PER_GPU,
)
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import POWER_UNKNOWN
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
# Of the FLOPs of a training step: the backward pass has two products for each of the forward's.
_SHARE_OF_FORWARD = 1 / 3
ANY = (PASSED, OPEN, FAILED)


def missing_rounds(judged: Judged) -> None:
    """Rounds are incomplete: those may be the ones that would have failed."""
    rounds, due = judged.values.rounds(), judged.due
    reason = "only {} of {} rounds are complete; the others could change the result"
    judged.open(rounds < due, lambda place: reason.format(rounds[place], due))


def plausibility(judged: Judged) -> None:
    """The value is not credible, such as a utilization or efficiency far above 1."""
    if not isinstance(judged.case, Case):
        return
    values, definition = judged.found.values, judged.case.requirement.definition
    least, most = definition.range_at(judged.case.world_size, "credible")
    if judged.evidence.plan.device_type == "cpu":
        is_cost = definition.unit == "fraction" and np.isfinite(least)
        least, most = LEAST_COST_ON_CPU if is_cost else -np.inf, most * MOST_EFFICIENCY_ON_CPU / MOST_EFFICIENCY

    def why(place: int) -> str:
        side = f"more than {most:g}" if values[place] > most else f"less than {least:g}"
        return f"implausible: {values[place]:.3g} is {side}; the measurement or its baseline was disturbed"

    judged.open((values < least) | (values > most), why, of=ANY)


def beyond_the_peak(judged: Judged) -> None:
    """The value of a probe exceeds the peak of the hardware: the measurement must be wrong."""
    if isinstance(judged.case, NodeCase):
        most, of_what = _most_of_probe(judged.case, judged.evidence)
        reason, values = f"implausible: {{:.4g}} {judged.blank.unit} is more than {of_what}", judged.found.values
        judged.open(values > most, lambda place: reason.format(values[place]), "implausible", ANY)


def _most_of_probe(case: NodeCase, evidence: Evidence) -> tuple[float, str]:
    """The largest value of a probe that hardware can reach, and whose it is, in words."""
    if case.peak is not None:
        return MOST_OF_PEAK * case.peak, f"the {case.peak:.4g} of the data sheet"
    most = case.requirement.definition.range_at(case.world_size)[1]
    if case.requirement.definition is MATMUL_TFLOPS and evidence.plan.device_type == "cpu":
        cores = _cores(evidence)
        return MOST_FLOPS_OF_CORE * cores / TERA, f"{cores} CPU cores can compute"
    return most, f"any hardware reaches ({most:g})"


def impossible_pace(judged: Judged) -> None:
    """A rank computed faster in some round than its hardware can: that block, or its clock, is wrong."""
    case, evidence = judged.case, judged.evidence
    if not isinstance(case, Case):
        return
    why = dict[int, str]()
    for arm in judged.groups.arms if judged.groups else ():
        flops = evidence.flops_per_sample.get(arm.study)
        most, of_what = _most_samples_per_s(case, evidence, flops, is_trained=not arm.arm.startswith("infer"))
        paces = np.fmax.reduce(arm.per_second, axis=(0, 2), initial=0.0)
        for place in np.flatnonzero(paces > most).tolist():
            pace = f"{paces[place]:.4g} {evidence.plan.samples}/s"
            why[place] = f"implausible: {pace} of a rank in {arm.arm} are more than {of_what}"
    judged.open(np.isin(np.arange(len(judged.values.places)), [*why]), why.__getitem__, "implausible")


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


def host_bound(judged: Judged) -> None:
    """GPUs wait for their host: strong scaling then says nothing about GPUs or links."""
    case, is_cuda = judged.case, judged.evidence.plan.device_type == "cuda"
    if case.requirement.definition.scaling != "strong" or not is_cuda or not isinstance(case, Case):
        return
    total, count = judged.sums(lambda rounds: rounds.least(rounds.reading("utilization")))
    busy, batch = total / np.where(count > 0, count, np.nan), case.workload.global_batch_size
    judged.open(
        busy < HOST_BOUND_UTILIZATION,
        lambda place: (
            f"host-bound: GPUs were {percent(busy[place])} busy (below {percent(HOST_BOUND_UTILIZATION)}); a global "
            f"batch of {batch} is too small for {case.world_size} GPUs, so this result means nothing"
        ),
        "host-bound", ANY,
    )  # fmt: skip


def stalled_devices(judged: Judged) -> None:
    """Devices only wait: their utilization, which NVML counts as busy, proves nothing."""
    if not judged.case.requirement.definition.reads_utilization:
        return
    told = judged.evidence.telemetry
    for place in np.flatnonzero(judged.codes == PASSED).tolist():
        name = str(judged.values.places[place])
        if name != WHOLE and name not in told.hosts:
            judged.note(place, "" if judged.evidence.plan.device_type == "cpu" else POWER_UNKNOWN)
            continue
        rounds = judged.rounds(name)
        telemetry = told.of_arm(rounds.study, rounds.arm, rounds.ranks.by_host)
        doubt_stalled_devices(judged, place, rounds, telemetry)


def skipped_steps(judged: Judged) -> None:
    """Fp16 loss scaling skipped steps, which are cheaper; a few are noted, many make a pass inconclusive."""
    skipped, _ = judged.sums(lambda rounds: np.nansum(rounds.reading("skipped_steps"), axis=-1))
    if not skipped.any():
        return
    steps, _ = judged.sums(lambda rounds: rounds.count.sum(axis=-1, dtype=np.float64))
    notes = {
        place: f"loss scaling skipped {skipped[place]:.0f} of {steps[place]:.0f} optimizer steps"
        for place in np.flatnonzero((skipped > 0) & (judged.codes != ABSENT)).tolist()
    }
    for place, note in notes.items():
        judged.note(place, note)
    judged.open(
        skipped > MOST_SKIPPED_STEPS * steps,
        lambda place: f"{notes[place]}: the rest is not the training that was to be measured",
        of=(PASSED,),
    )


def slow_node(judged: Judged) -> None:
    """Most ranks of one of several nodes are slow: it scales well only relative to slow ranks."""
    peers = judged.peers
    if peers is None or judged.case.requirement.definition.baseline != "alone":
        return
    ranks, slow = peers.pace.ranks, peers.slow
    hosts, most = ranks.hosts[slow.at], judged.evidence.plan.layout.ranks_per_node / 2
    rows = [np.flatnonzero(hosts == place) for place in judged.values.places]
    where = np.array([len(of_place) > most for of_place in rows], np.bool_)
    culprits = {at: culprits_of(ranks, slow, rows[at]) for at in np.flatnonzero(where).tolist()}
    reason = "{} of its ranks are slow without communication ({}); good scaling relative to slow ranks is no pass"
    for place in judged.open(where, lambda at: reason.format(len(rows[at]), culprits[at][0].evidence), of=(PASSED,)):
        judged.culprits[place] = tuple(culprits[place])


Rule: TypeAlias = Callable[[Judged], None]
# Those that concern the number itself; and all, in the order in which they are applied.
ON_NUMBERS: Sequence[Rule] = (plausibility, beyond_the_peak, impossible_pace, host_bound, skipped_steps)
CAVEATS: Sequence[Rule] = (missing_rounds, *ON_NUMBERS[:-1], stalled_devices, skipped_steps, slow_node)
