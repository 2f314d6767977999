"""--ddp-resume: what is missing is measured, what is there is kept, and two machines never make one acceptance."""

from __future__ import annotations

import json
import re
import shlex
from datetime import datetime
from pathlib import Path

import pytest

from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory, RunLock
from pytest_ddpscale.run.run_record import ranks_by_host
from tests.builders.json_types import begin
from tests.plugin.site import Site, assert_no_crash, assert_refused, contents, outcome_line, output_of
from tests.rows import rows
from tests.small_disk import small_disk

ON_CPU = ("--gpu-sku=cpu", "--ddp-gpus-per-node=2")
NEW = (*ON_CPU, "--ddp-run-dir=run")
RESUME = ("--ddp-resume=run", "--ddp-gpus-per-node=2")
FIRST, LAST = "weak/tiny", "strong/tiny"  # in the order in which they are measured
THRESHOLDS = """\
schema_version: 2
sources: {paper: a paper}
workloads:
  tiny: {model: resnet18, precision: fp32, image_size: 32}
skus:
  cpu:
    description: any CPU
    detect: {device: cpu}
    batch: {tiny: {per_gpu: 4, global: 8}}
    requirements:
      - {throughput_per_gpu: {1: 99}, of: tiny, published: paper, bound: 50, because: made up}
      - {weak_scaling_efficiency: {2: 0.97}, of: tiny, published: paper, bound: 0.5, because: made up}
      - {strong_scaling_speedup: {2: 1.9}, of: tiny, published: paper, bound: 1.5, because: made up}
"""
ALL = 3
GANG = Path(__file__).with_name("instant_gang.py").read_text(encoding="utf-8")


def renew(site: Site) -> RunDirectory:
    """The site, whose gang measures at once, without its run; where its run goes."""
    site.reset()
    site.write("conftest.py", GANG)
    site.write("thresholds.yaml", THRESHOLDS)
    return RunDirectory(site.path / "run")


@pytest.fixture
def run(site: Site) -> RunDirectory:
    """Where the site's run goes."""
    return renew(site)


def ends(monkeypatch: pytest.MonkeyPatch, strong: str = "") -> None:
    """How the last study of later sessions ends."""
    monkeypatch.setenv("GANG_ENDS", json.dumps({LAST: strong} if strong else {}))


def cut_short(site: Site, monkeypatch: pytest.MonkeyPatch, end: str) -> pytest.RunResult:
    """A first session whose last study did not come to its own end."""
    ends(monkeypatch, end)
    result = site.run(*NEW)
    ends(monkeypatch)
    return result


def of_study(path: Path, study: str) -> list[str]:
    """Lines about a study."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if json.loads(line).get("study") == study]


def launches(run: RunDirectory) -> list[str]:
    """What each launch says that it measured."""
    return [log.read_text(encoding="utf-8").strip() for log in sorted(run.logs.glob("gang-*.log"))]


@rows(("end", "before"), [("killed", "running"), ("interrupted", "finished"), ("error", "finished")])
def test_what_is_missing_is_measured_anew_and_then_accepted(
    site: Site, monkeypatch: pytest.MonkeyPatch, end: str, before: str
) -> None:
    run = renew(site)
    first = cut_short(site, monkeypatch, end)
    assert first.ret == (-9 if end == "killed" else pytest.ExitCode.TESTS_FAILED)
    kept, begun = of_study(run.measurements_jsonl, FIRST), of_study(run.measurements_jsonl, LAST)
    files = contents(run.path)
    shown = site.run(*RESUME, "--collect-only")
    assert shown.ret == pytest.ExitCode.OK
    assert "1 of 2 studies were measured and are kept" in output_of(shown)
    assert contents(run.path) == files
    result = site.run(*RESUME)
    assert_no_crash(result)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=ALL)
    assert f"resumes {run.path.name}: 1 of 2 studies were measured and are kept" in output_of(result)
    assert site.outcome("run") == "accepted"
    assert launches(run) == ["2 studies", "1 studies"]
    assert of_study(run.measurements_jsonl, FIRST) == kept
    assert of_study(run.superseded_jsonl, LAST) == begun
    assert of_study(run.superseded_jsonl, FIRST) == []
    record = run.read_run()
    (resumed,) = record.resumed
    assert (record.status, resumed.status_before) == ("finished", before)
    assert "--ddp-resume=run" in resumed.argv
    assert [*resumed.measured_anew] == [LAST]
    report = (run.path / "report.md").read_text(encoding="utf-8")
    notes = site.verdicts("run")["notes"]
    assert "measured in several sessions: resumed 20" in notes[0]
    assert notes[0] in report
    assert f"superseded.jsonl): {LAST} (" in notes[1]


def test_an_interrupted_study_is_not_measured_and_says_what_finishes_it(
    site: Site, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Infrastructure is no failure of the machine, and no pass."""
    result = cut_short(site, monkeypatch, "interrupted")
    assert {verdict["metric"]: verdict["outcome"] for verdict in site.verdicts("run")["verdicts"]} == {
        "throughput_per_gpu": "passed", "weak_scaling_efficiency": "passed", "strong_scaling_speedup": "not_measured",
    }  # fmt: skip
    assert site.outcome("run") == "incomplete"
    reason = "measuring was interrupted before 1 requirement was decided: the job reached its time limit"
    assert f"INCOMPLETE: {reason}; --ddp-resume=run finishes it" in outcome_line(result)
    (cause,) = site.verdicts("run")["causes"]
    assert cause["id"] == "interrupted"
    command, *resumed = shlex.split(cause["next_steps"][0]["command"])
    assert (command, resumed[-1]) == ("pytest", "--ddp-resume=run")
    shown = site.run(*resumed, "--collect-only")
    assert "1 of 2 studies were measured and are kept" in output_of(shown)
    assert site.judge(run="run").ret == pytest.ExitCode.TESTS_FAILED
    assert site.outcome("run/judged-1") == "incomplete"


def test_several_attempts_may_be_needed_and_other_thresholds_are_told(
    site: Site, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_short(site, monkeypatch, "killed")
    ends(monkeypatch, "killed")
    assert site.run(*RESUME).ret == -9
    ends(monkeypatch)
    site.write("thresholds.yaml", THRESHOLDS.replace("bound: 50", "bound: 40"))
    assert site.run(*RESUME).ret == pytest.ExitCode.OK
    assert launches(run) == ["2 studies", "1 studies", "1 studies"]
    assert sum('"study_start"' in line for line in of_study(run.superseded_jsonl, LAST)) == 2
    assert [one.status_before for one in run.read_run().resumed] == ["running", "running"]
    assert any("another thresholds file" in note for note in site.verdicts("run")["notes"])


def test_nothing_is_measured_where_all_was(site: Site, run: RunDirectory) -> None:
    assert site.run(*NEW).ret == pytest.ExitCode.OK
    # Nodes are as old as the end of the session that measured them.
    finished_at = run.read_run().finished_at
    assert finished_at is not None
    exposed = (run.path / "metrics.prom").read_text(encoding="utf-8")
    stamps = re.findall(r"^ddpscale_(node|gpu)_last_verdict_timestamp_seconds{.*} (.*)$", exposed, re.MULTILINE)
    assert {name for name, _ in stamps} == {"node", "gpu"}
    assert {float(stamp) for _, stamp in stamps} == {datetime.fromisoformat(finished_at).timestamp()}
    before = contents(run.path)
    result = site.run(*RESUME)
    assert result.ret == pytest.ExitCode.OK
    assert "2 of 2 studies were measured and are kept" in output_of(result)
    assert launches(run) == ["2 studies"]
    assert run.measurements_jsonl.read_bytes() == before["run/measurements.jsonl"]
    assert not run.superseded_jsonl.exists()
    for name in ("verdicts.json", "report.md", "junit.xml", "pytest-report.json", "plots/weak-throughput.png"):
        assert (run.path / "before-resume-1" / name).read_bytes() == before[f"run/{name}"], "kept as it was signed"
    assert site.outcome("run") == "accepted"
    RunLock.acquire(run.path).release()


def test_all_is_measured_where_a_kill_came_before_the_plan(site: Site, run: RunDirectory) -> None:
    RunDirectory.create(run.path)
    begin(run, path=site.thresholds, devices_present=2)
    (run.path / ".plan.json.x1").write_text("torn", encoding="utf-8")
    result = site.run(*RESUME)
    assert_no_crash(result)
    assert result.ret == pytest.ExitCode.OK
    assert site.outcome("run") == "accepted"
    assert launches(run) == ["2 studies"]
    assert "--ddp-resume=run" in run.read_run().argv


def test_what_the_plan_did_not_foresee_is_not_measured_and_the_run_not_accepted(site: Site, run: RunDirectory) -> None:
    assert site.run(*NEW, "-k", "weak_scaling").ret == pytest.ExitCode.OK
    assert site.run(*RESUME).ret == pytest.ExitCode.TESTS_FAILED
    assert launches(run) == ["1 studies"]
    assert site.outcome("run") == "incomplete"


def test_studies_of_different_hosts_are_never_accepted_together(
    site: Site, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_short(site, monkeypatch, "killed")
    monkeypatch.setenv("GANG_HOST", "node2")
    result = site.run(*RESUME)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    why = f"studies were measured on different hosts: {LAST} on node2, {FIRST} on node1"
    assert outcome_line(result) == f"INCOMPLETE: {why}"
    assert [*ranks_by_host(gangs_by_number(run.read_records()).values())] == ["node1", "node2"]
    site.judge(run="run")
    assert site.verdicts("run/judged-1")["reason"] == why


def test_a_full_disk_is_refused_and_one_that_fills_up_while_measuring_costs_what_was_not_measured(
    site: Site, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, why = "disk/run", "No space left on device"
    arguments = (*ON_CPU, f"--ddp-run-dir={full}", "-p", "no:cacheprovider", "-v")
    with small_disk(site.path / "disk", kib=2048) as disk:
        disk.fill()
        assert_refused(site.run(*arguments), f"cannot be written ({why})")
        disk.make_room()
        assert not list(site.path.glob(f"{full}/logs/*")), "nothing was measured"
        ends(monkeypatch, "full")
        result = site.run(*arguments)
        assert_no_crash(result)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.assert_outcomes(passed=2, failed=1)
        output = output_of(result)
        found = (
            f"{full}/measurements.jsonl: cannot be written ({why}); expected a writable file system with space left."
        )
        said = outcome_line(result)
        assert said.startswith(f"INCOMPLETE: error: strong_scaling_speedup[tiny-2rank]: {found}")
        assert f"or repair the disk, then measure the rest with --ddp-resume={full}" in said
        of_metric = result.outlines.index("weak_scaling_efficiency")
        assert result.outlines[of_metric + 1].endswith("PASS"), "the verdicts are on the terminal at least"
        assert f"verdicts.json cannot be written ({why}). Earlier measurements are kept. " in output
        assert f"report.html could not be written: {why}" in output
        assert not (site.path / full / "verdicts.json").exists()
        disk.make_room()
        ends(monkeypatch)
        assert site.run(f"--ddp-resume={full}", "--ddp-gpus-per-node=2").ret == pytest.ExitCode.OK
        assert site.outcome(full) == "accepted"
