"""A run in which something measured cannot be so is refused, with the line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace as altered

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.block import NO_CHECKSUM, Block, Unsupported, step_bytes
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.readings import STEP_S
from pytest_ddpscale.run.records import GangRecord, RoundEnd, SeededSteps, StudyEnd, WorkloadFlops
from pytest_ddpscale.suites.paik_import import import_paik
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.builders.records import blocks_of
from tests.judge.nodes import measure_nodes
from tests.rows import rows
from tests.run.sound_run import (
    ARMS,
    FEWER,
    PER_NODE,
    PLAN,
    PROBES,
    RANKS,
    ROUNDS,
    STUDY,
    Change,
    Records,
    again,
    changed,
    read,
    refusal,
    without,
)

LAST_ARM = ARMS[-1]

TWO_LAUNCHES = replace(PLAN, studies=(STUDY, replace(STUDY, launch=2)), launches=2)


def is_ddp(block: Block) -> bool:
    return block.arm == LAST_ARM


def is_probe(block: Block) -> bool:
    return block.study == "probes"


def is_pair(block: Block) -> bool:
    return block.study == "pairs"


def is_trained(block: Block) -> bool:
    return block.study == STUDY.id


def steps(*changed_first: float) -> bytes:
    """Of the last arm: ten steps of four ranks, 0.4 s a rank, the first of them changed."""
    return step_bytes([*changed_first, *[0.04] * (10 * RANKS - len(changed_first))])


def test_a_sound_run_is_evidence(tmp_path: Path) -> None:
    evidence = read(tmp_path)
    assert evidence.errors == {}
    assert evidence.columns.devices == {f"GPU-{rank}" for rank in range(RANKS)}
    assert evidence.probes
    assert evidence.pairs
    assert len(evidence.transports) == RANKS
    assert evidence.telemetry


def test_published_results_are_evidence(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    thresholds = load_thresholds(root / "thresholds.yaml").thresholds
    published = import_paik(root / "tests" / "data" / "paik_a100_80gb", tmp_path / "a100", None, thresholds)
    evidence = read_evidence(published)
    assert sum(int(arm.present.sum()) for arm in evidence.columns.arms.values()) == 96
    assert evidence.errors == {}


class TestOneLine:
    @rows(
        ("change", "found"),
        [
            (again(Block, is_ddp), f"is another block 0 of weak/r, {LAST_ARM} than line"),
            (again(Block, is_ddp, seconds=1e-3, series={}), f"is another block 0 of weak/r, {LAST_ARM} than line"),
            (again(Block, is_probe, seconds=1e-3), "is another block 0 of probes, matmul-bf16 than line"),
            (again(RoundEnd), "is another round 0 of probes than line"),
            (again(Block, is_pair, seconds=1e-3), "is another block 0 of pairs, all-reduce-32mib@2 than line"),
            (again(SeededSteps, checksums="other"), "is another SeededSteps 0 of weak/r than line"),
            (again(WorkloadFlops, flops_per_sample=1.0), "is another WorkloadFlops 0 of weak/r than line"),
        ],
    )  # fmt: skip
    @rows("order", [1, -1])
    def test_tells_of_each_block(self, tmp_path: Path, change: Change, found: str, order: int) -> None:
        """Whichever of two comes first, neither counts."""
        assert found in refusal(tmp_path, lambda records: [records[0], *change(records)[1:][::order]])

    def test_may_stand_anywhere_behind_its_gang(self, tmp_path: Path) -> None:
        assert read(tmp_path, lambda records: [records[0], *records[:0:-1]]).errors == {}


class TestPlan:
    @rows(
        ("change", "found"),
        [
            (changed(Block, is_trained, study="weak/other"), "of weak/other, which plan.json does not plan"),
            (changed(Block, is_ddp, arm="ddp@64"), "has ddp@64 of weak/r, which plan.json does not plan"),
            (changed(Block, is_ddp, work=8.0), "has 8 images a step of weak/r, ddp@4, for which plan.json plans 4"),
            (changed(Block, is_probe, study="xx"), "has matmul-bf16 of xx, which plan.json does not plan"),
            (changed(Block, is_probe, arm="matmul-fp8"), "has matmul-fp8 of probes, which plan.json does not plan"),
            (changed(Block, is_pair, study="weak/r"), "has all-reduce-32mib@2 of weak/r, which plan.json does"),
            (
                lambda records: [*records, Unsupported(study="probes", arm="x", gang=0, ranks=(0,), reasons="")],
                "has x of probes, which plan.json does not plan",
            ),
            (
                lambda records: [*records, Unsupported(study=STUDY.id, arm=LAST_ARM, gang=0, ranks=(0,), reasons="")],
                f"has {LAST_ARM} of weak/r as unsupported, which only a probe can be",
            ),
            (changed(RoundEnd, arms=("x",)), "has x of probes, which plan.json does not plan"),
        ],
    )  # fmt: skip
    def test_knows_all_that_is_measured(self, tmp_path: Path, change: Change, found: str) -> None:
        assert found in refusal(tmp_path, change)

    def test_of_a_cpu_has_no_gpus(self, tmp_path: Path) -> None:
        found = "line 1 has ranks on 'GPU-0', but plan.json plans for cpu"
        assert found in refusal(tmp_path, plan=replace(PLAN, device_type="cpu"))

    def test_of_gpus_has_no_cpu(self, tmp_path: Path) -> None:
        change = changed(GangRecord, devices=("GPU-0", "GPU-1", "GPU-2", "cpu"))
        assert "line 1 has ranks on 'cpu', but plan.json plans for cuda" in refusal(tmp_path, change)


class TestSteps:
    @rows(
        ("changes", "found"),
        [
            ({"seconds": 0.38}, "has steps of 0.4 s in all (step_s) of rank 0 in a block of 0.38 s"),
            ({"seconds": 0.425}, "has steps of 0.4 s in all (step_s) of rank 0 in a block of 0.425 s"),
            ({"seconds": (0.4, 0.4, 0.4, 0.5)}, "has steps of 0.4 s in all (step_s) of rank 3 in a block of 0.5 s"),
            ({"series": {STEP_S: steps(1e30)}}, "has steps of 1e+30 s in all"),
            ({"series": {STEP_S: steps(-1.0)}}, "has a step of -1 s (step_s)"),
            ({"series": {STEP_S: steps(0.04, 0.0)}}, "has a step of 0 s (step_s)"),
            ({"series": {STEP_S: steps(float("nan"))}}, "has a step of nan s (step_s)"),
            ({"series": {}}, "has no step times (step_s)"),
        ],
    )
    def test_that_cannot_be_are_refused(self, tmp_path: Path, changes: dict[str, Any], found: str) -> None:
        sound = {"seconds": 0.4, "series": {STEP_S: steps()}}
        assert found in refusal(tmp_path, changed(Block, is_ddp, **sound | changes))

    @rows("seconds", [0.385, 0.42])
    def test_may_differ_from_their_block_by_less_than_a_twentieth(self, tmp_path: Path, seconds: float) -> None:
        assert read(tmp_path, changed(Block, is_ddp, seconds=seconds, series={STEP_S: steps()})).errors == {}


class TestLaunches:
    """Each with processes of its own."""

    def test_are_measured_by_gangs_of_their_own(self, tmp_path: Path) -> None:
        change = lambda records: _with_launch(records, gang=0)  # noqa: E731
        found = "has weak/r/launch-2, of launch 2, measured by gang 0, which measured launch 1"
        assert found in refusal(tmp_path, change, plan=TWO_LAUNCHES)

    def test_of_other_processes_and_times_are_evidence(self, tmp_path: Path) -> None:
        evidence = read(tmp_path, lambda records: _with_launch(records, gang=1), plan=TWO_LAUNCHES)
        assert evidence.errors == {}


class TestSeveralGangs:
    """A second gang may have other software or memory placement: rounds of both are not those of one measurement."""

    @rows("kind", [Block, SeededSteps])
    @rows("versions", [{}, {"torch": "2.6.0"}])
    def test_do_not_measure_one_study(self, tmp_path: Path, kind: type[Any], versions: dict[str, str]) -> None:
        def change(records: Records) -> Records:
            moved = changed(kind, lambda one: one.study == STUDY.id, gang=1)(records)
            return [records[0], altered(records[0], gang=1, versions=versions), *moved[1:]]

        assert re.search(f"has {STUDY.id} measured by gang [01], as well as by gang [01]", refusal(tmp_path, change))

    def test_may_measure_a_study_each(self, tmp_path: Path) -> None:
        def change(records: Records) -> Records:
            others = [altered(one, gang=1) if getattr(one, "study", "") == "pairs" and isinstance(one, Block) else one
                      for one in records[1:]]  # fmt: skip
            return [records[0], altered(records[0], gang=1), *others]

        assert read(tmp_path, change).errors == {}


class TestRounds:
    def test_that_leave_out_what_is_decided_are_fine(self, tmp_path: Path) -> None:
        assert read(tmp_path).timed_arms[STUDY.id][ROUNDS - 1] == set(FEWER)

    @rows(
        ("number", "arms", "found"),
        [
            (2, (), "times nothing after"),
            (2, FEWER, f"times {', '.join(sorted(FEWER))} after"),
            (ROUNDS - 1, ARMS, f"times {', '.join(sorted(ARMS))} after {', '.join(sorted(FEWER))}"),
            (ROUNDS - 1, FEWER[:1], "is a measurement of an arm that its round left out (line"),
        ],
    )
    def test_that_cannot_have_left_out_an_arm_are_refused(
        self, tmp_path: Path, number: int, arms: Sequence[str], found: str
    ) -> None:
        where = lambda end: end.study == STUDY.id and end.round == number  # noqa: E731
        assert found in refusal(tmp_path, changed(RoundEnd, where, arms=tuple(arms)))

    def test_that_ended_have_all_blocks_that_they_timed(self, tmp_path: Path) -> None:
        where = lambda one: is_ddp(one) and one.round == 2  # noqa: E731
        found = f"ends round 2 of weak/r, of which {LAST_ARM} was not recorded"
        assert found in refusal(tmp_path, without(Block, where))

    def test_that_did_not_end_may_lack_blocks(self, tmp_path: Path) -> None:
        assert read(tmp_path, died).errors[STUDY.id] == "died"


class TestRanks:
    @rows("study", [STUDY.id, "probes", "seeded"])
    @rows("rank", [0, RANKS - 1])
    def test_that_are_left_out_of_all_columns_are_missed(self, tmp_path: Path, study: str, rank: int) -> None:
        """A slow or a corrupt one would not be seen."""

        def left_out(records: Records) -> Records:
            return [
                _without_rank(one, rank)
                if isinstance(one, SeededSteps if study == "seeded" else Block) and study in ("seeded", one.study)
                else one
                for one in records
            ]

        assert f"lacks rank {rank} of" in refusal(tmp_path, left_out)

    def test_that_could_not_do_a_probe_are_not_missed(self, tmp_path: Path) -> None:
        def unable(records: Records) -> Records:
            said = Unsupported(study="probes", arm="matmul-bf16", gang=0, ranks=(1,), reasons="too old")
            others = [
                _without_rank(one, 1) if isinstance(one, Block) and one.arm == "matmul-bf16" else one for one in records
            ]
            return [records[0], said, *others[1:]]

        assert read(tmp_path, unable).unsupported == {"matmul-bf16": "n0: too old"}

    def test_that_run_out_of_memory_in_a_later_round_keep_what_they_measured(self, tmp_path: Path) -> None:
        def unable(records: Records) -> Records:
            said = Unsupported(study="probes", arm="matmul-bf16", gang=0, ranks=(1,), reasons="not enough memory")
            late = [isinstance(one, Block) and one.arm == "matmul-bf16" and one.round > 0 for one in records]
            others = [_without_rank(one, 1) if is_late else one for one, is_late in zip(records, late, strict=True)]
            return [*others, said]

        evidence = read(tmp_path, unable)
        assert evidence.unsupported == {"matmul-bf16": "n0: not enough memory"}
        [probed] = [one for one in evidence.probes if one.arm == "matmul-bf16"]
        assert 1 in probed.ranks.numbers

    def test_take_their_turn(self, tmp_path: Path) -> None:
        """Else a slow one could be passed over."""
        alone = next(arm.name for arm in STUDY.arms if arm.world_size == 1)

        def first_again(records: Records) -> Records:
            return [
                altered(one, ranks=(0, PER_NODE)) if isinstance(one, Block) and one.arm == alone else one
                for one in records
            ]

        assert "of alone of weak/r, in which it is rank 1's turn" in refusal(tmp_path, first_again)

    def test_that_have_to_agree_have_checksums(self, tmp_path: Path) -> None:
        found = "has a replica without a checksum (digests)"
        assert found in refusal(tmp_path, changed(Block, is_ddp, digests=f"{1:016x}" * 3 + NO_CHECKSUM))
        assert found in refusal(tmp_path / "all", changed(Block, is_ddp, digests=None))

    def test_that_lack_a_reading_say_why_in_the_evidence(self, tmp_path: Path) -> None:
        why = {"forward_s": ("", "no hooks", "no hooks", "")}
        (unread,) = read(tmp_path, changed(Block, is_ddp, unread=why)).unread
        assert unread == (STUDY.id, LAST_ARM, "forward_s", "n0", 1, "no hooks", 2)
        assert not read(tmp_path / "all").unread


class TestGroups:
    @rows(
        ("changes", "found"),
        [
            ({"groups": 0}, "has a group of 4 ranks of send-recv-256mib@2, which works in groups of 2"),
            ({"groups": (0, 0, 1, 2)}, "has a group of 1 ranks of send-recv-256mib@2"),
            ({"groups": (0, 1, 0, 1)}, "has ranks [0, 2] as a pair of send-recv-256mib@2"),
        ],
    )
    def test_of_probes_are_planned_pairs(self, tmp_path: Path, changes: dict[str, Any], found: str) -> None:
        assert found in refusal(tmp_path, changed(Block, lambda one: one.arm == "send-recv-256mib@2", **changes))

    @rows(
        ("groups", "found"),
        [
            (0, "has a group of 4 ranks of all-gather-32mib@2, which works in groups of 2"),
            ((0, 1, 0, 1), "has ranks [0, 2] in one group of all-gather-32mib@2"),
        ],
    )
    def test_of_collectives_are_those_of_a_node(self, tmp_path: Path, groups: Any, found: str) -> None:
        change = changed(Block, lambda one: one.arm == "all-gather-32mib@2", groups=groups)
        assert found in refusal(tmp_path, change)

    @rows(
        ("changes", "found"),
        [
            ({"groups": 0}, "has a group of 4 ranks of all-reduce-32mib@2, which works in groups of 2"),
            ({"groups": (0, 1, 1, 0)}, "has ranks [0, 3] as a pair of all-reduce-32mib@2"),
            ({"groups": (0, 1, 0, 1)}, "has ranks [0, 1] as a pair of all-reduce-32mib@2"),
        ],
    )
    def test_of_pairs_are_rails_between_nodes(self, tmp_path: Path, changes: dict[str, Any], found: str) -> None:
        assert found in refusal(tmp_path, changed(Block, is_pair, **changes))

    @rows("status", ["running", "imported"])
    def test_of_pairs_have_times_of_messages(self, tmp_path: Path, status: str) -> None:
        said = refusal(tmp_path, changed(Block, is_pair, series={}), run_json={"status": status})
        assert "has no times of messages (step_s) of all-reduce-32mib@2" in said

    def test_of_probes_say_whether_data_was_right(self, tmp_path: Path) -> None:
        """What a probe does not say of its data would count as right."""
        found = refusal(tmp_path, changed(Block, is_probe, readings={}))
        assert "has no reading is_correct of matmul-bf16" in found

    @rows("where", [is_pair, is_probe, is_ddp])
    def test_take_no_turns(self, tmp_path: Path, where: Callable[[Block], bool]) -> None:
        assert "whose groups take no turns" in refusal(tmp_path, changed(Block, where, turn=1))

    def test_of_pairs_are_there_once_in_a_round(self, tmp_path: Path) -> None:
        """A faster copy would count for the pair."""
        copy = again(Block, lambda one: one.arm == "send-recv-256mib@2", turn=7, seconds=1e-3)
        found = "has a pair of send-recv-256mib@2 that an earlier turn of round 0 has"
        assert found in refusal(tmp_path, copy)


class TestGangs:
    @rows(
        ("changes", "found"),
        [
            ({"devices": ("GPU-0", "GPU-1", "GPU-1", "GPU-3")}, "line 1 has rank 2 on GPU-1, as rank 1; expected"),
            ({"hosts": ("n0",) * 4, "local_ranks": (0, 1, 0, 1)}, "two ranks as local rank 0 of n0"),
            ({"hosts": ("n0",) * 4, "local_ranks": (0, 1, 2, 3)}, "has probes on 1 hosts, but plan.json plans for 2"),
            ({"hosts": ("n0", "n0", "n1", "n2"), "local_ranks": (0, 1, 0, 0)}, "not numbered node by node"),
            ({"hosts": ("n0", "n1", "n0", "n1"), "local_ranks": (0, 0, 1, 1)}, "not numbered node by node"),
            ({"local_ranks": (0, 1, 1, 0)}, "not numbered node by node"),
            ({"hosts": tuple("abcd"), "local_ranks": (0,) * 4}, "has ranks on 4 hosts, but plan.json plans for 2"),
        ],
    )  # fmt: skip
    def test_that_cannot_be_so_are_refused(self, tmp_path: Path, changes: dict[str, Any], found: str) -> None:
        assert found in refusal(tmp_path, changed(GangRecord, **changes))

    def test_larger_than_planned_are_refused(self, tmp_path: Path) -> None:
        def larger(records: Records) -> Records:
            devices = tuple(f"GPU-{rank}" for rank in range(6))
            who = GangRecord(gang=0, hosts=tuple("aabbcc"), local_ranks=(0, 1) * 3, devices=devices)
            return [who, *records[1:]]

        assert "line 1 has 6 ranks, but plan.json plans for 4" in refusal(tmp_path, larger)

    def test_of_several_hosts_on_one_node_are_refused(self, tmp_path: Path) -> None:
        plan = replace(PLAN, nodes=1, ranks_per_node=None, pairs=None)
        no_pairs = without(Block, is_pair)
        assert "line 1 has ranks on 2 hosts, but plan.json plans for 1" in refusal(tmp_path, no_pairs, plan)

    def test_of_fewer_nodes_measure_what_fits_one(self, tmp_path: Path) -> None:
        """The other node was lost."""
        plan = replace(PLAN, studies=(replace(STUDY, arms=tuple(_small(STUDY.arms))),), probes=None)
        names = [arm.name for arm in plan.studies[0].arms]

        def lost(records: Records) -> Records:
            small = [one for one in records[1:] if getattr(one, "study", "") == STUDY.id and hasattr(one, "round")]
            kept = [one for one in small if not isinstance(one, Block) or one.arm in names]
            return [_of_node_0(records[0]), *map(_of_node_0, kept)]

        assert read(tmp_path, lost, plan, is_watched=False).errors.keys() == {STUDY.id, "pairs"}


class TestTelemetry:
    """Of blocks that nobody measured it would vouch for GPUs that were not watched."""

    def test_of_a_block_that_a_kill_kept_from_being_written_is_left_out(self, tmp_path: Path) -> None:
        whole, without_last = read(tmp_path / "whole").telemetry, read(tmp_path, died).telemetry
        assert 0 < len(without_last) < len(whole)

    def test_of_a_block_that_was_not_measured_is_refused(self, tmp_path: Path) -> None:
        def cut(records: Records) -> Records:
            last = max(i for i, one in enumerate(records) if isinstance(one, Block) and is_trained(one))
            return [*records[:last], *records[last + 2 :]]

        assert "which was not measured" in refusal(tmp_path, cut)

    def test_of_another_time_is_refused(self, tmp_path: Path) -> None:
        moved = changed(Block, is_ddp, began_unix_s=1.0)
        assert "which was measured by other ranks or at another time" in refusal(tmp_path, moved)


def died(records: Records) -> Records:
    """Before the last block of training was written."""
    last = max(i for i, one in enumerate(records) if isinstance(one, Block) and is_trained(one))
    return [*records[:last], StudyEnd(study=STUDY.id, reason="error", message="died")]


def _without_rank(one: Any, rank: int) -> Any:
    """A record that one rank is left out of, column by column."""
    if rank not in one.ranks:
        return one
    keep = [place for place, other in enumerate(one.ranks) if other != rank]
    columns = {
        name: tuple(value[place] for place in keep)
        for name in one.__struct_fields__
        if isinstance(value := getattr(one, name), tuple | np.ndarray)
    }
    if isinstance(one, Block):
        columns["series"] = {name: one.of_steps(name)[keep].tobytes() for name in one.series}  # type: ignore[assignment]
    return altered(one, **columns)


def _with_launch(records: Records, gang: int) -> Records:
    """The same again as a second launch, measured by a gang of that number."""
    again_id = TWO_LAUNCHES.studies[1].id
    blocks = blocks_of(measure_nodes(replace(TWO_LAUNCHES, studies=TWO_LAUNCHES.studies[1:]), rounds=ROUNDS), gang)
    who = [altered(records[0], gang=gang)] if gang else []
    ends = [RoundEnd(study=again_id, round=number, arms=tuple(ARMS)) for number in range(ROUNDS)]
    seeded = [altered(one, study=again_id, gang=gang) for one in records if isinstance(one, SeededSteps)]
    return [*records, *who, *seeded, *blocks, *ends, StudyEnd(study=again_id, reason="decided")]


def _small(arms: Sequence[Arm]) -> list[Arm]:
    return [arm for arm in arms if arm.world_size <= PER_NODE]


def _of_node_0(one: Any) -> Any:
    if isinstance(one, GangRecord):
        return GangRecord(gang=0, hosts=one.hosts[:2], local_ranks=one.local_ranks[:2], devices=one.devices[:2])
    if isinstance(one, RoundEnd):
        return altered(one, arms=tuple(arm for arm in one.arms if arm in [small.name for small in _small(STUDY.arms)]))
    return _without_rank(_without_rank(one, 3), 2)


def test_probes_are_all_there(tmp_path: Path) -> None:
    assert {one.arm for one in read(tmp_path).probes} == {probe.name for probe in PROBES}
    assert FEWEST_ROUNDS < ROUNDS
