"""A page for each key of thresholds.yaml, from the models that read the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs_pages.packaged_rows import entries
from pytest_ddpscale.thresholds.form import (
    BatchForm,
    Change,
    CheckRow,
    FileForm,
    Removal,
    Row,
    SkuForm,
    WaiverRow,
    WorkloadForm,
)
from pytest_ddpscale.thresholds.hardware import Detect, Node, Peak, Strict

# The mappings of the file, and the place of each.
MAPPINGS: dict[str, tuple[type[Strict], str]] = {
    "file": (FileForm, "the top of the file"),
    "workload": (WorkloadForm, "`workloads.NAME`"),
    "sku": (SkuForm, "`skus.NAME`"),
    "detect": (Detect, "`skus.NAME.detect`"),
    "peak": (Peak, "`skus.NAME.peak`"),
    "node": (Node, "`skus.NAME.node`"),
    "batch": (BatchForm, "`skus.NAME.batch.WORKLOAD`"),
    "row": (Row, "a row under `skus.NAME.requirements` or `families.NAME`"),
    "check-row": (CheckRow, "a row of checks under `skus.NAME.requirements` or `families.NAME`"),
    "remove": (Removal, "`skus.NAME.remove`, in a file that extends another"),
    "change": (Change, "`skus.NAME.change`, in a file that extends another"),
    "waiver": (WaiverRow, "`skus.NAME.waivers`"),
}
# Longest example, in lines.
_MOST_LINES = 6


def thresholds_pages(root: Path) -> dict[str, str]:
    """Markdown of each page, by its path from docs/."""
    examples = _examples(root / "thresholds.yaml")
    return {
        f"thresholds/{mapping}/{key}.md": _page(mapping, key, schema, required, examples.get((mapping, key), ""))
        for mapping, (model, _) in MAPPINGS.items()
        for key, schema, required in keys_of(model)
    }


def keys_of(model: type[Strict]) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Each key as the file has it, its JSON schema, and whether it is required."""
    schema = model.model_json_schema(by_alias=True)
    for key, one in schema["properties"].items():
        if key != "world_sizes":  # written as the value of the metric's key
            yield key, one, key in schema.get("required", ())


def _page(mapping: str, key: str, schema: dict[str, Any], required: bool, example: str) -> str:
    model, where = MAPPINGS[mapping]
    default = schema.get("default")
    told = {
        "place": where,
        "type": _type_text(schema),
        "default": "required" if required else f"`{default}`" if default not in (None, "", [], {}) else "none",
    }
    table = "".join(f"| {name} | {text.replace('|', chr(92) + '|')} |\n" for name, text in told.items())
    what = (model.__doc__ or "").splitlines()[0]
    shown = f"\n## In the packaged file\n\n```yaml\n{example}\n```\n" if example else ""
    return (
        f"# {_title(mapping, key)}\n\n{schema.get('description', '')}\n\n| | |\n| --- | --- |\n{table}\n"
        f"Key of: {what}\n{shown}\n"
        "[Read and change thresholds.yaml](../../thresholds.md) · [Change bounds for a site]"
        "(../../how-to/site-thresholds.md) · [Waive a failure](../../how-to/waiver.md)\n"
    )


def _title(mapping: str, key: str) -> str:
    if key in ("metrics", "metric"):  # a metric's own name is the key
        return f"`METRIC` ({mapping})"
    return f"`{key}` ({mapping.replace('-', ' ')})"


def _type_text(schema: dict[str, Any]) -> str:
    """A JSON schema in words: ``whole number, 1 … 64``, ``one of `fail`, `warn```."""
    if "$ref" in schema:
        return "mapping, with keys of its own"
    if "enum" in schema or "const" in schema:
        words = schema.get("enum", [schema.get("const")])
        return ("one of " if len(words) > 1 else "") + ", ".join(f"`{word}`" for word in words)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        texts = [_type_text(one) for one in options if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(texts))
    kind = schema.get("type")
    if kind == "array":
        return f"list; each {_type_text(schema.get('items', {}))}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"mapping by name; each {_type_text(inner)}" if isinstance(inner, dict) else "mapping"
    plain = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true` or `false`"}
    text = "a day, such as `2026-12-31`" if schema.get("format") == "date" else plain.get(str(kind), "any value")
    return text + _limits(schema)


def _limits(schema: dict[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    above = schema.get("exclusiveMinimum")
    if above is not None:
        return f" above {above:g}"
    if least is not None and most is not None:
        return f", {least:g} … {most:g}"
    return f", at least {least:g}" if least is not None else ""


def _examples(file: Path) -> dict[tuple[str, str], str]:
    """The first entry of each key that is not too long, by mapping and key."""
    found: dict[tuple[str, str], str] = {}
    for path, text in entries(file):
        mapping = _mapping_of(path)
        if mapping and len(text.splitlines()) <= _MOST_LINES:
            found.setdefault((mapping, path[-1]), text)
    return found


def _mapping_of(path: tuple[str, ...]) -> str:
    """The mapping that the last key of a path belongs to; empty for names and for deeper keys."""
    match path:
        case (_,):
            return "file"
        case ("workloads", _, _):
            return "workload"
        case ("skus", _, _):
            return "sku"
        case ("skus", _, "detect" | "peak" | "node" as mapping, _):
            return mapping
        case ("skus", _, "batch", _, _):
            return "batch"
        case (*_, "-", "check"):
            return "check-row"
        case ("skus", _, "requirements", "-", _) | ("families", _, "-", _):
            return "row"
    return ""
