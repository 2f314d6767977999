"""What a session comes to: exit code, the outcome and what is said about each requirement."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.plugin.site import (
    REQUIREMENTS,
    ROUNDS,
    WEAK_8,
    Site,
    assert_no_crash,
    output_of,
    thresholds_with,
)

ALL = len(REQUIREMENTS)


def outcome_line(result: pytest.RunResult) -> str:
    """The line that says what the run comes to."""
    words = ("ACCEPTED", "REJECTED", "INCOMPLETE", "PARTIAL")
    lines = [line for line in result.outlines if line.startswith(words)]
    assert len(lines) == 1, lines
    return lines[0]


def test_an_impossible_bound_rejects_for_exactly_that_requirement(site: Site) -> None:
    site.write("thresholds.yaml", thresholds_with(WEAK_8, "bound: 0.96", "bound: 1.1"))
    site.measured()
    result = site.judge("-v")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=ALL - 1, failed=1)
    assert_no_crash(result)
    assert outcome_line(result).startswith("REJECTED: weak_scaling_efficiency[resnet152-fp16-8gpu] is ")
    output = output_of(result)
    impossible = REQUIREMENTS[WEAK_8].replace("0.96", "1.1")
    line = site.thresholds.read_text(encoding="utf-8").splitlines().index(f"      - {impossible}") + 1
    assert "FAIL  weak_scaling_efficiency[resnet152-fp16-8gpu]" in output
    assert re.search(r"value +97\.[45]", output)
    assert re.search(rf"limits +at most 97\.6 %  \(95% confidence, {ROUNDS} rounds, correlation -?0\.\d\)", output)
    assert re.search(rf"bound +≥ 110.* %  \(severity fail, {re.escape(str(site.thresholds))}:{line}\)", output)
    verdicts = {verdict["id"]: verdict["outcome"] for verdict in site.verdicts()["verdicts"]}
    assert [name for name, outcome in verdicts.items() if outcome != "passed"] == [
        "weak_scaling_efficiency[resnet152-fp16-8gpu]"
    ]
    assert "assert False" not in output, "pytest's own words would hide the explanation"


def test_the_rerun_command_selects_exactly_the_item_that_failed(site: Site) -> None:
    site.write("thresholds.yaml", thresholds_with(WEAK_8, "bound: 0.96", "bound: 1.1"))
    site.measured()
    output = output_of(site.judge(f"--thresholds={site.thresholds}", "-v"))
    # Where the environment says CI, pytest's short summary repeats the whole explanation.
    (command,) = set(re.findall(r"rerun +(pytest .*)", output))
    program, *arguments = shlex.split(command)
    assert program == "pytest"
    assert arguments[-2:] == ["-k", "weak_scaling_efficiency[resnet152-fp16-8gpu]"]
    again = site.judge(*arguments)
    again.assert_outcomes(failed=1)
    assert again.ret == pytest.ExitCode.TESTS_FAILED
    only = site.verdicts("measured/judged-1")["verdicts"]
    assert [verdict["id"] for verdict in only] == ["weak_scaling_efficiency[resnet152-fp16-8gpu]"]


class TestSomebodyElsesReasons:
    """A requirement whose test did not get to the end has not been accepted, whatever was measured."""

    OWN = """\
import pytest

@pytest.fixture
def broken():
    raise RuntimeError("the site's own fixture")

@pytest.fixture
def breaks_afterwards():
    yield
    raise RuntimeError("the site's own clean-up")

@pytest.mark.requirement("weak_scaling_efficiency")
def test_weak_scaling_efficiency({arguments}):
    verdict = requirement.judge(run)
    {before}
    verdict.check()
    {after}
"""

    def judge(self, site: Site, *, arguments: str = "", before: str = "", after: str = "") -> pytest.RunResult:
        text = self.OWN.format(arguments=f"requirement, run{arguments}", before=before, after=after)
        site.judge_weak_scaling_by(text)
        site.measured()
        return site.judge()

    def assert_not_accepted(self, site: Site, result: pytest.RunResult) -> None:
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        assert "INTERNALERROR" not in output_of(result)
        assert site.outcome() == "incomplete"
        assert "test_weak_scaling_efficiency[resnet152-fp16-2gpu]" in outcome_line(result)

    def test_an_assertion_of_their_own_fails(self, site: Site) -> None:
        result = self.judge(site, after="assert 2 + 2 == 5, 'the site has its own rules'")
        self.assert_not_accepted(site, result)
        result.assert_outcomes(passed=ALL - 3, failed=3)
        assert "the site has its own rules" in output_of(result)

    def test_an_assertion_of_their_own_is_not_forgiven_with_a_warning(self, site: Site) -> None:
        """Only `check` ends an item by its verdict."""
        text = thresholds_with(WEAK_8, "bound: 0.96", "bound: 1.1, severity: warn")
        site.write("thresholds.yaml", text)
        condition = "assert requirement.case.requirement.severity == 'fail', 'the site has its own rules'"
        result = self.judge(site, before=condition)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.assert_outcomes(passed=ALL - 1, failed=1)
        assert site.outcome() == "incomplete"

    def test_a_fixture_of_theirs_breaks(self, site: Site) -> None:
        result = self.judge(site, arguments=", broken")
        self.assert_not_accepted(site, result)
        result.assert_outcomes(passed=ALL - 3, errors=3)

    def test_a_fixture_of_theirs_breaks_afterwards(self, site: Site) -> None:
        result = self.judge(site, arguments=", breaks_afterwards")
        self.assert_not_accepted(site, result)
        result.assert_outcomes(passed=ALL, errors=3)

    def test_a_module_cannot_be_imported(self, site: Site) -> None:
        site.judge_weak_scaling_by("import no_such_module\n")
        site.measured()
        result = site.judge()
        assert result.ret == pytest.ExitCode.INTERRUPTED
        assert "INTERNALERROR" not in output_of(result)
        assert "ddpscale::acceptance" not in result.stdout.str(), "an interrupted run is loud enough"
        assert site.outcome() == "incomplete"


def test_samples_of_a_judged_run_serve_a_test_of_ones_own(site: Site) -> None:
    site.write(
        "acceptance/test_own.py",
        "import pytest\n\n"
        "def test_own(run):\n"
        "    values = run.samples('weak_scaling_efficiency', 'resnet152-fp16', 8)\n"
        f"    assert len(values) == {ROUNDS} and all(0.97 < value < 0.98 for value in values)\n"
        "    assert run.samples('throughput_per_gpu', 'vit-b-16-fp16', 4) == []\n"
        "    assert run.sku == 'tested-gpu' and (run.directory / 'run.json').is_file()\n",
    )
    site.measured()
    result = site.judge()
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=ALL + 1)


def test_verdicts_and_report_name_the_thresholds_that_judged(site: Site) -> None:
    """Not those of the session that measured."""
    site.measured()
    site.judge()
    basis = site.verdicts()["basis"]
    assert basis["thresholds_path"] == str(site.path / "thresholds.yaml")
    report = (site.path / "measured" / "report.md").read_text(encoding="utf-8")
    assert basis["thresholds_sha256"] in report
    assert "ab" * 32 not in report
    assert len(basis["measurements_sha256"]) == 64
