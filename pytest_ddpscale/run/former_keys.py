"""What files of a run said otherwise with the same schema, so that runs of earlier versions stay readable."""

from __future__ import annotations

from typing import Any

from pytest_ddpscale.plan.study import PLAN_SCHEMA_VERSION
from pytest_ddpscale.run.run_json import JUDGED_NOTE, OPERATOR, SITE, TICKET

_IMAGE_OPTIONS = (
    "model", "image_size", "memory_format", "num_classes", "cudnn_benchmark", "classifier_hidden", "feature_weights",
)  # fmt: skip
_BASIS = {"judged_by": OPERATOR, "site": SITE, "ticket": TICKET}


def run_without_former(data: dict[str, Any]) -> None:
    """Turn operator, site and ticket in the content of a run.json into notes."""
    _note(data, SITE, OPERATOR, TICKET)
    resumed = data.get("resumed")
    for one in resumed if isinstance(resumed, list) else []:
        if isinstance(one, dict):
            _note(one, OPERATOR)


def _note(data: dict[str, Any], *keys: str) -> None:
    if "noted" not in data:
        former = {key: data.pop(key) for key in keys if key in data}
        data |= {"noted": former} if former else {}


def plan_without_former(data: dict[str, Any]) -> None:
    """Give the content of a plan.json of version 5, whose workloads have no family, today's form."""
    if data["schema_version"] == PLAN_SCHEMA_VERSION:
        return
    data.pop("precision", None)
    data["schema_version"] = PLAN_SCHEMA_VERSION
    for key in ("studies", "training_runs"):
        parts = data.get(key)
        for one in parts if isinstance(parts, list) else []:
            flat = one.get("workload") if isinstance(one, dict) else None
            if isinstance(flat, dict):
                options = {name: flat.pop(name) for name in _IMAGE_OPTIONS if name in flat}
                flat["family"] = {**options, "kind": "image"}


def judgement_without_former(data: dict[str, Any]) -> None:
    """Drop from the content of a verdicts.json what nothing reads any more, and name its notes as they are now."""
    data.pop("family_confidence", None)
    basis = data.get("basis")
    if isinstance(basis, dict):
        data["basis"] = {JUDGED_NOTE + _BASIS[key] if key in _BASIS else key: said for key, said in basis.items()}
    verdicts = data.get("verdicts")
    for verdict in verdicts if isinstance(verdicts, list) else []:
        if isinstance(verdict, dict):
            verdict.pop("precision", None)
            compared = verdict.get("compared")
            if isinstance(compared, dict):
                verdict["compared"] = {key.replace("img_per_s", "samples_per_s"): one for key, one in compared.items()}
