"""Patterns for names of devices: what could take for ever to match is refused, and the rest is quick."""

from __future__ import annotations

import time

from pytest_ddpscale.plan.device_name import LONGEST_NAME, is_named, why_no_name_pattern
from tests.rows import rows


@rows(
    ("pattern", "complaint"),
    [
        ("A100", "is not anchored"),
        ("^" + "A" * 200 + "$", "has 202 characters; expected at most 120"),
        ("^(a+)+$", "repeats a group"),
        ("^(a|aa)*$", "repeats a group"),
        ("^(?:a*)*$", "repeats a group"),
        ("^((a)*){9}$", "repeats a group"),
        ("^.*.*.*.*.*.*x$", "may take for ever to match; expected at most 2 of *, + and {}"),
        ("^a{0,9}a{0,9}a{0,9}$", "may take for ever to match"),
        ("^" + "a?" * 40 + "$", "expected at most 10 of ? and |"),
        ("^" + "(a|a)" * 20 + "$", "expected at most 10 of ? and |"),
        ("^(?=a)a$", "has a group that begins with (?"),
        ("^(?P<n>a)$", "has a group that begins with (?"),
        ("^x{99999999999999}$", "is not a regular expression: the repetition number is too large"),
        ("^[[a]$", "is not a regular expression: Possible nested set"),
        ("^(A100$", "is not a regular expression: missing )"),
        ("^\\1$", "is not a regular expression: invalid group reference"),
        ("^a**$", "is not a regular expression: multiple repeat"),
    ],
)
def test_a_pattern_that_might_never_end_or_is_none_is_refused(pattern: str, complaint: str) -> None:
    assert complaint in why_no_name_pattern(pattern)


@rows(
    ("pattern", "name", "expected"),
    [
        ("^(NVIDIA )?A100(-PCIE-80GB| 80GB PCIe)$", "NVIDIA A100 80GB PCIe", True),
        ("^(NVIDIA )?A100(-PCIE-80GB| 80GB PCIe)$", "NVIDIA A100 80GB PCIe2", False),
        ("^(?:NVIDIA )?[A-Z?*+|]+.*$", "NVIDIA A100", True),
        (r"^A\(1\)\?\|\+\*$", "A(1)?|+*", True),
        ("^.*$", "x" * LONGEST_NAME, True),
        ("^.*$", "x" * (LONGEST_NAME + 1), False),
        ("^A100$", "A100\n", False),
    ],
)
def test_a_usual_pattern_matches_whole_names(pattern: str, name: str, expected: bool) -> None:
    assert why_no_name_pattern(pattern) == ""
    assert is_named(name, pattern) is expected


@rows(
    "pattern",
    [
        "^.*.*" + "a?" * 10 + "b$",
        "^a*a*(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)b$",
        "^a{0,96}a{0,96}(((((((((a?)?)?)?)?)?)?)?)?)?b$",
        "^(a|a)?(a|a)?(a|a)?(a|a)?(a|a)?.*.*b$",
    ],
)
def test_the_slowest_patterns_that_are_allowed_end(pattern: str) -> None:
    assert why_no_name_pattern(pattern) == ""
    began = time.process_time()
    assert not is_named("a" * LONGEST_NAME, pattern)
    assert time.process_time() - began < 2
