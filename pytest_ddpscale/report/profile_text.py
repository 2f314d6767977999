"""Results of profiled steps as rows of texts, for report.md and report.html."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_ddpscale.judge.intervals import Estimate, mean_estimate
from pytest_ddpscale.judge.rounds import ArmRounds, merged
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.report.text import count_text
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.profile_record import ArmProfile
from pytest_ddpscale.util.listing import first_few
from pytest_ddpscale.util.tables import Table, table

PARTS = ("Study", "Arm", "Step", "Computes", "Waits for a collective", "Idle", "All-reduce", "of that hidden")
EXPOSED = ("Study", "Arm", "Timed rounds", "Profiled steps", "of that waiting", "of that slower computing", "")
_REDUCED = "All-reduces of a step (gradient buckets), medians over the steps"
_BUCKETS = ("All-reduce", "MiB", "Begins at", "Takes", "Hidden")
_CONFIDENCE = 0.95
_MIB = 2**20
_MOST_ARMS = 3  # named with a reason; profiles.jsonl has all


@dataclass(frozen=True)
class ProfiledExposure:
    """Exposed communication of a ``ddp@k`` arm, as shares of its step.

    Attributes:
        by_rounds: 1 − step time of no_sync@k ÷ that of ddp@k, in each timed round: the metric
            ``exposed_communication`` of the profiled rank alone.
        by_profile: the same from profiled steps; both arms of a pass are compared.
        waiting: share of the profiled ddp@k step in which the rank waits for a collective and computes nothing. The
            rest of `by_profile` is slower computation: a collective takes cores or SMs, and memory bandwidth.
    """

    study: str
    arm: str
    by_rounds: FloatArray
    by_profile: FloatArray
    waiting: FloatArray


def part_rows(profiles: Sequence[ArmProfile]) -> list[tuple[str, ...]]:
    """One row for each profiled arm, with means over its steps."""
    rows = []
    for one in [profile for profile in profiles if not profile.problem]:
        step, reduced, hidden = map(statistics.fmean, (one.step_ms, one.all_reduce_ms, one.hidden_ms))
        shares = [_share(statistics.fmean(part), step) for part in (one.compute_ms, one.waiting_ms, one.idle_ms)]
        rows.append(
            (one.study, one.arm, _ms(step), *shares, _ms(reduced) if reduced else ABSENT, _share(hidden, reduced))
        )
    return rows


def profiled_exposures(evidence: Evidence) -> Iterator[ProfiledExposure]:
    """One for each DDP arm that was profiled together with its no_sync arm."""
    profiles = {(one.study, one.arm): one for one in evidence.profiles if not one.problem}
    for study in evidence.plan.studies:
        for arm in study.arms:
            silent = study.arm(replace(arm, kind="no_sync").name) if arm.kind == "ddp" else None
            ddp = profiles.get((study.id, arm.name))
            no_sync = None if silent is None else profiles.get((study.id, silent.name))
            if silent is not None and ddp is not None and no_sync is not None:
                passes = min(len(ddp.step_ms), len(no_sync.step_ms))
                step_ms, silent_ms, waiting_ms = (
                    np.array(values[:passes]) for values in (ddp.step_ms, no_sync.step_ms, ddp.waiting_ms)
                )
                by_rounds = _by_rounds(evidence, study, arm, silent, ddp.rank)
                yield ProfiledExposure(study.id, arm.name, by_rounds, 1 - silent_ms / step_ms, waiting_ms / step_ms)


def _by_rounds(evidence: Evidence, study: Study, arm: Arm, silent: Arm, rank: int) -> FloatArray:
    found = [merged(evidence.columns, study.id, one, evidence.plan.layout) for one in (silent, arm)]
    shared = np.intersect1d(found[0].numbers, found[1].numbers)
    no_sync, ddp = (_step_s(rounds.of(np.isin(rounds.numbers, shared)), rank) for rounds in found)
    shares = 1 - no_sync / ddp
    return shares[np.isfinite(shares)]


def _step_s(rounds: ArmRounds, rank: int) -> FloatArray:
    """Mean step time of a rank in each round, NaN where it was absent."""
    [column] = np.flatnonzero(rounds.ranks.numbers == rank) if len(rounds) else [0]
    return rounds.mean_step_s[:, column] if len(rounds) else np.empty(0)


def exposed_rows(evidence: Evidence) -> list[tuple[str, ...]]:
    """Exposed communication by two methods, with intervals, and whether the intervals overlap."""
    rows = []
    for one in profiled_exposures(evidence):
        rounds, profile, waiting = (_estimate(values) for values in (one.by_rounds, one.by_profile, one.waiting))
        slower = _estimate(one.by_profile - one.waiting)
        word = ABSENT
        if rounds and profile:
            word = "agree" if do_agree(rounds, profile) else "disagree: profiling or drift changed one of them"
        rows.append((one.study, one.arm, *map(_with_interval, (rounds, profile, waiting, slower)), word))
    return rows


def do_agree(one: Estimate, other: Estimate) -> bool:
    """Whether two intervals overlap."""
    return max(one.interval[0], other.interval[0]) <= min(one.interval[1], other.interval[1])


def _estimate(values: FloatArray) -> Estimate | None:
    return mean_estimate(values.tolist(), _CONFIDENCE) if len(values) > 1 else None


def problem_lines(profiles: Sequence[ArmProfile]) -> list[str]:
    """Why arms have no profile, each reason once."""
    arms: dict[str, list[str]] = {}
    for one in profiles:
        if one.problem:
            arms.setdefault(one.problem, []).append(f"{one.study}, {one.arm}")
    return [f"no profile of {first_few(names, _MOST_ARMS, '; ')}: {why}" for why, names in arms.items()]


def how_line(profiles: Sequence[ArmProfile], device_type: str) -> str:
    """How arms were profiled, in sentences; empty if none was."""
    done = [one for one in profiles if not one.problem]
    if not done:
        return ""
    steps = count_text(max(len(one.step_ms) for one in done), "step")
    what = "GPU kernels" if device_type == "cuda" else "operators of the thread that trains, and gloo's threads"
    return (
        f"Rank {done[0].rank} profiled {steps} of each arm with torch.profiler, taking turns between arms, after all "
        f"timed rounds of the study: {what}. Profiling slows steps; no value or verdict uses them."
    )


def details(profiles: Sequence[ArmProfile]) -> Iterator[tuple[str, str, Table]]:
    """Title, and the buckets with their caption, of each study's largest arm under DDP."""
    for one in largest_profiles(profiles):
        buckets = [
            (
                str(number), f"{bucket.bytes / _MIB:.2f}" if bucket.bytes else ABSENT, _ms(bucket.begins_ms),
                _ms(bucket.took_ms), _share(bucket.hidden_ms, bucket.took_ms),
            )
            for number, bucket in enumerate(one.buckets, 1)
        ]  # fmt: skip
        trace = f" (for Perfetto or chrome://tracing: {one.trace})" if one.trace else ""
        yield f"{one.study}, {one.arm}{trace}", _REDUCED, table(_BUCKETS, buckets, of_numbers=True)


def largest_profiles(profiles: Sequence[ArmProfile]) -> list[ArmProfile]:
    """For each study the profiled DDP arm with the most ranks, or the last arm if there is none."""
    found: dict[str, ArmProfile] = {}
    for one in profiles:
        if not one.problem and (one.study not in found or _ranks(one) >= _ranks(found[one.study])):
            found[one.study] = one
    return list(found.values())


def _ranks(one: ArmProfile) -> int:
    kind, _, ranks = one.arm.partition("+")[0].removesuffix("-spread").partition("@")
    return int(ranks) if kind == "ddp" and ranks.isdecimal() else 0


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.4g} ms" if milliseconds < 1000 else f"{milliseconds:.0f} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _share(part: float, whole: float) -> str:
    return _percent(part / whole) if whole else ABSENT


def _with_interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return ABSENT
    low, high = (100 * limit for limit in estimate.interval)
    return f"{_percent(estimate.value)} ({low:.1f} to {high:.1f})"
