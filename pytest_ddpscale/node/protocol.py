"""The protocol between supervisor and node agents: JSON lines on the agents' standard input and output.

Anything that carries these two streams can be a launcher: a scheduler's client for a cluster, ssh for one node. It
needs no open port, no polled file and no shared file system, and an end of file means that the other side is gone. A
mark distinguishes our lines from other output of a site's scripts.

Each agent sends a `Report` that it is up. Once all have, the supervisor sends its `Task`, after which agents may report
a survey. It has the first one find a route to another (`ResolveAddress`), and sends `Start`. Then every few seconds
agents send an empty `Report` or one `RankSeen` per local rank, the ranks' records and logs (`FileBytes`), and events:
`Failed`, `Gone`, and finally how it ended. The supervisor sends `Heartbeat` every few
seconds, `WantedArms` after a round, and `Stop`.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator

import msgspec

from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.rank_folder import Assignment, RankFailure, RankStatus, WantedArms
from pytest_ddpscale.run.strict_json import Record
from pytest_ddpscale.run.survey_record import Survey

MARK = b"@ddpscale "
# A scheduler's client forwards longer lines in pieces and may interleave them with another node's.
MOST_BYTES = 1000
MOST_TEXT = 600  # characters of a rank's error message
_PIECE_CHARACTERS = 700
_MOST_PIECES = 100_000
_MOST_JOINED_BYTES = 2**28
# Seconds of silence after which either side considers the other lost.
SILENCE_S = 30.0
HEARTBEAT_S = 2.0


class FromSupervisor(Record, omit_defaults=False, tag_field="say"):
    """Base of the supervisor's messages."""


class Task(FromSupervisor, tag="task"):
    """The agent's job, sent before ranks start. It is the same for all nodes; an agent already knows its own node.

    Attributes:
        gang_id: the name by which the gang's processes are found.
        environment: variables for the ranks, in addition to the agent's own.
        beat_s: seconds between two reports of each rank.
        survey: whether to survey the node first.
        has_gpus: whether the survey includes GPUs.
        post_mortem: whether to survey the GPUs again after ranks have failed.
    """

    gang_id: str
    nodes: int
    ranks_per_node: int
    assignment: Assignment
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    beat_s: float = 2.0
    survey: bool = False
    has_gpus: bool = True
    post_mortem: bool = False


class Start(FromSupervisor, tag="start"):
    """Start the ranks.

    Attributes:
        endpoint: where rank 0 hosts the store, ``ADDRESS:PORT``; None with one node, which chooses its own.
        deadline_unix_s: no round starts after this time; None for no limit.
    """

    endpoint: str | None = None
    deadline_unix_s: float | None = None


class ResolveAddress(FromSupervisor, tag="meet"):
    """Ask the first node for its address on the route to another node.

    Attributes:
        peer: the other node's name.
        addresses: the other node's addresses, in case its name does not resolve.
    """

    peer: str
    addresses: tuple[str, ...] = ()


class Heartbeat(FromSupervisor, tag="stay"):
    """A sign of life from the supervisor."""


class Stop(FromSupervisor, tag="stop"):
    """End the ranks and the agent.

    Attributes:
        failed: whether a rank failed on some node; False if the user interrupted the session.
    """

    failed: bool = False


Order = Task | Start | ResolveAddress | WantedArms | Heartbeat | Stop


class FromNode(Record, kw_only=True, omit_defaults=False, tag_field="say"):
    """Base of an agent's messages, with the node's index and name."""

    node: int
    host: str


class LastWords(Record):
    """The last lines of a rank's log, and of its NCCL log."""

    local_rank: int
    lines: tuple[str, ...] = ()
    nccl: tuple[str, ...] = ()


class ProcessExit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """How a rank's process ended, according to torchrun.

    Attributes:
        exit_code: negative for a signal's number.
        is_root_cause: whether torchrun saw it end first.
    """

    local_rank: int
    exit_code: int
    pid: int
    is_root_cause: bool


class Report(FromNode, forbid_unknown_fields=False, omit_defaults=True, tag="up"):
    """What is new of a node; nothing for a sign of life. The one message that other versions must understand.

    Attributes:
        version: the package's version, in an agent's first message.
        addresses: the node's addresses that other nodes may reach.
        loopback_problem: why ranks cannot connect at 127.0.0.1 there; empty if they can.
        endpoint: the ranks' rendezvous, an address and port of the first node …
        endpoint_problem: … or why it has none.
        survey: of the node.
        post_mortem: of the node's GPUs after ranks failed.
        words: of one rank.
        is_last: whether this is the agent's last message, with what follows.
        code: torchrun's exit code, negative for a signal's number; 0 if ranks were never started.
        was_ended: whether the agent ended torchrun, because it was told to or left alone.
        ended_pids: processes that torchrun ended itself.
        oom_kills: processes that the kernel's OOM killer ended during the gang.
    """

    version: str = ""
    addresses: tuple[str, ...] = ()
    loopback_problem: str = ""
    endpoint: str = ""
    endpoint_problem: str = ""
    survey: Survey | None = None
    post_mortem: Survey | None = None
    words: LastWords | None = None
    is_last: bool = False
    code: int = 0
    was_ended: bool = False
    exits: tuple[ProcessExit, ...] = ()
    ended_pids: tuple[int, ...] = ()
    oom_kills: int = 0


class RankSeen(RankStatus, tag_field="say", tag="rank"):
    """Status of one rank, from its node's agent.

    Attributes:
        state: process state as in /proc, for example ``T`` for stopped; empty once the process is gone.
    """

    node: int
    host: str
    state: str = ""

    @property
    def name(self) -> str:
        """``rank 3 on n2``; with its local rank before it has joined."""
        return f"rank {self.rank} on {self.host}" if self.rank >= 0 else f"local rank {self.local_rank} on {self.host}"

    @property
    def progress(self) -> tuple[int, int]:
        """A pair that grows with everything this rank does."""
        return self.entered, self.steps


class Gone(RankSeen, tag="gone"):
    """A rank's process ended before its work was done, without reporting an error."""


class Failed(RankFailure, tag_field="say", tag="failed"):
    """A rank's own report of its error, with the node's index and name."""

    node: int
    host: str

    @property
    def place(self) -> Place:
        """Of the rank, as far as it could tell its GPU."""
        return Place(self.host, self.local_rank, self.device, self.gpu_index)


class FileBytes(FromNode, tag="file"):
    """Data to append to a file of the run.

    Attributes:
        file: `RECORDS`, or a log's path below its node's folder.
        offset: number of bytes of `RECORDS` sent before, to detect a gap.
    """

    file: str
    data: bytes
    offset: int = 0


class Piece(FromNode, kw_only=True, tag="piece"):
    """A part of a message or of file data that is too long for one line.

    Attributes:
        file: the file to append to; empty for a message.
        data: part of the compressed whole, in base64.
    """

    file: str = ""
    part: int
    parts: int
    data: str
    offset: int = 0


RECORDS = "records"  # rank 0's measurements, as written by `RecordSink`
News = Report | RankSeen | Gone | Failed | Piece
Heard = News | FileBytes
_ENCODER = msgspec.json.Encoder()
_ORDERS: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_NEWS: msgspec.json.Decoder[News] = msgspec.json.Decoder(News)


def encode_order(order: Order) -> bytes:
    """One line of any length, since only the supervisor writes to an agent's standard input."""
    return MARK + _ENCODER.encode(order) + b"\n"


def decode_order(line: bytes) -> Order | None:
    """The order in a line; None if the line is not ours or is incomplete."""
    _, mark, text = line.partition(MARK)
    try:
        return _ORDERS.decode(text) if mark else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def encode_news(news: News | FileBytes) -> Iterator[bytes]:
    """Encode as lines short enough to be forwarded in one piece."""
    if isinstance(news, FileBytes):
        yield from _pieces(news.node, news.host, news.file, news.data, news.offset)
        return
    line = _line(news)
    if len(line) <= MOST_BYTES:
        yield line
    else:
        yield from _pieces(news.node, news.host, "", _ENCODER.encode(news))


def decode_news(line: bytes) -> News | None:
    """The message in a line, or a piece of one; None if the line is incomplete or no agent's."""
    _, mark, text = line.partition(MARK)
    try:
        return _NEWS.decode(text) if mark else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class Joining:
    """Joins pieces. Those of one node arrive in order, without other messages of that node in between."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[Piece]] = {}

    def whole(self, news: News) -> News | FileBytes | None:
        """The complete message; None while pieces are missing, or if they do not fit together."""
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
