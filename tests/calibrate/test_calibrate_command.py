"""`ddpscale calibrate`, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pytest_ddpscale.cli import main
from tests.builders.trusted import SKU, WORKLOAD, nodes, written

THROUGHPUT = f"throughput_per_gpu[{WORKLOAD}-1gpu]"


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
    assert said.startswith(f"{SKU}: SIMULATED, no machine was measured: 4 nodes")
    assert THROUGHPUT in said
    assert "Left out: simulated-1. " in said
    overlay = said[said.index("schema_version: 2") :]
    assert "SIMULATED" in yaml.safe_load(overlay)["sources"][next(iter(yaml.safe_load(overlay)["sources"]))]


def test_an_overlay_is_written_once_and_its_comments_stay(
    tmp_path: Path, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    overlay = tmp_path / "overlay.yaml"
    ours = "      - {memory_bandwidth_gbps: {1: 1}, probe: memory-copy, provisional: 'by hand'}  # to be replaced\n"
    overlay.write_text(f"# Ours.\nschema_version: 2\nextends: packaged\nskus:\n  {SKU}:\n    requirements:\n{ours}")
    assert calibrated(*runs, "--allow-simulated", "--write", overlay) == 0
    said = capsys.readouterr().out
    assert f"-{ours}" in said
    assert f"+++ {overlay} (now)" in said
    text = overlay.read_text()
    assert text.startswith("# Ours.\nschema_version: 2\nextends: packaged\n")
    assert "# to be replaced" in text
    rows = yaml.safe_load(text)["skus"][SKU]["requirements"]
    assert rows[0]["memory_bandwidth_gbps"][1] == pytest.approx(1056, rel=0.02)
    assert calibrated(*runs, "--allow-simulated", "--write", overlay) == 0
    assert "already has these bounds" in capsys.readouterr().err
    assert overlay.read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["overlay.yaml"]


def test_a_new_overlay_extends_the_packaged_file(tmp_path: Path, runs: list[str]) -> None:
    assert calibrated(*runs, "--allow-simulated", "--write", tmp_path / "new.yaml", "--json") == 0
    assert (tmp_path / "new.yaml").read_text().startswith("schema_version: 2\nextends: packaged\n")


def test_programs_get_json(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        calibrated(*runs, "--allow-simulated", "--json", "--false-reject-rate", "0.1 %", "--gpu-sku=rtx-pro-6000") == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["false_reject_rate"] == pytest.approx(0.001)
    assert {one["node"] for one in found["excluded"]} == {"simulated-1"}
    assert len(found["provenance"]["launches"]) == 3


def test_what_cannot_be_is_refused_in_words(
    tmp_path: Path, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = (*runs, "--allow-simulated")
    overlay = tmp_path / "overlay.yaml"
    assert "was simulated" in refused(capsys, *runs)
    assert "has the same measurements" in refused(capsys, runs[0], runs[0], "--allow-simulated")
    assert "--gpu-sku" in refused(capsys, *simulated, "--gpu-sku=h100")
    assert "a share such as 1%" in refused(capsys, *simulated, "--false-reject-rate=2")
    assert "a share such as 1%" in refused(capsys, *simulated, "--false-reject-rate=1e-300")
    assert "--max-excluded" in refused(capsys, *simulated, "--max-excluded=much")
    assert "does not exist" in refused(capsys, *simulated, "--history", tmp_path / "none.sqlite")
    assert "nothing could be calibrated" in refused(capsys, runs[0], "--allow-simulated", "--write", overlay)
    assert not overlay.exists()
    overlay.write_text("schema_version: 1\nskus: {}\n")
    assert "schema_version is 1" in refused(capsys, *simulated, "--write", overlay)
    assert overlay.read_text() == "schema_version: 1\nskus: {}\n"
