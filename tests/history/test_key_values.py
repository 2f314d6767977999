"""Which numbers of a run are kept, and which of them may be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pytest_ddpscale.history.key_values import KeyValueSeries, key_values_of
from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.plan.workload import ImageFolderData
from pytest_ddpscale.run.evidence import Evidence
from tests.approved import assert_approved
from tests.builders.measurements import Measurement, ProbeMeasurement
from tests.builders.nights import ALONE, DDP, EACH, GPUS, SKU, STUDY, measurements
from tests.builders.probes import measure_probe, probe_columns_of, steady, with_columns
from tests.builders.rounds import columns_of
from tests.builders.workloads import with_settings

ONE_NODE = Plan(SKU, "cuda", (STUDY,))
TWO_NODES = Plan(SKU, "cuda", (STUDY,), nodes=2, ranks_per_node=GPUS)
CPU = Plan(SKU, "cpu", (STUDY,), ranks_per_node=2)
N1 = measurements("n1", [100.0, 80.0])
BOTH = [*measurements("n1", [100.0, 90.0]), *measurements("n2", [70.0, 60.0], first_rank=2)]
FOLDER = replace(STUDY.workload, data=ImageFolderData("/images"))
SYNTHETIC = replace(DDP, variant=Variant(data="synthetic"))
STRONG = replace(STUDY, scaling="strong", arms=(replace(DDP, batch_size=2),))
WIDE_EACH, WIDE_DDP = replace(EACH, world_size=4), replace(DDP, world_size=4)
MATMUL, SIZED, RING = Arm("matmul-bf16"), Arm("matmul-bf16-10240"), Arm("all-reduce-32mib", 3)
PAIRS, WIDE = Arm("send-recv-256mib", 3), Arm("all-reduce-2gib", 6)
PROBES = ProbeStudy((WIDE, MATMUL, SIZED, RING, PAIRS), 5, 0.5)
PROBED = Plan(SKU, "cuda", (), nodes=2, ranks_per_node=3, probes=PROBES)
RINGS = measure_probe(PROBED, RING, steady(40.0, {(3, 4, 5): 20.0}))


def evidence(plan: Plan, found: Iterable[Measurement], probed: Iterable[ProbeMeasurement] = ()) -> Evidence:
    return with_columns(Evidence(plan, columns_of(found), {}), probe_columns_of(probed))


def series(plan: Plan, found: Iterable[Measurement]) -> set[KeyValueSeries]:
    return {one.series for one in key_values_of(evidence(plan, found))}


def of(plan: Plan, *arms: Arm) -> Plan:
    return replace(plan, studies=(replace(STUDY, arms=arms),))


def as_arm(found: Iterable[Measurement], old: Arm, new: Arm) -> list[Measurement]:
    return [replace(one, arm=new.name) for one in found if one.arm == old.name]


def test_each_gpu_has_its_own_values_and_the_node_those_of_its_slowest() -> None:
    alone = [one for one in measurements("n1", [100.0], 2 * FEWEST_ROUNDS) if one.arm == ALONE.name]
    turns = [replace(one, rank=one.round % 2, local_rank=one.round % 2, device=f"GPU-{one.round % 2}") for one in alone]
    folder = replace(ONE_NODE, studies=(replace(STUDY, workload=FOLDER, arms=(SYNTHETIC, *STUDY.arms)),))
    strong = [replace(one, study=STRONG.id, batch_size=2) for one in N1 if one.arm == DDP.name]
    wide = as_arm(BOTH, EACH, WIDE_EACH) + as_arm(BOTH, DDP, WIDE_DDP)
    probes = [
        *measure_probe(PROBED, MATMUL, steady(2.0)), *measure_probe(PROBED, SIZED, steady(3.0)), *RINGS,
        *measure_probe(PROBED, PAIRS, steady(10.0, {(1, 2): 7.0})), *measure_probe(PROBED, WIDE, steady(5.0)),
    ]  # fmt: skip
    cases = {
        "a node": evidence(ONE_NODE, N1),
        "the median of the rounds": evidence(
            ONE_NODE, (replace(one, block_s=one.block_s * (1 + one.round)) for one in N1)
        ),
        "CPU ranks": evidence(CPU, (replace(one, device="cpu") for one in N1)),
        "a folder of images says nothing of a GPU, and other settings nothing at all": evidence(
            folder, [*N1, *as_arm(measurements("n1", [300.0] * 2), DDP, SYNTHETIC)]
        ),
        "weak and strong scaling": evidence(replace(ONE_NODE, studies=(STUDY, STRONG)), [*N1, *strong]),
        "two nodes": evidence(of(TWO_NODES, ALONE, DDP), BOTH),
        "arms over two nodes": evidence(of(TWO_NODES, WIDE_EACH, WIDE_DDP), wide),
        "ranks that take turns alone": evidence(of(ONE_NODE, ALONE), turns),
        "too few rounds": evidence(ONE_NODE, measurements("n1", [100.0, 100.0], rounds=4)),
        "a broken study": replace(evidence(ONE_NODE, N1), errors={STUDY.id: "rank 1 died"}),
        "probes, of which the slowest group or pair is the node's": evidence(PROBED, [], probes),
        "wrong results of a probe": evidence(PROBED, [], (replace(one, is_correct=False) for one in RINGS)),
        "too few rounds of a probe": evidence(PROBED, [], (one for one in RINGS if one.round)),
        "broken probes": replace(evidence(PROBED, [], RINGS), errors={"probes": "it broke"}),
    }

    def lines() -> Iterator[str]:
        for name, found in cases.items():
            yield name
            for one in key_values_of(found):
                yield f"  {one.where} {one.series.gpu}, {one.what}: {one.value:.3f} {one.unit}"

    assert_approved("key-values.txt", "\n".join(lines()) + "\n")


def test_only_what_was_measured_alike_is_compared() -> None:
    before, wide = series(ONE_NODE, N1), as_arm(BOTH[: len(BOTH) // 2], EACH, WIDE_EACH)
    for other in (
        replace(STUDY, workload=with_settings(STUDY.workload, image_size=64)),
        replace(STUDY, workload=replace(STUDY.workload, compile=True)),
        replace(STUDY, block_s=2.0),
    ):
        assert not before & series(replace(ONE_NODE, studies=(other,)), N1)
    assert series(of(TWO_NODES, WIDE_EACH), wide) < before, "a GPU among 4 of two nodes does what it does among 2"
    assert series(CPU, N1)
    assert not series(CPU, N1) & series(replace(CPU, ranks_per_node=4), N1), "ranks share a CPU with more others"
