"""Ranks that an error of their own GPU ended: records of kind ``gpu_errors`` in measurements.jsonl."""

from __future__ import annotations

from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.strict_json import Count, Positive, Record


class RankGpuError(Record, frozen=True, kw_only=True):
    """One rank.

    Attributes:
        place: without UUID and index if the rank could not tell them.
        error: ``CUDA error: unspecified launch failure``.
        study: that it measured; None between studies, like `arm`.
        peers: number of other ranks that did the same work at the same time.
    """

    place: Place
    error: str
    study: str | None = None
    arm: str | None = None
    peers: Count = 0


class GpuErrors(Record, frozen=True, kw_only=True, tag_field="kind", tag="gpu_errors"):
    """The ranks of one gang, which may have ended before it was announced.

    Attributes:
        gang: its number.
        ranks: of the gang.
        errors: those that an error of their own GPU ended.
        studies: that the end of the gang left without a result.
    """

    gang: Count
    ranks: Positive
    errors: tuple[RankGpuError, ...]
    studies: tuple[str, ...] = ()
