"""`ddpscale history`, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.history.store import add_run, writing
from pytest_ddpscale.run.survey_record import Survey
from tests.approved import assert_approved, masked
from tests.builders.nights import SKU, at, conclude, judged_run

HOSTS = [f"n{number}" for number in range(1, 8)]


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Seven nodes over seven nights; in the last one GPU 1 of n3 lost a tenth, after an update."""
    file = tmp_path / "site" / "history.sqlite"
    for night in range(7):
        for host in HOSTS:
            fell = (night, host) == (6, "n3")
            paces = [100.0 + night % 2, 90.0 if fell else 100.0]
            run = judged_run(
                tmp_path / f"{night}{host}", night, {host: paces}, driver="580" if night == 6 else "575",
                outcome="rejected" if fell else "accepted",
            )  # fmt: skip
            add_run(file, run.path)
    monkeypatch.setenv("DDPSCALE_HISTORY", str(file))
    return file


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["history", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["history", *map(str, arguments)]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_nodes_and_one_node_are_told_to_people_and_programs(
    capsys: pytest.CaptureFixture[str], history: Path, tmp_path: Path
) -> None:
    told = [said(capsys), said(capsys, "n3", "--history", history)]
    assert_approved("history.txt", masked("\n".join(told), tmp_path))
    [node] = json.loads(said(capsys, "n3", "--format", "json", "--gpu-sku", SKU))
    assert (node["sku"], node["host"], node["changes"]) == (SKU, "n3", ["driver 575 before, 580 now"])
    assert [run["started_at"] for run in node["runs"]] == [at(night) for night in range(7)]
    assert sum(drift["is_worse"] for drift in node["drifts"]) == 2
    assert {drift["past"]["number"] for drift in node["drifts"]} == {6}


def test_one_run_says_that_it_takes_more(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "new.sqlite"
    run = judged_run(tmp_path / "run")
    assert said(capsys, "--history", file, "--add", run.path) == f"{run.path}: added\n"
    text = said(capsys, "n1", "--history", file)
    assert "a value is judged after 5 earlier runs." in text
    assert "nothing to compare with" in said(capsys, "--history", file)


def test_a_gpu_that_was_replaced_begins_anew_and_the_old_one_is_told_of_no_more(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "h.sqlite"
    for night in range(8):
        run = judged_run(tmp_path / str(night), night)
        if night == 6:
            told = run.measurements_jsonl.read_text().replace("GPU-n1-1", "GPU-new")
            run.measurements_jsonl.write_text(told)
        if night == 7:  # a night that only looked at the node
            run.measurements_jsonl.unlink()
            run.append_record(Survey("n1", 1.0))
        conclude(run, "partial", at(night))
        add_run(file, run.path)
    lines = said(capsys, "n1", "--history", file).splitlines()
    assert [line.split("img/s")[1].strip() for line in lines if "2 at once" in line] == [
        "+0.0 % from 100 ± 0.0 % of 6 runs",
        "too few runs",
    ]
    assert "0 of 4 values worse" in "\n".join(lines)


def test_adding_goes_on_after_a_directory_that_is_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DDPSCALE_HISTORY", raising=False)
    runs = [judged_run(tmp_path / str(night), night).path for night in range(2)]
    assert main(["history", "--add", str(runs[0]), "nowhere", "nothing", str(runs[1]), str(runs[0])]) == 4
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [f"{runs[0]}: added", f"{runs[1]}: added", f"{runs[0]}: already in the history"]
    assert [line.split(": ")[:2] for line in captured.err.splitlines()] == [
        ["ddpscale", "nothing"],
        ["ddpscale", "nowhere"],
    ]
    assert (tmp_path / "ddpscale-runs" / "history.sqlite").is_file(), "the default"


def test_mistakes_are_sentences(capsys: pytest.CaptureFixture[str], history: Path, tmp_path: Path) -> None:
    assert "n9'; expected one of n1, n2" in refused(capsys, "n9")
    assert "--gpu-sku: found 'b200'" in refused(capsys, "--gpu-sku", "b200")
    assert "does not exist" in refused(capsys, "--history", tmp_path / "none.sqlite")
    assert "run directories only" in refused(capsys, "n1", "--add", tmp_path)
    with writing(tmp_path / "empty"):
        pass
    assert "has no node" in refused(capsys, "--history", tmp_path / "empty")
    letter = tmp_path / "letter"
    letter.write_text("dear all")
    run = judged_run(tmp_path / "run").path
    assert "is not a history file" in refused(capsys, "--history", letter, "--add", run)
    assert letter.read_text() == "dear all"
