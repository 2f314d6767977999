"""Choosing among the requirements: what is not chosen makes a partial run."""

from __future__ import annotations

import shutil

import pytest

from tests.plugin.site import REQUIREMENTS, WEAK_8, WEAK_8_NODE_ID, Site, output_of, thresholds_with

ALL = len(REQUIREMENTS)
PARTIAL = f"PARTIAL: {{}} of {ALL} requirements passed; the others were not selected"


def assert_partial(site: Site, result: pytest.RunResult, passed: int) -> None:
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes()["passed"] == passed
    assert PARTIAL.format(passed) in result.outlines
    assert site.outcome() == "partial"
    assert len(site.verdicts()["verdicts"]) == passed


@pytest.mark.parametrize(
    "arguments",
    [(WEAK_8_NODE_ID,), ("-k", "vit and weak"), ("-k", "peak_memory_gib[resnet152-fp16-8gpu]")],
    ids=["node id", "keyword", "name that reports give it"],
)
def test_one_requirement(site: Site, arguments: tuple[str, ...]) -> None:
    site.measured()
    assert_partial(site, site.judge(*arguments), 1)


def test_one_node_id_from_inside_the_folder(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    run = site.measured()
    monkeypatch.chdir(site.path / "acceptance")
    assert_partial(site, site.run(f"--ddp-judge={run.path}", f"test_scaling.py::{WEAK_8}"), 1)


@pytest.mark.parametrize("folder", ["", "acceptance/"], ids=["as printed without a copy of the tests", "as with one"])
def test_a_pasted_node_id_is_found_among_the_packaged_tests(site: Site, folder: str) -> None:
    site.measured()
    shutil.rmtree(site.path / "acceptance")
    one = f"test_scaling.py::{WEAK_8}"
    assert_partial(site, site.judge(f"{folder}{one}"), 1)
    assert one in site.run("--gpu-sku=tested-gpu", f"{folder}{one}", "--collect-only", "-q").outlines


def test_a_file_that_is_not_there_is_pytests_own_error(site: Site) -> None:
    result = site.judge("no_such_file.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: file or directory not found: no_such_file.py" in output_of(result)


def test_only_requirements_are_counted(site: Site) -> None:
    site.measured()
    assert f"collected {ALL} items" in site.judge().outlines
    assert f"collected {ALL} items / {ALL} deselected / 0 selected" in site.judge("-k", "no_such_item").outlines


def test_the_marker_leaves_other_tests_out(site: Site) -> None:
    site.write("acceptance/test_other.py", "def test_other():\n    assert False\n")
    site.measured()
    result = site.judge("-m", "requirement")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=ALL, deselected=1)
    assert site.outcome() == "accepted"


def test_the_last_failed_ones(site: Site) -> None:
    site.write("thresholds.yaml", thresholds_with(WEAK_8, "bound: 0.96", "bound: 1.1"))
    site.measured()
    assert site.judge().ret == pytest.ExitCode.TESTS_FAILED
    again = site.judge("--lf")
    again.assert_outcomes(failed=1)
    site.write("thresholds.yaml", thresholds_with(WEAK_8, "bound: 0.96", "bound: 0.95"))
    mended = site.judge("--lf")
    assert mended.ret == pytest.ExitCode.OK
    mended.assert_outcomes(passed=1)
    assert site.outcome("measured/judged-2") == "partial"


def test_nothing_selected_is_pytests_own_exit_code_and_writes_nothing(site: Site) -> None:
    run = site.measured()
    result = site.judge("-k", "no_such_item")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert not run.verdicts_json.exists()


def test_metrics_without_a_requirement_leave_no_empty_items(site: Site) -> None:
    result = site.run("--gpu-sku=cpu", "--collect-only", "-q")
    items = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert items == [
        "test_throughput_per_gpu[resnet18-fp32-1rank]",
        "test_weak_scaling_efficiency[resnet18-fp32-2rank]",
    ]
    assert "NOTSET" not in output_of(result)
