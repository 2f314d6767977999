"""Messages of real processes are told from all else they print, and orders reach them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.launch import channel as channel_module
from pytest_ddpscale.launch.channel import Channel

Open = Callable[..., tuple[Channel, "subprocess.Popen[bytes]"]]
BEAT = '@ddpscale {"say":"beat","node":0}'


@pytest.fixture
def open_channel(tmp_path: Path) -> Iterator[Open]:
    """A channel to a process that runs Python source."""
    started: list[tuple[subprocess.Popen[bytes], Channel]] = []

    def run(source: str, log: Path = tmp_path / "gang-0.log") -> tuple[Channel, subprocess.Popen[bytes]]:
        pipe = subprocess.PIPE
        source = f"import os, sys, time\nout, err = sys.stdout.buffer, sys.stderr.buffer\n{source}"
        process = subprocess.Popen([sys.executable, "-S", "-c", source], stdin=pipe, stdout=pipe, stderr=pipe)
        started.append((process, Channel(process, log)))
        return started[-1][1], process

    yield run
    for process, channel in started:
        process.kill()
        process.wait()
        channel.close()


def heard(channel: Channel, process: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    """All that the process says until its end."""
    process.wait(timeout=30)
    channel.close()
    return channel.messages()


def test_messages_are_heard_and_the_rest_is_logged(open_channel: Open, tmp_path: Path) -> None:
    source = f"print('module load: ok'); print({BEAT!r}); print('last', file=sys.stderr)"
    channel, process = open_channel(source)
    assert heard(channel, process) == [{"say": "beat", "node": 0}]
    assert sorted(channel.other_lines) == ["last", "module load: ok"]
    assert sorted((tmp_path / "gang-0.log").read_text().splitlines()) == ["last", "module load: ok"]


def test_secrets_that_a_scheduler_quotes_are_neither_logged_nor_told(open_channel: Open, tmp_path: Path) -> None:
    channel, process = open_channel("print('srun: error: invalid --comment=token=hunter2 given', file=sys.stderr)")
    heard(channel, process)
    expected = "srun: error: invalid --comment=token=*** given"
    assert channel.other_lines == channel.slurm_lines == [expected]
    assert (tmp_path / "gang-0.log").read_text() == f"{expected}\n"


def test_what_a_clock_shows_is_stamped_as_it_arrives_and_not_as_it_is_fetched(open_channel: Open) -> None:
    """Judging a large cluster may keep the supervisor busy meanwhile."""
    source = """print('@ddpscale {"say":"clock","node":0,"unix_s":1.5}')"""
    channel, process = open_channel(source)
    process.wait(timeout=30)
    channel.close()
    ended_s = time.time()
    [answer] = channel.messages()
    assert answer.pop("heard_unix_s") <= ended_s
    assert answer == {"say": "clock", "node": 0, "unix_s": 1.5}


def test_a_message_may_come_behind_what_others_left_on_the_line_and_on_either_stream(open_channel: Open) -> None:
    source = (
        f"print('0: ' + {BEAT!r}); print('no end of line', end=''); print({BEAT!r}); print({BEAT!r}, file=sys.stderr)"
    )
    channel, process = open_channel(source)
    assert len(heard(channel, process)) == 3
    assert channel.other_lines == []


@pytest.mark.parametrize(
    "garbage",
    [
        "bytes(range(256)) * 300 + b'\\n'",  # not one character of UTF-8
        "b'@ddpscale {\"say\":\\n@ddpscale\\n@ddpscale {}\\n@ddpscale [1]\\n'",
        "b'x' * 3_000_000 + b'\\n'",
        "b'@ddpscale ' + b'[' * 200_000 + b'\\n'",
        'b\'@ddpscale {"say":"beat","node":NaN}\\n\'',
        "b'\\n' * 1000",
    ],
)
def test_garbage_hides_no_message(open_channel: Open, garbage: str) -> None:
    source = f"out.write({garbage}); out.flush(); print({BEAT!r}, flush=True); out.write(b'half a line')"
    channel, process = open_channel(source)
    assert heard(channel, process) == [{"say": "beat", "node": 0}]
    assert channel.other_lines[-1] == "half a line"
    assert len(channel.other_lines) <= 40
    assert max(len(line) for line in channel.other_lines) <= 500


@pytest.mark.parametrize("log", ["/dev/full", "/no such folder/log"])
def test_a_log_that_cannot_be_written_costs_nothing_else(open_channel: Open, log: str) -> None:
    channel, process = open_channel(f"print('words'); print({BEAT!r}); print('more')", Path(log))
    assert len(heard(channel, process)) == 1
    assert channel.other_lines == ["words", "more"]


ECHO = """
for line in sys.stdin:
    print(line.strip().replace('@ddpscale ', 'heard '), flush=True)
print('end of file')"""


def test_orders_are_lines_and_the_end_is_an_end_of_file(open_channel: Open) -> None:
    channel, process = open_channel(ECHO)
    channel.say("start", nodes=2, endpoint="n1:20000")
    channel.close()
    process.wait(timeout=30)
    expected = 'heard {"say":"start","nodes":2,"endpoint":"n1:20000"}'
    assert channel.other_lines == [expected, "end of file"]


def test_agents_are_told_to_stay_while_the_supervisor_is_busy(
    open_channel: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "STAY_EVERY_S", 0.02)
    channel, _ = open_channel(f"print({BEAT!r}, flush=True)\n{ECHO}")
    until = time.monotonic() + 20
    while len(channel.other_lines) < 3:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert set(channel.other_lines) == {'heard {"say":"stay"}'}


def test_nothing_is_said_before_an_agent_speaks_as_srun_reads_nothing_while_it_waits(
    open_channel: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "STAY_EVERY_S", 0.001)
    channel, process = open_channel("time.sleep(0.3); os.set_blocking(0, False); print(sys.stdin.buffer.raw.read())")
    process.wait(timeout=30)
    channel.close()
    assert channel.other_lines == ["None"]


def test_what_slurm_says_is_not_buried(open_channel: Open) -> None:
    noise = "print('torchrun complains ' * 9, file=sys.stderr)"
    channel, process = open_channel(
        f"print('srun: error: Node failure on n3', flush=True)\nfor _ in range(99): {noise}"
    )
    process.wait(timeout=30)
    channel.close()  # standard error may have come first
    assert channel.slurm_lines == ["srun: error: Node failure on n3"]
    assert len(channel.other_lines) < 99


def test_who_is_gone_or_does_not_listen_can_be_told_without_harm(open_channel: Open) -> None:
    channel, process = open_channel("pass")
    process.wait(timeout=30)
    for _ in range(3):
        channel.say("stop")
    channel.close()
    channel.say("stop")


def test_an_output_that_a_survivor_holds_open_is_not_waited_for_for_long(open_channel: Open) -> None:
    survivor = f"import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); print({BEAT!r})"
    channel, process = open_channel(survivor)
    process.wait(timeout=30)
    began = time.monotonic()
    channel.close(patience_s=0.2)
    assert time.monotonic() - began < 10
    assert len(channel.messages()) == 1
    subprocess.run(["kill", channel.other_lines[0]], check=True)
