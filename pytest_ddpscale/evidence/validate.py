"""Measurements that contradict themselves, their plan or each other: no verdict can rest on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.evidence.validate_places import refuse_contradicting_places
from pytest_ddpscale.evidence.validate_probes import refuse_unplanned_probes
from pytest_ddpscale.evidence.validate_rounds import refuse_contradicting_rounds
from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.records import Measurement
from pytest_ddpscale.results.run_directory import RunDirectory, broken_file

# Steps follow each other without a gap, timed by the same clock as their block: only its rounding may differ.
STEPS_DIFFER_FROM_BLOCK = 0.05
NumberedLines = Sequence[tuple[int, Measurement]]  # the line in measurements.jsonl, from 1, and what it holds


class _TimedBlock(NamedTuple):
    """What a rank trained or probed, and the line of measurements.jsonl that says so, from 1."""

    number: int
    study: str
    arm: str
    round: int
    rank: int
    device: str
    done: str


def refuse_contradictions(
    run: RunDirectory,
    plan: Plan,
    records: Sequence[dict[str, Any]],
    measurements: Sequence[Measurement],
    *,
    is_imported: bool,
) -> None:
    """Refuse a run in which something measured cannot be so.

    Args:
        run: where it lies, for the message.
        plan: what was to be measured.
        records: all lines of measurements.jsonl.
        measurements: those among them, in the same order.
        is_imported: another tool measured it: its names of devices say nothing.

    Raises:
        RunDirectoryError: the message has the line.
    """
    numbers = [number for number, record in enumerate(records, start=1) if record.get("kind") == "measurement"]
    # Not strict: a run that still measures may have grown between reading the one and the other.
    lines = list(zip(numbers, measurements, strict=False))
    _refuse_contradicting_steps(run, lines)
    refuse_unplanned_probes(run, plan, records)
    refuse_contradicting_rounds(run, plan, records)
    if not is_imported:
        _refuse_devices_of_another_type(run, plan, records)
        _refuse_shared_gpus(run, plan, _blocks(records))
        refuse_contradicting_places(run, plan, records)


def _refuse_contradicting_steps(run: RunDirectory, lines: NumberedLines) -> None:
    """A block has as many steps as it says, and they fill it."""
    for number, one in lines:
        if one.step_s and (found := _step_contradiction(one)):
            raise broken_file(run.measurements_jsonl, f"line {number} has {found}")


def _blocks(records: Sequence[dict[str, Any]]) -> Iterator[_TimedBlock]:
    for number, record in enumerate(records, start=1):
        if record.get("kind") == "measurement":
            arm, done = record["arm"], "trained"
        elif record.get("kind") == "probe":
            arm, done = Probe(record["probe"], record["world_size"]).id, "was probed"
        else:
            continue
        yield _TimedBlock(number, record["study"], arm, record["round"], record["rank"], record["device"], done)


def _refuse_devices_of_another_type(run: RunDirectory, plan: Plan, records: Sequence[dict[str, Any]]) -> None:
    """A plan of GPUs is not measured on a CPU, nor the other way round."""
    for number, record in enumerate(records, start=1):
        is_measured = record.get("kind") in ("measurement", "probe", "transport")
        if is_measured and (record["device"] == "cpu") != (plan.device_type == "cpu"):
            found = f"line {number} was measured on {record['device']!r}, but plan.json plans for {plan.device_type}"
            raise broken_file(run.measurements_jsonl, found)


def _refuse_shared_gpus(run: RunDirectory, plan: Plan, blocks: Iterable[_TimedBlock]) -> None:
    """Ranks that work at the same time have a GPU each: another one was left out, and nothing is known of it."""
    if plan.device_type == "cpu":
        return  # which all ranks share
    users: dict[tuple[str, str, int, str], tuple[int, int]] = {}
    for one in blocks:
        rank, line = users.setdefault((one.study, one.arm, one.round, one.device), (one.rank, one.number))
        if rank != one.rank:
            raise RunDirectoryError(
                str(run.measurements_jsonl),
                f"line {one.number}: rank {one.rank} of {one.study}, {one.arm}, round {one.round} {one.done} on "
                f"{one.device}, as {'did' if one.done == 'trained' else 'was'} rank {rank} on line {line}",
                "a GPU of its own for every rank",
                "Restore the file from a copy, or measure again with as many GPUs as ranks.",
            )


def _step_contradiction(one: Measurement) -> str:
    """What is wrong with the step times of a block, or nothing."""
    if len(one.step_s) != one.steps:
        return f"{len(one.step_s)} step times (step_s) of {one.steps} steps"
    if min(one.step_s) <= 0:
        return f"a step of {min(one.step_s):g} s (step_s)"
    total_s = math.fsum(one.step_s)
    if abs(total_s - one.block_s) > STEPS_DIFFER_FROM_BLOCK * one.block_s:
        return f"steps of {total_s:g} s in all (step_s) in a block of {one.block_s:g} s"
    return ""
