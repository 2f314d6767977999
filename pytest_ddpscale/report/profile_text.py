"""Results of profiled steps as rows of texts, for report.md and report.html."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from msgspec.structs import astuple

from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.report.text import count_text
from pytest_ddpscale.run.records import ArmProfile
from pytest_ddpscale.util.listing import first_few
from pytest_ddpscale.util.tables import Table, table

PARTS = ("Study", "Arm", "Step", "Computes", "Waits for a collective", "Idle", "All-reduce", "of that hidden")
_REDUCED = "All-reduces of a step (gradient buckets), medians over the steps"
_BUCKETS = ("All-reduce", "MiB", "Begins at", "Takes", "Hidden")
_MIB = 2**20
_MOST_ARMS = 3  # named with a reason; measurements.jsonl has all


def part_rows(profiles: Sequence[ArmProfile]) -> list[tuple[str, ...]]:
    """One row for each profiled arm, with means over its steps."""
    rows = []
    for one in [profile for profile in profiles if not profile.problem]:
        means = (statistics.fmean(part) for part in zip(*map(astuple, one.steps), strict=True))
        step, *parts, reduced, hidden = means
        shares = [_share(part, step) for part in parts]
        rows.append(
            (one.study, one.arm, _ms(step), *shares, _ms(reduced) if reduced else ABSENT, _share(hidden, reduced))
        )
    return rows


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
    steps = count_text(max(len(one.steps) for one in done), "step")
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


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ABSENT
