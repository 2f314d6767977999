"""Records with a column over ranks for each quantity: lists of numbers in their lines, arrays in memory.

A large run has ten million numbers: as Python's they would take gigabytes, and seconds to look at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import force_setattr

from pytest_ddpscale.results.strict_json import Record, refuse_other_lengths

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
# How a column lies in memory: None is NaN among numbers.
INTEGERS, NUMBERS, BOOLEANS = "i8", "f8", "?"


class ColumnRecord(Record, frozen=True, eq=False):
    """A record of some ranks. What all of them have alike stands there once, and is no array.

    Its fields are declared as its line has them, by which they are checked as they are read.
    """

    columns: ClassVar[Mapping[str, str]] = {}
    if TYPE_CHECKING:
        ranks: Any

    def __post_init__(self) -> None:
        """Lay columns out as arrays. Raises ValueError if one is not as long as the ranks are many."""
        for name, kind in self.columns.items():
            found = getattr(self, name)
            if isinstance(found, tuple | np.ndarray):
                force_setattr(self, name, np.asarray(found, kind))
        refuse_other_lengths(self, len(self.ranks), *self.columns)

    def __eq__(self, other: object) -> bool:
        """Whether the other one says the same."""
        names = self.__struct_fields__
        return type(other) is type(self) and all(_is_same(getattr(self, n), getattr(other, n)) for n in names)

    __hash__ = None  # type: ignore[assignment]

    def each(self, name: str) -> Any:
        """A column, (ranks,), as an array also where all ranks have the same."""
        return np.broadcast_to(np.asarray(getattr(self, name), self.columns[name]), len(self.ranks))


def as_json(column: Any) -> Any:
    """A column as its line has it, where msgspec asks for what it does not know.

    Raises:
        NotImplementedError: it is no column; so msgspec wants to be told that a type has no JSON.
    """
    if isinstance(column, np.generic):
        return column.item()
    if not isinstance(column, np.ndarray):
        raise NotImplementedError(f"{type(column).__name__} in a record")
    return column.tolist()  # NaN becomes null


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return not isinstance(one, np.ndarray) and not isinstance(other, np.ndarray) and bool(one == other)
