"""Probes and surveys in a plan: which ranks they take, what they cost, and how they survive a file."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.estimate import (
    OVERHEAD_PER_BLOCK_S,
    PROBE_SETUP_S,
    STARTUP_S,
    SURVEY_S,
    TYPICAL_ROUNDS,
    estimate,
    study_times,
)
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.pairing import PairStudy
from pytest_ddpscale.plan.planner import PROBE_BLOCKS_S, Pace, Question, build_plan, load_probes
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.strict_json import read_as
from tests.builders.json_types import as_json
from tests.rows import rows

WORKLOAD = Workload("r", ImageFamily("resnet18"), "fp32", 8, global_batch_size=16)
PACE = Pace(rounds=6, block_s=1.5, warmup_s=2.0)
EMPTY = Plan("a100", "cuda", ())
MATMUL, MEMORY = Arm("matmul-fp16"), Arm("memory-copy")
STUDY = ProbeStudy((MATMUL, Arm("all-reduce-32mib", 4)), 16, 0.5)
PROBES = st.builds(Arm, st.sampled_from(["matmul-bf16", "memory-copy", "host-to-device"])) | st.builds(
    Arm, st.sampled_from(["all-reduce-32mib", "all-gather-1gib", "send-recv-256kib"]), st.integers(2, 64)
)
PROBE_STUDIES = st.builds(
    ProbeStudy, st.lists(PROBES, max_size=4, unique=True).map(tuple), st.integers(1, 20), st.floats(0.1, 10)
)


def all_reduce(world_size: int) -> Arm:
    return Arm("all-reduce-32mib", world_size)


def trained(world_size: int) -> Question:
    return Question(METRICS["weak_scaling_efficiency"], WORKLOAD, world_size)


def plan_for(
    *probes: Arm,
    questions: tuple[Question, ...] = (),
    nodes: int = 1,
    survey: bool = False,
    device_type: DeviceType = "cuda",
) -> Plan:
    return build_plan(
        Plan("a100", device_type, (), nodes=nodes, ranks_per_node=8, survey=survey), questions, PACE, probes
    )


class TestRanks:
    @rows("nodes", [1, 3])
    @rows(("probes", "survey"), [((MATMUL,), False), ((), True), ((all_reduce(4),), True)])
    def test_every_gpu_of_a_node_is_there_where_it_is_probed_or_looked_at(
        self, nodes: int, probes: tuple[Arm, ...], survey: bool
    ) -> None:
        plan = plan_for(*probes, questions=(trained(2),), nodes=nodes, survey=survey)
        assert (plan.layout.ranks_per_node, plan.world_size) == (8, 8 * nodes)

    @rows("nodes", [1, 3])
    @rows(
        ("probes", "world_size"), [((MATMUL,), 2), ((all_reduce(4),), 4), ((MATMUL, all_reduce(2), all_reduce(6)), 6)]
    )
    def test_on_cpus_as_many_as_anything_needs(self, nodes: int, probes: tuple[Arm, ...], world_size: int) -> None:
        plan = plan_for(*probes, questions=(trained(2),), nodes=nodes, survey=True, device_type="cpu")
        assert (plan.layout.ranks_per_node, plan.world_size) == (world_size, world_size * nodes)

    def test_only_what_is_trained_takes_no_more_gpus_than_it_needs(self) -> None:
        assert plan_for(questions=(trained(2),)).world_size == 2
        assert plan_for(questions=(trained(2),), nodes=3).world_size == 6

    def test_one_gpu_alone_is_probed_where_a_machine_has_no_more(self) -> None:
        plan = build_plan(Plan("a100", "cuda", (), ranks_per_node=1), (), PACE, [MATMUL])
        assert plan.world_size == 1

    def test_where_the_number_of_gpus_is_unknown_it_is_that_of_the_largest_probe(self) -> None:
        assert build_plan(Plan("a100", "cuda", (), survey=True), (), PACE, [MATMUL, all_reduce(8)]).world_size == 8

    def test_a_probe_beyond_a_node_takes_all_of_them_on_cpus_too(self) -> None:
        plan = plan_for(all_reduce(12), nodes=2, device_type="cpu")
        assert (plan.layout.ranks_per_node, plan.world_size) == (8, 16)

    @rows(("nodes", "world_size"), [(1, 9), (2, 17)])
    def test_a_probe_that_needs_more_than_there_are_is_refused(self, nodes: int, world_size: int) -> None:
        with pytest.raises(ValueError, match=rf"{nodes} x 8 ranks needs {world_size}"):
            plan_for(all_reduce(world_size), nodes=nodes)

    def test_nothing_is_launched_for_a_survey_alone(self) -> None:
        plan = plan_for(survey=True)
        assert (plan.study_ids, plan.world_size) == ((), 0)
        assert plan.layout.ranks_per_node == 8, "what the node has to have"


class TestProbes:
    def test_are_one_study_that_comes_first(self) -> None:
        plan = plan_for(MATMUL, MEMORY, questions=(trained(2),))
        assert plan.probes == ProbeStudy((MATMUL, MEMORY), PACE.rounds, PROBE_BLOCKS_S["cuda"])
        assert plan.study_ids == ("probes", "weak/r")

    def test_that_several_requirements_ask_for_are_there_once_and_in_order(self) -> None:
        plan = plan_for(MEMORY, MATMUL, MEMORY, all_reduce(8), MATMUL)
        assert plan.probes is not None
        assert plan.probes.arms == (MEMORY, MATMUL, all_reduce(8))

    def test_that_nobody_asks_for_are_none(self) -> None:
        assert plan_for(questions=(trained(2),)).probes is None

    def test_are_shorter_on_a_cpu(self) -> None:
        cpu = plan_for(MATMUL, device_type="cpu").probes
        assert cpu is not None
        assert cpu.block_s == PROBE_BLOCKS_S["cpu"] < PROBE_BLOCKS_S["cuda"]

    @rows(("world_size", "fits"), [(8, True), (9, False)])
    def test_fit_nodes_if_the_largest_does(self, world_size: int, fits: bool) -> None:
        assert plan_for(MATMUL, all_reduce(world_size), nodes=2).fits_nodes("probes") is fits

    @rows(
        ("device_type", "ranks", "names"),
        [
            ("cuda", 8, ["matmul-fp16", "all-reduce-32mib@8"]),
            ("cuda", 1, ["matmul-fp16"]),
            ("cpu", 2, ["matmul-fp32", "all-reduce-32mib@2"]),
            ("cpu", 1, ["matmul-fp32"]),
        ],
    )
    def test_of_load_use_devices_and_links(self, device_type: DeviceType, ranks: int, names: list[str]) -> None:
        assert [probe.name for probe in load_probes(device_type, ranks)] == names


class TestFile:
    @given(st.none() | PROBE_STUDIES, st.booleans(), st.none() | st.just(PairStudy((Arm("all-reduce-4kib", 2),), 5)))
    def test_a_plan_survives_json(self, probes: ProbeStudy | None, survey: bool, pairs: PairStudy | None) -> None:
        plan = Plan("a100", "cuda", (), 3, 2, 64, pairs=pairs, probes=probes, survey=survey)
        assert read_as(Plan, as_json(plan)) == plan


class TestJoined:
    def test_a_plan_keeps_its_probes_and_its_survey(self) -> None:
        one, other = plan_for(MATMUL, survey=True), plan_for(questions=(trained(2),))
        joined = one.joined(other)
        assert (joined.probes, joined.survey, joined.ranks_per_node) == (one.probes, True, 8)
        assert joined.study_ids == ("probes", "weak/r")
        assert other.joined(one).ranks_per_node == 8

    def test_a_further_launch_with_more_ranks_makes_room_for_them(self) -> None:
        one = plan_for(MATMUL, device_type="cpu", questions=(trained(2),))
        kept = replace(one, ranks_per_node=2).joined(plan_for(questions=(trained(4),), device_type="cpu"))
        assert (kept.ranks_per_node, kept.world_size) == (4, 4)

    def test_a_plan_takes_over_probes_that_it_lacks(self) -> None:
        one, other = plan_for(questions=(trained(2),)), plan_for(MATMUL)
        assert one.joined(other).probes == other.probes
        assert one.joined(other).world_size == 8


def probes_seconds(study: ProbeStudy, rounds: int) -> float:
    (found,) = study_times(Plan("a100", "cuda", (), ranks_per_node=8, probes=study)).values()
    assert (found.usual, found.most) == (min(study.rounds, TYPICAL_ROUNDS), study.rounds)
    return found.seconds(rounds)


class TestEstimate:
    PLAN = Plan("a100", "cuda", (), ranks_per_node=8, probes=STUDY)

    def test_every_probe_takes_its_setup_and_every_round_its_block(self) -> None:
        assert probes_seconds(STUDY, 16) == pytest.approx(2 * (PROBE_SETUP_S + 16 * (0.5 + OVERHEAD_PER_BLOCK_S)))
        assert probes_seconds(replace(STUDY, rounds=5), 5) < probes_seconds(STUDY, TYPICAL_ROUNDS)

    def test_probes_and_the_survey_add_up_with_what_is_trained(self) -> None:
        trains = plan_for(questions=(trained(8),))
        without = estimate(trains)
        with_both = estimate(replace(trains, probes=STUDY, survey=True))
        assert with_both.seconds == pytest.approx(without.seconds + probes_seconds(STUDY, TYPICAL_ROUNDS) + SURVEY_S)
        most = probes_seconds(STUDY, STUDY.rounds)
        assert with_both.most_seconds == pytest.approx(without.most_seconds + most + SURVEY_S)

    def test_probes_alone_take_a_gang_and_its_gpus(self) -> None:
        found = estimate(self.PLAN)
        assert found.seconds == pytest.approx(STARTUP_S + probes_seconds(STUDY, TYPICAL_ROUNDS))
        assert found.device_hours == pytest.approx(8 * found.seconds / 3600)

    def test_a_survey_alone_takes_neither(self) -> None:
        found = estimate(plan_for(survey=True))
        assert (found.seconds, found.device_hours) == (SURVEY_S, 0.0)

    def test_in_isolation_probes_have_a_gang_of_their_own(self) -> None:
        plan = plan_for(MATMUL, questions=(trained(8),))
        assert estimate(plan, isolate=True).seconds == pytest.approx(estimate(plan).seconds + STARTUP_S)
