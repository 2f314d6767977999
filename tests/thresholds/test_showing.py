"""What is asked of a SKU, row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale.errors import OptionError, SkuError
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.run.strict_json import parse_strict_json
from pytest_ddpscale.thresholds.showing import asked_json, asked_of, listed_json, listed_skus
from tests.builders.clusters import thresholds
from tests.rows import rows
from tests.thresholds.sites import site

A100 = "a100-sxm4-80gb"
WEAK = "weak_scaling_efficiency"


@rows("sku", list(thresholds().thresholds.skus))
def test_every_requirement_of_a_sku_is_shown_once(sku: str) -> None:
    asked = asked_of(thresholds(), sku)
    shown = [row.requirement for row in asked.rows]
    assert sorted(map(str, shown)) == sorted(map(str, thresholds().thresholds.skus[sku].requirements))
    assert [row.change for row in asked.rows] == [None] * len(shown)
    order = list(METRICS)
    assert [order.index(one.metric) for one in shown] == sorted(order.index(one.metric) for one in shown)


@rows("asked", [WEAK, "Weak-Scaling Efficiency", "weak_scaling", "weak"])
def test_a_metric_is_found_by_a_part_of_its_name(asked: str) -> None:
    found = asked_of(thresholds(), "H200", asked)
    assert (found.name, found.metrics) == ("h200", (WEAK,))
    assert {row.requirement.metric for row in found.rows} == {WEAK}


@rows(
    ("asked", "words"),
    [("weak_scalng_efficiency", "Did you mean .weak_scaling_efficiency"), ("", "one of"), ("x y", "no metric .x y")],
)
def test_an_unknown_metric_is_refused(asked: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        asked_of(thresholds(), "h200", asked)


def test_an_unknown_sku_is_refused() -> None:
    with pytest.raises(SkuError, match="a100-sxm4-40gb"):
        asked_of(thresholds(), "a100-40gb")


def test_what_a_site_changed_is_marked_and_what_it_removed_is_told(tmp_path: Path) -> None:
    asked = asked_of(site(tmp_path), "a100")
    changed = {row.requirement.metric for row in asked.rows if row.change is not None}
    assert changed == {WEAK, "peak_memory_gib", "throughput_per_gpu", "device_utilization"}
    assert [one.metric for one in asked.removed] == ["strong_scaling_efficiency"]
    assert asked_of(site(tmp_path), "a100", "memory").removed == ()
    assert all(row.change is None for row in asked_of(site(tmp_path), "h200").rows)


def test_json_has_it_all(tmp_path: Path) -> None:
    file = site(tmp_path)
    told = parse_strict_json(asked_json(asked_of(file, "a100")))
    assert isinstance(told, dict)
    assert told["sku"] == A100
    assert told["thresholds"] == {"path": str(file.path), "sha256": file.sha256}
    assert [one["sha256"] for one in told["extends"]] == [thresholds().sha256]
    assert told["units"][WEAK] == "fraction"
    assert told["workloads"]["resnet152-fp16"]["batch_size"] == 512
    assert [one["metric"] for one in told["removed"]] == ["strong_scaling_efficiency"]
    rows = {(one["metric"], one["workload"], one["world_size"]): one for one in told["requirements"]}
    weak = rows[WEAK, "resnet152-fp16", 8]
    expected = {
        "unit": "fraction", "published": 0.98, "margin_pct": 0.5, "bound": 0.9751, "bound_is": "at_least",
        "severity": "fail", "provisional": False, "source": "measured here", "file": str(file.path), "line": 7,
        "changed": ["raised", "baseline"], "weaker": False, "probe": None, "check": None,
    }  # fmt: skip
    assert weak.items() >= expected.items()
    assert weak["was"]["bound"] == pytest.approx(0.9745 * 0.985, abs=1e-5)
    assert rows["throughput_per_gpu", "resnet152-fp16", 4]["changed"] == ["added"]
    unchanged = rows[WEAK, "resnet152-fp16", 4]
    assert (unchanged["changed"], unchanged["was"]) == (None, None)
    assert unchanged["file"] == str(thresholds().path)


def test_the_list_counts_what_is_published() -> None:
    told = parse_strict_json(listed_json(thresholds()))
    assert isinstance(told, dict)
    assert [one["name"] for one in told["skus"]] == list(thresholds().thresholds.skus)
    for one in listed_skus(thresholds()):
        total = one.published + one.provisional + one.checks
        assert total == len(thresholds().thresholds.skus[one.name].requirements)
