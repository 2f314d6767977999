"""What accidents make of a run is refused with its line: copied, mixed, cut and joined files, shared GPUs, clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace as altered

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.run.block import NO_CHECKSUM, Block, Unsupported, step_bytes
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.readings import STEP_S
from pytest_ddpscale.run.records import GangRecord, RoundEnd, SeededSteps, StudyEnd, WorkloadFlops
from pytest_ddpscale.suites.paik_import import import_paik
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.builders.records import blocks_of, gang_at, gang_on
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

DDP = ARMS[-1]
TWO_LAUNCHES = replace(PLAN, studies=(STUDY, replace(STUDY, launch=2)), launches=2)
ONE_NODE = replace(PLAN, nodes=1, ranks_per_node=None, pairs=None)


def block(arm: str, /, **changes: Any) -> Change:
    """Changes the first block of an arm."""
    return changed(Block, lambda one: one.arm == arm, **changes)


def twice(kind: type[Any], study: str, **changes: Any) -> Change:
    return again(kind, lambda one: one.study == study, **changes)


def end(number: int, *arms: str) -> Change:
    return changed(RoundEnd, lambda one: (one.study, one.round) == (STUDY.id, number), arms=arms)


def gang(text: str) -> Change:
    """Ranks in other places: ``host local_rank gpu``, … ."""
    places = [one.split() for one in text.split(", ")]
    ranks = gang_at([Place(host, int(local), gpu, int(local)) for host, local, gpu in places]).ranks
    return changed(GangRecord, ranks=ranks)


def unable(study: str, arm: str, *ranks: int) -> Unsupported:
    return Unsupported(study=study, arm=arm, gang=0, ranks=ranks or (0,), reasons="too old")


def absent(rank: int, kind: type[Any], arm: str = "", earliest: int = 0) -> Change:
    """Leaves a rank out of the columns of all records of a kind, of one arm if it is named."""

    def is_so(one: Any) -> bool:
        return isinstance(one, kind) and (not arm or (one.arm == arm and one.round >= earliest))

    return lambda records: [without_rank(one, rank) if is_so(one) else one for one in records]


def without_rank(one: Any, rank: int) -> Any:
    if isinstance(one, SeededSteps):
        return altered(one, ranks=tuple(step for step in one.ranks if step.rank != rank))
    if rank not in one.ranks:
        return one
    keep = [place for place, other in enumerate(one.ranks) if other != rank]
    columns: dict[str, Any] = {
        name: tuple(value[place] for place in keep)
        for name in one.__struct_fields__
        if isinstance(value := getattr(one, name), tuple | np.ndarray)
    }
    if isinstance(one, Block):
        columns["series"] = {name: one.each(name)[keep].tobytes() for name in one.series}
    return altered(one, **columns)


def after(*changes: Change) -> Change:
    """All these changes, one after the other."""

    def change(records: Records) -> Records:
        for one in changes:
            records = one(records)
        return records

    return change


def more(*records: Any) -> Change:
    return lambda sound: [sound[0], *records, *sound[1:]]


def by_gang_1(study: str) -> Change:
    """The first block of a study is by a gang that came later."""
    moved = changed(Block, lambda one: one.study == study, gang=1)
    return lambda records: more(altered(records[0], gang=1))(moved(records))


def second_launch(number: int) -> Change:
    """The same study again as another launch, measured by a gang of that number."""
    study = TWO_LAUNCHES.studies[1]
    blocks = blocks_of(measure_nodes(replace(TWO_LAUNCHES, studies=(study,)), rounds=ROUNDS), number)
    ends = [RoundEnd(study=study.id, round=round_, arms=tuple(ARMS)) for round_ in range(ROUNDS)]

    def change(records: Records) -> Records:
        who = [altered(records[0], gang=number)] if number else []
        seeded = [altered(one, study=study.id, gang=number) for one in records if isinstance(one, SeededSteps)]
        return [*records, *who, *seeded, *blocks, *ends, StudyEnd(study=study.id, reason="decided")]

    return change


def last_block(records: Records) -> int:
    return max(i for i, one in enumerate(records) if isinstance(one, Block) and one.study == STUDY.id)


def died(records: Records) -> Records:
    """Before the last block of training was written."""
    return [*records[: last_block(records)], StudyEnd(study=STUDY.id, reason="error", message="died")]


def cut(records: Records) -> Records:
    """Without the last block of training and the end of its round."""
    return [*records[: last_block(records)], *records[last_block(records) + 2 :]]


def steps(*first: float) -> dict[str, bytes]:
    """Of the last arm: ten steps of four ranks, 0.4 s a rank, the first of them changed."""
    return {STEP_S: step_bytes([*first, *[0.04] * (10 * RANKS - len(first))])}


COPIED = [
    (twice(Block, STUDY.id, seconds=1e-3, series={}), "is another block 0 of weak/r, alone than line"),
    (twice(RoundEnd, "probes"), "is another round 0 of probes than line"),
    (twice(SeededSteps, STUDY.id), "is another SeededSteps 0 of weak/r than line"),
    (twice(WorkloadFlops, STUDY.id, flops_per_sample=1.0), "is another WorkloadFlops 0 of weak/r than line"),
]  # fmt: skip
REFUSED = [
    *COPIED,
    (lambda records: [*records, *records], "a second gang 0"),  # joined files
    # Mixed: of other plans, gangs and launches.
    (block(DDP, study="weak/other"), "has ddp@4 of weak/other, which plan.json does not plan"),
    (block(DDP, arm="ddp@64"), "has ddp@64 of weak/r, which plan.json does not plan"),
    (block(DDP, work=8.0), "has 8 images a step of weak/r, ddp@4, for which plan.json plans 4"),
    (block("matmul-bf16", arm="matmul-fp8"), "has matmul-fp8 of probes, which plan.json does not plan"),
    (more(unable("probes", "x")), "has x of probes, which plan.json does not plan"),
    (more(unable(STUDY.id, DDP)), "has ddp@4 of weak/r as unsupported, which only a probe can be"),
    (changed(RoundEnd, arms=("x",)), "has x of probes, which plan.json does not plan"),
    (by_gang_1(STUDY.id), "has weak/r measured by gang 1, as well as by gang 0"),
    # Steps that a broken clock timed.
    (block(DDP, seconds=0.38, series=steps()), "has steps of 0.4 s in all (step_s) of rank 0 in a block of 0.38 s"),
    (block(DDP, seconds=0.425, series=steps()), "has steps of 0.4 s in all (step_s) of rank 0 in a block of 0.425 s"),
    (block(DDP, seconds=0.4, series=steps(-1.0)), "has a step of -1 s (step_s)"),
    (block(DDP, seconds=0.4, series=steps(float("nan"))), "has a step of nan s (step_s)"),
    (block(DDP, seconds=0.4, series=steps(1e30)), "has steps of 1e+30 s in all"),
    (block(DDP, series={}), "has no step times (step_s)"),
    (block("all-reduce-32mib@2", series={}), "has no times of messages (step_s) of all-reduce-32mib@2"),
    # Cut: arms, turns, ranks and readings that are missing, one of which could be slow or wrong.
    (end(2), "times nothing after"),
    (end(2, *FEWER), f"times {', '.join(sorted(FEWER))} after"),
    (end(ROUNDS - 1, *ARMS), f"times {', '.join(sorted(ARMS))} after {', '.join(sorted(FEWER))}"),
    (end(ROUNDS - 1, FEWER[0]), f"ends round {ROUNDS - 1} of weak/r without "),
    (without(Block, lambda one: (one.arm, one.round) == (DDP, 2)), "ends round 2 of weak/r, of which ddp@4 was not"),
    (absent(0, Block), "lacks rank 0 of matmul-bf16 of probes, round 0"),
    (after(more(unable("probes", "matmul-bf16", 1)), absent(0, Block, "matmul-bf16")), "lacks rank 0 of matmul-bf16"),
    (absent(RANKS - 1, Block, DDP), "lacks rank 3 of ddp@4 of weak/r, round 0"),
    (absent(0, SeededSteps), "lacks rank 0 of the seeded step of weak/r"),
    (block(DDP, digests=f"{1:016x}" * 3 + NO_CHECKSUM), "has a replica without a checksum (digests)"),
    (block("matmul-bf16", readings={}), "has no reading is_correct of matmul-bf16"),  # else all were right
    # Groups that are not planned, whose speed would count for others, or hide a slow rank.
    (block("alone", ranks=(1, 3)), "has ranks 1 as a group of alone of weak/r, round 0, where plan.json has none"),
    (block("send-recv-256mib@2", groups=0), "has ranks 0, 1, 2, 3 as a group of send-recv-256mib@2 of probes, round 0"),
    (block("send-recv-256mib@2", groups=(0, 0, 1, 2)), "has ranks 3 as a group of send-recv-256mib@2 of probes, round"),
    (block("all-gather-32mib@2", groups=(0, 1, 0, 1)), "probes, round 0, where plan.json has ranks 0, 1"),
    (block("all-reduce-32mib@2", groups=0), "has ranks 0, 2, 1, 3 as a pair of all-reduce-32mib@2"),
    (block("all-reduce-32mib@2", groups=(0, 1, 1, 0)), "has ranks 0, 3 as a pair of all-reduce-32mib@2"),
    (twice(Block, "pairs", turn=1), "is turn 1 of all-reduce-32mib@2"),
    (again(Block, lambda one: one.arm == "send-recv-256mib@2", turn=7, seconds=1e-3), "is turn 7 of send-recv"),
    # Gangs that share GPUs or names, or are not those of the plan.
    (gang("n0 0 GPU-0, n0 1 GPU-1, n1 0 GPU-1, n1 1 GPU-3"), "line 1 has rank 2 on GPU-1, as rank 1; expected a"),
    (gang("n0 0 GPU-0, n0 1 GPU-1, n1 0 GPU-2, n1 1 cpu"), "line 1 has ranks on 'cpu', but plan.json plans for cuda"),
    (
        gang("n0 0 GPU-0, n0 1 GPU-1, n0 0 GPU-2, n0 1 GPU-3"),
        "two ranks as local rank 0 of n0, on different nodes; expected a unique name for every",
    ),
    (gang("n0 0 GPU-0, n0 1 GPU-1, n0 2 GPU-2, n0 3 GPU-3"), "has probes on 1 hosts, but plan.json plans for 2"),
    (gang("n0 0 GPU-0, n0 1 GPU-1, n1 0 GPU-2, n2 0 GPU-3"), "not numbered node by node"),
    (gang("n0 0 GPU-0, n0 1 GPU-1, n1 1 GPU-2, n1 0 GPU-3"), "not numbered node by node"),
    (gang("a 0 GPU-0, b 0 GPU-1, c 0 GPU-2, d 0 GPU-3"), "has ranks on 4 hosts, but plan.json plans for 2"),
    (changed(GangRecord, ranks=gang_on("abc", 2, "GPU-{}").ranks), "line 1 has 6 ranks, but plan.json plans for 4"),
    # Telemetry that would vouch for GPUs that were not watched.
    (cut, "which was not measured"),
    (block(DDP, began_unix_s=1.0), "which was measured by other ranks or at another time"),
]  # fmt: skip


@rows(("change", "found"), REFUSED)
def test_what_accidents_make_of_a_run_is_refused(tmp_path: Path, change: Change, found: str) -> None:
    assert found in refusal(tmp_path, change)


@rows(("change", "found"), COPIED)
def test_the_first_of_two_does_not_count_either(tmp_path: Path, change: Change, found: str) -> None:
    assert found in refusal(tmp_path, lambda records: [records[0], *change(records)[:0:-1]])


@rows(
    ("change", "plan", "found"),
    [
        (list, replace(PLAN, device_type="cpu"), "line 1 has ranks on 'GPU-0', but plan.json plans for cpu"),
        (without(Block, lambda one: one.study == "pairs"), ONE_NODE, "line 1 has ranks on 2 hosts, but plan.json"),
        (second_launch(0), TWO_LAUNCHES, "of launch 2, measured by gang 0, which measured launch 1"),
    ],
)  # fmt: skip
def test_a_run_of_another_plan_is_refused(tmp_path: Path, change: Change, plan: Any, found: str) -> None:
    assert found in refusal(tmp_path, change, plan)


@rows(
    ("turns", "found"),
    [
        ((0, 1, 2), ""),
        ((0, 2), "ends round 0 of probes, of which send-recv-256mib@3 was not recorded"),
        ((0, 0, 2), "has ranks 1, 2 as a group of send-recv-256mib@3 of probes, round 0, where plan.json has none"),
    ],
)  # fmt: skip
def test_pairs_of_ranks_take_their_turns(tmp_path: Path, turns: Sequence[int], found: str) -> None:
    """A faster copy would count for the pair."""
    probe = Arm("send-recv-256mib", 3)
    plan = Plan("a100", "cuda", (), probes=ProbeStudy((probe,), 1, 0.5))
    pairs = [pair for turn in turns for pair in plan.layout.groups(probe, turn)]
    records: list[Any] = [gang_on(["n0"], 3, "GPU-{}"), RoundEnd(study="probes", round=0, arms=(probe.name,))]
    for turn, pair in zip((0, 1, 2) if len(turns) == 3 else turns, pairs, strict=True):
        records.append(
            Block(study="probes", arm=probe.name, round=0, turn=turn, gang=0, ranks=pair, count=1, work=1.0,
                  began_unix_s=1.7e9, seconds=0.1, readings={"is_correct": True})
        )  # fmt: skip
    if found:
        assert found in refusal(tmp_path, lambda sound: records, plan, is_watched=False)
    else:
        assert len(read(tmp_path, lambda sound: records, plan, is_watched=False).probes) == 1


ACCEPTED = {
    "backwards": lambda records: [records[0], *records[:0:-1]],
    "steps differ from their block by less than a twentieth": block(DDP, seconds=0.385, series=steps()),
    "or are longer than it": block(DDP, seconds=0.42, series=steps()),
    "groups are numbered anew": block("all-gather-32mib@2", groups=(3, 3, 7, 7)),
    "another gang measures another study": by_gang_1("pairs"),
    "an old GPU": after(absent(1, Block, "matmul-bf16"), more(unable("probes", "matmul-bf16", 1))),
    "a rank without memory, for which its node waits in vain": after(
        *(absent(rank, Block, "all-gather-32mib@2") for rank in (2, 3)), more(unable("probes", "all-gather-32mib@2", 3))
    ),
}  # fmt: skip


@rows("change", ACCEPTED.values(), ACCEPTED)
def test_what_may_be_so_is_evidence(tmp_path: Path, change: Change) -> None:
    assert read(tmp_path, change).errors == {}


def test_a_sound_run_is_evidence(tmp_path: Path) -> None:
    """Its last rounds leave out what is decided."""
    evidence = read(tmp_path)
    assert evidence.errors == {}
    assert evidence.timed_arms[STUDY.id][ROUNDS - 1] == set(FEWER)
    assert evidence.columns.devices == {f"GPU-{rank}" for rank in range(RANKS)}
    assert {one.arm for one in evidence.probes} == {probe.name for probe in PROBES}
    assert evidence.pairs
    assert len(evidence.transports) == RANKS
    assert evidence.telemetry


def test_launches_of_other_processes_are_evidence(tmp_path: Path) -> None:
    assert read(tmp_path, second_launch(1), plan=TWO_LAUNCHES).errors == {}


def test_published_results_are_evidence(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    thresholds = load_thresholds(root / "thresholds.yaml").thresholds
    published = import_paik(root / "tests" / "data" / "paik_a100_80gb", tmp_path / "a100", None, thresholds)
    evidence = read_evidence(published)
    assert sum(int(arm.present.sum()) for arm in evidence.columns.arms.values()) == 96
    assert evidence.errors == {}


def test_imported_pairs_have_times_of_messages_too(tmp_path: Path) -> None:
    said = refusal(tmp_path, block("all-reduce-32mib@2", series={}), run_json={"status": "imported"})
    assert "has no times of messages (step_s) of all-reduce-32mib@2" in said


def test_ranks_that_run_out_of_memory_in_a_later_round_keep_what_they_measured(tmp_path: Path) -> None:
    late = after(absent(1, Block, "matmul-bf16", 1), more(unable("probes", "matmul-bf16", 1)))
    evidence = read(tmp_path, late)
    assert evidence.unsupported == {"matmul-bf16": "n0: too old"}
    [probed] = [one for one in evidence.probes if one.arm == "matmul-bf16"]
    assert 1 in probed.ranks.numbers


def test_ranks_that_lack_a_reading_say_why(tmp_path: Path) -> None:
    why = {"forward_s": ("", "no hooks", "no hooks", "")}
    assert read(tmp_path, block(DDP, unread=why)).unread == [(STUDY.id, DDP, "forward_s", "n0", 1, "no hooks", 2)]
    assert not read(tmp_path / "all").unread


def test_a_killed_run_lacks_blocks_of_its_last_round_and_their_telemetry(tmp_path: Path) -> None:
    whole, cut_short = read(tmp_path / "whole"), read(tmp_path, died)
    assert cut_short.errors[STUDY.id] == "died"
    assert 0 < len(cut_short.telemetry) < len(whole.telemetry)


def test_a_gang_of_fewer_nodes_measures_what_fits_one(tmp_path: Path) -> None:
    """The other node was lost."""
    arms = tuple(arm for arm in STUDY.arms if arm.world_size <= PER_NODE)
    plan = replace(PLAN, studies=(replace(STUDY, arms=arms),), probes=None)
    names = tuple(arm.name for arm in arms)

    def lost(records: Records) -> Records:
        who: Any = records[0]
        kept = [one for one in records if isinstance(one, Block) and one.arm in names]
        ends = [altered(one, arms=names) for one in records if isinstance(one, RoundEnd) and one.study == STUDY.id]
        left = altered(who, ranks=who.ranks[:2])
        return [left, *(without_rank(without_rank(one, 3), 2) for one in kept), *ends]

    assert read(tmp_path, lost, plan, is_watched=False).errors.keys() == {STUDY.id, "pairs"}
