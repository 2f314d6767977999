"""What a site's file changes, for whoever edits it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale.session.sources import Site, Subject
from pytest_ddpscale.settings import Settings
from pytest_ddpscale.thresholds.changes import BoundChange, SkuChange, all_changes
from tests.builders.clusters import thresholds
from tests.thresholds.sites import site

A100 = "a100-sxm4-80gb"


@pytest.fixture
def change(tmp_path: Path) -> SkuChange:
    (found,) = all_changes(site(tmp_path))
    return found


def by_metric(change: SkuChange) -> dict[str, BoundChange]:
    return {one.either.metric: one for one in change.bounds}


def test_each_kind_of_change_is_counted(change: SkuChange) -> None:
    assert str(change) == (
        f"{A100}: 2 bounds raised, 1 requirement added, 1 requirement removed, 1 severity changed, "
        "1 one-GPU baseline changed"
    )
    assert {metric: one.kinds for metric, one in by_metric(change).items()} == {
        "weak_scaling_efficiency": ("raised", "baseline"),
        "peak_memory_gib": ("raised",),
        "throughput_per_gpu": ("added",),
        "strong_scaling_efficiency": ("removed",),
        "device_utilization": ("severity",),
    }


def test_what_is_met_more_easily_is_weaker(change: SkuChange) -> None:
    weaker = {metric for metric, one in by_metric(change).items() if one.is_weaker}
    assert weaker == {"peak_memory_gib", "strong_scaling_efficiency", "device_utilization"}


def test_a_row_that_changes_nothing_is_idle(change: SkuChange) -> None:
    (idle,) = change.idle
    assert (idle.metric, idle.workload, idle.world_size) == ("throughput_per_gpu", "resnet50-fp16", 1)
    assert idle.where.endswith("thresholds.yaml:10")


def test_a_severity_that_it_has_already_is_idle(tmp_path: Path) -> None:
    told = "{device_utilization: [8], of: resnet152-fp16, severity: fail, who: A. Name, why: it is so}"
    (found,) = all_changes(site(tmp_path, f"skus: {{{A100}: {{change: [{told}]}}}}\n"))
    assert found.bounds == ()
    assert [one.metric for one in found.idle] == ["device_utilization"]
    assert str(found) == f"{A100}: nothing changed"


def test_an_efficiency_relative_to_one_gpu_under_ddp_is_weaker_at_the_same_bound(tmp_path: Path) -> None:
    row = "{weak_scaling_efficiency: {8: 0.926}, of: resnet50-nchw-fp16, published: site, margin: 2 %, baseline: ddp}"
    file = site(tmp_path, f"skus: {{v100-sxm2-16gb: {{requirements: [{row}]}}}}\n")
    (found,) = all_changes(file)
    assert ([bound.kinds for bound in found.bounds], found.idle) == ([("baseline",)], ())
    (lowered,) = Subject(Site(Settings(), tmp_path, tmp_path), file, "v100-sxm2-16gb").lowered
    assert lowered.was == lowered.now
    assert lowered.requirement.endswith(" at world size 8, now relative to ddp@1, one GPU under DDP")


def test_a_margin_changes_the_bounds_of_every_sku_that_has_it(tmp_path: Path) -> None:
    """It is written nowhere near the rows that it changes."""
    found = {one.sku: one for one in all_changes(site(tmp_path, "margins: {generation_ratio: 50 %}\n"))}
    assert A100 in found
    assert {kind for one in found.values() for bound in one.bounds for kind in bound.kinds} == {"lowered"}
    assert all(bound.is_weaker for one in found.values() for bound in one.bounds)


def test_a_published_value_in_place_of_an_estimate_is_told(tmp_path: Path) -> None:
    row = "{throughput_per_gpu: {1: 2220}, of: resnet50-fp16, published: site, margin: 0 %, severity: warn}"
    (found,) = all_changes(site(tmp_path, f"skus: {{{A100}: {{requirements: [{row}]}}}}\n"))
    (bound,) = found.bounds
    assert bound.kinds == ("standing",)
    assert str(bound).endswith("≥ 2220, provisional, only warns → ≥ 2220, only warns")


def test_what_is_trained_and_expected_is_told_besides(tmp_path: Path) -> None:
    (found,) = all_changes(
        site(tmp_path, f"skus: {{{A100}: {{batch: {{resnet50-fp16: 256}}, node: {{nvlinks: 11}}}}}}\n")
    )
    assert found.bounds == ()
    assert found.parts == ("`node`", "what resnet50-fp16 trains (batch_size 1024 → 256)")


def test_a_check_that_only_warns_is_weaker(tmp_path: Path) -> None:
    (found,) = all_changes(
        site(
            tmp_path,
            f"skus: {{{A100}: {{change: [{{check: nvlink, severity: warn, who: A. Name, why: it is so}}]}}}}\n",
        )
    )
    (bound,) = found.bounds
    assert bound.is_weaker
    assert str(bound).endswith("must pass → must pass, only warns")


def test_a_sku_of_the_sites_own_is_new(tmp_path: Path) -> None:
    text = "skus: {l40s: {description: L40S, detect: {name: '^L40S$'}}}\n"
    (found,) = all_changes(site(tmp_path, text))
    assert (found.is_new, str(found)) == (True, "l40s: new")


def test_a_file_that_extends_none_changes_nothing() -> None:
    assert all_changes(thresholds()) == []
