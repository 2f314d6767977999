"""Memory use of a study, recorded only for the search for the largest batch; not part of a run directory."""

from __future__ import annotations

import msgspec

from pytest_ddpscale.run.strict_json import Count, Positive, Record, decode


class RankMemory(Record, frozen=True, kw_only=True):
    """Peak memory of one rank, in bytes.

    Attributes:
        own_bytes: memory of this rank alone. GPU: all device memory in use: peak of torch's allocator, NCCL's buffers,
            CUDA's context. CPU: peak resident set minus shared pages.
        shared_bytes: pages shared by the ranks of a node, such as those of libraries; 0 on a GPU.
        total_bytes: memory of the device; None on a CPU, where a rank does not know its limit.
    """

    own_bytes: Count
    shared_bytes: Count = 0
    total_bytes: Positive | None = None


class StudyMemory(Record, frozen=True, kw_only=True, tag_field="kind", tag="memory"):
    """Peak memory of the ranks of a gang in a study, in rank order."""

    study: str
    ranks: tuple[RankMemory, ...]


_DECODER = msgspec.json.Decoder(StudyMemory)


def read_memory(line: bytes) -> StudyMemory:
    """The record of one line. Raises ValueError if it has none."""
    return decode(_DECODER, line)
