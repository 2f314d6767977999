"""The thresholds.yaml that `ddpscale init` writes: small, valid as it is, and its examples do what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.thresholds.changes import all_changes
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.thresholds.site_file import json_schema_text, site_example, site_file, site_row
from tests.builders.clusters import thresholds
from tests.rows import rows


def used(text: str) -> str:
    """With every example in use."""
    return re.sub(
        r"^( *)# ( *(?:- |site:|SKU:|a100-sxm4-80gb:|requirements:|change:))", r"\1\2", text, flags=re.MULTILINE
    )


def load(directory: Path, text: str) -> ThresholdsFile:
    path = directory / "thresholds.yaml"
    path.write_text(text, encoding="utf-8")
    file = load_thresholds(path)
    assert file.problems == ()
    return file


@rows("sku", ["", "a100-sxm4-80gb"])
def test_it_is_small_and_valid_and_changes_nothing(sku: str, tmp_path: Path) -> None:
    text = site_file(sku)
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 120
    file = load(tmp_path, text)
    assert all_changes(file) == []
    assert file.thresholds.skus == thresholds().thresholds.skus


def test_its_examples_replace_change_and_waive(tmp_path: Path) -> None:
    (change,) = all_changes(load(tmp_path, used(site_file("a100-sxm4-80gb"))))
    assert change.sku == "a100-sxm4-80gb"
    assert change.idle == ()
    metrics = {one.either.metric for one in change.bounds}
    assert metrics == {"weak_scaling_efficiency", "device_utilization"}
    assert all("matmul-bf16" in part and "waiver by NAME until" in part for part in change.parts)
    assert change.parts


@rows("sku", ["b200", "cpu", "a100-sxm4-80gb"])
def test_an_example_row_gives_the_bound_that_there_is(sku: str, tmp_path: Path) -> None:
    was = next(one for one in thresholds().thresholds.skus[sku].requirements if one.metric == "peak_memory_gib")
    file = load(tmp_path, "\n".join(site_example(sku, was)))
    (now,) = [one for one in file.thresholds.skus[sku].requirements if one.key() == was.key()]
    assert now.bound == pytest.approx(was.bound, rel=1e-3)
    assert not now.provisional
    assert "published: site" in site_row(was)


@rows("text", [site_file(""), site_file("b200"), used(site_file("a100-sxm4-80gb"))])
def test_editors_take_it(text: str) -> None:
    """The schema, which says so to an editor, takes sections that have only comments."""
    jsonschema.validate(_named(yaml.safe_load(text)), json.loads(json_schema_text()))


def _named(data: object) -> object:
    """As JSON has it: keys are text, and so are days."""
    if isinstance(data, dict):
        return {str(key): _named(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_named(one) for one in data]
    return data if isinstance(data, (str, int, float)) or data is None else str(data)


def test_a_file_that_extends_none_has_no_empty_sections(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text("schema_version: 2\nskus:\n", encoding="utf-8")
    with pytest.raises(ThresholdsError, match="skus is None"):
        load_thresholds(path)
