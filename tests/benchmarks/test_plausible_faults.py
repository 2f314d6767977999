"""Plausible faults are seen, or the table says why not: the whole script, with one run of a few."""

from __future__ import annotations

import sys

import pytest

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged
from tests.benchmarks.scripts import benchmark

plausible = benchmark("plausible_faults")
FAULTS = {fault.name: fault for fault in plausible.FAULTS}


def test_what_is_rejected_is_named_and_what_is_not_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--skus", "b200", "--nodes", "1", "--runs", "1", "--match", "^sound|memor|host path$"]
    monkeypatch.setattr(sys, "argv", ["plausible_faults.py", *arguments])
    assert plausible.main() == 0
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    seen = {cells[0]: cells[2] for cells in lines if len(cells) == 3}
    assert seen["a GPU's memory"] == seen["a GPU's host path"] == "rejected"
    assert seen["all memories"] == "**not seen**"
    rows = {cells[0]: cells[1:] for cells in lines if len(cells) > 3}
    assert rows["sound"][:4] == ["1", "accepted", "nothing", "–"]
    assert rows["a GPU's memory"][:4] == ["1", "rejected", "probe_uniformity[memory-copy]", "1/1"]
    assert rows["a GPU's host path"][:4] == ["1", "rejected", "host_bandwidth_gbps (2)", "1/1"]
    assert rows["all memories"][:4] == ["1", "accepted", "nothing", "–"]


def test_a_reason_has_the_nearest_bound_and_the_one_that_would_see_it() -> None:
    file = load_thresholds(packaged("thresholds.yaml"))
    of_all, one_node = FAULTS["all links in nodes"], Layout(1, 8)
    lines = [one for one in file.thresholds.skus["b200"].requirements if plausible.is_asked(one, of_all, one_node)]
    assert {one.metric for one in lines} == {"busbw_gbps", "pair_bandwidth_gbps"}
    assert all(one.world_size in (8, "node") for one in lines), "nothing between nodes"
    between = FAULTS["all ports to other nodes"]
    asked = [one for one in file.thresholds.skus["b200"].requirements if plausible.is_asked(one, between, Layout(4, 8))]
    assert {one.world_size for one in asked} == {"2 nodes", "4 nodes", "all"}
    row = plausible.Row("b200", 1, FAULTS["all memories"], ())
    (copy,) = [one for one in file.thresholds.skus["b200"].requirements if one.metric == "memory_bandwidth_gbps"]
    assert copy.sound is not None
    said = f"memory_bandwidth_gbps[memory-copy] warns from {100 * (1 - copy.bound / copy.sound):.3g} % "
    assert plausible.why_not(row, file) == (
        f"no row can reject; {said}(bound {copy.bound:.4g}; {0.9 * copy.sound:.4g} would see it)"
    )
