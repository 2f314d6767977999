"""What the history knows of the nodes of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import HistoryError, RunDirectoryError
from pytest_ddpscale.history.regression import Baseline
from pytest_ddpscale.history.same_nodes import baseline_of, recent_runs
from pytest_ddpscale.history.store import add_run
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import ThresholdsUsed
from pytest_ddpscale.run.verdicts import RunOutcome
from tests.builders.nights import SKU, at, judged_run

NIGHT, PACE = 4, [100.0, 100.0]


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Of a node with a few good nights, a bad one, and one that came later."""
    file = tmp_path / "history.sqlite"
    for night, pace in enumerate((100.0, 100.0, 100.0, 80.0, 100.0, 50.0)):
        outcome: RunOutcome = "rejected" if pace == 80 else "accepted"
        run = judged_run(tmp_path / f"night{night}", night, {"n1": [pace] * 2}, outcome=outcome, driver=f"{5 * pace:g}")
        add_run(file, run.path)
    return file


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """The night between, with a node that nobody knows."""
    return judged_run(tmp_path / "run", NIGHT, {"n1": PACE, "unknown": PACE}, driver="590")


def baseline(run: RunDirectory, history: Path, sku: str = SKU) -> Baseline | None:
    return baseline_of(run, history, sku, read_evidence(run))


def test_a_baseline_is_what_the_hosts_reached_in_earlier_runs_that_were_not_rejected(
    history: Path, run: RunDirectory
) -> None:
    """A node that broke must not become its own norm."""
    found = baseline(run, history)
    assert found is not None
    assert (found.sku, found.before) == (SKU, at(NIGHT))
    assert [(series.host, one.number, round(one.mean)) for series, one in found.past] == [("n1", 3, 100)] * 4
    assert found.changes == ("n1: since then driver 500 before, 590 now",)
    assert baseline(run, history, "another-gpu") == Baseline("another-gpu", at(NIGHT))
    assert baseline(run, history.with_name("nowhere")) is None


def test_a_baseline_that_was_kept_counts_and_the_history_no_longer(history: Path, run: RunDirectory) -> None:
    first = baseline(run, history)
    history.write_bytes(b"no history any more")
    with pytest.raises(HistoryError, match="is not a history file"):
        baseline(run, history)
    run.write_json(run.baseline_json, first)
    assert baseline(run, history) == first
    history.unlink()
    assert baseline(run, history) == first, "judged on a laptop that has no history"
    kept = json.loads(run.baseline_json.read_text())
    [series, _], *_ = kept["past"]
    broken: Sequence[dict[str, object]] = (
        {"past": 3}, {"past": [{}]}, {"past": [3]}, {"changes": 3}, {"gpus": {"n1": 3}}, {"past": None},
        {"past": [[series, [0, 1.0, 0.1]]]}, {"past": [[series, [5, 1.0, -0.1]]]}, {"past": [[series, [5, 1.0]]]},
        {"past": float("nan")},
    )  # fmt: skip
    for text in ("", "[]", "{}", *(json.dumps(kept | change) for change in broken)):
        run.baseline_json.write_text(text)
        with pytest.raises(RunDirectoryError, match=r"baseline\.json: "):
            baseline(run, history)


def under(digest: str) -> dict[str, Any]:
    """Of run.json, as if its thresholds had this digest."""
    return {"thresholds": ThresholdsUsed("thresholds.yaml", digest)}


def test_recent_runs_are_those_of_a_week_on_the_same_nodes_under_the_same_thresholds(tmp_path: Path) -> None:
    history = tmp_path / "history.sqlite"
    for told in (
        "0 accepted same n1", "2 rejected same n1", "3 rejected same n1", "4 incomplete same n1", "5 accepted other n1",
        "6 accepted same n2", "7 accepted same n1 n2", "9 accepted same n1",
    ):  # fmt: skip
        night, outcome, digest, *hosts = told.split()
        options: Any = {"outcome": outcome, "record": under(digest)}
        add_run(history, judged_run(tmp_path / night, int(night), dict.fromkeys(hosts, PACE), **options).path)
    run = judged_run(tmp_path / "run", 8, record=under("same"))

    def recent(file: Path, sku: str = SKU) -> str:
        return recent_runs(run, file, sku, read_evidence(run))

    counts = "2 rejected, 1 incomplete"
    assert recent(history) == f"earlier runs of these nodes under the same thresholds in the last 7 days: {counts}"
    assert recent(tmp_path / "nowhere") == recent(history, "another-gpu") == ""
