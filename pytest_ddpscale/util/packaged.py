"""Files shipped with the package: thresholds, acceptance tests, Slurm scripts."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.errors import OptionError

SITE_FOLDERS = ("acceptance", "slurm")
THRESHOLDS = "thresholds.yaml"
SCHEMA = "thresholds.schema.json"
_PACKAGE = Path(__file__).resolve().parents[1]


def refuse_archive() -> None:
    """Refuse to run from a zip archive, such as a wheel on PYTHONPATH: shipped files are opened by their paths.

    Raises:
        OptionError: the package is in an archive.
    """
    archive = _PACKAGE.parent
    if archive.is_file():
        raise OptionError(
            "pytest_ddpscale", f"cannot run from a zip archive ({archive})", "an installed package",
            "Install it with pip, or unpack the archive and name the folder.",
        )  # fmt: skip


def usual_thresholds() -> Path:
    """Default thresholds file of commands: thresholds.yaml in this directory, else the packaged one."""
    here = Path(THRESHOLDS)
    return here if here.is_file() else packaged(THRESHOLDS)


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
