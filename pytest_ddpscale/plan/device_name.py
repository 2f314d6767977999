"""Matching of device names against patterns of the thresholds, in bounded time."""

from __future__ import annotations

import re
import warnings

# NVML's names have up to 95 characters (NVML_DEVICE_NAME_V2_BUFFER_SIZE).
LONGEST_NAME = 96
LONGEST_PATTERN = 120
# Python's `re` backtracks through all possible matches without a time limit. With these limits and without repeated
# groups there are at most 97**2 * 2**10 of them, which take less than a second.
MOST_REPEATS = 2
MOST_CHOICES = 10
# An escaped character or a class, whose characters are not operators.
_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def why_no_name_pattern(pattern: str) -> str:
    """Why a pattern cannot be used for device names; empty if it can."""
    if not (pattern.startswith("^") and pattern.endswith("$")):
        return "is not anchored; expected '^…$', otherwise 6000 matches 6000D"
    if len(pattern) > LONGEST_PATTERN:
        return f"has {len(pattern)} characters; expected at most {LONGEST_PATTERN}"
    operators = _ATOM.sub("x", pattern).replace("(?:", "(")
    if "(?" in operators:
        return "has a group that begins with (?; expected plain groups, ( or (?:"
    if re.search(r"\)[*+{]", operators):
        return "repeats a group, which may take for ever to match; expected *, + and {} after single characters only"
    if sum(map(operators.count, "*+{")) > MOST_REPEATS:
        return f"may take for ever to match; expected at most {MOST_REPEATS} of *, + and {{}}"
    if sum(map(operators.count, "?|")) > MOST_CHOICES:
        return f"may take for ever to match; expected at most {MOST_CHOICES} of ? and |"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        return f"is not a regular expression: {error}"
    return ""


def is_named(name: str, pattern: str) -> bool:
    """Whether a device's name matches a pattern of the thresholds."""
    return len(name) <= LONGEST_NAME and re.fullmatch(pattern, name) is not None
