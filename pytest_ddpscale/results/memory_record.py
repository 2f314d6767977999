"""How much memory a study took, told where a search for the largest batch asks for it; no run directory has it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pytest_ddpscale.results.strict_json import Count, Positive, Record, decode


class RankMemory(Record, frozen=True, kw_only=True):
    """What one rank took at most, in bytes.

    Attributes:
        own_bytes: that nothing else could use. GPU: of the device, by whatever: torch's allocator at its peak, NCCL's
            buffers, CUDA's context. CPU: the peak of the resident set, less the shared pages.
        shared_bytes: pages that ranks of a node share, such as those of libraries; 0 on a GPU.
        total_bytes: what the device has; None on a CPU, where a rank does not know how much it may have.
    """

    own_bytes: Count
    shared_bytes: Count = 0
    total_bytes: Positive | None = None


class StudyMemory(Record, frozen=True, kw_only=True, tag_field="kind", tag="memory"):
    """What the ranks of a gang took in a study, in their order."""

    study: str
    ranks: tuple[RankMemory, ...]


_DECODER = msgspec.json.Decoder(StudyMemory)


def joined_memory(ranks: Sequence[RankMemory], study: str) -> StudyMemory:
    """The record of what all ranks say, in their order."""
    return StudyMemory(study=study, ranks=tuple(ranks))


def read_memory(line: bytes) -> StudyMemory:
    """The record of one line. Raises ValueError: it holds none."""
    return decode(_DECODER, line)
