"""What is well-formed and yet nonsense: contradictions, bounds that hardware cannot reach, and remarks on odd ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from pytest_ddpscale.plan.metric_catalogue import (
    BUSBW_GBPS,
    MATMUL_TFLOPS,
    MEMORY_BANDWIDTH_GBPS,
    PAIR_BANDWIDTH_GBPS,
    STRONG_SCALING_SPEEDUP,
)
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.operation import operation
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.workload import Workload, incomparable_fields
from pytest_ddpscale.thresholds.model import Requirement, Sku, Thresholds, why_it_stands
from pytest_ddpscale.thresholds.waiver import LONG_DAYS, today
from pytest_ddpscale.util.nearest import did_you_mean

# Names begin with a letter or digit, so they cannot look like a path or an option.
LONGEST_NAME = 64
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{LONGEST_NAME - 1}}}")
# A floor below this part of what a sound machine reaches finds only what stands still.
_LEAST_OF_SOUND = 0.1
# A place below the SKU or the requirement at fault, and a sentence.
Found: TypeAlias = Iterator[tuple[tuple[str | int, ...] | Requirement, str]]


def contradictions(name: str, sku: Sku) -> Found:
    """Contradictions between parts of a SKU."""
    yield from _odd_names(name, sku)
    on_cpu = [check for check, one in NODE_CHECKS.items() if one.on_cpu]
    for one in sku.requirements:
        if sku.detect.device == "cpu" and one.check and one.check not in on_cpu:
            yield one, f"check {one.check!r} does not apply without a GPU; expected some of {', '.join(on_cpu)}"
        why = _why_unmeasurable(sku, one) or _why_unreachable(sku, one)
        if why:
            yield one, why


def clashing_names(skus: Mapping[str, Sku]) -> Iterator[tuple[str, int, str]]:
    """Aliases that already name another SKU: the SKU, the index of its alias, and a sentence."""
    owner = {name.casefold(): name for name in skus}
    for name, sku in skus.items():
        for i, alias in enumerate(sku.aliases):
            taken = owner.setdefault(alias.casefold(), "")
            if taken:
                yield name, i, f"alias {alias!r} already names {taken}"
            owner[alias.casefold()] = name


def why_incomparable(skus: Mapping[str, Sku], name: str, requirement: Requirement) -> str:
    """Why a requirement cannot be compared with its reference SKU; empty if it can, or if that SKU does not exist.

    Args:
        skus: valid SKUs.
        name: the SKU of the requirement.
        requirement: a requirement on any metric.
    """
    sku = skus[name]
    if requirement.versus is not None and requirement.versus in (name, *sku.aliases):
        return f"versus {requirement.versus}: a ratio of a SKU to itself says nothing; expected another SKU"
    reference = skus.get(requirement.versus or "")
    if reference is None:
        owner = next((other for other, one in skus.items() if requirement.versus in one.aliases), None)
        return f"versus {requirement.versus!r} is an alias; expected {owner!r}" if owner else ""
    workload, theirs = sku.workloads[requirement.workload], reference.workloads.get(requirement.workload)
    if theirs is None:
        return f"versus {requirement.versus}: it has no workload {requirement.workload!r} to compare with"
    different = incomparable_fields(workload, theirs)
    if different:
        said = f"{requirement.workload} differs there in {', '.join(different)}"
        return f"versus {requirement.versus}: {said}, so the ratio is meaningless"
    try:
        Thresholds(skus).reference_throughput(requirement)
    except LookupError as error:
        return f"{error}: add a row that is `published`"
    return ""


def why_more_than_changed(before: Sku, after: Sku) -> Found:
    """Requirements that no site may remove or let only warn, and that a file does, however it is written."""
    now = {one.key(): one for one in after.requirements}
    for was in before.requirements:
        why, one = why_it_stands(was), now.get(was.key())
        if why and one is None:
            yield (), f"{was} is required by the file below and not here; it has to stand: {why}"
        elif why and one is not None and (was.severity, one.severity) == ("fail", "warn"):
            yield one, f"{was} fails in the file below and only warns here; it has to stand: {why}"


def remarks(sku: Sku) -> Iterator[tuple[Requirement, str]]:
    """What is odd about a site's requirements, and may be meant. Those of the packaged file have their own tests."""
    for one in sku.requirements:
        yield from ((one, sentence) for sentence in _of_waiver(one))
        if one.source.is_site and not one.check:
            told = _of_distance(one), _of_floor(sku, one), _of_link(sku, one)
            yield from ((one, sentence) for sentence in told if sentence)


def _of_waiver(one: Requirement) -> Iterator[str]:
    days = 0 if one.waiver is None else (one.waiver.until - today()).days
    if days > LONG_DAYS:
        yield f"{one.waiver} of {one} holds for {days} days; a fault that stays longer than {LONG_DAYS} is no exception"


def _of_distance(one: Requirement) -> str:
    published, upper = one.source.measured, one.definition.upper_bound
    if published is None or one.bound == published or (one.bound > published) == upper:
        return ""
    return f"the bound {one.bound:g} of {one} is stricter than its published {published:g}"


def _of_floor(sku: Sku, one: Requirement) -> str:
    """Of a floor that hardly any machine misses; the bounds of a CPU are no judgement of its speed."""
    ranks, sound = one.world_size, one.sound_value
    if sku.detect.device != "cuda" or one.definition.upper_bound or one.definition.only_bound is not None:
        return ""
    if one.metric == STRONG_SCALING_SPEEDUP.name and one.bound <= 1:
        return f"{one} passes from {one.bound:g}x, no faster than one GPU, so it hardly ever fails"
    shares_baseline = one.definition.unit == "fraction" and one.definition.baseline == "alone"
    if shares_baseline and isinstance(ranks, int) and one.bound <= 1 / ranks:
        return f"{one} passes from {one.bound:g}, no faster than one GPU, so it hardly ever fails"
    if not sound or one.bound >= sound * _LEAST_OF_SOUND:
        return ""
    return f"the bound {one.bound:g} of {one} is far below the {sound:g} of a sound machine, so it hardly ever fails"


def _of_link(sku: Sku, one: Requirement) -> str:
    link = sku.peak.link_bandwidth_gbps if sku.peak else None
    if link is None or one.definition not in _OF_LINKS or one.bound <= link:
        return ""
    return (
        f"the bound {one.bound:g} of {one} is above the {link:g} GB/s of a link, which only an all-reduce through a "
        "switch exceeds"
    )


def _odd_names(name: str, sku: Sku) -> Found:
    """Find names that are unsuitable for directories, tests and command lines."""
    aliases: list[tuple[tuple[str | int, ...], str]] = [(("aliases", i), one) for i, one in enumerate(sku.aliases)]
    named = [((), name), *aliases, *((("batch", workload), workload) for workload in sku.workloads)]
    for at, one in named:
        if not _NAME.fullmatch(one):
            yield (
                at,
                f"{one!r} is not a valid name; expected up to {LONGEST_NAME} letters, digits, '.', '_', '+' and '-'",
            )
        if one.casefold() == "auto" and "batch" not in at:
            yield at, "'auto' cannot name a SKU, because --gpu-sku=auto detects the SKU"


def _why_unmeasurable(sku: Sku, requirement: Requirement) -> str:
    if requirement.definition.subject != "workload":
        return ""
    workload = sku.workloads.get(requirement.workload)
    if workload is None:
        known = did_you_mean(requirement.workload, sku.workloads) or f"; it has {', '.join(sku.workloads) or 'none'}"
        return f"this SKU has no `batch` for the workload {requirement.workload!r}{known}"
    try:
        if isinstance(requirement.world_size, int):
            _ = Question(requirement.definition, workload, requirement.world_size).measured
    except ValueError as error:
        return str(error)
    return _why_without_peak(sku, requirement, workload)


def _why_without_peak(sku: Sku, requirement: Requirement, workload: Workload) -> str:
    if not requirement.definition.takes_peak or sku.peak_tflops(workload) is not None:
        return ""
    tf32 = ", the peak of the plain fp32 units, because TF32 is not used" if workload.precision == "fp32" else ""
    key = f"{workload.precision}_tflops"
    return f"{requirement.metric} of {workload.name} needs `{key}: NUMBER` under this SKU's `peak`{tf32}"


_OF_LINKS = (BUSBW_GBPS, PAIR_BANDWIDTH_GBPS)


def _why_unreachable(sku: Sku, one: Requirement) -> str:
    """Why hardware with the SKU's data-sheet values cannot reach a floor; empty if it can, or if none are known."""
    peak = sku.peak
    if peak is None or not one.probe or one.definition.upper_bound:
        return ""
    found = operation(one.probe)
    if one.definition is MEMORY_BANDWIDTH_GBPS:
        return _above(one, peak.memory_bandwidth_gbps, "the memory's peak")
    if one.definition is MATMUL_TFLOPS and found.precision is not None and found.precision != "fp8":
        return _above(one, peak.tflops(found.precision), f"the peak in {found.precision}")
    if one.definition is PAIR_BANDWIDTH_GBPS:
        return _above(one, peak.link_bandwidth_gbps, "the link's bandwidth")
    link = peak.link_bandwidth_gbps
    if one.definition is not BUSBW_GBPS or link is None:
        return ""
    # A switch that reduces (NVLS) takes each byte once: algorithm bandwidth up to the link's, bus bandwidth 2(n-1)/n.
    ranks = one.world_size if isinstance(one.world_size, int) else sku.node.gpus if sku.node and sku.node.gpus else None
    factor = 2.0 if ranks is None or (isinstance(one.world_size, str) and one.world_size != "node") else 2 - 2 / ranks
    return _above(one, factor * link, f"{factor:g} times the {link:g} GB/s of a link (2(n−1)/n)")


def _above(one: Requirement, limit: float | None, what: str) -> str:
    if limit is None or one.bound <= limit:
        return ""
    unit = one.definition.unit
    return f"the bound {one.bound:g} of {one} cannot be reached: {what} is {limit:g} {unit}; expected at most that"
