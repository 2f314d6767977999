"""Which batches are tried, in which order."""

from __future__ import annotations

from collections.abc import Callable

MULTIPLE = 8  # what tensor cores want, and as fine as is worth a launch


def largest_fitting(fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """The largest batch that fits: doubled from `least` on until one does not, then halved between to a multiple of 8.

    Args:
        fits: tries a batch; asked for each once. A larger one needs more.
        least: where to begin, a multiple of 8.
        most: no larger one is tried, a multiple of 8.

    Returns:
        None if not even `least` fits.
    """
    if not fits(least):
        return None
    largest = least
    while largest < most:
        batch = min(2 * largest, most)
        if not fits(batch):
            return _between(fits, largest, batch)
        largest = batch
    return largest


def _between(fits: Callable[[int], bool], largest: int, too_large: int) -> int:
    while too_large - largest > MULTIPLE:
        batch = (largest + too_large) // 2 // MULTIPLE * MULTIPLE
        if fits(batch):
            largest = batch
        else:
            too_large = batch
    return largest
