"""pytest-xdist: several pytest processes would measure against each other."""

from __future__ import annotations

import pytest

from tests.plugin.site import REQUIREMENTS, Site, assert_refused, output_of
from tests.rows import rows

REFUSAL = ("pytest-xdist is active with workers; expected one pytest process", "Run without -n")


@rows(
    "arguments",
    ["--gpu-sku=tested", "acceptance test_other.py", "--ddp-judge=measured", "--ddp-resume=measured"],
)
def test_workers_are_refused(site: Site, arguments: str) -> None:
    site.reset()
    site.write("test_other.py", "def test_other():\n    pass\n")
    site.measured()
    before = site.files()
    assert_refused(site.run("-n", "2", *arguments.split()), *REFUSAL)
    assert site.files() == before


def test_one_process_is_welcome(site: Site) -> None:
    site.measured()
    for arguments in (["-n", "0"], ["-p", "no:xdist"]):
        site.judge(*arguments).assert_outcomes(passed=len(REQUIREMENTS))


def test_workers_run_tests_that_measure_nothing(site: Site) -> None:
    site.write("test_other.py", "def test_one():\n    pass\n\ndef test_two():\n    assert False\n")
    result = site.run("-n", "2", "test_other.py")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1)
    assert "pytest-xdist is active" not in output_of(result)
