"""Which numbers of a run are kept, and which of them may be compared."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace

import pytest

from pytest_ddpscale.history.key_values import KeyValue, key_values_of
from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.plan.workload import ImageFolderData
from pytest_ddpscale.run.evidence import Evidence
from tests.builders.measurements import Measurement, ProbeMeasurement
from tests.builders.nights import ALONE, DDP, EACH, GPUS, SKU, STUDY, key_value, measurements
from tests.builders.probes import probe_columns_of, with_columns
from tests.builders.rounds import columns_of
from tests.builders.workloads import with_settings

ONE_NODE = Plan(SKU, "cuda", (STUDY,))
TWO_NODES = Plan(SKU, "cuda", (STUDY,), nodes=2, ranks_per_node=GPUS)


def values(plan: Plan, found: list[Measurement], probed: Iterable[ProbeMeasurement] = ()) -> list[KeyValue]:
    return key_values_of(with_columns(Evidence(plan, columns_of(found), {}), probe_columns_of(probed)))


def told(found: list[KeyValue]) -> dict[tuple[str, int | None, str, int], float]:
    return {(one.host, one.gpu_index, one.arm, one.world_size): round(one.value, 6) for one in found}


def test_each_gpu_has_its_own_pace_and_the_node_that_of_its_slowest() -> None:
    found = values(ONE_NODE, measurements("n1", [100.0, 80.0]))
    assert told(found) == {
        ("n1", 0, "alone", 1): 100.0,
        ("n1", 0, "each", 2): 100.0,
        ("n1", 1, "each", 2): 80.0,
        ("n1", None, "ddp", 2): 80.0,
    }
    assert {one.unit for one in found} == {"img/s"}
    assert {one.gpu_uuid for one in found} == {"GPU-n1-0", "GPU-n1-1", None}


def test_what_reads_a_folder_says_nothing_of_a_gpu_and_other_settings_nothing_at_all() -> None:
    """A GPU is not slower for a slow disk, and one value of a node is not another's."""
    images = replace(STUDY.workload, data=ImageFolderData("/images"))
    synthetic = replace(DDP, variant=Variant(data="synthetic"))
    study = replace(STUDY, workload=images, arms=(*STUDY.arms, synthetic))
    found = measurements("n1", [100.0, 80.0])
    found += [replace(one, arm=synthetic.name) for one in measurements("n1", [300.0, 300.0]) if one.arm == DDP.name]
    assert told(values(replace(ONE_NODE, studies=(study,)), found)) == {
        ("n1", 0, "each", 2): 100.0,
        ("n1", 1, "each", 2): 80.0,
        ("n1", None, "ddp", 2): 80.0,
    }


def test_weak_and_strong_scaling_are_told_apart_by_their_batches() -> None:
    strong = replace(STUDY, scaling="strong", arms=(replace(DDP, batch_size=2),))
    found = [
        *measurements("n1", [100.0, 80.0]),
        *(
            replace(one, study=strong.id, batch_size=2)
            for one in measurements("n1", [100.0, 80.0])
            if one.arm == DDP.name
        ),
    ]
    both = values(replace(ONE_NODE, studies=(STUDY, strong)), found)
    assert {one.what for one in both if one.arm == "ddp"} == {
        "throughput_per_gpu r (DDP of 2, batch 4)",
        "throughput_per_gpu r (DDP of 2, batch 2)",
    }


def test_every_node_of_several_has_its_own() -> None:
    both = [*measurements("n1", [100.0, 90.0]), *measurements("n2", [70.0, 60.0], first_rank=2)]
    assert told(values(TWO_NODES, both))["n2", None, "ddp", 2] == 60.0
    assert told(values(TWO_NODES, both))["n2", 0, "alone", 1] == 70.0


def test_what_does_not_communicate_counts_the_ranks_of_its_own_node() -> None:
    """A GPU among 4 on two nodes does what it does among the 2 of one."""
    wide = replace(EACH, world_size=4)
    study = replace(STUDY, arms=(wide,))
    both = [
        replace(one, arm=wide.name)
        for host, first in (("n1", 0), ("n2", 2))
        for one in measurements(host, [100.0, 90.0], first_rank=first)
        if one.arm == EACH.name
    ]
    found = values(replace(TWO_NODES, studies=(study,)), both)
    alone = values(ONE_NODE, measurements("n1", [100.0, 90.0]))
    assert {one.series for one in found if one.host == "n1"} < {one.series for one in alone}


def test_ddp_over_several_nodes_is_no_value_of_one() -> None:
    wide = replace(DDP, world_size=4)
    plan = replace(TWO_NODES, studies=(replace(STUDY, arms=(wide,)),))
    both = [
        replace(one, arm=wide.name)
        for host, first in (("n1", 0), ("n2", 2))
        for one in measurements(host, [100.0, 90.0], first_rank=first)
        if one.arm == DDP.name
    ]
    assert values(plan, both) == []


def test_the_median_of_the_rounds_counts() -> None:
    found = [replace(one, block_s=one.block_s * (1 + one.round)) for one in measurements("n1", [100.0])]
    paces = [one.throughput_samples_per_s for one in found if one.arm == ALONE.name]
    assert told(values(ONE_NODE, found))["n1", 0, "alone", 1] == round(statistics.median(paces), 6)


def test_too_few_rounds_a_broken_study_and_imported_samples_tell_nothing() -> None:
    assert values(ONE_NODE, measurements("n1", [100.0, 100.0], rounds=4)) == []
    all_of_it = measurements("n1", [100.0, 100.0])
    assert key_values_of(Evidence(ONE_NODE, columns_of(all_of_it), {STUDY.id: "rank 1 died"})) == []
    assert values(ONE_NODE, [replace(one, single_sample=True) for one in all_of_it]) == []


@pytest.mark.parametrize(
    "other",
    [
        replace(STUDY, workload=with_settings(STUDY.workload, image_size=64)),
        replace(STUDY, workload=replace(STUDY.workload, compile=True)),
        replace(STUDY, block_s=2.0),
    ],
)
def test_what_is_trained_otherwise_under_the_same_name_is_never_compared(other: Study) -> None:
    found = measurements("n1", [100.0, 100.0])
    before = {one.series for one in values(ONE_NODE, found)}
    assert not before & {one.series for one in values(replace(ONE_NODE, studies=(other,)), found)}


def test_ranks_that_share_a_cpu_with_more_others_are_never_compared_with_these() -> None:
    found = measurements("n1", [100.0, 100.0])
    of_two = {one.series for one in values(Plan(SKU, "cpu", (STUDY,), ranks_per_node=2), found)}
    of_four = {one.series for one in values(Plan(SKU, "cpu", (STUDY,), ranks_per_node=4), found)}
    assert of_two
    assert not of_two & of_four


def test_a_gpu_is_known_by_its_uuid() -> None:
    assert key_value().series == key_value(gpu_index=5).series
    assert key_value(gpu_uuid="cpu").series != key_value(gpu_uuid="cpu", gpu_index=1).series


PROBES = (
    Arm("matmul-bf16"),
    Arm("matmul-bf16-10240"),
    Arm("all-reduce-32mib", 2),
    Arm("send-recv-256mib", 2),
    Arm("all-reduce-32mib", 4),
)
PROBED = Plan(SKU, "cuda", (), nodes=2, ranks_per_node=2, probes=ProbeStudy(PROBES, 5, 0.5))


def probe_measurements(probe: Arm, ranks: range, rate: float, **changes: object) -> list[ProbeMeasurement]:
    work = float(probe.operation.message_bytes or probe.operation.named_flops or 1e12)
    return [
        replace(
            ProbeMeasurement(
                "probes", probe.kind, probe.world_size, number, rank, rank % 2, f"n{1 + rank // 2}", f"GPU-{rank}",
                work, 1, work / rate, float(number), True,
                (rank ^ 1) if probe.operation.kind == "send-recv" else None,
            ),
            **changes,  # type: ignore[arg-type]
        )
        for number in range(FEWEST_ROUNDS)
        for rank in ranks
    ]  # fmt: skip


def test_probes_give_each_gpu_or_each_node_its_value() -> None:
    matmul, sized, ring, pair, wide = PROBES
    found = [
        *probe_measurements(matmul, range(4), 2e12),
        *probe_measurements(sized, range(4), 3e12),
        *probe_measurements(ring, range(2), 40e9),
        *probe_measurements(ring, range(2, 4), 20e9),
        *probe_measurements(pair, range(2), 10e9),
        *probe_measurements(wide, range(4), 5e9),
    ]
    told_ = {
        (one.host, one.gpu_index, one.metric, one.subject, one.world_size): (round(one.value, 6), one.unit)
        for one in values(PROBED, [], found)
    }
    tflops, gbps = (2.0, "TFLOPS"), "GB/s"
    expected: dict[tuple[str, int | None, str, str, int], tuple[float, str]] = {
        **{(f"n{n}", gpu, "matmul_tflops", "matmul-bf16", 1): tflops for n in (1, 2) for gpu in (0, 1)},
        **{(f"n{n}", gpu, "matmul_tflops", "matmul-bf16-10240", 1): (3.0, "TFLOPS") for n in (1, 2) for gpu in (0, 1)},
        ("n1", None, "busbw_gbps", "all-reduce-32mib", 2): (40.0, gbps),
        ("n2", None, "busbw_gbps", "all-reduce-32mib", 2): (20.0, gbps),
        ("n1", None, "pair_bandwidth_gbps", "send-recv-256mib", 2): (10.0, gbps),
    }
    assert told_ == expected


def test_wrong_results_and_too_few_rounds_of_a_probe_tell_nothing() -> None:
    ring = PROBES[2]
    found = probe_measurements(ring, range(2), 40e9)
    assert values(PROBED, [], [replace(one, is_correct=False) for one in found]) == []
    assert values(PROBED, [], [one for one in found if one.round]) == []
    assert key_values_of(Evidence(PROBED, probe_columns_of(found), {"probes": "it broke"})) == []


def test_ranks_that_take_turns_alone_are_never_at_once() -> None:
    found = [one for one in measurements("n1", [100.0, 90.0], 2 * FEWEST_ROUNDS) if one.arm == "alone"]
    turns = [replace(one, rank=one.round % 2, local_rank=one.round % 2, device=f"GPU-{one.round % 2}") for one in found]
    alone = [one for one in key_values_of(Evidence(ONE_NODE, columns_of(turns), {})) if one.arm == "alone"]
    assert [(one.gpu_index, one.world_size) for one in alone] == [(0, 1), (1, 1)]
