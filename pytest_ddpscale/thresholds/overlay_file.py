"""Changing a site's overlay on disk: the difference is shown, and only a file that still loads replaces it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.thresholds.loading import first_of, load_thresholds
from pytest_ddpscale.thresholds.overlay_writing import OverlayChanges, overlay_with


def changed_text(file: Path, sku: str, changes: OverlayChanges) -> tuple[str, str]:
    """What an overlay says, and what it would say; one that is not there says nothing.

    Raises:
        ThresholdsError: it is no overlay.
        OSError: it cannot be read.
    """
    if file.exists() and not (file.is_file() or file.is_dir()):  # reading a pipe or a device would not end
        raise ThresholdsError(str(file), "is a device or a pipe", "a YAML file")
    try:
        before = file.read_text(encoding="utf-8") if file.exists() else ""
    except UnicodeDecodeError:
        raise ThresholdsError(str(file), "is not UTF-8", "a UTF-8 YAML file") from None
    try:
        return before, overlay_with(before, sku, changes)
    except ThresholdsError as error:
        raise ThresholdsError(str(file), error.found, error.expected, error.action) from None


def write_overlay(file: Path, sku: str, changes: OverlayChanges, show: Callable[[str], object]) -> bool:
    """Change an overlay.

    Args:
        file: of the overlay, made if it is not there.
        sku: canonical name of the SKU that the changes are about.
        changes: what it is to say.
        show: gets the difference, before anything is written.

    Returns:
        False if it says so already.

    Raises:
        ThresholdsError: it is no overlay, or would not be valid any more: it stays as it is then.
        OSError: it cannot be read or written.
    """
    before, after = changed_text(file, sku, changes)
    if before == after:
        return False
    names = f"{file} (before)", f"{file} (now)"
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    new.write_text(after, encoding="utf-8", newline="")
    try:
        _refuse_if_broken(new, file, sku)
        lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
        show("".join(difflib.unified_diff(*lines, *names)))
        if file.is_symlink():  # which stays one
            file.write_text(after, encoding="utf-8", newline="")
        else:
            new.replace(file)
    finally:
        new.unlink(missing_ok=True)
    return True


def _refuse_if_broken(new: Path, file: Path, sku: str) -> None:
    """What would be wrong, said of the file that it would replace."""
    wrong = load_thresholds(new).broken.get(sku)
    if wrong:
        error = first_of(wrong)
        found = f"{error.found.replace(str(new), str(file))}, with what was to be written; the file is as it was"
        raise ThresholdsError(error.where.replace(str(new), str(file)), found, error.expected, "Fix it by hand.")
