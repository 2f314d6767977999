"""Containers that ranks run in: what Apptainer is started with, or a launcher that starts images itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.study import DeviceType
from pytest_ddpscale.util.masking import masked_text

_APPTAINER_SOURCES = ("docker://", "oras://", "library://", "shub://")
# Inside an image the path of this interpreter means nothing.
_PYTHON_INSIDE = "python3"


@dataclass(frozen=True)
class Container:
    """How a command is put into a container.

    Attributes:
        arguments: of a launcher that does so itself.
        command: what the command is put behind.
        python: the interpreter inside; empty for that of outside.
    """

    arguments: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    python: str = ""


NO_CONTAINER = Container()


def container_of(
    image: str | None, device_type: DeviceType, image_arguments: Callable[[str], tuple[str, ...] | None]
) -> Container:
    """The container of an image.

    ``IMAGE.sif``, a directory and ``docker://…`` are Apptainer's (or Singularity's), anything else is
    Pyxis' (Enroot), as ``nvcr.io#nvidia/pytorch:25.01-py3`` or ``image.sqsh``. ``apptainer:IMAGE`` and
    ``pyxis:IMAGE`` say so.

    Args:
        image_arguments: of the launcher: how it starts an image of Pyxis, or None if it cannot.

    Raises:
        OptionError: no image is named, neither apptainer nor singularity is on PATH here, or Pyxis is asked for
            without its launcher.
    """
    if image is None:
        return NO_CONTAINER
    runtime, colon, rest = image.partition(":")
    if colon and runtime in ("apptainer", "pyxis"):
        if not rest:
            raise OptionError("--ddp-container", f"found no image in {image!r}", f"{runtime}:IMAGE")
        image, is_apptainer = rest, runtime == "apptainer"
    else:
        is_apptainer = image.endswith(".sif") or image.startswith(_APPTAINER_SOURCES) or Path(image).is_dir()
    if is_apptainer:
        gpus = ("--nv",) if device_type == "cuda" else ()
        return Container((), (_apptainer(), "exec", *gpus, image), _PYTHON_INSIDE)
    arguments = image_arguments(image)
    if arguments is None:
        raise OptionError(
            "--ddp-container", f"{masked_text(image)} is an image for Pyxis, which this launcher does not start",
            "an image for Apptainer", "Use Apptainer: a .sif file, or apptainer:IMAGE.",
        )  # fmt: skip
    return Container(arguments, (), _PYTHON_INSIDE)


def _apptainer() -> str:
    found = shutil.which("apptainer") or shutil.which("singularity")
    if found is None:
        raise OptionError(
            "--ddp-container", "neither apptainer nor singularity is on PATH", "one of them",
            "Load its module, or use an image for Pyxis: pyxis:IMAGE.",
        )  # fmt: skip
    return Path(found).name
