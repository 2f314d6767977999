"""Values of probes, by place and round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec
import pytest

from pytest_ddpscale.judge.probes import Place, probed_values
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.columns import columns_of
from pytest_ddpscale.run.records import RankPlace
from tests.builders.measurements import ProbeMeasurement
from tests.builders.probes import probe_columns_of
from tests.builders.records import gang_of, probe_blocks_of
from tests.rows import rows

MIB = 2**20


def places(measurements: Iterable[ProbeMeasurement], probe: Arm, layout: Layout) -> Mapping[Place, FloatArray]:
    probed = probe_columns_of(measurements).arms.get(("probes", probe.name))
    return dict(probed_values(probed, probe, layout).items())


def measured(probe: Arm, rank: int, seconds: float = 1.0, ranks_per_node: int = 4, **keys: object) -> ProbeMeasurement:
    node, local_rank = divmod(rank, ranks_per_node)
    work = float(probe.operation.message_bytes or 8e12)
    one = ProbeMeasurement(
        "probes", probe.kind, probe.world_size, 0, rank, local_rank, f"n{node}", f"GPU-{rank}", work, 1, seconds, 1.0,
        is_correct=True, peer_rank=None if probe.operation.kind != "send-recv" else rank ^ 1,
    )  # fmt: skip
    return replace(one, **keys)  # type: ignore[arg-type]


@rows(
    ("probe", "work", "seconds", "value"),
    [
        # nccl-tests on 8 GPUs: an algorithm bandwidth of 8 GiB / 62.46 ms is a bus bandwidth of 7/4 of it.
        (Arm("all-reduce-8gib", 8), 8 * 2**30, 0.06246, 8 * 2**30 / 0.06246 / 1e9 * 1.75),
        (Arm("all-reduce-32mib", 2), 32 * MIB, 0.001, 33.554432),
        (Arm("all-gather-32mib", 4), 32 * MIB, 0.001, 33.554432 * 3 / 4),
        (Arm("reduce-scatter-32mib", 4), 32 * MIB, 0.001, 33.554432 * 3 / 4),
        (Arm("all-to-all-32mib", 4), 32 * MIB, 0.001, 33.554432 * 3 / 4),
        (Arm("broadcast-32mib", 4), 32 * MIB, 0.001, 33.554432),
        (Arm("reduce-32mib", 4), 32 * MIB, 0.001, 33.554432),
        (Arm("send-recv-32mib", 4), 32 * MIB, 0.001, 33.554432),
        (Arm("matmul-bf16"), 2 * 8192**3, 0.002, 549.755813888),
        (Arm("memory-copy"), 2e9, 0.001, 2000.0),
        (Arm("host-to-device"), 1e9, 0.02, 50.0),
        (Arm("device-to-host"), 1e9, 0.04, 25.0),
    ],
)
def test_values_follow_the_formulas_of_nccl_tests(probe: Arm, work: float, seconds: float, value: float) -> None:
    ranks = range(2 if probe.operation.kind == "send-recv" else probe.world_size)
    found = [measured(probe, rank, seconds, 8, work=float(work)) for rank in ranks]
    (values,) = places(found, probe, Layout(1, probe.world_size)).values()
    assert values.tolist() == pytest.approx([value])


def test_several_iterations_are_one_value() -> None:
    probe = Arm("memory-copy")
    (values,) = places([measured(probe, 0, 2.0, work=1e9, iterations=10)], probe, Layout(1, 1)).values()
    assert values.tolist() == pytest.approx([5.0])


def test_each_device_is_a_place() -> None:
    probe = Arm("matmul-bf16")
    found = places([measured(probe, 5, 0.01), measured(probe, 2, 0.02)], probe, Layout(2, 4))
    assert {place: samples.tolist() for place, samples in found.items()} == {
        Place("gpu", (2,), "n0", RankPlace("n0", 2, "GPU-2", 2)): [400.0],
        Place("gpu", (5,), "n1", RankPlace("n1", 1, "GPU-5", 1)): [800.0],
    }


def test_the_slowest_rank_of_a_group_sets_its_value() -> None:
    probe = Arm("all-reduce-32mib", 2)
    found = places([measured(probe, 4, 0.001), measured(probe, 5, 0.004)], probe, Layout(2, 4))
    assert list(found) == [Place("node", (4, 5), "n1")]
    assert found[Place("node", (4, 5), "n1")][0] == pytest.approx(33.554432 / 4)


def test_a_group_over_several_hosts_is_a_gang() -> None:
    probe = Arm("all-reduce-32mib", 8)
    found = places([measured(probe, rank) for rank in range(8)], probe, Layout(2, 4))
    assert list(found) == [Place("gang", tuple(range(8)), "n0")]


def test_a_pair_is_one_place_whoever_reports() -> None:
    probe = Arm("send-recv-32mib", 4)
    found = places([measured(probe, 3, 0.002), measured(probe, 2, 0.001)], probe, Layout(1, 4))
    place = Place("link", (2, 3), "n0", RankPlace("n0", 2, "GPU-2", 2), RankPlace("n0", 3, "GPU-3", 3))
    assert found[place][0] == pytest.approx(33.554432 / 2)


@rows(("probe", "ranks"), [(Arm("all-reduce-32mib", 4), 3), (Arm("send-recv-32mib", 2), 1)])
def test_a_round_in_which_a_rank_is_missing_has_no_value(probe: Arm, ranks: int) -> None:
    assert not places([measured(probe, rank) for rank in range(ranks)], probe, Layout(1, 4))


def test_a_message_of_another_size_is_left_out() -> None:
    probe = Arm("all-reduce-32mib", 2)
    other = [measured(probe, rank, work=64.0 * MIB) for rank in range(2)]
    assert not places(other, probe, Layout(1, 2))
    shared_evenly = [measured(probe, rank, work=32.0 * MIB - 24) for rank in range(2)]
    assert places(shared_evenly, probe, Layout(1, 2))


def test_a_matrix_product_of_another_size_is_left_out() -> None:
    probe = Arm("matmul-bf16-10240")
    assert not places([measured(probe, 0, work=2.0 * 16384**3)], probe, Layout(1, 1))
    assert not places([measured(Arm("matmul-bf16"), 0, work=2.0 * 10240**3)], probe, Layout(1, 1))
    assert places([measured(probe, 0, work=2.0 * 10240**3)], probe, Layout(1, 1))


def test_other_probes_and_ranks_outside_of_the_plan_are_passed_over() -> None:
    probe = Arm("matmul-bf16")
    others = [measured(Arm("matmul-fp16"), 0), measured(probe, 9)]
    assert not places(others, probe, Layout(1, 4))
    two, four = (Arm("all-reduce-1mib", size) for size in (2, 4))
    assert not places([measured(two, rank) for rank in range(4)], four, Layout(1, 4))


def test_pairs_that_take_other_turns_in_another_round_keep_their_own_values() -> None:
    probe, turns = Arm("send-recv-32mib", 4), [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]
    found = [
        measured(probe, rank, 2.0 if pair == (0, 1) else 1.0, round=number, peer_rank=sum(pair) - rank)
        for number in range(3)
        for turn in turns[number:] + turns[:number]
        for pair in turn
        for rank in pair
    ]
    values = {place.ranks: of.tolist() for place, of in places(found, probe, Layout(1, 4)).items()}
    usual = values[2, 3][0]
    assert values == {pair: [usual / 2 if pair == (0, 1) else usual] * 3 for turn in turns for pair in turn}


def test_a_rank_that_moved_to_another_device_contradicts_itself() -> None:
    moved = [measured(Arm("matmul-bf16"), 0, round=number, device=f"GPU-{number}") for number in range(2)]
    blocks = [msgspec.structs.replace(block, gang=one.round) for one in moved for block in probe_blocks_of([one])]
    with pytest.raises(ValueError, match="rank 0 was measured in two places by gangs 0, 1"):
        columns_of(blocks, [gang_of([one], one.round) for one in moved])


def test_a_rank_beyond_its_gang_contradicts_itself() -> None:
    many = [measured(Arm("matmul-bf16"), rank, round=0) for rank in (0, 1)]
    few = [measured(Arm("matmul-bf16"), 0, round=1)]
    blocks = [*probe_blocks_of(many), *probe_blocks_of(few, gang=1)]
    with pytest.raises(ValueError, match="rank 1 took part, but gang 1 has 1 ranks"):
        columns_of(blocks, [gang_of(many, 0), gang_of(few, 1)])
