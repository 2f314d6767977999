"""The sweep of collectives: what is asked for, what is concluded, and the whole of it on two ranks."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import COLLECTIVES
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import RunRecord, ThresholdsUsed
from pytest_ddpscale.suites.collective_bounds import cases_of_run, sweep_cases
from pytest_ddpscale.suites.collectives_report import collectives_report
from pytest_ddpscale.suites.collectives_suite import (
    GIB,
    KIB,
    MIB,
    PAIR_BYTES,
    message_sizes,
    operations_of,
    sizes_of,
    sweep_probes,
    sweep_study,
)
from pytest_ddpscale.suites.suite import MeasuredSuite
from pytest_ddpscale.suites.suite_report import SuiteReport
from pytest_ddpscale.util.document import plain
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
    (figure,) = report.sections[0].figures
    assert figure is not None
    missed = [row[:2] for row in figure.table.rows if plain(row[-1]).startswith("misses its bound")]
    assert missed[1] == ("all-reduce", "8 GiB")
    assert "misses its bound" in figure.alt
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
    assert cases_of_run(changed, plan) == ([], f"{FILE.path} is gone or has changed since the run began")
    gone = msgspec.structs.replace(RECORD, thresholds=ThresholdsUsed(str(tmp_path / "t.yaml"), "0" * 64))
    assert cases_of_run(gone, plan)[0] == []
    report = concluded(steady(60.0), record=changed)
    assert report.headline.endswith("; bounds not judged")
    assert list(report.problems) == [f"bounds: {FILE.path} is gone or has changed since the run began"]
    [bounds] = [section for section in report.sections if section.title == "Bounds"]
    assert bounds.paragraphs == [f"Nothing was judged: {FILE.path} is gone or has changed since the run began."]


SMALL = ("suite", "collectives", "--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--ddp-block=0.01s")


@pytest.mark.lab
def test_it_is_measured_reported_and_told_again(
    measured_and_told: MeasuredAndTold, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert (run.path / "report.html").read_text().count("<img") == 2
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["report", str(run.path)]) == 0
    assert capsys.readouterr().out.count("\nfigures could not be drawn: ModuleNotFoundError: import of matplotlib") == 1
    assert (run.path / "report.html").read_text().count("<figcaption>could not be drawn") == 2


TO_1_MIB = (KIB, 32 * KIB, MIB)


def test_sizes_go_from_the_first_to_the_last_by_a_factor() -> None:
    assert message_sizes(KIB, GIB) == tuple(KIB * 4**i for i in range(11))
    assert message_sizes(KIB, 8 * KIB, 2) == (KIB, 2 * KIB, 4 * KIB, 8 * KIB)


def test_the_last_size_is_there_also_where_the_factor_misses_it() -> None:
    assert message_sizes(KIB, 10 * KIB) == (KIB, 4 * KIB, 10 * KIB)
    assert message_sizes(MIB, MIB) == (MIB,)


@rows(("first", "last", "factor"), [(0, KIB, 4), (2 * KIB, KIB, 4), (KIB, MIB, 1)])
def test_sizes_that_never_arrive_are_refused(first: int, last: int, factor: int) -> None:
    with pytest.raises(ValueError, match=f"found {first} to {last} bytes by {factor}; expected ascending sizes"):
        message_sizes(first, last, factor)


def test_ranks_are_those_of_a_node_and_those_of_all_nodes() -> None:
    layouts = [Layout(*it) for it in ((1, 8), (4, 8), (4, 1), (1, 1))]
    found = [{probe.world_size for probe in sweep_probes(layout, "cpu", (KIB,))} for layout in layouts]
    assert found == [{8}, {8, 32}, {4}, set()]


def test_a_sweep_has_each_operation_size_and_group_once_and_pairs_of_one_size() -> None:
    probes = sweep_probes(Layout(2, 2), "cpu", TO_1_MIB)
    assert len(set(probes)) == len(probes) == 2 * (len(COLLECTIVES) * len(TO_1_MIB) + 1)
    assert {(p.operation.kind, p.world_size, p.operation.message_bytes) for p in probes} == {
        (kind, world_size, size) for kind in COLLECTIVES for world_size in (2, 4) for size in TO_1_MIB
    } | {("send-recv", 2, MIB), ("send-recv", 4, MIB)}


def test_small_messages_come_first_so_that_they_foretell_how_long_large_ones_take() -> None:
    probes = sweep_probes(Layout(1, 8), "cuda", message_sizes(KIB, GIB))
    for kind in COLLECTIVES:
        sizes = [probe.operation.message_bytes or 0 for probe in probes if probe.operation.kind == kind]
        assert sizes == sorted(sizes)


def test_pairs_send_no_more_than_fills_a_link() -> None:
    [pair] = [p for p in sweep_probes(Layout(1, 8), "cuda", message_sizes(KIB, GIB)) if p.operation.kind == "send-recv"]
    assert pair.operation.message_bytes == PAIR_BYTES["cuda"]


def test_only_operations_that_were_asked_for_are_swept() -> None:
    probes = sweep_probes(Layout(1, 2), "cpu", (KIB,), ["broadcast"])
    assert [probe.name for probe in probes] == ["broadcast-1kib@2", "send-recv-1kib@2"]


def test_what_is_bounded_is_swept_too_in_its_place() -> None:
    bounded = [Arm("broadcast-2mib", 2), Arm("broadcast-1kib", 2), Arm("send-recv-4mib", 2)]
    probes = sweep_probes(Layout(1, 2), "cpu", (KIB, 4 * MIB), ["broadcast"], bounded)
    assert [probe.kind for probe in probes] == ["broadcast-1kib", "broadcast-2mib", "broadcast-4mib", "send-recv-4mib"]


def test_a_study_has_the_pace_of_its_device_unless_another_is_asked_for() -> None:
    probe = Arm("all-reduce-1gib", 2)
    on_cpu, on_gpu = sweep_study([probe], "cpu", 8), sweep_study([probe], "cuda", 8)
    assert [(one.block_s, one.iteration_limit_s) for one in (on_cpu, on_gpu)] == [(0.03, 0.1), (0.1, 2.0)]
    assert sweep_study([probe], "cpu", 12, 0.5, 5.0) == ProbeStudy((probe,), 12, 0.5, 5.0, (), 12)


def test_what_is_bounded_is_measured_however_long_it_takes() -> None:
    probe, bounded = Arm("all-reduce-1gib", 2), Arm("all-reduce-25mib", 2)
    study = sweep_study([bounded, probe], "cpu", 8, bounded=[bounded])
    assert [study.limit_s(one) for one in (probe, bounded)] == [0.1, None]
    assert (study.swept_rounds, study.rounds) == (8, 16), "so that a bound can be decided that eight rounds leave open"
    assert read_as(ProbeStudy, as_json(study)) == study
