"""What rank 0 hears from the supervisor between rounds."""

from __future__ import annotations

import time

from pytest_ddpscale.results.records import parse_strict_json
from pytest_ddpscale.results.run_directory import RunDirectory

POLL_S = 0.02


def needed_arms(directory: RunDirectory, study_id: str, round_number: int, patience_s: float) -> list[str] | None:
    """The arms of which the supervisor wants further rounds; none once the study has told enough.

    Args:
        directory: of the run.
        study_id: the study.
        round_number: the round that has just ended, counted from 0.
        patience_s: how long to wait for its word.

    Returns:
        None without a word in time: measuring goes on then, which costs a round and no more.
    """
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            word = parse_strict_json(directory.steering_json.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            word = None
        if isinstance(word, dict) and (word.get("study"), word.get("round")) == (study_id, round_number):
            arms = word.get("arms")
            return [str(arm) for arm in arms] if isinstance(arms, list) else None
        time.sleep(POLL_S)
    return None
