"""Changes a site's overlay on disk: shows the diff, and replaces the file only if the new one is valid."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.thresholds.loading import first_of, load_thresholds
from pytest_ddpscale.thresholds.overlay_writing import OverlayChanges, overlay_with


def changed_text(file: Path, sku: str, changes: OverlayChanges) -> tuple[str, str]:
    """An overlay's text before and after the changes; empty before if the file does not exist.

    Raises:
        ThresholdsError: it is not an overlay.
        OSError: it cannot be read.
    """
    if file.exists() and not (file.is_file() or file.is_dir()):  # reading a pipe or a device would hang
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
        file: the overlay, created if missing.
        sku: canonical name of the SKU to change.
        changes: the changes.
        show: called with the diff before the file is written.

    Returns:
        False if nothing needs to change.

    Raises:
        ThresholdsError: it is not an overlay, or would become invalid; the file is unchanged.
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
        if file.is_symlink():  # keep the link
            file.write_text(after, encoding="utf-8", newline="")
        else:
            new.replace(file)
    finally:
        new.unlink(missing_ok=True)
    return True


def _refuse_if_broken(new: Path, file: Path, sku: str) -> None:
    """Raise the new file's error, worded for the file that it would replace."""
    wrong = load_thresholds(new).broken.get(sku)
    if wrong:
        error = first_of(wrong)
        found = f"{error.found.replace(str(new), str(file))} after the change; the file was not changed"
        raise ThresholdsError(error.where.replace(str(new), str(file)), found, error.expected, "Fix it by hand.")
