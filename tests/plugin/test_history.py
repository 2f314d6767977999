"""The site's history: which runs it remembers, what it is for, and that it changes no exit code by itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pytest_ddpscale.history.store import add_run, node_runs, reading
from pytest_ddpscale.run.run_directory import RunDirectory
from tests.plugin.site import Site, assert_no_crash, edit_json, output_of
from tests.plugin.test_resume import GANG

ON_CPU = ("--gpu-sku=cpu", "--ddp-gpus-per-node=2")
NIGHTS = 6
THRESHOLDS = """\
schema_version: 2
sources: {paper: a paper}
workloads:
  tiny: {model: resnet18, precision: fp32, image_size: 32}
skus:
  cpu:
    description: any CPU
    detect: {device: cpu}
    batch: {tiny: 4}
    requirements:
      - {weak_scaling_efficiency: {2: 0.9}, of: tiny, published: paper, bound: 0.5, because: made up}
"""
REGRESSION = """\
      - {no_regression: 0.9, severity: fail, provisional: it repeats itself}
"""


@pytest.fixture
def site(site: Site) -> Site:
    """A site whose gang measures at once."""
    site.write("conftest.py", GANG)
    site.write("thresholds.yaml", THRESHOLDS)
    return site


@pytest.fixture
def history(site: Site) -> Path:
    """Where the site's history lies."""
    return site.path / "ddpscale-runs" / "history.sqlite"


def nights_in(history: Path) -> list[str]:
    """Outcomes of the runs that it has of the only node."""
    with reading(history) as connection:
        return [run.outcome for run in node_runs(connection, "cpu", "node1")]


def latest(site: Site) -> Path:
    return (site.path / "ddpscale-runs" / "latest").resolve()


def outcome_of(site: Site, run: Path, metric: str) -> tuple[str, str]:
    (found,) = [one for one in site.verdicts(str(run))["verdicts"] if one["metric"] == metric]
    return found["outcome"], found["reason"]


def test_a_run_is_remembered_wherever_it_is_kept(site: Site, history: Path) -> None:
    assert site.run(*ON_CPU).ret == pytest.ExitCode.OK
    assert nights_in(history) == ["accepted"]
    assert site.run(*ON_CPU, "--ddp-run-dir=elsewhere").ret == pytest.ExitCode.OK
    assert nights_in(history) == ["accepted", "accepted"]
    assert list(site.path.rglob("*.sqlite")) == [history]


def test_a_history_that_cannot_be_used_is_told_and_changes_no_exit_code(site: Site, history: Path) -> None:
    site.write("thresholds.yaml", THRESHOLDS + REGRESSION.replace("fail", "warn"))
    notes = site.write("site.sqlite", "somebody's notes")
    result = site.run(*ON_CPU, "--ddp-history=site.sqlite")
    assert_no_crash(result)
    assert result.ret == pytest.ExitCode.OK
    assert "the history was not updated: site.sqlite: is not a history file" in output_of(result)
    assert site.outcome(str(latest(site))) == "accepted"
    outcome, reason = outcome_of(site, latest(site), "no_regression")
    assert outcome == "inconclusive", "no pass either"
    assert reason.startswith("site.sqlite: is not a history file")
    assert notes.read_text(encoding="utf-8") == "somebody's notes"
    assert not history.exists()


@pytest.mark.parametrize(("speed", "code"), [(1.0, 0), (1.5, 1)])
def test_a_node_is_judged_by_its_past_and_again_by_what_was_kept_of_it(
    site: Site, history: Path, monkeypatch: pytest.MonkeyPatch, speed: float, code: int
) -> None:
    """Its past are nights on which it was so many times as fast."""
    with monkeypatch.context() as then:
        then.setenv("GANG_SPEED", str(speed))
        assert site.run(*ON_CPU, "--ddp-run-dir=first", "--ddp-history=other.sqlite").ret == pytest.ExitCode.OK
    for night in range(1, NIGHTS + 1):
        shutil.copytree(site.path / "first", site.path / f"night{night}")
        run = RunDirectory.open(site.path / f"night{night}")
        was = run.digests()["run_sha256"]
        edit_json(run.run_json, started_at=f"2026-01-0{night}T02:00:00+00:00")
        said = run.verdicts_json.read_text(encoding="utf-8")
        run.verdicts_json.write_text(said.replace(was, run.digests()["run_sha256"]), encoding="utf-8")
        add_run(history, run.path)
    site.write("thresholds.yaml", THRESHOLDS + REGRESSION)
    assert site.run(*ON_CPU).ret == code
    found = outcome_of(site, latest(site), "no_regression")
    # A rejected run is no norm for later nights.
    assert nights_in(history)[NIGHTS:] == [site.outcome(str(latest(site)))] == ["rejected" if code else "accepted"]
    if code:
        assert found[0] == "failed"
        assert "CPU rank 0 on node1: throughput_per_gpu tiny (2 at once, batch 4) is 66.7 % of its past" in found[1]
    else:
        assert found == ("passed", "every value with enough earlier runs meets the bound")
    history.write_text("lost", encoding="utf-8")
    assert site.judge(run=str(latest(site))).ret == code
    assert outcome_of(site, latest(site) / "judged-1", "no_regression")[0] == found[0]
    assert history.read_text(encoding="utf-8") == "lost", "what is judged again is no new night"


def test_no_regression_by_itself_says_what_to_select_with_it(site: Site) -> None:
    site.write("thresholds.yaml", THRESHOLDS + REGRESSION)
    result = site.run(*ON_CPU, "-k", "no_regression")
    assert_no_crash(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    outcome, reason = outcome_of(site, latest(site), "no_regression")
    assert outcome == "not_measured"
    assert reason.endswith("also select tests that measure (-m node_health)")
