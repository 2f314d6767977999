"""Where the time goes: every arm of every study, also those that no requirement asks for, and its profiled steps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
from msgspec.structs import astuple

from pytest_ddpscale.judge.metrics import VALUE_OF, Arms, merged
from pytest_ddpscale.report.digits import ABSENT, number_text
from pytest_ddpscale.run.block import STEP_S, WAITED_S
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.records import ArmProfile
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.util.arrays import FloatArray
from pytest_ddpscale.util.document import Block, Line, Link, Table
from pytest_ddpscale.util.listing import count_text, first_few

PERCENTS = (50, 75, 90, 95, 99)
_PARTS = ("Study", "Arm", "Step", "Computes", "Waits for a collective", "Idle", "All-reduce", "of that hidden")
_MOST_ARMS = 3  # named with a reason; measurements.jsonl has all


def breakdown(evidence: Evidence, peaks_tflops: Mapping[str, float | None] | None = None) -> Table:
    """One row for each measured arm, in the plan's order; a column that no arm has is left out.

    Percentiles are over the raw steps of all ranks; of an imported arm the 95th is the largest of the ranks'. Other
    values are medians over the rounds: throughput at the slowest rank's pace, utilization of the least busy rank, power
    as the mean of the ranks, samples per joule of the least efficient one. The wait for data is that of the rank that
    waited most. Memory is the maximum over the rounds. If several groups of ranks trained an arm at the same time, all
    of them count. MFU takes the `peaks_tflops` of studies, by id.
    """
    plan, rows = evidence.plan, []
    titles = (
        "Study", "Arm", "Rounds", f"{plan.unit}/s per rank", "TFLOPS per rank", "MFU", *(f"p{p} ms" for p in PERCENTS),
        "Waited for data, ms a step", "Peak GiB", "Busy", "W", f"{plan.unit}/J", "Skipped steps",
    )  # fmt: skip
    for study in plan.studies:
        flops, peak = evidence.flops_per_sample.get(study.id), (peaks_tflops or {}).get(study.id)
        for arm in study.arms:
            rounds = merged(evidence.columns, study.id, arm, plan.layout)
            if len(rounds):
                rows.append((study.id, arm.name, *_cells(rounds, flops, peak)))
    has_values = [any(cell != ABSENT for cell in cells) for cells in zip(*rows, strict=True)]
    shown = [[*compress(cells, has_values)] for cells in (titles, *rows)]
    caption = "Step times over the raw steps of all ranks; throughput at the pace of the slowest rank"
    return Table(shown[0], shown[1:], caption, 1)


def _cells(rounds: ArmRounds, flops: float | None, peak_tflops: float | None) -> Iterator[str]:
    def summary(values: FloatArray, form: str, join: Callable[[FloatArray], Any] = np.median) -> str:
        known = values[~np.isnan(values)]
        return form.format(join(known)).replace("%", " %") if len(known) else ABSENT

    def of(metric: str) -> FloatArray:
        return VALUE_OF[metric](Arms([rounds], 1, flops_per_sample=flops))

    percentiles, tflops = step_time_percentiles_ms(rounds), of("model_flops_utilization")
    skipped = int(np.nansum(rounds.reading("skipped_steps")))
    yield str(len(rounds))
    yield summary(rounds.samples_per_s_per_gpu, "{:.1f}")
    yield summary(tflops, "{:.3g}")
    yield summary(tflops / (peak_tflops or np.nan), "{:.1%}")
    for percent in PERCENTS:
        p95 = summary(of("step_time_p95"), "{:.1f}") if percent == 95 else ABSENT
        yield f"{percentiles[percent]:.1f}" if percentiles else p95
    waited_s = waited_s_per_step(rounds)
    yield ABSENT if np.isnan(waited_s).any() else f"{1000 * waited_s.mean():.1f}"
    yield summary(of("peak_memory_gib"), "{:.2f}", np.max)
    yield summary(of("device_utilization"), "{:.1%}")
    yield summary(rounds.reading("energy_j") / rounds.seconds, "{:.0f}", np.mean)
    yield summary(of("images_per_joule"), "{:.3g}")
    yield str(skipped) if skipped else ABSENT


def step_time_percentiles_ms(measured: ArmRounds) -> dict[int, float]:
    """`PERCENTS` of an arm's step time in ms over the raw steps of all ranks and rounds; may be empty."""
    steps_s = measured.reading(STEP_S)
    steps_s = steps_s[~np.isnan(steps_s)].astype(np.float64)
    return dict(zip(PERCENTS, (1000 * np.percentile(steps_s, PERCENTS)).tolist(), strict=True)) if len(steps_s) else {}


def waited_s_per_step(measured: ArmRounds) -> FloatArray:
    """Seconds per step that ranks waited for data, the most of all ranks; NaN with synthetic data, (rounds,)."""
    waited_s = measured.reading(WAITED_S)
    is_unknown = np.isnan(waited_s).all(axis=-1)
    in_all = np.where(is_unknown, np.nan, np.nansum(waited_s, axis=-1, dtype=np.float64))
    return measured.most(in_all / np.maximum(measured.count, 1))


def profile_blocks(profiles: Sequence[ArmProfile], device_type: str) -> Iterator[Block]:
    """What torch.profiler recorded: how, and means over the steps of each arm."""
    done = [profile for profile in profiles if not profile.problem]
    if done:
        steps = count_text(max(len(profile.steps) for profile in done), "step")
        measured = "GPU kernels" if device_type == "cuda" else "operators of the thread that trains, and gloo's threads"
        yield Line(
            f"Rank {done[0].rank} profiled {steps} of each arm with torch.profiler, taking turns between arms, after "
            f"all timed rounds of the study: {measured}. Profiling slows steps; no value or verdict uses them."
        )
    yield from (Line(f"{one[:1].upper()}{one[1:]}.") for one in problem_lines(profiles))
    caption = "Where the time of a profiled step goes, means over the steps"
    yield Table(_PARTS, [*map(_parts, done)], caption, 2)
    if traces := [part for profile in done if profile.trace for part in (", ", Link(profile.trace, profile.trace))][1:]:
        yield Line(["Traces for Perfetto or chrome://tracing: ", *traces])


def problem_lines(profiles: Sequence[ArmProfile]) -> list[str]:
    """Why arms have no profile, each reason once."""
    arms: dict[str, list[str]] = {}
    for profile in profiles:
        if profile.problem:
            arms.setdefault(profile.problem, []).append(f"{profile.study}, {profile.arm}")
    return [f"no profile of {first_few(names, _MOST_ARMS, '; ')}: {why}" for why, names in arms.items()]


def _parts(profile: ArmProfile) -> tuple[str, ...]:
    """Means over its steps."""
    step, *parts, reduced, hidden = (statistics.fmean(part) for part in zip(*map(astuple, profile.steps), strict=True))
    shares = [_share(part, step) for part in parts]
    return (
        profile.study,
        profile.arm,
        number_text(step, "ms"),
        *shares,
        number_text(reduced, "ms"),
        _share(hidden, reduced),
    )


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ABSENT
