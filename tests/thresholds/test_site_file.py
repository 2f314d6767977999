"""A site's files: a first thresholds.yaml, small and valid, and overlays, which are new and valid, or not written."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from pytest_ddpscale.errors import OptionError, ThresholdsError
from pytest_ddpscale.thresholds.changes import all_changes
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.thresholds.model import Requirement
from pytest_ddpscale.thresholds.site_file import (
    Overlay,
    json_schema_text,
    refuse_unwritable,
    site_file,
    write_overlay,
)
from pytest_ddpscale.util.packaged import packaged
from tests.builders.clusters import thresholds
from tests.rows import rows

SKU = "h200"
WORKLOAD = "resnet152-bf16"
BATCH = "{per_gpu: 512, global: 4096}"
SITE = f"schema_version: 2\nextends: packaged\nskus:\n  {SKU}:\n    batch: {{{WORKLOAD}: {BATCH}}}\n"
ROW = {"throughput_per_gpu": {1: 1234.5}, "of": WORKLOAD, "published": "calibrated-2026-11-23", "margin": "2.5 %"}


def used(text: str) -> str:
    """With every example in use."""
    return re.sub(
        r"^( *)# ( *(?:- |site:|SKU:|a100-sxm4-80gb:|requirements:|change:))", r"\1\2", text, flags=re.MULTILINE
    )


def load(directory: Path, text: str) -> ThresholdsFile:
    path = directory / "thresholds.yaml"
    path.write_text(text, encoding="utf-8")
    return load_thresholds(path)


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
    metrics = {one.either.metric for one in change.bounds}
    assert metrics == {"weak_scaling_efficiency", "device_utilization"}
    assert all("matmul-bf16" in part and "waiver by NAME until" in part for part in change.parts)
    assert change.parts


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


def overlay(below: Path, per_gpu: int = 768, workload: str = WORKLOAD) -> Overlay:
    section = {"batch": {workload: {"per_gpu": per_gpu}}, "requirements": [ROW]}
    sources = {"calibrated-2026-11-23": "3 nodes (n1 n2 n3): driver 580.1, 1 ≤ 2; “ours” #1"}
    return Overlay("calibrate", load_thresholds(below), SKU, section, sources)


def requirements(path: Path) -> list[Requirement]:
    return [replace(requirement, where="") for requirement in load_thresholds(path).thresholds.skus[SKU].requirements]


def test_the_packaged_file_is_extended_by_name_and_a_sites_file_by_its_path(tmp_path: Path) -> None:
    write_overlay(tmp_path / "first.yaml", overlay(packaged("thresholds.yaml")))
    site, folder = tmp_path / "site.yaml", tmp_path / "folder"
    site.write_text(SITE)
    folder.mkdir()
    write_overlay(folder / "second.yaml", overlay(site))
    named = tmp_path / "packaged"
    named.write_text(SITE)
    write_overlay(tmp_path / "third.yaml", overlay(named))
    extended = [yaml.safe_load(path.read_text())["extends"] for path in sorted(tmp_path.rglob("*[td].yaml"))]
    assert sorted(extended) == ["../site.yaml", "./packaged", "packaged"]
    chain = load_thresholds(folder / "second.yaml")
    assert [layer.path.name for layer in chain.layers] == ["thresholds.yaml", "site.yaml", "second.yaml"]


def test_the_file_says_what_wrote_it_and_has_the_sources_of_its_rows(tmp_path: Path) -> None:
    text = write_overlay(tmp_path / "new.yaml", overlay(packaged("thresholds.yaml")))
    assert text.startswith("# Written by ddpscale ")
    assert f"batch:\n      {WORKLOAD}: {{per_gpu: 768}}" in text
    [found] = [one for one in requirements(tmp_path / "new.yaml") if one.source.reference and one.bound == 1203.64]
    assert found.source.reference == "3 nodes (n1 n2 n3): driver 580.1, 1 ≤ 2; “ours” #1"


def test_what_exists_is_refused_and_stays(tmp_path: Path) -> None:
    site, link = tmp_path / "site.yaml", tmp_path / "link.yaml"
    site.write_text(SITE)
    link.symlink_to(tmp_path / "nowhere.yaml")
    for file in (site, link, tmp_path):
        with pytest.raises(OptionError, match=f"--write: found {file}, which exists; expected a new file. .*NEW.yaml"):
            refuse_unwritable(file, thresholds())
    with pytest.raises(OSError, match="exists"):  # somebody was faster
        write_overlay(site, overlay(site))
    assert site.read_text() == SITE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "site.yaml"]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="whose folder cannot be written"):
        refuse_unwritable(tmp_path / "nowhere" / "new.yaml", thresholds())


def test_a_file_that_would_be_one_too_many_is_refused(tmp_path: Path) -> None:
    below = packaged("thresholds.yaml")
    for number in range(4):
        file = load_thresholds(below)
        refuse_unwritable(tmp_path / f"{number}.yaml", file)
        write_overlay(tmp_path / f"{number}.yaml", Overlay("calibrate", file, SKU, {"aliases": [f"a{number}"]}))
        below = tmp_path / f"{number}.yaml"
    assert load_thresholds(below).thresholds.skus[SKU].aliases == ("a3",)
    with pytest.raises(OptionError, match=r"3.yaml already extends 4 files; expected fewer"):
        refuse_unwritable(tmp_path / "4.yaml", load_thresholds(below))


def test_a_file_that_would_be_invalid_is_not_written(tmp_path: Path) -> None:
    new = tmp_path / "new.yaml"
    with pytest.raises(ThresholdsError, match=rf"{new}:[0-9]+: .*resnet152-bf61.*; the file was not written"):
        write_overlay(new, overlay(packaged("thresholds.yaml"), workload="resnet152-bf61"))
    assert list(tmp_path.iterdir()) == []
