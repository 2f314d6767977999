"""What is written into a site's overlay is shown first, and never breaks it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.overlay_file import write_overlay
from pytest_ddpscale.thresholds.overlay_writing import OverlayChanges

BATCH = OverlayChanges(batch={"resnet152-bf16": {"per_gpu": 768}})


def test_a_new_overlay_is_shown_written_and_loaded(tmp_path: Path) -> None:
    file, shown = tmp_path / "site.yaml", list[str]()
    assert write_overlay(file, "b200", BATCH, shown.append)
    [difference] = shown
    assert "+    batch: {resnet152-bf16: {per_gpu: 768}}" in difference
    assert load_thresholds(file).thresholds.skus["b200"].workloads["resnet152-bf16"].batch_size == 768
    assert load_thresholds(file).thresholds.skus["b200"].workloads["resnet152-bf16"].global_batch_size == 256
    assert not write_overlay(file, "b200", BATCH, shown.append)
    assert len(shown) == 1
    assert list(tmp_path.iterdir()) == [file]


def test_an_overlay_that_would_not_be_valid_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("schema_version: 2\nextends: packaged\nskus: {}\n")
    broken = OverlayChanges(batch={"resnet152-bf61": {"per_gpu": 768}})
    shown: list[str] = []
    with pytest.raises(
        ThresholdsError, match=r"site\.yaml:\d+: .*did you mean 'resnet152-bf16'.*the file was not changed"
    ):
        write_overlay(file, "b200", broken, shown.append)
    assert file.read_text() == "schema_version: 2\nextends: packaged\nskus: {}\n"
    assert shown == []
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_stays_one_and_no_other_file_is_touched(tmp_path: Path) -> None:
    file, link, other = tmp_path / "real.yaml", tmp_path / "site.yaml", tmp_path / "site.yaml.new"
    file.write_text("schema_version: 2\nextends: packaged\nskus: {}\n")
    other.write_text("of somebody")
    link.symlink_to(file)
    assert write_overlay(link, "b200", BATCH, print)
    assert link.is_symlink()
    assert "per_gpu: 768" in file.read_text()
    assert other.read_text() == "of somebody"
    assert set(tmp_path.iterdir()) == {file, link, other}


@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_what_has_no_end_is_not_read(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ThresholdsError, match="is a device or a pipe"):
        write_overlay(tmp_path / name, "b200", BATCH, print)
