"""The supervisor's word to the gang on whether a study goes on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from pytest_ddpscale.errors import WritingError
from pytest_ddpscale.results.run_directory import RunDirectory


class Judge(Protocol):
    """Who knows when a study has told enough."""

    def hear(self, record: dict[str, Any]) -> None:
        """Take note of a record that was just written."""

    def needed_arms(self, study_id: str) -> Sequence[str]:
        """Names of the arms of which further rounds may decide something."""


class EarlyStop:
    """Answers the end of every round with a word in steering.json, for which rank 0 waits.

    A file, because only files and the ranks' own store cross the border between processes.

    Args:
        judge: asked after each round.
        run: the directory that rank 0 reads.
    """

    def __init__(self, judge: Judge, run: RunDirectory) -> None:
        self._judge = judge
        self._run = run

    def hear(self, record: dict[str, Any]) -> None:
        """Take note of a record, and answer it if it ends a round."""
        self._judge.hear(record)
        if record.get("kind") == "round_end":
            needed = list(self._judge.needed_arms(record["study"]))
            word = {"study": record["study"], "round": record["round"], "arms": needed}
            with suppress(WritingError):  # a full disk costs the advice, not the measurement
                self._run.write_json(self._run.steering_json, word)
