"""Probes and connections that cannot have been so are refused, with the line, as trained blocks are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.evidence.evidence import Evidence, read_evidence
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.probe import Probe, ProbeStudy
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.records import StudyEnd
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_record import start_run
from pytest_ddpscale.results.transport_record import Transport
from tests.verdict.probed import measure_probe, probe_plan, steady

Record = dict[str, Any]
Records = list[Record]
Change = Callable[[Records], Records]
NODES, PER_NODE, ROUNDS = 2, 4, FEWEST_ROUNDS + 2
PROBES = (Probe("matmul-bf16"), Probe("send-recv-256mib", 4), Probe("all-reduce-32mib", 8))
PLAN = replace(probe_plan(PROBES[0], NODES, PER_NODE), probes=ProbeStudy(PROBES, 16, 0.5))
IDS = [probe.id for probe in PROBES]
SAID = {"rank": 0, "local_rank": 0, "host": "n0", "device": "GPU-0", "reason": "too old"}


def startups() -> Records:
    return [{"kind": "startup", "rank": rank, **place(rank)} for rank in range(NODES * PER_NODE)]


def place(rank: int) -> Record:
    node, local_rank = divmod(rank, PER_NODE)
    return {"local_rank": local_rank, "host": f"n{node}", "device": f"GPU-{rank}"}


def sound() -> Records:
    """All ranks probed in some rounds, the last of them without the first probe."""
    records = startups()
    measured = [one for probe in PROBES for one in measure_probe(PLAN, probe, steady(100.0), ROUNDS)]
    for number in range(ROUNDS):
        ids = IDS[number == ROUNDS - 1 :]
        timed = [one for one in measured if one.round == number and Probe(one.probe, one.world_size).id in ids]
        records += [one.as_json() for one in timed]
        records.append({"kind": "round_end", "study": "probes", "round": number, "arms": ids})
    seats = [Transport(one["host"], one["rank"], one["local_rank"], one["device"]) for one in startups()]
    return [*records, *(seat.as_json() for seat in seats), StudyEnd("probes", "decided").as_json()]


def read(path: Path, change: Change = list, plan: Plan = PLAN) -> Evidence:
    run = RunDirectory.create(path / "run")
    start_run(run, plan.sku, (), path, "ab" * 32)
    run.write_json(run.plan_json, plan.as_json())
    run.append_records(change(json.loads(json.dumps(sound()))))
    return read_evidence(run)


def last(kind: str, **changes: Any) -> Change:
    """Changes the last record of a kind."""

    def change(records: Records) -> Records:
        found = max(number for number, one in enumerate(records) if one["kind"] == kind)
        records[found] |= changes
        return records

    return change


def added(kind: str, **changes: Any) -> Change:
    """Adds the first record of a kind again, changed."""
    return lambda records: [*records, next(one for one in records if one["kind"] == kind) | changes]


def in_round(number: int, arms: list[str]) -> Change:
    """Probes other than these were left out of a round."""

    def change(records: Records) -> Records:
        for one in records:
            if one["kind"] == "round_end" and one["round"] == number:
                one["arms"] = arms
        return records

    return change


def unsupported(records: Records) -> Records:
    """No rank can do the first probe."""
    records = [one for one in records if one["kind"] != "probe" or one["probe"] != PROBES[0].name]
    for one in records:
        if one["kind"] == "round_end":
            one["arms"] = IDS[1:]
    said = {"kind": "probe_unsupported", "study": "probes", "probe": IDS[0], **SAID}
    return [*startups(), said, *records[NODES * PER_NODE :]]


@pytest.mark.parametrize("change", [list, lambda records: [*records, *records[8:]], unsupported])
def test_a_sound_run_is_evidence(tmp_path: Path, change: Change) -> None:
    """Also with identical lines twice, and where a probe could not be done."""
    evidence = read(tmp_path, change)
    assert evidence.errors == {}
    assert evidence.probes
    assert len(evidence.transports) == NODES * PER_NODE


@pytest.mark.parametrize("kind", ["probe", "transport"])
@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"rank": 8, "local_rank": 0}, "has rank 8 of .* but plan.json plans for 8 ranks"),
        ({"host": "n9"}, "of n9, on GPU-7, but the rank announced itself .startup. as local rank 3 of n1"),
        ({"device": "GPU-x"}, "on GPU-x, but the rank announced itself .startup. .* on GPU-7"),
        ({"local_rank": 2}, "as local rank 2 of n1, on GPU-7, but the rank announced itself .startup. as local rank 3"),
        ({"device": "cpu"}, "was measured on 'cpu', but plan.json plans for cuda"),
    ],
)
def test_ranks_elsewhere_are_refused(tmp_path: Path, kind: str, changes: Record, found: str) -> None:
    with pytest.raises(RunDirectoryError, match=f"line [0-9]+ .*({found}|where it was not before)"):
        read(tmp_path, last(kind, **changes))


@pytest.mark.parametrize("kind", ["probe", "transport"])
def test_ranks_that_nobody_heard_of_are_refused(tmp_path: Path, kind: str) -> None:
    """Probes and connections are of runs that were measured here, whose ranks announce themselves."""

    def change(records: Records) -> Records:
        return [one for one in records if one["kind"] in (kind, "round_end", "study_end")]

    with pytest.raises(RunDirectoryError, match=r"the rank announced itself .startup. not at all"):
        read(tmp_path, change)


def test_probes_on_gpus_in_a_plan_of_cpus_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"line 9 was measured on 'GPU-0', but plan.json plans for cpu"):
        read(tmp_path, plan=replace(PLAN, device_type="cpu"))


def test_two_ranks_probed_on_one_gpu_are_refused(tmp_path: Path) -> None:
    def change(records: Records) -> Records:
        return [one | {"device": "GPU-0"} if one.get("rank") == 1 else one for one in records]

    with pytest.raises(RunDirectoryError, match=r"line 10: rank 1 of probes, matmul-bf16, round 0 was probed on GPU-0"):
        read(tmp_path, change)


@pytest.mark.parametrize("order", [1, -1])
def test_two_records_of_one_block_that_differ_are_refused(tmp_path: Path, order: int) -> None:
    faster = added("probe", seconds=0.001)
    with pytest.raises(RunDirectoryError, match="is another probe than an earlier line"):
        read(tmp_path, lambda records: startups() + faster(records)[NODES * PER_NODE :][::order])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (added("probe", study="xx"), "is a probe of xx, matmul-bf16, which plan.json does not plan"),
        (added("probe", probe="matmul-fp8"), "is a probe of probes, matmul-fp8, which plan.json does not plan"),
        (added("round_end", round=ROUNDS + 2, arms=["x"]), "is a round_end that times x after"),
        (in_round(0, IDS[1:]), "is a round_end that times"),
        (in_round(ROUNDS - 2, IDS[1:]), "is a measurement of an arm that its round left out"),
        (
            lambda records: [*records, {"kind": "probe_unsupported", "study": "probes", "probe": "x", **SAID}],
            "is a probe_unsupported of probes, x, which plan.json does not plan",
        ),
    ],
)  # fmt: skip
def test_what_was_not_planned_is_refused(tmp_path: Path, change: Change, found: str) -> None:
    with pytest.raises(RunDirectoryError, match=rf"line [0-9]+ {found}"):
        read(tmp_path, change)


def test_rounds_of_probes_of_a_plan_without_any_are_refused(tmp_path: Path) -> None:
    def change(records: Records) -> Records:
        return [one for one in records if one["kind"] not in ("probe", "transport")]

    with pytest.raises(RunDirectoryError, match=r"line 9 is a round_end of probes, .* which plan.json does not plan"):
        read(tmp_path, change, replace(PLAN, probes=None))
