"""Writes a thresholds file that extends another and changes one SKU of it. No existing file is ever changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import OptionError, ThresholdsError
from pytest_ddpscale.thresholds.form import SCHEMA_VERSION
from pytest_ddpscale.thresholds.loading import DEEPEST_EXTENSION, PACKAGED, ThresholdsFile, first_of, load_thresholds
from pytest_ddpscale.util.packaged import packaged

_WIDTH = 120


@dataclass(frozen=True)
class Overlay:
    """What a file changes in the file that it extends.

    Attributes:
        command: that writes it, such as ``calibrate``.
        below: the file that it extends.
        sku: canonical name of the SKU that it changes.
        section: the SKU's `batch`, `requirements` and `change`, as in a thresholds file.
        sources: text of each source that its rows name.
    """

    command: str
    below: ThresholdsFile
    sku: str
    section: Mapping[str, Any]
    sources: Mapping[str, str] = field(default_factory=dict)

    def text(self, folder: Path) -> str:
        """The whole file, for a folder."""
        content: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "extends": _extends(self.below.path, folder)}
        if self.sources:
            content["sources"] = dict(self.sources)
        content["skus"] = {self.sku: dict(self.section)}
        # Leaves such as `{per_gpu: 40}` are written on one line.
        dumped = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=None)
        return f"# Written by ddpscale {__version__} {self.command}.\n{dumped}"


def _extends(below: Path, folder: Path) -> str:
    if below.samefile(packaged("thresholds.yaml")):
        return PACKAGED
    path = os.path.relpath(below.resolve(), folder.resolve())
    return f"./{path}" if path == PACKAGED else path


def refuse_unwritable(option: str, file: Path, below: ThresholdsFile) -> None:
    """Refuse a file that exists or cannot be written, or would be one too many that extend each other.

    Raises:
        OptionError: the message names the option.
    """
    if os.path.lexists(file):
        hint = f"It is never changed. A new file may extend it: --thresholds={file} {option} NEW.yaml."
        raise OptionError(option, f"found {file}, which exists", "a new file", hint)
    if not os.access(file.parent, os.W_OK):
        raise OptionError(option, f"found {file}, whose folder cannot be written", "a writable folder")
    if len(below.layers) > DEEPEST_EXTENSION:
        found = f"{below.path} already extends {DEEPEST_EXTENSION} files"
        raise OptionError(option, found, "fewer", "Name an earlier one of them with --thresholds.")


def write_overlay(file: Path, overlay: Overlay) -> str:
    """Write an overlay into a new file, at once and only if it is valid. Returns its text.

    Raises:
        ThresholdsError: the SKU would be invalid.
        OSError: the file exists, or cannot be written.
    """
    text = overlay.text(file.parent)
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    new.write_text(text, encoding="utf-8", newline="")
    try:
        wrong = load_thresholds(new).broken.get(overlay.sku)
        if wrong:
            error = first_of(wrong)
            place, found = (one.replace(str(new), str(file)) for one in (error.where, error.found))
            raise ThresholdsError(place, f"{found}; the file was not written", error.expected)
        file.open("x").close()  # fails if the file exists by now
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
    return text
