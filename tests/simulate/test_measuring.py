"""What a simulated run measures: as the judge wants it, and as the faults have it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.run.block import Block, read_steps
from pytest_ddpscale.run.record_lines import line_of
from pytest_ddpscale.run.records import RoundEnd, Sustained
from pytest_ddpscale.simulate.machine import DDP_OVERHEAD, NodeSpread, Noise
from pytest_ddpscale.simulate.measuring import Faults, Moment, SimulatedRun
from pytest_ddpscale.simulate.options import parse_faults
from pytest_ddpscale.simulate.writing import records
from pytest_ddpscale.util.arrays import FloatArray
from tests.builders.clusters import a100, faults, measured, quiet, weak_study
from tests.builders.measurements import Measurement, measurements_of

CLUSTER = a100()
NOISY, QUIET = CLUSTER.performance, quiet(CLUSTER)
EACH, DDP, WIDE = Arm("each", 8, 512), Arm("ddp", 8, 512), Arm("ddp", 16, 512)
BOTH = Study("weak", weak_study(EACH).workload, (EACH, DDP), 5, 0.0, 0.0)
TWO = replace(BOTH, arms=(DDP, WIDE))
START, LATER, END = Moment(0, 0, 0.0), Moment(3, 9, 0.5), Moment(9, 19, 1.0)
COPY, TO_DEVICE, LAYOUT = Arm("memory-copy"), Arm("host-to-device"), Layout(2, 8)


ALL, NODE_1 = range(16), range(8, 16)


@pytest.mark.parametrize(
    ("typed", "asked", "when", "of_ranks"),
    [
        ("", Faults.slowdown, END, {}),
        ("slow-gpu:3:1.1", Faults.slowdown, START, {3: 1.1}),
        ("slow-gpu:3:1.5 slow-gpu:3:2 slow-gpu:all:1.1", Faults.slowdown, END, dict.fromkeys(ALL, 1.1) | {3: 3.3}),
        ("ramp:3:1.2", Faults.slowdown, START, {}),
        ("ramp:3:1.2", Faults.slowdown, LATER, {3: 1.1}),
        ("ramp:all:1.2", Faults.slowdown, END, dict.fromkeys(ALL, 1.2)),
        ("step:3:1.1:4", Faults.slowdown, LATER, {}),
        ("step:3:1.1:4", Faults.slowdown, Moment(4, 10, 0.5), {3: 1.1}),
        ("step:3:1.1:4", Faults.slowdown, Moment(0, 12, 0.6), {}),
        ("at-times:3:1.2:4", Faults.slowdown, Moment(2, 2, 0.2), {}),
        ("at-times:3:1.2:4", Faults.slowdown, Moment(7, 7, 0.7), {3: 1.2}),
        ("throttle:1:1.2", Faults.slowdown, START, {}),
        ("throttle:1:1.2", Faults.slowdown, LATER, dict.fromkeys(NODE_1, 1.1900425863)),
        ("bad-gpu:3:clock bad-gpu:4:lanes", Faults.slowdown, START, {3: 1.3}),
        ("drift:4", Faults.slowdown, END, {}),
        ("slow-link:1:0.25 slow-link:1:0.5", Faults.left, "slow-link", dict.fromkeys(NODE_1, 0.25)),
        ("slow-link:0-1:0.25 slow-port:3:0.5", Faults.left, "slow-link", {}),
        ("slow-port:all:0.9 slow-port:3:0.5", Faults.left, "slow-port", dict.fromkeys(ALL, 0.9) | {3: 0.5}),
        ("lossy-link:1:0.25 lossy-link:1:0.5", Faults.arriving, None, dict.fromkeys(NODE_1, 0.5)),
        ("slow-probe:all:memory-copy:0.9 slow-probe:3:memory-copy:0.5", Faults.probe_share, COPY,
         dict.fromkeys(ALL, 0.9) | {3: 0.45}),
        ("slow-probe:3:memory-copy:0.5", Faults.probe_share, TO_DEVICE, {}),
        ("bad-gpu:3:lanes", Faults.probe_share, TO_DEVICE, {3: 0.25}),
        ("bad-gpu:3:lanes", Faults.probe_share, COPY, {}),
    ],
)  # fmt: skip
def test_a_fault_strikes_whom_it_names_when_it_says(
    typed: str, asked: Callable[..., FloatArray], when: object, of_ranks: dict[int, float]
) -> None:
    found = asked(Faults(parse_faults(typed.split(), LAYOUT), LAYOUT), *([] if when is None else [when]))
    assert found == pytest.approx([of_ranks.get(rank, 1.0) for rank in ALL])


def test_ranks_are_struck_from_the_round_of_their_fault_on() -> None:
    found = Faults(
        parse_faults(["missing-rank:3:2", "missing-rank:5", "bad-gpu:4:ecc", "bad-gpu:6:clock"], LAYOUT), LAYOUT
    )
    struck = [found.struck("missing-rank", number=number) for number in (0, 1, 2)] + [found.struck("bad-gpu", "ecc")]
    assert [np.flatnonzero(one).tolist() for one in struck] == [[], [5], [3, 5], [4]]


def mean_step_s(one: Measurement) -> float:
    return one.block_s / one.steps


def steps_of(*typed: str, study: Study = BOTH, **options: Any) -> dict[str, FloatArray]:
    """Mean step times without noise by arm, (rounds, ranks)."""
    found = measured(options.get("performance", QUIET), study, *typed)
    return {name: np.array([[mean_step_s(one) for one in told] for told in rounds]) for name, rounds in found.items()}


SOUND, SOUND_TWO = steps_of(), steps_of(study=TWO)


def test_every_arm_round_and_rank_of_the_plan_is_there_once_in_order_of_time() -> None:
    plan = CLUSTER.plan(rounds=FEWEST_ROUNDS)
    found = measurements_of(list(records(SimulatedRun(plan, NOISY, (), 0), CLUSTER)))
    expected = {
        (study.id, arm.name, number, rank, arm.batch_size)
        for study in plan.studies
        for arm in study.arms
        for number in range(FEWEST_ROUNDS)
        for rank in plan.layout.ranks([arm], study.turn(0, number))
    }
    assert {(r.study, r.arm, r.round, r.rank, r.batch_size) for r in found} == expected
    assert len(found) == len(expected)
    starts = [one.started_unix_s for one in found]
    assert starts == sorted(starts)
    assert starts[-1] > starts[0] + 60


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), block_s=st.floats(0.0, 5.0))
def test_blocks_are_what_their_steps_are(seed: int, block_s: float) -> None:
    study = Study("weak", BOTH.workload, BOTH.arms, 1, block_s, 0.0)
    for rounds in measured(NOISY, study, seed=seed).values():
        for one in rounds[0]:
            assert len(one.step_s) == one.steps >= 3
            assert sum(one.step_s) == pytest.approx(one.block_s, rel=1e-6)
            assert one.block_s >= 0.98 * block_s
            assert one.step_stdev_s == pytest.approx(statistics.stdev(one.step_s), abs=1e-7)


def test_without_noise_all_are_as_fast_as_published() -> None:
    one_gpu, study = 1189.5, replace(BOTH, arms=(Arm("ddp", 1, 512), EACH, DDP))  # under DDP, as the source trained it
    speeds = {name: 512 / step_s[0] for name, step_s in steps_of(study=study).items()}
    assert speeds["ddp@1"] == pytest.approx(one_gpu)
    assert speeds["each@8"] == pytest.approx([one_gpu * (1 + DDP_OVERHEAD)] * 8)
    assert speeds["ddp@8"] == pytest.approx([1167.5] * 8, rel=1e-3)


@pytest.mark.parametrize(
    ("typed", "alone", "together"),
    [
        ("slow-gpu:3:1.2", [1, 1, 1, 1.2, 1, 1, 1, 1], 1.2),
        ("slow-gpu:all:1.05", [1.05] * 8, 1.05),
        ("throttle:0:1.3", [1.22] * 8, 1.22),
        ("drift:10", [1.1] * 8, 1.1),
        ("step:3:1.1:2", [1, 1, 1, 1.1, 1, 1, 1, 1], 1.1),
        ("slow-pair:3:4:0.001 slow-port:3:0.001 lossy-link:0:1", [1] * 8, 1),
    ],
)
def test_a_slow_gpu_shows_itself_alone_and_slows_all_together(typed: str, alone: list[float], together: float) -> None:
    found = steps_of(*typed.split())
    assert found["each@8"][-1] / SOUND["each@8"][-1] == pytest.approx(alone, rel=2e-3)
    assert found["ddp@8"][-1] / SOUND["ddp@8"][-1] == pytest.approx([together] * 8, rel=0.01)
    if "step" in typed:
        assert found["each@8"][:2] == pytest.approx(SOUND["each@8"][:2])


@pytest.mark.parametrize(
    ("typed", "slowed"),
    [
        ("slow-link:1:0.001", {"ddp@16"}), ("slow-link:0-1:0.001", {"ddp@16"}), ("slow-port:9:0.001", {"ddp@16"}),
        ("slow-gpu-link:3:0.001", {"ddp@8", "ddp@16"}), ("lossy-link:1:1", {"ddp@16"}),
    ],
)  # fmt: skip
def test_slow_links_slow_only_arms_that_use_them(typed: str, slowed: set[str]) -> None:
    found = steps_of(typed, study=TWO)
    more = {name: float((found[name] - SOUND_TWO[name])[0, 0]) for name in found}
    assert {name for name in more if more[name] > SOUND_TWO[name][0, 0]} == slowed
    assert {more[name] for name in more.keys() - slowed} <= {0.0}
    if "lossy" in typed:  # each of the 11 all-reduces waits for a packet
        assert more["ddp@16"] == pytest.approx(0.2 * 11, rel=1e-3)


def test_a_ring_uses_the_links_of_neighbours_only() -> None:
    run = SimulatedRun(a100(32).plan(), QUIET, faults("slow-link:0-2:0.1", "slow-link:2-3:0.5", gpus=32), 0)
    groups = [range(32), [*range(16), *range(24, 32), *range(24, 32)], [*range(8), *range(16, 24)] * 2]
    assert run.links_left(np.array([list(group) for group in groups]))[:, 1].tolist() == [0.5, 1.0, 0.1]


def test_a_missing_rank_leaves_no_record_from_its_round_on() -> None:
    ranks = [[one.rank for one in told] for told in measured(NOISY, BOTH, "missing-rank:3:2")["ddp@8"]]
    assert ranks == [[*range(8)]] * 2 + [[0, 1, 2, 4, 5, 6, 7]] * 3


def test_a_corrupt_rank_has_other_parameters_under_ddp_and_nobody_else() -> None:
    found = measured(NOISY, BOTH, "corrupt-rank:5")
    for told in found["ddp@8"]:
        assert [one.rank for one in told if one.parameters_checksum != told[0].parameters_checksum] == [5]
    assert all(one.parameters_checksum is None for told in found["each@8"] for one in told)


def test_ranks_that_infer_wait_for_nobody_and_leave_no_replica_to_compare() -> None:
    (told, *_) = measured(QUIET, weak_study(Arm("infer", 8, 512)), "slow-gpu:3:1.5")["infer@8"]
    times = np.array([mean_step_s(one) for one in told])
    assert times / times[0] == pytest.approx([1, 1, 1, 1.5, 1, 1, 1, 1])
    assert {(one.parameters_checksum, one.peak_memory_bytes) for one in told} == {(None, None)}


def logs_of(arm: Arm, rounds: int = 600, **noise: float) -> FloatArray:
    """Logarithms of mean step times, (rounds, ranks), less their mean over the rounds."""
    performance = replace(QUIET, noise=Noise(0.01, 0.0, 0.0, 0.0, **noise))
    logs = np.log(steps_of(study=weak_study(arm, rounds=rounds), performance=performance)[arm.name])
    return np.asarray(logs - logs.mean(axis=0))


@pytest.mark.parametrize("arm", [Arm("alone", 1, 512), EACH, DDP], ids=lambda arm: arm.name)
@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_noise_is_as_large_as_asked_and_remembers_from_round_to_round(arm: Arm, correlation: float) -> None:
    logs = logs_of(arm, correlation=correlation)
    assert logs.std() == pytest.approx(0.01, rel=0.2)
    assert np.corrcoef(logs[:-1, 0], logs[1:, 0])[0, 1] == pytest.approx(correlation, abs=0.12)
    if arm == DDP:
        assert logs[:, 0] == pytest.approx(logs[:, 7])
    if arm == EACH and not correlation:
        assert abs(np.corrcoef(logs[:, 0], logs[:, 1])[0, 1]) < 0.15


def test_noise_within_a_block_leaves_ranks_of_ddp_together_and_the_mean_as_it_is() -> None:
    alone = steps_of(study=weak_study(Arm("alone", 1, 512), rounds=400), performance=NOISY)["alone"]
    assert alone.std() / alone.mean() == pytest.approx(0.003, rel=0.1)
    together = steps_of("slow-gpu:3:1.2", performance=NOISY)["ddp@8"]
    assert (together.max(axis=1) / together.min(axis=1)).max() < 1.001


def test_the_noise_of_an_arm_does_not_depend_on_what_else_is_measured() -> None:
    noisy = replace(QUIET, noise=Noise(0.01, 0.0, 0.0, 0.0))
    by_itself = steps_of(study=weak_study(EACH, BOTH.rounds), performance=noisy)["each@8"]
    assert by_itself == pytest.approx(steps_of(performance=noisy)["each@8"])


def test_arms_that_are_left_out_change_nothing() -> None:
    plan = Plan("a100-sxm4-80gb", "cuda", (BOTH,))
    both, one = ([*SimulatedRun(plan, NOISY, (), 0).measure_round(BOTH, 0, arms)] for arms in (BOTH.arms, (DDP,)))
    assert [line_of(record) for record in both if getattr(record, "arm", "") == "ddp@8"] == [line_of(one[0])]
    assert one[1:] == [RoundEnd(BOTH.id, 0, ("ddp@8",))]


def test_the_wait_for_the_slowest_gpu_comes_on_top_of_what_is_published() -> None:
    nodes = [replace(QUIET, spread=NodeSpread(gpu_sd=0.01, seed=seed)) for seed in range(200)]
    slowed = [steps_of(study=weak_study(DDP, 1), performance=one)["ddp@8"][0, 0] for one in nodes]
    # The mean of the largest of eight normal values is 1.42 standard deviations.
    assert statistics.fmean(1 / one for one in slowed) == pytest.approx(1 / 1.0142 / SOUND["ddp@8"][0, 0], rel=1e-3)


def test_hot_gpus_are_slower_in_one_stretch_than_in_rounds_by_what_they_rest() -> None:
    cluster = a100(8, heat=0.1)
    plan = cluster.plan(rounds=FEWEST_ROUNDS)
    study = next(one for one in plan.studies if one.stretched)
    run = SimulatedRun(plan, quiet(cluster), (), 1)
    told = [*run.before_rounds(study), *run.measure_round(study, 0, study.arms)]
    [first, *others] = next(one.ranks for one in told if isinstance(one, Sustained))
    steps_s = read_steps(first.step_s)
    in_rounds = next(
        one for one in told if isinstance(one, Block) and study.stretched and one.arm == study.stretched.name
    )
    of_rounds_s = float((in_rounds.each("seconds") / in_rounds.each("count"))[0])
    assert steps_s.sum() == pytest.approx(study.sustained_s, rel=0.1)
    assert steps_s[-1] / of_rounds_s == pytest.approx(1.1 / 1.044, rel=0.003)
    assert steps_s[0] / of_rounds_s == pytest.approx(1 / 1.044, rel=0.003)
    assert [one.step_s for one in others] == [b""] * 7


def test_forward_passes_show_the_own_pace_of_a_rank_with_noise_of_their_own() -> None:
    (together,) = measured(QUIET, weak_study(DDP, 1), "slow-gpu:3:1.2")["ddp@8"]
    own = np.array([one.forward_s for one in together])
    assert own / own[0] == pytest.approx([1, 1, 1, 1.2, 1, 1, 1, 1])
    rounds = measured(replace(QUIET, noise=Noise(0.01, 0.0, 0.0, 0.0)), weak_study(DDP, 200))["ddp@8"]
    logs = np.log([[one.forward_s or 0.0 for one in told] for told in rounds])
    assert logs.std(axis=0) == pytest.approx([0.01] * 8, rel=0.2)
    steps = np.log([mean_step_s(told[0]) for told in rounds])
    assert np.abs(np.corrcoef([*logs.T, steps]) - np.eye(9)).max() < 0.3


def test_utilization_and_energy_are_the_published_ones() -> None:
    found = [one for told in measured(NOISY, BOTH)["ddp@8"] for one in told]
    assert 0.9745 <= min(one.utilization or 0.0 for one in found) < 0.976
    assert max(one.utilization or 0.0 for one in found) <= 1.0
    joules = [one.batch_size * one.steps / (one.energy_j or 1e-9) for one in found]
    assert statistics.fmean(joules) == pytest.approx(2.964, rel=0.01)


PAIRS, MATMUL = Arm("send-recv-256mib", 8), Arm("matmul-fp16")
PROBED = (PAIRS, Arm("all-reduce-32mib", 8), Arm("all-reduce-1gib", 16), TO_DEVICE, MATMUL)
PROBES = ProbeStudy(PROBED, 8, 0.5)
PAIRS_OF_3 = [(min(3, one), max(3, one)) for one in range(8) if one != 3]


def speeds(*typed: str) -> dict[str, dict[tuple[int, ...], float]]:
    """Work per second of the slowest rank of each place of a probe, on 16 GPUs without noise."""
    plan = Plan("a100", "cuda", (), nodes=2, ranks_per_node=8, probes=PROBES)
    performance = replace(quiet(a100(16)), probes=dict.fromkeys(PROBED, 20.0))
    run = SimulatedRun(plan, performance, parse_faults(typed, LAYOUT), 0)
    found: dict[str, dict[tuple[int, ...], float]] = {probe.name: {} for probe in PROBED}
    for block in run.measure_round(PROBES, 0, PROBED):
        if not isinstance(block, Block):
            continue
        ranks = block.each("ranks")
        groups = ranks if "@" not in block.arm else block.each("groups")
        for group in np.unique(groups):
            members = groups == group
            found[block.arm][tuple(ranks[members].tolist())] = float(block.per_second[members].min())
    return found


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        ("slow-pair:3:5:0.5", {"send-recv-256mib@8": {(3, 5): 0.5}}),
        # Collectives of two nodes need 20 of its 240 GB/s.
        ("slow-gpu-link:3:0.5", {
            "send-recv-256mib@8": dict.fromkeys(PAIRS_OF_3, 0.5),
            "all-reduce-32mib@8": {tuple(range(8)): 0.5},
        }),
        ("slow-gpu-link:3:0.05", {
            "send-recv-256mib@8": dict.fromkeys(PAIRS_OF_3, 0.05),
            "all-reduce-32mib@8": {tuple(range(8)): 0.05}, "all-reduce-1gib@16": {tuple(range(16)): 0.6},
        }),
        ("slow-port:3:0.5", {"all-reduce-1gib@16": {tuple(range(16)): 0.5}}),
        ("slow-gpu:3:1.25", {MATMUL.name: {(3,): 0.8}}),
        ("slow-probe:all:host-to-device:0.9 slow-probe:3:host-to-device:0.5",
         {"host-to-device": {(rank,): 0.45 if rank == 3 else 0.9 for rank in range(16)}}),
    ],
)  # fmt: skip
def test_a_fault_slows_the_probes_that_use_what_is_slow(
    typed: str, left: dict[str, dict[tuple[int, ...], float]]
) -> None:
    sound, faulty = speeds(), speeds(*typed.split())
    shares = {name: {at: faulty[name][at] / speed for at, speed in of.items()} for name, of in sound.items()}
    slower = {name: {at: round(share, 3) for at, share in of.items() if share < 0.999} for name, of in shares.items()}
    assert {name: of for name, of in slower.items() if of} == left


def test_without_a_rank_its_pairs_are_not_measured() -> None:
    pairs = set(speeds()[PAIRS.name])
    assert set(speeds("missing-rank:3:0")[PAIRS.name]) == pairs - set(PAIRS_OF_3)
