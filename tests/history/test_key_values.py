"""Which numbers of a run are kept, and which of them may be compared."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace

from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries, key_values_of
from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.plan.workload import ImageFolderData
from pytest_ddpscale.run.evidence import Evidence
from tests.builders.measurements import Measurement, ProbeMeasurement
from tests.builders.nights import ALONE, DDP, EACH, GPUS, SKU, STUDY, key_value, measurements
from tests.builders.probes import measure_probe, probe_columns_of, steady, with_columns
from tests.builders.rounds import columns_of
from tests.builders.workloads import with_settings
from tests.rows import rows

ONE_NODE = Plan(SKU, "cuda", (STUDY,))
TWO_NODES = Plan(SKU, "cuda", (STUDY,), nodes=2, ranks_per_node=GPUS)
N1 = measurements("n1", [100.0, 80.0])
BOTH = [*measurements("n1", [100.0, 90.0]), *measurements("n2", [70.0, 60.0], first_rank=2)]
FOLDER = replace(STUDY.workload, data=ImageFolderData("/images"))
SYNTHETIC, WIDE_EACH, WIDE_DDP = (
    replace(DDP, variant=Variant(data="synthetic")),
    replace(EACH, world_size=4),
    replace(DDP, world_size=4),
)


def values(plan: Plan, found: list[Measurement], probed: Iterable[ProbeMeasurement] = ()) -> list[KeyValue]:
    return key_values_of(with_columns(Evidence(plan, columns_of(found), {}), probe_columns_of(probed)))


def told(found: list[KeyValue]) -> dict[str, float]:
    """By host, GPU, arm and ranks at once."""
    return {
        f"{one.series.host} {one.gpu_index} {one.series.arm} {one.series.world_size}": round(one.value, 6)
        for one in found
    }


def series(plan: Plan, found: list[Measurement]) -> set[KeyValueSeries]:
    return {one.series for one in values(plan, found)}


def of(plan: Plan, *arms: Arm, study: Study = STUDY) -> Plan:
    return replace(plan, studies=(replace(study, arms=arms),))


def as_arm(found: list[Measurement], old: Arm, new: Arm) -> list[Measurement]:
    return [replace(one, arm=new.name) for one in found if one.arm == old.name]


EACH_OF_N1 = {"n1 0 each 2": 100.0, "n1 1 each 2": 80.0}
ON_FOLDER = replace(ONE_NODE, studies=(replace(STUDY, workload=FOLDER, arms=(*STUDY.arms, SYNTHETIC)),))


@rows(
    ("plan", "found", "expected"),
    [
        (ONE_NODE, N1, {"n1 0 alone 1": 100.0, **EACH_OF_N1, "n1 None ddp 2": 80.0}),
        # A GPU is not slower for a slow disk, and what is trained with other settings is no value of the same.
        (ON_FOLDER, [*N1, *as_arm(measurements("n1", [300.0] * 2), DDP, SYNTHETIC)],
         EACH_OF_N1 | {"n1 None ddp 2": 80.0}),
        (of(TWO_NODES, ALONE, DDP), BOTH, {"n1 0 alone 1": 100.0, "n2 0 alone 1": 70.0, "n1 None ddp 2": 90.0,
                                           "n2 None ddp 2": 60.0}),
        # Of what does not communicate the ranks of its own node count; DDP over several nodes is no value of one.
        (of(TWO_NODES, WIDE_EACH, WIDE_DDP), [*as_arm(BOTH, EACH, WIDE_EACH), *as_arm(BOTH, DDP, WIDE_DDP)],
         {"n1 0 each 2": 100.0, "n1 1 each 2": 90.0, "n2 0 each 2": 70.0, "n2 1 each 2": 60.0}),
        # Ranks that take turns alone are never at once.
        (of(ONE_NODE, ALONE), [replace(one, rank=one.round % 2, local_rank=one.round % 2, device=f"GPU-{one.round % 2}")
                               for one in measurements("n1", [100.0, 90.0], 2 * FEWEST_ROUNDS) if one.arm == "alone"],
         {"n1 0 alone 1": 100.0, "n1 1 alone 1": 100.0}),
        (ONE_NODE, measurements("n1", [100.0, 100.0], rounds=4), {}),
    ],
)  # fmt: skip
def test_each_gpu_has_its_own_pace_and_the_node_that_of_its_slowest(
    plan: Plan, found: list[Measurement], expected: dict[str, float]
) -> None:
    assert told(values(plan, found)) == expected


def test_a_value_names_its_gpu_and_the_median_of_its_rounds() -> None:
    found = [replace(one, block_s=one.block_s * (1 + one.round)) for one in N1]
    paces = [one.throughput_samples_per_s for one in found if one.arm == ALONE.name]
    assert told(values(ONE_NODE, found))["n1 0 alone 1"] == round(statistics.median(paces), 6)
    assert {one.unit for one in values(ONE_NODE, found)} == {"img/s"}
    assert {one.series.gpu for one in values(ONE_NODE, found)} == {"GPU-n1-0", "GPU-n1-1", ""}
    assert key_values_of(Evidence(ONE_NODE, columns_of(found), {STUDY.id: "rank 1 died"})) == []


def test_weak_and_strong_scaling_are_told_apart_by_their_batches() -> None:
    strong = replace(STUDY, scaling="strong", arms=(replace(DDP, batch_size=2),))
    found = [*N1, *(replace(one, study=strong.id, batch_size=2) for one in as_arm(N1, DDP, DDP))]
    both = values(replace(ONE_NODE, studies=(STUDY, strong)), found)
    assert {one.what for one in both if one.series.arm == "ddp"} == {
        "throughput_per_gpu r (DDP of 2, batch 4)",
        "throughput_per_gpu r (DDP of 2, batch 2)",
    }


def test_only_what_was_measured_alike_is_compared() -> None:
    before, wide = series(ONE_NODE, N1), as_arm(BOTH[: len(BOTH) // 2], EACH, WIDE_EACH)
    for other in (
        replace(STUDY, workload=with_settings(STUDY.workload, image_size=64)),
        replace(STUDY, workload=replace(STUDY.workload, compile=True)),
        replace(STUDY, block_s=2.0),
    ):
        assert not before & series(replace(ONE_NODE, studies=(other,)), N1)
    assert series(of(TWO_NODES, WIDE_EACH), wide) < before, "a GPU among 4 of two nodes does what it does among 2"
    of_two, of_four = (series(Plan(SKU, "cpu", (STUDY,), ranks_per_node=number), N1) for number in (2, 4))
    assert of_two
    assert not of_two & of_four, "ranks share a CPU with more others"
    cpu = key_value(gpu="cpu:1", gpu_index=1)
    assert (cpu.where, key_value().where, key_value(gpu="").where) == ("CPU rank 1 on n1", "GPU 0 on n1", "n1")


MATMUL, SIZED, RING, WIDE = (
    Arm("matmul-bf16"),
    Arm("matmul-bf16-10240"),
    Arm("all-reduce-32mib", 3),
    Arm("all-reduce-32mib", 6),
)
PAIRS = Arm("send-recv-256mib", 3)
PROBED = Plan(SKU, "cuda", (), nodes=2, ranks_per_node=3,
              probes=ProbeStudy((MATMUL, SIZED, RING, PAIRS, WIDE), 5, 0.5))  # fmt: skip
RINGS = measure_probe(PROBED, RING, steady(40.0, {(3, 4, 5): 20.0}))


def test_probes_give_each_gpu_its_value_and_each_node_that_of_its_slowest_group_or_pair() -> None:
    found = [
        *measure_probe(PROBED, MATMUL, steady(2.0)), *measure_probe(PROBED, SIZED, steady(3.0)), *RINGS,
        *measure_probe(PROBED, PAIRS, steady(10.0, {(1, 2): 7.0})), *measure_probe(PROBED, WIDE, steady(5.0)),
    ]  # fmt: skip
    said = {f"{one.where}, {one.what}": f"{one.value:.0f} {one.unit}" for one in values(PROBED, [], found)}
    gpus = [f"GPU {gpu} on n{node}" for node in (0, 1) for gpu in range(3)]
    assert said == {
        **{f"{gpu}, matmul_tflops matmul-bf16": "2 TFLOPS" for gpu in gpus},
        **{f"{gpu}, matmul_tflops matmul-bf16-10240": "3 TFLOPS" for gpu in gpus},
        "n0, busbw_gbps all-reduce-32mib (3 ranks)": "40 GB/s",
        "n1, busbw_gbps all-reduce-32mib (3 ranks)": "20 GB/s",
        "n0, pair_bandwidth_gbps send-recv-256mib (3 ranks)": "7 GB/s",
        "n1, pair_bandwidth_gbps send-recv-256mib (3 ranks)": "10 GB/s",
    }


def test_wrong_results_too_few_rounds_and_broken_probes_tell_nothing() -> None:
    assert values(PROBED, [], [replace(one, is_correct=False) for one in RINGS]) == []
    assert values(PROBED, [], [one for one in RINGS if one.round]) == []
    assert key_values_of(Evidence(PROBED, probe_columns_of(RINGS), {"probes": "it broke"})) == []
