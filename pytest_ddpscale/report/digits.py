"""Numbers of verdicts as readers see them: value, limits, bound and margin, with digits that show their order."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

from pytest_ddpscale.judge.stats import FAR
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.run.verdicts import LoweredBound, Verdict
from pytest_ddpscale.util.digits import decimal, rounded

ABSENT = "–"
_SUFFIX = {"fraction": " %", "x": "×"}  # any other unit is written as it is
# Of a bound that is computed, such as 797.0208 GB/s, unless a limit needs more to show on which side it is.
_SIGNIFICANT_DIGITS = 4


def lowered_bounds(lowered: LoweredBound) -> tuple[str, str]:
    """The bound before and now: ``≥ 96.0 %``, ``≥ 90.0 %``; ``not asked``."""
    metric = METRICS[lowered.metric]
    was, now = (
        "not asked" if bound is None else _bound(bound, lowered.unit, metric.upper_bound)
        for bound in (lowered.was, lowered.now)
    )
    return was, f"{now}, only warns" if lowered.only_warns else now


def number_text(value: float, unit: str, decimals: int | None = None) -> str:
    """A number with its unit: ``97.4 %``, ``1159.2 img/s``, ``2.36×``, ``44.1 GiB``, ``445.8 ms``.

    A fraction is shown as per cent. Without `decimals`, their number depends on the unit.
    """
    return _digits(value, unit, _default_decimals(value, unit) if decimals is None else decimals) + suffix(unit)


def bare_number(value: float, unit: str) -> str:
    """A number as in `number_text`, without its unit."""
    return number_text(value, unit).removesuffix(suffix(unit))


def point_text(verdict: Verdict) -> str:
    """The value alone, ``97.4 %``, with enough digits to differ from a bound that it misses."""
    return ABSENT if verdict.value is None else number_text(verdict.value, verdict.unit, _decimals(verdict))


def limits_text(verdict: Verdict) -> str:
    """Limits of the value, at the confidence of its interval.

    ``at least 97.1 %`` or ``at most 95.2 %`` if that end of the interval decides; otherwise
    both ends, ``95.1 … 97.2 %``. Ends are rounded outwards, so that they claim no more than the interval.
    ``each round ≥ 50.0 %`` if that decides, whatever the interval is.
    """
    limits = _limits(verdict)
    return limits + suffix(verdict.unit) if limits else ABSENT


def suffix(unit: str) -> str:
    """`` img/s``, ``×``: how a number in this unit ends."""
    return _SUFFIX.get(unit, f" {unit}")


def _limits(verdict: Verdict) -> str:
    """`limits_text` without the unit; empty if nothing varied or there is no interval."""
    if verdict.interval is None or not has_interval(verdict) or {*verdict.interval} == {verdict.value}:
        return ""
    unit, decimals, bound = verdict.unit, _decimals(verdict), verdict.bound_value
    (low, high), is_lower_bound = verdict.interval, "at_least" in verdict.bound
    is_kept = low >= bound if is_lower_bound else high <= bound
    is_missed = high < bound if is_lower_bound else low > bound
    is_decided = (verdict.passed and is_kept) or (verdict.outcome == "failed" and is_missed)
    if not is_decided and verdict.because is not None and verdict.because.main.code == "far":
        is_above = verdict.passed == is_lower_bound
        far = bound * (FAR if is_above else 1 / FAR)
        return f"each round {'≥' if is_above else '≤'} {_digits(far, unit, _default_decimals(far, unit))}"
    if not is_decided:
        return f"{_digits(low, unit, decimals, ROUND_FLOOR)} … {_digits(high, unit, decimals, ROUND_CEILING)}"
    is_low = is_lower_bound == is_kept  # the end that decides
    end, rounding = (low, ROUND_FLOOR) if is_low else (high, ROUND_CEILING)
    while is_missed and _digits(end, unit, decimals, rounding) == _digits(bound, unit, decimals):
        decimals += 1
    return f"{'at least' if is_low else 'at most'} {_digits(end, unit, decimals, rounding)}"


def bound_text(verdict: Verdict) -> str:
    """The bound, ``≥ 96.0 %`` or ``≤ 70 GiB``, with enough digits to differ from a value that misses it."""
    return _bound(verdict.bound_value, verdict.unit, "at_most" in verdict.bound, _decimals(verdict))


def _bound(bound: float, unit: str, is_upper: bool, most: int = 99) -> str:
    decimals = min(max(_places(bound, unit), int(unit == "fraction")), most)
    return f"{'≤' if is_upper else '≥'} {number_text(bound, unit, decimals)}"


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
    while margin < 0 and not _digits(margin, "fraction", decimals).strip("0."):
        decimals += 1
    text = number_text(margin, "fraction", decimals)
    return text if text.startswith("−") else f"+{text}"


def has_interval(verdict: Verdict) -> bool:
    """Whether a verdict has a meaningful interval; a share of nodes is counted once, without error."""
    return verdict.interval is not None and METRICS[verdict.metric].subject != "check"


def _decimals(verdict: Verdict) -> int:
    """Digits after the point for value, interval and bound, enough to show their order."""
    value, bound, unit = verdict.value, verdict.bound_value, verdict.unit
    default = _default_decimals(bound if value is None else value, unit)
    of_bound = _places(bound, unit)
    digits = decimal(bound, _power_of_ten(unit)).adjusted() + 1 if math.isfinite(bound) else _SIGNIFICANT_DIGITS
    decimals = max(default, min(of_bound, _SIGNIFICANT_DIGITS - digits))
    if value is None:
        return decimals
    while decimals < of_bound and _looks_missed(verdict, decimals):
        decimals += 1
    while (verdict.margin or 0) < 0 and _digits(value, unit, decimals) == _digits(bound, unit, decimals):
        decimals += 1
    return decimals


def _looks_missed(verdict: Verdict, decimals: int) -> bool:
    """Whether the limit of a verdict that passed, rounded outwards, is on the wrong side of the rounded bound."""
    if not verdict.passed or verdict.interval is None or not all(map(math.isfinite, verdict.interval)):
        return False
    (low, high), bound, unit = verdict.interval, verdict.bound_value, verdict.unit
    end, rounding, sign = (low, ROUND_FLOOR, 1) if "at_least" in verdict.bound else (high, ROUND_CEILING, -1)
    both = (_digits(end, unit, decimals, rounding), _digits(bound, unit, decimals))
    shown, of = (sign * Decimal(text.replace("−", "-")) for text in both)
    return sign * end >= sign * bound and shown < of


def _default_decimals(value: float, unit: str) -> int:
    return 1 if unit == "fraction" or (unit != "x" and abs(value) >= 10) else 2


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
