"""Records with a column over ranks for each quantity: lists of numbers in JSON lines, arrays in memory.

A large run has ten million numbers, which as Python objects would take gigabytes of memory and seconds to process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec.structs import force_setattr

from pytest_ddpscale.run.strict_json import Record, column, refuse_other_lengths

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
R = TypeVar("R", bound=Record)
# Array type of a column; None becomes NaN among numbers.
INTEGERS, NUMBERS, BOOLEANS = "i8", "f8", "?"


class ColumnRecord(Record, frozen=True, eq=False):
    """A record of some ranks. A value that all ranks share is stored once, not as an array.

    Fields are declared with the types of the JSON line, against which they are validated when read.
    """

    columns: ClassVar[Mapping[str, str]] = {}
    if TYPE_CHECKING:
        ranks: Any

    def __post_init__(self) -> None:
        """Convert columns to arrays. Raises ValueError if the length of one differs from the number of ranks."""
        for name, kind in self.columns.items():
            found = getattr(self, name)
            if isinstance(found, tuple | np.ndarray):
                force_setattr(self, name, np.asarray(found, kind))
        refuse_other_lengths(self, len(self.ranks), *self.columns)

    def __eq__(self, other: object) -> bool:
        """Whether both records have equal fields."""
        names = self.__struct_fields__
        return type(other) is type(self) and all(_is_same(getattr(self, n), getattr(other, n)) for n in names)

    __hash__ = None  # type: ignore[assignment]

    def each(self, name: str) -> Any:
        """A column as an array, (ranks,), even if all ranks share one value."""
        return np.broadcast_to(np.asarray(getattr(self, name), self.columns[name]), len(self.ranks))


_IRREGULAR = {"gpu_indices": "gpu_index"}


def joined(kind: type[R], parts: Sequence[Record], **common: Any) -> R:
    """Join the parts of ranks to one record: a column for each field that the parts have, perhaps in the singular.

    Args:
        kind: of the record; its `joins` has how a column is made that is not a plain one.
        parts: of all ranks, in order.
        common: what is the same for all ranks, or known to rank 0 only.
    """
    of_rank = parts[0].__struct_fields__
    for name in kind.__struct_fields__:
        field = name if name in of_rank else _IRREGULAR.get(name, name.removesuffix("s"))
        if name not in common and field in of_rank:
            values = [getattr(part, field) for part in parts]
            common[name] = tuple(values) if name == "ranks" else kind.joins.get(name, column)(values)
    return kind(**common)


def as_json(column: Any) -> Any:
    """A column in JSON types: msgspec's hook for unknown types.

    Raises:
        NotImplementedError: the value is not a column; msgspec expects this exception for unsupported types.
    """
    if isinstance(column, np.generic):
        return column.item()
    if not isinstance(column, np.ndarray):
        raise NotImplementedError(f"{type(column).__name__} in a record")
    return column.tolist()  # NaN becomes null


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return not isinstance(one, np.ndarray) and not isinstance(other, np.ndarray) and bool(one == other)
