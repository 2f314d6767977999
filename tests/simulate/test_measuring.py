"""What a simulated run measures: as the judge wants it, and as the faults have it."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.evidence import evidence_of
from pytest_ddpscale.run.record_lines import AnyRecord, line_of
from pytest_ddpscale.run.records import (
    GangRecord,
    GangTransport,
    RoundEnd,
    SeededSteps,
    StudyEnd,
    StudyStart,
    WorkloadFlops,
)
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.performance import FloatArray, Noise
from pytest_ddpscale.simulate.simulated_nodes import gang_of
from pytest_ddpscale.simulate.sound_machine import DDP_OVERHEAD
from pytest_ddpscale.simulate.spread import NodeSpread
from pytest_ddpscale.simulate.writing import records as records_of
from tests.builders.clusters import a100, faults, measured, quiet, weak_study
from tests.builders.measurements import Measurement, measurements_of

CLUSTER = a100()
NOISY, QUIET = CLUSTER.performance, quiet(CLUSTER)
EACH, DDP = Arm("each", 8, 512), Arm("ddp", 8, 512)
BOTH = Study("weak", weak_study(EACH).workload, (EACH, DDP), 5, 0.0, 0.0)


def records(plan: Plan, seed: int = 0, *texts: str) -> list[AnyRecord]:
    return list(records_of(SimulatedRun(plan, NOISY, faults(*texts), seed), CLUSTER))


def mean_step_s(one: Measurement) -> float:
    return one.block_s / one.steps


def test_the_same_seed_gives_the_same_records_and_another_one_others() -> None:
    plan = CLUSTER.plan(rounds=FEWEST_ROUNDS)
    first, again, other = (list(map(line_of, records(plan, seed))) for seed in (7, 7, 8))
    assert first == again != other


def test_every_arm_round_and_rank_of_the_plan_is_there_once() -> None:
    plan = CLUSTER.plan(rounds=FEWEST_ROUNDS)
    found = measurements_of(records(plan))
    expected = {
        (study.id, arm.name, number, rank, arm.batch_size)
        for study in plan.studies
        for arm in study.arms
        for number in range(FEWEST_ROUNDS)
        for rank in plan.layout.ranks([arm], study.turn(0, number))
    }
    assert {(r.study, r.arm, r.round, r.rank, r.batch_size) for r in found} == expected
    assert len(found) == len(expected)


def test_records_come_in_the_order_of_a_real_run() -> None:
    kinds = [type(r) for r in records(CLUSTER.plan(rounds=FEWEST_ROUNDS))]
    without_repeats = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    one_study = [StudyStart, SeededSteps, WorkloadFlops, *[Block, RoundEnd] * FEWEST_ROUNDS, StudyEnd]
    of_probes = [StudyStart, *[Block, RoundEnd] * FEWEST_ROUNDS, StudyEnd]
    assert without_repeats == [Survey, GangRecord, *of_probes, *one_study * 2, GangTransport]  # weak and strong


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


def test_time_goes_on_from_block_to_block() -> None:
    starts = [one.started_unix_s for one in measurements_of(records(CLUSTER.plan(rounds=FEWEST_ROUNDS)))]
    assert starts == sorted(starts)
    assert starts[-1] > starts[0] + 60


def test_without_noise_all_are_as_fast_as_published() -> None:
    one_gpu = 1189.5  # under DDP, as the source trained it
    found = measured(QUIET, replace(BOTH, arms=(Arm("ddp", 1, 512), EACH, DDP)))
    assert all(one.throughput_samples_per_s == pytest.approx(one_gpu) for one in found["ddp@1"][0])
    assert all(
        one.throughput_samples_per_s == pytest.approx(one_gpu * (1 + DDP_OVERHEAD)) for one in found["each@8"][0]
    )
    assert all(one.throughput_samples_per_s == pytest.approx(1167.5, rel=1e-3) for one in found["ddp@8"][0])


def test_a_slow_gpu_shows_itself_alone_and_slows_all_together() -> None:
    found = measured(QUIET, BOTH, "slow-gpu:3:1.2")
    own = [mean_step_s(one) for one in found["each@8"][0]]
    assert own[3] == pytest.approx(1.2 * own[0])
    assert own[:3] + own[4:] == pytest.approx([own[0]] * 7)
    together = [mean_step_s(one) for one in found["ddp@8"][0]]
    sound = mean_step_s(measured(QUIET, BOTH)["ddp@8"][0][0])
    assert together == pytest.approx([together[0]] * 8)
    assert together[0] == pytest.approx(1.2 * sound, rel=0.01)


def test_under_ddp_ranks_differ_by_less_than_a_thousandth() -> None:
    for told in measured(NOISY, BOTH, "slow-gpu:3:1.2")["ddp@8"]:
        times = [mean_step_s(one) for one in told]
        assert max(times) / min(times) < 1.001


def test_a_throttling_node_gets_slower_from_round_to_round() -> None:
    first, *_, last = measured(QUIET, BOTH, "throttle:0:1.3")["each@8"]
    assert mean_step_s(last[0]) > 1.1 * mean_step_s(first[0])


def test_drift_strikes_all_arms() -> None:
    for rounds in measured(QUIET, BOTH, "drift:10").values():
        assert mean_step_s(rounds[-1][0]) == pytest.approx(1.1 * mean_step_s(rounds[0][0]), rel=1e-3)


def test_a_missing_rank_leaves_no_record_from_its_round_on() -> None:
    ranks = [[one.rank for one in told] for told in measured(NOISY, BOTH, "missing-rank:3:2")["ddp@8"]]
    assert ranks[:2] == [list(range(8))] * 2
    assert ranks[2:] == [[0, 1, 2, 4, 5, 6, 7]] * 3


def test_a_corrupt_rank_has_other_checksums_and_nobody_else() -> None:
    plan = Plan("a100-sxm4-80gb", "cuda", (BOTH,))
    found = records(plan, 0, "corrupt-rank:5")
    (steps,) = evidence_of(plan, Columns(), found).seeded_steps.values()
    seeded = {one.rank: one.checksum for one in steps.values()}
    assert [rank for rank in range(8) if seeded[rank] != seeded[0]] == [5]
    for number in range(BOTH.rounds):
        block = [one for one in measurements_of(found) if (one.arm, one.round) == ("ddp@8", number)]
        trained = {one.rank: one.parameters_checksum for one in block}
        assert [rank for rank in range(8) if trained[rank] != trained[0]] == [5]


def test_only_ddp_has_checksums_of_parameters() -> None:
    found = measured(NOISY, BOTH)
    assert all(one.parameters_checksum is None for told in found["each@8"] for one in told)
    assert all(len(one.parameters_checksum or "") == 16 for told in found["ddp@8"] for one in told)


def test_ranks_that_infer_wait_for_nobody_and_leave_no_replica_to_compare() -> None:
    found = measured(QUIET, weak_study(Arm("infer", 8, 512)), "slow-gpu:3:1.5")["infer@8"]
    for told in found:
        times = [mean_step_s(one) for one in told]
        assert times[3] == pytest.approx(1.5 * times[0])
        assert [times[0]] * 7 == pytest.approx(times[:3] + times[4:])
        assert {(one.parameters_checksum, one.peak_memory_bytes) for one in told} == {(None, None)}


def test_a_slow_link_slows_only_arms_that_use_it() -> None:
    pair, sixteen = Arm("ddp", 8, 512), Arm("ddp", 16, 512)
    study = Study("weak", BOTH.workload, (pair, sixteen), 1, 0.0, 0.0)
    sound, faulty = measured(QUIET, study), measured(QUIET, study, "slow-link:1:0.001")
    assert mean_step_s(faulty["ddp@8"][0][0]) == mean_step_s(sound["ddp@8"][0][0])
    assert mean_step_s(faulty["ddp@16"][0][0]) > 2 * mean_step_s(sound["ddp@16"][0][0])


def test_a_ring_uses_the_links_of_neighbours_only() -> None:
    plan = a100(32).plan(world_sizes=(32,))
    run = SimulatedRun(plan, QUIET, faults("slow-link:0-2:0.1", "slow-link:2-3:0.5", gpus=32), 0)
    groups = [range(32), [*range(16), *range(24, 32), *range(24, 32)], [*range(8), *range(16, 24)] * 2]
    assert run.links_left(np.array([list(group) for group in groups]))[:, 1].tolist() == [0.5, 1.0, 0.1]


def test_a_slow_port_or_link_of_one_gpu_slows_only_arms_that_use_it() -> None:
    eight, sixteen = Arm("ddp", 8, 512), Arm("ddp", 16, 512)
    study = Study("weak", BOTH.workload, (eight, sixteen), 1, 0.0, 0.0)
    sound = {name: mean_step_s(rounds[0][0]) for name, rounds in measured(QUIET, study).items()}
    for fault, slowed in (("slow-port:9:0.001", {"ddp@16"}), ("slow-gpu-link:3:0.001", {"ddp@8", "ddp@16"})):
        found = {name: mean_step_s(rounds[0][0]) for name, rounds in measured(QUIET, study, fault).items()}
        assert {name for name in sound if found[name] > 2 * sound[name]} == slowed
    assert measured(QUIET, study, "slow-pair:3:4:0.001") == measured(QUIET, study)


def test_lost_packets_delay_only_messages_between_nodes() -> None:
    eight, sixteen = Arm("ddp", 8, 512), Arm("ddp", 16, 512)
    study = Study("weak", BOTH.workload, (eight, sixteen), 5, 0.0, 0.0)
    sound, faulty = measured(QUIET, study), measured(QUIET, study, "lossy-link:1:1")
    assert mean_step_s(faulty["ddp@8"][0][0]) == mean_step_s(sound["ddp@8"][0][0])
    messages = QUIET.messages_per_step(BOTH.workload)
    waited_s = mean_step_s(faulty["ddp@16"][0][0]) - mean_step_s(sound["ddp@16"][0][0])
    assert waited_s == pytest.approx(0.2 * messages, rel=1e-3)


def test_the_mean_of_a_block_varies_as_much_as_it_is_said_to() -> None:
    alone = weak_study(Arm("alone", 1, 512), rounds=400)
    times = [mean_step_s(told[0]) for told in measured(NOISY, alone)["alone"]]
    assert statistics.stdev(times) / statistics.fmean(times) == pytest.approx(0.003, rel=0.15)


def test_all_gpus_alike_slow_are_slow_alone_and_together() -> None:
    sound, slow = measured(QUIET, BOTH), measured(QUIET, BOTH, "slow-gpu:all:1.05")
    for name in ("each@8", "ddp@8"):
        ratios = [
            mean_step_s(one) / mean_step_s(other) for one, other in zip(slow[name][0], sound[name][0], strict=True)
        ]
        assert ratios == pytest.approx([1.05] * 8, rel=2e-3)


def test_a_step_changes_its_rank_in_its_round_and_no_other() -> None:
    rounds = measured(QUIET, BOTH, "step:3:1.1:2")["each@8"]
    own = np.array([[mean_step_s(one) for one in told] for told in rounds])
    expected = np.ones(own.shape)
    expected[2:, 3] = 1.1
    assert own / own[0, 0] == pytest.approx(expected)


def logs_of(arm: Arm, rounds: int = 600, **noise: float) -> FloatArray:
    """Logarithms of mean step times, (rounds, ranks), less their mean over the rounds."""
    performance = replace(QUIET, noise=Noise(0.01, 0.0, 0.0, 0.0, **noise))
    found = measured(performance, weak_study(arm, rounds=rounds))[arm.name]
    logs = np.log([[mean_step_s(one) for one in told] for told in found])
    return np.asarray(logs - logs.mean(axis=0))


@pytest.mark.parametrize("arm", [Arm("alone", 1, 512), EACH, DDP], ids=lambda arm: arm.name)
@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_noise_remembers_from_round_to_round_of_an_arm(arm: Arm, correlation: float) -> None:
    logs = logs_of(arm, correlation=correlation)
    assert logs.std() == pytest.approx(0.01, rel=0.2)
    assert np.corrcoef(logs[:-1, 0], logs[1:, 0])[0, 1] == pytest.approx(correlation, abs=0.12)


def test_ranks_that_wait_for_nobody_have_noise_of_their_own_and_a_group_has_one() -> None:
    own, together = logs_of(EACH), logs_of(DDP)
    assert abs(np.corrcoef(own[:, 0], own[:, 1])[0, 1]) < 0.15
    assert together[:, 0] == pytest.approx(together[:, 7])


def test_some_blocks_take_up_to_ten_standard_deviations_longer() -> None:
    logs = logs_of(EACH, rounds=200, hiccup_share=0.05)
    assert 0.02 < (logs > 0.04).mean() < 0.05
    assert 0.07 < logs.max() < 0.14
    assert logs.min() > -0.06


def test_the_noise_of_an_arm_does_not_depend_on_what_else_is_measured() -> None:
    noisy = replace(QUIET, noise=Noise(0.01, 0.0, 0.0, 0.0))
    by_itself, among_others = measured(noisy, weak_study(EACH, BOTH.rounds)), measured(noisy, BOTH)
    for one, other in zip(by_itself["each@8"], among_others["each@8"], strict=True):
        assert [mean_step_s(each) for each in one] == pytest.approx([mean_step_s(each) for each in other])


def test_the_wait_for_the_slowest_gpu_comes_on_top_of_what_is_published() -> None:
    spread = replace(QUIET, spread=NodeSpread(gpu_sd=0.01))
    nodes = [measured(spread.of_cluster(seed), weak_study(DDP, 1))["ddp@8"][0][0] for seed in range(200)]
    alike = measured(QUIET, weak_study(DDP, 1))["ddp@8"][0][0].throughput_samples_per_s
    # The mean of the largest of eight normal values is 1.42 standard deviations.
    assert statistics.fmean(one.throughput_samples_per_s for one in nodes) == pytest.approx(alike / 1.0142, rel=1e-3)


def test_forward_passes_show_the_own_pace_of_a_rank_that_others_wait_for() -> None:
    (together,) = measured(QUIET, weak_study(DDP, 1), "slow-gpu:3:1.2")["ddp@8"]
    own = [one.forward_s or 0.0 for one in together]
    assert own[3] == pytest.approx(1.2 * own[0])
    assert [mean_step_s(one) for one in together] == pytest.approx([mean_step_s(together[0])] * 8)


def test_forward_passes_have_noise_of_their_own_on_each_rank() -> None:
    noisy = replace(QUIET, noise=Noise(0.01, 0.0, 0.0, 0.0))
    rounds = measured(noisy, weak_study(DDP, 200))["ddp@8"]
    own = np.log([[one.forward_s or 0.0 for one in told] for told in rounds])
    assert own.std(axis=0) == pytest.approx([0.01] * 8, rel=0.2)
    steps = np.log([mean_step_s(told[0]) for told in rounds])
    assert np.abs(np.corrcoef([*own.T, steps]) - np.eye(9)).max() < 0.3


def test_utilization_is_a_share_whose_least_is_the_published_one() -> None:
    found = [one.utilization or 0.0 for told in measured(NOISY, BOTH)["ddp@8"] for one in told]
    assert 0.9745 <= min(found) < 0.976
    assert max(found) <= 1.0


def test_energy_gives_the_published_images_per_joule() -> None:
    joules = [(one, one.energy_j) for told in measured(NOISY, BOTH)["ddp@8"] for one in told]
    found = [one.batch_size * one.steps / energy_j for one, energy_j in joules if energy_j is not None]
    assert len(found) == len(joules)
    assert statistics.fmean(found) == pytest.approx(2.964, rel=0.01)


def test_ranks_are_where_torchrun_would_put_them() -> None:
    sixteen = measured(NOISY, weak_study(Arm("each", 16, 512), rounds=1))["each@16"][0]
    assert (sixteen[0].host, sixteen[0].local_rank) == ("simulated-0", 0)
    assert (sixteen[9].host, sixteen[9].local_rank, sixteen[9].device) == ("simulated-1", 1, "SIM-9")
    assert len({one.device for one in sixteen}) == 16


def test_devices_of_a_cpu_run_are_called_cpu() -> None:
    assert gang_of(Plan("cpu", "cpu", (BOTH,))).places[3].uuid == "cpu"


def test_the_packaged_thresholds_are_all_simulated() -> None:
    cluster = a100(workloads=None)
    plan = cluster.plan(rounds=FEWEST_ROUNDS, short_blocks=True)
    found = records_of(SimulatedRun(plan, cluster.performance, faults(), 0), cluster)
    assert sum(isinstance(record, StudyEnd) for record in found) == len(plan.study_ids) > 8
