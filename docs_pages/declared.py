"""Pages about causes, commands, metrics, options and keys of thresholds.yaml, written when the site is built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pytest_ddpscale.cli import EXAMPLES, parser_of_commands
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.metric_catalogue import METRICS, Metric
from pytest_ddpscale.report.words.cause_kinds import CAUSES
from pytest_ddpscale.settings import OPTIONS, Option
from pytest_ddpscale.thresholds.form import Change, CheckRow, FileForm, Row, SkuForm
from pytest_ddpscale.thresholds.parts import BatchForm, Detect, Node, Peak, Strict, form_of
from pytest_ddpscale.util.command_parser import commands_of

_METRICS_HEAD = """\
# Metrics

Every metric that a requirement can use. In formulas t is the throughput per GPU of an arm in one round, and k the
number of ranks. A bound outside the range is refused, because every value would pass or fail it.
To add one: [adding](adding.md#a-metric).

| metric | meaning | in one round | bound | range |
| --- | --- | --- | --- | --- |
"""
_OPTIONS_HEAD = """\
# Options of `pytest`

Each option is also an ini key; those that the job scripts in `slurm/` set are environment variables too. The command
line wins over the environment, and the environment over the ini file.

| option | ini key, environment variable | |
| --- | --- | --- |
"""
_KEYS_HEAD = """\
# Keys of thresholds.yaml

[Read and change thresholds.yaml](thresholds.md) explains the file. `thresholds.schema.json` lets editors check it.
"""
# The first of the severities under each title of how-to/rejected.md.
_SEVERITIES = {
    1: "Severity 1 to 3: unusable devices",
    4: "Severity 4: slow links",
    5: "Severity 5: slow devices",
    6: "Severity 6: no device is at fault, or not the hardware",
}
# The mappings of the file, and the place of each.
MAPPINGS: dict[str, tuple[type[Strict], str]] = {
    "File": (FileForm, "the top of the file"),
    "Workload": (form_of(ImageFamily), "`workloads.NAME`"),
    "SKU": (SkuForm, "`skus.NAME`"),
    "Detect": (Detect, "`skus.NAME.detect`"),
    "Peak": (Peak, "`skus.NAME.peak`"),
    "Node": (Node, "`skus.NAME.node`"),
    "Batch": (BatchForm, "`skus.NAME.batch.WORKLOAD`"),
    "Row": (Row, "a row under `skus.NAME.requirements` or `families.NAME`"),
    "Row of checks": (CheckRow, "a row of checks under `skus.NAME.requirements` or `families.NAME`"),
    "Change": (Change, "`skus.NAME.change`, in a file that extends another"),
}
# What stands under the key that is a metric's name.
_OF_METRICS: dict[type[Strict], str] = {
    Row: "A metric: its values by world size, `{8: 480.1}`; the value alone if one fits.",
    Change: "A metric: its world sizes, `[8, all]`, or `any`.",
}


def metrics_page() -> str:
    """A row for each metric."""
    return _METRICS_HEAD + "".join(map(_metric, METRICS.values()))


def options_page() -> str:
    """A row for each option of pytest."""
    return _OPTIONS_HEAD + "".join(map(_option, OPTIONS.values()))


def causes() -> str:
    """A paragraph for each cause, under a title for its severity: the end of how-to/rejected.md."""
    last, parts = 0, [""]
    for name, kind in CAUSES.items():
        begun = max(first for first in _SEVERITIES if first <= kind.severity)
        parts += [f"## {_SEVERITIES[begun]}"] if begun != last else []
        is_never_drained = kind.category == "CHECK" and kind.severity < max(_SEVERITIES)
        always = ", always CHECK" if is_never_drained else ""
        parts.append(f"**{name}** ({kind.severity}{always}): {kind.action}. {kind.paragraph}")
        last = begun
    return "\n\n".join([*parts, ""])


def commands() -> str:
    """A row for each command: the end of commands.md."""
    found = dict(commands_of(parser_of_commands()))
    rows = (_row(f"`ddpscale {example}`", str(found[words].description)) for words, example in EXAMPLES.items())
    return "\n| for example | |\n| --- | --- |\n" + "".join(rows)


def keys_page() -> str:
    """A table of keys for each mapping of thresholds.yaml, from the models that read the file."""
    tables = (
        f"## {title}\n\nAt {where}.\n\n| key | type | default | |\n| --- | --- | --- | --- |\n{''.join(_keys(model))}"
        for title, (model, where) in MAPPINGS.items()
    )
    return "\n".join([_KEYS_HEAD, *tables])


def _metric(metric: Metric) -> str:
    least, most = metric.range_at(1)
    ends = f"{least:g} … {most:g}{' per rank' if metric.grows_with_ranks else ''}"
    unit = "" if metric.unit == "fraction" else f" {metric.unit}"
    meaning = f"{metric.title}. {metric.meaning}"
    return _row(f"`{metric.name}`", meaning, metric.formula, f"`{metric.bound_key}`", f"{ends}{unit}")


def _option(option: Option) -> str:
    flag = f"{option.flag} {option.metavar}" if option.metavar else option.flag
    names = [option.name, *[option.variable] * option.in_environment]
    return _row(f"`{flag}`", ", ".join(f"`{name}`" for name in names), option.help)


def _keys(model: type[Strict]) -> Iterator[str]:
    schema = model.model_json_schema(by_alias=True)
    if model in _OF_METRICS:
        yield _row("`METRIC`", "mapping", "none", _OF_METRICS[model])
    for key, one in schema["properties"].items():
        default = one.get("default")
        shown = f"`{default}`" if default not in (None, "", [], {}) else "none"
        required = key in schema.get("required", ())
        yield _row(f"`{key}`", _type_text(one), "required" if required else shown, one["description"])


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|").replace("<", "&lt;") for cell in cells) + " |\n"


def _type_text(schema: dict[str, Any]) -> str:
    """A JSON schema in words: ``whole number, 1 … 64``, ``one of `fail`, `warn```."""
    if "$ref" in schema:
        return "text" if schema["$ref"].endswith("/PerCent") else "mapping"
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{word}`" for word in schema.get("enum", [schema.get("const")]))
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return _either(_type_text(option) for option in options if option.get("type") != "null")
    match schema.get("type"):
        case "array":
            return f"list; each {_type_text(schema.get('items', {}))}"
        case "object":
            inner = schema.get("additionalProperties")
            return f"mapping by name; each {_type_text(inner)}" if isinstance(inner, dict) else "mapping"
        case "string":
            return "a day, such as `2026-12-31`" if schema.get("format") == "date" else "text"
        case "boolean":
            return "`true` or `false`"
        case kind:
            return {"integer": "whole number", "number": "number"}.get(str(kind), "any value") + _limits(schema)


def _either(texts: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(texts))


def _limits(schema: dict[str, Any]) -> str:
    least, most, above = (schema.get(key) for key in ("minimum", "maximum", "exclusiveMinimum"))
    if above is not None:
        return f" above {above:g}"
    if least is None:
        return ""
    return f", at least {least:g}" if most is None else f", {least:g} … {most:g}"
