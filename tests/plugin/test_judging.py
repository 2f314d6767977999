"""--ddp-judge: what a judged run leaves behind, where, and that nothing of the run is ever lost."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.run.strict_json import parse_strict_json
from pytest_ddpscale.suites.paik_import import import_paik
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.listing import count_text
from tests.plugin.prepared import DRAWS
from tests.plugin.site import (
    MEASURED_RUN,
    REQUIREMENTS,
    ROUNDS,
    SKU,
    WEAK_8,
    Site,
    assert_no_crash,
    contents,
    output_of,
    thresholds_with,
)
from tests.rows import rows
from tests.since import since

PUBLISHED = Path(__file__).parents[1] / "data" / "paik_a100_80gb"
VIEWS = {
    "verdicts.json", "report.md", "report.html", "junit.xml", "pytest-report.json", "plots", "metrics.prom",
    "values.csv",
}  # fmt: skip
ALL = len(REQUIREMENTS)
ONE_IDLES = tuple(replace(one, last=0.06) for one in MEASURED_RUN)
IMPOSSIBLE = thresholds_with(WEAK_8, "bound: 0.96", "bound: 1.1")


def pytest_report(site: Site, file: str = "measured/pytest-report.json") -> dict[str, Any]:
    """Read by the strictest rules."""
    found = parse_strict_json((site.path / file).read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def test_every_view_of_a_judged_run_says_the_same(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their form and their words are approved in test_approved.py."""
    monkeypatch.setenv(DRAWS, "1")
    run = site.measured(series=ONE_IDLES)
    assert site.judge("--junitxml=pytest.xml").ret == pytest.ExitCode.TESTS_FAILED
    assert {path.name for path in run.path.iterdir()} >= VIEWS
    record, metric = site.verdicts(), "device_utilization[resnet152-fp16-8gpu]"
    assert (record["schema_version"], record["sku"], record["outcome"]) == (8, SKU, "rejected")
    assert record["notes"] == ["judged from measured without a new measurement"]
    assert [(one["kind"], one["name"]) for one in record["blockers"]] == [("requirement", metric)]
    # Passed items, too, carry their numbers, in pytest's own JUnit XML as in all that reads properties.
    cases = ElementTree.parse(site.path / "pytest.xml").getroot().iterfind(".//testcase")
    properties = [{one.get("name"): one.get("value") for one in case.iterfind("properties/property")} for case in cases]
    given = {one["requirement"]: one for one in properties}
    reported = {test["metadata"]["id"]: test["metadata"] for test in pytest_report(site)["tests"]}
    assert given.keys() == reported.keys() == {verdict["id"] for verdict in record["verdicts"]}
    assert len(given) == ALL
    for verdict in record["verdicts"]:
        assert verdict["rounds"] == ROUNDS
        low, high = verdict["interval"]
        assert low <= verdict["value"] <= high
        [(side, bound)] = verdict["bound"].items()
        difference = verdict["value"] - bound if side == "at_least" else bound - verdict["value"]
        assert verdict["margin"] == pytest.approx(difference / bound)
        said = {
            "value": verdict["value"], "interval_low": low, "interval_high": high, "bound": bound, "bound_is": side,
            "unit": verdict["unit"], "verdict": {"passed": "PASS", "failed": "FAIL"}[verdict["outcome"]],
            "place": verdict["place"] or count_text(verdict["world_size"], "rank"),
        }  # fmt: skip
        assert given[verdict["id"]].items() >= {name: str(one) for name, one in said.items()}.items()
        same = reported[verdict["id"]].keys() & verdict.keys() - {"culprits"}
        assert len(same) == 7
        assert {key: reported[verdict["id"]][key] for key in same} == {key: verdict[key] for key in same}
    culprit, (reason,) = "GPU 7 (GPU-00000007) on node7: 91 % busy", reported[metric]["culprits"]
    assert all((one or "").startswith(culprit) for one in (reason, given[metric]["culprits"]))
    assert pytest_report(site)["environment"]["headline"].startswith("REJECTED: GPU 7 (GPU-00000007) on node7")
    markdown = (run.path / "report.md").read_text(encoding="utf-8")
    # Of what judged, and not of the session that measured.
    assert record["basis"]["thresholds_path"] == str(site.path / "thresholds.yaml")
    assert record["basis"]["thresholds_sha256"] in markdown
    assert "ab" * 32 not in markdown
    plots = sorted((run.path / "plots").glob("*.png"))
    assert plots
    assert [
        plot.name for plot in plots if len(plot.read_bytes()) < 10_000 or f"plots/{plot.name}" not in markdown
    ] == []


def test_a_miss_is_explained_and_its_rerun_command_selects_it_alone(site: Site) -> None:
    site.write("thresholds.yaml", IMPOSSIBLE)
    site.measured()
    result = site.judge("-v", f"--thresholds={site.thresholds}")
    result.assert_outcomes(passed=ALL - 1, failed=1)
    output = output_of(result)
    assert "1190 img/s per device here, 500 of reference-gpu" in " ".join(output.split())
    assert "500 of reference-gpu (a paper, table 1)" in (site.path / "measured" / "report.html").read_text("utf-8")
    row = REQUIREMENTS[WEAK_8].replace("0.96", "1.1")
    line = site.thresholds.read_text(encoding="utf-8").splitlines().index(f"      - {row}") + 1
    assert "FAIL  weak_scaling_efficiency[resnet152-fp16-8gpu]" in output
    assert re.search(r"value +97\.[45]", output)
    assert re.search(rf"limits +at most 97\.6 %  \(95 % confidence, {ROUNDS} rounds\)", output)
    assert re.search(rf"bound +≥ 110.* %  \(severity fail, {re.escape(str(site.thresholds))}:{line}\)", output)
    assert "assert False" not in output, "pytest's own words would hide the explanation"
    # Where the environment says CI, pytest's short summary repeats the whole explanation.
    (command,) = set(re.findall(r"rerun +(pytest .*)", output))
    program, *arguments = shlex.split(command)
    assert (program, *arguments[-2:]) == ("pytest", "-k", "weak_scaling_efficiency[resnet152-fp16-8gpu]")
    site.judge(*arguments).assert_outcomes(failed=1)
    only = site.verdicts("measured/judged-1")["verdicts"]
    assert [verdict["id"] for verdict in only] == ["weak_scaling_efficiency[resnet152-fp16-8gpu]"]


def test_judging_again_keeps_what_was_measured_and_the_first_verdicts(site: Site) -> None:
    run = site.measured()
    measured = contents(run.path)
    elsewhere = site.judge("--ddp-run-dir=opinions/second", "-p", "no:cacheprovider")
    assert elsewhere.ret == pytest.ExitCode.OK
    assert site.outcome("opinions/second") == "accepted"
    assert "report: opinions/second/report.html" in elsewhere.outlines
    assert contents(run.path) == measured
    others = {name for name in site.files() if "/opinions/" not in name}
    result = site.judge("--gpu-sku=tested", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.OK
    assert f"ddpscale judges by {site.thresholds}; evidence from measured (no new measurement)" in result.outlines
    result.stdout.fnmatch_lines(["*= ddpscale: tested-gpu =*", "ACCEPTED: *", "report: measured/report.html"])
    assert not [line for line in result.outlines if "JSON report" in line]
    quiet = site.judge("-q", "--ddp-run-dir=opinions/quiet", "-p", "no:cacheprovider").outlines
    assert len(quiet) <= 8
    assert {"ACCEPTED", "report"} <= {line.partition(": ")[0] for line in quiet}
    assert {name for name in site.files() if "/opinions/" not in name and "/measured/" not in name} <= others
    first = contents(run.path)
    assert first.items() >= measured.items()
    # Only what failed last is judged once more, with the bound mended.
    site.write("thresholds.yaml", IMPOSSIBLE)
    thresholds = "--thresholds=thresholds.yaml"
    assert site.judge(thresholds).ret == pytest.ExitCode.TESTS_FAILED
    site.judge("--lf", thresholds).assert_outcomes(failed=1)
    site.write("thresholds.yaml", thresholds_with(WEAK_8, "bound: 0.96", "bound: 0.95"))
    site.judge("--lf", thresholds).assert_outcomes(passed=1)
    after = contents(run.path)
    assert {name: after[name] for name in first} == first
    judged = [site.outcome(f"measured{more}") for more in ("", "/judged-1", "/judged-2", "/judged-3")]
    assert judged == ["accepted", "rejected", "rejected", "partial"]


def test_a_run_elsewhere_is_judged_from_inside_the_folder_of_tests(
    site: Site, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a space in its name."""
    elsewhere = tmp_path_factory.mktemp("other machine") / "run 1"
    site.measured().path.rename(elsewhere)
    monkeypatch.chdir(site.path / "acceptance")
    result = site.run(f"--ddp-judge={elsewhere}", f"test_scaling.py::{WEAK_8}")
    assert result.ret == pytest.ExitCode.OK
    assert site.outcome(str(elsewhere)) == "partial"
    assert site.judge(run=str(elsewhere)).ret == pytest.ExitCode.OK
    assert site.outcome(str(elsewhere / "judged-1")) == "accepted"


def test_nothing_selected_is_pytests_own_exit_code_and_writes_nothing(site: Site) -> None:
    run = site.measured()
    before = contents(run.path)
    none = site.judge("-k", "no_such_item")
    assert f"collected {ALL} items / {ALL} deselected / 0 selected" in none.outlines
    for result in (none, site.judge("--ddp-world-sizes=3")):
        assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    missing = site.judge("no_such_file.py")
    assert missing.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: file or directory not found: no_such_file.py" in output_of(missing)
    assert contents(run.path) == before


def test_a_file_in_the_way_of_one_report_costs_only_that_one(site: Site) -> None:
    run = site.measured()
    (run.path / "plots").write_text("in the way", encoding="utf-8")
    result = site.judge()
    assert_no_crash(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, "a report that is not there must not go unnoticed"
    assert "plots could not be written: " in output_of(result)
    assert site.outcome() == "accepted"
    assert (run.path / "report.md").is_file()


@rows(
    "arguments",
    [
        "-p no:pytest_jsonreport",
        "-p no:metadata",
        "-p no:terminal",
        "-q -q --tb=no -s",
        "--json-report --json-report-file=own.json --junitxml=own.xml",
    ],
)
def test_other_plugins_may_be_off_or_write_reports_of_their_own(site: Site, arguments: str) -> None:
    site.reset()
    run = site.measured()
    result = site.judge(*shlex.split(arguments))
    assert_no_crash(result)
    assert result.ret == pytest.ExitCode.OK
    assert site.outcome() == "accepted"
    is_reported = not arguments.endswith(("no:pytest_jsonreport", "no:terminal"))
    expected = VIEWS if is_reported else VIEWS - {"pytest-report.json"}
    assert {path.name for path in run.path.iterdir()} >= expected
    if "own.json" in arguments:
        assert pytest_report(site, "own.json")["summary"] == pytest_report(site)["summary"]
        assert pytest_report(site)["summary"]["passed"] == ALL
        assert len(ElementTree.parse(site.path / "own.xml").getroot().findall("testsuite/testcase")) == ALL


def test_a_hostile_name_breaks_no_view(site: Site) -> None:
    run = site.measured(series=ONE_IDLES)
    hostile = json.dumps("node|<script>\x1b[31m`#\u202e\nACCEPTED\r\x9b\0")[1:-1]
    for file in (run.measurements_jsonl, run.run_json):
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace('"node7"', f'"{hostile}"'), encoding="utf-8")
    result = site.judge("-rA")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert_no_crash(result)
    shown = output_of(result)
    assert r"node|<script>\x1b[31m`#\u202e\nACCEPTED\r\x9b\x00" in shown
    assert {character for character in shown if not character.isprintable()} <= {"\n"}
    assert not any(line.startswith("ACCEPTED") for line in shown.splitlines())
    markdown = (run.path / "report.md").read_text(encoding="utf-8")
    assert {character for character in markdown if not character.isprintable()} <= {"\n"}
    ElementTree.parse(run.path / "junit.xml")


class TestPytestReport:
    """pytest-report.json of a session with a test of the site's own: strict JSON, never greener than the session."""

    def judge(self, site: Site, body: str, *arguments: str, fixtures: str = "") -> pytest.RunResult:
        site.reset()
        site.measured()
        site.write("acceptance/test_own.py", f"import logging, pytest\n\ndef test_own({fixtures}):\n    {body}\n")
        return site.judge(*arguments)

    def test_has_null_for_what_is_no_number(self, site: Site) -> None:
        body = (
            "record_property('loss', float('nan'))\n"
            "    json_metadata['worst'] = float('-inf')\n"
            "    logging.warning('diverged', extra={'loss': float('inf')})"
        )
        assert self.judge(site, body, fixtures="record_property, json_metadata").ret == pytest.ExitCode.OK
        (test,) = [one for one in pytest_report(site)["tests"] if one["nodeid"].endswith("::test_own")]
        assert test["user_properties"] == [{"loss": None}]
        assert test["metadata"] == {"worst": None}
        assert test["call"]["log"][0]["loss"] is None

    @rows(
        ("ending", "arguments"),
        [
            ("raise KeyboardInterrupt", ""),
            ("pytest.exit('enough')", "--json-report --json-report-file=own.json"),
        ],
    )
    def test_has_no_pass_of_an_interrupted_test(self, site: Site, ending: str, arguments: str) -> None:
        assert self.judge(site, ending, *arguments.split()).ret == pytest.ExitCode.INTERRUPTED
        for file in ("measured/pytest-report.json", *(["own.json"] if arguments else [])):
            report = pytest_report(site, file)
            summary = report["summary"]
            assert (summary["error"], summary.get("passed", 0)) == (1, summary["total"] - 1)
            assert report["environment"]["outcome"] == site.outcome() == "incomplete"
            assert ("tests" in report) == ("summary" not in arguments)
            outcomes = {test["nodeid"].partition("::")[2]: test["outcome"] for test in report.get("tests", ())}
            if outcomes:
                assert outcomes.pop("test_own") == "error"
                assert set(outcomes.values()) <= {"passed"}


def test_a_module_that_cannot_be_imported_accepts_nothing(site: Site) -> None:
    site.judge_weak_scaling_by("import no_such_module\n")
    site.measured()
    result = site.judge()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "INTERNALERROR" not in output_of(result)
    assert "ddpscale::acceptance" not in result.stdout.str(), "an interrupted run is loud enough"
    assert site.outcome() == "incomplete"


@rows(
    ("what", "hook"),
    [
        ("KeyboardInterrupt", "collectstart(collector)"),
        ("KeyboardInterrupt", "pycollect_makeitem(collector, name, obj)"),
        ("pytest.exit.Exception('enough', 2)", "collectstart(collector)"),
    ],
)
@since("pytest", "8.2.1", "an interrupted collection ends the session")
def test_ctrl_c_during_collection_is_exit_2_and_leaves_no_run(site: Site, what: str, hook: str) -> None:
    interrupting = (
        f"import pytest\n\ndef pytest_{hook}:\n    if isinstance(collector, pytest.Module):\n        raise {what}"
    )
    site.write("acceptance/conftest.py", interrupting)
    result = site.run("--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--ddp-run-dir=run")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "ERROR" not in output_of(result)
    assert not (site.path / "run").exists()


def test_published_a100_results_give_the_published_figures(site: Site) -> None:
    """The 24 files of willgpaik/pytorch-ddp-scaling-benchmark, judged by the thresholds that are shipped."""
    shipped = Path(__file__).parents[2] / "thresholds.yaml"
    import_paik(PUBLISHED, site.path / "a100", None, load_thresholds(shipped).thresholds)
    result = site.judge(f"--thresholds={shipped}", run="a100")
    assert_no_crash(result)
    verdicts = {verdict["id"]: verdict for verdict in site.verdicts("a100")["verdicts"]}
    published = {
        "weak_scaling_efficiency[resnet152-fp16-8gpu]": (0.974, 0.001),
        "weak_scaling_efficiency[vit-b-16-fp16-8gpu]": (0.980, 0.001),
        "weak_scaling_efficiency[resnet152-bf16-8gpu]": (0.985, 0.001),
        "weak_scaling_efficiency[vit-b-16-bf16-8gpu]": (0.989, 0.001),
        "strong_scaling_speedup[resnet152-fp16-8gpu]": (2.07, 0.005),
        "strong_scaling_speedup[resnet152-bf16-8gpu]": (2.55, 0.005),
        "strong_scaling_speedup[vit-b-16-fp16-8gpu]": (6.56, 0.005),
        "strong_scaling_speedup[vit-b-16-bf16-8gpu]": (6.42, 0.005),
        "generation_ratio[resnet152-fp16-1gpu-vs-v100-sxm2-16gb]": (2.365, 0.006),
        "generation_ratio[vit-b-16-fp16-1gpu-vs-v100-sxm2-16gb]": (2.70, 0.005),
        "throughput_per_gpu[resnet152-fp16-1gpu]": (1189.5, 0.1),
    }
    for name, (value, tolerance) in published.items():
        assert verdicts[name]["value"] == pytest.approx(value, abs=tolerance), name
    measured = [verdict for verdict in verdicts.values() if verdict["value"] is not None]
    assert {verdict["outcome"] for verdict in measured if verdict["severity"] == "fail"} == {"passed"}
    # ResNet-152 at 32 images a GPU waits for its host, and says nothing about the GPUs; of energy no error is known.
    warned = [verdict for verdict in measured if verdict["severity"] == "warn" and verdict["outcome"] != "passed"]
    assert {verdict["outcome"] for verdict in warned} == {"inconclusive"}
    why = {verdict["metric"].partition("_")[0]: verdict["reason"].partition(":")[0] for verdict in warned}
    assert why == {"strong": "host-bound", "images": "1 rounds; expected at least 8"}
    # What was not measured, as anything on ResNet-50 or between probes, is not accepted.
    trained = [one for one in verdicts.values() if METRICS[one["metric"]].subject == "workload"]
    missing = [one for one in trained if one["outcome"] == "not_measured" and one["metric"] != "rank_uniformity"]
    assert {"resnet152", "resnet50", "resnet101"} == {one["workload"].partition("-")[0] for one in missing}
    assert not [one for one in measured if one not in trained]
    assert verdicts["step_time_cv[resnet152-fp16-8gpu]"]["value"] == pytest.approx(0.0062, abs=0.0001)
    assert verdicts["memory_spread[resnet152-fp16-8gpu]"]["value"] == 0
    assert site.outcome("a100") == "incomplete"
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    notes = site.verdicts("a100")["notes"]
    assert "single samples: intervals come from the step-time standard deviation" in notes
