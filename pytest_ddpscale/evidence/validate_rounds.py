"""Records of a study's course that contradict each other: what should have been measured would be unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.run_directory import RunDirectory, broken_file

# What there is one of: fields that tell records of a kind apart.
_ONE_OF_EACH = {
    "seeded_step": ("study", "rank"),
    "workload_flops": ("study",),
    "round_end": ("study", "round"),
    "probe": ("study", "probe", "world_size", "round", "rank", "peer_rank"),
}


def refuse_contradicting_rounds(run: RunDirectory, plan: Plan, records: Sequence[dict[str, Any]]) -> None:
    """Refuse records that say two things, and rounds that left out what they cannot have left out.

    An arm is left out once everything that needs it is decided: never before the fewest rounds, never to come
    back, and never with a measurement in a round that left it out. So is a probe, and before that one which a rank
    could not do.

    Args:
        run: where it lies, for the message.
        plan: what was to be measured.
        records: all lines of measurements.jsonl.

    Raises:
        RunDirectoryError: the message has the line.
    """
    arms = {study.id: {arm.name for arm in study.arms} for study in plan.studies}
    if plan.probes is not None:
        arms[plan.probes.id] = {probe.id for probe in plan.probes.probes}
    ends: dict[str, dict[int, tuple[int, dict[str, Any]]]] = {study: {} for study in arms}
    unsupported: set[str] = set()
    seen: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, record in enumerate(records, start=1):
        kind = record.get("kind")
        if kind in _ONE_OF_EACH:
            key = (kind, *(record.get(field) for field in _ONE_OF_EACH[kind]))
            if seen.setdefault(key, record) != record:
                raise _broken(run, number, f"another {kind} than an earlier line")
        if kind == "round_end" and record.get("study") in ends:
            ends[record["study"]][_round(run, number, record)] = (number, record)
        if kind == "probe_unsupported":
            unsupported.add(str(record["probe"]))
    for study, theirs in arms.items():
        _refuse_arms_that_come_back(run, theirs, unsupported, ends[study])
    _refuse_measurements_left_out(run, records, ends)


def _round(run: RunDirectory, number: int, record: dict[str, Any]) -> int:
    arms, round_number = record.get("arms"), record.get("round")
    if type(round_number) is not int or not isinstance(arms, list) or not all(isinstance(arm, str) for arm in arms):
        raise _broken(run, number, f"a round_end of round {round_number!r} with arms {arms!r}")
    return round_number


def _refuse_arms_that_come_back(
    run: RunDirectory, arms: set[str], unsupported: set[str], ends: Mapping[int, tuple[int, Any]]
) -> None:
    before = arms
    for round_number in sorted(ends):
        number, record = ends[round_number]
        timed = set(record["arms"])
        is_early = round_number < FEWEST_ROUNDS and not arms - unsupported <= timed
        if not timed <= before or is_early:
            found = f"a round_end that times {', '.join(sorted(timed)) or 'nothing'} after {', '.join(sorted(before))}"
            raise _broken(run, number, found)
        before = timed


def _refuse_measurements_left_out(
    run: RunDirectory, records: Sequence[dict[str, Any]], ends: Mapping[str, Mapping[int, tuple[int, Any]]]
) -> None:
    for number, record in enumerate(records, start=1):
        end = ends.get(str(record.get("study")), {}).get(record.get("round", -1))
        if end is None or record.get("kind") not in ("measurement", "probe"):
            continue
        is_probe = record["kind"] == "probe"
        arm = Probe(record["probe"], record["world_size"]).id if is_probe else record.get("arm")
        if arm not in end[1]["arms"]:
            raise _broken(run, number, f"a measurement of an arm that its round left out (line {end[0]})")


def _broken(run: RunDirectory, number: int, what: str) -> RunDirectoryError:
    return broken_file(run.measurements_jsonl, f"line {number} is {what}")
