"""What is drawn as a curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Intervals are drawn up to this factor from the value, because a wide one would squeeze all curves into one line.
_WIDEST = 2.0


@dataclass(frozen=True)
class Point:
    """One value.

    Attributes:
        interval: of the value, the one that decides; None without one.
        is_failed: whether the value misses its bound.
    """

    x: float
    value: float
    interval: tuple[float, float] | None = None
    is_failed: bool = False

    @property
    def drawn_interval(self) -> tuple[float, float] | None:
        """The interval as far as it is drawn; None if there is none."""
        if self.interval is None or any(map(math.isnan, self.interval)):
            return None
        low, high = self.interval
        return max(low, self.value / _WIDEST), min(high, self.value * _WIDEST)


@dataclass(frozen=True)
class Bound:
    """The bound of a requirement; `provisional` without a published source."""

    x: float
    value: float
    provisional: bool = False


@dataclass(frozen=True)
class Curve:
    """One curve.

    Attributes:
        points: by ascending x, as are `bounds`.
        is_second: whether its values are on the right axis.
        place: of its colour and marker, the same in all charts of a page; None for its place in the chart.
    """

    name: str
    points: Sequence[Point]
    bounds: Sequence[Bound] = ()
    is_second: bool = False
    place: int | None = None

    @property
    def xs(self) -> set[float]:
        """Where it has a value or a bound."""
        return {*(point.x for point in self.points), *(bound.x for bound in self.bounds)}

    @property
    def extent(self) -> list[float]:
        """Values that have to be inside a chart."""
        ends = [end for point in self.points for end in point.drawn_interval or ()]
        return [*(point.value for point in self.points), *ends, *(bound.value for bound in self.bounds)]
