"""`ddpscale calibrate`, as a person types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace as altered

from pytest_ddpscale import __version__
from pytest_ddpscale.cli import main
from tests.approved import assert_approved, masked, without_counts
from tests.builders.trusted import SKU, nodes, written

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder, cluster = tmp_path_factory.mktemp("launches"), nodes(6)
    runs = [written(folder / f"run-{number}", cluster, number, ["slow-gpu:3:1.3"]) for number in (1, 2, 3)]
    for day, run in enumerate(runs, 1):
        run.write_json(run.run_json, altered(run.read_run(), started_at=f"2025-11-2{day}T10:00:00+00:00"))
    return [str(run.path) for run in runs]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], runs: list[str]) -> Typed:
    """Exit code, output and errors; of all runs, as a rehearsal, if none is named."""
    every = ["--allow-simulated", *runs]
    return lambda *words, of=every: (main(["calibrate", *map(str, words), *of]), *capsys.readouterr())


def test_people_are_told_what_was_found_and_get_the_new_file(typed: Typed) -> None:
    """The packaged file's rows that warn though they are not provisional still warn."""
    code, said, _ = typed()
    assert code == 0
    assert_approved("calibrate.txt", without_counts(said.replace(__version__, "VERSION")))


def test_a_new_file_extends_the_thresholds_and_an_existing_one_is_never_changed(tmp_path: Path, typed: Typed) -> None:
    site, new, packaged = (tmp_path / f"{name}.yaml" for name in ("site", "new", "packaged"))
    ours = f"# Ours.\nschema_version: 2\nextends: packaged\nskus: {{{SKU}: {{}}}}\n"
    site.write_text(ours)
    code, said, errors = typed("--thresholds", site, "--write", new)
    text = new.read_text()
    assert (code, text in said) == (0, True)
    assert f"Wrote {new}. Next: ddpscale thresholds check {new}" in errors
    assert yaml.safe_load(text)["extends"] == "site.yaml"
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
    kept = {f"simulated-{node}": 2 for node in (0, 2, 3, 4, 5)}
    assert {node: len(gpus) for node, gpus in provenance["gpus"].items()} == kept
    assert (first["metric"], first["old_bound"]) == ("peak_memory_gib", 48.5)
    assert found["requirements"][0]["peak_memory_gib"] == {"node": pytest.approx(first["bound"], rel=1e-5)}


def test_mistakes_are_sentences(tmp_path: Path, runs: list[str], typed: Typed) -> None:
    written, said = tmp_path / "overlay.yaml", ""
    for words, of in (
        ("--false-reject-rate=2", runs), ("--false-reject-rate=1e-300", runs), ("--max-excluded=much", runs),
        ("--allow-simulated", runs + runs[:1]), ("", runs), (f"--allow-simulated --write={written}", runs[:1]),
    ):  # fmt: skip
        code, _, errors = typed(*words.split(), of=of)
        said += f"{words}: {code} {errors}"
    assert_approved("calibrate-mistakes.txt", masked(said.replace(str(Path(runs[0]).parent), "RUNS"), tmp_path))
    assert not written.exists()
