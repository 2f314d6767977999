"""Validates a whole thresholds file; every error has file, line, what was found and what was expected."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.removed import REMOVED
from pytest_ddpscale.thresholds.form import SCHEMA_VERSION, FileForm
from pytest_ddpscale.thresholds.reading import Document, Mark, YamlPath, dotted, read_document, shown
from pytest_ddpscale.util.nearest import did_you_mean
from pytest_ddpscale.util.packaged import THRESHOLDS, packaged

_UNKNOWN = "extra_forbidden"
_OF_A_TYPE = "_type"
# More errors at once would not be read.
MOST_PROBLEMS = 100


@dataclass(frozen=True, eq=False)
class Layer:
    """One file, valid by itself.

    Attributes:
        document: as read.
        form: the same, validated; names that other files may have are not looked up.
    """

    document: Document
    form: FileForm

    @property
    def path(self) -> Path:
        """The file."""
        return self.document.path

    @property
    def sha256(self) -> str:
        """Digest of its bytes."""
        return self.document.sha256

    @property
    def is_packaged(self) -> bool:
        """Whether it is the packaged file, or a copy of it, as in a checkout beside an installed wheel."""
        return self.sha256 == hashlib.sha256(packaged(THRESHOLDS).read_bytes()).hexdigest()


def nearest_place(layers: Sequence[Layer], *at: str | int) -> Mark:
    """The place of an entry in the nearest file that has it; else of the closest entry above it in the nearest file."""
    places = [layer.document.place(*at) for layer in reversed(layers)]
    return next((place for place in places if len(place.at) == len(at)), places[0])


def first_of(problems: Iterable[ThresholdsError]) -> ThresholdsError:
    """The first of some errors, with the number of the others, which it has."""
    error, *others = {str(problem): problem for problem in problems}.values()
    if others:
        error = ThresholdsError(error.where, f"{error.found} ({len(others)} more)", error.expected, error.action)
        error.others = tuple(others)
    return error


def read_layer(path: Path, named_by: Mark | None = None) -> Layer:
    """Read and validate one file.

    Args:
        path: the file.
        named_by: the `extends` that names it; None for an option.

    Raises:
        ThresholdsError: the first of its mistakes, with the others.
    """
    document = read_document(path, named_by)
    version = document.data.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        found = "schema_version is missing" if version is None else f"schema_version is {shown(version)}"
        action = "Use the current form, for example from `ddpscale init`."
        raise document.place("schema_version").refusal(found, f"{SCHEMA_VERSION}", action)
    try:
        return Layer(document, FileForm.model_validate(document.data))
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        raise first_of(_problems(document, errors)) from None


def _problems(document: Document, errors: Iterable[Any]) -> Iterator[ThresholdsError]:
    """Pydantic's errors with their lines, one for each place.

    Of an entry that may be written in two ways pydantic tells why it is neither: what is told is the error further
    inside, and of those at one place the first that is not about the type.
    """
    # A misspelt key first, as it explains a missing one.
    ordered = sorted(errors, key=lambda error: error["type"] != _UNKNOWN)[:MOST_PROBLEMS]
    by_path: dict[YamlPath, tuple[Any, Mark]] = {}
    for error in ordered:
        mark = document.place(*error["loc"], with_last=error["type"].startswith("missing"))
        if mark.at not in by_path or by_path[mark.at][0]["type"].endswith(_OF_A_TYPE) > error["type"].endswith(
            _OF_A_TYPE
        ):
            by_path[mark.at] = error, mark
    outer = {at[:depth] for at in by_path for depth in range(len(at))}
    yield from (_problem(error, mark) for at, (error, mark) in by_path.items() if at not in outer)


def _problem(error: Any, mark: Mark) -> ThresholdsError:
    kind, message, value, name = error["type"], error["msg"], error["input"], dotted(mark.at)
    key = next((part for part in reversed(mark.at) if isinstance(part, str)), "")
    removed = REMOVED.get(f"thresholds {key}" if kind == _UNKNOWN else f"thresholds {key}: {value}")
    if removed:
        key_text = name if kind == _UNKNOWN else f"{name}: {value}"
        return mark.refusal(f"{key_text} was removed; instead: {removed}", "", "Correct it.")
    if kind == _UNKNOWN:
        keys = _keys(error["loc"][:-1])
        near = did_you_mean(key, keys)
        if not near:
            others = [key for key in keys if key not in METRICS]
            near = f"; expected {'a metric or ' if others != keys else ''}some of {', '.join(others)}"
        return mark.refusal(f"unknown key {name}{near}", "", "Remove it, or correct its spelling.")
    if kind.startswith("missing"):
        return mark.refusal(f"{name} is missing", "a value", "Add it.")
    if kind == "value_error":
        return mark.error(message.removeprefix("Value error, "), "Correct that entry.")
    needed = (message.partition(" should ")[2] or message).removeprefix("be ").removeprefix("have ")
    expected = "a mapping" if kind in {"dict_type", "model_type"} else needed.removeprefix("a valid ")
    expected = "a day such as 2026-12-31, without quotes or a time" if kind.startswith("date") else expected
    is_number = kind in {"int_type", "float_type"} and isinstance(value, str)
    action = "Write a plain decimal number, without quotes." if is_number else "Correct that value."
    if kind == "string_type" and isinstance(value, (int, float, date)):
        action = "Put it in quotes."
    elif kind == "bool_type" and isinstance(value, str):
        action = "Write true or false."
    return mark.refusal(f"{name} is {'the text ' if is_number else ''}{shown(value)}", expected, action)


def _keys(loc: tuple[Any, ...]) -> list[str]:
    """Keys of the mapping at a place, as pydantic names it; of all forms that it may have."""
    forms: list[type[BaseModel]] = [FileForm]
    for part in loc:
        fields = [form.model_fields[part].annotation for form in forms if part in form.model_fields]
        tagged = [form for form in forms if form.__name__ == part]
        forms = [form for field in fields for form in _forms_in(field)] or tagged or forms
    return [field.alias or name for form in forms for name, field in form.model_fields.items()]


def _forms_in(kind: Any) -> list[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [form for one in get_args(kind) for form in _forms_in(one)]
