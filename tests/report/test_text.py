"""Numbers and words are written so that they cannot be misread."""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_ddpscale import launch as launch_package
from pytest_ddpscale.launch.slurm import _STATES
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report import digits
from pytest_ddpscale.report.sentences import uniform_loss_text
from pytest_ddpscale.report.words.reasons import SENTENCES, say
from pytest_ddpscale.report.words.verdicts import headline_of, verdict_style, verdict_word
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.verdicts import Judgement, UniformLoss, Verdict
from pytest_ddpscale.util.printable import one_line, shell_line
from tests.builders.judgements import FAILED, HOSTILE, MEMORY, PASSED, WARNED
from tests.rows import rows


def _numbers(shown: str) -> Decimal:
    match = re.search(r"−?\d+(\.\d+)?", shown)
    assert match is not None, shown
    return Decimal(match.group().replace("−", "-"))


@rows(
    ("value", "unit", "told"),
    [
        (0.9745, "fraction", "97.4 %"), (-0.0001, "fraction", "0.0 %"), (9.314, "img/s", "9.31 img/s"),
        (2.36, "x", "2.36×"), (445.78, "ms", "445.8 ms"), (math.inf, "img/s", "∞ img/s"),
        (math.nan, "x", "not a number×"),
    ],
)  # fmt: skip
def test_each_unit_is_shown_with_its_sensible_digits(value: float, unit: str, told: str) -> None:
    assert digits.number_text(value, unit) == told


def test_each_metric_has_its_unit() -> None:
    for metric in METRICS.values():
        unit = {"fraction": " %", "x": "×"}.get(metric.unit, f" {metric.unit}")
        assert digits.number_text(0.5, metric.unit).endswith(unit)


FAR = replace(PASSED, bound={"at_least": 0.25}, interval=(0.046, 1.1), because=because("far"))
AT_MOST = replace(PASSED, metric="rank_uniformity", bound={"at_most": 1.08}, value=1.02, interval=(1.01, 1.05))


IN_DOUBT = replace(PASSED, outcome="inconclusive", value=0.97, interval=(0.951, 0.982))
SLOW = replace(
    PASSED, metric="busbw_gbps", unit="GB/s", bound={"at_least": 797.0208}, outcome="failed", value=335.6161,
    interval=(333.4, 337.84),
)  # fmt: skip
OVER = replace(MEMORY, outcome="failed", value=70.0004)


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        # where one side decides, it is the one that is shown, rounded outwards
        (replace(PASSED, value=0.97, interval=(0.96598, 0.978)), "97.0 % | at least 96.5 % | ≥ 96.0 %"),
        (replace(PASSED, outcome="failed", value=0.93, interval=(0.921, 0.942)), "93.0 % | at most 94.2 % | ≥ 96.0 %"),
        (replace(AT_MOST, outcome="failed", value=1.15, interval=(1.11, 1.21)), "1.15× | at least 1.11× | ≤ 1.08×"),
        (replace(FAR, value=0.756), "75.6 % | each round ≥ 50.0 % | ≥ 25.0 %"),
        (replace(FAR, outcome="failed", value=0.1), "10.0 % | each round ≤ 12.5 % | ≥ 25.0 %"),
        # where none does, as with wrong data or too few rounds, both are
        (IN_DOUBT, "97.0 % | 95.1 … 98.2 % | ≥ 96.0 %"),
        (replace(IN_DOUBT, interval=(0.95998, 0.98002)), "97.0 % | 95.9 … 98.1 % | ≥ 96.0 %"),
        (replace(IN_DOUBT, interval=(-math.inf, math.inf)), "97.0 % | −∞ … ∞ % | ≥ 96.0 %"),
        (replace(PASSED, value=0.97, interval=(0.97, 0.97)), "97.0 % | – | ≥ 96.0 %"),
        # more digits until a miss does not look like its bound
        (replace(PASSED, outcome="failed", value=0.95996, interval=None), "95.996 % | – | ≥ 96.0 %"),
        (OVER, "70.0004 GiB | – | ≤ 70 GiB"),
        # of a computed bound four, unless a limit needs more
        (SLOW, "335.6 GB/s | at most 337.9 GB/s | ≥ 797.0 GB/s"),
        (replace(SLOW, outcome="passed", bound={"at_least": 797.06}, value=799.0, interval=(797.07, 801.0)),
         "799.00 GB/s | at least 797.07 GB/s | ≥ 797.06 GB/s"),
        (replace(SLOW, bound={"at_least": 0.0051}, value=0.004, interval=(0.0039, 0.0041)),
         "0.0040 GB/s | at most 0.0041 GB/s | ≥ 0.0051 GB/s"),
    ],
)  # fmt: skip
def test_digits_show_on_which_side_of_the_bound_a_value_is(verdict: Verdict, told: str) -> None:
    assert " | ".join(of(verdict) for of in (digits.point_text, digits.limits_text, digits.bound_text)) == told


def test_a_margin_is_told_as_a_share_or_beyond_twice_the_bound_as_a_factor() -> None:
    shown = [digits.margin_text(one) for one in (PASSED, OVER, replace(OVER, value=292.0))]
    assert shown == ["+1.5 %", "−0.001 %", "4.2× the bound"]


@given(
    metric=st.sampled_from(sorted(METRICS)),
    bound=st.floats(1e-3, 1e5),
    ratio=st.one_of(st.floats(0.5, 2.0), st.floats(-1e-6, 1e-6).map(lambda x: 1 + x)),
    half=st.floats(0, 0.2),
)
def test_shown_value_is_on_the_same_side_of_the_shown_bound(
    metric: str, bound: float, ratio: float, half: float
) -> None:
    value = bound * ratio
    key = "at_most" if METRICS[metric].upper_bound else "at_least"
    verdict = replace(
        PASSED, metric=metric, bound={key: bound}, value=value, interval=(value * (1 - half), value * (1 + half))
    )
    shown, shown_bound = _numbers(digits.point_text(verdict)), _numbers(digits.bound_text(verdict))
    sign = -1 if key == "at_most" else 1
    assert (sign * shown < sign * shown_bound) == (sign * value < sign * bound)
    margin = verdict.margin
    assert margin is not None
    assume(margin != 0)
    told = digits.margin_text(verdict)
    assert told.endswith("× the bound") if margin < -1 else told.startswith("−" if margin < 0 else "+")


@rows(
    ("standing", "told"),
    [
        ("passed fail", "PASS passed"), ("failed fail", "FAIL failed"), ("failed warn", "WARN warned"),
        ("failed warn wrong-data", "FAIL failed"), ("inconclusive fail", "INCONCLUSIVE undecided"),
        ("inconclusive warn", "INCONCLUSIVE warned"), ("not_measured warn", "NOT MEASURED undecided"),
        ("error fail", "ERROR failed"),
    ],
)  # fmt: skip
def test_verdict_has_one_word_and_one_style(standing: str, told: str) -> None:
    outcome, severity, *flags = standing.split()
    verdict = replace(PASSED, outcome=outcome, severity=severity, flags=tuple(flags))  # type: ignore[arg-type]
    assert f"{verdict_word(verdict)} {verdict_style(verdict)}" == told


def test_a_command_to_paste_quotes_what_a_shell_would_read() -> None:
    assert shell_line(["pytest", "-k", WARNED.id]) == "pytest -k 'strong_scaling_speedup[vit-b16-bf16-8gpu]'"


@given(st.text(st.characters(exclude_categories=[])))
def test_one_line_is_one_harmless_line(content: str) -> None:
    line = one_line(content)
    line.encode("utf-8")
    assert len(line.splitlines()) <= 1
    assert not {unicodedata.category(c) for c in line} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert one_line(line) == line


def test_one_line_keeps_what_a_person_wrote() -> None:
    assert one_line("  2.36× faster,\n than <node7> ") == "2.36× faster, than <node7>"
    assert "\x1b" not in one_line(HOSTILE)


def test_a_headline_ends_with_a_sentence_of_a_very_long_error() -> None:
    first = "rank 2 on n1 failed in preparation: OutOfMemoryError: CUDA out of memory."
    headline = headline_of(f"{first}{' Of the allocated memory much is allocated.' * 12}\nlast lines of its log: …")
    assert headline.startswith(first)
    assert headline.endswith(". …")
    assert len(headline) <= 302
    assert headline_of("short\nmore") == "short"
    assert len(headline_of("x" * 1000)) == 302


LOSS = UniformLoss(0.0, 0.0510001, 0.95, "throughput_per_gpu[a]", 5)
FAST = replace(LOSS, largest=0.0, workloads=1)
SLOWER = replace(FAST, largest=0.44)
NO_SPEED: dict[str, Any] = {"notes": ("no published speed",), "remarks": (because("unseen-loss"),)}
NARROW = replace(PASSED, flags=("this-launch-only",))


@rows(("changes", "words"), [
    ({"uniform_loss": LOSS}, "at least 94.8 % of the published one for each of 5 workloads (95 % confidence)."),
    ({"uniform_loss": SLOWER}, "at least 56.0 % of the published one (95 % confidence)."),
    ({"uniform_loss": FAST}, "at least the published one (95 % confidence)."),
    ({"uniform_loss": FAST, **NO_SPEED}, ""), ({"uniform_loss": LOSS, "verdicts": (NARROW,)}, ""),
    ({"verdicts": (replace(FAILED, published=1200.0),)}, ""), (NO_SPEED, ""),
    ({}, "no published throughput to compare with, so a loss of any size could stay hidden."),
])  # fmt: skip
def test_the_lower_limit_of_the_slowest_workload_is_told_rounded_down(changes: dict[str, Any], words: str) -> None:
    said = uniform_loss_text(replace(Judgement("a100", "accepted", "1 of 1", (PASSED,)), **changes))
    assert said.endswith(words)
    assert bool(said) == bool(words)


def test_each_reason_that_ends_a_gang_has_a_sentence() -> None:
    """A module names codes as the first text in brackets, or keeps them in a table."""
    launch = Path(launch_package.__path__[0])
    text = "".join(one.read_text(encoding="utf-8") for one in launch.glob("*.py"))
    codes = {*re.findall(r'because\(\s*"([a-z-]+)"|_stuck\(roll, "([a-z-]+)"', text)}
    found = {one or other for one, other in codes}
    assert found - SENTENCES.keys() == set()
    assert {*_STATES.values()} <= SENTENCES.keys()
    assert len(found) > 30


@rows("reason", [because("of-a-later-version", "n1"), because("no-route", "n1"), because("nodes-lost", 7, "", "")])
def test_a_reason_of_another_version_is_shown_as_it_is(reason: Reason) -> None:
    assert say(because("broke", reason)).startswith(f"{reason.code} (")
