"""Why something is so: a code with its arguments, of which `pytest_ddpscale.report.words` makes the sentence."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

_OF_PLACES = {"one-of", "lowest-of", "kept-on-each", "all"}


class Reason(Struct, frozen=True):
    """A code, and the numbers and names that its sentence needs, in JSON types or Reasons."""

    code: str
    args: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "args", _read(self.args))

    @property
    def main(self) -> Reason:
        """The first that it consists of, without what only says where that is so."""
        return next(
            (reason.main for reason in self.args if isinstance(reason, Reason) and self.code in _OF_PLACES), self
        )

    def is_of(self, codes: Collection[str]) -> bool:
        """Whether it, or a reason that it is about, has one of these codes."""
        return self.code in codes or any(reason.is_of(codes) for reason in self.args if isinstance(reason, Reason))


# A reason, or the text of a program, of an exception or of an earlier version; an empty one if there is none.
Why: TypeAlias = Reason | str


def because(code: str, *args: Any) -> Reason:
    """A reason with these arguments."""
    return Reason(code, args)


def each_in(why: Any) -> Iterator[Reason]:
    """A reason, and all that it is about; none of a text."""
    if isinstance(why, Reason):
        yield why
        why = why.args
    for part in why if isinstance(why, tuple) else ():
        yield from each_in(part)


def _read(arg: Any) -> Any:
    """An argument as it is read from JSON."""
    if isinstance(arg, dict):
        return Reason(**arg)
    return tuple(map(_read, arg)) if isinstance(arg, list | tuple) else arg
