"""Which values of a run have fallen: they are kept, and are no norm for later runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries
from pytest_ddpscale.history.prediction import Reference, is_lower_better, shared_confidence

CONFIDENCE = 0.95
LARGE_LOSS = 0.05  # what `no_regression` looks for


def regressed_values(values: Sequence[KeyValue], past: Mapping[KeyValueSeries, Reference]) -> set[KeyValue]:
    """Those that are worse than the past of their place.

    Beyond the prediction intervals that hold together for all values of the run: were every single interval to do,
    one sound value in forty would be left out, and the norm rise by what it lost. A loss of 5 % and more is left out if
    it lies beyond its single interval. Where the norm is so steady that it could find such a loss, no sound value loses
    that much; and while it is young, the intervals of all together are wider than the loss, which would become the norm
    before anybody could find it. With fewer than five earlier values none has fallen.

    Args:
        values: of the run.
        past: of the same places.
    """
    compared = [(one, past[one.series]) for one in values if one.series in past and past[one.series].is_enough]
    together = shared_confidence(CONFIDENCE, len(compared))
    return {one for one, reference in compared if _has_fallen(one, reference, together)}


def _has_fallen(value: KeyValue, past: Reference, together: float) -> bool:
    lost = past.log_mean - math.log(value.value)
    if is_lower_better(value.metric):
        lost = -lost
    return lost > past.reach(together) or lost > max(past.reach(CONFIDENCE), -math.log1p(-LARGE_LOSS))
