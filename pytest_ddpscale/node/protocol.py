"""What supervisor and node agents say to each other: JSON lines on the agents' standard output and input.

srun carries both for a whole cluster: what an agent prints reaches the pytest process, and what that
writes reaches every agent. So there is no port to open and no file to poll, and an end of file says
that the other side is gone. A mark tells our lines from whatever else a site's scripts print.

An agent says ``up``, then ``survey`` if it was started with that: what its node is, in several pieces.
Once told to start it says every few seconds ``beat`` or one ``rank`` per local rank, then what
happens: ``failed`` (a rank's own report), ``gone`` (a rank's process ended before its work did),
``words`` (last lines of a rank's output), ``nccl`` (last lines of its NCCL), ``post_mortem`` (what GPUs
are after ranks failed, in pieces) and finally ``exit``. The supervisor says ``start``, then
``stay`` every few seconds, and ``stop``; and ``clock``, which every agent answers at once with
``clock`` and what its own shows.
"""

from __future__ import annotations

from typing import Any

from pytest_ddpscale.results.records import parse_strict_json, strict_json

MARK = "@ddpscale "
# Slurm forwards longer lines in pieces, between which another node's may come.
MOST_BYTES = 1000
_MOST_TEXT = 600
# Seconds without a word after which either side takes the other for lost.
SILENCE_S = 30.0
STAY_EVERY_S = 2.0


def encode(message: dict[str, Any]) -> bytes:
    """One line. Texts that would make it longer than Slurm forwards in one piece are cut."""
    line, most = _line(message), _MOST_TEXT
    while len(line) > MOST_BYTES and most:  # many texts, or of characters that JSON writes with six or twelve
        line, most = _line(_shortened(message, most)), most // 2
    return line


def decode(line: str) -> dict[str, Any] | None:
    """The message in a line; None if it is somebody else's, or torn."""
    _, mark, text = line.partition(MARK)
    if not mark:
        return None
    try:
        message = parse_strict_json(text)
    except ValueError:
        return None
    return message if isinstance(message, dict) and isinstance(message.get("say"), str) else None


def _line(message: dict[str, Any]) -> bytes:
    return (MARK + strict_json(message) + "\n").encode("ascii")


def _shortened(value: Any, most: int) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(one, most) for key, one in value.items()}
    if isinstance(value, str) and len(value) > most:
        return value[: most - 1] + "…"
    return value
