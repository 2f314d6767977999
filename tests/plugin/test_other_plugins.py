"""Other pytest plugins of a site; benchmarks/plugins.py tries real ones, and tests/benchmarks/test_plugins.py some."""

from __future__ import annotations

import pytest

from tests.plugin.site import REQUIREMENTS, WEAK_8, Site, assert_no_crash, outcome_line, thresholds_with

# As pytest-rich and pytest-custom-exit-code do.
CONFTEST = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.pluginmanager.unregister(name="terminalreporter")

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    session.exitstatus = pytest.ExitCode.OK
"""


def test_who_removes_the_reporter_and_forgives_failures_hides_no_rejection(site: Site) -> None:
    site.write("conftest.py", CONFTEST)
    site.write("thresholds.yaml", thresholds_with(WEAK_8, "bound: 0.96", "bound: 1.1"))
    site.measured()
    result = site.judge()
    assert_no_crash(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert outcome_line(result).startswith("REJECTED: weak_scaling_efficiency[resnet152-fp16-8gpu] is ")
    assert "report: measured/report.html" in result.outlines


def test_items_that_come_twice_are_judged_once(site: Site) -> None:
    """As pytest-repeat and pytest-stress have it."""
    site.write("conftest.py", "def pytest_collection_modifyitems(items): items += items\n")
    site.measured()
    result = site.judge()
    assert outcome_line(result).startswith(f"ACCEPTED: {len(REQUIREMENTS)} of {len(REQUIREMENTS)} requirements passed")
