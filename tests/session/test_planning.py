"""What can be measured on the nodes there are, and what is measured besides what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.session.open import THIS_MACHINE
from pytest_ddpscale.thresholds.cases import AnyCase, Case
from tests.builders.judged import WORKLOAD, check_case, make_case
from tests.builders.probes import ALL_REDUCE, MATMUL, probe_case
from tests.builders.sessions import planning
from tests.rows import rows

GPUS, UNDER_LOAD, TRANSPORT = check_case("gpus"), check_case("ecc_under_load"), check_case("transport")
LOAD, LINKS = "matmul-fp16", "all-reduce-32mib@8"


def training(world_size: int, **keys: Any) -> Case:
    return make_case("throughput_per_gpu", 50.0, world_size, **keys)


def strong(world_size: int) -> Case:
    """What times no arm besides that of all its ranks, and one rank alone."""
    return make_case("strong_scaling_speedup", 1.0, world_size, replace(WORKLOAD, global_batch_size=48))


def probes_of(plan: Plan) -> list[str]:
    return [probe.name for probe in plan.probes.arms] if plan.probes else []


def planned(cases: Sequence[AnyCase], devices: int | None = 8, cluster: Cluster = THIS_MACHINE) -> Plan:
    return planning(devices, cluster).plan_for(cases)


class TestWhatIsLacking:
    def test_is_more_devices_than_there_are(self) -> None:
        assert planning(4).why_not(training(8)) == "needs 8 GPUs; 4 can be used here"
        assert planning(4, sku="cpu").why_not(training(8)) == "needs 8 ranks; 4 can be used here"
        assert planning(4).why_not(probe_case(ALL_REDUCE, 10.0)) == "needs 8 GPUs; 4 can be used here"

    def test_is_nothing_of_a_check(self) -> None:
        assert planning(1).why_not(GPUS) is None

    def test_is_nothing_that_a_laptop_that_only_plans_could_know(self) -> None:
        assert planning(None, plans_only=True).why_not(training(1024)) is None

    def test_is_a_second_node_to_spread_ranks_over(self) -> None:
        case = training(2, placement="spread")
        assert planning().why_not(case) == "needs several nodes to spread ranks over; there is 1"
        assert planning(plans_only=True).why_not(case) is None
        assert planning(16, Cluster(2, ("n1", "n2"))).why_not(case) is None

    def test_is_a_node_with_as_many_gpus_as_a_bound_is_about(self) -> None:
        case = replace(training(8), missing="needs 8 GPUs on one node; a node has 4 here")
        nodes = planning(8, Cluster(2, ("n1", "n2")))
        assert nodes.why_not(case) == "needs 8 GPUs on one node; a node has 4 here"
        assert nodes.plan_for([case, training(4)]) == nodes.plan_for([training(4)])

    def test_leaves_the_others_to_be_measured(self) -> None:
        cases: list[AnyCase] = [training(8), GPUS, training(2)]
        assert planning(4).plan_for(cases) == planning(4).plan_for(cases[1:])


class TestPlan:
    def test_has_a_survey_if_any_check_is_asked(self) -> None:
        plan = planned([GPUS])
        assert (plan.survey, plan.study_ids) == (True, ())
        assert not planned([training(8), probe_case(ALL_REDUCE, 10.0)]).survey

    def test_has_the_probes_that_are_asked_each_once(self) -> None:
        cases = [probe_case(ALL_REDUCE, 10.0), probe_case(MATMUL, 10.0), probe_case(ALL_REDUCE, 20.0)]
        assert probes_of(planned(cases)) == [ALL_REDUCE.name, MATMUL.name]

    def test_looks_at_all_gpus_of_all_nodes_once_anything_is_checked_or_probed(self) -> None:
        three = Cluster(3, ("n1", "n2", "n3"))
        assert planned([training(4)], 24, three).layout.ranks_per_node == 4
        for more in (GPUS, probe_case(MATMUL, 10.0)):
            plan = planned([training(4), more], 24, three)
            assert (plan.nodes, plan.ranks_per_node) == (3, 8)

    def test_is_of_one_node_where_nobody_knows_the_devices(self) -> None:
        plan = planning(None, Cluster(4, is_elsewhere=True), plans_only=True).plan_for([training(8), GPUS])
        assert plan.nodes == 1

    def test_goes_at_the_pace_that_the_user_sets(self) -> None:
        (study,) = planning(ddp_rounds="9", ddp_block="7s").plan_for([training(8)]).studies
        assert (study.rounds, study.block_s) == (9, 7.0)


class TestLoad:
    """Checks under load need every GPU to work, and that of transports every rank to communicate."""

    @rows("check", [UNDER_LOAD, TRANSPORT])
    def test_is_added_where_nothing_else_is_measured(self, check: AnyCase) -> None:
        assert probes_of(planned([check])) == [LOAD, LINKS]

    def test_of_one_gpu_is_what_one_gpu_can_do(self) -> None:
        assert probes_of(planned([UNDER_LOAD], 1)) == [LOAD]

    def test_is_not_added_for_a_survey(self) -> None:
        assert probes_of(planned([GPUS, training(1)])) == []

    @rows("check", [UNDER_LOAD, TRANSPORT])
    def test_is_not_added_to_what_all_gpus_do_anyway(self, check: AnyCase) -> None:
        assert probes_of(planned([check, training(8)])) == []
        assert probes_of(planned([check, probe_case(ALL_REDUCE, 10.0)])) == [ALL_REDUCE.name]

    def test_of_single_devices_is_load_and_connects_nothing(self) -> None:
        assert probes_of(planned([UNDER_LOAD, probe_case(MATMUL, 10.0)])) == [MATMUL.name]
        assert probes_of(planned([TRANSPORT, probe_case(MATMUL, 10.0)])) == [MATMUL.name, LOAD, LINKS]

    @rows("check", [UNDER_LOAD, TRANSPORT])
    @rows("some", [training(1), training(4), probe_case(Arm("all-reduce-1gib", 2), 10.0)])
    def test_is_added_to_what_leaves_gpus_idle(self, check: AnyCase, some: AnyCase) -> None:
        assert probes_of(planned([check, some]))[-2:] == [LOAD, LINKS]

    def test_is_what_all_ranks_of_all_nodes_do(self) -> None:
        three = Cluster(3, ("n1", "n2", "n3"))
        assert probes_of(planned([TRANSPORT, training(8)], 24, three)) == []
        assert probes_of(planned([TRANSPORT, strong(24)], 24, three)) == []
        assert probes_of(planned([TRANSPORT, strong(16)], 24, three)) == [LOAD, LINKS]


def test_a_stretch_ends_long_before_ranks_that_record_nothing_are_ended() -> None:
    for stretch_s, inactivity in ((120.0, "10m"), (60.0, "2m")):
        plan = planning(ddp_inactivity_limit=inactivity).plan_for([training(8)])
        assert [study.sustained_s for study in plan.studies] == [stretch_s]
