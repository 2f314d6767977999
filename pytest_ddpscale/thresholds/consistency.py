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
    THROUGHPUT_PER_GPU,
)
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.operation import operation
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.workload import incomparable_fields
from pytest_ddpscale.thresholds.model import Requirement, Sku, Thresholds, why_it_stands
from pytest_ddpscale.util.nearest import did_you_mean

# Names begin with a letter or digit, so they cannot look like a path or an option.
LONGEST_NAME = 64
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{LONGEST_NAME - 1}}}")
# A floor below this part of what a sound machine reaches finds only what stands still.
_LEAST_OF_SOUND = 0.1
# A place below the SKU or the requirement at fault, and a sentence.
Contradictions: TypeAlias = Iterator[tuple[tuple[str | int, ...] | Requirement, str]]


def contradictions(sku: Sku) -> Contradictions:
    """Contradictions between parts of a SKU."""
    on_cpu = [check for check, node_check in NODE_CHECKS.items() if node_check.on_cpu]
    for requirement in sku.requirements:
        if sku.detect.device == "cpu" and requirement.check and requirement.check not in on_cpu:
            yield requirement, f"check {requirement.check!r} needs a GPU; expected some of {', '.join(on_cpu)}"
        why = _why_unmeasurable(sku, requirement) or _why_unreachable(sku, requirement)
        if why:
            yield requirement, why


def odd_names(skus: Mapping[str, Sku]) -> Iterator[tuple[str, tuple[str | int, ...], str]]:
    """Names that are taken, or unsuitable for directories, tests and command lines: the SKU, the place, a sentence."""
    named = [(name, (), name) for name in skus]
    aliases = [(name, ("aliases", i), one) for name, sku in skus.items() for i, one in enumerate(sku.aliases)]
    batches = [(name, ("batch", workload), workload) for name, sku in skus.items() for workload in sku.workloads]
    for name, at, one in (*named, *aliases, *batches):
        if not _NAME.fullmatch(one):
            yield name, at, f"{one!r} is not a valid name; expected {LONGEST_NAME} letters, digits, '._+-'"
    owner = {"auto": "what detects the SKU (--gpu-sku=auto)"}
    for name, at, one in (*named, *aliases):
        if one.casefold() in owner:
            yield name, at, f"{one!r} already names {owner[one.casefold()]}; expected another name, in whatever case"
        owner.setdefault(one.casefold(), name)


def why_incomparable(skus: Mapping[str, Sku], name: str, requirement: Requirement) -> str:
    """Why a ratio cannot be compared with its reference SKU; empty if it can.

    Args:
        skus: those of the file.
        name: the SKU of the ratio.
        requirement: the ratio.
    """
    sku, versus = skus[name], requirement.versus or ""
    if versus in (name, *sku.aliases):
        return f"versus {versus}: a ratio to itself says nothing; expected another SKU"
    if versus not in skus:
        owner = next((other for other, other_sku in skus.items() if versus in other_sku.aliases), None)
        near = f" is an alias; expected {owner!r}" if owner else f" is not in this file{did_you_mean(versus, skus)}"
        return f"versus {versus!r}{near}"
    workload, theirs = (of_sku.workloads.get(requirement.workload) for of_sku in (sku, skus[versus]))
    if theirs is None:
        return f"versus {versus}: it has no workload {requirement.workload!r} to compare with"
    different = incomparable_fields(workload, theirs) if workload else []
    if different:
        reason = f"{requirement.workload} differs there in {', '.join(different)}"
        return f"versus {versus}: {reason}, so the ratio is meaningless"
    try:
        Thresholds(skus).reference_throughput(requirement)
    except LookupError as error:
        return f"{error}: add a row that is `published`"
    return ""


def why_more_than_changed(before: Sku, after: Sku) -> Contradictions:
    """Requirements that no site may remove or let only warn, and that a file does, however it is written."""
    now = {requirement.key(): requirement for requirement in after.requirements}
    for was in before.requirements:
        why, requirement = why_it_stands(was), now.get(was.key())
        if why and requirement is None:
            yield (), f"{was} is required by the file below and not here; it has to stand: {why}"
        elif why and requirement is not None and (was.severity, requirement.severity) == ("fail", "warn"):
            yield requirement, f"{was} fails in the file below and only warns here; it has to stand: {why}"


def remarks(sku: Sku) -> Iterator[tuple[Requirement, str]]:
    """A site's floors that hardly any GPU misses, which may be meant; tests see to those of the packaged file."""
    for row in sku.requirements:
        is_floor = not row.definition.upper_bound and row.definition.only_bound is None
        if not row.source.is_site or row.check or not is_floor or sku.detect.device != "cuda":
            continue
        ranks, sound = row.world_size, row.sound_value
        shares_baseline = row.definition.unit == "fraction" and row.definition.baseline == "alone"
        of_one = 1 / ranks if shares_baseline and isinstance(ranks, int) else 0.0
        if row.bound <= (1 if row.metric == STRONG_SCALING_SPEEDUP.name else of_one):
            yield row, f"{row} passes from {row.bound:g}, no faster than one GPU: it hardly ever fails"
        elif sound and row.bound < sound * _LEAST_OF_SOUND:
            of_sound = f"is far below the {sound:g} of a sound machine, so it hardly ever fails"
            yield row, f"the bound {row.bound:g} of {row} {of_sound}"


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
    if not requirement.definition.takes_peak or sku.peak_tflops(workload) is not None:
        return ""
    tf32 = ", the peak of the plain fp32 units, because TF32 is not used" if workload.precision == "fp32" else ""
    key = f"{workload.precision}_tflops"
    return f"{requirement.metric} of {workload.name} needs `{key}: NUMBER` under `peak`{tf32}"


def _why_unreachable(sku: Sku, row: Requirement) -> str:
    """Why hardware with the SKU's data-sheet values cannot reach a floor; empty if it can, or if none are known."""
    peak, workload, metric = sku.peak, sku.workloads.get(row.workload), row.definition
    if peak is None or metric.upper_bound:
        return ""
    limit, what = None, ""
    link, precision = peak.link_bandwidth_gbps, operation(row.probe).precision if row.probe else None
    if metric is THROUGHPUT_PER_GPU and workload is not None:
        most, flops = peak.tflops(workload.precision), workload.family.flops_per_sample
        limit = most * 1e12 / flops if most and flops else None
        what = f"the peak in {workload.precision}"
    elif metric is MEMORY_BANDWIDTH_GBPS:
        limit, what = peak.memory_bandwidth_gbps, "the memory's peak"
    elif metric is MATMUL_TFLOPS and precision is not None and precision != "fp8":
        limit, what = peak.tflops(precision), f"the peak in {precision}"
    elif metric is PAIR_BANDWIDTH_GBPS:
        limit, what = link, "the link's bandwidth"
    elif metric is BUSBW_GBPS and link is not None:
        # A switch that reduces (NVLS) takes each byte once: algorithm bandwidth up to the link's, bus 2(n-1)/n of it.
        of_node = sku.node.gpus if sku.node and row.world_size == "node" else None
        ranks = row.world_size if isinstance(row.world_size, int) else of_node
        factor = 2 - 2 / ranks if ranks else 2.0
        limit, what = factor * link, f"{factor:g} times the {link:g} GB/s of a link (2(n−1)/n)"
    if limit is None or row.bound <= limit:
        return ""
    unit = sku.unit_of(row)
    return f"the bound {row.bound:g} of {row} cannot be reached; expected at most {what}, {limit:g} {unit}"
