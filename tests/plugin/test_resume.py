"""--ddp-resume: what is missing is measured, what is there is kept, and two machines never make one acceptance."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_lock import RunLock
from pytest_ddpscale.results.run_record import start_run
from tests.plugin.site import Site, assert_no_crash, assert_refused, contents, edit_json, output_of

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


@pytest.fixture
def site(site: Site) -> Site:
    """A site whose gang measures at once."""
    site.write("conftest.py", Path(__file__).with_name("instant_gang.py").read_text(encoding="utf-8"))
    site.write("thresholds.yaml", THRESHOLDS)
    return site


@pytest.fixture
def run(site: Site) -> RunDirectory:
    """Where the site's run goes."""
    return RunDirectory(site.path / "run")


def ends(monkeypatch: pytest.MonkeyPatch, **how: str) -> None:
    """How the studies of the next session end, by their scaling."""
    monkeypatch.setenv("GANG_ENDS", json.dumps({f"{scaling}/tiny": end for scaling, end in how.items()}))


def cut_short(site: Site, monkeypatch: pytest.MonkeyPatch, end: str) -> pytest.RunResult:
    """A first session whose last study (strong scaling) did not come to its own end."""
    ends(monkeypatch, strong=end)
    result = site.run(*NEW)
    ends(monkeypatch)
    return result


def of_study(path: Path, study: str) -> list[str]:
    """Lines about a study."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if json.loads(line).get("study") == study]


def launches(run: RunDirectory) -> list[str]:
    """What each launch says that it measured."""
    return [log.read_text(encoding="utf-8").strip() for log in sorted(run.logs.glob("gang-*.log"))]


def outcomes(site: Site) -> dict[str, str]:
    """Outcome of each verdict, by its metric."""
    return {verdict["metric"]: verdict["outcome"] for verdict in site.verdicts("run")["verdicts"]}


def test_nodes_are_as_old_as_the_end_of_a_session_that_measured(site: Site, run: RunDirectory) -> None:
    site.run(*NEW)
    finished_at = run.read_run().finished_at
    assert finished_at is not None
    exposed = (run.path / "metrics.prom").read_text(encoding="utf-8")
    stamps = re.findall(r"^ddpscale_(node|gpu)_last_verdict_timestamp_seconds{.*} (.*)$", exposed, re.MULTILINE)
    assert {name for name, _ in stamps} == {"node", "gpu"}
    assert {float(stamp) for _, stamp in stamps} == {datetime.fromisoformat(finished_at).timestamp()}


class TestOnlyWhatIsMissing:
    @pytest.mark.parametrize("end", ["killed", "interrupted"])
    def test_is_measured_anew_and_then_accepted(
        self, site: Site, run: RunDirectory, monkeypatch: pytest.MonkeyPatch, end: str
    ) -> None:
        first = cut_short(site, monkeypatch, end)
        assert first.ret == (-9 if end == "killed" else pytest.ExitCode.TESTS_FAILED)
        kept, begun = of_study(run.measurements_jsonl, FIRST), of_study(run.measurements_jsonl, LAST)
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

    def test_is_recorded_and_told(self, site: Site, run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
        cut_short(site, monkeypatch, "error")
        site.run(*RESUME)
        record = run.read_run()
        assert record.status == "finished"
        (resumed,) = record.resumed
        assert resumed.status_before == "finished"
        assert "--ddp-resume=run" in resumed.argv
        assert resumed.measured_anew == {LAST: "error"}
        report = (run.path / "report.md").read_text(encoding="utf-8")
        for notes in (site.verdicts("run")["notes"], report):
            assert any("measured in 2 sessions" in line for line in (notes if isinstance(notes, list) else [notes]))
        assert f"superseded.jsonl): {LAST} (error)" in site.verdicts("run")["notes"][1]

    def test_may_take_several_attempts(self, site: Site, run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
        cut_short(site, monkeypatch, "killed")
        ends(monkeypatch, strong="killed")
        assert site.run(*RESUME).ret == -9
        ends(monkeypatch)
        assert site.run(*RESUME).ret == pytest.ExitCode.OK
        assert launches(run) == ["2 studies", "1 studies", "1 studies"]
        assert sum('"study_start"' in line for line in of_study(run.superseded_jsonl, LAST)) == 2
        assert [one.status_before for one in run.read_run().resumed] == ["running", "running"]

    def test_is_nothing_where_all_was_measured(self, site: Site, run: RunDirectory) -> None:
        assert site.run(*NEW).ret == pytest.ExitCode.OK
        measured = run.measurements_jsonl.read_bytes()
        before = contents(run.path)
        result = site.run(*RESUME)
        assert result.ret == pytest.ExitCode.OK
        assert "all 2 studies were measured, so nothing is" in output_of(result)
        assert launches(run) == ["2 studies"]
        assert run.measurements_jsonl.read_bytes() == measured
        assert not run.superseded_jsonl.exists()
        for name in ("verdicts.json", "report.md", "junit.xml", "pytest-report.json", "plots/weak-efficiency.png"):
            assert (run.path / "before-resume-1" / name).read_bytes() == before[f"run/{name}"], "kept as it was signed"
        assert site.outcome("run") == "accepted"
        assert not (run.path / "run.lock").exists()

    def test_is_all_of_it_where_a_kill_came_before_the_plan(self, site: Site, run: RunDirectory) -> None:
        RunDirectory.create(run.path)
        start_run(run, "cpu", ("pytest", "--gpu-sku=cpu"), site.thresholds, "ab" * 32, devices_present=2)
        (run.path / ".plan.json.x1").write_text("torn", encoding="utf-8")
        result = site.run(*RESUME)
        assert_no_crash(result)
        assert result.ret == pytest.ExitCode.OK
        assert site.outcome("run") == "accepted"
        assert launches(run) == ["2 studies"]
        assert "--ddp-resume=run" in run.read_run().argv

    def test_is_what_the_plan_did_not_foresee_either(self, site: Site, run: RunDirectory) -> None:
        assert site.run(*NEW, "-k", "weak_scaling").ret == pytest.ExitCode.OK
        result = site.run(*RESUME)
        assert result.ret == pytest.ExitCode.OK
        assert site.outcome("run") == "accepted"
        assert launches(run) == ["1 studies", "1 studies"]
        again = site.run(*RESUME)
        assert again.ret == pytest.ExitCode.OK
        assert launches(run) == ["1 studies", "1 studies"], "what was measured outside the plan is part of it now"


def test_an_interrupted_study_is_not_measured_and_says_what_finishes_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Infrastructure is no failure of the machine, and no pass."""
    result = cut_short(site, monkeypatch, "interrupted")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert outcomes(site) == {
        "throughput_per_gpu": "passed", "weak_scaling_efficiency": "passed",
        "strong_scaling_speedup": "not_measured",
    }  # fmt: skip
    assert site.outcome("run") == "incomplete"
    reason = "interrupted: the job reached its time limit; --ddp-resume=run finishes it"
    assert f"INCOMPLETE: not measured: strong_scaling_speedup[tiny-2rank]: {reason}" in output_of(result)
    assert site.judge(run="run").ret == pytest.ExitCode.TESTS_FAILED
    assert site.outcome("run/judged-1") == "incomplete"


def test_studies_of_different_hosts_are_never_accepted_together(
    site: Site, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_short(site, monkeypatch, "killed")
    monkeypatch.setenv("GANG_HOST", "node2")
    result = site.run(*RESUME)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    why = f"studies were measured on different hosts: {LAST} on node2, {FIRST} on node1"
    assert f"INCOMPLETE: {why}" in result.outlines
    assert [host.host for host in run.read_run().hosts] == ["node1", "node2"]
    site.judge(run="run")
    assert site.verdicts("run/judged-1")["reason"] == why


def test_other_thresholds_are_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_short(site, monkeypatch, "killed")
    site.write("thresholds.yaml", THRESHOLDS.replace("bound: 50", "bound: 40"))
    assert site.run(*RESUME).ret == pytest.ExitCode.OK
    assert any("another thresholds file" in note for note in site.verdicts("run")["notes"])


def test_collecting_shows_what_is_missing_and_changes_nothing(
    site: Site, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_short(site, monkeypatch, "killed")
    before = contents(run.path)
    result = site.run(*RESUME, "--collect-only")
    assert result.ret == pytest.ExitCode.OK
    assert "1 of 2 studies were measured and are kept" in output_of(result)
    assert contents(run.path) == before


class TestRefused:
    def refused_untouched(self, site: Site, run: RunDirectory, arguments: tuple[str, ...], *parts: str) -> None:
        before = contents(run.path)
        assert_refused(site.run(*arguments), *parts)
        assert contents(run.path) == before

    @pytest.fixture
    def begun(self, site: Site) -> RunDirectory:
        """A run that was killed before it measured anything."""
        run = RunDirectory.create(site.path / "run")
        arms = (Arm("alone", 1, 4), Arm("ddp", 2, 4))
        study = Study("weak", Workload("tiny", "resnet18", "fp32", 4, image_size=32), arms, 7, 1.0, 1.0)
        run.write_json(run.plan_json, Plan("cpu", "cpu", (study,), ranks_per_node=2))
        start_run(run, "cpu", ("pytest", "--gpu-sku=cpu"), site.thresholds, "ab" * 32, devices_present=2)
        return run

    @pytest.mark.parametrize(
        ("changes", "found"),
        [
            ({"status": "imported"}, "run: was imported and cannot be resumed; expected a measured run"),
            ({"versions": None}, "run: was measured by pytest-ddpscale None"),
            ({"sku": "b200"}, "run.json"),
        ],
    )
    def test_a_run_that_others_cannot_go_on_with(
        self, site: Site, begun: RunDirectory, changes: dict[str, Any], found: str
    ) -> None:
        edit_json(begun.run_json, **changes)
        self.refused_untouched(site, begun, RESUME, found)

    @pytest.mark.parametrize(
        ("arguments", "found"),
        [
            ((*RESUME, "--gpu-sku=v100"), "--gpu-sku"),
            (("--ddp-resume=run", "--ddp-gpus-per-node=1"), "1 devices on 1 nodes can be used here"),
        ],
    )
    def test_options_that_do_not_fit(
        self, site: Site, begun: RunDirectory, arguments: tuple[str, ...], found: str
    ) -> None:
        self.refused_untouched(site, begun, arguments, found)

    def test_a_run_that_still_goes_on(self, site: Site, begun: RunDirectory) -> None:
        lock = RunLock.acquire(begun.path)
        self.refused_untouched(site, begun, RESUME, "run: is in use: process ", "Wait until that run has ended")
        lock.release()
