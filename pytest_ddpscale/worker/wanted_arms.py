"""What rank 0 hears from the supervisor between rounds."""

from __future__ import annotations

import time
from pathlib import Path

from pytest_ddpscale.results.rank_folder import read_wanted_arms

POLL_S = 0.02


def needed_arms(folder: Path, study_id: str, round_number: int, patience_s: float) -> list[str] | None:
    """The arms of which the supervisor wants further rounds; none once the study has told enough.

    Args:
        folder: of the node's agent.
        study_id: the study.
        round_number: the round that has just ended, counted from 0.
        patience_s: how long to wait for its word.

    Returns:
        None without a word in time: measuring goes on then, which costs a round and no more.
    """
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        wanted = read_wanted_arms(folder)
        if wanted is not None and (wanted.study, wanted.round) == (study_id, round_number):
            return list(wanted.arms)
        time.sleep(POLL_S)
    return None
