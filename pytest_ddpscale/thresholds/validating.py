"""Validates parts of a thresholds file; every error has file, line, what was found and what was expected.

Also the entries that rows name: sources, reasons, margins, workloads and families. They are validated when first used,
so that a mistake in one is an error only for what uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.removed import REMOVED
from pytest_ddpscale.thresholds.form import (
    ROW_METRICS,
    TAGS,
    AnyRow,
    Margin,
    PerCent,
    SkuForm,
)
from pytest_ddpscale.thresholds.parts import Text, WorkloadForm, workload_form
from pytest_ddpscale.thresholds.reading import Layer, Mark, dotted, placed, shown, what_next
from pytest_ddpscale.util.nearest import did_you_mean

_UNKNOWN = "extra_forbidden"
# More errors at once would not be read.
MOST_PROBLEMS = 100
_FORMER_KEYS = {
    "remove": "`change: [{METRIC: SIZES, of: NAME, severity: off, who: NAME, why: WHY}]`",
    "waivers": "`change: [{METRIC: SIZES, of: NAME, severity: warn, until: DAY, who: NAME, why: WHY}]`",
}


class PartError(Exception):
    """Errors of one part of a file.

    Args:
        problems: at least one.
    """

    def __init__(self, *problems: ThresholdsError) -> None:
        super().__init__(*problems)
        self.problems = problems


def validated(form: Any, data: Any, mark: Mark) -> Any:
    """Validate a part of a file, as read, that stands at `mark`. Raises PartError if it does not match the form."""
    try:
        return _adapter(form).validate_python(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        found.sort(key=lambda one: one["type"] != _UNKNOWN)  # first, as a misspelt key explains a missing one
        raise PartError(*(_problem(form, one, data, mark) for one in found[:MOST_PROBLEMS])) from None


@cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)


def _problem(form: Any, error: Any, data: Any, mark: Mark) -> ThresholdsError:
    place = placed(data, error["loc"], mark, _is_pydantics_own)
    found, expected, action = _explain(form, error, place)
    return ThresholdsError(place.where, found, expected, f"{action} {what_next(place.path)}".strip())


def _is_pydantics_own(part: Any, data: Any) -> bool:
    """Whether a part of an error's path is not in the file: a tag, or what stands for the keys that are metrics."""
    return part in ("[key]", *TAGS) or (part == "metrics" and isinstance(data, dict) and part not in data)


def _explain(form: Any, error: Any, place: Mark) -> tuple[str, str, str]:
    """Pydantic's error as found, expected, action."""
    kind, message, value, name = error["type"], error["msg"], error["input"], dotted(place.at)
    if instead := REMOVED.get(f"thresholds {place.at[-1] if place.at else ''}: {value}"):
        return f"{name}: {value} was removed; instead: {instead}", "", "Correct that value."
    if kind == _UNKNOWN:
        key = str(place.at[-1])
        if form is SkuForm and key in _FORMER_KEYS and len(error["loc"]) == 1:
            return f"{name} is replaced by `change`", _FORMER_KEYS[key], "Write its rows so."
        if instead := REMOVED.get(f"thresholds {key}"):
            return f"{name} was removed; instead: {instead}", "", "Remove it."
        near = did_you_mean(key, _keys(form, error["loc"][:-1]))
        return f"unknown key {name}{near}", "", "Remove it, or correct its spelling."
    if kind.startswith("missing"):
        return f"{name} is missing", "a value", "Add it."
    if kind == "value_error":
        return f"{name}: {message.removeprefix('Value error, ')}", "", "Correct that entry."
    if kind in {"int_type", "float_type"} and _looks_like_a_number(value):
        action = "Write it as a plain decimal number, without quotes: YAML 1.1 reads 1e3 and 08 as text."
        return f"{name} is the text {value!r}", "a number", action
    expected = "a mapping" if kind in {"dict_type", "model_type"} else message.removeprefix("Input should be ")
    expected = "a day such as 2026-12-31, without quotes or a time" if kind.startswith("date") else expected
    expected = expected.removeprefix("a valid ")
    return f"{name} is {shown(value)}", expected, "Correct that value."


def _keys(form: Any, loc: tuple[Any, ...]) -> list[str]:
    """Keys of the form at a place below `form`."""
    for part in loc:
        fields = getattr(form, "model_fields", {})
        form = fields[part].annotation if part in fields else (get_args(form) or (None,))[-1]
        form = next((one for one in get_args(form) if isinstance(one, type) and issubclass(one, BaseModel)), form)
    fields = getattr(form, "model_fields", {})
    return [field.alias or name for name, field in fields.items()]


def _looks_like_a_number(value: Any) -> bool:
    try:
        return isinstance(value, str) and float(value) is not None
    except ValueError:
        return False


class Names:
    """The entries that rows may name; if several files have a name, the nearest one's.

    Args:
        layers: the files, the nearest last.
    """

    FORMS: Mapping[str, Any] = {
        "sources": Text,
        "reasons": Text,
        "margins": Margin,
        "workloads": WorkloadForm,
        "families": list[AnyRow],
    }

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._entries: dict[str, dict[str, tuple[Any, Mark]]] = {kind: {} for kind in self.FORMS}
        self._found: dict[tuple[str, str], Any] = {}
        self._odd: dict[tuple[Any, ...], list[ThresholdsError]] = {}
        for layer in layers:
            for kind, known in self._entries.items():
                section = layer.section(kind)
                known.update({name: (data, section.marks[name]) for name, data in section.items()})
                self._odd |= {(kind, name): [] for name in section}
            for at, error in layer.odd:
                self._odd.setdefault(at[:2], []).append(error)

    def all_of(self, kind: str) -> Mapping[str, tuple[Any, Mark]]:
        """The entries of a kind, unchecked, with their places."""
        return self._entries[kind]

    def get(self, kind: str, name: str, by: Mark) -> Any:
        """The entry of a name, which the entry at `by` uses. Raises PartError if it does not exist or is not valid."""
        known = self._entries[kind]
        if name not in known:
            near = did_you_mean(name, known) or f"; expected one of {', '.join(known) or 'none'}"
            raise PartError(by.error(f"there is no {name!r} under `{kind}`{near}"))
        return self.checked(kind, name)

    def checked(self, kind: str, name: str) -> Any:
        """An entry that exists. Raises PartError if it is not valid."""
        if (kind, name) not in self._found:
            try:
                self._found[kind, name] = self._validated(kind, name)
            except PartError as error:
                self._found[kind, name] = error
        if isinstance(self._found[kind, name], PartError):
            raise self._found[kind, name]
        return self._found[kind, name]

    def _validated(self, kind: str, name: str) -> Any:
        if odd := self._odd.get((kind, name)):
            raise PartError(*odd)
        data, mark = self._entries[kind][name]
        is_metric = kind == "margins" and name in ROW_METRICS
        form = PerCent if is_metric else workload_form(data) if kind == "workloads" else self.FORMS[kind]
        found = validated(form, data, mark)
        if kind == "margins" and not is_metric and (near := did_you_mean(name, ROW_METRICS, 0.8)):
            raise PartError(mark.error(f"{name!r} is no metric{near}", "Correct it, or choose another name."))
        return found

    def reason(self, text: str, by: Mark) -> str:
        """The text of `because` or `provisional`, given directly or by name. Raises PartError for a misspelt name."""
        if text in self._entries["reasons"]:
            return str(self.checked("reasons", text))
        near = "" if " " in text else did_you_mean(text, self._entries["reasons"])
        if near:
            raise PartError(by.error(f"there is no {text!r} under `reasons`{near}"))
        return text

    def metric_margin(self, metric: str) -> float | None:
        """The margin of a metric, in per cent; None without one. Raises PartError."""
        return float(self.checked("margins", metric)) if metric in self._entries["margins"] else None
