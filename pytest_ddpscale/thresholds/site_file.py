"""Writes a site's own thresholds.yaml: differences from the packaged file, with examples from a SKU's real rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_ddpscale.plan.metric_catalogue import (
    DEVICE_UTILIZATION,
    EXPOSED_COMMUNICATION,
    PEAK_MEMORY_GIB,
    RANK_UNIFORMITY,
    STRONG_SCALING_EFFICIENCY,
    THROUGHPUT_PER_GPU,
    WEAK_SCALING_EFFICIENCY,
)
from pytest_ddpscale.thresholds.changes import bound_text
from pytest_ddpscale.thresholds.model import Requirement, Sku

_HEAD = """\
# yaml-language-server: $schema=thresholds.schema.json
#
# Thresholds of this site: only the differences from those shipped with pytest-ddpscale.
# {shows}
# `ddpscale thresholds check thresholds.yaml` shows what this file changes.
# To use an example, uncomment it and the source that it names.
schema_version: 2
extends: packaged

sources:
  # {source}
"""
_SOURCE = "site: 'who measured it, when, on which nodes, with which driver, NCCL and torch'"
# Metrics for the examples, in order of preference: those that a site is likely to measure itself first.
_REPLACED = (WEAK_SCALING_EFFICIENCY.name, THROUGHPUT_PER_GPU.name)
_REMOVED = (STRONG_SCALING_EFFICIENCY.name, RANK_UNIFORMITY.name)
_CHANGED = (DEVICE_UTILIZATION.name, PEAK_MEMORY_GIB.name, EXPOSED_COMMUNICATION.name)
_WHOLE_NODE = ("node", 8)
_USUAL_MARGIN_PCT = 2.0
_DIGITS = 4


def site_file(sku: str, of: Sku | None) -> str:
    """The text of a thresholds.yaml that extends the packaged one and initially changes nothing.

    Args:
        sku: name of the SKU for the examples; empty for none.
        of: that SKU, or None.
    """
    if of is None:
        shows = "`ddpscale thresholds show` lists the SKUs; with --gpu-sku NAME it prints a SKU's requirements."
        lines = ["skus:", "  # `ddpscale init --gpu-sku NAME DIR` writes examples of a SKU's rows here."]
    else:
        shows = f"`ddpscale thresholds show --gpu-sku {sku}` prints its requirements."
        lines = ["skus:", f"  {sku}:", *_examples(of)]
    return _HEAD.format(shows=shows, source=_SOURCE) + "\n" + "\n".join(lines) + "\n"


def _examples(sku: Sku) -> list[str]:
    numbers = [one for one in sku.requirements if not one.check and one.definition.only_bound is None]
    provisional = [one for one in numbers if one.provisional]
    replaced = _first(provisional, _REPLACED) or _first(numbers, _REPLACED)
    removed = _first([one for one in numbers if one is not replaced], _REMOVED)
    changed = _first([one for one in numbers if one not in (replaced, removed)], _CHANGED)
    return [
        "    requirements:  # a row replaces the packaged one of the same metric, name and number of GPUs",
        *(_replacing(replaced) if replaced else ()),
        "    remove:  # rows that this site does not require",
        *([f"      # - {{{_name(removed)}}}"] if removed else ()),
        "    change:  # rows with another severity",
        *(_changing(changed) if changed else ()),
    ]


def _replacing(one: Requirement) -> list[str]:
    return [
        f"      # now {bound_text(one)}; replaced by a value measured here (this one gives about the same bound):",
        f"      # - {site_row(one)}",
    ]


def _changing(one: Requirement) -> list[str]:
    other = "fail" if one.severity == "warn" else "warn"
    return [
        f"      # now {bound_text(one)}",
        f"      # - {{{_name(one)}, severity: {other}, because: 'why at this site'}}",
    ]


def _first(requirements: Sequence[Requirement], metrics: Iterable[str]) -> Requirement | None:
    """A requirement on the first of the metrics that has one, preferably on a whole node."""
    for metric in metrics:
        found = [one for one in requirements if one.metric == metric]
        if found:
            return next((one for one in found if one.world_size in _WHOLE_NODE), found[0])
    return None


def site_row(one: Requirement) -> str:
    """A row that replaces a requirement by a site's own value and margin with the same bound."""
    margin = one.source.margin_pct or _USUAL_MARGIN_PCT
    sign = 1 if one.definition.upper_bound else -1
    value = float(f"{one.bound / (1 + sign * margin / 100):.{_DIGITS}g}")
    about = _about(one) + (", baseline: ddp" if one.one_gpu == "ddp" else "")
    return f"{{{one.metric}: {{{one.world_size}: {value:g}}}{about}, published: site, margin: {margin:g} %}}"


def site_example(sku: str, one: Requirement) -> list[str]:
    """A whole thresholds file that replaces one requirement of a SKU."""
    return [
        "schema_version: 2",
        "extends: packaged",
        f"sources: {{{_SOURCE}}}",
        "skus:",
        f"  {sku}:",
        "    requirements:",
        f"      - {site_row(one)}",
    ]


def _name(one: Requirement) -> str:
    """The requirement's name for `remove` and `change`."""
    return f"{one.metric}: [{one.world_size}]{_about(one)}"


def _about(one: Requirement) -> str:
    """The keys that identify a row besides its metric."""
    told = {"of": one.workload, "probe": one.probe, "versus": one.versus or ""}
    placed = ", placement: spread" if one.placement == "spread" else ""
    return "".join(f", {key}: {value}" for key, value in told.items() if value) + placed
