"""GPU architectures that a torch build supports."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CAPABILITY = re.compile(r"(\d+)\.(\d+)")
_ARCHITECTURE = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<bound>[af]?)")


def has_kernels(architectures: Iterable[str], capability: tuple[int, int]) -> bool:
    """Whether a build has code for a GPU.

    Binaries run on later minor versions of their major version, PTX on anything later. Code for one architecture's
    features (``sm_90a``) runs only there, code for a family's features (``sm_100f``) on its later minors: CUDA
    programming guide, "Feature Set Compiler Targets". Architectures are named as by ``torch.cuda.get_arch_list``.
    """
    return any(_runs(match, capability) for match in map(_ARCHITECTURE.fullmatch, architectures) if match)


def _runs(architecture: re.Match[str], capability: tuple[int, int]) -> bool:
    built = (int(architecture["major"]), int(architecture["minor"]))
    if architecture["bound"] == "a":
        return built == capability
    if architecture["bound"] == "f" or architecture["kind"] == "sm":
        return built[0] == capability[0] and built[1] <= capability[1]
    return built <= capability


def parse_capability(text: str) -> tuple[int, int] | None:
    """Parse ``9.0`` into major and minor; None if it is not a capability."""
    match = _CAPABILITY.fullmatch(text)
    return None if match is None else (int(match[1]), int(match[2]))
