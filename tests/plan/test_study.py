"""Studies and plans survive plan.json and find their parts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.pairing import PairStudy
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Scaling, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.strict_json import parse_strict_json, read_as, strict_json
from tests.builders.json_types import as_json
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
    assert msgspec.convert(as_json(study), Study) == study


@given(PLANS)
def test_a_plan_survives_json(plan: Plan) -> None:
    assert read_as(Plan, as_json(plan)) == plan


def test_a_study_finds_its_arms() -> None:
    assert STUDY.id == "strong/r18"
    assert STUDY.world_size == 4


def test_a_plan_finds_its_studies() -> None:
    plan = Plan("cpu", "cpu", (STUDY,))
    assert plan.study("strong/r18") == STUDY
    assert plan.study("weak/r18") is None
    assert plan.arm("strong/r18", "ddp@4") == Arm("ddp", 4, 4)
    assert plan.arm("strong/r18", "ddp@2") is plan.arm("weak/r18", "ddp@4") is None
    assert (plan.world_size, Plan("cpu", "cpu", ()).world_size) == (4, 0)


def launched(*launches: int, asked: int = 3) -> Plan:
    return Plan("cpu", "cpu", tuple(replace(STUDY, launch=launch) for launch in launches), launches=asked)


def test_each_launch_has_a_study_of_its_own() -> None:
    plan = launched(1, 2, 3)
    assert [study.id for study in plan.studies] == ["strong/r18", "strong/r18/launch-2", "strong/r18/launch-3"]
    assert [plan.launch_of(study.id) for study in plan.studies] == [1, 2, 3]


def test_what_trains_nothing_is_measured_in_the_first_launch() -> None:
    probes, pairs = ProbeStudy((Arm("matmul-fp32"),), 8, 0.1), PairStudy((Arm("all-reduce-4kib", 2),), 5)
    plan = replace(launched(1, 2), nodes=2, ranks_per_node=2, probes=probes, pairs=pairs)
    assert plan.study_ids == ("probes", "strong/r18", "pairs", "strong/r18/launch-2")
    assert [plan.launch_of(study) for study in plan.study_ids] == [1, 1, 1, 2]
    assert [study for study in plan.study_ids if plan.fits_nodes(study)] == ["probes"], "pairs are of two nodes"


def test_a_study_in_a_launch_that_nobody_asked_for_is_refused() -> None:
    with pytest.raises(ValueError, match="a plan for 2 launches has a study in launch 3"):
        launched(1, 2, 3, asked=2)


def test_plan_json_says_its_version_and_the_ids_that_measurements_use() -> None:
    data = as_json(Plan("cpu", "cpu", (STUDY,), seed=3))
    assert (data["schema_version"], data["sku"], data["device_type"], data["seed"]) == (7, "cpu", "cpu", 3)
    assert [study["id"] for study in data["studies"]] == ["strong/r18"]


@pytest.mark.parametrize("key", ["sku", "device_type", "studies"])
def test_a_plan_without_one_of_its_keys_is_refused(key: str) -> None:
    whole = parse_strict_json(strict_json(Plan("cpu", "cpu", (STUDY,))))
    with pytest.raises(ValueError, match=f"{key}"):
        read_as(Plan, {name: value for name, value in whole.items() if name != key})


def test_an_arm_that_infers_has_no_settings_of_training() -> None:
    assert [Arm("infer", k, 4).name for k in (1, 8)] == ["infer@1", "infer@8"]
    with pytest.raises(ValueError, match=r"^infer@2.*: an inference arm cannot have variants"):
        Arm("infer", 2, 4, variant=Variant(precision="bf16"))


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


@rows(
    ("fields", "complaint"),
    [
        ({"nodes": 2, "ranks_per_node": None}, "does not say how many ranks each has"),
        ({"nodes": 2, "ranks_per_node": 1}, "2 x 1 ranks needs 4"),
        ({"nodes": 0, "ranks_per_node": 4}, "expected a whole number from 1 up"),
        ({"nodes": "2", "ranks_per_node": 4}, "Expected `int`, got `str`"),
        ({"nodes": 10**12, "ranks_per_node": 8}, "a plan is for 8000000000000 ranks; expected at most 1000000"),
        ({"nodes": 1, "ranks_per_node": 10**12}, "expected at most 1000000"),
        ({"device_type": "x"}, "Invalid enum value 'x'"),
        ({"device_type": ["cuda"]}, "Expected `str`, got `array`"),
        ({"gpus_asked": "x"}, "Expected `int | null`, got `str`"),
        ({"survey": 1}, "Expected `bool`, got `int`"),
        ({"seed": None}, "Expected `int`, got `null`"),
        ({"nodes": True}, "Expected `int`, got `bool`"),
        ({"launches": 0}, "a plan is for 0 launches; expected 1 to 10"),
        ({"launches": 11}, "a plan is for 11 launches; expected 1 to 10"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(fields: dict[str, object], complaint: str) -> None:
    data = as_json(Plan("cpu", "cpu", (STUDY,))) | fields
    with pytest.raises(ValueError, match=complaint):
        read_as(Plan, data)


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


@rows(("arm", "turns"), [(Arm("alone", 1, 16), 4), (Arm("ddp", 2, 8), 4)])
def test_ranks_of_a_study_are_all_that_ever_train(arm: Arm, turns: int) -> None:
    study = replace(STUDY, arms=(arm,), turns=turns)
    assert study.ranks(study.arms, Layout(2, 4)) == tuple(range(8))
    assert study.world_size == turns
