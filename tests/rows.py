"""Rows of a table in one test: a failure names each row that fails, and collecting them costs one item."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def rows(
    names: str | tuple[str, ...], values: Iterable[Any], ids: Callable[[Any], object] | Iterable[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, but all rows run in one item, which fails after the last one.

    For tests whose rows share nothing: what a fixture gives is the same for all of them.

    Args:
        names: of the arguments, as of parametrize.
        values: a row each; of a single name the value itself.
        ids: a name for each row, or what makes it from a value; without it, the values.
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = list(values)
    assert table, f"no rows for {names}"
    labels = _labels(table, ids, len(arguments))

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_rows(*fixtures: Any, **named: Any) -> None:
            failed: dict[str, BaseException] = {}
            for label, row in zip(labels, table, strict=True):
                given = [row] if len(arguments) == 1 and isinstance(names, str) else row
                try:
                    test(*fixtures, **named, **dict(zip(arguments, given, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    failed[label] = error
            if failed:
                told = (f"[{label}] {type(error).__name__}: {error}" for label, error in failed.items())
                first = next(iter(failed.values()))
                raise AssertionError(f"{len(failed)} of {len(table)} rows\n" + "\n".join(told)) from first

        left = [one for name, one in inspect.signature(test).parameters.items() if name not in arguments]
        vars(all_rows)["__signature__"] = inspect.signature(test).replace(parameters=left)
        return all_rows

    return decorate


def _labels(table: Collection[Any], ids: Callable[[Any], object] | Iterable[str] | None, width: int) -> list[str]:
    if ids is None:
        return [repr(row)[:200] for row in table]
    if not callable(ids):
        return [*ids]
    return [str(ids(row)) if width == 1 else ", ".join(str(ids(value) or value) for value in row) for row in table]
