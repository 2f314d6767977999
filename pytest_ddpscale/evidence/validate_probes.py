"""Probes that nobody planned: what they say belongs to no requirement of this run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_ddpscale.plan.probe import STUDY_ID, Probe
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.run_directory import RunDirectory, broken_file


def refuse_unplanned_probes(run: RunDirectory, plan: Plan, records: Sequence[dict[str, Any]]) -> None:
    """Refuse probes, and rounds of probes, that plan.json does not have.

    Args:
        run: where it lies, for the message.
        plan: what was to be measured.
        records: all lines of measurements.jsonl; what they hold has been checked by itself.

    Raises:
        RunDirectoryError: the message has the line.
    """
    planned = {probe.id for probe in plan.probes.probes} if plan.probes else set()
    for number, record in enumerate(records, start=1):
        kind, study = record.get("kind"), record.get("study")
        if kind in ("probe", "probe_unsupported"):
            is_planned = study == STUDY_ID and _id_of(record) in planned
        else:  # which probes a planned round has is told from the course of the study
            is_planned = kind != "round_end" or study != STUDY_ID or bool(planned)
        if not is_planned:
            found = f"line {number} is a {kind} of {study}, {_id_of(record)}, which plan.json does not plan"
            raise broken_file(run.measurements_jsonl, found)


def _id_of(record: dict[str, Any]) -> str:
    if record["kind"] == "probe":
        return Probe(record["probe"], record["world_size"]).id
    return str(record.get("probe", record.get("arms")))
