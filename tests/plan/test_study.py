"""Studies and plans survive plan.json and find their parts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import PairStudy
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Scaling, Study
from pytest_ddpscale.plan.workload import Workload
from tests.builders.json_types import as_json, read_as
from tests.builders.plans import PLANS, STUDIES
from tests.rows import rows

WORKLOAD = Workload("r18", ImageFamily("resnet18"), "fp32", 8, global_batch_size=16)
STUDY = Study("strong", WORKLOAD, (Arm("alone", 1, 16), Arm("ddp", 4, 4)), rounds=5, block_s=1.0, warmup_s=2.0)
OTHER = replace(STUDY, scaling="weak")
PROBES = st.builds(Arm, st.sampled_from(["matmul-bf16", "memory-copy", "host-to-device"])) | st.builds(
    Arm, st.sampled_from(["all-reduce-32mib", "all-gather-1gib", "send-recv-256kib"]), st.integers(2, 64)
)
PROBE_STUDIES = st.builds(
    ProbeStudy, st.lists(PROBES, max_size=4, unique=True).map(tuple), st.integers(1, 20), st.floats(0.1, 10)
)


@given(STUDIES)
def test_a_study_survives_json(study: Study) -> None:
    assert read_as(Study, as_json(study)) == study


@given(PLANS)
def test_a_plan_survives_json(plan: Plan) -> None:
    assert read_as(Plan, as_json(plan)) == plan


def test_what_a_further_launch_measures_joins_the_plan() -> None:
    """The ranks and what trains nothing are those of the plan that has more of them."""
    probes, pairs = ProbeStudy((Arm("matmul-fp32"),), 8, 0.1), PairStudy((Arm("all-reduce-4kib", 2),), 5)
    first = Plan("cpu", "cpu", (STUDY,), nodes=2, ranks_per_node=4, survey=True)
    more = replace(first, studies=(OTHER,), ranks_per_node=8, pairs=pairs, probes=probes, survey=False)
    for one, other in ((first, more), (more, first)):
        joined = one.joined(other)
        assert joined == replace(one, studies=one.studies + other.studies, ranks_per_node=8, pairs=pairs, probes=probes)
    alone = Plan("cpu", "cpu", (replace(STUDY, arms=STUDY.arms[:1]),))
    assert (alone.world_size, alone.joined(Plan("cpu", "cpu", (OTHER,))).world_size) == (1, 4)


@given(st.none() | PROBE_STUDIES, st.booleans(), st.none() | st.just(PairStudy((Arm("all-reduce-4kib", 2),), 5)))
def test_a_plan_with_probes_survives_json(probes: ProbeStudy | None, survey: bool, pairs: PairStudy | None) -> None:
    plan = Plan("a100", "cuda", (), 3, 2, 64, pairs=pairs, probes=probes, survey=survey)
    assert read_as(Plan, as_json(plan)) == plan


def turn(ranks: int, seed: int, scaling: Scaling, number: int) -> int:
    return replace(STUDY, workload=replace(WORKLOAD, name="r"), scaling=scaling, turns=ranks).turn(seed, number)


@rows("ranks", [1, 2, 3, 8])
def test_every_rank_has_one_turn_before_any_has_two(ranks: int) -> None:
    for cycle in range(4):
        taken = [turn(ranks, 0, "weak", number) for number in range(cycle * ranks, (cycle + 1) * ranks)]
        assert sorted(taken) == list(range(ranks))


def test_the_order_is_another_one_in_each_cycle_study_and_seed_and_stays() -> None:
    def order(seed: int, scaling: Scaling, cycle: int) -> tuple[int, ...]:
        return tuple(turn(8, seed, scaling, 8 * cycle + place) for place in range(8))

    scalings = get_args(Scaling)
    found = [order(seed, scaling, cycle) for seed in (0, 1) for scaling in scalings for cycle in (0, 1)]
    assert len(set(found)) == len(found)
    assert found[0] == (2, 0, 1, 7, 6, 4, 5, 3)


def test_no_place_comes_first_more_often_than_another() -> None:
    firsts = Counter(turn(8, seed, "weak", 0) for seed in range(800))
    assert set(firsts) == set(range(8))
    assert max(firsts.values()) < 2 * min(firsts.values())
