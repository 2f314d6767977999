"""Keys that files of a run no longer have, so that runs of earlier versions with the same schema stay readable."""

from __future__ import annotations

from typing import Any


def plan_without_former(data: dict[str, Any]) -> None:
    """Drop from the content of a plan.json what nothing reads any more."""
    data.pop("precision", None)


def judgement_without_former(data: dict[str, Any]) -> None:
    """Drop from the content of a verdicts.json what nothing reads any more."""
    data.pop("family_confidence", None)
    verdicts = data.get("verdicts")
    for verdict in verdicts if isinstance(verdicts, list) else []:
        if isinstance(verdict, dict):
            verdict.pop("precision", None)
