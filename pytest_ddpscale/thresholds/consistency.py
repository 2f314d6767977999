"""Contradictions within and between SKUs whose parts are well-formed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pytest_ddpscale.plan.metric import measured_arm
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.workload import Workload, incomparable_fields
from pytest_ddpscale.thresholds.form import did_you_mean
from pytest_ddpscale.thresholds.model import Requirement, Sku, Thresholds

# Names begin with a letter or digit, so they cannot look like a path or an option.
LONGEST_NAME = 64
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{LONGEST_NAME - 1}}}")
# A place below the SKU or the requirement at fault, and a sentence.
Found = Iterator[tuple[tuple[str | int, ...] | Requirement, str]]


def contradictions(name: str, sku: Sku) -> Found:
    """Contradictions between parts of a SKU."""
    for find in (_odd_names, _loose_warnings, _meaningless_checks, _unmeasurable):
        yield from find(name, sku)


def clashing_names(skus: Mapping[str, Sku]) -> Iterator[tuple[str, int, str]]:
    """Aliases that already name another SKU: the SKU, the index of its alias, and a sentence."""
    owner = {name.casefold(): name for name in skus}
    for name, sku in skus.items():
        for i, alias in enumerate(sku.aliases):
            taken = owner.setdefault(alias.casefold(), "")
            if taken:
                yield name, i, f"alias {alias!r} already names {taken}"
            owner[alias.casefold()] = name


def why_incomparable(skus: Mapping[str, Sku], sku: Sku, requirement: Requirement) -> str:
    """Why a requirement cannot be compared with its reference SKU; empty if it can, or if that SKU does not exist.

    Args:
        skus: valid SKUs.
        sku: the SKU of the requirement.
        requirement: a requirement on any metric.
    """
    reference = None if requirement.versus_run else skus.get(requirement.versus or "")
    if reference is None:
        owner = next((name for name, one in skus.items() if requirement.versus in one.aliases), None)
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


def _loose_warnings(_: str, sku: Sku) -> Found:
    fails = {one.key(): one for one in sku.requirements if one.severity == "fail"}
    for warn in sku.requirements:
        fail = fails.get(warn.key())
        if warn.severity == "warn" and fail is not None and _warns_later(warn.bound, fail.bound, fail):
            yield warn, f"{warn}: the warn bound is not stricter than the fail bound, so it never warns"


def _warns_later(warn: float, fail: float, requirement: Requirement) -> bool:
    return warn >= fail if requirement.definition.upper_bound else warn <= fail


def _meaningless_checks(_: str, sku: Sku) -> Found:
    """Find GPU checks of a CPU SKU, which no run could pass."""
    on_cpu = [name for name, check in NODE_CHECKS.items() if check.on_cpu]
    for one in sku.requirements if sku.detect.device == "cpu" else ():
        if one.check and one.check not in on_cpu:
            yield one, f"check {one.check!r} does not apply without a GPU; expected some of {', '.join(on_cpu)}"


def _unmeasurable(_: str, sku: Sku) -> Found:
    for requirement in sku.requirements:
        why = _why_unmeasurable(sku, requirement)
        if why:
            yield requirement, why


def _why_unmeasurable(sku: Sku, requirement: Requirement) -> str:
    if requirement.definition.subject != "workload":
        return ""
    workload = sku.workloads.get(requirement.workload)
    if workload is None:
        known = did_you_mean(requirement.workload, sku.workloads) or f"; it has {', '.join(sku.workloads) or 'none'}"
        return f"this SKU has no `batch` for the workload {requirement.workload!r}{known}"
    try:
        if isinstance(requirement.world_size, int):
            measured_arm(requirement.definition, workload, requirement.world_size)
    except ValueError as error:
        return str(error)
    return _why_without_peak(sku, requirement, workload)


def _why_without_peak(sku: Sku, requirement: Requirement, workload: Workload) -> str:
    if not requirement.definition.takes_peak or sku.peak_tflops(workload) is not None:
        return ""
    tf32 = ", the peak of the plain fp32 units, because TF32 is not used" if workload.precision == "fp32" else ""
    key = f"{workload.precision}_tflops"
    return f"{requirement.metric} of {workload.name} needs `{key}: NUMBER` under this SKU's `peak`{tf32}"
