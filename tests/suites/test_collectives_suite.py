"""The sweep of collectives: what is asked for, what is concluded, and the whole of it on two ranks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_ddpscale.plan.collective_sweep import GIB, KIB, MIB, message_sizes, sweep_probes, sweep_study
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import COLLECTIVES
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import RunRecord, ThresholdsUsed
from pytest_ddpscale.suites.collective_bounds import cases_of_run, sweep_cases
from pytest_ddpscale.suites.collectives_report import collectives_report
from pytest_ddpscale.suites.collectives_suite import operations_of, sizes_of
from pytest_ddpscale.suites.suite import MeasuredSuite
from pytest_ddpscale.suites.suite_report import SuiteReport
from tests.approved import assert_approved
from tests.builders.clusters import thresholds
from tests.builders.measurements import ProbeMeasurement
from tests.builders.probes import Value, measure_probe, probe_evidence, steady
from tests.suites.conftest import MeasuredAndTold
from tests.suites.run_records import text_of

FILE = thresholds()
USED = ThresholdsUsed(str(FILE.path), FILE.sha256)
RECORD = RunRecord(sku="h100", status="finished", started_at="2026-11-22T10:00:00+00:00", thresholds=USED)
H100 = "h100"
FAST = steady(600.0)
Spoil = Callable[[ProbeMeasurement], ProbeMeasurement]


def h100_plan(nodes: int = 1) -> Plan:
    layout = Layout(nodes, 8)
    bounded = [case.probe for case in sweep_cases(FILE, H100, layout) if case.probe is not None]
    probes = sweep_probes(layout, "cuda", message_sizes(KIB, GIB), bounded=bounded)
    return Plan(H100, "cuda", (), nodes=nodes, ranks_per_node=8, probes=sweep_study(probes, "cuda", 8, bounded=bounded))


def concluded(
    value: Value = FAST, nodes: int = 1, spoil: Spoil | None = None, record: RunRecord = RECORD,
    without: tuple[str, ...] = (), **keys: Any,
) -> SuiteReport:  # fmt: skip
    """Of a machine on which everything is as fast as `value` says."""
    plan = h100_plan(nodes)
    assert plan.probes is not None
    measured = [
        spoil(one) if spoil else one
        for probe in plan.probes.arms
        if probe.name not in without
        for one in measure_probe(plan, probe, value)
    ]
    evidence: Evidence = probe_evidence(plan, measured, **keys)
    return collectives_report(MeasuredSuite(evidence, record, 0.95))


def test_what_compares_places_bounds_no_bandwidth() -> None:
    assert not any(one.requirement.definition.compares_places for one in sweep_cases(FILE, "b200", Layout(4, 8)))


def test_sizes_are_a_range_in_the_units_that_people_write() -> None:
    assert sizes_of("1KiB:1GiB") == message_sizes(KIB, GIB)
    assert sizes_of("1M:64m:2") == message_sizes(MIB, 64 * MIB, 2)
    assert sizes_of("512 KiB:1MB") == (512 * KIB, MIB)


def test_other_ranges_are_refused_with_what_is_expected() -> None:
    for text in ["", "1KiB", "1KiB:", "1:2", "2MiB:1MiB", "1KiB:1GiB:1", "1KiB:1GiB:x", "1KiB:1TiB",
                                  "0KiB:1MiB", "1KiB:1GiB:4:4", "9999KiB:9999MiB:7"]:  # fmt: skip
        with pytest.raises(ValueError, match="BEGIN:END or BEGIN:END:FACTOR, with whole KiB, MiB or GiB"):
            sizes_of(text)


def test_operations_are_named_as_here_or_as_torch_has_them() -> None:
    assert operations_of("reduce, all_reduce,all-reduce") == ("all-reduce", "reduce")
    with pytest.raises(ValueError, match=r"names among all-reduce, .*; 'gather' is not one of them"):
        operations_of("all-reduce,gather")


def test_a_fast_machine_has_curves_tables_and_bounds_kept() -> None:
    report = concluded()
    assert (list(report.problems), list(report.failures)) == ([], [])
    assert_approved("suite-collectives.txt", text_of(report))


def test_values_say_the_same_to_programs() -> None:
    values = json.loads(msgspec.json.encode(concluded().values))
    rows = {(row["operation"], row["size_bytes"]): row for row in values["rows"]}
    row = rows["all-to-all", GIB]
    assert row["bus_bw_gbps"] == pytest.approx(600, rel=0.01)
    assert row["alg_bw_gbps"] == pytest.approx(600 * 8 / 7, rel=0.01)
    assert row["bus_bw_interval_gbps"][0] < row["bus_bw_gbps"] < row["bus_bw_interval_gbps"][1]
    assert (row["count"], row["wrong"], row["checked"], row["place"]) == (GIB // 4 // 8, 0, 64, "n0")
    assert len(values["pairs_within_nodes_gbps"]) == 28
    assert {bound["outcome"] for bound in values["bounds"]} == {"passed"}


def test_of_two_nodes_each_and_both_together_are_shown() -> None:
    report = concluded(nodes=2)
    assert [section.title for section in report.sections][:2] == ["Over 8 ranks of each node", "Over 16 ranks"]
    [pairs] = [section for section in report.sections if section.title == "Pairs"]
    assert len(pairs.figures) == 2
    assert any(said.startswith("Pairs of neighbouring nodes (1)") for said in pairs.paragraphs)


def test_one_wrong_result_fails_whatever_the_speed() -> None:
    def wrong(one: ProbeMeasurement) -> ProbeMeasurement:
        is_it = (one.probe, one.round, one.rank) == ("broadcast-4kib", 3, 5)
        return replace(one, is_correct=False) if is_it else one

    report = concluded(spoil=wrong)
    assert list(report.failures) == ["broadcast-4kib@8 gave 1 wrong results of 64"]
    assert "1 wrong results" in report.headline
    assert re.search(r"^ +4096 .* 1 +[0-9.]+ % +8$", report.sections[0].listings[0], re.MULTILINE)


def test_a_bound_that_is_not_kept_fails_and_is_crossed_out() -> None:
    report = concluded(steady(200.0))
    assert any(said.startswith("busbw_gbps[all-reduce-8gib-8gpu]: FAIL") for said in report.failures)
    assert "misses its bound at 8 GiB" in report.sections[0].figures[0]
    assert re.search(r"; [0-4] of 5 bounds met$", report.headline)


def test_a_size_that_was_left_out_is_said_and_no_problem() -> None:
    reason = "n0: one iteration takes 3 s, more than the limit of 2 s"
    report = concluded(without=("reduce-1gib@8",), unsupported={"reduce-1gib@8": reason})
    assert list(report.problems) == []
    assert f"# reduce of 1 GiB over 8 ranks was not measured: {reason}" in report.sections[0].listings[0]


def test_a_bound_of_which_nothing_is_known_is_a_problem() -> None:
    report = concluded(without=("all-reduce-32mib@8",), unsupported={"all-reduce-32mib@8": "n0: not enough memory"})
    assert len(report.problems) == 1
    assert "all-reduce-32mib@8 could not be done: n0: not enough memory" in report.problems[0]


def test_an_operation_without_any_size_is_a_problem() -> None:
    ids = tuple(f"reduce-{size}@8" for size in ("1kib", "4kib", "16kib", "64kib", "256kib", "1mib", "4mib", "16mib",
                                                "64mib", "256mib", "1gib"))  # fmt: skip
    report = concluded(without=ids, unsupported=dict.fromkeys(ids, "n0: no such thing"))
    assert list(report.problems) == ["reduce over 8 ranks, of any size: n0: no such thing"]


def test_a_sweep_that_broke_is_one_problem() -> None:
    report = concluded(without=("reduce-1gib@8",), errors={"probes": "rank 3 on n0 died"})
    assert list(report.problems) == ["all or part of the sweep: rank 3 on n0 died"]


def test_bounds_of_a_file_that_changed_judge_nothing(tmp_path: Path) -> None:
    plan = h100_plan()
    assert len(cases_of_run(RECORD, plan)[0]) > 2
    changed = msgspec.structs.replace(RECORD, thresholds=ThresholdsUsed(str(FILE.path), "0" * 64))
    assert cases_of_run(changed, plan) == ([], f"{FILE.path} has changed since the run began")
    gone = msgspec.structs.replace(RECORD, thresholds=ThresholdsUsed(str(tmp_path / "t.yaml"), "0" * 64))
    assert cases_of_run(gone, plan)[0] == []
    report = concluded(steady(60.0), record=changed)
    assert report.headline.endswith("; bounds not judged")
    assert list(report.problems) == [f"bounds: {FILE.path} has changed since the run began"]
    [bounds] = [section for section in report.sections if section.title == "Bounds"]
    assert bounds.paragraphs == [f"Nothing was judged: {FILE.path} has changed since the run began."]


SMALL = ("suite", "collectives", "--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--ddp-block=0.01s")


@pytest.mark.lab
def test_it_is_measured_reported_and_told_again(measured_and_told: MeasuredAndTold) -> None:
    # Sizes without a bound: how fast this machine is decides nothing.
    run, told = measured_and_told(*SMALL, "--sizes=1KiB:256KiB:256", "--iteration-limit=1m")
    rows = json.loads(run.suite_json.read_text())["rows"]
    assert [(row["operation"], row["size_bytes"]) for row in rows] == [
        (kind, size) for kind in COLLECTIVES for size in (KIB, 256 * KIB)
    ]
    assert {(row["wrong"], row["checked"], row["rounds"]) for row in rows} == {(0, 16, 8)}
    for row in rows:
        assert row["bus_bw_interval_gbps"][0] < row["bus_bw_gbps"] < row["bus_bw_interval_gbps"][1]
        assert row["size_bytes"] / row["time_us"] / 1e3 == pytest.approx(row["alg_bw_gbps"])
    assert "# all-to-all over 2 ranks of " in told
    assert "The thresholds have no bound for any measured operation and size." in told
    assert (run.path / "report.html").read_text().count("<svg") == 2
