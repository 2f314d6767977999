"""`verdict`, `requirement` and `run` in tests of one's own, and projects that mean something else by these names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.site import REQUIREMENTS, Site, assert_refused, output_of

OWN = "acceptance/test_own.py"
DOCUMENTED = Path(__file__).parents[2] / "docs" / "own-tests.md"


@pytest.mark.parametrize(
    ("mark", "arguments"),
    [
        ("", "verdict"),
        ("@pytest.mark.requirement()", "requirement, run"),
    ],
)
def test_asking_for_a_requirement_without_saying_of_what_is_refused(site: Site, mark: str, arguments: str) -> None:
    site.write(OWN, f"import pytest\n\n{mark}\ndef test_own({arguments}):\n    pass\n")
    run = site.measured()
    assert_refused(
        site.judge(), f"ERROR: {OWN}::test_own uses `requirement` without naming a metric; expected ",
        "@pytest.mark.requirement(METRIC) with one of throughput_per_gpu, weak_scaling_efficiency,",
    )  # fmt: skip
    assert not run.verdicts_json.exists()


@pytest.mark.parametrize("metric", ["'weak_scaling_eficiency'", "['throughput_per_gpu']"])
def test_a_metric_that_does_not_exist_is_refused(site: Site, metric: str) -> None:
    """Left out silently, the run would be partial, and exit with 0."""
    site.write(OWN, f"import pytest\n\n@pytest.mark.requirement({metric})\ndef test_own(requirement, run):\n    pass\n")
    site.measured()
    assert_refused(site.judge(), f"{OWN}::test_own is marked requirement({metric}); expected ")


def test_one_test_may_judge_several_metrics(site: Site) -> None:
    site.write(
        OWN,
        "import pytest\n\n"
        '@pytest.mark.requirement("throughput_per_gpu", "peak_memory_gib")\n'
        "class TestOwn:\n"
        "    def test_own(self, requirement, run):\n"
        "        requirement.judge(run).check()\n",
    )
    site.measured()
    result = site.judge(OWN)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=2)
    assert site.outcome() == "partial"


def test_the_documented_test_of_ones_own_judges_beside_the_others(site: Site) -> None:
    example = DOCUMENTED.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    site.write(OWN, example)
    site.measured()
    result = site.judge()
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=len(REQUIREMENTS) + 3)
    assert site.outcome() == "accepted"


def test_samples_of_what_does_not_exist_fail_with_a_sentence(site: Site) -> None:
    calls = ("'speed', 'resnet152-fp16', 8", "'throughput_per_gpu', 'resnet', 8")
    tests = (f"def test_{number}(run):\n    run.samples({call})\n" for number, call in enumerate(calls))
    site.write(OWN, "\n".join(tests))
    site.measured()
    result = site.judge()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    for expected in ("found metric 'speed'", "found workload 'resnet'"):
        assert f"run.samples: {expected}; expected one of " in output_of(result)


class TestProjectsThatDoNotUseThePlugin:
    def run(self, site: Site, text: str, *arguments: str) -> pytest.RunResult:
        site.write("project/test_project.py", text)
        result = site.run("project", *arguments)
        assert "INTERNALERROR" not in output_of(result)
        assert not (site.path / "ddpscale-runs").exists()
        return result

    def test_are_not_disturbed(self, site: Site) -> None:
        result = self.run(site, "def test_one():\n    pass\n\ndef test_two():\n    assert False\n")
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.assert_outcomes(passed=1, failed=1)
        mentions = [
            line for line in result.outlines if "ddpscale" in line and not line.startswith(("plugins:", "rootdir:"))
        ]
        assert mentions == []

    def test_keep_pytests_exit_codes(self, site: Site) -> None:
        assert self.run(site, "def test_one():\n    pass\n").ret == pytest.ExitCode.OK
        assert self.run(site, "").ret == pytest.ExitCode.NO_TESTS_COLLECTED
        assert self.run(site, "import no_such_module\n").ret == pytest.ExitCode.INTERRUPTED

    def test_need_no_valid_thresholds(self, site: Site) -> None:
        site.write("thresholds.yaml", "not: [ours")
        assert self.run(site, "def test_one():\n    pass\n").ret == pytest.ExitCode.OK

    def test_may_have_fixtures_of_these_names(self, site: Site) -> None:
        text = (
            "import pytest\n\n"
            "@pytest.fixture(params=[1, 2])\n"
            "def requirement(request):\n    return request.param\n\n"
            "@pytest.fixture\n"
            "def run():\n    return 'marathon'\n\n"
            "@pytest.fixture\n"
            "def verdict():\n    return 'guilty'\n\n"
            "@pytest.mark.requirement('REQ-7')\n"
            "def test_one(requirement, run, verdict):\n"
            "    assert requirement in (1, 2) and run == 'marathon' and verdict == 'guilty'\n"
        )
        result = self.run(site, text)
        assert result.ret == pytest.ExitCode.OK
        result.assert_outcomes(passed=2)

    def test_may_parametrize_by_these_names(self, site: Site) -> None:
        text = (
            "import pytest\n\n"
            "@pytest.mark.parametrize('requirement', ['a', 'b'])\n"
            "@pytest.mark.parametrize('run', [1, 2])\n"
            "def test_one(requirement, run):\n    assert requirement in 'ab' and run in (1, 2)\n"
        )
        result = self.run(site, text)
        assert result.ret == pytest.ExitCode.OK
        result.assert_outcomes(passed=4)


def test_what_a_test_asks_for_is_written_in_a_line_and_not_with_all_that_was_measured(site: Site) -> None:
    """Pytest writes it at each failed assertion: with its evidence half of the time of judging went there."""
    site.write(
        OWN,
        "import pytest\n\n"
        '@pytest.mark.requirement("throughput_per_gpu")\n'
        "def test_own(requirement, run):\n"
        "    asked = (requirement, run, requirement.judge(run))\n"
        "    assert max(len(repr(one)) for one in asked) < 100\n",
    )
    site.measured()
    assert site.judge(OWN).ret == pytest.ExitCode.OK
