"""Within which values the next one should lie, and which ones are outside."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence

import pytest

from pytest_ddpscale.history.key_values import KeyValue
from pytest_ddpscale.history.prediction import (
    LEAST_SPREAD,
    MOST_VALUES,
    Compared,
    Reference,
    compared,
    references,
    shared_confidence,
)
from tests.builders.nights import key_value, stable
from tests.rows import rows

PAST = (99.0, 100.0, 101.0, 100.0, 100.5, 99.5)
YOUNG = (98.9, 101.1, 100.0, 98.9, 101.1)  # five nights of a place that strays by a per cent


def place(gpu: int, value: float = 100.0) -> KeyValue:
    return key_value(value, gpu_index=gpu, gpu=f"GPU-{gpu}")


def reference(*values: float) -> Reference:
    [found] = references([[key_value(value)] for value in values]).values()
    return found


def beside(pasts: Mapping[KeyValue, Sequence[float]]) -> list[Compared]:
    """Values beside those that their places had before."""
    return compared([*pasts], {one.series: reference(*values) for one, values in pasts.items() if values})[0]


def alike(*values: float, earlier: Sequence[float] = PAST) -> list[Compared]:
    """Of places that all have this past."""
    return beside({place(gpu, value): earlier for gpu, value in enumerate(values)})


def test_the_interval_is_that_of_the_textbook() -> None:
    """Five logarithms with mean 0 and standard deviation 0.1; t(4) at 97.5 % is 2.776."""
    logs = (-0.12649110640673517, -0.06324555320336758, 0.0, 0.06324555320336758, 0.12649110640673517)
    found = reference(*map(math.exp, logs))
    assert (found.log_sd, found.mean) == pytest.approx((0.1, 1.0))
    assert found.reach(0.95) == pytest.approx(2.776445 * 0.1 * math.sqrt(1.2), rel=1e-5)
    equal = reference(*[100.0] * 5)
    assert equal.log_sd == 0.0
    assert equal.reach(0.95) > 2 * LEAST_SPREAD, "equal values are no proof of no noise"


def test_few_values_are_not_enough_and_the_latest_twenty_count() -> None:
    assert [reference(*[1.0] * number).is_enough for number in (1, 4, 5)] == [False, False, True]
    found = reference(*[100.0] * 30, *[50.0] * 20)
    assert found.number == MOST_VALUES
    assert (found.mean, found.log_sd) == pytest.approx((50.0, 0.0))


def test_many_intervals_share_the_risk() -> None:
    assert [shared_confidence(0.95, number) for number in (0, 1, 50)] == pytest.approx([0.95, 0.95, 0.999])
    assert alike(97.0)[0].high < 1 < alike(97.0, *[100.0] * 99)[0].high


def regressed(found: Sequence[Compared]) -> set[int]:
    return {one.value.gpu_index or 0 for one in found if one.has_regressed}


@rows(
    ("values", "earlier", "fallen"),
    [
        ((90.0, 99.9, 110.0), PAST, {0}),  # only what is worse than predicted
        ((50.0, 50.0), PAST[:4], set()),  # with fewer than five earlier values nothing has
        # All intervals together reach 10 % down. A sound night is in there too, and is not left out.
        ((91.0, *[100.0] * 47), YOUNG, {0}),
        ((96.0, *[100.0] * 47), YOUNG, set()),
    ],
)
def test_what_has_regressed(values: Sequence[float], earlier: Sequence[float], fallen: set[int]) -> None:
    assert regressed(alike(*values, earlier=earlier)) == fallen


@pytest.mark.parametrize("sd", [0.003, 0.03])
def test_a_place_that_does_not_change_keeps_its_norm(sd: float) -> None:
    """What is left out for good is what strays down: the norm of a thousand nights must not climb for that."""
    chance, left_out = random.Random(1), 0
    norm = [list(stable(chance, MOST_VALUES, sd)) for _ in range(10)]
    for _ in range(1000):
        tonight = [stable(chance, 1, sd)[0] for _ in norm]
        fallen = regressed(beside({place(at, one): norm[at][-MOST_VALUES:] for at, one in enumerate(tonight)}))
        left_out += len(fallen)
        for at, value in enumerate(tonight):
            norm[at] += [value] * (at not in fallen)
    assert left_out <= 0.045 * 10_000
    kept = [value for values in norm for value in values[-500:]]
    assert statistics.fmean(kept) == pytest.approx(100.0, rel=0.15 * sd)
    assert statistics.stdev(kept) >= 0.9 * sd * 100
