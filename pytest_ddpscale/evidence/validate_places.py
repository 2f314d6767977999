"""Places that contradict each other, the plan, or what the ranks said of themselves: nobody slow could be named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.plan.probe import STUDY_ID as PROBES
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.gangs import AnnouncedGang, gang_of_each
from pytest_ddpscale.results.run_directory import RunDirectory, broken_file


class _Placed(NamedTuple):
    """A rank in a line of measurements.jsonl, and where that line says it was."""

    number: int  # of the line, from 1
    study: str
    arm: str | None
    rank: int
    host: str
    local_rank: int
    device: str
    gang: AnnouncedGang


def refuse_contradicting_places(run: RunDirectory, plan: Plan, records: Sequence[dict[str, Any]]) -> None:
    """Refuse ranks that cannot have been where they were measured.

    A study is measured by one gang, in which a rank stays where it is. Of several nodes each is judged by itself: each
    has a name of its own, and its ranks one after the other. Where ranks announced themselves, as those of every run
    that was measured do, they are where they said, on the nodes that were planned.

    Args:
        run: where it lies, for the message.
        plan: what was to be measured.
        records: all lines of measurements.jsonl; what they hold has been checked by itself.

    Raises:
        RunDirectoryError: the message has the line.
    """
    _refuse_unplanned_pairs(run, plan, records)
    placed, connected = list(_placed(records)), list(_connected(records))
    probed = [one for one in placed if one.study == PROBES]
    _refuse_ranks_beyond_the_plan(run, plan, [*probed, *connected])
    _refuse_ranks_that_move(run, placed)
    if plan.nodes > 1:  # a simulated run says 1, however many hosts it has
        _refuse_nodes_that_are_not_told_apart(run, placed)
        _refuse_ranks_of_another_layout(run, plan, placed)
    # Only what was measured here has probes and transports.
    if probed or connected or any(record.get("kind") == "startup" for record in records):
        _refuse_what_was_not_announced(run, [*placed, *connected])
        _refuse_other_numbers_of_nodes(run, plan, placed)
    _refuse_ranks_out_of_turn(run, plan, records)


def _placed(records: Sequence[dict[str, Any]]) -> Iterator[_Placed]:
    for number, (record, gang) in enumerate(gang_of_each(records), start=1):
        kind = record.get("kind")
        if kind in ("measurement", "seeded_step", "probe"):
            place = (record["rank"], record["host"], record["local_rank"], record["device"])
            yield _Placed(number, record["study"], record.get("arm"), *place, gang)
        elif kind == "pair":
            ends = zip(record["ranks"], record["hosts"], record["local_ranks"], record["devices"], strict=True)
            for place in ends:
                yield _Placed(number, record["study"], None, *place, gang)


def _connected(records: Sequence[dict[str, Any]]) -> Iterator[_Placed]:
    """Ranks whose connections are known. Each gang has told of its own."""
    for number, (record, gang) in enumerate(gang_of_each(records), start=1):
        if record.get("kind") == "transport":
            place = (record["rank"], record["host"], record["local_rank"], record["device"])
            yield _Placed(number, "transport", None, *place, gang)


def _refuse_ranks_beyond_the_plan(run: RunDirectory, plan: Plan, placed: Sequence[_Placed]) -> None:
    for one in placed:
        if one.rank >= plan.layout.world_size:
            found = f"{_as_said(one)}, but plan.json plans for {plan.layout.world_size} ranks"
            raise broken_file(run.measurements_jsonl, found)


def _refuse_ranks_out_of_turn(run: RunDirectory, plan: Plan, records: Sequence[dict[str, Any]]) -> None:
    """An arm of one rank is trained by all ranks of a node in turn: a slow one must not be passed over."""
    studies = {study.id: study for study in plan.studies}
    in_turn = {(study.id, arm.name) for study in plan.studies for arm in study.arms if arm.world_size == 1}
    for number, record in enumerate(records, start=1):
        if record.get("kind") != "measurement" or (record["study"], record["arm"]) not in in_turn:
            continue
        turn = studies[record["study"]].turn(plan.seed, record["round"])
        if record["local_rank" if plan.nodes > 1 else "rank"] != turn:
            found = f"line {number} has rank {record['rank']} in round {record['round']} of {record['arm']} of "
            raise broken_file(run.measurements_jsonl, f"{found}{record['study']}, in which it is rank {turn}'s turn")


def _refuse_unplanned_pairs(run: RunDirectory, plan: Plan, records: Sequence[dict[str, Any]]) -> None:
    for number, record in enumerate(records, start=1):
        if record.get("kind") == "pair" and (plan.pairs is None or record["study"] != plan.pairs.id):
            found = f"line {number} has a pair of nodes of {record['study']}, which plan.json does not plan"
            raise broken_file(run.measurements_jsonl, found)


def _refuse_ranks_that_move(run: RunDirectory, placed: Sequence[_Placed]) -> None:
    places: dict[tuple[str, int], tuple[str, int, str]] = {}
    for one in placed:
        place = (one.host, one.local_rank, one.device)
        if places.setdefault((one.study, one.rank), place) != place:
            found = f"line {one.number} has rank {one.rank} of {one.study} on {one.host}, where it was not before"
            raise broken_file(run.measurements_jsonl, found)


def _refuse_nodes_that_are_not_told_apart(run: RunDirectory, placed: Sequence[_Placed]) -> None:
    hosts: dict[tuple[str, int], str] = {}
    firsts: dict[tuple[str, str], int] = {}
    for one in placed:
        first = one.rank - one.local_rank
        if first < 0 or hosts.setdefault((one.study, first), one.host) != one.host:
            raise broken_file(run.measurements_jsonl, f"{_as_said(one)}, which is another node's")
        if firsts.setdefault((one.study, one.host), first) != first:
            raise RunDirectoryError(
                str(run.measurements_jsonl),
                f"line {one.number}: rank {one.rank} of {one.study} was measured on {one.host}, as were ranks of "
                "another node",
                "a name of its own for every node",
                "Give the nodes different host names, and measure again: they could not be told apart.",
            )


def _refuse_ranks_of_another_layout(run: RunDirectory, plan: Plan, placed: Sequence[_Placed]) -> None:
    """What is larger than a node is measured on nodes of the planned size.

    Not so what fits one: a further launch may plan for more ranks a node.
    """
    layout = plan.layout
    larger: set[tuple[str, str | None]] = {
        (study.id, arm.name) for study in plan.studies for arm in study.arms if not layout.fits_node(arm)
    }
    larger |= {(study_id, None) for study_id in plan.study_ids if not plan.fits_nodes(study_id)}  # of no arm
    for one in placed:
        if (one.study, one.arm) not in larger:
            continue
        if one.local_rank != one.rank % layout.ranks_per_node or one.rank >= layout.world_size:
            found = f"{_as_said(one)}, but plan.json plans for {plan.nodes} nodes of {layout.ranks_per_node} ranks"
            raise broken_file(run.measurements_jsonl, found)


def _refuse_what_was_not_announced(run: RunDirectory, placed: Sequence[_Placed]) -> None:
    for one in placed:
        announced = one.gang.places.get(str(one.rank))
        if announced != (one.host, one.local_rank, one.device):
            at = "not at all" if announced is None else "as local rank {1} of {0}, on {2}".format(*announced)
            found = f"{_as_said(one)}, on {one.device}, but the rank announced itself (startup) {at}"
            raise broken_file(run.measurements_jsonl, found)


def _refuse_other_numbers_of_nodes(run: RunDirectory, plan: Plan, placed: Sequence[_Placed]) -> None:
    """A gang has as many nodes as planned. Of a study whose arms fit a node, those that were lost may lack."""
    seen: set[tuple[str, int]] = set()
    for one in placed:
        if (one.study, id(one.gang)) in seen:
            continue
        seen.add((one.study, id(one.gang)))
        hosts = len(one.gang.hosts)
        if hosts > plan.nodes or (hosts < plan.nodes and not plan.fits_nodes(one.study)):
            found = f"line {one.number} has {one.study} measured on {hosts} hosts (startup), but plan.json plans for "
            raise broken_file(run.measurements_jsonl, f"{found}{plan.nodes}")


def _as_said(one: _Placed) -> str:
    return f"line {one.number} has rank {one.rank} of {one.study} as local rank {one.local_rank} of {one.host}"
