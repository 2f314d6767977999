"""Bounds from simulated launches whose spread is known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale.calibrate.calibration import (
    MOST_MARGIN_PCT,
    CalibratedRequirement,
    Calibration,
    Measured,
    calibrate,
    excluded_nodes,
)
from pytest_ddpscale.calibrate.node_values import NodeValue, node_values, unfit_nodes, why_no_values
from pytest_ddpscale.calibrate.site_bounds import calibration_lines, overlay_of, provenance_of
from pytest_ddpscale.calibrate.trusted_runs import TrustedRun
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.simulate.writing import host_name
from pytest_ddpscale.thresholds.cases import NodeCase, cases_for
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.site_file import write_overlay
from tests.builders.clusters import thresholds
from tests.builders.probes import measure_probe, probe_evidence, probe_plan, steady
from tests.builders.trusted import PER_NODE, SKU, WORKLOAD, launches, nodes

NODES = 8
THROUGHPUT = f"throughput_per_gpu[{WORKLOAD}-1gpu]"
CASES = {case.id: case for case in cases_for(thresholds(), SKU, Layout(1, PER_NODE))}


@pytest.fixture(scope="module")
def sound() -> list[TrustedRun]:
    return launches(3, nodes(NODES))


@pytest.fixture(scope="module")
def found(sound: list[TrustedRun]) -> Calibration:
    return calibrate(thresholds(), SKU, sound, 0.01, 0.25)


def of(calibration: Calibration, name: str) -> CalibratedRequirement:
    return next(one for one in calibration.calibrated if one.name == name)


def test_a_value_is_the_judges(sound: list[TrustedRun]) -> None:
    """What is worst of all nodes and places is what the judge's verdict says."""
    for case in [one for one in CASES.values() if one.requirement.definition.subject != "check"]:
        values = node_values(case, sound[0].evidence)
        if not values:
            continue
        worst = max if case.requirement.definition.upper_bound else min
        verdict = worded(judge(case, sound[0].evidence, 0.95))
        if verdict.outcome in ("passed", "failed"):
            assert worst(one.value for one in values.values()) == pytest.approx(verdict.value)


def test_sound_nodes_give_bounds_that_they_keep(found: Calibration, sound: list[TrustedRun]) -> None:
    assert found.excluded == ()
    assert found.nodes == tuple(host_name(node) for node in range(NODES))
    throughput = of(found, THROUGHPUT)
    assert throughput.value == pytest.approx(CASES[THROUGHPUT].requirement.sound_value, rel=0.01)
    assert throughput.node_sd == pytest.approx(0.003, abs=0.003)
    assert throughput.nodes == NODES
    assert throughput.launches == 3
    assert {"matmul_tflops[matmul-fp16-10240]", "busbw_gbps[all-reduce-32mib-node]"} <= {
        one.name for one in found.calibrated
    }
    for one in found.calibrated:
        upper = one.requirement.definition.upper_bound
        sign = 1 if upper else -1
        assert one.bound == pytest.approx(one.value * (1 + sign * one.margin_pct / 100))
        assert 0 < one.margin_pct <= MOST_MARGIN_PCT
        for run in sound:
            for value in node_values(CASES[one.name], run.evidence).values():
                assert value.value <= one.bound if upper else value.value >= one.bound


def test_a_bound_below_a_published_one_is_noted(found: Calibration) -> None:
    throughput = of(found, THROUGHPUT)
    published = replace(throughput.requirement, provisional=False)
    assert not throughput.is_weaker
    assert not replace(throughput, bound=700.0).is_weaker
    assert replace(throughput, bound=700.0, requirement=published).is_weaker
    memory = of(found, f"peak_memory_gib[{WORKLOAD}-node]")
    published = replace(memory.requirement, provisional=False)
    assert replace(memory, bound=60.0, requirement=published).is_weaker


def test_a_published_bound_is_loosened_only_if_told_to(
    tmp_path: Path, sound: list[TrustedRun], found: Calibration
) -> None:
    (tmp_path / "site.yaml").write_text(
        "schema_version: 2\nextends: packaged\nsources: {paper: a paper}\nskus:\n"
        f"  {SKU}: {{requirements: [{{throughput_per_gpu: {{1: {of(found, THROUGHPUT).value}}}, of: {WORKLOAD}, "
        "published: paper, margin: 0.1 %}]}\n"
    )
    file = load_thresholds(tmp_path / "site.yaml")
    kept = calibrate(file, SKU, sound, 0.01, 0.25)
    assert THROUGHPUT not in {one.name for one in kept.calibrated}
    assert "would be weaker than the published " in kept.left[THROUGHPUT]
    assert kept.unseen == ()
    lowered = calibrate(file, SKU, sound, 0.01, 0.25, lowers=True)
    assert of(lowered, THROUGHPUT).is_weaker
    assert {one.name for one in lowered.calibrated} == {THROUGHPUT, *(one.name for one in kept.calibrated)}


def test_it_is_said_from_which_loss_on_a_node_is_found(found: Calibration) -> None:
    throughput = replace(of(found, THROUGHPUT), value=100.0, bound=98.0, node_sd=0.003, launch_sd=0.004, reach=0.005)
    assert throughput.found_from_pct == pytest.approx(100 * (1 - 0.98 * math.exp(-0.005 - 1.645 * 0.005)), abs=0.01)
    memory = of(found, f"peak_memory_gib[{WORKLOAD}-node]")
    memory = replace(memory, value=40.0, bound=44.0, margin_pct=10.0, node_sd=0.0, launch_sd=0.4, reach=0.2)
    assert memory.found_from_pct == pytest.approx(10 + 0.5 + 1.645, abs=0.01)
    for one in found.calibrated:
        assert one.found_from_pct >= one.margin_pct - 0.01


def test_a_rarer_false_reject_takes_a_wider_margin(sound: list[TrustedRun], found: Calibration) -> None:
    rarer = calibrate(thresholds(), SKU, sound, 0.001, 0.25)
    assert of(rarer, THROUGHPUT).margin_pct > of(found, THROUGHPUT).margin_pct
    assert of(rarer, THROUGHPUT).value == of(found, THROUGHPUT).value


def test_what_is_exact_or_was_not_measured_keeps_its_bound(found: Calibration) -> None:
    assert found.left["node_check[ecc]"] == "exact: there is nothing to calibrate"
    assert found.left[f"replica_agreement[{WORKLOAD}-node]"] == "exact: there is nothing to calibrate"
    assert found.left["no_regression[node]"] == "depends on each node's own history"
    assert "was not measured in this run" in found.left["throughput_per_gpu[vit-b-16-fp16-1gpu]"]
    assert "margin of more than 10 %" in found.left[f"ddp_overhead[{WORKLOAD}-1gpu]"]
    assert "no margin in per cent" in found.left[f"memory_spread[{WORKLOAD}-node]"]
    assert not found.left.keys() & {one.name for one in found.calibrated}
    assert found.left.keys() | {one.name for one in found.calibrated} == CASES.keys()


def test_what_compares_places_has_no_bandwidth_to_calibrate() -> None:
    cases = cases_for(thresholds(), "b200", Layout(4, 8))
    case = next(one for one in cases if one.requirement.definition.compares_places)
    assert isinstance(case, NodeCase)
    assert case.probe is not None
    plan = probe_plan(case.probe, nodes=4)
    evidence = probe_evidence(plan, measure_probe(plan, case.probe, steady(1000.0), 16))
    assert node_values(case, evidence) == {}
    assert "under `peers`" in why_no_values(case, evidence)


def test_bad_nodes_are_left_out_and_named(found: Calibration) -> None:
    """One GPU of node 1, and all of node 4."""
    bad = calibrate(
        thresholds(), SKU,
        launches(3, nodes(NODES), "slow-gpu:3:1.08", "slow-gpu:8:1.06", "slow-gpu:9:1.06"), 0.01, 0.25,
    )  # fmt: skip
    assert {one.node for one in bad.excluded} == {host_name(1), host_name(4)}
    for one in bad.excluded:
        assert one.deviation is not None
        assert "the others" in one.reason
        assert "times their spread" in one.reason
    assert of(bad, THROUGHPUT).value == pytest.approx(of(found, THROUGHPUT).value, rel=0.004)
    assert of(bad, THROUGHPUT).nodes == NODES - 2


def test_shares_of_nothing_have_a_spread(sound: list[TrustedRun]) -> None:
    """That ranks hold equally much memory on all nodes does not make every other node infinitely unlike."""
    memory = f"memory_spread[{WORKLOAD}-node]"
    values = {host_name(node): {"launch": NodeValue(0.0, 0.0, "")} for node in range(NODES)}
    values["simulated-7"] = {"launch": NodeValue(0.5, 0.0, "simulated-7")}
    [found] = excluded_nodes([Measured(CASES[memory], values)], 2)
    assert found.node == "simulated-7"
    assert found.deviation is not None
    assert math.isfinite(found.deviation.distance)
    assert "0.5, the others 0 (+0.5, " in found.reason


def test_a_node_that_is_slow_in_one_launch_only_is_left_out() -> None:
    cluster = nodes(NODES)
    runs = [*launches(2, cluster), *launches(3, cluster, "slow-gpu:4:1.1", "slow-gpu:5:1.1")[2:]]
    [excluded] = calibrate(thresholds(), SKU, runs, 0.01, 0.25).excluded
    assert excluded.node == host_name(2)
    assert "in launch-3" in excluded.reason


def test_wrong_results_and_failed_checks_leave_a_node_out(sound: list[TrustedRun]) -> None:
    runs = [*sound[:2], *launches(3, nodes(NODES), "corrupt-rank:3", "bad-gpu:8:ecc")[2:]]
    unfit = unfit_nodes(CASES.values(), runs[2].evidence)
    assert set(unfit) == {host_name(1), host_name(4)}
    assert "ecc" in unfit[host_name(4)]
    found = calibrate(thresholds(), SKU, runs, 0.01, 0.25)
    assert {one.node for one in found.excluded} == {host_name(1), host_name(4)}
    assert all(one.deviation is None for one in found.excluded)


def test_too_many_that_do_not_belong_are_refused() -> None:
    """Two at a time are left out of one thing; another two stand out in another."""
    faults = [
        *(f"slow-gpu:{rank}:1.1" for rank in range(4)),
        *(f"slow-probe:{rank}:memory-copy:0.8" for rank in range(8, 12)),
    ]
    with pytest.raises(OptionError, match="4 of 8 nodes are outliers or unfit") as refused:
        calibrate(thresholds(), SKU, launches(2, nodes(NODES), *faults), 0.01, 0.25)
    assert "at most 25 %" in str(refused.value)


def test_one_launch_of_each_node_calibrates_nothing(sound: list[TrustedRun]) -> None:
    one = calibrate(thresholds(), SKU, sound[:1], 0.01, 0.25)
    assert one.calibrated == ()
    assert "only 0 of 8 nodes had 2 launches" in one.left[THROUGHPUT]


def test_nodes_may_have_been_launched_in_other_runs(sound: list[TrustedRun], found: Calibration) -> None:
    """Each of the runs with half of the nodes is still two launches of each node."""
    half = {host_name(node) for node in range(NODES // 2)}
    runs = [
        replace(run, name=f"{run.name}-{is_first}", gpus={h: g for h, g in run.gpus.items() if (h in half) == is_first})
        for run in sound
        for is_first in (True, False)
    ]
    apart = calibrate(thresholds(), SKU, runs, 0.01, 0.25)
    assert apart.nodes == found.nodes
    assert (of(apart, THROUGHPUT).value, of(apart, THROUGHPUT).launches) == (of(found, THROUGHPUT).value, 3)


def test_bounds_that_leave_a_speed_unseen_reject_but_do_not_accept(tmp_path: Path) -> None:
    """Three nodes that differ by 1 % bound the training speed of few requirements, and memory not at all."""
    runs = launches(3, nodes(3, node_spread=0.01, gpu_spread=0.01, launch_spread=0.001, nodes_seed=4))
    few = calibrate(thresholds(), SKU, runs, 0.01, 0.25)
    assert few.calibrated
    assert few.unseen
    assert "margin of more than 10 %" in few.left[few.unseen[0]]
    accepting = [one for one in few.calibrated if one.requirement.definition.carries_acceptance]
    assert accepting
    assert not any(map(few.accepts_by, accepting))
    overlay = overlay_of(few, provenance_of(few, runs), thresholds())
    write_overlay(tmp_path / "site.yaml", overlay)
    written = load_thresholds(tmp_path / "site.yaml").thresholds.skus[SKU].requirements
    for one in accepting:
        row = next(row for row in written if row.key() == one.requirement.key())
        assert (row.provisional, row.severity) == (True, "fail")
        assert row.bound == pytest.approx(one.bound, rel=1e-5)
    said = "\n".join(calibration_lines(few, provenance_of(few, runs)))
    assert "of these bounds reject but do not accept: " in said


def test_bounds_on_every_speed_accept(found: Calibration, sound: list[TrustedRun]) -> None:
    assert found.unseen == ()
    assert all(map(found.accepts_by, found.calibrated))
    said = "\n".join(calibration_lines(found, provenance_of(found, sound)))
    assert "do not accept" not in said
