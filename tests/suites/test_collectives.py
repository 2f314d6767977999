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

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.operation import COLLECTIVES
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.suites.collectives import (
    Collectives,
    collective_rows,
    nccl_lines,
    not_measured,
    number_in_width,
    sizes_of,
)
from pytest_ddpscale.suites.engine import MeasuredSuite, tell
from tests.approved import assert_approved
from tests.builders.measurements import ProbeMeasurement
from tests.builders.probes import Value, measure_probe, probe_evidence, steady
from tests.rows import rows
from tests.suites.conftest import MeasuredAndTold
from tests.suites.planned import planned
from tests.suites.run_records import SUITE_RECORD, text_of

KIB, MIB, GIB = 2**10, 2**20, 2**30
FAST, STEADY = steady(600.0), steady(100.0)
SHORT, REDUCED = "--sizes=1KiB:4KiB", "--operations=all-reduce,all-gather"
FIRST = "all-reduce-1kib@8"


def swept(*options: str, nodes: int = 1, gpus: int = 8) -> Plan:
    on_h100 = ("--gpu-sku=h100", f"--ddp-hosts=n[0-{nodes - 1}]", "--ddp-exec=true {host}")
    return planned(Collectives(), *options, gpus=gpus, sku=on_h100)


def study_of(plan: Plan) -> ProbeStudy:
    assert plan.probes is not None
    return plan.probes


def measured(
    plan: Plan, value: Value = STEADY, confidence: float = 0.95, rounds: int = 8, only: str = "",
    without: tuple[str, ...] = (), lost: tuple[int, ...] = (),
    spoil: Callable[[ProbeMeasurement], ProbeMeasurement] = lambda one: one, **keys: Any,
) -> MeasuredSuite:  # fmt: skip
    """Of a machine on which everything is as fast as `value` says."""
    probes = [one for one in study_of(plan).arms if one.name not in without and (not only or one.name == only)]
    found = [spoil(one) for probe in probes for one in measure_probe(plan, probe, value, rounds, lost)]
    return MeasuredSuite(probe_evidence(plan, found, **keys), confidence, SUITE_RECORD)


def rows_of(*arguments: Any, **keys: Any) -> list[dict[str, Any]]:
    return collective_rows(measured(*arguments, **keys))


def test_there_is_a_row_for_each_operation_size_and_group() -> None:
    found = rows_of(swept(SHORT, nodes=2, gpus=4))
    assert [(row["world_size"], row["group"], row["message"]) for row in found] == [
        (world, f"{kind} over {world} ranks{where}", size)
        for world, where in ((4, " of each of 2 nodes"), (8, "")) for kind in COLLECTIVES for size in (KIB, 4 * KIB)
    ]  # fmt: skip


@rows(("kind", "busbw_over_algbw", "count", "redop", "root"), [
    ("all-reduce", 1.75, 256, "sum", -1), ("all-gather", 0.875, 32, "none", -1),
    ("reduce-scatter", 0.875, 32, "sum", -1), ("broadcast", 1.0, 256, "none", 0), ("reduce", 1.0, 256, "sum", 0),
    ("all-to-all", 0.875, 32, "none", -1),
])  # fmt: skip
def test_columns_are_those_of_nccl_tests(kind: str, busbw_over_algbw: float, count: int, redop: str, root: int) -> None:
    row = rows_of(swept(SHORT, f"--operations={kind}"))[0]
    assert row["bus_bw_gbps"].value / row["alg_bw_gbps"] == pytest.approx(busbw_over_algbw)
    assert (row["count"], row["redop"], row["root"], row["size_bytes"]) == (count, redop, root, 1024)
    assert row["time_us"].value == pytest.approx(1024 / row["alg_bw_gbps"] / 1e3)


def test_a_value_is_the_geometric_mean_of_its_rounds_with_students_interval() -> None:
    gbps = [90.0, 110.0, 95.0, 105.0, 100.0, 98.0, 102.0, 101.0]
    row = rows_of(swept(SHORT), lambda number, ranks: gbps[number], 0.9)[0]
    busbw, time = row["bus_bw_gbps"], row["time_us"]
    low, high = busbw.interval
    assert busbw.value == pytest.approx(statistics.geometric_mean(gbps))
    assert low * high == pytest.approx(busbw.value**2)
    relative_sd = statistics.stdev(gbps) / 100
    assert (high - low) / 2 / busbw.value == pytest.approx(1.894579 * relative_sd / 8**0.5, rel=0.02)
    assert time.interval[0] < time.value < time.interval[1]
    assert (row["rounds"], row["checked"], row["wrong"]) == (8, 64, 0)


def test_of_several_nodes_the_slowest_is_the_row() -> None:
    row = rows_of(swept(SHORT, nodes=3, gpus=2), steady(100.0, {(2, 3): 60.0}))[0]
    assert row["bus_bw_gbps"].value == pytest.approx(60, rel=0.01)
    assert (row["place"], row["why_not"]) == ("n1", "")


def test_what_was_not_measured_says_why_and_where() -> None:
    slow = {"all-reduce-4kib@8": "n1: one iteration takes 3 s, more than the limit of 2 s"}
    found = rows_of(swept(SHORT), only=FIRST, unsupported=slow)
    assert [row["bus_bw_gbps"] is None for row in found[:2]] == [False, True]
    assert [*not_measured(found[:4])] == [
        "all-reduce over 8 ranks, 4 KiB: n1: one iteration takes 3 s, more than the limit of 2 s",
        "all-gather over 8 ranks, 1 KiB, 4 KiB: no complete round",
    ]
    broken = rows_of(swept(SHORT), only="none", errors={"probes": "rank 3 died"})
    assert {row["why_not"] for row in broken} == {"rank 3 died"}
    lacking = rows_of(swept(SHORT, nodes=2, gpus=2), only="all-reduce-1kib@2", lost=(3,))[:1]
    where = "all-reduce over 2 ranks of each of 2 nodes, 1 KiB"
    assert [*not_measured(lacking)] == [f"{where}: 1 of 2 nodes have no complete round"]


def test_one_round_has_no_interval_and_added_rounds_are_none_of_the_rows() -> None:
    row = rows_of(swept(SHORT), rounds=1)[0]
    assert (row["rounds"], row["bus_bw_gbps"].interval, row["time_us"].interval) == (1, None, None)
    added = rows_of(swept("--sizes=32MiB:32MiB"), lambda number, ranks: 100.0 if number < 8 else 500.0, rounds=12)[0]
    assert (added["rounds"], added["bus_bw_gbps"].value) == (8, pytest.approx(100))


@rows(("value", "width", "text"), [
    (12.345, 7, "12.35"), (12345.678, 7, "12345.7"), (1234567.8, 7, "1234568"), (123456789.0, 7, "1.2e+08"),
    (0.004, 6, "0.00"), (480.249, 6, "480.25"), (1480.249, 6, "1480.2"), (12345678.0, 6, "1e+07"),
])  # fmt: skip
def test_numbers_take_the_width_that_nccl_tests_give_them(value: float, width: int, text: str) -> None:
    assert number_in_width(value, width) == text


def test_a_fast_and_a_slow_machine_are_told_as_approved() -> None:
    fast = Collectives().results(measured(swept(REDUCED), FAST))
    assert (list(fast.problems), list(fast.failures)) == ([], [])
    slow = Collectives().results(measured(swept(REDUCED, nodes=2), steady(200.0)))
    assert_approved("suite-collectives.txt", text_of(fast, slow))
    sweep, bounds, pairs = (one.json() for one in fast.tables)
    row = next(row for row in sweep if (row["operation"], row["size_bytes"]) == ("all-gather", GIB))
    assert row["bus_bw_gbps"]["value"] == pytest.approx(600, rel=0.01)
    assert row["alg_bw_gbps"] == pytest.approx(600 * 8 / 7, rel=0.01)
    assert (row["count"], row["wrong"], row["checked"], row["place"]) == (GIB // 4 // 8, 0, 64, "n0")
    assert [len(pairs), {bound["verdict"] for bound in bounds}] == [28, {"PASS"}]
    # An all-reduce of 1 GiB in 4.0 ms: 268.44 GB/s, 469.76 GB/s of bus bandwidth.
    busbw = GIB / 4.0e-3 / 1e9 * 1.75
    exact = rows_of(swept("--sizes=1GiB:1GiB"), lambda number, ranks: busbw)
    line = "  1073741824     268435456     float     sum      -1  4000.00  268.44  469.76       0    0.0 %       8"
    assert [*nccl_lines(exact)][1] == line


def test_wrong_results_are_counted_over_ranks_and_rounds_and_fail_whatever_the_speed() -> None:
    def wrong(one: ProbeMeasurement) -> ProbeMeasurement:
        return replace(one, is_correct=one.probe != "broadcast-4kib" or one.rank != 5 or one.round > 2)

    found = Collectives().results(measured(swept(), FAST, spoil=wrong))
    assert list(found.failures) == ["broadcast over 8 ranks, 4 KiB: 3 wrong results of 64"]
    assert "; 3 wrong results;" in found.headline
    assert re.search(r"^ +4096 .* 3 +[0-9.]+ % +8$", text_of(found), re.MULTILINE)


SOME = tuple(f"reduce-{size}@8" for size in ("1kib", "4kib"))
GONE = dict.fromkeys(SOME, "n0: no such")


@rows(("options", "without", "keys", "problems"), [
    ([SHORT], SOME[1:], {"unsupported": {SOME[1]: "n0: one iteration takes 3 s"}}, []),
    ([SHORT], SOME[1:], {}, ["reduce over 8 ranks, 4 KiB: no complete round"]),
    (["--sizes=32MiB:32MiB"], ("all-reduce-32mib@8",), {"unsupported": {"all-reduce-32mib@8": "n0: no memory"}},
     ["32 MiB: n0: no memory", "NOT MEASURED, all-reduce-32mib@8 could not be done: n0: no memory"]),
    ([SHORT], SOME, {"unsupported": GONE}, ["reduce over 8 ranks, 1 KiB, 4 KiB: n0: no such"]),
    ([SHORT], SOME, {"errors": {"probes": "rank 3 on n0 died"}}, ["all or part of the sweep: rank 3 on n0 died"]),
])  # fmt: skip
def test_what_is_missing_is_a_problem_unless_a_limit_left_it_out(
    options: list[str], without: tuple[str, ...], keys: dict[str, Any], problems: list[str]
) -> None:
    found = Collectives().results(measured(swept(*options), FAST, without=without, **keys))
    assert all(said in told for said, told in zip(problems, found.problems, strict=True))
    if not problems:
        assert "# not measured: reduce over 8 ranks, 4 KiB: n0: one iteration takes 3 s" in text_of(found)


def test_bounds_are_those_of_the_plan_whatever_becomes_of_their_file(tmp_path: Path) -> None:
    """The record names a file with another digest, and the plan was written and read."""
    run = RunDirectory.create(tmp_path / "run")
    run.write_json(run.plan_json, swept(REDUCED))
    found = measured(run.read_plan(), steady(200.0))
    report = Collectives().results(found)
    assert [said.partition(",")[0] for said in report.failures] == [
        f"busbw_gbps[all-reduce-{size}-8gpu]: FAIL" for size in ("8gib", "32mib")
    ]
    assert re.search(r"; [0-4] of 4 bounds met$", report.headline)
    assert tell(Collectives(), run, found) == 1


@pytest.mark.lab
def test_it_is_measured_reported_and_told_again(
    measured_and_told: MeasuredAndTold, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Sizes without a bound: how fast this machine is decides nothing.
    small = ("suite", "collectives", "--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--ddp-block=0.01s")
    run, told = measured_and_told(*small, "--sizes=1KiB:256KiB:256", "--iteration-limit=1m")
    found = json.loads(run.suite_json.read_text())["tables"]["collectives"]
    assert [(row["operation"], row["size_bytes"]) for row in found] == [
        (kind, size) for kind in COLLECTIVES for size in (KIB, 256 * KIB)
    ]
    assert {(row["wrong"], row["checked"], row["rounds"]) for row in found} == {(0, 16, 8)}
    for row in found:
        low, high = row["bus_bw_gbps"]["interval"]
        assert low < row["bus_bw_gbps"]["value"] < high
        assert row["size_bytes"] / row["time_us"]["value"] / 1e3 == pytest.approx(row["alg_bw_gbps"])
    assert "\n# all-to-all over 2 ranks\n" in told
    assert (run.path / "report.html").read_text().count("<img") == 1
    assert {one.name for one in run.plots.iterdir()} == {"sweep-2.png"}
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["report", str(run.path)]) == 0
    assert capsys.readouterr().out.count("\nfigures could not be drawn: ModuleNotFoundError: import of matplotlib") == 1
    assert (run.path / "report.html").read_text().count("<figcaption>could not be drawn") == 1


@rows(("text", "sizes"), [
    ("1KiB:1GiB", tuple(KIB * 4**i for i in range(11))), ("1M:8m:2", (MIB, 2 * MIB, 4 * MIB, 8 * MIB)),
    ("512 KiB:1MB", (512 * KIB, MIB)), ("1k:10k", (KIB, 4 * KIB, 10 * KIB)), ("1M:1M", (MIB,)),
])  # fmt: skip
def test_sizes_are_a_range_in_the_units_that_people_write(text: str, sizes: tuple[int, ...]) -> None:
    assert sizes_of(text) == sizes, "also the last, where the factor misses it"


@rows(("text",), [(one,) for one in (
    "", "1KiB", "1KiB:", "1:2", "2MiB:1MiB", "1KiB:1GiB:1", "1KiB:1GiB:x", "1KiB:1TiB", "0KiB:1MiB", "1KiB:1GiB:4:4",
    "9999KiB:9999MiB:7",
)])  # fmt: skip
def test_other_ranges_are_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"BEGIN:END or BEGIN:END:FACTOR, with whole KiB, MiB or GiB|expected 1 to 9999"
    ):
        sizes_of(text)


def test_a_sweep_has_each_operation_size_and_group_once_and_pairs_of_one_size() -> None:
    layouts = ((1, 8), (4, 8), (4, 1))
    found = [{one.world_size for one in study_of(swept(SHORT, nodes=nodes, gpus=n)).arms} for nodes, n in layouts]
    assert found == [{8}, {8, 32}, {4}], "ranks of a node, and of all nodes"
    probes = study_of(swept("--sizes=1KiB:512KiB:8", nodes=2, gpus=2)).arms
    sizes = (KIB, 8 * KIB, 64 * KIB, 512 * KIB)  # small ones foretell how long large ones take
    assert [(p.world_size, p.operation.kind, p.operation.message_bytes) for p in probes] == [
        (world_size, kind, size) for world_size in (2, 4)
        for kind in (*COLLECTIVES, "send-recv") for size in (sizes if kind != "send-recv" else sizes[-1:])
    ]  # fmt: skip
    pairs = [one.name for one in study_of(swept("--sizes=1KiB:1GiB")).arms if one.operation.kind == "send-recv"]
    assert pairs == ["send-recv-256mib@8"], "no more than fills a link"


def test_what_is_asked_for_and_what_is_bounded_is_swept() -> None:
    usual, asked = swept("--operations=broadcast,all-reduce"), swept("--sizes=32MiB:64MiB:2", "--operations=all-reduce")
    names = [one.name for one in study_of(asked).arms]
    assert names == ["all-reduce-32mib@8", "all-reduce-64mib@8", "send-recv-64mib@8"]
    assert (study_of(asked).without_limit, len(asked.requirements)) == (("all-reduce-32mib@8",), 1)
    bounded = ("all-reduce-32mib@8", "all-reduce-8gib@8", "send-recv-256mib@8")
    assert (study_of(usual).without_limit, len(usual.requirements)) == (bounded, 3)
    peers = {one["requirement"]["metric"] for one in swept(nodes=4).requirements}
    assert peers == {"busbw_gbps", "pair_bandwidth_gbps"}, "peers bound no bandwidth"


def test_a_study_has_the_pace_of_its_device_and_what_is_bounded_has_no_limit() -> None:
    bounded, other = Arm("all-reduce-32mib", 8), Arm("all-reduce-64mib", 8)
    study, free = study_of(swept("--sizes=32MiB:64MiB:2")), study_of(swept(SHORT))
    assert [study.block_s, *map(study.limit_s, (other, bounded))] == [0.1, 2.0, None]
    assert (study.swept_rounds, study.rounds, free.swept_rounds, free.rounds) == (8, 16, 8, 8), "to decide a bound"
    on_cpu = ("--gpu-sku=cpu", "--ddp-hosts=n1", "--ddp-exec=true {host}")
    slow = study_of(planned(Collectives(), SHORT, sku=on_cpu))
    assert (slow.block_s, slow.iteration_limit_s) == (0.03, 0.1)
    set_ = study_of(swept(SHORT, "--ddp-rounds=12", "--ddp-block=0.5s", "--iteration-limit=5s"))
    assert (set_.rounds, set_.block_s, set_.iteration_limit_s) == (12, 0.5, 5.0)
