"""The last lines of a rank's standard error say where it was."""

from __future__ import annotations

import faulthandler
from pathlib import Path

import pytest

from pytest_ddpscale.node.ranks import HEAD_BYTES, LogRelay, log_tail, rank_log
from tests.rows import rows


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stderr.log"


def test_the_last_eight_lines_that_say_something(log: Path) -> None:
    log.write_text("".join(f"line {n}\n\n  \n" for n in range(20)), encoding="utf-8")
    assert log_tail(log) == [f"line {n}" for n in range(12, 20)]


def test_a_login_in_them_is_masked(log: Path) -> None:
    log.write_text("OSError: no answer from http://ann:hunter2@proxy:8080\n", encoding="utf-8")
    assert log_tail(log) == ["OSError: no answer from http://***@proxy:8080"]


def test_the_stack_that_a_rank_leaves_when_it_is_ended_and_what_came_before(log: Path) -> None:
    with log.open("w", encoding="utf-8") as file:
        file.write("".join(f"before {n}\n" for n in range(6)))
        file.flush()
        faulthandler.dump_traceback(file, all_threads=True)
    words = log_tail(log)
    assert words[:4] == [f"before {n}" for n in range(2, 6)]
    assert words[4].startswith("Current thread 0x")
    assert "test_rank_logs.py" in words[5]
    assert "test_the_stack_that_a_rank_leaves" in words[5]
    assert len(words) == 15


def test_an_abort_leaves_what_it_says_and_not_its_stacks(log: Path) -> None:
    stack = "Exception raised from run at p.cpp:2 (most recent call first):\n" + "frame #0: c10::Error + 0x9d\n" * 9
    log.write_text(f"  what():  CUDA error: unspecified launch failure\n{stack}\n{stack}", encoding="utf-8")
    assert log_tail(log) == ["  what():  CUDA error: unspecified launch failure"]


def test_of_several_threads_the_one_that_was_interrupted(log: Path) -> None:
    other = 'Thread 0x1 (most recent call first):\n  File "a.py", line 1 in a\n\n'
    log.write_text(
        f'{other}Current thread 0x2 (most recent call first):\n  File "b.py", line 2 in b\n', encoding="utf-8"
    )
    assert log_tail(log) == ["Current thread 0x2 (most recent call first):", '  File "b.py", line 2 in b']


def test_bytes_of_any_kind_become_what_can_be_printed(log: Path) -> None:
    log.write_bytes(b"\xff\x1b[31mred\x07\nlast\x00\n")
    assert log_tail(log) == ["\N{REPLACEMENT CHARACTER}[31mred", "last"]


def test_of_a_large_file_only_the_end_is_read(log: Path) -> None:
    log.write_bytes(b"x" * 50_000_000 + b"\nlast\n")
    assert log_tail(log)[-1] == "last"
    assert sum(map(len, log_tail(log))) <= 65_536


@rows("exists", [False, True])
def test_a_rank_that_said_nothing(log: Path, exists: bool) -> None:
    if exists:
        log.touch()
    assert log_tail(log) == []
    assert log_tail(None) == []


def test_a_ranks_log_is_where_torchrun_keeps_it(tmp_path: Path) -> None:
    assert rank_log(tmp_path, 1) is None
    folder = tmp_path / "none_a" / "attempt_0" / "1"
    folder.mkdir(parents=True)
    (folder / "stderr.log").touch()
    assert rank_log(tmp_path, 1) == folder / "stderr.log"
    assert rank_log(tmp_path, 0) is None


def test_a_trace_is_sent_whole_and_of_a_long_log_its_begin_and_end(tmp_path: Path) -> None:
    data = bytes(range(256)) * (2 * HEAD_BYTES // 256)
    for name in ("profiles/trace.json.gz", "gang/stderr.log"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(data)
    sent: dict[str, bytes] = {}
    for name, piece in LogRelay(tmp_path).fresh(is_last=True):
        sent[name] = sent.get(name, b"") + piece
    assert sent["profiles/trace.json.gz"] == data
    assert b"bytes omitted" in sent["gang/stderr.log"]
