"""Requirements as reports count them: those that rest on the same evidence count once.

A generation ratio to a constant of the thresholds file is the throughput of the same measurement, divided by that
constant. It passes, fails and blocks by itself, like every item; but it adds no evidence, so that numbers of
requirements and causes count it together with the throughput.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

_WORST_FIRST = ("failed", "error", "not_measured", "inconclusive", "passed")


class Countable(Protocol):
    """A requirement as a case, a verdict or a comparison."""

    @property
    def id(self) -> str:
        """Unique in a run."""

    @property
    def counts_with(self) -> str:
        """Id of the requirement that it is counted with; empty if it is counted by itself."""


class Judged(Countable, Protocol):
    """A verdict."""

    @property
    def outcome(self) -> str:
        """One of `_WORST_FIRST`."""

    @property
    def is_waived(self) -> bool:
        """Whether its failure is accepted."""

    def blocks(self, *, allows_unmeasured: bool = False) -> bool:
        """Whether it prevents acceptance of the machine."""


T = TypeVar("T", bound=Countable)
J = TypeVar("J", bound=Judged)


def counted_groups(requirements: Iterable[T]) -> list[list[T]]:
    """The requirements, those that count once together: first the one that the others are counted with.

    In the order of the first of each. A requirement whose partner is not among them counts by itself.
    """
    all_ = list(requirements)
    known = {one.id for one in all_ if not one.counts_with} - {""}
    groups = [[one] for one in all_ if one.counts_with not in known]
    of = {group[0].id: group for group in groups}
    for one in all_:
        if one.counts_with in known:
            of[one.counts_with].append(one)
    return groups


def groups_within(some: Iterable[T], requirements: Iterable[T]) -> list[list[T]]:
    """Some of the requirements, the same objects, in their groups among all of them."""
    kept = set(map(id, some))
    groups = ([one for one in group if id(one) in kept] for group in counted_groups(requirements))
    return [group for group in groups if group]


def number_of(requirements: Iterable[Countable]) -> int:
    """How many requirements these are, each piece of evidence counted once."""
    return len(counted_groups(requirements))


def counted_as(requirements: Iterable[Countable]) -> dict[str, str]:
    """For the id of each requirement, the id that stands for it where requirements are counted."""
    return {one.id: group[0].id for group in counted_groups(requirements) for one in group}


def worst_of(group: Sequence[J], *, allows_unmeasured: bool = False) -> J:
    """The verdict that a group counts as: one that blocks acceptance before a waived one, and both before others.

    So counting hides nothing: a group passed only if all of it passed.
    """

    def badness(verdict: J) -> tuple[bool, bool, int]:
        blocks = verdict.blocks(allows_unmeasured=allows_unmeasured)
        return not blocks, not verdict.is_waived, _WORST_FIRST.index(verdict.outcome)

    return min(group, key=badness)
