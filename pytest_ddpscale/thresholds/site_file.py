"""What `ddpscale init` writes: a site's own thresholds.yaml, from a template, and the JSON schema for editors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.thresholds.form import ROW_METRICS, FileForm
from pytest_ddpscale.thresholds.model import Requirement
from pytest_ddpscale.thresholds.reading import ROW_LISTS, SECTIONS

_SOURCE = "site: 'who measured it, when, on which nodes, with which driver, NCCL and torch'"
_TEMPLATE = f"""\
# yaml-language-server: $schema=thresholds.schema.json
#
# Thresholds of this site: only the differences from those shipped with pytest-ddpscale.
# `ddpscale thresholds show --gpu-sku SKU` prints the requirements of a GPU model, one row each.
# `ddpscale thresholds check thresholds.yaml` shows what this file changes.
# To use an example, uncomment it, and name a row that `show` prints.
schema_version: 2
extends: packaged

sources:
  # {_SOURCE}

skus:
  # SKU:
  #   requirements:  # a row replaces the one below of the same metric, name and number of GPUs
  #     - {{weak_scaling_efficiency: {{node: 0.98}}, of: resnet152-fp16, published: site, margin: 2 %}}
  #   change:  # rows with another severity or bound; `off`: not required here
  #     - {{device_utilization: any, of: resnet152-fp16, severity: warn, who: NAME, why: 'why at this site'}}
  #     # a waiver: the row fails, and the run is accepted with waivers until that day
  #     - {{matmul_tflops: any, probe: matmul-bf16, severity: warn, until: 2027-03-01, who: NAME, why: 'ticket 4711'}}
"""
_USUAL_MARGIN_PCT = 2.0
_DIGITS = 4
_NUMBER = {"type": "number", "minimum": 0}


def site_file(sku: str) -> str:
    """The text of a thresholds.yaml that extends the packaged one and changes nothing yet.

    Args:
        sku: name of the SKU in the examples; empty for none.
    """
    return _TEMPLATE.replace("SKU", sku) if sku else _TEMPLATE


def site_row(one: Requirement) -> str:
    """A row that replaces a requirement by a site's own value and margin with the same bound."""
    margin = one.source.margin_pct or _USUAL_MARGIN_PCT
    sign = 1 if one.definition.upper_bound else -1
    value = float(f"{one.bound / (1 + sign * margin / 100):.{_DIGITS}g}")
    told = {"of": one.workload, "probe": one.probe, "versus": one.versus or ""}
    about = "".join(f", {key}: {value}" for key, value in told.items() if value)
    about += ", placement: spread" if one.placement == "spread" else ""
    about += ", baseline: ddp" if one.one_gpu == "ddp" else ""
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


def json_schema_text() -> str:
    """The JSON schema of thresholds.yaml, for completion and checks in editors."""
    schema = FileForm.model_json_schema(mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "pytest-ddpscale thresholds"
    forms = schema["$defs"]
    values = forms["Row"]["properties"]["metrics"]["additionalProperties"]
    forms["Values"] = {"anyOf": [values, _NUMBER]}
    forms["PerCent"] = forms["NamedMargin"]["properties"]["metrics"]["additionalProperties"]
    _name_metrics(forms["Row"], "metrics", {"$ref": "#/$defs/Values"})
    _name_metrics(forms["NamedMargin"], "metrics", {"$ref": "#/$defs/PerCent"})
    sizes = forms["Change"]["properties"].pop("world_sizes")
    forms["WorldSizes"] = {"anyOf": [sizes, sizes["items"], {"const": "any"}]}
    _name_metrics(forms["Change"], "metric", {"$ref": "#/$defs/WorldSizes"})
    del forms["SkuForm"]["required"]  # a file that extends another has only the differences
    _allow_empty([schema["properties"][name] for name in SECTIONS])
    _allow_empty([forms["SkuForm"], *(forms["SkuForm"]["properties"][name] for name in ROW_LISTS)])
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _allow_empty(sections: Iterable[dict[str, Any]]) -> None:
    """Allow sections with only comments, as in a file that extends another."""
    for section in sections:
        section["type"] = [section["type"], "null"]


def _name_metrics(form: dict[str, Any], key: str, values: dict[str, Any]) -> None:
    """Replace the key that stands for all metrics by one key per metric, as written in files."""
    others = {name: one for name, one in form["properties"].items() if name != key}
    named = {name: {**values, "description": METRICS[name].meaning} for name in ROW_METRICS}
    form["properties"] = {**named, **others}
    form["required"] = [name for name in form.get("required", []) if name != key]
