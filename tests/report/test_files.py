"""Every file of a report is written, the record of truth first, and a full disk costs one of them."""

from __future__ import annotations

import errno
import json
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.report.files import live_page, write_reports
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import Judgement
from tests.builders.json_types import read_as
from tests.builders.judged import evidence_of_plan
from tests.builders.judgements import EVIDENCE, JUDGEMENT, MEASUREMENTS, PLAN, RUN
from tests.builders.profiles import profile

FILES = ["verdicts.json", "junit.xml", "values.csv", "culprits.csv", "metrics.prom", "report.md", "report.html"]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


def write(run: RunDirectory) -> list[str]:
    # Plots are tested on their own: without measurements there are none to draw.
    return write_reports(run, JUDGEMENT, RUN, EVIDENCE)


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_every_file_is_written(run: RunDirectory) -> None:
    assert write(run) == []
    written = read_as(Judgement, json.loads(run.verdicts_json.read_text(encoding="utf-8")))
    assert [(cause.id, cause.category) for cause in written.causes][:2] == [("slow-communication", "ISOLATE")] * 2
    assert replace(written, causes=()) == JUDGEMENT
    assert ET.parse(run.path / "junit.xml").getroot().tag.startswith("testsuite")
    assert "REJECTED" in (run.path / "report.md").read_text(encoding="utf-8").upper()


def test_reports_name_no_trace_that_is_not_there(run: RunDirectory) -> None:
    profiles = [profile(PLAN.studies[0].id, arm, [(60, 55, 0)]) for arm in ("ddp@1", "ddp@2")]
    (run.path / "profiles").mkdir()
    (run.path / profiles[0].trace).write_bytes(b"{}")
    evidence = replace(EVIDENCE, profiles=profiles)
    assert write_reports(run, JUDGEMENT, RUN, evidence) == []
    for name in ("report.md", "report.html"):
        assert "ddp@2.json.gz" not in (run.path / name).read_text(encoding="utf-8")
    assert "ddp@1.json.gz" in (run.path / "report.md").read_text(encoding="utf-8")


def test_the_record_of_truth_comes_first(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: Any) -> str:
        assert run.verdicts_json.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr("pytest_ddpscale.report.junit.render_junit", check)
    with pytest.raises(KeyboardInterrupt):
        write(run)


@pytest.mark.parametrize(
    ("broken", "lost"),
    [
        ("pytest_ddpscale.report.junit.render_junit", "junit.xml"),
        ("pytest_ddpscale.report.figures.write_pngs", "plots"),
        ("pytest_ddpscale.report.files.markdown_page", "report.md"),
        ("pytest_ddpscale.report.files.html_page", "report.html"),
    ],
)
def test_a_full_disk_costs_one_file_and_not_the_others(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, broken: str, lost: str
) -> None:
    monkeypatch.setattr(broken, full_disk)
    assert write(run) == [f"{lost} could not be written: No space left on device"]
    assert [name for name in FILES if not (run.path / name).exists()] == [name for name in FILES if name == lost]


def test_a_page_has_its_figures_also_where_their_files_are_lost(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert write_reports(run, JUDGEMENT, RUN, evidence_of_plan(PLAN, MEASUREMENTS)) == []
    shown = re.findall(r"!\[.*\]\((.*)\)", (run.path / "report.md").read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(f"plots/{path.name}" for path in run.plots.iterdir())
    monkeypatch.setattr("pytest_ddpscale.report.figures.write_pngs", full_disk)
    lost = write_reports(run, JUDGEMENT, RUN, evidence_of_plan(PLAN, MEASUREMENTS))
    assert lost == ["plots could not be written: No space left on device"]
    assert "<figure" in (run.path / "report.html").read_text(encoding="utf-8")
    assert "![" not in (run.path / "report.md").read_text(encoding="utf-8")


def test_a_broken_matplotlib_costs_figures_only(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    evidence = evidence_of_plan(PLAN, MEASUREMENTS)
    [lost] = write_reports(run, JUDGEMENT, RUN, evidence)
    assert lost.startswith("plots could not be written: ModuleNotFoundError: import of matplotlib.figure halted")
    assert [name for name in FILES if not (run.path / name).exists()] == []
    assert "could not be drawn" in live_page(JUDGEMENT, RUN, evidence)


def test_losing_the_record_of_truth_is_said(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunDirectory, "write_json", full_disk)
    assert write(run) == ["verdicts.json could not be written: No space left on device"]
