"""`ddpscale init` and `ddpscale thresholds show` and `check`, as a person types them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.run.strict_json import parse_strict_json
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.site_file import json_schema_text
from tests.builders.clusters import thresholds
from tests.rows import rows

Captured = pytest.CaptureFixture[str]
SITE = "schema_version: 2\nextends: packaged\n"


@pytest.fixture(autouse=True)
def _an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DDPSCALE_THRESHOLDS", raising=False)


def test_init_for_a_sku_makes_a_site_that_changes_nothing_yet(tmp_path: Path, capsys: Captured) -> None:
    assert main(["init", "--gpu-sku", "B200", "site"]) == 0
    said = capsys.readouterr().out
    assert "pytest --gpu-sku=b200" in said
    assert f"extends {thresholds().path}" in said
    site = tmp_path / "site"
    assert {path.name for path in site.iterdir()} == {
        "acceptance",
        "slurm",
        "thresholds.schema.json",
        "thresholds.yaml",
    }
    assert (site / "thresholds.schema.json").read_text(encoding="utf-8") == json_schema_text()
    assert len((site / "thresholds.yaml").read_text().splitlines()) <= 40
    assert load_thresholds(site / "thresholds.yaml").thresholds == thresholds().thresholds
    assert main(["thresholds", "check", "site/thresholds.yaml"]) == 0
    said = capsys.readouterr().out
    assert "changes nothing" in said
    assert said.endswith("site/thresholds.yaml: valid, 17 SKUs\n")


@rows(("sku", "words"), [("a100-40gb", "such as a100-sxm4-40gb"), ("cpu-reference", "published reference")])
def test_init_for_what_cannot_be_measured_makes_nothing(sku: str, words: str, tmp_path: Path, capsys: Captured) -> None:
    assert main(["init", "--gpu-sku", sku, "site"]) == 4
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_show_reads_the_file_that_pytest_would(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def file_of(*arguments: str) -> str:
        assert main(["thresholds", "show", "--format=json", *arguments]) == 0
        told = parse_strict_json(capsys.readouterr().out)
        assert isinstance(told, dict)
        return str(told["thresholds"]["path"])

    assert file_of() == str(thresholds().path)
    (tmp_path / "thresholds.yaml").write_text(SITE)
    assert file_of("--gpu-sku=cpu") == "thresholds.yaml"
    other = tmp_path / "other"
    other.mkdir()
    (other / "thresholds.yaml").write_text(SITE)
    monkeypatch.setenv("DDPSCALE_THRESHOLDS", str(other / "thresholds.yaml"))
    assert file_of() == str(other / "thresholds.yaml")
    assert file_of("--thresholds", str(thresholds().path)) == str(thresholds().path)
