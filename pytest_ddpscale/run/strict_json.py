"""JSON that every parser reads, without NaN and infinity, and the base class of all records."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Seconds = Annotated[float, Meta(gt=0, le=1e7)]
UnixSeconds = Annotated[float, Meta(ge=0, le=7.3e9)]  # until the year 2201; a larger one is of a broken clock or file
T = TypeVar("T")


if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[T], T]:
        """Of `typing` from Python 3.11 on: a subclass is frozen like its base."""
        return lambda kind: kind


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of records in JSON: only declared fields with declared types are read; defaults are not written."""


class Line(Record, tag_field="kind"):
    """Base of the lines of measurements.jsonl."""


def strict_json(data: Any) -> str:
    """One line of JSON that every parser accepts, from JSON types, Structs and dataclasses.

    Raises:
        ValueError: the data holds NaN or an infinity, which JSON cannot represent.
    """
    return json.dumps(data, default=_json_types, allow_nan=False, ensure_ascii=True, separators=(",", ":"))


def _json_types(value: Any) -> Any:
    """JSON types of a value unknown to `json`; dataclasses are converted here, because msgspec omits their defaults."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return msgspec.to_builtins(value)


def parse_strict_json(text: str | bytes) -> Any:
    """Parse JSON, also with half pairs of surrogates, as in a command line that is not UTF-8.

    Raises:
        ValueError: it is malformed, such as NaN and Infinity.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise ValueError(f"{digits} is out of range")
    return number


def decode(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    """Decode a line that only a program writes.

    Raises:
        ValueError: it is malformed or not of the decoder's type.
    """
    try:
        return decoder.decode(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def column(values: Iterable[T]) -> T | tuple[T, ...]:
    """A column in the form of records: a value that all ranks share is stored once."""
    cells = tuple(values)
    return cells[0] if cells and all(value == cells[0] for value in cells) else cells


def each(column: T | tuple[T, ...], count: int) -> tuple[T, ...]:
    """One value for each rank; the reverse of `column`."""
    return column if isinstance(column, tuple) else (column,) * count


def refuse_other_lengths(columns: Iterable[tuple[str, Any]], count: int) -> None:
    """Refuse columns of another length, by name. Raises ValueError."""
    for name, cells in columns:
        if isinstance(cells, tuple) and len(cells) != count:
            raise ValueError(f"{name} has {len(cells)} values; expected {count}, one for each rank")
