"""The files that come with the package: thresholds, acceptance tests, Slurm scripts."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def packaged(name: str) -> Path:
    """Path of a shipped file or folder, in an installed wheel or in a checkout.

    Raises:
        FileNotFoundError: the installation is incomplete.
    """
    for parent in (_PACKAGE, _PACKAGE.parent):
        candidate = parent / name
        if candidate.exists():
            return candidate
    raise FileNotFoundError(f"{name} is missing beside {_PACKAGE}: reinstall pytest-ddpscale")
