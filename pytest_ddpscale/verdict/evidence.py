"""What a run directory offers to the judge, refused where it contradicts itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.records import Measurement
from pytest_ddpscale.results.run_directory import RunDirectory, broken_file
from pytest_ddpscale.results.run_record import IMPORTED, errors_of, studies_that_ended


@dataclass(frozen=True)
class Evidence:
    """What was to be measured, what was, and what broke.

    Attributes:
        plan: the studies that were to be measured.
        measurements: all of them, in any order.
        errors: message of every study that broke, by its id.
    """

    plan: Plan
    measurements: Sequence[Measurement]
    errors: Mapping[str, str]


def read_evidence(run: RunDirectory) -> Evidence:
    """The evidence in a run directory.

    A study whose end was never recorded is an error: what killed it may be what it was to find.

    Raises:
        RunDirectoryError: a file is broken, or plan.json and run.json are not of one run.
    """
    record, plan, records = run.read_run(), run.read_plan(), run.read_records()
    if plan.sku != record.get("sku"):
        raise broken_file(run.plan_json, f"plans for {plan.sku}, but run.json measured {record.get('sku')}")
    ids = [study.id for study in plan.studies]
    if len(set(ids)) != len(ids):
        raise broken_file(run.plan_json, "has two studies of one id")
    errors = errors_of(records)
    if record.get("status") != IMPORTED:
        ended = studies_that_ended(records)
        died = "the run died while measuring this, or before: no end of it was recorded"
        errors |= {study: died for study in ids if study not in ended}
    return Evidence(plan, run.read_measurements(), errors)
