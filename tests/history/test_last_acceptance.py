"""The last acceptance of the same nodes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pytest_ddpscale.history.last_acceptance import last_acceptance
from pytest_ddpscale.history.recording import add_run
from pytest_ddpscale.report.sentences import last_acceptance_lines
from pytest_ddpscale.run.verdicts import Judgement, LastAcceptance, Verdict
from tests.builders.nights import SKU, at, judged_run, key_value, verdict

NIGHT = 9


def found(tmp_path: Path, *verdicts: Verdict, hosts: Sequence[str] = ("n1",)) -> LastAcceptance | None:
    return last_acceptance(tmp_path / "history.sqlite", SKU, hosts, at(NIGHT), verdicts or [verdict()])


def add(tmp_path: Path, night: int, **options: Any) -> Path:
    path = judged_run(tmp_path / f"run{night}", night, **options).path
    add_run(tmp_path / "history.sqlite", path)
    return path


def lines(last: LastAcceptance | None) -> list[str]:
    return last_acceptance_lines(Judgement(SKU, "accepted", "because", (), last_acceptance=last))


def test_the_latest_accepted_run_counts_not_a_rejected_or_a_later_one(tmp_path: Path) -> None:
    for night, outcome in ((1, "accepted"), (2, "accepted"), (3, "rejected"), (NIGHT + 1, "accepted")):
        add(tmp_path, night, outcome=outcome)
    last = found(tmp_path)
    assert last is not None
    assert last.began == at(2)
    assert last.run.endswith("run2")


def test_other_nodes_are_no_past(tmp_path: Path) -> None:
    add(tmp_path, 1, hosts={"n1": [100.0] * 2, "n2": [100.0] * 2})
    assert found(tmp_path) is None
    assert found(tmp_path, hosts=("n1", "n2")) is not None


def test_without_an_acceptance_there_is_no_line(tmp_path: Path) -> None:
    add(tmp_path, 1, outcome="rejected")
    assert lines(found(tmp_path)) == []


def test_throughput_and_nothing_worse_are_told(tmp_path: Path) -> None:
    path = add(tmp_path, 1)
    assert lines(found(tmp_path, verdict(value=99.5, interval=(98.5, 100.5)))) == [
        f"compared with the acceptance of 2026-01-02 (run {path}): throughput 0.99×, nothing worse among 1 requirement"
    ]


def test_what_is_surely_worse_is_named(tmp_path: Path) -> None:
    add(tmp_path, 1, outcome="accepted_with_waivers")
    last = found(tmp_path, verdict(value=90.0, interval=(89.0, 91.0)))
    assert last is not None
    assert last.worse == (verdict().id,)
    assert "with waivers" in lines(last)[0]
    assert lines(last)[0].endswith(f"throughput 0.90×, worse: 1 of 1 requirement, {verdict().id}")


def test_what_has_no_value_is_not_compared(tmp_path: Path) -> None:
    add(tmp_path, 1)
    last = found(tmp_path, verdict("inconclusive", value=100.0, interval=None))
    assert last is not None
    assert last.compared == 0
    assert lines(last)[0].endswith("no requirement in common")


def test_work_done_otherwise_is_not_compared(tmp_path: Path) -> None:
    add(tmp_path, 1)
    slower = verdict(value=90.0, interval=(89.5, 90.5))

    def compared(definition: str) -> int:
        with closing(sqlite3.connect(tmp_path / "history.sqlite")) as connection:
            row = connection.execute("SELECT DISTINCT definition FROM key_values WHERE arm = 'ddp'").fetchone()
        now = key_value(arm="ddp", definition=definition or row[0])
        last = last_acceptance(tmp_path / "history.sqlite", SKU, ["n1"], at(NIGHT), [slower], [now])
        assert last is not None
        return last.compared

    assert compared("") == 1
    assert compared("another batch") == 0
