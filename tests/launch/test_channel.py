"""Messages of real processes are told from all else they print, and orders reach them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_ddpscale.launch import channel as channel_module
from pytest_ddpscale.launch.channel import Channel, EndedProcess
from pytest_ddpscale.launch.launcher import AgentProcess
from pytest_ddpscale.node.protocol import FileBytes, Report, Start, Stop, encode_news

Open = Callable[..., Channel]
BEAT = '@ddpscale {"say":"up","node":0,"host":"n1"}'
HEARD = Report(node=0, host="n1")


@pytest.fixture
def open_channel(tmp_path: Path) -> Iterator[Open]:
    """A channel to processes that run Python source: one for all nodes, or, if they have names, one for each."""
    opened: list[Channel] = []

    def run(*sources: str, hosts: tuple[str, ...] = ("",), log: Path = tmp_path / "gang-0.log") -> Channel:
        preamble = "import os, sys, time\nout, err = sys.stdout.buffer, sys.stderr.buffer\n"
        commands = [[sys.executable, "-S", "-c", preamble + source] for source in sources]
        processes = [AgentProcess(command, host) for command, host in zip(commands, hosts, strict=True)]
        opened.append(Channel(processes, os.environ, log, ("srun:", "slurmstepd")))
        return opened[-1]

    yield run
    for channel in opened:
        for process in channel.processes:
            process.kill()
            process.wait()
        channel.close()


def heard(channel: Channel) -> list[object]:
    """All that the processes say until their end."""
    channel.wait()
    channel.close()
    return [news for news, _ in channel.messages()]


def test_messages_are_heard_and_the_rest_is_logged(open_channel: Open, tmp_path: Path) -> None:
    source = f"print('module load: ok'); print({BEAT!r}); print('last', file=sys.stderr)"
    channel = open_channel(source)
    assert heard(channel) == [HEARD]
    assert sorted(channel.other_lines) == ["last", "module load: ok"]
    assert sorted((tmp_path / "gang-0.log").read_text().splitlines()) == ["last", "module load: ok"]


def test_secrets_that_a_scheduler_quotes_are_neither_logged_nor_told(open_channel: Open, tmp_path: Path) -> None:
    channel = open_channel("print('srun: error: invalid --comment=token=hunter2 given', file=sys.stderr)")
    heard(channel)
    expected = "srun: error: invalid --comment=token=*** given"
    assert channel.other_lines == channel.own_lines == [expected]
    assert (tmp_path / "gang-0.log").read_text() == f"{expected}\n"


def test_what_is_said_is_stamped_as_it_arrives_and_not_as_it_is_fetched(open_channel: Open) -> None:
    """Judging a large cluster may keep the supervisor busy meanwhile."""
    channel = open_channel("""print('@ddpscale {"say":"up","node":0,"host":"n1"}')""")
    channel.wait()
    channel.close()
    ended_s = time.time()
    [(answer, arrived_unix_s)] = channel.messages()
    assert answer == Report(node=0, host="n1")
    assert arrived_unix_s <= ended_s


def test_what_came_in_pieces_is_heard_once_it_is_whole(open_channel: Open) -> None:
    data = os.urandom(50_000)
    lines = b"".join(encode_news(FileBytes(node=0, host="n1", file="records", data=data)))
    channel = open_channel(f"out.write({lines!r})")
    assert heard(channel) == [FileBytes(node=0, host="n1", file="records", data=data)]


def test_a_message_may_come_behind_what_others_left_on_the_line_and_on_either_stream(open_channel: Open) -> None:
    source = (
        f"print('0: ' + {BEAT!r}); print('no end of line', end=''); print({BEAT!r}); print({BEAT!r}, file=sys.stderr)"
    )
    channel = open_channel(source)
    assert len(heard(channel)) == 3
    assert channel.other_lines == []


@pytest.mark.parametrize(
    "garbage",
    [
        "bytes(range(256)) * 300 + b'\\n'",  # not one character of UTF-8
        "b'@ddpscale {\"say\":\\n@ddpscale\\n@ddpscale {}\\n@ddpscale [1]\\n'",
        "b'x' * 3_000_000 + b'\\n'",
        "b'@ddpscale ' + b'[' * 200_000 + b'\\n'",
        'b\'@ddpscale {"say":"up","node":NaN}\\n\'',
        "b'\\n' * 1000",
    ],
)
def test_garbage_hides_no_message(open_channel: Open, garbage: str) -> None:
    source = f"out.write({garbage}); out.flush(); print({BEAT!r}, flush=True); out.write(b'half a line')"
    channel = open_channel(source)
    assert heard(channel) == [HEARD]
    assert channel.other_lines[-1] == "half a line"
    assert len(channel.other_lines) <= 40
    assert max(len(line) for line in channel.other_lines) <= 500


@pytest.mark.parametrize("log", ["/dev/full", "/no such folder/log"])
def test_a_log_that_cannot_be_written_costs_nothing_else(open_channel: Open, log: str) -> None:
    channel = open_channel(f"print('words'); print({BEAT!r}); print('more')", log=Path(log))
    assert len(heard(channel)) == 1
    assert channel.other_lines == ["words", "more"]


ECHO = """
for line in sys.stdin:
    print(line.strip().replace('@ddpscale ', 'heard '), flush=True)
print('end of file')"""


def test_orders_are_lines_and_the_end_is_an_end_of_file(open_channel: Open) -> None:
    channel = open_channel(ECHO)
    channel.say(Start("n1:20000"))
    channel.close()
    expected = 'heard {"say":"start","endpoint":"n1:20000","deadline_unix_s":null}'
    assert channel.other_lines == [expected, "end of file"]


def test_agents_are_told_to_stay_while_the_supervisor_is_busy(
    open_channel: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "HEARTBEAT_S", 0.02)
    channel = open_channel(f"print({BEAT!r}, flush=True)\n{ECHO}")
    until = time.monotonic() + 20
    while len(channel.other_lines) < 3:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert set(channel.other_lines) == {'heard {"say":"stay"}'}


def test_nothing_is_said_before_an_agent_speaks_as_srun_reads_nothing_while_it_waits(
    open_channel: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "HEARTBEAT_S", 0.001)
    channel = open_channel("time.sleep(0.3); os.set_blocking(0, False); print(sys.stdin.buffer.raw.read())")
    heard(channel)
    assert channel.other_lines == ["None"]


def test_what_slurm_says_is_not_buried(open_channel: Open) -> None:
    noise = "print('torchrun complains ' * 9, file=sys.stderr)"
    channel = open_channel(f"print('srun: error: Node failure on n3', flush=True)\nfor _ in range(99): {noise}")
    heard(channel)  # standard error may have come first
    assert channel.own_lines == ["srun: error: Node failure on n3"]
    assert len(channel.other_lines) < 99


def test_who_is_gone_or_does_not_listen_can_be_told_without_harm(open_channel: Open) -> None:
    channel = open_channel("pass")
    channel.wait()
    for _ in range(3):
        channel.say(Stop())
    channel.close()
    channel.say(Stop())


def test_nobody_who_does_not_listen_holds_up_the_others(open_channel: Open) -> None:
    channel = open_channel("print('up', flush=True); time.sleep(60)", ECHO, hosts=("deaf", "n2"))
    order = Start("x" * 1_000_000)  # more than a pipe holds
    began = time.monotonic()
    for _ in range(3):
        channel.say(order)
    assert time.monotonic() - began < 10
    until = time.monotonic() + 30
    while [line[:20] for line in channel.other_lines].count('heard {"say":"start"') < 3:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_each_nodes_process_is_told_of_once_it_has_ended_and_all_is_read(open_channel: Open) -> None:
    channel = open_channel(
        f"print({BEAT!r}); print('ssh: no route', file=sys.stderr); sys.exit(255)", ECHO, hosts=("n1", "n2")
    )
    until = time.monotonic() + 30
    while not channel.ended:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert channel.ended == [EndedProcess("n1", 255, ("ssh: no route",))]
    assert [news for news, _ in channel.messages()] == [HEARD]
    assert channel.poll() is None
    channel.close(patience_s=0.1)
    assert channel.wait() == 255, "the code of the one that failed"


def test_one_that_cannot_be_started_leaves_none_of_the_others(tmp_path: Path) -> None:
    mark = f"--{tmp_path.name}"
    other = [sys.executable, "-c", "import time; time.sleep(60)", mark]
    with pytest.raises(FileNotFoundError):
        Channel([AgentProcess(other, "n1"), AgentProcess(["/no such"], "n2")], os.environ, tmp_path / "log")
    lines = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert not [line for line in lines if mark.encode() in line]


def test_an_output_that_a_survivor_holds_open_is_not_waited_for_for_long(open_channel: Open) -> None:
    survivor = f"import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); print({BEAT!r})"
    channel = open_channel(survivor)
    channel.wait()
    began = time.monotonic()
    channel.close(patience_s=0.2)
    assert time.monotonic() - began < 10
    assert len(channel.messages()) == 1
    os.kill(int(channel.other_lines[0]), signal.SIGTERM)


def test_what_is_quoted_of_others_cannot_steer_a_terminal(open_channel: Open) -> None:
    """ssh ends its lines as terminals do."""
    channel = open_channel(r"err.write(b'refused.\r\n\x1b[2J50 %\r100 %\n')", hosts=("n1",))
    channel.wait()
    channel.close()
    (ended,) = channel.ended
    assert ended.lines == ("refused.", "[2J50 %100 %")
    assert channel.other_lines == [*ended.lines]
