"""JSON that every parser reads alike, without NaN, infinity and duplicate keys, and the base class of all records.

`json` and msgspec both take the last of two equal keys, so a file that somebody edited could be read in two ways.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta

from pytest_ddpscale.util.printable import printable_line

Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Seconds = Annotated[float, Meta(gt=0, le=1e7)]
UnixSeconds = Annotated[float, Meta(ge=0, le=7.3e9)]  # until the year 2201; a larger one is of a broken clock or file
T = TypeVar("T")


class _NoField:
    def __repr__(self) -> str:
        return "no such field"


_NO_FIELD = _NoField()


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of records in JSON: only declared fields with declared types are read; defaults are not written.

    `joins` has a function for each column that `joined` does not make of the ranks' values in the usual way.
    """

    joins: ClassVar[Mapping[str, Callable[[Sequence[Any]], Any]]] = {}


def strict_json(data: Any) -> str:
    """One line of JSON that every parser accepts, from JSON types, Structs and dataclasses.

    Raises:
        ValueError: the data holds NaN or an infinity, which JSON cannot represent.
    """
    return json.dumps(data, default=_json_types, allow_nan=False, ensure_ascii=True, separators=(",", ":"))


def read_as(kind: type[T], data: Any) -> T:
    """Convert parsed JSON to a Struct, or to a dataclass if that would be written as the same JSON.

    So a dataclass has exactly the declared fields, and its derived fields are right.

    Raises:
        ValueError: the JSON differs; the message says where.
    """
    try:
        found = msgspec.convert(data, kind)
        written = data if isinstance(found, msgspec.Struct) else json.loads(strict_json(found))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if written != data:
        raise ValueError(_difference(data, written))
    return found


def _json_types(value: Any) -> Any:
    """JSON types of a value unknown to `json`; dataclasses are converted here, because msgspec omits their defaults."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return msgspec.to_builtins(value)


def _difference(said: Any, expected: Any, where: str = "$") -> str:
    """The first place in which two pieces of JSON differ."""
    parts: Iterable[tuple[str, Any, Any]] = ()
    if isinstance(said, dict) and isinstance(expected, dict):
        keys = dict.fromkeys((*said, *expected))
        parts = ((f"{where}.{key}", said.get(key, _NO_FIELD), expected.get(key, _NO_FIELD)) for key in keys)
    elif isinstance(said, list) and isinstance(expected, list) and len(said) == len(expected):
        parts = ((f"{where}[{i}]", *pair) for i, pair in enumerate(zip(said, expected, strict=True)))
    for place, one, other in parts:
        if one != other:
            return _difference(one, other, place)
    return f"{where} is {said!r}; expected {expected!r}"


def parse_strict_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError for malformed text, including NaN, Infinity and duplicate keys."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_distinct)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is out of range")
    return number


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{double!r} is there twice")
    return found


def decode(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    """Decode a line that only a program writes, its texts `printable`.

    Raises:
        ValueError: it is malformed or not of the decoder's type.
    """
    try:
        return decoder.decode(printable_line(line))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def column(values: Iterable[T]) -> T | tuple[T, ...]:
    """A column in the form of records: a value that all ranks share is stored once."""
    found = tuple(values)
    return found[0] if found and all(value == found[0] for value in found) else found


def each(column: T | tuple[T, ...], count: int) -> tuple[T, ...]:
    """One value for each rank; the reverse of `column`."""
    return column if isinstance(column, tuple) else (column,) * count


def refuse_other_lengths(record: msgspec.Struct, count: int, *names: str) -> None:
    """Refuse columns of another length.

    Raises:
        ValueError: the message has the column's name.
    """
    for name in names:
        found = getattr(record, name)
        if not isinstance(found, str | dict) and isinstance(found, Sized) and len(found) != count:
            raise ValueError(f"{name} has {len(found)} values; expected {count}, one for each rank")
