"""The agent of a node, as a real process, up to the moment in which it would start torchrun."""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_ddpscale import __version__
from pytest_ddpscale.node import agent as agent_module
from pytest_ddpscale.node.__main__ import parse_arguments
from pytest_ddpscale.node.agent import NodeAgent, Task, host_of
from pytest_ddpscale.node.chunks import joined
from pytest_ddpscale.node.protocol import decode, encode
from pytest_ddpscale.results.survey_record import Survey
from tests.node.fake_torch import CPU_BUILD, write_torch

Start = Callable[..., "subprocess.Popen[bytes]"]
TASK = Task("g1", 0, "n1", 2, Path("logs"), ("--x",), 2.0)
ARGUMENTS = ["--gang=g1", "--ranks-per-node=2", "--log-dir=logs"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``python -m pytest_ddpscale.node``, in a folder of its own, which is also where it could leave anything."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*further: str, **environ: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pytest_ddpscale.node", *ARGUMENTS, *further, "--", "--x"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")} | environ
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=pipe, stdout=pipe, stderr=pipe))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()
    assert list(tmp_path.iterdir()) == []


def next_message(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The next thing that it says."""
    assert process.stdout is not None
    found = decode(process.stdout.readline().decode())
    assert found is not None
    return found


def rest(process: subprocess.Popen[bytes], data: bytes | None = None) -> list[dict[str, Any] | None]:
    """What it says until its end, with its input closed after `data`; nothing else may be printed."""
    output, errors = process.communicate(data, timeout=60)
    assert errors == b""
    return [decode(line) for line in output.decode().splitlines()]


def test_it_says_that_it_is_up_and_waits_in_silence(start: Start) -> None:
    process = start()
    assert next_message(process) == {
        "say": "up",
        "version": __version__,
        "pid": process.pid,
        "node": 0,
        "host": socket.gethostname(),
    }
    assert process.poll() is None
    assert psutil.Process(process.pid).children() == []


def test_slurm_says_which_node_it_is_on(start: Start) -> None:
    up = next_message(start("--slurm", SLURM_PROCID="3", SLURMD_NODENAME="n4"))
    assert (up["node"], up["host"]) == (3, "n4")


@pytest.mark.parametrize(
    ("peer", "expected"),
    [("127.0.0.1", r"127\.0\.0\.1:2\d{4}"), ("nobody.invalid", r"[\w ]+")],
)
def test_the_first_one_says_where_ranks_meet_and_the_others_say_nothing(start: Start, peer: str, expected: str) -> None:
    orders = encode({"say": "meet", "peer": peer}) + encode({"say": "stop"})
    first, second = start("--slurm", SLURM_PROCID="0"), start("--slurm", SLURM_PROCID="1")
    up, answer, ended = (message or {} for message in rest(first, orders))
    assert (up["say"], answer["say"], ended["say"]) == ("up", "endpoint", "exit")
    assert re.fullmatch(expected, answer["problem" if peer == "nobody.invalid" else "endpoint"])
    assert [message and message["say"] for message in rest(second, orders)] == ["up", "exit"]


@pytest.mark.parametrize(
    "orders",
    [
        b"",  # the supervisor, or srun, is gone
        encode({"say": "stop"}),
        encode({"say": "stay"}) + encode({"say": "stop"}),
        b"garbage\n@ddpscale {\n\xff\n" + encode({"say": "start", "nodes": 1}) + encode({"say": "stop"}),
        encode({"say": "stop"})[:-1],  # torn by the end
    ],
)
def test_it_ends_in_order_when_nobody_wants_it_any_more(start: Start, orders: bytes) -> None:
    process = start()
    next_message(process)
    assert rest(process, orders) == [{"say": "exit", "code": 0, "node": 0, "host": socket.gethostname()}]
    assert process.returncode == 0


def test_an_order_may_come_in_pieces(start: Start) -> None:
    process = start()
    next_message(process)
    assert process.stdin is not None
    for byte in encode({"say": "stop"}):
        process.stdin.write(bytes([byte]))
        process.stdin.flush()
    assert next_message(process)["say"] == "exit"
    assert process.wait(timeout=60) == 0


def test_it_says_what_its_node_is_before_it_is_asked(start: Start, tmp_path_factory: pytest.TempPathFactory) -> None:
    torch = write_torch(tmp_path_factory.mktemp("site"), CPU_BUILD)
    process = start("--survey", "--no-gpu", PYTHONPATH=str(torch), PYTHONDONTWRITEBYTECODE="1", SLURMD_NODENAME="n4")
    assert next_message(process)["say"] == "up"
    pieces = [next_message(process)]
    while len(pieces) < pieces[0]["parts"]:
        pieces.append(next_message(process))
    assert [(piece["say"], piece["part"]) for piece in pieces] == [("survey", part) for part in range(len(pieces))]
    survey = Survey.from_json(joined([piece["data"] for piece in pieces]))
    assert (survey.host, survey.problem, survey.versions["torch"], survey.has_driver) == ("n4", "", "2.8.0+cpu", False)
    assert set(survey.free_bytes) == {"run_directory", "shared_memory", "temporary"}
    assert [message and message["say"] for message in rest(process, encode({"say": "stop"}))] == ["exit"]


def test_while_its_node_is_surveyed_it_tells_its_clock_and_can_be_stopped(
    start: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    torch = write_torch(tmp_path_factory.mktemp("site"), "import time\ntime.sleep(60)")
    process = start("--survey", "--no-gpu", PYTHONPATH=str(torch), PYTHONDONTWRITEBYTECODE="1")
    next_message(process)
    assert process.stdin is not None
    before_s = time.time()
    process.stdin.write(encode({"say": "clock"}))
    process.stdin.flush()
    answer = next_message(process)
    assert answer["say"] == "clock"
    assert before_s <= answer["unix_s"] <= time.time()
    asking = psutil.Process(process.pid).children(recursive=True)
    assert asking
    assert [message and message["say"] for message in rest(process, encode({"say": "stop"}))] == ["exit"]
    _, alive = psutil.wait_procs(asking, timeout=30)
    assert alive == []


def test_sigterm_from_slurm_ends_it(start: Start) -> None:
    process = start()
    next_message(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM


def test_who_reads_no_more_is_as_good_as_gone(start: Start) -> None:
    process = start()
    assert process.stdout is not None
    process.stdout.close()
    process.wait(timeout=60)


class TestUnwanted:
    """By a clock that is set by hand: real silence takes half a minute."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [1000.0]

        class Clock:
            @staticmethod
            def monotonic() -> float:
                return now[0]

        monkeypatch.setattr(agent_module, "time", Clock)
        return now

    def test_after_silence_it_takes_the_supervisor_for_lost(self, clock: list[float]) -> None:
        agent = NodeAgent(TASK)
        for since_s, unwanted in ((0.0, False), (29.9, False), (30.1, True)):
            clock[0] = 1000.0 + since_s
            assert agent._is_unwanted() is unwanted

    def test_any_word_counts_and_only_stop_ends_it(
        self, clock: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        agent = NodeAgent(TASK)
        words: list[tuple[dict[str, Any], bool]] = [
            ({"say": "stay"}, False),
            ({"say": "start", "nodes": 1}, False),
            ({"say": "stop"}, True),
        ]
        for word, unwanted in words:
            clock[0] += 29.0
            (tmp_path / "word").write_bytes(encode(word))
            with (tmp_path / "word").open("rb") as file, monkeypatch.context() as patched:
                patched.setattr(sys, "stdin", file)
                agent._read_orders(selectors.DefaultSelector())
            assert agent._is_unwanted() is unwanted


@pytest.mark.parametrize(
    ("orders", "is_input_open", "hurried"),
    [
        ([], True, False),  # a rank failed here, and nobody said anything yet
        ([{"say": "stop", "failed": True}], True, False),  # a rank failed, here or on another node
        ([{"say": "stop"}], True, True),  # Ctrl-C
        ([{"say": "stop", "failed": True}, {"say": "stop"}], True, True),  # Ctrl-C because it takes long
        ([], False, True),
    ],
)
def test_gpus_are_looked_at_once_ranks_have_failed_unless_somebody_is_in_a_hurry(
    orders: list[dict[str, Any]], is_input_open: bool, hurried: bool
) -> None:
    agent = NodeAgent(TASK)
    agent._orders.extend(orders)
    agent._is_input_open = is_input_open
    assert agent._is_hurried is hurried


def test_the_host_is_named_as_slurm_names_it() -> None:
    assert host_of({"SLURMD_NODENAME": "n7"}) == "n7"
    assert host_of({}) == socket.gethostname()


def test_the_command_line_that_launchers_give() -> None:
    found = parse_arguments([*ARGUMENTS, "--beat-s=12.8", "--slurm", "--", "--run-dir", "a b", "--studies", "weak/r"])
    assert (found.gang, found.ranks_per_node, found.log_dir, found.beat_s, found.slurm) == (
        "g1", 2, Path("logs"), 12.8, True,
    )  # fmt: skip
    assert found.worker_arguments == ["--", "--run-dir", "a b", "--studies", "weak/r"]


def test_a_missing_argument_is_refused_before_anything_starts() -> None:
    command = [sys.executable, "-m", "pytest_ddpscale.node", "--gang=g1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--ranks-per-node" in done.stderr


def test_it_says_whether_the_run_directory_is_seen_here(start: Start, tmp_path_factory: pytest.TempPathFactory) -> None:
    proof = tmp_path_factory.mktemp("shared") / "seen-g1"
    proof.touch()
    assert next_message(start(f"--look-for={proof}"))["sees_run_directory"] is True
    assert "sees_run_directory" not in next_message(start())
    late = start(f"--look-for={proof.with_name('seen-g2')}")  # as a network file system may be
    proof.with_name("seen-g2").touch()
    assert next_message(late)["sees_run_directory"] is True


def test_a_run_directory_that_is_not_there_is_known_in_seconds(start: Start, tmp_path: Path) -> None:
    began_s = time.monotonic()
    assert next_message(start(f"--look-for={tmp_path / 'seen-g1'}"))["sees_run_directory"] is False
    assert time.monotonic() - began_s < 60


def test_a_file_that_may_not_be_looked_for_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A permission that is missing or a handle that is stale raises as a name that is too long does."""
    monkeypatch.setattr(agent_module, "APPEARS_S", 0.0)
    assert not agent_module._appears(tmp_path / ("x" * 300))
