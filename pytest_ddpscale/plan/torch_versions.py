"""Tested torch versions, and the official wheels with code for a GPU."""

from __future__ import annotations

import re

# Minor versions that the worker's tests ran with: docs/evidence/torch-versions.md. pyproject.toml has the oldest.
OLDEST_TRIED, NEWEST_TRIED = (2, 6), (2, 15)
_VERSION = re.compile(r"(\d+)\.(\d+)")
# Compute capabilities of the oldest GPUs that CUDA 13 supports, and of the oldest that need CUDA 12.8.
_TURING, _BLACKWELL = (7, 5), (10, 0)


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
        return "the last wheel with code for it is torch 2.14 of CUDA 12.6 (cu126)"
    since = "torch 2.7 of CUDA 12.8 (cu128)" if capability >= _BLACKWELL else "torch 2.6"
    return f"wheels from {since} to torch 2.15 of CUDA 13.2 (cu132) have code for it"
