"""Rows of a sweep: nccl-tests' numbers, of the slowest place, with an interval over the rounds."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import COLLECTIVES
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.suites.collective_rows import CollectiveRow, collective_rows
from pytest_ddpscale.suites.collective_table import cells, heading, nccl_lines, not_measured, number_in_width
from pytest_ddpscale.suites.collectives_suite import GIB, KIB, sweep_probes, sweep_study
from tests.builders.measurements import ProbeMeasurement
from tests.builders.probes import Value, measure_probe, probe_evidence, steady

SIZES = (KIB, GIB)


def sweep_plan(nodes: int = 1, per_node: int = 8) -> Plan:
    probes = sweep_probes(Layout(nodes, per_node), "cuda", SIZES)
    return Plan("h100", "cuda", (), nodes=nodes, ranks_per_node=per_node, probes=sweep_study(probes, "cuda", 8))


STEADY = steady(100.0)


def swept(plan: Plan, value: Value = STEADY, **keys: object) -> Evidence:
    assert plan.probes is not None
    measured = [one for probe in plan.probes.arms for one in measure_probe(plan, probe, value)]
    return probe_evidence(plan, measured, **keys)


def row_of(rows: list[CollectiveRow], name: str) -> CollectiveRow:
    [row] = [row for row in rows if row.probe.kind == name]
    return row


def test_there_is_a_row_for_each_operation_size_and_group() -> None:
    rows = collective_rows(swept(sweep_plan(2, 4)), 0.95)
    assert [(row.probe.world_size, row.probe.operation.kind, row.probe.operation.message_bytes) for row in rows] == [
        (world, kind, size) for world in (4, 8) for kind in COLLECTIVES for size in SIZES
    ]
    assert {row.expected_places for row in rows if row.probe.world_size == 4} == {2}


@pytest.mark.parametrize(
    ("kind", "busbw_over_algbw", "count", "redop", "root"),
    [
        ("all-reduce", 1.75, 256, "sum", -1),
        ("all-gather", 0.875, 32, "none", -1),
        ("reduce-scatter", 0.875, 32, "sum", -1),
        ("broadcast", 1.0, 256, "none", 0),
        ("reduce", 1.0, 256, "sum", 0),
        ("all-to-all", 0.875, 32, "none", -1),
    ],
)
def test_columns_are_those_of_nccl_tests(kind: str, busbw_over_algbw: float, count: int, redop: str, root: int) -> None:
    row = row_of(collective_rows(swept(sweep_plan()), 0.95), f"{kind}-1kib")
    assert row.busbw_gbps is not None
    assert row.algbw_gbps is not None
    assert row.busbw_gbps / row.algbw_gbps == pytest.approx(busbw_over_algbw)
    assert (row.count, row.redop, row.root, row.size_bytes) == (count, redop, root, 1024)
    assert row.time_us == pytest.approx(1024 / row.algbw_gbps / 1e3)


def test_a_value_is_the_geometric_mean_of_its_rounds_with_students_interval() -> None:
    gbps = [90.0, 110.0, 95.0, 105.0, 100.0, 98.0, 102.0, 101.0]
    row = collective_rows(swept(sweep_plan(), lambda number, ranks: gbps[number]), 0.9)[0]
    assert row.busbw_gbps is not None
    assert row.busbw_gbps == pytest.approx(statistics.geometric_mean(gbps))
    assert row.interval is not None
    assert row.time_us is not None
    assert row.time_interval_us is not None
    low, high = row.interval
    assert low * high == pytest.approx(row.busbw_gbps**2)
    relative_sd = statistics.stdev(gbps) / 100
    assert (high - low) / 2 / row.busbw_gbps == pytest.approx(1.894579 * relative_sd / 8**0.5, rel=0.02)
    assert row.relative_reach == pytest.approx((high - low) / 2 / row.busbw_gbps)
    assert row.time_interval_us[0] < row.time_us < row.time_interval_us[1]
    assert (row.rounds, row.checked, row.wrong) == (8, 64, 0)


def test_of_several_nodes_the_slowest_is_the_row() -> None:
    plan = sweep_plan(3, 2)
    rows = collective_rows(swept(plan, steady(100.0, {(2, 3): 60.0})), 0.95)
    row = row_of([row for row in rows if row.probe.world_size == 2], "broadcast-1gib")
    assert row.busbw_gbps == pytest.approx(60, rel=0.01)
    assert row.place is not None
    assert (row.place.host, row.measured_places, row.expected_places) == ("n1", 3, 3)


def test_wrong_results_are_counted_over_ranks_and_rounds() -> None:
    plan = sweep_plan(1, 2)
    probe = Arm("reduce-1kib", 2)

    def spoiled(one: ProbeMeasurement) -> ProbeMeasurement:
        return replace(one, is_correct=one.rank == 0 or one.round > 2)

    measured = [spoiled(one) for one in measure_probe(plan, probe, steady(1.0))]
    row = row_of(collective_rows(probe_evidence(plan, measured), 0.95), "reduce-1kib")
    assert (row.wrong, row.checked) == (3, 16)
    assert cells(row)[8] == "3"


def test_what_was_not_measured_says_why() -> None:
    plan = sweep_plan()
    reasons = {"all-reduce-1gib@8": "n1: one iteration takes 3 s, more than the limit of 2 s"}
    only = measure_probe(plan, Arm("all-reduce-1kib", 8), steady(1.0))
    rows = collective_rows(probe_evidence(plan, only, unsupported=reasons), 0.95)
    assert row_of(rows, "all-reduce-1gib").busbw_gbps is None
    assert not_measured(rows[:4]) == [
        "all-reduce of 1 GiB over 8 ranks was not measured: n1: one iteration takes 3 s, more than the limit of 2 s",
        "all-gather of 1 KiB, 1 GiB over 8 ranks was not measured: no complete round",
    ]
    broken = collective_rows(probe_evidence(plan, [], errors={"probes": "rank 3 died"}), 0.95)
    assert {row.why_not for row in broken} == {"rank 3 died"}


def test_a_node_that_is_missing_is_said() -> None:
    plan = sweep_plan(2, 2)
    probe = Arm("all-reduce-1kib", 2)
    rows = collective_rows(probe_evidence(plan, measure_probe(plan, probe, steady(1.0), without={3})), 0.95)
    assert not_measured(rows[:1]) == ["all-reduce of 1 KiB over 2 ranks was measured on 1 of 2 nodes"]


def test_one_round_has_no_interval() -> None:
    plan = sweep_plan()
    only = measure_probe(plan, Arm("all-reduce-1kib", 8), steady(1.0), rounds=1)
    row = collective_rows(probe_evidence(plan, only), 0.95)[0]
    assert (row.rounds, row.interval, row.relative_reach, row.time_interval_us) == (1, None, None, None)


def test_rounds_that_were_added_to_decide_a_bound_are_none_of_the_rows() -> None:
    probe = Arm("all-reduce-1kib", 8)
    study = sweep_study([probe], "cuda", 8, bounded=[probe])
    plan = Plan("h100", "cuda", (), ranks_per_node=8, probes=study)
    measured = measure_probe(plan, probe, lambda number, ranks: 100.0 if number < 8 else 500.0, rounds=12)
    [row] = collective_rows(probe_evidence(plan, measured), 0.95)
    assert row.rounds == 8
    assert row.busbw_gbps == pytest.approx(100)


def test_numbers_take_the_width_that_nccl_tests_give_them() -> None:
    for value, width, text in [
        (12.345, 7, "12.35"), (12345.678, 7, "12345.7"), (1234567.8, 7, "1234568"), (123456789.0, 7, "1.2e+08"),
        (0.004, 6, "0.00"), (480.249, 6, "480.25"), (1480.249, 6, "1480.2"), (12345678.0, 6, "1e+07"),
    ]:  # fmt: skip
        assert number_in_width(value, width) == text


def test_lines_are_those_of_nccl_tests_with_the_interval_behind_them() -> None:
    plan = sweep_plan(1, 8)
    # An all-reduce of 1 GiB in 4.0 ms: 268.44 GB/s, 469.76 GB/s of bus bandwidth.
    busbw = GIB / 4.0e-3 / 1e9 * 1.75
    only = measure_probe(plan, Arm("all-reduce-1gib", 8), lambda number, ranks: busbw)
    lines = list(nccl_lines(collective_rows(probe_evidence(plan, only), 0.95)[:2]))
    assert lines[:3] == [
        "# all-reduce over 8 ranks of n0",
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong        ±  rounds",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)",
    ]
    assert lines[3] == (
        "  1073741824     268435456     float     sum      -1  4000.00  268.44  469.76       0    0.0 %       8"
    )
    assert lines[4] == "# all-reduce of 1 KiB over 8 ranks was not measured: no complete round"


def test_a_heading_says_where() -> None:
    rows = collective_rows(swept(sweep_plan(4, 2)), 0.95)
    headings = [heading([row]) for row in (rows[0], rows[-1])]
    assert headings == [
        "all-reduce over 2 ranks of each of 4 nodes, slowest node", "all-to-all over 8 ranks"
    ]  # fmt: skip
