"""Numbers of verdicts as readers see them: value, limits, bound and margin, with digits that show their order."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

from pytest_ddpscale.judge.stats import FAR
from pytest_ddpscale.plan.metric_catalogue import METRICS, Metric
from pytest_ddpscale.run.verdicts import (
    LoweredBound,
    Verdict,
)
from pytest_ddpscale.util.digits import decimal, rounded

ABSENT = "–"
_SUFFIX = {"fraction": " %", "x": "×"}  # any other unit is written as it is
# A bound may have more digits than a value; it is rounded to this many more.
_EXTRA_DECIMALS_OF_A_BOUND = 2
# Of a bound that is computed, such as 797.0208 GB/s, unless a limit needs more to show on which side it is.
_SIGNIFICANT_DIGITS = 4
# At most this many digits are added to avoid an interval of ± 0.
_EXTRA_DECIMALS_OF_AN_INTERVAL = 3


def lowered_bounds(lowered: LoweredBound) -> tuple[str, str]:
    """The bound before and now: ``≥ 96.0 %``, ``≥ 90.0 %``; ``not asked``."""
    metric = METRICS[lowered.metric]
    was, now = (_bound_alone(bound, metric) for bound in (lowered.was, lowered.now))
    return was, f"{now}, only warns" if lowered.only_warns else now


def _bound_alone(bound: float | None, metric: Metric) -> str:
    if bound is None:
        return "not asked"
    least = 1 if metric.unit == "fraction" else 0
    number = number_text(bound, metric.unit_of(), max(_places(bound, metric.unit), least))
    return f"{'≤' if metric.upper_bound else '≥'} {number}"


def number_text(value: float, unit: str, decimals: int | None = None) -> str:
    """A number with its unit: ``97.4 %``, ``1159.2 img/s``, ``2.36×``, ``44.1 GiB``, ``445.8 ms``.

    A fraction is shown as per cent. Without `decimals`, their number depends on the unit.
    """
    return _digits(value, unit, _default_decimals(value, unit) if decimals is None else decimals) + suffix(unit)


def bare_number(value: float, unit: str) -> str:
    """A number as in `number_text`, without its unit."""
    return number_text(value, unit).removesuffix(suffix(unit))


def value_text(verdict: Verdict) -> str:
    """The value with its limits, as in `limits_text` but shorter: ``97.4 (≥ 97.1) %``, ``97.4 ± 0.3 %``."""
    if verdict.value is None:
        return ABSENT
    text, limits = _digits(verdict.value, verdict.unit, _decimals(verdict)), _limits(verdict)
    if limits:
        short = limits.replace("at least", "≥").replace("at most", "≤")
        text += f" {limits}" if limits.startswith("±") else f" ({short})"
    return text + suffix(verdict.unit)


def point_text(verdict: Verdict) -> str:
    """The value alone, ``97.4 %``, with enough digits to differ from a bound that it misses."""
    return ABSENT if verdict.value is None else number_text(verdict.value, verdict.unit, _decimals(verdict))


def limits_text(verdict: Verdict, *, nearer_end: bool = False) -> str:
    """Limits of the value, at the confidence of its interval.

    ``at least 97.1 %`` or ``at most 95.2 %`` if that end of the interval decides; otherwise
    both ends, ``95.1 … 97.2 %``, or with `nearer_end` only the end that would have to meet the bound. Ends are rounded
    outwards, so that they claim no more than the interval. ``each round ≥ 50.0 %`` if that decides, whatever the
    interval is.
    """
    limits = _limits(verdict, nearer_end)
    return limits + suffix(verdict.unit) if limits else ABSENT


def suffix(unit: str) -> str:
    """`` img/s``, ``×``: how a number in this unit ends."""
    return _SUFFIX.get(unit, f" {unit}")


def _limits(verdict: Verdict, nearer_end: bool = False) -> str:
    """`limits_text` without the unit; empty if nothing varied or there is no interval."""
    if verdict.interval is None or not has_interval(verdict) or {*verdict.interval} == {verdict.value}:
        return ""
    unit, decimals = verdict.unit, _decimals(verdict)
    low, high = verdict.interval
    is_lower_bound = "at_least" in verdict.bound
    is_kept = low >= verdict.bound_value if is_lower_bound else high <= verdict.bound_value
    is_missed = high < verdict.bound_value if is_lower_bound else low > verdict.bound_value
    is_decided = (verdict.passed and is_kept) or (verdict.outcome == "failed" and is_missed)
    if not is_decided and verdict.because is not None and verdict.because.main.code == "far":
        is_above = verdict.passed == is_lower_bound
        far = verdict.bound_value * (FAR if is_above else 1 / FAR)
        return f"each round {'≥' if is_above else '≤'} {_digits(far, unit, _default_decimals(far, unit))}"
    if not is_decided and nearer_end:
        is_kept, is_missed = True, False  # choose the end that would have to meet the bound
    elif not is_decided:
        return f"{_digits(low, unit, decimals, ROUND_FLOOR)} … {_digits(high, unit, decimals, ROUND_CEILING)}"
    end, word, rounding = (
        (low, "at least", ROUND_FLOOR) if is_lower_bound == is_kept else (high, "at most", ROUND_CEILING)
    )
    while is_missed and _digits(end, unit, decimals, rounding) == _digits(verdict.bound_value, unit, decimals):
        decimals += 1
    return f"{word} {_digits(end, unit, decimals, rounding)}"


def bound_text(verdict: Verdict) -> str:
    """The bound, ``≥ 96.0 %`` or ``≤ 70 GiB``, with enough digits to differ from a value that misses it."""
    sign = "≤" if "at_most" in verdict.bound else "≥"
    least = 1 if verdict.unit == "fraction" else 0
    decimals = min(max(_places(verdict.bound_value, verdict.unit), least), _decimals(verdict))
    return f"{sign} {number_text(verdict.bound_value, verdict.unit, decimals)}"


def margin_text(verdict: Verdict) -> str:
    """Distance from the bound, ``+1.5 %``, with enough digits that a miss never looks like zero; ``4.2× the bound``.

    A count, such as the nodes that pass a check, cannot exceed its bound, so a margin of zero is left out.
    """
    margin, definition = verdict.margin, METRICS[verdict.metric]
    is_count = definition.subject in ("check", "node") or definition.only_bound is not None
    if margin is None or (margin == 0 and is_count):
        return ABSENT
    if margin < -1:
        return f"{number_text(1 - margin, 'x', 1)} the bound"
    decimals = 1
    if margin < 0:
        while _looks_zero(margin, "fraction", decimals):
            decimals += 1
    text = _digits(margin, "fraction", decimals)
    return f"{'' if text.startswith('−') else '+'}{text} %"


def has_interval(verdict: Verdict) -> bool:
    """Whether a verdict has a meaningful interval; a share of nodes is counted once, without error."""
    return verdict.interval is not None and METRICS[verdict.metric].subject != "check"


def _decimals(verdict: Verdict) -> int:
    """Digits after the point for value, interval and bound, enough to show their order."""
    value, bound, unit = verdict.value, verdict.bound_value, verdict.unit
    decimals = default = _default_decimals(bound if value is None else value, unit)
    if value is not None and verdict.interval is not None:
        half_width = max(abs(end - value) for end in verdict.interval)
        while decimals < default + _EXTRA_DECIMALS_OF_AN_INTERVAL and _looks_zero(half_width, unit, decimals):
            decimals += 1
    all_of_bound = min(_places(bound, unit), default + _EXTRA_DECIMALS_OF_A_BOUND)
    decimals = max(decimals, min(all_of_bound, max(default, _places_of_significant(bound, unit))))
    while decimals < all_of_bound and _looks_missed(verdict, decimals):
        decimals += 1
    if value is not None and (verdict.margin or 0) < 0:
        decimals = _decimals_to_tell(value, bound, unit, decimals)
    return decimals


def _decimals_to_tell(one: float, other: float, unit: str, decimals: int) -> int:
    """At least `decimals`, and enough for two different numbers to look different."""
    while one != other and _digits(one, unit, decimals) == _digits(other, unit, decimals):
        decimals += 1
    return decimals


def _places_of_significant(value: float, unit: str) -> int:
    return _SIGNIFICANT_DIGITS - 1 - decimal(value, _power_of_ten(unit)).adjusted() if math.isfinite(value) else 0


def _looks_missed(verdict: Verdict, decimals: int) -> bool:
    """Whether the limit of a verdict that passed, rounded outwards, is on the wrong side of the rounded bound."""
    if not verdict.passed or verdict.interval is None or not all(map(math.isfinite, verdict.interval)):
        return False
    (low, high), unit, bound = verdict.interval, verdict.unit, verdict.bound_value
    is_lower_bound = "at_least" in verdict.bound
    end, rounding = (low, ROUND_FLOOR) if is_lower_bound else (high, ROUND_CEILING)
    shown, of = (
        Decimal(_digits(*one).replace("−", "-")) for one in ((end, unit, decimals, rounding), (bound, unit, decimals))
    )
    is_kept, looks_kept = (end >= bound, shown >= of) if is_lower_bound else (end <= bound, shown <= of)
    return is_kept and not looks_kept


def _looks_zero(value: float, unit: str, decimals: int) -> bool:
    """Whether `decimals` digits hide that `value` is not zero."""
    return value != 0 and not _digits(value, unit, decimals).strip("0.")


def _default_decimals(value: float, unit: str) -> int:
    if unit == "fraction":
        return 1
    if unit == "x":
        return 2
    return 1 if abs(value) >= 10 else 2


def _places(value: float, unit: str) -> int:
    """Digits after the point needed to write `value` in full."""
    if not math.isfinite(value):
        return 0
    exponent = decimal(value, _power_of_ten(unit)).normalize().as_tuple().exponent
    assert isinstance(exponent, int)  # only NaN and infinities have a letter there
    return max(-exponent, 0)


def _digits(value: float, unit: str, decimals: int, rounding: str = ROUND_HALF_EVEN) -> str:
    return rounded(value, decimals, rounding, power_of_ten=_power_of_ten(unit))


def _power_of_ten(unit: str) -> int:
    return 2 if unit == "fraction" else 0
