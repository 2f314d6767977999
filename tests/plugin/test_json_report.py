"""pytest-report.json of a real session: strict JSON with our values, never greener than the session was."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpscale.results.strict_json import parse_strict_json
from tests.plugin.site import REQUIREMENTS, SKU, Site, thresholds_with

FAILING = "test_device_utilization[resnet152-fp16-8gpu]"


def report_of(site: Site, file: str = "measured/pytest-report.json") -> dict[str, Any]:
    """The report, read by the strictest rules."""
    found = parse_strict_json((site.path / file).read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def judge(site: Site, own_test: str = "", *arguments: str) -> pytest.RunResult:
    """Judge a sound run, with a test of the site's own."""
    site.measured()
    if own_test:
        site.write("acceptance/test_own.py", own_test)
    return site.judge(*arguments)


def test_each_test_has_the_values_of_its_verdict(site: Site) -> None:
    site.write("thresholds.yaml", thresholds_with(FAILING, "bound: 0.95", "bound: 0.99"))
    assert judge(site).ret == pytest.ExitCode.TESTS_FAILED
    report, record = report_of(site), site.verdicts()
    found = {test["metadata"]["id"]: test["metadata"] for test in report["tests"]}
    assert len(found) == len(REQUIREMENTS)
    for verdict in record["verdicts"]:
        same = ("id", "outcome", "value", "interval", "bound", "unit", "margin")
        assert {key: found[verdict["id"]][key] for key in same} == {key: verdict[key] for key in same}
    (culprit,) = found["device_utilization[resnet152-fp16-8gpu]"]["culprits"]
    assert culprit.startswith("GPU 7 (GPU-00000007) on node7: least busy of 8")


def test_environment_says_what_was_concluded(site: Site) -> None:
    site.write("thresholds.yaml", thresholds_with(FAILING, "bound: 0.95", "bound: 0.99"))
    judge(site)
    environment = report_of(site)["environment"]
    assert (environment["outcome"], environment["sku"]) == ("rejected", SKU)
    assert environment["headline"].startswith("REJECTED: GPU 7 (GPU-00000007) on node7")


def test_what_is_no_number_is_null(site: Site) -> None:
    own = (
        "import logging\n\n"
        "def test_own(record_property, json_metadata):\n"
        "    record_property('loss', float('nan'))\n"
        "    json_metadata['worst'] = float('-inf')\n"
        "    logging.warning('diverged', extra={'loss': float('inf')})\n"
    )
    assert judge(site, own).ret == pytest.ExitCode.OK
    (test,) = [one for one in report_of(site)["tests"] if one["nodeid"].endswith("::test_own")]
    assert test["user_properties"] == [{"loss": None}]
    assert test["metadata"] == {"worst": None}
    assert test["call"]["log"][0]["loss"] is None


@pytest.mark.parametrize(
    ("ending", "arguments"),
    [
        ("raise KeyboardInterrupt", ()),
        ("pytest.exit('enough')", ("--json-report", "--json-report-file=own.json")),
    ],
    ids=["ours", "own"],
)
def test_an_interrupted_test_did_not_pass(site: Site, ending: str, arguments: tuple[str, ...]) -> None:
    result = judge(site, f"import pytest\n\ndef test_own():\n    {ending}\n", *arguments)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    for file in ("measured/pytest-report.json", *(["own.json"] if arguments else [])):
        report = report_of(site, file)
        outcomes = {test["nodeid"].partition("::")[2]: test["outcome"] for test in report["tests"]}
        assert outcomes.pop("test_own") == "error"
        assert set(outcomes.values()) <= {"passed"}
        summary = report["summary"]
        assert (summary["error"], summary.get("passed", 0)) == (1, len(outcomes))
        assert summary["total"] == len(outcomes) + 1
        assert report["environment"]["outcome"] == site.outcome() == "incomplete"


def test_an_interrupted_test_did_not_pass_where_only_numbers_are_asked_for(site: Site) -> None:
    own = "def test_own():\n    raise KeyboardInterrupt\n"
    judge(site, own, "--json-report", "--json-report-summary", "--json-report-file=own.json")
    for file in ("own.json", "measured/pytest-report.json"):
        report = report_of(site, file)
        assert "tests" not in report
        assert report["summary"]["error"] == 1
        assert report["summary"].get("passed", 0) == report["summary"]["total"] - 1
