"""Containers that ranks run in: what Pyxis tells srun, and what Apptainer is started with."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.study import DeviceType
from pytest_ddpscale.util.masking import masked_text

Runtime = Literal["pyxis", "apptainer"]
_APPTAINER_SOURCES = ("docker://", "oras://", "library://", "shub://")
# Inside an image the path of this interpreter means nothing.
_PYTHON_INSIDE = "python3"


@dataclass(frozen=True)
class Container:
    """How a command is put into a container.

    Attributes:
        srun_arguments: for Slurm's plugin.
        command: what the command is put behind.
        python: the interpreter to start.
    """

    srun_arguments: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    python: str = sys.executable


NO_CONTAINER = Container()


def container_of(image: str | None, mounted: Path, device_type: DeviceType, *, has_srun: bool) -> Container:
    """The container of an image, with the run directory mounted where it is outside.

    ``IMAGE.sif``, a directory and ``docker://…`` are Apptainer's (or Singularity's), anything else is
    Pyxis' (Enroot), as ``nvcr.io#nvidia/pytorch:25.01-py3`` or ``image.sqsh``. ``apptainer:IMAGE`` and
    ``pyxis:IMAGE`` say so.

    Args:
        image: what the user named; None for no container.
        mounted: the run directory.
        device_type: GPUs have to be handed in.
        has_srun: whether ranks start by srun, which Pyxis needs.

    Raises:
        OptionError: no image is named, neither apptainer nor singularity is on PATH, or Pyxis is asked for without
            srun.
    """
    if image is None:
        return NO_CONTAINER
    runtime, image = _runtime_of(image)
    place = mounted.resolve()
    if {",", ":"} & set(str(place)):
        raise OptionError(
            "--ddp-run-dir", f"{place} has a comma or colon, which separate mounts of a container", "a path without",
            "Name another one.",
        )  # fmt: skip
    if runtime == "apptainer":
        gpus = ("--nv",) if device_type == "cuda" else ()
        return Container((), (_apptainer(), "exec", *gpus, "--bind", str(place), image), _PYTHON_INSIDE)
    if not has_srun:
        raise OptionError(
            "--ddp-container", f"{masked_text(image)} is an image for Pyxis, which is a plugin of srun",
            "--ddp-launcher=slurm", "On one machine use Apptainer: a .sif file, or apptainer:IMAGE.",
        )  # fmt: skip
    return Container((f"--container-image={image}", f"--container-mounts={place}:{place}"), (), _PYTHON_INSIDE)


def _runtime_of(image: str) -> tuple[Runtime, str]:
    runtime, colon, rest = image.partition(":")
    if colon and runtime in ("apptainer", "pyxis"):
        if not rest:
            raise OptionError("--ddp-container", f"found no image in {image!r}", f"{runtime}:IMAGE")
        return ("apptainer" if runtime == "apptainer" else "pyxis"), rest
    is_apptainer = image.endswith(".sif") or image.startswith(_APPTAINER_SOURCES) or Path(image).is_dir()
    return ("apptainer" if is_apptainer else "pyxis"), image


def _apptainer() -> str:
    found = shutil.which("apptainer") or shutil.which("singularity")
    if found is None:
        raise OptionError(
            "--ddp-container", "neither apptainer nor singularity is on PATH", "one of them",
            "Load its module, or use an image for Pyxis: pyxis:IMAGE.",
        )  # fmt: skip
    return Path(found).name
