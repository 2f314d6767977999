"""`verdict`, `requirement` and `run` in tests of one's own, and projects that mean something else by these names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.site import REQUIREMENTS, ROUNDS, Site, output_of
from tests.rows import rows

DOCUMENTED = Path(__file__).parents[2] / "docs" / "own-tests.md"
# What a failed assertion would write, with all that was measured half of the time of judging went there.
OWN = f"""
import pytest

def test_samples(run):
    values = run.samples("weak_scaling_efficiency", "resnet152-fp16", 8)
    assert len(values) == {ROUNDS} and all(0.97 < value < 0.98 for value in values)
    assert run.sku == "tested-gpu" and (run.directory / "run.json").is_file()

@pytest.mark.requirement("throughput_per_gpu", "peak_memory_gib")
class TestSeveralMetrics:
    def test_own(self, requirement, run):
        requirement.judge(run).check()
        asked = (requirement, run, requirement.judge(run))
        assert max(len(repr(one)) for one in asked) < 100
"""
NO_SAMPLES = """
def test_metric(run):
    run.samples("speed", "resnet152-fp16", 8)

def test_workload(run):
    run.samples("throughput_per_gpu", "resnet", 8)
"""


def test_tests_of_ones_own_judge_beside_the_others(site: Site) -> None:
    example = DOCUMENTED.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    site.write("acceptance/test_documented.py", example)
    site.write("acceptance/test_own.py", OWN)
    site.measured()
    result = site.judge()
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=len(REQUIREMENTS) + 3 + 3)
    assert site.outcome() == "accepted"
    site.judge("acceptance/test_own.py", "-k", "TestSeveralMetrics").assert_outcomes(passed=2, deselected=1)
    assert site.outcome("measured/judged-1") == "partial"


def test_samples_of_what_does_not_exist_fail_with_a_sentence(site: Site) -> None:
    site.write("acceptance/test_own.py", NO_SAMPLES)
    site.measured()
    result = site.judge()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    for found in ("speed of resnet152-fp16", "throughput_per_gpu of resnet"):
        assert f"run.samples: found {found} at world size 8, which is not measured;" in output_of(result)


FIXTURES = """
import pytest

@pytest.fixture(params=[1, 2])
def requirement(request):
    return request.param

@pytest.fixture
def run():
    return "marathon"

@pytest.fixture
def verdict():
    return "guilty"

@pytest.mark.requirement("REQ-7")
def test_one(requirement, run, verdict):
    assert requirement in (1, 2) and run == "marathon" and verdict == "guilty"
"""
PARAMETERS = """
import pytest

@pytest.mark.parametrize("requirement", ["a", "b"])
@pytest.mark.parametrize("run", [1, 2])
def test_one(requirement, run):
    assert requirement in "ab" and run in (1, 2)
"""


@rows(
    ("text", "code", "counts"),
    [
        ("def test_one():\n    pass\n\ndef test_two():\n    assert False\n", 1, {"passed": 1, "failed": 1}),
        ("def test_one():\n    pass\n", 0, {"passed": 1}),
        ("", pytest.ExitCode.NO_TESTS_COLLECTED, {}),
        ("import no_such_module\n", pytest.ExitCode.INTERRUPTED, {"errors": 1}),
        (FIXTURES, 0, {"passed": 2}),
        (PARAMETERS, 0, {"passed": 4}),
    ],
)
def test_projects_that_do_not_use_the_plugin_are_not_disturbed(
    site: Site, text: str, code: int, counts: dict[str, int]
) -> None:
    """Not even by thresholds that are none of ours."""
    site.write("thresholds.yaml", "not: [ours")
    site.write("project/test_project.py", text)
    result = site.run("project")
    assert result.ret == code
    result.assert_outcomes(**counts)
    assert "INTERNALERROR" not in output_of(result)
    assert not (site.path / "ddpscale-runs").exists()
    ours = [line for line in result.outlines if "ddpscale" in line]
    assert [line for line in ours if not line.startswith(("plugins:", "rootdir:"))] == []
