"""Validates one part of a thresholds file against its form; every error has file, line and expectation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.thresholds.form import PARTS, WHOLE, did_you_mean
from pytest_ddpscale.thresholds.layer import YamlPath, dotted, shown, what_next

_UNKNOWN = "extra_forbidden"
Where = Callable[[YamlPath], str]


class PartError(Exception):
    """Errors of one part of a file.

    Args:
        problems: at least one.
    """

    def __init__(self, *problems: ThresholdsError) -> None:
        super().__init__(*problems)
        self.problems = problems


def validated(form: Any, data: Any, at: YamlPath, where: Where, path: Path) -> Any:
    """Validate a part of a file.

    Args:
        form: the type that it must have.
        data: the part as read.
        at: its path in the file.
        where: gives the line of a path.
        path: the file, for messages.

    Raises:
        PartError: it does not match the form.
    """
    try:
        return _adapter(form).validate_python(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        found.sort(key=lambda one: one["type"] != _UNKNOWN)  # first, as a misspelt key explains a missing one
        raise PartError(*(_problem(form, one, data, at, where, path) for one in found)) from None


@cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)


def _problem(form: Any, error: Any, data: Any, at: YamlPath, where: Where, path: Path) -> ThresholdsError:
    loc = (*at, *_as_written(data, error["loc"]))
    found, expected, action = _explain(form, error, loc)
    return ThresholdsError(where(loc), found, expected, f"{action} {what_next(path)}".strip())


def _as_written(data: Any, loc: YamlPath) -> YamlPath:
    """A place as in the file: without pydantic's tags, and with keys as text."""
    written: list[str | int] = []
    for part in loc:
        stands_for_keys = part == "metrics" and isinstance(data, dict) and part not in data
        if part in ("[key]", WHOLE, PARTS) or stands_for_keys:
            continue
        written.append(str(part) if isinstance(data, dict) else part)
        try:
            data = data[part]
        except (LookupError, TypeError):
            data = None
    return tuple(written)


def _explain(form: Any, error: Any, at: YamlPath) -> tuple[str, str, str]:
    """Pydantic's error as found, expected, action."""
    kind, message, value = error["type"], error["msg"], error["input"]
    if kind == _UNKNOWN:
        near = did_you_mean(str(at[-1]), _keys(form, error["loc"][:-1]))
        return f"unknown key {dotted(at)}{near}", "", "Remove it, or correct its spelling."
    if kind.startswith("missing"):
        return f"{dotted(at)} is missing", "a value", "Add it."
    if kind == "value_error":
        return f"{dotted(at)}: {message.removeprefix('Value error, ')}", "", "Correct that entry."
    if kind in {"int_type", "float_type"} and _looks_like_a_number(value):
        action = "Write it as a plain decimal number, without quotes: YAML 1.1 reads 1e3 and 08 as text."
        return f"{dotted(at)} is the text {value!r}", "a number", action
    expected = "a mapping" if kind in {"dict_type", "model_type"} else message.removeprefix("Input should be ")
    expected = "a day such as 2026-12-31, without quotes or a time" if kind.startswith("date") else expected
    expected = expected.removeprefix("a valid ")
    return f"{dotted(at)} is {shown(value)}", expected, "Correct that value."


def _keys(form: Any, loc: tuple[Any, ...]) -> list[str]:
    """Keys of the form at a place below `form`."""
    for part in loc:
        fields = getattr(form, "model_fields", {})
        form = fields[part].annotation if part in fields else (get_args(form) or (None,))[-1]
        form = next((one for one in get_args(form) if isinstance(one, type) and issubclass(one, BaseModel)), form)
    fields = getattr(form, "model_fields", {})
    return [field.alias or name for name, field in fields.items()]


def _looks_like_a_number(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True
