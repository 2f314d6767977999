"""JSON that is too long for one message: compressed, and cut into pieces that are not."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

from pytest_ddpscale.results.records import parse_strict_json, strict_json

MOST_CHARACTERS = 550  # of a piece: with the names around it a message stays within what Slurm forwards in one piece
MOST_PIECES = 1000
_MOST_BYTES = 10_000_000  # of the JSON


def chunks_of(data: Any) -> list[str]:
    """Cut JSON types into texts of ASCII; at least one."""
    text = base64.b64encode(zlib.compress(strict_json(data).encode("ascii"), 9)).decode("ascii")
    return [text[start : start + MOST_CHARACTERS] for start in range(0, len(text), MOST_CHARACTERS)]


def joined(pieces: Sequence[str]) -> Any:
    """What `chunks_of` cut. Raises ValueError for anything else."""
    try:
        compressed = base64.b64decode("".join(pieces), validate=True)
        decompressor = zlib.decompressobj()
        text = decompressor.decompress(compressed, _MOST_BYTES)
        if not decompressor.eof:
            raise ValueError("torn, or too long")
        return parse_strict_json(text.decode("ascii"))
    except zlib.error as error:
        raise ValueError(str(error)) from None
