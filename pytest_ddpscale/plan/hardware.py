"""GPUs by name, and the torch builds with code for them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable

# NVML's names have up to 95 characters (NVML_DEVICE_NAME_V2_BUFFER_SIZE).
LONGEST_NAME = 96
LONGEST_PATTERN = 120
# Python's `re` backtracks through all possible matches without a time limit. With these limits and without repeated
# groups there are at most 97**2 * 2**10 of them, which take less than a second.
MOST_REPEATS = 2
MOST_CHOICES = 10
# No driver gives such names: a pattern that matches one tells no model from another.
_OF_NO_DEVICE = ("", "no such device 0", "NO SUCH DEVICE", "§")
# An escaped character or a class, whose characters are not operators.
_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_ARCHITECTURE = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<bound>[af]?)")
# Minor versions that the worker's tests ran with: docs/evidence has them. pyproject.toml has the oldest.
OLDEST_TRIED, NEWEST_TRIED = (2, 9), (2, 15)
_VERSION = re.compile(r"(\d+)\.(\d+)")
# Compute capabilities of the oldest GPUs that CUDA 13 supports, and of the oldest that need CUDA 12.8.
_TURING, _BLACKWELL = (7, 5), (10, 0)


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
    if any(re.fullmatch(pattern, name) for name in _OF_NO_DEVICE):
        return "matches any device; expected the model's name, as the driver gives it"
    return ""


def is_named(name: str, pattern: str) -> bool:
    """Whether a device's name matches a pattern of the thresholds."""
    return len(name) <= LONGEST_NAME and re.fullmatch(pattern, name) is not None


def has_kernels(architectures: Iterable[str], capability: tuple[int, int]) -> bool:
    """Whether a build has code for a GPU.

    Binaries run on later minor versions of their major version, PTX on anything later. Code for one architecture's
    features (``sm_90a``) runs only there, code for a family's features (``sm_100f``) on its later minors: CUDA
    programming guide, "Feature Set Compiler Targets". Architectures are named as by ``torch.cuda.get_arch_list``.
    """
    for match in filter(None, map(_ARCHITECTURE.fullmatch, architectures)):
        built = (int(match["major"]), int(match["minor"]))
        is_ptx = match["kind"] == "compute" and not match["bound"]
        runs_later = match["bound"] != "a" and built <= capability and (is_ptx or built[0] == capability[0])
        if built == capability or runs_later:
            return True
    return False


def why_untried(version: str) -> str:
    """A note if a torch version is outside the tested range; empty if it is inside."""
    match = _VERSION.match(version)
    if match and OLDEST_TRIED <= (int(match[1]), int(match[2])) <= NEWEST_TRIED:
        return ""
    oldest, newest = (".".join(map(str, tried)) for tried in (OLDEST_TRIED, NEWEST_TRIED))
    return f"torch {version} has not been tested with this package; {oldest} to {newest} have"


def wheel_for(capability: tuple[int, int]) -> str:
    """Describe the official x86-64 wheels with code for a GPU (pytorch/pytorch#190385, #172352)."""
    if capability < _TURING:
        return "wheels of CUDA 12.6 (cu126) from torch 2.9 to torch 2.14 have code for it"
    since = "torch 2.9 of CUDA 12.8 (cu128)" if capability >= _BLACKWELL else "torch 2.9"
    return f"wheels from {since} to torch 2.15 of CUDA 13.2 (cu132) have code for it"
