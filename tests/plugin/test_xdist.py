"""pytest-xdist: several pytest processes would measure against each other."""

from __future__ import annotations

import pytest

from tests.plugin.site import REQUIREMENTS, Site, assert_refused, contents, output_of

REFUSAL = ("pytest-xdist is active with workers; expected one pytest process", "Run without -n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--gpu-sku=tested",),
        ("--gpu-sku=tested", "acceptance"),
        ("acceptance",),
        ("--ddp-judge=measured",),
        ("--ddp-resume=measured",),
    ],
    ids=["sku", "sku-and-tests", "tests", "judge", "resume"],
)
def test_workers_are_refused(site: Site, arguments: tuple[str, ...]) -> None:
    run = site.measured()
    before = contents(run.path)
    assert_refused(site.run("-n", "2", *arguments), *REFUSAL)
    assert contents(run.path) == before
    assert not (site.path / "ddpscale-runs").exists()


def test_workers_are_refused_beside_other_tests(site: Site) -> None:
    site.write("test_other.py", "def test_other():\n    pass\n")
    assert_refused(site.run("-n", "2", "acceptance", "test_other.py"), *REFUSAL)


@pytest.mark.parametrize("arguments", [("-n", "0"), ("-p", "no:xdist")])
def test_one_process_is_welcome(site: Site, arguments: tuple[str, ...]) -> None:
    site.measured()
    result = site.judge(*arguments)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=len(REQUIREMENTS))


def test_workers_run_tests_that_measure_nothing(site: Site) -> None:
    site.write("test_other.py", "def test_one():\n    pass\n\ndef test_two():\n    assert False\n")
    result = site.run("-n", "2", "test_other.py")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1)
    assert "pytest-xdist is active" not in output_of(result)
