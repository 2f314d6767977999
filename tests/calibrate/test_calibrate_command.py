"""`ddpscale calibrate`, as a person types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pytest_ddpscale.cli import main
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.builders.trusted import SKU, nodes, written

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder, cluster = tmp_path_factory.mktemp("launches"), nodes(5)
    return [str(written(folder / f"run-{number}", cluster, number, ["slow-gpu:3:1.2"]).path) for number in (1, 2, 3)]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], runs: list[str]) -> Typed:
    """Exit code, output and errors; of all runs, as a rehearsal."""
    return lambda *words: (main(["calibrate", "--allow-simulated", *map(str, words), *runs]), *capsys.readouterr())


def test_a_rehearsal_is_marked_and_shows_the_new_file(typed: Typed) -> None:
    code, said, _ = typed()
    assert code == 0
    assert said.startswith("SIMULATED, no machine was measured: ")
    assert f" bounds of {SKU} calibrated from 4 nodes;" in said.splitlines()[0]
    [source] = yaml.safe_load(said[said.index("schema_version: 2") :])["sources"].values()
    assert source.startswith("SIMULATED, no machine was measured: ")


def test_a_new_file_extends_the_thresholds_and_an_existing_one_is_never_changed(tmp_path: Path, typed: Typed) -> None:
    site, new, packaged = (tmp_path / f"{name}.yaml" for name in ("site", "new", "packaged"))
    ours = (
        f"# Ours.\nschema_version: 2\nextends: packaged\nskus:\n  {SKU}:\n    requirements:\n"
        "      - {memory_bandwidth_gbps: {1: 1}, probe: memory-copy, provisional: 'by hand'}\n"
    )
    site.write_text(ours)
    code, said, errors = typed("--thresholds", site, "--write", new)
    text = new.read_text()
    assert (code, text in said) == (0, True)
    assert f"Wrote {new}. Next: ddpscale thresholds check {new}" in errors
    assert yaml.safe_load(text)["extends"] == "site.yaml"
    bounds = {one.metric: one.bound for one in load_thresholds(new).thresholds.skus[SKU].requirements}
    assert bounds["memory_bandwidth_gbps"] == pytest.approx(1056, rel=0.05)
    for file in (site, new):
        code, _, errors = typed("--write", file)
        assert (code, f"--write: found {file}, which exists" in errors) == (4, True)
    assert (site.read_text(), new.read_text()) == (ours, text)
    assert typed("--write", packaged, "--json")[0] == 0
    assert "\nschema_version: 2\nextends: packaged\n" in packaged.read_text()
    assert set(tmp_path.iterdir()) == {site, new, packaged}


def test_programs_get_all_of_it(typed: Typed, runs: list[str]) -> None:
    found = json.loads(typed("--json", "--false-reject-rate", "0.1 %")[1])
    assert found["false_reject_rate"] == pytest.approx(0.001)
    assert list(found["excluded"]) == ["simulated-1"]
    provenance, first = found["provenance"], found["calibrated"][0]
    assert provenance["runs"] == runs
    assert {node: len(gpus) for node, gpus in provenance["gpus"].items()} == dict.fromkeys(
        ("simulated-0", "simulated-2", "simulated-3", "simulated-4"), 2
    )
    assert (first["metric"], first["old_bound"]) == ("peak_memory_gib", 48.5)
    assert found["requirements"][0]["peak_memory_gib"] == {"node": pytest.approx(first["bound"], rel=1e-5)}


def test_what_cannot_be_is_refused_in_words(
    tmp_path: Path, runs: list[str], typed: Typed, capsys: pytest.CaptureFixture[str]
) -> None:
    share, overlay = "a share such as 5%", tmp_path / "overlay.yaml"
    for words, said in (
        (["--false-reject-rate=2"], share),
        (["--false-reject-rate=1e-300"], share),
        (["--max-excluded=much"], "--max-excluded"),
        ([runs[0]], "has the same measurements"),
    ):
        code, _, errors = typed(*words)
        assert (code, said in errors) == (4, True)
    for arguments, said in (
        (runs, "was simulated"),
        ([runs[0], "--allow-simulated", "--write", str(overlay)], "nothing could be calibrated"),
    ):
        assert main(["calibrate", *arguments]) == 4
        assert said in capsys.readouterr().err
    assert not overlay.exists()
