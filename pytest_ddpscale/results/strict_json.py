"""JSON that every parser reads alike: no NaN, no infinity, no key twice. And the base of all records that are read.

`json` and msgspec both take the last of two equal keys: whoever writes one record with two values has it both ways.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Seconds = Annotated[float, Meta(gt=0, le=1e7)]
UnixSeconds = Annotated[float, Meta(ge=0, le=1e11)]
T = TypeVar("T")

_TEXT = re.compile(rb'"([^"]*)"(\s*:)?')  # with the colon that makes it a key


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is read from JSON: of the types that it declares, and with no other field. Defaults are not written."""


def strict_json(data: Any) -> str:
    """One line of JSON that every parser accepts.

    Raises:
        ValueError: the data holds NaN or an infinity, which JSON has no word for.
    """
    return json.dumps(data, allow_nan=False, ensure_ascii=True, separators=(",", ":"))


def parse_strict_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError for anything malformed, NaN, Infinity and a key that is there twice included."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    def finite(digits: str) -> float:
        number = float(digits)
        if math.isinf(number):
            raise ValueError(f"{digits} is out of range")
        return number

    def moderate(digits: str) -> int:
        if len(digits) > 40:
            raise ValueError(f"{digits[:20]}… is out of range")
        return int(digits)

    try:
        return json.loads(
            text, parse_constant=refuse, parse_float=finite, parse_int=moderate, object_pairs_hook=_distinct
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def decode(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    """Decode JSON, strictly.

    Raises:
        ValueError: it is malformed, not of the decoder's type, or has a key twice.
    """
    refuse_double_keys(line)
    try:
        return decoder.decode(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def refuse_double_keys(line: bytes) -> None:
    """Refuse JSON in which an object has a key twice.

    Fast where no key is there twice at all, in whatever object, and there is no escape, so that each quote begins or
    ends a string. Else the line is parsed once more, object by object.

    Raises:
        ValueError: a key is there twice, or the line is malformed.
    """
    keys = [text for text, colon in _TEXT.findall(line) if colon]
    if b"\\" in line or len(set(keys)) != len(keys):
        parse_strict_json(line)


def column(values: Iterable[T]) -> T | tuple[T, ...]:
    """A column as records have it: what all ranks have alike stands there once."""
    found = tuple(values)
    return found[0] if found and all(value == found[0] for value in found) else found


def each(column: T | tuple[T, ...], count: int) -> tuple[T, ...]:
    """One value for each rank; the reverse of `column`."""
    return column if isinstance(column, tuple) else (column,) * count


def refuse_other_lengths(record: Record, count: int, *names: str) -> None:
    """Refuse columns that are not as long as others.

    Raises:
        ValueError: the message has the column's name.
    """
    for name in names:
        found = getattr(record, name)
        if isinstance(found, tuple) and len(found) != count:
            raise ValueError(f"{name} has {len(found)} values; expected {count}, one for each rank")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{double!r} is there twice")
    return found
