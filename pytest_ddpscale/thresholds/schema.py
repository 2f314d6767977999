"""The JSON schema of thresholds.yaml, for completion and checks in editors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.thresholds.form import ROW_METRICS, FileForm
from pytest_ddpscale.thresholds.layer import ROW_LISTS, SECTIONS

_NUMBER = {"type": "number", "minimum": 0}


def json_schema_text() -> str:
    """The schema, as shipped beside thresholds.yaml."""
    schema = FileForm.model_json_schema(mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "pytest-ddpscale thresholds"
    forms = schema["$defs"]
    values = forms["Row"]["properties"]["metrics"]["additionalProperties"]
    forms["Values"] = {"anyOf": [values, _NUMBER]}
    forms["PerCent"] = forms["NamedMargin"]["properties"]["metrics"]["additionalProperties"]
    _name_metrics(forms["Row"], "metrics", {"$ref": "#/$defs/Values"})
    _name_metrics(forms["NamedMargin"], "metrics", {"$ref": "#/$defs/PerCent"})
    sizes = forms["Removal"]["properties"]["world_sizes"]
    forms["WorldSizes"] = {"anyOf": [sizes, sizes["items"], {"const": "any"}]}
    for form in (forms["Removal"], forms["Change"], forms["WaiverRow"]):
        form["properties"].pop("world_sizes")
        _name_metrics(form, "metric", {"$ref": "#/$defs/WorldSizes"})
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
