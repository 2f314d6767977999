"""Bounds from simulated launches whose spread is known, and who is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pytest_ddpscale import __version__
from pytest_ddpscale.calibrate.calibration import (
    FALSE_EXCLUSIONS,
    MOST_MARGIN_PCT,
    Calibration,
    Outlier,
    ValueSet,
    calibrate,
    deviating_nodes,
)
from pytest_ddpscale.calibrate.node_values import NodeValue, node_values, why_no_values
from pytest_ddpscale.calibrate.site_bounds import calibration_lines, overlay_of, provenance_of, source_text
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.history.past_run import PastRun
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.simulate.writing import host_name
from pytest_ddpscale.thresholds.cases import NodeCase, cases_for
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.site_file import write_overlay
from pytest_ddpscale.thresholds.waiver import today
from pytest_ddpscale.util.listing import first_nodes
from tests.approved import assert_approved, without_counts
from tests.builders.clusters import thresholds
from tests.builders.probes import measure_probe, probe_evidence, probe_plan, steady
from tests.builders.trusted import PER_NODE, SKU, WORKLOAD, launches, nodes
from tests.rows import rows

NODES = 8
HOSTS = [host_name(node) for node in range(NODES)]
THROUGHPUT, MEMORY = f"throughput_per_gpu[{WORKLOAD}-1gpu]", f"peak_memory_gib[{WORKLOAD}-node]"
CASES = {case.id: case for case in cases_for(thresholds(), SKU, Layout(1, PER_NODE))}


def calibrated(runs: Sequence[PastRun]) -> Calibration:
    return calibrate(thresholds(), SKU, runs, 0.01, 0.25)


def faulty(*faults: str, number: int = 3) -> list[PastRun]:
    return launches(number, nodes(NODES), *faults)


@pytest.fixture(scope="module")
def sound() -> list[PastRun]:
    return faulty()


@pytest.fixture(scope="module")
def found(sound: list[PastRun]) -> Calibration:
    return calibrated(sound)


def test_a_value_is_the_judges(sound: list[PastRun]) -> None:
    """What is worst of all nodes and places is what the judge's verdict says."""
    compared = 0
    for case in CASES.values():
        values = [one.value for one in node_values(case, sound[0].evidence).values()]
        verdict = judge(case, sound[0].evidence, 0.95)
        if values and verdict.outcome in ("passed", "failed"):
            worst = max if case.requirement.definition.upper_bound else min
            assert worst(values) == pytest.approx(verdict.value)
            compared += 1
    assert compared > 10


def test_a_node_that_lacks_rounds_of_a_gpu_has_no_value_and_more_rounds_reach_less_far(sound: list[PastRun]) -> None:
    evidence, lacking = sound[0].evidence, faulty("missing-rank:3:5", number=1)[0].evidence
    for name in (THROUGHPUT, "memory_bandwidth_gbps[memory-copy]"):
        assert set(node_values(CASES[name], lacking)) == {*HOSTS} - {HOSTS[1]}
    longer = tuple(replace(study, rounds=4 * study.rounds) for study in evidence.plan.studies)
    plans = evidence.plan, replace(evidence.plan, studies=longer)
    few, many = (node_values(CASES[THROUGHPUT], replace(evidence, plan=plan))[HOSTS[0]].reach for plan in plans)
    assert many == pytest.approx(few / 2)


def test_sound_nodes_give_bounds_that_they_keep(found: Calibration, sound: list[PastRun]) -> None:
    assert {one.name for one in found.calibrated} == CASES.keys() - found.left.keys()
    for one in found.calibrated:
        sign = 1 if one.requirement.definition.upper_bound else -1
        assert 0 < one.margin_pct <= min(MOST_MARGIN_PCT, one.found_from_pct + 0.01)
        assert found.accepts_by(one)
        every = [value for run in sound for value in node_values(CASES[one.name], run.evidence).values()]
        assert max(sign * value.value for value in every) <= sign * one.bound
        if one.name == THROUGHPUT:
            assert one.value == pytest.approx(one.requirement.sound_value, rel=0.01)


def told(name: str, runs: Sequence[PastRun], rate: float = 0.01, **options: Any) -> Iterator[str]:
    """What came of a calibration, and of two requirements."""
    try:
        found = calibrate(options.pop("file", thresholds()), SKU, runs, rate, 0.25, **options)
    except OptionError as error:
        yield f"{name}: {error}"
        return
    yield f"{name}: {len(found.calibrated)} bounds of {first_nodes(found.nodes)}, {len(found.unseen)} unseen"
    yield from (f"  left out {node}: {why}" for node, why in found.excluded.items())
    for one in found.calibrated:
        if one.name in (THROUGHPUT, MEMORY):
            margin = f"{one.margin_pct:.4g} % to {one.bound:.4g}, weaker: {one.is_weaker}"
            yield f"  {one.name}: {one.value:.4g} of {one.nodes} nodes in {one.launches:.3g} launches, {margin}"
    yield from (f"  {one}: {found.left[one]}" for one in (THROUGHPUT, MEMORY) if one in found.left)


def test_who_is_left_out_and_which_bounds_are_loosened_only_if_told_to(
    tmp_path: Path, sound: list[PastRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.yaml").write_text(
        f"schema_version: 2\nextends: packaged\nsources: {{paper: a paper}}\nskus:\n  {SKU}:\n    requirements:\n"
        f"      - {{throughput_per_gpu: {{1: 935}}, of: {WORKLOAD}, published: paper, margin: 0.1 %}}\n"
        f"      - {{peak_memory_gib: {{node: 46}}, of: {WORKLOAD}, published: paper, margin: 0.1 %}}\n"
    )
    file = load_thresholds(tmp_path / "site.yaml")
    unfit = faulty("corrupt-rank:3", "bad-gpu:8:ecc")[2]
    others = {host: gpus for host, gpus in unfit.gpus.items() if host != HOSTS[4]}
    halves = [
        replace(run, path=f"{run.path}-{half[0]}", gpus={host: run.gpus[host] for host in half})
        for half in (HOSTS[:4], HOSTS[4:]) for run in sound
    ]  # fmt: skip
    # Two at a time are left out of one thing; another two stand out in another.
    many = [f"slow-gpu:{rank}:1.1" for rank in range(4)]
    many += [f"slow-probe:{rank}:memory-copy:0.8" for rank in range(8, 12)]
    said = [
        *told("sound nodes", sound),
        *told("a rarer false reject", sound, 0.001),
        *told("a published bound", sound, file=file),
        *told("a published bound, with --lower", sound, file=file, lowers=True),
        *told("one GPU of node 1 and all of node 4", faulty("slow-gpu:3:1.08", "slow-gpu:8:1.06", "slow-gpu:9:1.06")),
        *told("node 2 in the last launch", [*sound[:2], faulty("slow-gpu:4:1.1", "slow-gpu:5:1.1")[2]]),
        *told("wrong results, a failed check", [*sound[:2], unfit]),
        *told("which was left out of that run", [*sound[:2], replace(unfit, gpus=others)]),
        *told("too many", faulty(*many, number=2)),
        *told("one launch", sound[:1]),
        *told("launches of nodes in other runs", halves),
    ]
    shares = {host: NodeValue(0.5 * (host == HOSTS[7]), 0.0, host) for host in HOSTS}
    of_memory, values = f"memory_spread[{WORKLOAD}-node]", "pytest_ddpscale.calibrate.calibration.node_values"
    monkeypatch.setattr(values, lambda case, _: shares if case.id == of_memory else {})
    said += told("a share of nothing, which is no infinite distance", sound)
    assert_approved("calibrations.txt", "\n".join(said) + "\n")


def test_what_compares_places_has_no_bandwidth_to_calibrate() -> None:
    cases = cases_for(thresholds(), "b200", Layout(4, 8))
    case = next(case for case in cases if case.requirement.definition.compares_places)
    assert isinstance(case, NodeCase)
    assert case.probe is not None
    plan = probe_plan(case.probe, nodes=4)
    evidence = probe_evidence(plan, measure_probe(plan, case.probe, steady(1000.0), 16))
    assert node_values(case, evidence) == {}
    assert "under `peers`" in why_no_values(case, evidence)


def test_bounds_that_leave_a_speed_unseen_reject_but_do_not_accept() -> None:
    """Three nodes that differ by 1 % bound the training speed of few requirements, and memory not at all."""
    runs = launches(3, nodes(3, node_spread=0.01, gpu_spread=0.01, launch_spread=0.001, nodes_seed=4))
    few = calibrated(runs)
    provenance = provenance_of(few, runs)
    said = [*calibration_lines(few, provenance), "", overlay_of(few, provenance, thresholds()).text(Path())]
    changed, left = len(few.calibrated), len(few.left)
    assert f"{changed} of {changed + left} bounds" in said[0]
    assert f"; {left} stay as they are." in said[0]
    assert_approved("calibrate-unseen.txt", without_counts("\n".join(said).replace(__version__, "VERSION")))


def test_a_source_of_many_nodes_is_short_and_says_if_they_were_simulated(
    found: Calibration, sound: list[PastRun]
) -> None:  # fmt: skip
    provenance = {**provenance_of(found, sound), "is_simulated": True}
    text = source_text(replace(found, nodes=tuple(f"n{i:03}" for i in range(125))), provenance)
    assert text.startswith("SIMULATED, no machine was measured: 125 nodes in 3 launches, 2026-11-21 to 2026-11-23; ")
    assert text.endswith("nodes: n[000-124]")


def test_what_the_sites_file_changes_and_waives_holds_for_the_new_rows(tmp_path: Path, sound: list[PastRun]) -> None:
    site, new = (tmp_path / f"{name}.yaml" for name in ("site", "new"))
    signed = {"severity": "warn", "who": "Ada", "why": "slow"}
    waived = {"throughput_per_gpu": "any", "of": WORKLOAD, **signed, "until": today() + timedelta(30)}
    section = {
        "requirements": [
            {"throughput_per_gpu": {1: 700}, "of": WORKLOAD, "provisional": "our guess", "severity": "fail"}
        ],
        "change": [{"memory_bandwidth_gbps": [1], "probe": "memory-copy", **signed}, waived],
    }
    site.write_text(yaml.safe_dump({"schema_version": 2, "extends": "packaged", "skus": {SKU: section}}))
    file = load_thresholds(site)
    found = calibrate(file, SKU, sound, 0.01, 0.25)
    write_overlay(new, overlay_of(found, provenance_of(found, sound), file))
    before, after = (
        {requirement.key(): requirement for requirement in load_thresholds(path).thresholds.skus[SKU].requirements}
        for path in (site, new)
    )
    named = [key for key, one in before.items() if one.where.startswith(str(site)) or one.waiver]
    assert {key[0] for key in named} == {"throughput_per_gpu", "memory_bandwidth_gbps"}
    for key in named:
        assert (after[key].severity, after[key].waiver) == (before[key].severity, before[key].waiver)


NAMES = [f"n{i:02}" for i in range(20)]


def normal(seed: int, **others: float) -> list[float]:
    values = 0.005 * np.random.default_rng(seed).standard_normal(20)
    return [others.get(name, float(value)) for name, value in zip(NAMES, values, strict=True)]


def outliers(
    most: int, *values: Sequence[float], sd: float = 0.0, gap: float = 0.0, logs: bool = False
) -> dict[str, Outlier]:  # fmt: skip
    sets = [ValueSet(str(at), dict(zip(NAMES, of, strict=False)), sd, gap, logs) for at, of in enumerate(values)]
    return deviating_nodes(sets, most)


def test_sound_nodes_stay_nearly_always() -> None:
    wrong = sum(bool(outliers(5, *(normal(100 * seed + part) for part in range(20)))) for seed in range(50))
    assert wrong <= 50 * FALSE_EXCLUSIONS + 3


EQUAL, HAIR, FEW = [4.0] * 20, [4.0001] + [4.0] * 19, [0.0, 0.001, -0.001, -0.05]
MANY = [[1.0] * 4] * 40  # further values of few nodes, whose spread says so little that no chance is beyond it


@rows(
    ("most", "values", "options", "left_out"),
    [
        # Two bad nodes do not hide each other, and are left out of all, the worse one first.
        (5, [normal(1, n03=-0.05, n11=-0.10)], {}, {"n11": "0", "n03": "0"}),
        (5, [normal(1, n00=-0.08), normal(2, n00=-0.08, n01=0.05)], {}, {"n00": "0", "n01": "1"}),
        # Only one may be left out at a time, and then the other one stands out.
        (1, [normal(4, n05=-0.03, n06=-0.5)], {}, {"n06": "0", "n05": "0"}),
        (1, [EQUAL], {}, {}),
        (1, [EQUAL], {"sd": 0.001}, {}),
        (1, [HAIR], {}, {"n00": "0"}),
        (1, [HAIR], {"sd": 0.004}, {}),
        (1, [HAIR], {"gap": 0.001}, {}),
        (1, [[0.0, 0.0, -9.0]], {"sd": 0.001, "logs": True}, {}),  # nobody of three
        (1, [[], [1.0]], {}, {}),
        # Of few nodes one has to be clearly unlike.
        (1, [FEW, *MANY], {"sd": 0.001, "logs": True}, {"n03": "0"}),
        (1, [FEW, *MANY], {"sd": 0.001}, {}),
        (1, [[*FEW[:3], -0.02], *MANY], {"sd": 0.001, "logs": True}, {}),
        (1, [[0.0, 0.02, *FEW[2:]], *MANY], {"sd": 0.001, "logs": True}, {}),
    ],
)
def test_who_is_left_out_and_of_which_values(
    most: int, values: list[list[float]], options: dict[str, Any], left_out: dict[str, str]
) -> None:
    found = outliers(most, *values, **options)
    assert [(node, one.of.name) for node, one in found.items()] == [*left_out.items()]
    assert all(one.distance > 6 and abs(one.centre) < 0.003 for one in found.values() if most == 5)
