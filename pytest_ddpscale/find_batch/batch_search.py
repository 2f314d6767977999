"""Order in which batches are tried."""

from __future__ import annotations

from collections.abc import Callable

MULTIPLE = 8  # suits tensor cores; a finer search is not worth the launches


def largest_fitting(fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """The largest batch that fits: doubled from `least` until one does not fit, then bisected to a multiple of 8.

    Args:
        fits: tries a batch; called at most once for each. A larger batch must need more memory.
        least: first batch, a multiple of 8.
        most: largest batch to try, a multiple of 8.

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
