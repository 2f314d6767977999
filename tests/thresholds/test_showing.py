"""What is asked of a SKU, row by row, on a terminal and as JSON."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_ddpscale.errors import OptionError, SkuError
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.run.strict_json import parse_strict_json
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.showing import (
    WIDTH,
    asked_json,
    asked_lines,
    asked_of,
    listed_json,
    listed_lines,
    listed_skus,
)
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
        "unit": "fraction", "published": None, "site_value": 0.98, "is_site": True,
        "margin_pct": 0.5, "bound": 0.9751, "bound_is": "at_least",
        "severity": "fail", "provisional": False, "source": "measured here", "file": str(file.path), "line": 7,
        "changed": ["raised", "baseline"], "weaker": False, "probe": None, "check": None,
    }  # fmt: skip
    assert weak.items() >= expected.items()
    assert weak["was"]["bound"] == pytest.approx(0.9745 * 0.985, abs=1e-5)
    assert rows["throughput_per_gpu", "resnet152-fp16", 4]["changed"] == ["added"]
    unchanged = rows[WEAK, "resnet152-fp16", 4]
    assert (unchanged["changed"], unchanged["was"]) == (None, None)
    assert unchanged["file"] == str(thresholds().path)
    assert (unchanged["published"], unchanged["site_value"], unchanged["is_site"]) == (0.9813, None, False)
    assert "smallest_fault" in unchanged


def test_the_list_counts_what_is_published() -> None:
    told = parse_strict_json(listed_json(thresholds()))
    assert isinstance(told, dict)
    assert [one["name"] for one in told["skus"]] == list(thresholds().thresholds.skus)
    for one in listed_skus(thresholds()):
        total = one.published + one.site + one.provisional + one.checks
        assert total == len(thresholds().thresholds.skus[one.name].requirements)


SKUS = list(thresholds().thresholds.skus)


def has_a_path(line: str) -> bool:
    return str(thresholds().path) in line


@rows("verbose", [False, True])
@rows("sku", SKUS)
def test_text_fits_a_terminal(sku: str, verbose: bool) -> None:
    lines = list(asked_lines(asked_of(thresholds(), sku), verbose))
    assert [line for line in lines if len(line) > WIDTH and not has_a_path(line)] == []
    assert [line for line in listed_lines(thresholds()) if len(line) > WIDTH and not has_a_path(line)] == []


def test_what_an_h200_has_to_reach_in_weak_scaling() -> None:
    """Value, margin, bound, severity, whence; and how it is changed for a site."""
    text = "\n".join(asked_lines(asked_of(thresholds(), "H200", "weak_scaling")))
    assert text.startswith("h200 (also h200-sxm-141gb): NVIDIA H200")
    assert re.search(r"resnet50-nchw-fp16 +8 +0\.994 +− 2 % +≥ 0\.97412 +fail +lambdal/deeplearning", text)
    assert re.search(r"resnet152-fp16 +node +provisional +– +≥ 0\.96 +warn +A100-SXM4-80GB published", text)
    assert "weak_scaling_efficiency (fraction, more is better)" in text
    assert f"thresholds: {thresholds().path} (sha256 {thresholds().sha256[:12]}…)" in text
    assert "ddpscale init --gpu-sku h200 DIR" in text


def test_the_example_at_its_end_can_be_used_as_it_is(tmp_path: Path) -> None:
    lines = list(asked_lines(asked_of(thresholds(), "h200", "weak_scaling")))
    start = next(i for i, line in enumerate(lines) if "and in DIR/thresholds.yaml" in line) + 1
    path = tmp_path / "thresholds.yaml"
    path.write_text("\n".join(lines[start:-1]), encoding="utf-8")
    file = load_thresholds(path)
    changed = [row for row in asked_of(file, "h200").rows if row.change is not None]
    assert [row.requirement.metric for row in changed] == ["weak_scaling_efficiency"]


def test_verbose_text_has_each_row_of_the_file_and_its_whole_source() -> None:
    asked = asked_of(thresholds(), "b200")
    text = " ".join(" ".join(asked_lines(asked, verbose=True)).split())
    for row in asked.rows:
        assert row.requirement.where in text
        assert " ".join((row.requirement.source.reference or "").split()) in text
    assert "resnet152-fp16: resnet152, fp16, " in text


def test_a_sites_changes_are_marked(tmp_path: Path) -> None:
    file = site(tmp_path)
    lines = list(asked_lines(asked_of(file, "a100")))
    (at,) = [i for i, line in enumerate(lines) if re.match(r"\* +resnet152-fp16 +8 +site's 0\.98 ", line)]
    assert lines[at + 1].strip() == "was: ≥ 0.959882, of ddp@1"
    assert "  strong_scaling_efficiency of vit-b-16-fp16 at world size 8: ≥ 0.779, of ddp@1" in lines
    assert f"  extending {thresholds().path} (sha256 {thresholds().sha256[:12]}…)" in lines
    assert "This file changes 5 (marked *)." in " ".join(" ".join(lines).split())
    assert any(line.endswith(f"of {file.path}:") for line in lines), "the row goes there"


def test_of_what_is_not_asked_it_says_what_is() -> None:
    text = "\n".join(asked_lines(asked_of(thresholds(), "cpu-reference", "weak_scaling")))
    assert "No requirement on weak_scaling_efficiency. Metrics with one: throughput_per_gpu." in text


def test_checks_are_told_in_words() -> None:
    text = "\n".join(asked_lines(asked_of(thresholds(), "b200", "node_check")))
    assert re.search(r"nvlink +fail +all NVLinks are up", text)


def test_the_list_has_names_aliases_and_counts() -> None:
    text = "\n".join(listed_lines(thresholds()))
    assert re.search(r"\nb200 +b200-sxm-180gb +\d+ +\d+ +16 +NVIDIA", text)


def test_a_source_of_several_lines_stays_in_its_row(tmp_path: Path) -> None:
    row = '{weak_scaling_efficiency: {8: 0.98}, of: resnet152-fp16, provisional: "one\\ntwo\\nthree"}'
    file = site(tmp_path, f"skus: {{a100-sxm4-80gb: {{requirements: [{row}]}}}}\n")
    asked = asked_of(file, "a100", "weak")
    assert any("one two three; rela" in line for line in asked_lines(asked))
