"""What accidents make of a run is refused with its line: copied, mixed, cut and joined files, shared GPUs, clocks."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.block import NO_CHECKSUM, step_bytes
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.suites.paik_import import import_paik
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.rows import rows
from tests.run.sound_run import (
    ARMS,
    GPUS,
    PER_NODE,
    PLAN,
    ROUNDS,
    STUDY,
    Change,
    Lines,
    absent,
    after,
    again,
    changed,
    is_line,
    lines_of,
    more,
    plan_of,
    read,
    refusal,
    unable,
    without,
)  # fmt: skip

LAUNCHED = replace(STUDY, arms=STUDY.arms[2:], launch=2)  # arms in which no ranks take turns
TWO_LAUNCHES = replace(PLAN, studies=(STUDY, LAUNCHED), launches=2)
ONE_NODE = replace(PLAN, nodes=1, ranks_per_node=None, pairs=None)
LAST = f"round_end weak/resnet152-fp16 {ROUNDS - 1}"
TURNS = "timed send-recv-256mib@3 0"  # of three GPUs on a node
REDUCE, GATHER = "all-reduce-32mib@2", "all-gather-8gib@2"  # of pairs of nodes, of ranks of a node


def steps(*first: float) -> dict[str, str]:
    """Of ``ddp@2``: five steps of four ranks, 0.4 s a rank, the first of them changed."""
    return {"step_s": base64.b64encode(step_bytes([*first, *[0.08] * (5 * GPUS - len(first))])).decode()}


def gang(text: str) -> Change:
    """Ranks in other places: ``host local_rank gpu, …``."""
    places = [dict(zip(("host", "local_rank", "uuid"), one.split(), strict=True)) for one in text.split(", ")]
    return changed("gang", ranks=[{"place": place | {"local_rank": int(place["local_rank"])}} for place in places])


def moved(words: str) -> Change:
    """The first such line is by a gang that came later."""
    return after(changed(words, gang=1), lambda lines: more(*second_gang(lines))(lines))


def second_gang(lines: Lines) -> Lines:
    return [line | {"gang": 1} for line in lines if line["kind"] == "gang"]


def launched_again(lines: Lines) -> Lines:
    """The study again as another launch, measured by the same gang."""
    changes: dict[str, Any] = {"study": LAUNCHED.id, "arms": ARMS[2:]}
    anew = [
        line | {name: value for name, value in changes.items() if name in line}
        for line in lines
        if line.get("study") == STUDY.id and line.get("arm") not in ARMS[:2]
    ]
    return [*lines, *anew]


COPIED = {
    again("timed alone 0", began_unix_s=1.0): "is another block 0 of weak/resnet152-fp16, alone than line",
    again("round_end probes 0"): "is another round 0 of probes than line",
    again("seeded_step"): "is another seeded step 0 of weak/resnet152-fp16 than line",
    again("flops", flops_per_sample=1.0): "is another count of operations 0 of weak/resnet152-fp16 than line",
}
REFUSED = COPIED | {
    (lambda lines: [*lines, *lines]): "a second gang 0",  # joined files
    (lambda lines: [{"kind": "run", "id": "another"}, *lines]): "not begin with the id in run.json: it is of another",
    # Mixed: of other plans, gangs and launches.
    changed("timed ddp@2", study="weak/other"): "has ddp@2 of weak/other, which plan.json does not plan",
    changed("timed ddp@2", arm="ddp@64"): "has ddp@64 of weak/resnet152-fp16, which plan.json does not plan",
    changed("timed ddp@2", work=8.0): "has 8 images a step of weak/resnet152-fp16, ddp@2, but plan.json plans for 512",
    changed("timed matmul-bf16", arm="matmul-fp8"): "has matmul-fp8 of probes, which plan.json does not plan",
    unable("probes", "x", 0): "has x of probes, which plan.json does not plan",
    changed("round_end", arms=["x"]): "has x of probes, which plan.json does not plan",
    moved("timed alone 1"): "has weak/resnet152-fp16 measured by gang 1, as well as by gang 0",
    # Steps that a broken clock timed.
    changed("timed ddp@2", seconds=0.38, series=steps()): "steps (step_s) of 0.08 s and more, 0.4 s in all, of rank",
    changed("timed ddp@2", seconds=0.425, series=steps()): "of rank 0 in a block of 0.425 s",
    changed("timed ddp@2", seconds=0.4, series=steps(-0.08, 0.24)): "steps (step_s) of -0.08 s and more",
    changed("timed ddp@2", seconds=0.4, series=steps(float("nan"))): "nan s in all",
    changed("timed ddp@2", seconds=0.4, series=steps(1e30)): "1e+30 s in all",
    changed("timed ddp@2", series={}): "has no step times (step_s) of ddp@2",
    changed("timed pairs", series={}): f"has no step times (step_s) of {REDUCE}",
    # Cut: arms, turns and ranks that are missing, one of which could be slow or wrong.
    changed("round_end weak/resnet152-fp16 2", arms=ARMS[:-1]): "left out before round 8: no_sync@2",
    changed(LAST, arms=ARMS[:-1]): "ends round 9 of weak/resnet152-fp16, measured all the same: no_",
    without("telemetry ddp@2 2"): "ends round 2 of weak/resnet152-fp16, without telemetry: ddp@2",
    without("timed ddp@2 2"): "ends round 2 of weak/resnet152-fp16, not recorded: ddp@2",
    absent("timed matmul-bf16 0", 0): "lacks rank 0 of matmul-bf16 of probes, round 0",
    after(unable("probes", "matmul-bf16", 1), absent("timed matmul-bf16", 0)): "lacks rank 0 of matmul-bf16",
    after(unable("probes", GATHER, 3), absent(f"timed {GATHER}", 0, 1)): "lacks rank 0, 1 of all-gather-8gib@2",
    after(unable(STUDY.id, "ddp@2", 3), without("timed ddp@2 2")): "resnet152-fp16, not recorded: ddp@2",
    absent("seeded_step", 0): "lacks rank 0 of the seeded step of weak/resnet152-fp16",
    changed("timed ddp@2", digests=f"{1:016x}" * 3 + NO_CHECKSUM): "has a replica without a checksum (digests)",
    # Groups that are not planned, whose speed would count for others, or hide a slow rank.
    changed("timed alone", ranks=[0, 2]): "has ranks 0 as a group of alone of weak/resnet152-fp16, round 0, but",
    changed("timed send-recv-256mib@2", groups=0): "has ranks 0, 1, 2 and 1 more as a group of send-recv-256mib@2",
    changed("timed send-recv-256mib@2", groups=[0, 0, 1, 2]): "has ranks 3 as a group of send-recv-256mib@2",
    changed(f"timed {GATHER}", groups=[0, 1, 0, 1]): "probes, round 0, but plan.json plans for ranks 0, 1",
    changed("timed pairs", groups=0): f"has ranks 0, 2, 1 and 1 more as a pair of {REDUCE}",
    changed("timed pairs", groups=[0, 1, 1, 0]): f"has ranks 0, 3 as a pair of {REDUCE}",
    changed("timed pairs", groups=[0, 1, 2, 2]): f"has ranks 0 as a pair of {REDUCE}",
    again("timed pairs", turn=1): f"is turn 1 of {REDUCE}",
    again("timed send-recv-256mib@2", turn=7, seconds=1e-3): "is turn 7 of send-recv",
    # Gangs that share GPUs or names, or are not those of the plan.
    gang("n0 0 GPU-0, n0 1 GPU-1, n1 0 GPU-1, n1 1 GPU-3"): "has rank 2 on GPU-1, as rank 1; expected a separate",
    gang("n0 0 GPU-0, n0 1 GPU-1, n1 0 GPU-2, n1 1 cpu"): "has ranks on 'cpu', but plan.json plans for cuda",
    gang("n0 0 GPU-0, n0 1 GPU-1, n0 0 GPU-2, n0 1 GPU-3"): "as rank 0; expected a unique name for",
    gang("n0 0 GPU-0, n0 1 GPU-1, n0 2 GPU-2, n0 3 GPU-3"): "has probes on 1 hosts, but plan.json plans for 2",
    gang("n0 0 GPU-0, n0 1 GPU-1, n0 2 GPU-2, n1 0 GPU-3"): "not numbered node by node",
    gang("n0 0 GPU-0, n0 1 GPU-1, n1 1 GPU-2, n1 0 GPU-3"): "not numbered node by node",
    gang("a 0 GPU-0, b 0 GPU-1, c 0 GPU-2, d 0 GPU-3"): "has 4 ranks on 4 hosts, but plan.json plans for 4 on 2",
    gang("a 0 GPU-0, a 1 GPU-1, b 0 GPU-2, b 1 GPU-3, b 2 GPU-4"): "has 5 ranks on 2 hosts, but plan.json plans for 4",
    # Telemetry that would vouch for GPUs that were not watched.
    after(without("study_end weak/resnet152-fp16"), again("telemetry ddp@2", arm="ddp@64")): "which was not measured",
    again("telemetry ddp@2"): "is another telemetry 0 of weak/resnet152-fp16, ddp@2 than line",
    moved("telemetry ddp@2"): "which was measured by other ranks or at another time",
    after(without("timed no_sync@2 9"), without(LAST)): "round 9, which was not measured",
    changed("timed ddp@2", began_unix_s=1.0): "which was measured by other ranks or at another time",
}  # fmt: skip


@rows(("change", "found"), REFUSED.items())
def test_what_accidents_make_of_a_run_is_refused(tmp_path: Path, change: Change, found: str) -> None:
    assert found in refusal(tmp_path, change)


@rows(("change", "found"), COPIED.items())
def test_the_first_of_two_does_not_count_either(tmp_path: Path, change: Change, found: str) -> None:
    assert found in refusal(tmp_path, lambda lines: [*lines[:3], *change(lines)[:2:-1]])


@rows(
    ("change", "plan", "found"),
    [
        (list, replace(PLAN, device_type="cpu"), "has ranks on 'GPU-0', but plan.json plans for cpu"),
        (launched_again, TWO_LAUNCHES, "of launch 2, by gang 0, which measured launch 1"),
        (list, ONE_NODE, "has 4 ranks on 2 hosts, but plan.json plans for 4 on 1"),
    ],
)
def test_a_run_of_another_plan_is_refused(tmp_path: Path, change: Change, plan: Plan, found: str) -> None:
    assert found in refusal(tmp_path, change, plan)


@rows(
    ("change", "found"),
    [
        (without(f"{TURNS} turn-1"), "ends round 0 of probes, not recorded: send-recv-256mib@3"),
        (
            changed(f"{TURNS} turn-1", ranks=[0, 1]),
            "has ranks 0, 1 as a group of send-recv-256mib@3 of probes",
        ),
        (again(f"{TURNS} turn-1", turn=3), "is turn 3 of send-recv-256mib@3, whose groups take 3 in a round"),
    ],
)
def test_pairs_of_ranks_take_their_turns(tmp_path: Path, change: Change, found: str) -> None:
    """A faster copy would count for the pair."""
    assert read(tmp_path, plan=plan_of(3)).probes
    assert found in refusal(tmp_path, change, plan_of(3))


def test_a_run_killed_between_turns_is_evidence(tmp_path: Path) -> None:
    """Telemetry of all turns of a round is written before them."""
    evidence = read(tmp_path, lambda lines: lines[: lines.index(next(one for one in lines if is_line(one, TURNS))) + 1],
                    plan_of(3))  # fmt: skip
    assert "probes" in evidence.errors


ACCEPTED = {
    "backwards": lambda lines: [*lines[:3], *lines[:2:-1]],
    "steps are longer than their block by less than a twentieth": changed("timed ddp@2", seconds=0.385, series=steps()),
    "or shorter": changed("timed ddp@2", seconds=0.42, series=steps()),
    "groups are numbered anew": changed(f"timed {GATHER}", groups=[3, 3, 7, 7]),
    "another gang measures another study": moved("timed pairs"),
    "an old GPU": after(absent("timed matmul-bf16", 1), unable("probes", "matmul-bf16", 1)),
    "an old GPU in a later round": after(
        *(absent(f"timed matmul-bf16 {number}", 1) for number in range(1, ROUNDS)), unable("probes", "matmul-bf16", 1)
    ),
    "a rank without memory, for which its node waits in vain": after(
        absent(f"timed {GATHER}", 2, 3), unable("probes", GATHER, 3)
    ),
    "an arm is left out once it is decided": after(without(f"timed {ARMS[-1]} 9"), changed(LAST, arms=ARMS[:-1])),
}  # fmt: skip


@rows("change", ACCEPTED.values(), ACCEPTED)
def test_what_may_be_so_is_evidence(tmp_path: Path, change: Change) -> None:
    assert read(tmp_path, change, is_watched=False).errors == {}


def test_a_sound_run_is_evidence(tmp_path: Path) -> None:
    evidence = read(tmp_path)
    assert evidence.errors == {}
    assert evidence.timed_arms[STUDY.id][ROUNDS - 1] == set(ARMS)
    assert evidence.columns.devices == {f"GPU-{rank}" for rank in range(GPUS)}
    assert {one.arm for one in evidence.probes} == {arm.name for study in PLAN.timed[:1] for arm in study.arms}
    assert list(evidence.columns.of_study("pairs"))
    assert len(evidence.transports) == GPUS
    assert evidence.telemetry
    assert not evidence.unread


def test_published_results_are_evidence(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    thresholds = load_thresholds(root / "thresholds.yaml").thresholds
    published = import_paik(root / "tests" / "data" / "paik_a100_80gb", tmp_path / "a100", None, thresholds)
    evidence = read_evidence(published)
    assert sum(int(arm.present.sum()) for arm in evidence.columns.arms.values()) == 96
    assert evidence.errors == {}


def test_imported_pairs_have_times_of_messages_too(tmp_path: Path) -> None:
    said = refusal(tmp_path, changed("timed pairs", series={}), status="imported")
    assert f"has no step times (step_s) of {REDUCE}" in said


def test_a_gang_of_fewer_nodes_measures_what_fits_one(tmp_path: Path) -> None:
    """The other node was lost."""
    left = [line for line in lines_of(PER_NODE) if is_line(line, "gang") or line.get("study") == STUDY.id]
    assert read(tmp_path, lambda _: left, replace(PLAN, probes=None)).errors.keys() == {"pairs"}
