"""`ddpscale calibrate`, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pytest_ddpscale.cli import main
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.builders.trusted import SKU, nodes, written


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder, cluster = tmp_path_factory.mktemp("launches"), nodes(5)
    return [str(written(folder / f"run-{number}", cluster, number, ["slow-gpu:3:1.2"]).path) for number in (1, 2, 3)]


def calibrated(*arguments: str | Path) -> int:
    return main(["calibrate", *map(str, arguments)])


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert calibrated(*arguments) == 4
    return capsys.readouterr().err


def test_a_rehearsal_is_printed_and_marked(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrated(*runs, "--allow-simulated") == 0
    said = capsys.readouterr().out
    assert said.startswith("SIMULATED, no machine was measured: ")
    assert f" bounds of {SKU} calibrated from 4 nodes;" in said.splitlines()[0]
    overlay = said[said.index("schema_version: 2") :]
    assert "SIMULATED" in yaml.safe_load(overlay)["sources"][next(iter(yaml.safe_load(overlay)["sources"]))]


def test_a_new_file_extends_the_thresholds_and_an_existing_one_is_never_changed(
    tmp_path: Path, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    site, new = tmp_path / "site.yaml", tmp_path / "new.yaml"
    ours = (
        f"# Ours.\nschema_version: 2\nextends: packaged\nskus:\n  {SKU}:\n    requirements:\n"
        "      - {memory_bandwidth_gbps: {1: 1}, probe: memory-copy, provisional: 'by hand'}\n"
    )
    site.write_text(ours)
    assert calibrated(*runs, "--allow-simulated", "--thresholds", site, "--write", new) == 0
    text = new.read_text()
    said = capsys.readouterr()
    assert text in said.out
    assert f"Wrote {new}. Next: ddpscale thresholds check {new}" in said.err
    assert yaml.safe_load(text)["extends"] == "site.yaml"
    bounds = {one.metric: one.bound for one in load_thresholds(new).thresholds.skus[SKU].requirements}
    assert bounds["memory_bandwidth_gbps"] == pytest.approx(1056, rel=0.05)
    for file in (site, new):
        assert f"--write: found {file}, which exists" in refused(capsys, *runs, "--allow-simulated", "--write", file)
    assert (site.read_text(), new.read_text()) == (ours, text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.yaml", "site.yaml"]


def test_without_a_file_of_the_site_the_packaged_one_is_extended(tmp_path: Path, runs: list[str]) -> None:
    assert calibrated(*runs, "--allow-simulated", "--write", tmp_path / "new.yaml", "--json") == 0
    assert "\nschema_version: 2\nextends: packaged\n" in (tmp_path / "new.yaml").read_text()


def test_programs_get_json(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrated(*runs, "--allow-simulated", "--json", "--false-reject-rate", "0.1 %") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["false_reject_rate"] == pytest.approx(0.001)
    assert list(found["excluded"]) == ["simulated-1"]
    assert len(found["provenance"]["runs"]) == 3


def test_what_cannot_be_is_refused_in_words(
    tmp_path: Path, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = (*runs, "--allow-simulated")
    overlay = tmp_path / "overlay.yaml"
    assert "was simulated" in refused(capsys, *runs)
    assert "has the same measurements" in refused(capsys, runs[0], runs[0], "--allow-simulated")
    assert "a share such as 5%" in refused(capsys, *simulated, "--false-reject-rate=2")
    assert "a share such as 5%" in refused(capsys, *simulated, "--false-reject-rate=1e-300")
    assert "--max-excluded" in refused(capsys, *simulated, "--max-excluded=much")
    assert "nothing could be calibrated" in refused(capsys, runs[0], "--allow-simulated", "--write", overlay)
    assert not overlay.exists()
