"""What a judged run leaves behind: the record of truth and the views of it."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pytest_ddpscale.results.run_directory import RunDirectory
from tests.plugin.prepared import DRAWS
from tests.plugin.site import REQUIREMENTS, ROUNDS, Site, assert_no_crash, output_of, thresholds_with

VERDICT_KEYS = {
    "id", "metric", "workload", "world_size", "severity", "bound", "outcome", "value", "interval", "confidence",
    "rounds", "reason", "provisional", "source", "notes", "culprits", "unit", "margin", "flags", "placement",
    "compared", "waiver", "launches", "launch_sd", "published", "p_value", "correlation", "one_gpu",
}  # fmt: skip
VIEWS = {
    "verdicts.json",
    "report.md",
    "report.html",
    "junit.xml",
    "pytest-report.json",
    "plots",
    "metrics.prom",
    "requirements.csv",
}
ALL = len(REQUIREMENTS)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots, which take longer than all else of a session."""
    monkeypatch.setenv(DRAWS, "1")


@pytest.fixture
def judged(site: Site) -> Path:
    """A run directory with one failure in its verdicts."""
    text = thresholds_with("test_device_utilization[resnet152-fp16-8gpu]", "bound: 0.95", "bound: 0.99")
    site.write("thresholds.yaml", text)
    run = site.measured()
    assert site.judge().ret == pytest.ExitCode.TESTS_FAILED
    return run.path


def test_verdicts_json_is_the_record_of_truth(site: Site, judged: Path) -> None:
    record = site.verdicts()
    assert set(record) == {
        "schema_version", "sku", "outcome", "reason", "notes", "basis", "coverage", "verdicts",
        "allows_unmeasured", "simulated", "blockers", "extends", "lowered", "altered",
        "uniform_loss", "last_acceptance",
    }  # fmt: skip
    assert (record["schema_version"], record["sku"], record["outcome"]) == (5, "tested-gpu", "rejected")
    assert record["notes"] == ["judged from measured without a new measurement"]
    assert len(record["verdicts"]) == ALL
    for verdict in record["verdicts"]:
        assert set(verdict) == VERDICT_KEYS
        low, high = verdict["interval"]
        assert low <= verdict["value"] <= high
        (side, bound), *others = verdict["bound"].items()
        assert not others
        difference = verdict["value"] - bound if side == "at_least" else bound - verdict["value"]
        assert verdict["margin"] == pytest.approx(difference / bound)
        assert verdict["rounds"] == ROUNDS
    (blocker,) = record["blockers"]
    assert (blocker["kind"], blocker["name"]) == ("requirement", "device_utilization[resnet152-fp16-8gpu]")
    failed = [verdict for verdict in record["verdicts"] if verdict["outcome"] != "passed"]
    assert [verdict["id"] for verdict in failed] == ["device_utilization[resnet152-fp16-8gpu]"]
    (culprit,) = failed[0]["culprits"]
    assert culprit == {
        "kind": "gpu", "host": "node7", "gpu_index": 7, "gpu_uuid": "GPU-00000007",
        "evidence": f"least busy of 8 in {ROUNDS} of {ROUNDS} rounds",
        "peer_host": None, "peer_gpu_index": None, "peer_gpu_uuid": None, "is_certain": True,
        "slowdown": None, "peers": None, "computed_wrong": False, "slow_rounds": None, "rounds": None,
    }  # fmt: skip


@pytest.mark.usefixtures("drawn")
def test_every_view_is_there_and_says_the_same(judged: Path) -> None:
    assert {path.name for path in judged.iterdir()} >= VIEWS
    suite = ElementTree.parse(judged / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == (str(ALL), "1", "0")
    markdown = (judged / "report.md").read_text(encoding="utf-8")
    assert "REJECTED" in markdown
    plots = sorted((judged / "plots").glob("*.png"))
    assert plots
    for plot in plots:
        assert len(plot.read_bytes()) > 10_000, plot
        assert f"plots/{plot.name}" in markdown
    finished_at = RunDirectory(judged).read_run().finished_at
    assert finished_at is not None
    for name in ("node", "gpu"):
        stamps = _samples(judged, f"ddpscale_{name}_last_verdict_timestamp_seconds")
        assert set(stamps) == {datetime.fromisoformat(finished_at).timestamp()}
    report = json.loads((judged / "pytest-report.json").read_text(encoding="utf-8"))
    assert report["exitcode"] == pytest.ExitCode.TESTS_FAILED
    assert report["summary"]["passed"] == ALL - 1
    assert report["summary"]["failed"] == 1
    assert sorted(test["nodeid"].partition("::")[2] for test in report["tests"]) == sorted(REQUIREMENTS)


def _samples(run: Path, name: str) -> list[float]:
    families = text_string_to_metric_families((run / "metrics.prom").read_text(encoding="utf-8"))
    return [one.value for family in families for one in family.samples if one.name == name]


def test_pytest_report_json_has_the_exit_code_of_a_run_that_only_its_outcome_fails(site: Site) -> None:
    run = site.measured()
    site.write(
        "acceptance/test_scaling.py",
        "import pytest\npytestmark = pytest.mark.skip('not today')\n"
        + (site.path / "acceptance" / "test_scaling.py").read_text(encoding="utf-8"),
    )
    assert site.judge().ret == pytest.ExitCode.TESTS_FAILED
    report = json.loads((run.path / "pytest-report.json").read_text(encoding="utf-8"))
    assert report["exitcode"] == pytest.ExitCode.TESTS_FAILED
    assert report["summary"]["failed"] == report["summary"]["skipped"] > 0


def test_the_users_own_reports_are_written_beside(site: Site) -> None:
    run = site.measured()
    own = ("--json-report", "--json-report-file=own.json", "--junitxml=own.xml")
    result = site.judge(*own)
    assert result.ret == pytest.ExitCode.OK
    assert_no_crash(result)
    report = json.loads((site.path / "own.json").read_text(encoding="utf-8"))
    assert report["summary"]["passed"] == ALL
    suites = ElementTree.parse(site.path / "own.xml").getroot()
    assert len(suites.findall("testsuite/testcase")) == ALL
    assert {path.name for path in run.path.iterdir()} >= VIEWS
    copy = json.loads((run.path / "pytest-report.json").read_text(encoding="utf-8"))
    assert copy["summary"]["passed"] == ALL


@pytest.mark.parametrize(
    "arguments",
    [("-p", "no:pytest_jsonreport"), ("-p", "no:metadata"), ("-q", "-q", "--tb=no", "-s")],
    ids=["no-json-report", "no-metadata", "quiet and uncaptured"],
)
def test_other_plugins_may_be_off(site: Site, arguments: tuple[str, ...]) -> None:
    run = site.measured()
    result = site.judge(*arguments)
    assert_no_crash(result)
    assert result.ret == pytest.ExitCode.OK
    expected = VIEWS - {"pytest-report.json"} if "no:pytest_jsonreport" in arguments else VIEWS
    assert {path.name for path in run.path.iterdir()} >= expected


def test_nothing_but_the_run_directory_is_touched_and_the_terminal_says_where_it_is(site: Site) -> None:
    def others() -> set[str]:
        names = {str(path.relative_to(site.path)) for path in site.path.rglob("*")}
        return {name for name in names if not name.startswith(("measured", "runpytest-")) and "__pycache__" not in name}

    site.measured()
    before = others()
    result = site.judge("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*= ddpscale: tested-gpu =*", "ACCEPTED: *", "report: measured/report.html"])
    assert not [line for line in result.outlines if "JSON report" in line]
    assert others() - before == {"stdout", "stderr"}, "the two files are pytester's own"


def test_a_hostile_name_breaks_no_view(site: Site) -> None:
    run = site.measured()
    hostile = json.dumps("node|<script>\x1b[31m`#\u202e")[1:-1]
    for file in (run.measurements_jsonl, run.run_json):
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace('"node7"', f'"{hostile}"'), encoding="utf-8")
    raised = thresholds_with("test_device_utilization[resnet152-fp16-8gpu]", "bound: 0.95", "bound: 0.99")
    site.write("thresholds.yaml", raised)
    result = site.judge()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert_no_crash(result)
    assert "\x1b[31m`" not in output_of(result)
    ElementTree.parse(run.path / "junit.xml")
