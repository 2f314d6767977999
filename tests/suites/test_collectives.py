"""The sweep of collectives: what is swept, nccl-tests' numbers of the slowest place, and what is concluded."""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import COLLECTIVES
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord, ThresholdsUsed
from pytest_ddpscale.suites.collectives import (
    GIB,
    KIB,
    MIB,
    PAIR_BYTES,
    Collectives,
    cases_of_run,
    collective_rows,
    heading,
    message_sizes,
    nccl_lines,
    not_measured,
    number_in_width,
    operations_of,
    sizes_of,
    sweep_cases,
    sweep_probes,
    sweep_study,
)
from pytest_ddpscale.suites.engine import MeasuredSuite, tell
from pytest_ddpscale.suites.results import Results
from tests.approved import assert_approved
from tests.builders.clusters import thresholds
from tests.builders.json_types import as_json, read_as
from tests.builders.measurements import ProbeMeasurement
from tests.builders.probes import Value, measure_probe, probe_evidence, steady
from tests.rows import rows
from tests.suites.conftest import MeasuredAndTold
from tests.suites.run_records import text_of

FILE = thresholds()
USED = ThresholdsUsed(str(FILE.path), FILE.sha256)
RECORD = RunRecord(sku="h100", status="finished", started_at="2026-11-22T10:00:00+00:00", thresholds=USED)
H100 = "h100"
FAST, STEADY = steady(600.0), steady(100.0)
SIZES, TO_1_MIB = (KIB, GIB), (KIB, 32 * KIB, MIB)
Spoil = Callable[[ProbeMeasurement], ProbeMeasurement]


def sweep_plan(nodes: int = 1, per_node: int = 8) -> Plan:
    probes = sweep_probes(Layout(nodes, per_node), "cuda", SIZES)
    return Plan("h100", "cuda", (), nodes=nodes, ranks_per_node=per_node, probes=sweep_study(probes, "cuda", 8))


def rows_of(evidence: Evidence, confidence: float = 0.95) -> list[dict[str, Any]]:
    return collective_rows(MeasuredSuite(evidence, confidence, RECORD))


def swept(plan: Plan, value: Value = STEADY, confidence: float = 0.95) -> list[dict[str, Any]]:
    assert plan.probes is not None
    measured = [one for probe in plan.probes.arms for one in measure_probe(plan, probe, value)]
    return rows_of(probe_evidence(plan, measured), confidence)


def row_of(rows: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [row] = [row for row in rows if row["probe"].startswith(f"{kind}@")]
    return row


def test_there_is_a_row_for_each_operation_size_and_group() -> None:
    found = swept(sweep_plan(2, 4))
    assert [(row["world_size"], row["operation"], row["message"]) for row in found] == [
        (world, kind, size) for world in (4, 8) for kind in COLLECTIVES for size in SIZES
    ]
    assert {row["expected_places"] for row in found if row["world_size"] == 4} == {2}
    assert [heading([row]) for row in (found[0], found[-1])] == [
        "all-reduce over 4 ranks of each of 2 nodes, slowest node", "all-to-all over 8 ranks",
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "busbw_over_algbw", "count", "redop", "root"), [
    ("all-reduce", 1.75, 256, "sum", -1), ("all-gather", 0.875, 32, "none", -1),
    ("reduce-scatter", 0.875, 32, "sum", -1), ("broadcast", 1.0, 256, "none", 0), ("reduce", 1.0, 256, "sum", 0),
    ("all-to-all", 0.875, 32, "none", -1),
])  # fmt: skip
def test_columns_are_those_of_nccl_tests(kind: str, busbw_over_algbw: float, count: int, redop: str, root: int) -> None:
    row = row_of(swept(sweep_plan()), f"{kind}-1kib")
    assert row["bus_bw_gbps"].value / row["alg_bw_gbps"] == pytest.approx(busbw_over_algbw)
    assert (row["count"], row["redop"], row["root"], row["size_bytes"]) == (count, redop, root, 1024)
    assert row["time_us"].value == pytest.approx(1024 / row["alg_bw_gbps"] / 1e3)


def test_a_value_is_the_geometric_mean_of_its_rounds_with_students_interval() -> None:
    gbps = [90.0, 110.0, 95.0, 105.0, 100.0, 98.0, 102.0, 101.0]
    row = swept(sweep_plan(), lambda number, ranks: gbps[number], 0.9)[0]
    busbw, time = row["bus_bw_gbps"], row["time_us"]
    low, high = busbw.interval
    assert busbw.value == pytest.approx(statistics.geometric_mean(gbps))
    assert low * high == pytest.approx(busbw.value**2)
    relative_sd = statistics.stdev(gbps) / 100
    assert (high - low) / 2 / busbw.value == pytest.approx(1.894579 * relative_sd / 8**0.5, rel=0.02)
    assert time.interval[0] < time.value < time.interval[1]
    assert (row["rounds"], row["checked"], row["wrong"]) == (8, 64, 0)


def test_of_several_nodes_the_slowest_is_the_row() -> None:
    found = swept(sweep_plan(3, 2), steady(100.0, {(2, 3): 60.0}))
    row = row_of([row for row in found if row["world_size"] == 2], "broadcast-1gib")
    assert row["bus_bw_gbps"].value == pytest.approx(60, rel=0.01)
    assert (row["host"], row["measured_places"], row["expected_places"]) == ("n1", 3, 3)


def test_what_was_not_measured_says_why_and_where() -> None:
    plan = sweep_plan()
    reasons = {"all-reduce-1gib@8": "n1: one iteration takes 3 s, more than the limit of 2 s"}
    only = measure_probe(plan, Arm("all-reduce-1kib", 8), steady(1.0))
    found = rows_of(probe_evidence(plan, only, unsupported=reasons))
    assert row_of(found, "all-reduce-1gib")["bus_bw_gbps"] is None
    assert [*not_measured(found[:4])] == [
        "all-reduce of 1 GiB over 8 ranks was not measured: n1: one iteration takes 3 s, more than the limit of 2 s",
        "all-gather of 1 KiB, 1 GiB over 8 ranks was not measured: no complete round",
    ]
    broken = rows_of(probe_evidence(plan, [], errors={"probes": "rank 3 died"}))
    assert {row["why_not"] for row in broken} == {"rank 3 died"}
    two = sweep_plan(2, 2)
    lacking = measure_probe(two, Arm("all-reduce-1kib", 2), steady(1.0), without={3})
    told = [*not_measured(rows_of(probe_evidence(two, lacking))[:1])]
    assert told == ["all-reduce of 1 KiB over 2 ranks was measured on 1 of 2 nodes"]


def test_one_round_has_no_interval_and_added_rounds_are_none_of_the_rows() -> None:
    plan, probe = sweep_plan(), Arm("all-reduce-1kib", 8)
    row = rows_of(probe_evidence(plan, measure_probe(plan, probe, steady(1.0), rounds=1)))[0]
    assert (row["rounds"], row["bus_bw_gbps"].interval, row["time_us"].interval) == (1, None, None)
    study = sweep_study([probe], "cuda", 8, bounded=[probe])
    bounded = Plan("h100", "cuda", (), ranks_per_node=8, probes=study)
    measured = measure_probe(bounded, probe, lambda number, ranks: 100.0 if number < 8 else 500.0, rounds=12)
    [row] = rows_of(probe_evidence(bounded, measured))
    assert row["rounds"] == 8
    assert row["bus_bw_gbps"].value == pytest.approx(100)


@rows(("value", "width", "text"), [
    (12.345, 7, "12.35"), (12345.678, 7, "12345.7"), (1234567.8, 7, "1234568"), (123456789.0, 7, "1.2e+08"),
    (0.004, 6, "0.00"), (480.249, 6, "480.25"), (1480.249, 6, "1480.2"), (12345678.0, 6, "1e+07"),
])  # fmt: skip
def test_numbers_take_the_width_that_nccl_tests_give_them(value: float, width: int, text: str) -> None:
    assert number_in_width(value, width) == text


def test_lines_are_those_of_nccl_tests_with_the_interval_behind_them() -> None:
    plan = sweep_plan(1, 8)
    # An all-reduce of 1 GiB in 4.0 ms: 268.44 GB/s, 469.76 GB/s of bus bandwidth.
    busbw = GIB / 4.0e-3 / 1e9 * 1.75
    only = measure_probe(plan, Arm("all-reduce-1gib", 8), lambda number, ranks: busbw)
    lines = [*nccl_lines(rows_of(probe_evidence(plan, only))[:2])]
    assert lines[:5] == [
        "# all-reduce over 8 ranks of n0",
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong        ±  rounds",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)",
        "  1073741824     268435456     float     sum      -1  4000.00  268.44  469.76       0    0.0 %       8",
        "# all-reduce of 1 KiB over 8 ranks was not measured: no complete round",
    ]


def h100_plan(nodes: int = 1) -> Plan:
    layout = Layout(nodes, 8)
    bounded = [case.probe for case in sweep_cases(FILE, H100, layout) if case.probe is not None]
    probes = sweep_probes(layout, "cuda", message_sizes(KIB, GIB), bounded=bounded)
    return Plan(H100, "cuda", (), nodes=nodes, ranks_per_node=8, probes=sweep_study(probes, "cuda", 8, bounded=bounded))


def suite_of(
    value: Value = FAST, nodes: int = 1, spoil: Spoil | None = None, record: RunRecord = RECORD,
    without: tuple[str, ...] = (), **keys: Any,
) -> MeasuredSuite:  # fmt: skip
    """Of a machine on which everything is as fast as `value` says."""
    plan = h100_plan(nodes)
    assert plan.probes is not None
    measured = [
        spoil(one) if spoil else one
        for probe in plan.probes.arms
        if probe.name not in without
        for one in measure_probe(plan, probe, value)
    ]
    return MeasuredSuite(probe_evidence(plan, measured, **keys), 0.95, record)


def concluded(*arguments: Any, **keys: Any) -> Results:
    return Collectives().results(suite_of(*arguments, **keys))


def test_a_fast_machine_has_curves_tables_and_bounds_kept() -> None:
    report = concluded()
    assert (list(report.problems), list(report.failures)) == ([], [])
    assert_approved("suite-collectives.txt", text_of(report, concluded(steady(200.0), nodes=2)))
    sweep, bounds = (json.loads(msgspec.json.encode(one.json())) for one in report.tables)
    row = next(row for row in sweep if (row["operation"], row["size_bytes"]) == ("all-to-all", GIB))
    assert row["bus_bw_gbps"]["value"] == pytest.approx(600, rel=0.01)
    assert row["alg_bw_gbps"] == pytest.approx(600 * 8 / 7, rel=0.01)
    assert (row["count"], row["wrong"], row["checked"], row["place"]) == (GIB // 4 // 8, 0, 64, "n0")
    assert len(report.values["pairs_within_nodes_gbps"]) == 28
    assert {bound["verdict"] for bound in bounds} == {"PASS"}


def test_one_wrong_result_fails_whatever_the_speed() -> None:
    def wrong(one: ProbeMeasurement) -> ProbeMeasurement:
        is_it = (one.probe, one.round, one.rank) == ("broadcast-4kib", 3, 5)
        return replace(one, is_correct=False) if is_it else one

    report = concluded(spoil=wrong)
    assert list(report.failures) == ["broadcast of 4 KiB over 8 ranks gave 1 wrong results of 64"]
    assert "1 wrong results" in report.headline
    assert re.search(r"^ +4096 .* 1 +[0-9.]+ % +8$", text_of(report), re.MULTILINE)


def test_a_bound_that_is_not_kept_fails_and_is_crossed_out() -> None:
    report = concluded(steady(200.0))
    assert any(said.startswith("busbw_gbps[all-reduce-8gib-8gpu]: FAIL") for said in report.failures)
    assert "all-reduce, 8 GiB, 200.2, 200 … 200.3, misses its bound" in report.drawn[0].alt
    assert re.search(r"; [0-4] of 5 bounds met$", report.headline)


SOME = tuple(f"reduce-{size}@8" for size in ("1kib", "4kib", "16kib", "64kib", "256kib", "1mib", "4mib", "16mib",
                                             "64mib", "256mib", "1gib"))  # fmt: skip


@rows(("without", "keys", "problems"), [
    (("reduce-1gib@8",), {"unsupported": {"reduce-1gib@8": "n0: one iteration takes 3 s"}}, []),
    (("all-reduce-32mib@8",), {"unsupported": {"all-reduce-32mib@8": "n0: no memory"}},
     ["could not be done: n0: no memory"]),
    (SOME, {"unsupported": dict.fromkeys(SOME, "n0: no such")}, ["reduce over 8 ranks, of any size: n0: no such"]),
    (("reduce-1gib@8",), {"errors": {"probes": "rank 3 on n0 died"}},
     ["all or part of the sweep: rank 3 on n0 died"]),
])  # fmt: skip
def test_what_is_missing_is_a_problem_unless_a_limit_left_it_out(
    without: tuple[str, ...], keys: dict[str, Any], problems: list[str]
) -> None:
    found = concluded(without=without, **keys)
    assert len(found.problems) == len(problems)
    assert all(said in told for said, told in zip(problems, found.problems, strict=True))
    if not problems:
        assert "# reduce of 1 GiB over 8 ranks was not measured: n0: one iteration takes 3 s" in text_of(found)


def test_bounds_of_a_file_that_changed_judge_nothing_and_accept_nothing(tmp_path: Path) -> None:
    assert len(cases_of_run(RECORD, h100_plan())[0]) > 2
    gone = msgspec.structs.replace(RECORD, thresholds=ThresholdsUsed(str(tmp_path / "t.yaml"), "0" * 64))
    assert cases_of_run(gone, h100_plan())[0] == []
    changed = msgspec.structs.replace(RECORD, thresholds=ThresholdsUsed(str(FILE.path), "0" * 64))
    report = concluded(steady(60.0), record=changed)
    assert list(report.problems) == [f"bounds: {FILE.path} is gone or has changed since the run began"]
    assert report.headline.endswith("; 1 part not measured in full")
    run = RunDirectory.create(tmp_path / "run")
    assert tell(Collectives(), run, suite_of(steady(60.0), record=changed)) == 1


SMALL = ("suite", "collectives", "--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--ddp-block=0.01s")


@pytest.mark.lab
def test_it_is_measured_reported_and_told_again(
    measured_and_told: MeasuredAndTold, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Sizes without a bound: how fast this machine is decides nothing.
    run, told = measured_and_told(*SMALL, "--sizes=1KiB:256KiB:256", "--iteration-limit=1m")
    found = json.loads(run.suite_json.read_text())["tables"]["collectives"]
    assert [(row["operation"], row["size_bytes"]) for row in found] == [
        (kind, size) for kind in COLLECTIVES for size in (KIB, 256 * KIB)
    ]
    assert {(row["wrong"], row["checked"], row["rounds"]) for row in found} == {(0, 16, 8)}
    for row in found:
        low, high = row["bus_bw_gbps"]["interval"]
        assert low < row["bus_bw_gbps"]["value"] < high
        assert row["size_bytes"] / row["time_us"]["value"] / 1e3 == pytest.approx(row["alg_bw_gbps"])
    assert "# all-to-all over 2 ranks of " in told
    assert (run.path / "report.html").read_text().count("<img") == 2
    assert {one.name for one in run.plots.iterdir()} == {"sweep-2.png", "pairs-within.png"}
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["report", str(run.path)]) == 0
    assert capsys.readouterr().out.count("\nfigures could not be drawn: ModuleNotFoundError: import of matplotlib") == 1
    assert (run.path / "report.html").read_text().count("<figcaption>could not be drawn") == 2


def test_sizes_are_a_range_in_the_units_that_people_write() -> None:
    assert sizes_of("1KiB:1GiB") == message_sizes(KIB, GIB) == tuple(KIB * 4**i for i in range(11))
    assert sizes_of("1M:64m:2") == message_sizes(MIB, 64 * MIB, 2)
    assert sizes_of("512 KiB:1MB") == (512 * KIB, MIB)
    assert message_sizes(KIB, 8 * KIB, 2) == (KIB, 2 * KIB, 4 * KIB, 8 * KIB)
    assert message_sizes(KIB, 10 * KIB) == (KIB, 4 * KIB, 10 * KIB), "also the last, where the factor misses it"
    assert message_sizes(MIB, MIB) == (MIB,)


@rows(("text",), [(one,) for one in (
    "", "1KiB", "1KiB:", "1:2", "2MiB:1MiB", "1KiB:1GiB:1", "1KiB:1GiB:x", "1KiB:1TiB", "0KiB:1MiB", "1KiB:1GiB:4:4",
    "9999KiB:9999MiB:7",
)])  # fmt: skip
def test_other_ranges_are_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError, match="BEGIN:END or BEGIN:END:FACTOR, with whole KiB, MiB or GiB"):
        sizes_of(text)


@rows(("first", "last", "factor"), [(0, KIB, 4), (2 * KIB, KIB, 4), (KIB, MIB, 1)])
def test_sizes_that_never_arrive_are_refused(first: int, last: int, factor: int) -> None:
    with pytest.raises(ValueError, match=f"found {first} to {last} bytes by {factor}; expected ascending sizes"):
        message_sizes(first, last, factor)


def test_operations_are_named_as_here_or_as_torch_has_them() -> None:
    assert operations_of("reduce, all_reduce,all-reduce") == ("all-reduce", "reduce")
    with pytest.raises(ValueError, match=r"names among all-reduce, .*; 'gather' is not one of them"):
        operations_of("all-reduce,gather")


def test_a_sweep_has_each_operation_size_and_group_once_and_pairs_of_one_size() -> None:
    assert not any(one.requirement.definition.compares_places for one in sweep_cases(FILE, "b200", Layout(4, 8)))
    layouts = [Layout(*it) for it in ((1, 8), (4, 8), (4, 1), (1, 1))]
    found = [{probe.world_size for probe in sweep_probes(layout, "cpu", (KIB,))} for layout in layouts]
    assert found == [{8}, {8, 32}, {4}, set()], "ranks of a node, and of all nodes"
    probes = sweep_probes(Layout(2, 2), "cpu", TO_1_MIB)
    assert len(set(probes)) == len(probes) == 2 * (len(COLLECTIVES) * len(TO_1_MIB) + 1)
    assert {(p.operation.kind, p.world_size, p.operation.message_bytes) for p in probes} == {
        (kind, world_size, size) for kind in COLLECTIVES for world_size in (2, 4) for size in TO_1_MIB
    } | {("send-recv", 2, MIB), ("send-recv", 4, MIB)}
    whole = sweep_probes(Layout(1, 8), "cuda", message_sizes(KIB, GIB))
    for kind in COLLECTIVES:  # small ones foretell how long large ones take
        sizes = [probe.operation.message_bytes or 0 for probe in whole if probe.operation.kind == kind]
        assert sizes == sorted(sizes)
    [pair] = [p for p in whole if p.operation.kind == "send-recv"]
    assert pair.operation.message_bytes == PAIR_BYTES["cuda"], "no more than fills a link"


def test_what_is_asked_for_and_what_is_bounded_is_swept() -> None:
    probes = sweep_probes(Layout(1, 2), "cpu", (KIB,), ["broadcast"])
    assert [probe.name for probe in probes] == ["broadcast-1kib@2", "send-recv-1kib@2"]
    bounded = [Arm("broadcast-2mib", 2), Arm("broadcast-1kib", 2), Arm("send-recv-4mib", 2)]
    probes = sweep_probes(Layout(1, 2), "cpu", (KIB, 4 * MIB), ["broadcast"], bounded)
    assert [probe.kind for probe in probes] == ["broadcast-1kib", "broadcast-2mib", "broadcast-4mib", "send-recv-4mib"]


def test_a_study_has_the_pace_of_its_device_and_what_is_bounded_has_no_limit() -> None:
    probe, bounded = Arm("all-reduce-1gib", 2), Arm("all-reduce-25mib", 2)
    on_cpu, on_gpu = sweep_study([probe], "cpu", 8), sweep_study([probe], "cuda", 8)
    assert [(one.block_s, one.iteration_limit_s) for one in (on_cpu, on_gpu)] == [(0.03, 0.1), (0.1, 2.0)]
    assert sweep_study([probe], "cpu", 12, 0.5, 5.0) == ProbeStudy((probe,), 12, 0.5, 5.0, (), 12)
    study = sweep_study([bounded, probe], "cpu", 8, bounded=[bounded])
    assert [study.limit_s(one) for one in (probe, bounded)] == [0.1, None]
    assert (study.swept_rounds, study.rounds) == (8, 16), "so that a bound can be decided that eight rounds leave open"
    assert read_as(ProbeStudy, as_json(study)) == study


def test_wrong_results_are_counted_over_ranks_and_rounds() -> None:
    plan, probe = sweep_plan(1, 2), Arm("reduce-1kib", 2)
    measured = [
        replace(one, is_correct=one.rank == 0 or one.round > 2) for one in measure_probe(plan, probe, steady(1.0))
    ]
    row = row_of(rows_of(probe_evidence(plan, measured)), "reduce-1kib")
    assert (row["wrong"], row["checked"]) == (3, 16)
    assert isinstance(row["bus_bw_gbps"], Found)
