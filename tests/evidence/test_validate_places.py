"""Ranks that cannot have been where they were measured: the run is refused, with the line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.evidence.evidence import Evidence, read_evidence
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.records import StudyEnd
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_record import start_run
from tests.verdict.nodes import measure_nodes, nodes_evidence, plan_of_nodes
from tests.verdict.sample import make_case

Record = dict[str, Any]
Change = Callable[[Record], Record | None]
NODES, PER_NODE = 3, 2


def startups(plan: Plan, nodes: int = NODES) -> list[Record]:
    return [
        {"kind": "startup", "rank": rank, "local_rank": rank % PER_NODE, "host": f"n{rank // PER_NODE}",
         "device": f"GPU-{rank}", "versions": {}}
        for rank in range(nodes * plan.layout.ranks_per_node)
    ]  # fmt: skip


def pair(one: int, other: int, **changes: Any) -> Record:
    ends = (one, other)
    return {
        "kind": "pair", "study": "pairs", "round": 0, "ranks": ends, "hosts": [f"n{end // PER_NODE}" for end in ends],
        "local_ranks": [end % PER_NODE for end in ends], "devices": [f"GPU-{end}" for end in ends],
        "message_bytes": 2**25, "iterations": 20, "busbw_gbps": 10.0, **changes,
    }  # fmt: skip


def plan_for(world_size: int) -> Plan:
    """Of one requirement: of two ranks, which a node has, or of all six."""
    return plan_of_nodes([make_case("weak_scaling_efficiency", 0.9, world_size)], NODES, PER_NODE)


def records_of(plan: Plan) -> list[Record]:
    """A sound run of three nodes."""
    measurements = measure_nodes(plan, rounds=2)
    steps = [step for steps in nodes_evidence(plan, ()).seeded_steps.values() for step in steps]
    seeded = [{"kind": "seeded_step", **vars(step)} for step in steps]
    return [*startups(plan), *seeded, *(one.as_json() for one in measurements)]


def read(
    path: Path, plan: Plan, records: list[Record], change: Change = lambda record: record, **edits: Any
) -> Evidence:
    """The evidence of a run, after a change to its records and edits of its plan.json."""
    run = RunDirectory.create(path / "run")
    start_run(run, plan.sku, (), path, "ab" * 32)
    run.write_json(run.plan_json, plan.as_json() | edits)
    changed = [change(json.loads(json.dumps(record))) for record in records]
    run.append_records([record for record in changed if record is not None])
    run.append_records([StudyEnd(study, "decided").as_json() for study in plan.study_ids])
    return read_evidence(run)


def of_kind(kind: str, **changes: Any) -> Change:
    """Changes the last rank's records of a kind."""
    return lambda record: record | changes if (record["kind"], record.get("rank")) == (kind, 5) else record


@pytest.mark.parametrize("world_size", [2, 6])
def test_a_sound_run_is_evidence(tmp_path: Path, world_size: int) -> None:
    plan = plan_for(world_size)
    pairs = [pair(0, 2), pair(1, 3)] if plan.pairs else []
    evidence = read(tmp_path, plan, [*records_of(plan), *pairs])
    assert evidence.errors == {}
    assert len(evidence.pairs) == len(pairs)


def test_runs_that_announce_no_ranks_are_evidence(tmp_path: Path) -> None:
    """As results of the simulator."""
    plan = plan_for(6)
    records = [record for record in records_of(plan) if record["kind"] != "startup"]
    assert read(tmp_path, plan, records).measurements


class TestWhatRanksAnnounced:
    @pytest.mark.parametrize("changes", [{"device": "GPU-x"}, {"host": "n9"}])
    @pytest.mark.parametrize("world_size", [2, 6])
    def test_holds_for_all_that_they_measured(self, tmp_path: Path, world_size: int, changes: Record) -> None:
        with pytest.raises(RunDirectoryError, match=r"rank 5 of weak/r as local rank 1 of n2, on GPU-5, but the rank "):
            read(tmp_path, plan_for(world_size), records_of(plan_for(world_size)), of_kind("startup", **changes))

    def test_holds_for_their_seeded_step(self, tmp_path: Path) -> None:
        plan = plan_for(2)
        records = [record for record in records_of(plan) if record["kind"] != "measurement"]
        with pytest.raises(RunDirectoryError, match=r"line 12 has rank 5 .* announced itself .* of n2, on GPU-5"):
            read(tmp_path, plan, records, of_kind("seeded_step", device="GPU-x"))

    def test_holds_for_a_node_copied_under_another_name(self, tmp_path: Path) -> None:
        """Its devices renamed, and its seeded steps left out."""
        plan = plan_for(2)
        records = [one for one in records_of(plan) if one["kind"] == "startup" or one.get("host") in ("n0", "n1")]
        copied = [
            one | {"host": "n2", "rank": one["rank"] + 2, "device": f"{one['device']}b"}
            for one in records
            if one["kind"] == "measurement" and one["host"] == "n1"
        ]
        with pytest.raises(RunDirectoryError, match=r"on GPU-2b, but the rank announced itself .* n2, on GPU-4"):
            read(tmp_path, plan, [*records, *copied])

    def test_holds_for_ranks_that_never_did(self, tmp_path: Path) -> None:
        drop: Change = lambda record: None if (record["kind"], record.get("rank")) == ("startup", 5) else record  # noqa: E731
        with pytest.raises(RunDirectoryError, match=r"the rank announced itself .startup. not at all"):
            read(tmp_path, plan_for(2), records_of(plan_for(2)), drop)

    def test_is_of_the_gang_that_measured_and_of_no_other(self, tmp_path: Path) -> None:
        """The first gang's node n1 was replaced by n7 in the second one, which measured."""
        plan = plan_for(2)
        renamed: Change = lambda record: record | {"host": "n7"} if record.get("host") == "n1" else record  # noqa: E731
        assert read(tmp_path, plan, [*startups(plan), *map(renamed, records_of(plan))]).errors == {}  # type: ignore[list-item]
        with pytest.raises(RunDirectoryError, match="announced itself"):
            read(tmp_path / "other", plan, [*startups(plan), *map(renamed, startups(plan)), *records_of(plan)[6:]])  # type: ignore[list-item]


class TestNodes:
    @pytest.mark.parametrize("world_size", [2, 6])
    @pytest.mark.parametrize("per_node", [1, 3])
    def test_of_another_size_than_planned_are_refused(self, tmp_path: Path, world_size: int, per_node: int) -> None:
        """Else what each of three nodes has to keep would be judged once, on the first of six."""
        plan = plan_for(world_size)
        with pytest.raises(RunDirectoryError, match=f"plans for {6 // per_node}"):
            read(tmp_path, plan, records_of(plan), nodes=6 // per_node, ranks_per_node=per_node)

    @pytest.mark.parametrize("edits", [{"nodes": 2}, {"nodes": 1, "ranks_per_node": None}])
    def test_more_than_planned_are_refused_though_one_measured_nothing(self, tmp_path: Path, edits: Record) -> None:
        plan = plan_for(2)
        without: Change = lambda one: None if one["kind"] != "startup" and one["host"] == "n2" else one  # noqa: E731
        found = f"measured on 3 hosts .startup., but plan.json plans for {edits['nodes']}"
        with pytest.raises(RunDirectoryError, match=found):
            read(tmp_path, plan, records_of(plan), without, **edits)

    def test_that_were_lost_do_not_keep_the_others_from_what_fits_them(self, tmp_path: Path) -> None:
        plan = plan_for(2)
        without: Change = lambda one: None if one["host"] == "n2" else one  # noqa: E731
        assert read(tmp_path, plan, records_of(plan), without).hosts == ["n0", "n1"]

    def test_fewer_than_planned_cannot_measure_what_is_larger(self, tmp_path: Path) -> None:
        plan = plan_for(6)
        with pytest.raises(RunDirectoryError, match=r"measured on 3 hosts .startup., but plan.json plans for 4"):
            read(tmp_path, plan, records_of(plan), nodes=4)

    @pytest.mark.parametrize("announced", [True, False])
    def test_all_ranks_on_one_are_refused(self, tmp_path: Path, announced: bool) -> None:
        """Though they said so themselves."""
        plan = plan_for(6)
        moved = [one | {"host": "n0", "local_rank": one["rank"]} for one in records_of(plan)]
        records = [one for one in moved if announced or one["kind"] != "startup"]
        with pytest.raises(
            RunDirectoryError, match=r"rank 2 of weak/r as local rank 2 of n0, but plan.json plans for 3 "
        ):
            read(tmp_path, plan, records)


class TestPairs:
    @pytest.mark.parametrize(
        ("forged", "found"),
        [
            (pair(0, 100, hosts=["n0", "login1"]), "rank 100 of pairs as local rank 0 of login1, but plan.json"),
            (pair(0, 2, hosts=["n0", "login1"]), "rank 2 of pairs as local rank 0 of login1, on GPU-2, but the rank"),
            (pair(0, 2, hosts=["n1", "n0"]), "rank 0 of pairs as local rank 0 of n1, on GPU-0, but the rank"),
            (pair(0, 2, local_ranks=[0, 1]), "rank 2 of pairs as local rank 1 of n1, which|plans for 3 nodes of 2"),
            (pair(0, 2, devices=["GPU-0", "GPU-9"]), "on GPU-9, but the rank announced itself"),
            (pair(0, 2, study="weak/r"), "a pair of nodes of weak/r, which plan.json does not plan"),
        ],
    )
    def test_of_ranks_elsewhere_are_refused(self, tmp_path: Path, forged: Record, found: str) -> None:
        plan = plan_for(6)
        with pytest.raises(RunDirectoryError, match=found):
            read(tmp_path, plan, [*records_of(plan), forged])

    def test_that_nobody_planned_are_refused(self, tmp_path: Path) -> None:
        plan = plan_for(6)
        with pytest.raises(RunDirectoryError, match=r"a pair of nodes of pairs, which plan.json does not plan"):
            read(tmp_path, plan, [*records_of(plan), pair(0, 2)], pairs=None)
