"""What is asked of a SKU, on a terminal and as Markdown."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_ddpscale.thresholds.asked_text import WIDTH, asked_lines, asked_markdown, listed_lines, listed_markdown
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.showing import asked_of
from tests.builders.clusters import thresholds
from tests.rows import rows
from tests.thresholds.sites import HEAD, site

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
    assert file.problems == ()
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
    (at,) = [i for i, line in enumerate(lines) if re.match(r"\* +resnet152-fp16 +8 +0\.98 ", line)]
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


@rows("sku", ["a100", "b200", "cpu"])
def test_markdown_has_whole_sources_and_the_line_of_each_row(sku: str) -> None:
    asked = asked_of(thresholds(), sku)
    lines = list(asked_markdown(asked))
    rows = [line for line in lines if line.startswith("| ")]
    metrics = {row.requirement.metric for row in asked.rows}
    assert len(rows) == len(asked.rows) + 2 * len(metrics)
    for line in rows:
        assert len(re.findall(r"(?<!\\)\|", line)) == 9
    assert sum(thresholds().sha256 in line for line in lines) == 1
    for row in asked.rows:
        line = row.requirement.where.rpartition(":")[2]
        assert any(one.endswith(f":{line}` |") for one in rows)


def test_the_list_has_names_aliases_and_counts() -> None:
    text = "\n".join(listed_lines(thresholds()))
    assert re.search(r"\nb200 +b200-sxm-180gb +\d+ +\d+ +17 +NVIDIA", text)
    assert sum(line.startswith("| ") for line in listed_markdown(thresholds())) == 2 + len(SKUS)


def test_a_source_of_several_lines_stays_in_its_row(tmp_path: Path) -> None:
    row = '{weak_scaling_efficiency: {8: 0.98}, of: resnet152-fp16, provisional: "one\\ntwo\\nthree"}'
    file = site(tmp_path, f"skus: {{a100-sxm4-80gb: {{requirements: [{row}]}}}}\n")
    asked = asked_of(file, "a100", "weak")
    assert any("one two three; rela" in line for line in asked_lines(asked))
    assert any("provisional: one two three" in line for line in asked_markdown(asked))


def test_markdown_shows_what_a_file_says_and_is_not_steered_by_it(tmp_path: Path) -> None:
    file = site(tmp_path, "", HEAD.replace("measured here", "a | b _c_ *d* <e>"))
    row = "{weak_scaling_efficiency: {8: 0.98}, of: resnet152-fp16, published: site, margin: 1 %}"
    file = site(tmp_path, f"skus: {{a100-sxm4-80gb: {{requirements: [{row}]}}}}\n", file.path.read_text())
    lines = [line for line in asked_markdown(asked_of(file, "a100", "weak")) if "(was: " in line]
    assert len(lines) == 1
    assert r"a \| b \_c\_ \*d\* \<e>" in lines[0]
