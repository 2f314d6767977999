"""Which GPUs a torch build has code for."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CAPABILITY = re.compile(r"(\d+)\.(\d+)")
_ARCHITECTURE = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)[af]?")


def has_kernels(architectures: Iterable[str], capability: tuple[int, int]) -> bool:
    """Whether a build has code for a GPU: binaries run on later minors, PTX on anything later.

    Args:
        architectures: as ``torch.cuda.get_arch_list`` gives them: ``sm_90``, ``sm_90a``, ``compute_120`` …
        capability: the GPU's compute capability, major and minor.
    """
    for architecture in architectures:
        match = _ARCHITECTURE.fullmatch(architecture)
        if match is None:
            continue
        built = (int(match["major"]), int(match["minor"]))
        if match["kind"] == "sm" and built[0] == capability[0] and built[1] <= capability[1]:
            return True
        if match["kind"] == "compute" and built <= capability:
            return True
    return False


def parse_capability(text: str) -> tuple[int, int] | None:
    """``9.0`` as major and minor; None if it is something else."""
    match = _CAPABILITY.fullmatch(text)
    return None if match is None else (int(match[1]), int(match[2]))
