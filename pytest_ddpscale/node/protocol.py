"""What supervisor and node agents say to each other: JSON lines on the agents' standard output and input.

Whatever carries these two is a launcher: a scheduler's starter for a cluster, ssh for one node. So there is no port
to open, no file to poll and no file system to share, and an end of file says that the other side is gone. A mark tells
our lines from whatever else a site's scripts print.

An agent says `Up`. Once all are, the supervisor says its `Task`, after which an agent may say its `NodeSurvey`,
asks all for their `Clock`, has the first one look for a way to another (`Meet`), and says `Start`. Then agents say
every few seconds `Beat` or one `RankSeen` per local rank, what ranks have measured and logged (`FileBytes`), and what
happens: `Failed`, `Gone`, `LastWords`, `NodeAfterFailure` and finally `Exit`. The supervisor says `Stay` every
few seconds, which arms are wanted after a round, and `Stop`.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator

import msgspec

from pytest_ddpscale.results.rank_folder import Assignment, WantedArms
from pytest_ddpscale.results.rank_status import RankFailure, RankStatus
from pytest_ddpscale.results.survey_record import Survey

MARK = b"@ddpscale "
# A scheduler's starter forwards longer lines in pieces, between which another node's may come.
MOST_BYTES = 1000
MOST_TEXT = 600  # characters of what ranks say last
_PIECE_CHARACTERS = 700
_MOST_PIECES = 100_000
_MOST_JOINED_BYTES = 2**28
# Seconds without a word after which either side takes the other for lost.
SILENCE_S = 30.0
STAY_EVERY_S = 2.0


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="say", tag="task"):
    """What an agent is there for, said before ranks start. The same on all nodes: its own an agent knows already.

    Attributes:
        gang_id: by what the gang's processes are found.
        environment: variables for the ranks, besides those that the agent was started with.
        beat_s: seconds between two words on every rank.
        survey: whether to say first what the node is.
        has_gpus: whether that asks for GPUs.
        post_mortem: whether to look at the GPUs once ranks have failed.
    """

    gang_id: str
    nodes: int
    ranks_per_node: int
    assignment: Assignment
    environment: dict[str, str] = {}
    beat_s: float = 2.0
    survey: bool = False
    has_gpus: bool = True
    post_mortem: bool = False


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say", tag="start"):
    """Start the ranks.

    Attributes:
        endpoint: where rank 0 hosts the store, ``ADDRESS:PORT``; None where one node needs nobody to agree with.
        deadline_unix_s: no round starts after it; None for no limit.
    """

    endpoint: str | None = None
    deadline_unix_s: float | None = None


class Meet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say", tag="meet"):
    """To the first node: find your address on the way to another one.

    Attributes:
        peer: its name.
        addresses: its own, for where its name says nothing.
    """

    peer: str
    addresses: tuple[str, ...] = ()


class AskClock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say", tag="clock"):
    """Say at once what your clock shows."""


class Stay(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say", tag="stay"):
    """The supervisor is there."""


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say", tag="stop"):
    """End the ranks and yourself.

    Attributes:
        failed: whether it is because a rank failed, somewhere; else somebody wants his terminal back.
    """

    failed: bool = False


Order = Task | Start | Meet | AskClock | WantedArms | Stay | Stop


class FromNode(msgspec.Struct, frozen=True, kw_only=True, tag_field="say"):
    """What an agent says, of the node with this index and name."""

    node: int
    host: str


class Up(FromNode, frozen=True, kw_only=True, tag="up"):
    """It is there. The one message that another version has to understand.

    Attributes:
        version: of the package.
        addresses: of the node, those that other nodes may reach.
    """

    version: str
    addresses: tuple[str, ...] = ()


class Beat(FromNode, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="beat"):
    """It lives, and no rank has begun."""


class RankSeen(RankStatus, frozen=True, kw_only=True, tag_field="say", tag="rank"):
    """One rank, as its node's agent sees it.

    Attributes:
        state: the process's, as in /proc: ``T`` is stopped; empty once it is gone.
    """

    node: int
    host: str
    state: str = ""

    @property
    def name(self) -> str:
        """``rank 3 on n2``; by its local rank before it has joined."""
        return f"rank {self.rank} on {self.host}" if self.rank >= 0 else f"local rank {self.local_rank} on {self.host}"

    @property
    def progress(self) -> tuple[int, int]:
        """Grows with all that this rank does."""
        return self.entered, self.steps


class Gone(RankSeen, frozen=True, kw_only=True, tag="gone"):
    """A rank's process ended before its work did, and it did not say why."""


class Failed(RankFailure, frozen=True, kw_only=True, tag_field="say", tag="failed"):
    """A rank's own report of its error, of the node with that index and name."""

    node: int
    host: str


class LastWords(FromNode, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="words"):
    """The last lines that a rank wrote, and those of its NCCL."""

    local_rank: int
    lines: tuple[str, ...] = ()
    nccl: tuple[str, ...] = ()


class NodeSurvey(FromNode, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="survey"):
    """What the node is."""

    survey: Survey


class NodeAfterFailure(NodeSurvey, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="post_mortem"):
    """What its GPUs are after ranks failed."""


class Clock(FromNode, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="clock"):
    """What the node's clock shows."""

    unix_s: float


class Endpoint(FromNode, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="endpoint"):
    """Where ranks meet, an address and port of the first node; or why it cannot say so."""

    endpoint: str = ""
    problem: str = ""


class ProcessExit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """How a rank's process ended, as torchrun says.

    Attributes:
        exit_code: negative for a signal's number.
        is_root_cause: torchrun saw it end first.
    """

    local_rank: int
    exit_code: int
    pid: int
    is_root_cause: bool


class Exit(FromNode, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="exit"):
    """An agent's last word.

    Attributes:
        code: torchrun's exit code; 0 where ranks were never started.
        ended_pids: processes that torchrun ended itself.
        oom_kills: processes that the kernel ended for lack of memory meanwhile.
        survivors: processes of ours that nothing could end.
    """

    code: int = 0
    exits: tuple[ProcessExit, ...] = ()
    ended_pids: tuple[int, ...] = ()
    oom_kills: int = 0
    survivors: int = 0


class FileBytes(FromNode, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="file"):
    """What is to be appended to a file of the run.

    Attributes:
        file: `RECORDS`, or a log's path below the folder of its node.
        offset: how many bytes of `RECORDS` went before, so that a hole shows.
    """

    file: str
    data: bytes
    offset: int = 0


class Piece(FromNode, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="piece"):
    """A part of what is too long for a line: of a message, or of what is to be appended to a file.

    Attributes:
        file: which file; empty for a message.
        data: of the compressed whole, in base64.
    """

    file: str = ""
    part: int
    parts: int
    data: str
    offset: int = 0


RECORDS = "records"  # what rank 0 has measured, as `RecordSink` writes it
News = (
    Up | Beat | RankSeen | Gone | Failed | LastWords | NodeSurvey | NodeAfterFailure | Clock | Endpoint | Exit | Piece
)
Heard = News | FileBytes
_ENCODER = msgspec.json.Encoder()
_ORDERS: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_NEWS: msgspec.json.Decoder[News] = msgspec.json.Decoder(News)


def encode_order(order: Order) -> bytes:
    """One line, of any length: nobody else writes to an agent's standard input."""
    return MARK + _ENCODER.encode(order) + b"\n"


def decode_order(line: bytes) -> Order | None:
    """The order in a line; None if it is somebody else's, or torn."""
    _, mark, text = line.partition(MARK)
    try:
        return _ORDERS.decode(text) if mark else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def encode_news(news: News | FileBytes) -> Iterator[bytes]:
    """Lines, none longer than is forwarded in one piece."""
    if isinstance(news, FileBytes):
        yield from _pieces(news.node, news.host, news.file, news.data, news.offset)
        return
    line = _line(news)
    if len(line) <= MOST_BYTES:
        yield line
    else:
        yield from _pieces(news.node, news.host, "", _ENCODER.encode(news))


def decode_news(line: bytes) -> News | None:
    """The message in a line, or a piece of one; None if it is somebody else's, torn, or none that an agent makes."""
    _, mark, text = line.partition(MARK)
    try:
        return _NEWS.decode(text) if mark else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class Joining:
    """Puts pieces together again. Those of one node come in order, with none of its other words between."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[Piece]] = {}

    def whole(self, news: News) -> News | FileBytes | None:
        """What was said; None before it is whole, or if it is not what an agent cut."""
        if not isinstance(news, Piece):
            return news
        pieces = self._pieces.setdefault(news.node, [])
        if news.part == 0:
            pieces.clear()
        if news.part != len(pieces) or not 0 < news.parts <= _MOST_PIECES:
            return None
        pieces.append(news)
        if len(pieces) < news.parts:
            return None
        del self._pieces[news.node]
        return _joined(news, "".join(piece.data for piece in pieces))


def _joined(last: Piece, text: str) -> News | FileBytes | None:
    try:
        decompressor = zlib.decompressobj()
        data = decompressor.decompress(base64.b64decode(text, validate=True), _MOST_JOINED_BYTES)
        if not decompressor.eof:
            return None
        if last.file:
            return FileBytes(node=last.node, host=last.host, file=last.file, data=data, offset=last.offset)
        return _NEWS.decode(data)
    except (ValueError, zlib.error, RecursionError):
        return None


def _pieces(node: int, host: str, file: str, data: bytes, offset: int = 0) -> Iterator[bytes]:
    text = base64.b64encode(zlib.compress(data, 1)).decode("ascii")
    starts = range(0, len(text), _PIECE_CHARACTERS)
    for part, start in enumerate(starts):
        piece = text[start : start + _PIECE_CHARACTERS]
        cut = Piece(node=node, host=host, file=file, part=part, parts=len(starts), data=piece, offset=offset)
        yield _line(cut)


def _line(news: News) -> bytes:
    return MARK + _ENCODER.encode(news) + b"\n"
