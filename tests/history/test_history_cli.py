"""`ddpscale history`, as a person types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.history.store import add_run, writing
from pytest_ddpscale.run.survey_record import Survey
from tests.approved import assert_approved, masked
from tests.builders.nights import SKU, at, conclude, judged_run

HOSTS = [f"n{number}" for number in range(1, 8)]
Typed = Callable[..., tuple[int, str, str]]


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


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Exit code, output and errors."""

    def run(*words: object) -> tuple[int, str, str]:
        try:
            code = main(["history", *map(str, words)])
        except SystemExit as refused:  # by argparse
            code = int(refused.code or 0)
        return code, *capsys.readouterr()

    return run


def test_nodes_and_one_node_are_told_to_people_and_programs(typed: Typed, history: Path, tmp_path: Path) -> None:
    """A GPU that was replaced begins anew, and the old one is told of no more."""
    told = [typed()[1], typed("n3", "--history", history)[1]]
    [node] = json.loads(typed("n3", "--format", "json", "--gpu-sku", SKU)[1])
    assert (node["sku"], node["host"], node["changes"]) == (SKU, "n3", ["driver 575 before, 580 now"])
    assert [run["started_at"] for run in node["runs"]] == [at(night) for night in range(7)]
    assert sum(drift["is_worse"] for drift in node["drifts"]) == 2
    assert {drift["past"]["number"] for drift in node["drifts"]} == {6}
    file = tmp_path / "h.sqlite"
    for night in range(8):
        run = judged_run(tmp_path / str(night), night)
        if night == 6:
            run.measurements_jsonl.write_text(run.measurements_jsonl.read_text().replace("GPU-n1-1", "GPU-new"))
        if night == 7:  # a night that only looked at the node
            run.measurements_jsonl.unlink()
            run.append_record(Survey("n1", 1.0))
        conclude(run, "partial", at(night))
        add_run(file, run.path)
        if night in (0, 7):
            told += [typed(*words, "--history", file)[1] for words in ([], ["n1"])]
    assert_approved("history.txt", masked("\n".join(told), tmp_path))


def test_adding_goes_on_after_a_directory_that_is_none_and_a_node_can_be_forgotten(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DDPSCALE_HISTORY", raising=False)
    runs = [judged_run(tmp_path / str(night), night).path for night in range(2)]
    code, said, errors = typed("--add", runs[0], "nowhere", "nothing", runs[1], runs[0])
    assert (code, said.splitlines()) == (
        4, [f"{runs[0]}: added", f"{runs[1]}: added", f"{runs[0]}: already in the history"],
    )  # fmt: skip
    assert [line.split(": ")[:2] for line in errors.splitlines()] == [["ddpscale", "nowhere"], ["ddpscale", "nothing"]]
    assert (tmp_path / "ddpscale-runs" / "history.sqlite").is_file(), "the default"
    assert typed("--forget", "n1") == (0, "n1: 2 runs forgotten\n", "")


def test_mistakes_are_sentences(typed: Typed, history: Path, tmp_path: Path) -> None:
    with writing(tmp_path / "empty"):
        pass
    (tmp_path / "letter").write_text("dear all")
    said = ""
    for words in (
        "n9", "--gpu-sku b200", "--history PATH/none", "--forget n1 --history PATH/none", "n1 --add .",
        "--gpu-sku a100 --add .",
        "--forget n1 --add .", "n1 --forget n1", "--forget n9", "--forget n1 --gpu-sku b200", "--history PATH/empty",
        "--history PATH/letter --add PATH/0n1",
    ):  # fmt: skip
        code, out, errors = typed(*words.replace("PATH", str(tmp_path)).split())
        assert (code, out) == (4, "")
        said += f"{words}: {errors}"
    assert_approved("history-mistakes.txt", masked(said, tmp_path))
    assert (tmp_path / "letter").read_text() == "dear all"
    assert not (tmp_path / "none").exists()
