"""Files shipped with the package: thresholds, acceptance tests, Slurm scripts."""

from __future__ import annotations

from pathlib import Path

SITE_FOLDERS = ("acceptance", "slurm")
THRESHOLDS = "thresholds.yaml"
SCHEMA = "thresholds.schema.json"
_PACKAGE = Path(__file__).resolve().parents[1]


def usual_thresholds() -> Path:
    """Default thresholds file of commands: thresholds.yaml in this directory, else the packaged one."""
    path = Path(THRESHOLDS)
    return path if path.is_file() else packaged(THRESHOLDS)


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
