"""Containers for ranks: started through Apptainer, or by a launcher that starts images itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.util.masking import masked_text

_APPTAINER_SOURCES = ("docker://", "oras://", "library://", "shub://")
# This interpreter's path does not exist inside an image.
_PYTHON_INSIDE = "python3"


@dataclass(frozen=True)
class Container:
    """How to run a command in a container.

    Attributes:
        arguments: arguments for a launcher that starts images itself.
        command: command prefix that enters the container.
        python: the interpreter inside; empty for the one outside.
    """

    arguments: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    python: str = ""


NO_CONTAINER = Container()


def container_of(
    image: str | None, device_type: DeviceType, image_arguments: Callable[[str], tuple[str, ...] | None]
) -> Container:
    """The container of an image.

    ``IMAGE.sif``, a directory and ``docker://…`` go to Apptainer (or Singularity), anything else to Pyxis (Enroot),
    such as ``nvcr.io#nvidia/pytorch:25.01-py3`` or ``image.sqsh``. ``apptainer:IMAGE`` and ``pyxis:IMAGE`` choose
    explicitly.

    Args:
        image_arguments: the launcher's arguments for a Pyxis image; returns None if it has none.

    Raises:
        OptionError: no image is named, neither apptainer nor singularity is on PATH, or the launcher does not support
            Pyxis.
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
        if (found := shutil.which("apptainer") or shutil.which("singularity")) is None:
            raise OptionError(
                "--ddp-container", "neither apptainer nor singularity is on PATH", "one of them",
                "Load its module, or use an image for Pyxis: pyxis:IMAGE.",
            )  # fmt: skip
        return Container((), (Path(found).name, "exec", *gpus, image), _PYTHON_INSIDE)
    arguments = image_arguments(image)
    if arguments is None:
        raise OptionError(
            "--ddp-container", f"{masked_text(image)} is an image for Pyxis, which this launcher does not support",
            "an image for Apptainer", "Use Apptainer: a .sif file, or apptainer:IMAGE.",
        )  # fmt: skip
    return Container(arguments, (), _PYTHON_INSIDE)
