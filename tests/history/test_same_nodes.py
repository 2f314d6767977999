"""What the history knows of the nodes of a run."""

from __future__ import annotations

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

NIGHTS = 3


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Of a node with a few good nights."""
    file = tmp_path / "history.sqlite"
    for night in range(NIGHTS):
        add_run(file, judged_run(tmp_path / f"night{night}", night).path)
    return file


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """The night after."""
    return judged_run(tmp_path / "run", NIGHTS)


def baseline(run: RunDirectory, history: Path) -> Baseline | None:
    return baseline_of(run, history, SKU, read_evidence(run))


class TestBaseline:
    def test_is_what_the_hosts_reached_in_earlier_runs(self, history: Path, run: RunDirectory) -> None:
        add_run(history, judged_run(history.parent / "later", NIGHTS + 1, {"n1": [50.0, 50.0]}).path)
        found = baseline(run, history)
        assert found is not None
        assert (found.sku, found.before) == (SKU, at(NIGHTS))
        assert {(series.host, one.number, round(one.mean)) for series, one in found.past} == {("n1", 3, 100)}

    def test_is_none_without_a_history(self, tmp_path: Path, run: RunDirectory) -> None:
        assert baseline(run, tmp_path / "nowhere.sqlite") is None

    def test_that_was_kept_counts_and_the_history_no_longer(self, history: Path, run: RunDirectory) -> None:
        first = baseline(run, history)
        assert first is not None
        run.write_json(run.baseline_json, first)
        history.write_bytes(b"no history any more")
        assert baseline(run, history) == first
        history.unlink()
        assert baseline(run, history) == first, "judged on a laptop that has no history"

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"past": NaN}', '{"past": 3, "versions": {}}', '{"past": [{}]}'])
    def test_that_is_broken_is_refused(self, history: Path, run: RunDirectory, text: str) -> None:
        run.baseline_json.write_text(text, encoding="utf-8")
        with pytest.raises(RunDirectoryError, match=r"baseline\.json: (is no|cannot be|holds what)"):
            baseline(run, history)

    def test_of_a_history_that_cannot_be_read_is_refused(self, history: Path, run: RunDirectory) -> None:
        history.write_bytes(b"no history any more")
        with pytest.raises(HistoryError, match="is not a history file"):
            baseline(run, history)


def under(digest: str) -> dict[str, Any]:
    """Of run.json, as if its thresholds had this digest."""
    return {"thresholds": ThresholdsUsed("thresholds.yaml", digest)}


class TestRecentRuns:
    def test_are_those_of_a_week_on_the_same_nodes_under_the_same_thresholds(self, tmp_path: Path) -> None:
        history = tmp_path / "history.sqlite"
        runs: Sequence[tuple[str, int, str, Any, RunOutcome]] = (
            ("old", 0, "same", None, "accepted"), ("first", 2, "same", None, "rejected"),
            ("second", 3, "same", None, "rejected"), ("third", 4, "same", None, "incomplete"),
            ("other-bounds", 5, "other", None, "accepted"),
            ("other-nodes", 6, "same", {"n2": [100.0, 100.0]}, "accepted"),
            ("two-nodes", 7, "same", {"n1": [100.0, 100.0], "n2": [100.0, 100.0]}, "accepted"),
            ("later", 9, "same", None, "accepted"),
        )  # fmt: skip
        for name, night, digest, hosts, outcome in runs:
            add_run(history, judged_run(tmp_path / name, night, hosts, outcome=outcome, record=under(digest)).path)
        run = judged_run(tmp_path / "run", 8, record=under("same"))
        said = recent_runs(run, history, SKU, read_evidence(run))
        counts = "2 rejected, 1 incomplete"
        assert said == f"earlier runs of these nodes under the same thresholds in the last 7 days: {counts}"

    def test_are_not_told_where_there_are_none(self, tmp_path: Path, history: Path) -> None:
        run = judged_run(tmp_path / "run", NIGHTS, record=under("same"))
        assert recent_runs(run, tmp_path / "nowhere.sqlite", SKU, read_evidence(run)) == ""
        assert recent_runs(run, history, "another-gpu", read_evidence(run)) == ""
