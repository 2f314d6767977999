"""The agent of a node, as a real process, up to the moment in which it would start torchrun."""

from __future__ import annotations

import os
import re
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
from pytest_ddpscale.node.addresses import outward_addresses
from pytest_ddpscale.node.agent import NodeAgent
from pytest_ddpscale.node.protocol import (
    Heartbeat,
    Joining,
    Order,
    Report,
    ResolveAddress,
    Start,
    Stop,
    decode_news,
    encode_order,
)
from tests.builders.launches import task
from tests.node.fake_torch import CPU_BUILD, write_torch
from tests.rows import rows

Run = Callable[..., "subprocess.Popen[bytes]"]
SLURMS = ("--node-from=SLURM_PROCID", "--host-from=SLURMD_NODENAME")
LET_GO = encode_order(Stop())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Run]:
    """``python -m pytest_ddpscale.node``, in a folder of its own, which is also where it could leave anything."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*further: str, **environ: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pytest_ddpscale.node", *further]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")} | environ
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=pipe, stdout=pipe, stderr=pipe))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()
    assert list(tmp_path.iterdir()) == []


def next_message(process: subprocess.Popen[bytes]) -> Any:
    """The next thing that it says."""
    assert process.stdout is not None
    joining = Joining()
    while True:
        found = decode_news(process.stdout.readline())
        assert found is not None
        if (whole := joining.whole(found)) is not None:
            return whole


def rest(process: subprocess.Popen[bytes], data: bytes | None = None) -> list[Any]:
    """What it says until its end, with its input closed after `data`; nothing else may be printed."""
    output, errors = process.communicate(data, timeout=60)
    assert errors == b""
    joining = Joining()
    news = [decode_news(line) for line in output.splitlines()]
    assert None not in news
    return [whole for one in news if one is not None and (whole := joining.whole(one)) is not None]


def tell(process: subprocess.Popen[bytes], order: Order) -> None:
    assert process.stdin is not None
    process.stdin.write(encode_order(order))
    process.stdin.flush()


def test_it_says_that_it_is_up_and_waits_in_silence(start: Run) -> None:
    process = start()
    up = next_message(process)
    assert (type(up), up.version, up.node, up.host) == (Report, __version__, 0, socket.gethostname())
    assert process.poll() is None
    assert psutil.Process(process.pid).children() == []


def test_its_command_line_says_which_node_it_is_on(start: Run) -> None:
    up = next_message(start("--node=2", "--host=n3"))
    assert (up.node, up.host) == (2, "n3")


def test_or_names_the_variables_that_do(start: Run) -> None:
    up = next_message(start(*SLURMS, SLURM_PROCID="3", SLURMD_NODENAME="n4"))
    assert (up.node, up.host) == (3, "n4")
    assert next_message(start(*SLURMS, SLURM_PROCID="3")).host == socket.gethostname()


@pytest.mark.parametrize(("peer", "expected"), [("127.0.0.1", r"127\.0\.0\.1:2\d{4}"), ("nobody.invalid", r"[\w ]+")])
def test_the_first_one_says_where_ranks_meet_and_the_others_say_nothing(start: Run, peer: str, expected: str) -> None:
    orders = encode_order(task(nodes=2)) + encode_order(ResolveAddress(peer)) + LET_GO
    _, answer, _ = rest(start("--node=0"), orders)
    assert re.fullmatch(expected, answer.endpoint_problem if peer == "nobody.invalid" else answer.endpoint)
    assert [one.is_last for one in rest(start("--node=1"), orders)] == [False, True]


def test_who_is_not_known_by_name_is_met_at_an_address_of_its_own(start: Run) -> None:
    """As pods of Kubernetes are; and one that this node has too, as of a bridge, leads nowhere."""
    [own, *_] = outward_addresses()
    meet = ResolveAddress("nobody.invalid", (own, "127.0.0.9"))
    _, answer, _ = rest(start(), encode_order(task(nodes=2)) + encode_order(meet) + LET_GO)
    assert answer.endpoint.startswith("127.0.0.1:")


@pytest.mark.parametrize(
    "orders",
    [
        LET_GO,
        encode_order(Heartbeat()) + LET_GO,
        encode_order(task()) + LET_GO,
        b"garbage\n@ddpscale {\n\xff\n" + encode_order(task()) + encode_order(Start()) + LET_GO,
        LET_GO[:-1],  # torn by the end
    ],
)
def test_it_ends_in_order_when_nobody_wants_it_any_more(start: Run, orders: bytes) -> None:
    process = start()
    next_message(process)
    assert rest(process, orders) == [Report(node=0, host=socket.gethostname(), is_last=True)]
    assert process.returncode == 0


@rows("stdin", [subprocess.PIPE, subprocess.DEVNULL])
def test_an_input_that_was_not_passed_on_is_told(stdin: int) -> None:
    """As of `kubectl exec` without -i."""
    command = [sys.executable, "-m", "pytest_ddpscale.node"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe) as process:
        output, errors = process.communicate(timeout=60)
    _, ended = map(decode_news, output.splitlines())
    assert isinstance(ended, Report)
    assert ended.is_last
    assert (ended.code, process.returncode) == (1, 1)
    assert errors.startswith(b"nothing came on the agent's standard input: pass it on, as `kubectl exec -i`")


def test_an_order_may_come_in_pieces(start: Run) -> None:
    process = start()
    next_message(process)
    assert process.stdin is not None
    for byte in LET_GO:
        process.stdin.write(bytes([byte]))
        process.stdin.flush()
    assert next_message(process).is_last
    assert process.wait(timeout=60) == 0


SURVEY = task(survey=True, has_gpus=False)


def test_it_says_what_its_node_is_to_ranks_before_it_is_asked(
    start: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    torch = write_torch(tmp_path_factory.mktemp("site"), CPU_BUILD)
    process = start("--host=n4")
    next_message(process)
    ranks = {"PYTHONPATH": str(torch), "PYTHONDONTWRITEBYTECODE": "1"}
    tell(process, task(survey=True, has_gpus=False, environment=ranks))
    survey = next_message(process).survey
    assert (survey.host, survey.problem, survey.versions["torch"], survey.has_driver) == ("n4", "", "2.8.0+cpu", False)
    assert set(survey.free_bytes) == {"shared_memory", "temporary"}
    assert [one.is_last for one in rest(process, LET_GO)] == [True]


def test_while_its_node_is_surveyed_it_can_be_stopped(start: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    torch = write_torch(tmp_path_factory.mktemp("site"), "import time\ntime.sleep(60)")
    process = start(PYTHONPATH=str(torch), PYTHONDONTWRITEBYTECODE="1")
    next_message(process)
    tell(process, SURVEY)
    until = time.monotonic() + 30
    while not (asking := psutil.Process(process.pid).children(recursive=True)):
        assert time.monotonic() < until
    assert [one.is_last for one in rest(process, LET_GO)] == [True]
    _, alive = psutil.wait_procs(asking, timeout=30)
    assert alive == []


def test_sigterm_from_slurm_ends_it(start: Run) -> None:
    process = start()
    next_message(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM


def test_who_reads_no_more_is_as_good_as_gone(start: Run) -> None:
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
        agent = NodeAgent(0, "n1")
        for since_s, unwanted in ((0.0, False), (29.9, False), (30.1, True)):
            clock[0] = 1000.0 + since_s
            assert agent._is_unwanted() is unwanted

    def test_any_word_counts_and_only_stop_ends_it(
        self, clock: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        agent = NodeAgent(0, "n1")
        words: list[tuple[Order, bool]] = [(Heartbeat(), False), (Start(), False), (Stop(), True)]
        for word, unwanted in words:
            clock[0] += 29.0
            (tmp_path / "word").write_bytes(encode_order(word))
            with (tmp_path / "word").open("rb") as file, monkeypatch.context() as patched:
                patched.setattr(sys, "stdin", file)
                agent._read_orders()
            assert agent._is_unwanted() is unwanted


@rows(
    ("orders", "is_input_open", "hurried"),
    [
        ([], True, False),  # a rank failed here, and nobody said anything yet
        ([Stop(failed=True)], True, False),  # a rank failed, here or on another node
        ([Stop()], True, True),  # Ctrl-C
        ([Stop(failed=True), Stop()], True, True),  # Ctrl-C because it takes long
        ([], False, True),
    ],
)
def test_gpus_are_looked_at_once_ranks_have_failed_unless_somebody_is_in_a_hurry(
    orders: list[Order], is_input_open: bool, hurried: bool
) -> None:
    agent = NodeAgent(0, "n1")
    agent._orders |= {type(one): one for one in orders}
    agent._is_input_open = is_input_open
    assert agent._is_hurried is hurried
