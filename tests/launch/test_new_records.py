"""Whole records are heard once, in order, from where the file ended before."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale.launch.new_records import NewRecords


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "measurements.jsonl"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_only_what_is_appended_is_read_and_only_once(path: Path) -> None:
    append(path, b'{"kind":"old"}\n')
    tail = NewRecords(path)
    assert tail.read() == []
    append(path, b'{"kind":"a"}\n{"kind":"b"}\n')
    assert tail.read() == [{"kind": "a"}, {"kind": "b"}]
    assert tail.read() == []
    append(path, b'{"kind":"c"}\n')
    assert tail.read() == [{"kind": "c"}]
    assert [record["kind"] for record in tail.records] == ["a", "b", "c"]


def test_a_file_that_is_not_there_yet_may_come(path: Path) -> None:
    tail = NewRecords(path)
    assert tail.read() == []
    append(path, b'{"kind":"a"}\n')
    assert tail.read() == [{"kind": "a"}]


def test_a_line_is_read_when_it_is_whole_even_if_it_came_in_pieces(path: Path) -> None:
    tail = NewRecords(path)
    whole = '{"kind":"é"}\n'.encode()
    for cut in range(len(whole) - 1):
        append(path, whole[cut : cut + 1])
        assert tail.read() == []
    append(path, whole[-1:])
    assert tail.read() == [{"kind": "é"}]


@pytest.mark.parametrize(
    "line", [b"", b"garbage", b"[1]", b"7", b'{"kin":1}', b'{"kind":1}', b'{"kind":"a"', b"\xff\x00"]
)
def test_a_line_that_is_no_record_is_passed_over(path: Path, line: bytes) -> None:
    tail = NewRecords(path)
    append(path, line + b'\n{"kind":"a"}\n')
    assert tail.read() == [{"kind": "a"}]
