"""Bounds from simulated launches whose spread is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_ddpscale.calibrate.calibration import (
    FALSE_EXCLUSIONS,
    MOST_MARGIN_PCT,
    CalibratedRequirement,
    Calibration,
    Outlier,
    ValueSet,
    calibrate,
    deviating_nodes,
)
from pytest_ddpscale.calibrate.node_values import NodeValue, node_values, unfit_nodes, why_no_values
from pytest_ddpscale.calibrate.site_bounds import calibration_lines, overlay_of, provenance_of
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.history.past_run import PastRun
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
from tests.rows import rows

NODES = 8
THROUGHPUT = f"throughput_per_gpu[{WORKLOAD}-1gpu]"
CASES = {case.id: case for case in cases_for(thresholds(), SKU, Layout(1, PER_NODE))}


@pytest.fixture(scope="module")
def sound() -> list[PastRun]:
    return launches(3, nodes(NODES))


@pytest.fixture(scope="module")
def found(sound: list[PastRun]) -> Calibration:
    return calibrate(thresholds(), SKU, sound, 0.01, 0.25)


def of(calibration: Calibration, name: str) -> CalibratedRequirement:
    return next(one for one in calibration.calibrated if one.name == name)


def test_a_value_is_the_judges(sound: list[PastRun]) -> None:
    """What is worst of all nodes and places is what the judge's verdict says."""
    for case in [one for one in CASES.values() if one.requirement.definition.subject != "check"]:
        values = node_values(case, sound[0].evidence)
        if not values:
            continue
        worst = max if case.requirement.definition.upper_bound else min
        verdict = worded(judge(case, sound[0].evidence, 0.95))
        if verdict.outcome in ("passed", "failed"):
            assert worst(one.value for one in values.values()) == pytest.approx(verdict.value)


def test_sound_nodes_give_bounds_that_they_keep(found: Calibration, sound: list[PastRun]) -> None:
    assert found.excluded == {}
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
    tmp_path: Path, sound: list[PastRun], found: Calibration
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


def test_a_rarer_false_reject_takes_a_wider_margin(sound: list[PastRun], found: Calibration) -> None:
    rarer = calibrate(thresholds(), SKU, sound, 0.001, 0.25)
    assert of(rarer, THROUGHPUT).margin_pct > of(found, THROUGHPUT).margin_pct
    assert of(rarer, THROUGHPUT).value == of(found, THROUGHPUT).value


def test_what_is_exact_or_was_not_measured_keeps_its_bound(found: Calibration) -> None:
    assert found.left["node_check[ecc]"] == "exact: there is nothing to calibrate"
    assert found.left[f"replica_agreement[{WORKLOAD}-node]"] == "exact: there is nothing to calibrate"
    assert found.left["no_regression[node]"] == "depends on each node's own history"
    assert found.left["throughput_per_gpu[vit-b-16-fp16-1gpu]"] == "not measured"
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
    assert set(bad.excluded) == {host_name(1), host_name(4)}
    assert all("the others" in why and "times their spread" in why for why in bad.excluded.values())
    assert of(bad, THROUGHPUT).value == pytest.approx(of(found, THROUGHPUT).value, rel=0.004)
    assert of(bad, THROUGHPUT).nodes == NODES - 2


def test_a_share_of_nothing_is_no_infinite_distance(sound: list[PastRun], monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {host_name(node): NodeValue(0.5 * (node == 7), 0.0, host_name(node)) for node in range(NODES)}
    of_memory = f"memory_spread[{WORKLOAD}-node]"
    found = "pytest_ddpscale.calibrate.calibration.node_values"
    monkeypatch.setattr(found, lambda case, _: shares if case.id == of_memory else {})
    [(node, why)] = calibrate(thresholds(), SKU, sound, 0.01, 0.25).excluded.items()
    assert node == host_name(7)
    assert "50.0 %, the others 0.0 % (+0.5, " in why


def test_a_node_that_is_slow_in_one_launch_only_is_left_out() -> None:
    cluster = nodes(NODES)
    runs = [*launches(2, cluster), *launches(3, cluster, "slow-gpu:4:1.1", "slow-gpu:5:1.1")[2:]]
    [(node, why)] = calibrate(thresholds(), SKU, runs, 0.01, 0.25).excluded.items()
    assert node == host_name(2)
    assert "in launch-3" in why


def test_wrong_results_and_failed_checks_leave_a_node_out(sound: list[PastRun]) -> None:
    runs = [*sound[:2], *launches(3, nodes(NODES), "corrupt-rank:3", "bad-gpu:8:ecc")[2:]]
    unfit = unfit_nodes(CASES.values(), runs[2].evidence)
    assert set(unfit) == {host_name(1), host_name(4)}
    assert "ecc" in unfit[host_name(4)]
    assert calibrate(thresholds(), SKU, runs, 0.01, 0.25).excluded == unfit


def test_too_many_that_do_not_belong_are_refused() -> None:
    """Two at a time are left out of one thing; another two stand out in another."""
    faults = [
        *(f"slow-gpu:{rank}:1.1" for rank in range(4)),
        *(f"slow-probe:{rank}:memory-copy:0.8" for rank in range(8, 12)),
    ]
    with pytest.raises(OptionError, match="4 of 8 nodes are outliers or unfit") as refused:
        calibrate(thresholds(), SKU, launches(2, nodes(NODES), *faults), 0.01, 0.25)
    assert "at most 25 %" in str(refused.value)


def test_one_launch_of_each_node_calibrates_nothing(sound: list[PastRun]) -> None:
    one = calibrate(thresholds(), SKU, sound[:1], 0.01, 0.25)
    assert one.calibrated == ()
    assert "only 0 of 8 nodes had 2 launches" in one.left[THROUGHPUT]


def test_nodes_may_have_been_launched_in_other_runs(sound: list[PastRun], found: Calibration) -> None:
    """Each of the runs with half of the nodes is still two launches of each node."""
    half = {host_name(node) for node in range(NODES // 2)}
    runs = [
        replace(run, path=f"{run.path}-{is_first}", gpus={h: g for h, g in run.gpus.items() if (h in half) == is_first})
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


def test_bounds_on_every_speed_accept(found: Calibration, sound: list[PastRun]) -> None:
    assert found.unseen == ()
    assert all(map(found.accepts_by, found.calibrated))
    assert "do not accept" not in "\n".join(calibration_lines(found, provenance_of(found, sound)))


NAMES = [f"n{i:02}" for i in range(20)]


def normal(seed: int) -> list[float]:
    return [float(one) for one in 0.005 * np.random.default_rng(seed).standard_normal(20)]


def outliers(most: int, *values: Sequence[float], least_sd: float = 0.0, least_gap: float = 0.0) -> dict[str, Outlier]:
    sets = [ValueSet(str(at), dict(zip(NAMES, of, strict=False)), least_sd, least_gap) for at, of in enumerate(values)]
    return deviating_nodes(sets, most)


def test_two_bad_nodes_do_not_hide_each_other() -> None:
    values = normal(1)
    values[3], values[11] = -0.05, -0.10
    found = outliers(5, values)
    assert list(found) == ["n11", "n03"]
    assert abs(found["n11"].centre) < 0.003
    assert found["n11"].distance > found["n03"].distance > 6
    values = normal(4)  # only one may be left out at a time, and then the other one stands out
    values[5], values[6] = -0.03, -0.5
    assert list(outliers(1, values)) == ["n06", "n05"]


def test_who_deviates_in_one_thing_is_left_out_of_all() -> None:
    fast, slow = normal(1), normal(2)
    fast[0] = slow[0] = -0.08
    slow[1] = 0.05
    found = outliers(5, fast, slow)
    assert set(found) == {"n00", "n01"}
    assert found["n01"].of.name == "1"


def test_sound_nodes_stay_nearly_always() -> None:
    wrong = sum(bool(outliers(5, *(normal(100 * seed + part) for part in range(20)))) for seed in range(50))
    assert wrong <= 50 * FALSE_EXCLUSIONS + 3


@rows(
    ("values", "least", "left_out"),
    [
        ([4.0] * 20, {}, []),
        ([4.0] * 20, {"least_sd": 0.001}, []),
        ([4.0001] + [4.0] * 19, {"least_sd": 0.004}, []),  # a hair
        ([4.0001] + [4.0] * 19, {"least_gap": 0.001}, []),
        ([4.0001] + [4.0] * 19, {}, ["n00"]),
        ([0.5] + [0.0] * 7, {"least_sd": 0.001, "least_gap": 0.01}, ["n00"]),  # of shares of nothing
        ([0.0, 0.0, -9.0], {"least_sd": 0.001}, []),  # nobody of three
        ([], {}, []),
    ],
)
def test_equal_nodes_stay(values: list[float], least: dict[str, float], left_out: list[str]) -> None:
    found = outliers(5, values, [1.0], **least)
    assert list(found) == left_out
    assert all(math.isfinite(one.distance) for one in found.values() if "least_sd" in least)


def test_of_few_nodes_one_has_to_be_clearly_unlike() -> None:
    """The spread of three nodes says so little that no chance is beyond it."""
    others = [ValueSet(str(part), dict.fromkeys(("n0", "n1", "n2", "n3"), 1.0)) for part in range(40)]

    def left_out(are_logs: bool = True, **changed: float) -> list[str]:
        values = {"n0": 0.0, "n1": 0.001, "n2": -0.001, "n3": -0.05} | changed
        return list(deviating_nodes([ValueSet("speed", values, 0.001, 0.0, are_logs), *others], 1))

    assert left_out() == ["n3"]
    assert left_out(n3=-0.02) == left_out(n1=0.02) == left_out(are_logs=False) == []
