"""Telemetry of blocks that nobody measured: it would vouch for GPUs that were not watched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.run_directory import RunDirectory, broken_file
from pytest_ddpscale.results.run_record import studies_measured
from pytest_ddpscale.results.telemetry_record import Telemetry

_Block = tuple[str, str, int, int, float]  # study, arm or probe, round, rank and when it began
_Place = tuple[str, int, str]  # host, local rank and device


def telemetry_of_blocks(
    run: RunDirectory, plan: Plan, records: Sequence[dict[str, Any]], telemetry: Sequence[Telemetry]
) -> list[Telemetry]:
    """The telemetry of what was measured, once for each block.

    It is written before the measurements of its block, so that a study which did not come to its own end may have
    some without: that is left out.

    Args:
        run: where it lies, for the message.
        plan: what was to be measured.
        records: all lines of measurements.jsonl; what they hold has been checked by itself.
        telemetry: all lines of telemetry.jsonl.

    Raises:
        RunDirectoryError: one is of a block that was not measured, or elsewhere, or there are two that differ; the
            message has the line.
    """
    places = dict(_blocks(records))
    planned = {(study.id, arm.name) for study in plan.studies for arm in study.arms}
    planned |= {(plan.probes.id, probe.id) for probe in plan.probes.probes} if plan.probes else set()
    ended = studies_measured(records)
    found: dict[_Block, Telemetry] = {}
    for number, one in enumerate(telemetry, start=1):
        block: _Block = (one.study, one.arm, one.round, one.rank, one.started_unix_s)
        place = places.get(block)
        if place is None and (one.study in ended or (one.study, one.arm) not in planned):
            raise _broken(run, number, one, "which was not measured")
        if place is None:
            continue
        if place != (one.host, one.local_rank, one.device):
            at = "as local rank {1} of {0}, on {2}".format(*place)
            raise _broken(run, number, one, f"on {one.device} of {one.host}, but it was measured {at}")
        if found.setdefault(block, one) != one:
            raise _broken(run, number, one, "of which an earlier line says something else")
    return list(found.values())


def _blocks(records: Sequence[dict[str, Any]]) -> Iterator[tuple[_Block, _Place]]:
    for one in records:
        if one.get("kind") == "measurement":
            arm = one["arm"]
        elif one.get("kind") == "probe":
            arm = Probe(one["probe"], one["world_size"]).id
        else:
            continue
        block = (one["study"], arm, one["round"], one["rank"], one["started_unix_s"])
        yield block, (one["host"], one["local_rank"], one["device"])


def _broken(run: RunDirectory, number: int, one: Telemetry, what: str) -> RunDirectoryError:
    of = f"{one.study}, {one.arm}, round {one.round}, rank {one.rank}"
    return broken_file(run.telemetry_jsonl, f"line {number} is telemetry of {of}, {what}")
