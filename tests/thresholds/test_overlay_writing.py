"""What is written into an overlay, and that nothing else of it changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.thresholds.flow_style import WIDTH, flow, flow_lines
from pytest_ddpscale.thresholds.overlay_writing import OverlayChanges, overlay_with

SKU = "rtx-pro-6000-server"
ROW = {"throughput_per_gpu": {1: 812.3, "node": 790.0}, "of": "resnet152-bf16", "published": "new", "margin": "3.1 %"}
CHANGES = OverlayChanges(
    sources={"new": "n1 … n20, 2026-11-23: driver 580.1, it's torch 2.12"},
    batch={"resnet152-bf16": {"per_gpu": 256}},
    requirements=[
        ROW,
        {"busbw_gbps": {"node": 31.2}, "probe": "all-reduce-32mib", "published": "new", "margin": "4 %"},
    ],
)
TYPED = """\
# Our site's numbers.
schema_version: 2

extends: packaged   # as it comes
sources:
  old: "typed in quotes"      # by whom?
skus:
  other: {requirements: []}   # nothing yet
  rtx-pro-6000-server:        # the new racks
    requirements:
      # Throughput.
      - {throughput_per_gpu:      {1: 800, 2: 795},  of: resnet152-bf16, published: old, margin: 5 %}   # by hand
      - {weak_scaling_efficiency: {2: 0.95,          # PCIe
                                   node: 0.93}, of: resnet152-bf16, published: old, margin: 2 %}
      - busbw_gbps:
          node: 30           # measured
        probe: all-reduce-32mib
        provisional: 'guessed from a data sheet'
      # The end.
"""


def test_an_empty_overlay_begins_one() -> None:
    assert overlay_with("", SKU, CHANGES) == (
        "schema_version: 2\n"
        "extends: packaged\n"
        "sources: {new: 'n1 … n20, 2026-11-23: driver 580.1, it''s torch 2.12'}\n"
        "skus:\n"
        "  rtx-pro-6000-server:\n"
        "    batch: {resnet152-bf16: {per_gpu: 256}}\n"
        "    requirements:\n"
        "      - {throughput_per_gpu: {1: 812.3, node: 790.0}, of: resnet152-bf16, published: new, margin: 3.1 %}\n"
        "      - {busbw_gbps: {node: 31.2}, probe: all-reduce-32mib, published: new, margin: 4 %}\n"
    )


def test_only_what_is_said_anew_changes() -> None:
    assert (
        overlay_with(TYPED, SKU, CHANGES)
        == """\
# Our site's numbers.
schema_version: 2

extends: packaged   # as it comes
sources:
  old: "typed in quotes"      # by whom?
  new: 'n1 … n20, 2026-11-23: driver 580.1, it''s torch 2.12'
skus:
  other: {requirements: []}   # nothing yet
  rtx-pro-6000-server:        # the new racks
    requirements:
      # Throughput.
      - {throughput_per_gpu:      {2: 795},  of: resnet152-bf16, published: old, margin: 5 %}   # by hand
      - {throughput_per_gpu: {1: 812.3, node: 790.0}, of: resnet152-bf16, published: new, margin: 3.1 %}
      - {weak_scaling_efficiency: {2: 0.95,          # PCIe
                                   node: 0.93}, of: resnet152-bf16, published: old, margin: 2 %}
      # measured
      - {busbw_gbps: {node: 31.2}, probe: all-reduce-32mib, published: new, margin: 4 %}
    batch: {resnet152-bf16: {per_gpu: 256}}
      # The end.
"""
    )


def test_writing_again_changes_nothing() -> None:
    for text in ("", TYPED):
        once = overlay_with(text, SKU, CHANGES)
        assert overlay_with(once, SKU, CHANGES) == once


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        # Entry by entry out of a flow mapping: the first, the last, all of them.
        ({"weak_scaling_efficiency": {2: 0.96}}, "      # PCIe\n      - {weak_scaling_efficiency: {node: 0.93}, of"),
        ({"weak_scaling_efficiency": {"node": 0.94}}, "- {weak_scaling_efficiency: {2: 0.95}, of: resnet152-bf16, pub"),
        (
            {"weak_scaling_efficiency": {2: 0.96, "node": 0.94}},
            "      # PCIe\n      - {weak_scaling_efficiency: {2: 0.96, node: 0.94}, of",
        ),
    ],
)
def test_world_sizes_that_are_given_are_taken_out_of_other_rows(row: dict[str, Any], expected: str) -> None:
    written = {**row, "of": "resnet152-bf16", "published": "new", "margin": "1 %"}
    found = overlay_with(TYPED, SKU, OverlayChanges(requirements=[written]))
    assert expected in found
    assert flow(written) in found


def test_other_placements_and_reference_skus_are_other_rows() -> None:
    text = overlay_with("", SKU, OverlayChanges(requirements=[ROW]))
    spread = {**ROW, "placement": "spread"}
    found = overlay_with(text, SKU, OverlayChanges(requirements=[spread]))
    assert flow(ROW) in found
    assert flow(spread)[:40] in found.split("\n", maxsplit=6)[-1]
    assert overlay_with(found, SKU, OverlayChanges(requirements=[{**ROW, "placement": "packed"}])).count("spread") == 1


def test_several_rows_take_the_place_of_one_and_one_of_several() -> None:
    one = overlay_with("", SKU, OverlayChanges(requirements=[ROW]))
    rows = [{**ROW, "throughput_per_gpu": {1: 1.0}}, {**ROW, "throughput_per_gpu": {"node": 2.0}, "margin": "4 %"}]
    two = overlay_with(one, SKU, OverlayChanges(requirements=rows))
    assert yaml.safe_load(two)["skus"][SKU]["requirements"] == rows
    commented = two.replace("margin: 4 %}", "margin: 4 %}  # twice")
    assert overlay_with(commented, SKU, OverlayChanges(requirements=[ROW])) == one + "      # twice\n"


@pytest.mark.parametrize(
    "text",
    [
        "schema_version: 2\nskus:\n",
        "schema_version: 2\nskus: {}\nsources: {}\n",
        "schema_version: 2\nskus:\n  rtx-pro-6000-server:   # empty\n",
        "schema_version: 2\nskus:\n  rtx-pro-6000-server:\n    requirements: []   # none\n    batch:\n",
        "{schema_version: 2, skus: {rtx-pro-6000-server: {requirements: [], batch: {}}}}",
        "schema_version: 2\nskus: {rtx-pro-6000-server: {batch: {w: {per_gpu: 1}}}}",
        "{schema_version: 2, sources: {a: b}, skus: {rtx-pro-6000-server: {requirements: [{busbw_gbps: {2: 3}}]}}}",
        "---\nschema_version: 2\n...\n",
        "# only a comment",
        "# typed elsewhere\r\nschema_version: 2\r\nskus:\r\n  cpu: {}\r\n",
    ],
)  # fmt: skip
def test_wherever_there_is_nothing_yet(text: str) -> None:
    before = yaml.safe_load(text) or {}
    found = overlay_with(text, SKU, CHANGES)
    after = yaml.safe_load(found)
    assert after["skus"][SKU]["requirements"][-2:] == CHANGES.requirements
    assert after["skus"][SKU]["batch"]["resnet152-bf16"] == {"per_gpu": 256}
    assert after["sources"]["new"] == CHANGES.sources["new"]
    assert after["schema_version"] == 2
    assert set(before) <= set(after)
    assert found.count("#") == text.count("#")
    assert found.count("\r\n") == (found.count("\n") if "\r\n" in text else 0)
    assert overlay_with(found, SKU, CHANGES) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema_version: 1\nskus: {}\n", "has schema_version 1; expected schema_version 2"),
        ("a: &x 1\nb: *x\n", "has YAML aliases"),
        ("a: [\n", "is not valid YAML"),
        ("- a\n", "is not a mapping"),
        ("schema_version: 2\nskus: 3\n", "skus is not a mapping"),
        ("schema_version: 2\nskus: {rtx-pro-6000-server: {requirements: 3}}\n", "requirements is not a list"),
        ("skus: {rtx-pro-6000-server: {requirements: [{? [a] : b}]}}\n", "is not valid YAML"),
    ],
)
def test_what_cannot_be_changed_is_refused(text: str, said: str) -> None:
    with pytest.raises(ThresholdsError, match=said):
        overlay_with(text, SKU, CHANGES)


def test_long_values_are_broken_where_yaml_allows_it() -> None:
    value = {"because": "a text, 'quoted',  with two  spaces " * 8 + "end", "published": "x" * 150, "margin": "1 %"}
    lines = flow_lines("    - ", value, 7).split("\n")
    assert yaml.safe_load("\n".join(lines)) == [value]
    assert [line for line in lines if len(line) > WIDTH] == [f"       published: {'x' * 150},"]


SCALARS = st.one_of(
    st.text(max_size=20), st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False), st.booleans(),
    st.none(), st.sampled_from(["1e3", "yes", "~", "2026-01-01", "010", "1:30", "nan", "3.1 %", "a: b", "x #y", "'"]),
)  # fmt: skip


@given(st.recursive(SCALARS, lambda below: st.lists(below, max_size=4) | st.dictionaries(SCALARS, below, max_size=4)))
def test_any_value_is_read_as_it_was(value: Any) -> None:
    assert yaml.safe_load(flow(value)) == value
    assert yaml.safe_load(flow_lines("- ", value, 3, width=20)) == [value]


SIZES = st.dictionaries(st.sampled_from([1, 2, "node", "2 nodes", "all"]), st.floats(0.5, 2000), min_size=1)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    row: dict[str, Any] = {draw(st.sampled_from(["throughput_per_gpu", "weak_scaling_efficiency"])): draw(SIZES)}
    row["of"] = draw(st.sampled_from(["w1", "w2"]))
    if draw(st.booleans()):
        row["placement"] = draw(st.sampled_from(["packed", "spread"]))
    return {**row, "published": draw(st.sampled_from(["new", "a longer text, which has to be quoted"]))}


def said_by(requirements: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[Any]]:
    """What rows say of each world size, however they are put into rows."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    for row in requirements:
        metric = next(iter(row))
        others = {key: value for key, value in row.items() if key not in (metric, "placement")}
        for size, value in row[metric].items():
            key = (metric, row["of"], row.get("placement", "packed"), size)
            found.setdefault(key, []).append((value, others["published"]))
    return found


@given(
    st.lists(rows(), min_size=1, max_size=5), st.lists(rows(), min_size=1, max_size=3), st.sampled_from([None, False])
)
def test_any_rows_replace_what_they_say_and_nothing_else(
    old: list[dict[str, Any]], new: list[dict[str, Any]], flow_style: bool | None
) -> None:
    twice: Any = {SKU: {"requirements": old}, "cpu": {"requirements": copy.deepcopy(old)}}
    data = {"schema_version": 2, "skus": twice}
    dumped = yaml.safe_dump(data, default_flow_style=flow_style, sort_keys=False, width=60)
    text = "".join(f"{line}  # {number}\n" for number, line in enumerate(dumped.splitlines()))
    try:
        assert yaml.safe_load(text) == data
    except (yaml.YAMLError, AssertionError):
        text = dumped  # a text goes on over several lines, in which no comment can be
    found = overlay_with(text, SKU, OverlayChanges(requirements=new))
    after = yaml.safe_load(found)
    assert after["skus"]["cpu"] == twice["cpu"]
    expected = copy.deepcopy(said_by(old))
    expected.update(said_by(new))
    assert said_by(after["skus"][SKU]["requirements"]) == expected
    comments = {line.partition("  # ")[2] for line in text.splitlines()} - {""}
    assert comments <= {line.rpartition("# ")[2] for line in found.splitlines()}
