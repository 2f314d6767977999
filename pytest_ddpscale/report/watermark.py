"""What every report of a simulated run says, so that nobody takes it for a machine's."""

from __future__ import annotations

from typing import Any

from pytest_ddpscale.results.run_record import SIMULATED_NOTE
from pytest_ddpscale.results.run_record import is_simulated as run_is_simulated
from pytest_ddpscale.results.verdicts import Judgement

WATERMARK = SIMULATED_NOTE


def is_simulated(judgement: Judgement, run: dict[str, Any] | None = None) -> bool:
    """Whether verdicts rest on a simulated run: its note is among theirs, or its run.json says so."""
    return SIMULATED_NOTE in judgement.notes or run_is_simulated(run or {})


def other_notes(judgement: Judgement) -> list[str]:
    """The notes without the watermark, which has a place of its own."""
    return [note for note in judgement.notes if note != SIMULATED_NOTE]
