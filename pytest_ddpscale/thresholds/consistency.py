"""What is wrong between parts of a thresholds file that are each well-formed."""

from __future__ import annotations

import difflib
import re
from typing import Any

from pytest_ddpscale.plan.metric import measured_arm
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.torchvision_models import TORCHVISION_MODELS
from pytest_ddpscale.plan.workload import Workload, incomparable_fields
from pytest_ddpscale.thresholds.model import Requirement, Sku, Thresholds

# A name that begins with a letter or digit is no path and no option.
LONGEST_NAME = 64
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{LONGEST_NAME - 1}}}")
Found = list[tuple[tuple[str | int, ...], str]]


def contradictions(thresholds: Thresholds) -> list[tuple[tuple[str | int, ...], str]]:
    """Everything wrong between parts of a file that are each well-formed.

    Returns:
        Pairs of a path into the file, for its line number, and a sentence.
    """
    found = [_odd_names, _unknown_models, _clashing_names, _clashing_requirements, _meaningless_checks, _unmeasurable]
    return [one for find in found for one in find(thresholds)]


def _odd_names(thresholds: Thresholds) -> Found:
    """Names become names of directories and tests, and are typed on command lines."""
    named: list[tuple[tuple[str | int, ...], str]] = []
    for name, sku in thresholds.skus.items():
        named.append((("skus", name), name))
        named += [(("skus", name, "aliases", i), alias) for i, alias in enumerate(sku.aliases)]
        named += [(("skus", name, "workloads", workload), workload) for workload in sku.workloads]
    found: Found = [
        (at, f"{name!r} is no name; expected up to {LONGEST_NAME} letters, digits, '.', '_', '+' and '-'")
        for at, name in named
        if not _NAME.fullmatch(name)
    ]
    found += [
        (at, "'auto' cannot name a SKU: --gpu-sku=auto asks which it is")
        for at, name in named
        if name == "auto" and "workloads" not in at
    ]
    return found


def _unknown_models(thresholds: Thresholds) -> Found:
    found: Found = []
    for name, sku in thresholds.skus.items():
        for workload in sku.workloads.values():
            if workload.model not in TORCHVISION_MODELS:
                near = difflib.get_close_matches(workload.model, sorted(TORCHVISION_MODELS), n=1)
                hint = f", such as {near[0]}" if near else ""
                sentence = f"torchvision has no model {workload.model!r}; expected a classification model of it{hint}"
                found.append((("skus", name, "workloads", workload.name, "model"), sentence))
    return found


def _clashing_names(thresholds: Thresholds) -> Found:
    found: Found = []
    owner = {name: name for name in thresholds.skus}
    for name, sku in thresholds.skus.items():
        for i, alias in enumerate(sku.aliases):
            if alias in owner:
                found.append((("skus", name, "aliases", i), f"alias {alias!r} already names {owner[alias]}"))
            owner[alias] = name
    return found


def _clashing_requirements(thresholds: Thresholds) -> Found:
    found: Found = []
    for name, sku in thresholds.skus.items():
        seen: dict[tuple[Any, ...], Requirement] = {}
        for i, requirement in enumerate(sku.requirements):
            path, label = ("skus", name, "requirements", i), _label(requirement)
            if requirement.check in sku.checks:
                found.append((path, f"{requirement.metric} of {requirement.check} is required twice: see `checks`"))
            key = (*requirement.key(), requirement.severity)
            twin = seen.get(key)
            if twin is not None:
                found.append((path, f"{label} is required twice: {twin.bound:g} and {requirement.bound:g}"))
            seen[key] = requirement
            other = seen.get((*requirement.key(), "warn" if requirement.severity == "fail" else "fail"))
            if other is not None and _warns_later_than_it_fails(requirement, other):
                found.append((path, f"{label}: the warn bound is looser than the fail bound, so it never warns"))
    return found


def _warns_later_than_it_fails(one: Requirement, other: Requirement) -> bool:
    warn, fail = (one, other) if one.severity == "warn" else (other, one)
    return warn.bound >= fail.bound if warn.definition.upper_bound else warn.bound <= fail.bound


def _meaningless_checks(thresholds: Thresholds) -> Found:
    """Checks of GPUs that are asked of a CPU: no run could ever pass them."""
    found: Found = []
    on_cpu = [name for name, check in NODE_CHECKS.items() if check.on_cpu]
    for name, sku in thresholds.skus.items():
        if sku.detect.device != "cpu":
            continue
        asked: list[tuple[str, tuple[str | int, ...]]] = [(check, ("checks", check)) for check in sku.checks]
        asked += [(one.check, ("requirements", i)) for i, one in enumerate(sku.requirements) if one.check]
        for check, path in asked:
            if check not in on_cpu:
                sentence = f"check {check!r} means nothing without a GPU; expected some of {', '.join(on_cpu)}"
                found.append((("skus", name, *path), sentence))
    return found


def _unmeasurable(thresholds: Thresholds) -> Found:
    found: Found = []
    for name, sku in thresholds.skus.items():
        for i, requirement in enumerate(sku.requirements):
            reason = _why_unmeasurable(thresholds, sku, requirement)
            if reason is not None:
                found.append((("skus", name, "requirements", i), reason))
    return found


def _why_unmeasurable(thresholds: Thresholds, sku: Sku, requirement: Requirement) -> str | None:
    if requirement.definition.subject != "workload":
        return None
    workload = sku.workloads.get(requirement.workload)
    if workload is None:
        known = ", ".join(sku.workloads) or "none"
        return f"workload {requirement.workload!r} is not defined for this SKU; its workloads: {known}"
    try:
        if isinstance(requirement.world_size, int):
            measured_arm(requirement.definition, workload, requirement.world_size)
    except ValueError as error:
        return str(error)
    if requirement.definition.takes_peak and sku.peak_tflops(workload) is None:
        tf32 = ", that of the plain fp32 units, for TF32 is not used" if workload.precision == "fp32" else ""
        key = f"{workload.precision}_tflops"
        return f"{requirement.metric} of {workload.name} needs `{key}: NUMBER` under this SKU's `peak`{tf32}"
    return _why_incomparable(thresholds, workload, requirement) if requirement.versus else None


def _why_incomparable(thresholds: Thresholds, workload: Workload, requirement: Requirement) -> str | None:
    reference = thresholds.skus.get(requirement.versus or "")
    if reference is None:
        return f"versus {requirement.versus!r} is no SKU of this file (an alias will not do)"
    theirs = reference.workloads.get(requirement.workload)
    if theirs is None:
        return f"versus {requirement.versus}: it has no workload {requirement.workload!r} to compare with"
    different = incomparable_fields(workload, theirs)
    if different:
        fields = ", ".join(different)
        return f"versus {requirement.versus}: {requirement.workload} differs in {fields}, so no ratio is meaningful"
    try:
        thresholds.reference_throughput(requirement)
    except LookupError as error:
        return f"{error}: add one with `source: {{measured: …}}`"
    return None


def _label(requirement: Requirement) -> str:
    placed = ", spread" if requirement.placement == "spread" else ""
    return f"{requirement.metric} of {requirement.subject or 'nodes'} at world size {requirement.world_size}{placed}"
