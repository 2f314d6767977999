"""Columns over ranks: lists of numbers in JSON lines, arrays in memory.

A large run has ten million numbers, which as Python objects would take gigabytes of memory and seconds to process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from pytest_ddpscale.run.strict_json import Record, column

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
R = TypeVar("R", bound=Record)


def joined(kind: type[R], parts: Sequence[Record], **common: Any) -> R:
    """Join the parts of ranks to one record: a column for each field that the parts have, perhaps in the singular.

    Args:
        kind: of the record; its `joins` has how a column is made that is not a plain one.
        parts: of all ranks, in order.
        common: what is the same for all ranks, or known to rank 0 only.
    """
    of_rank = parts[0].__struct_fields__
    for name in kind.__struct_fields__:
        field = name if name in of_rank else name.removesuffix("s")
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
