"""Nodes: each is what it should be, and what it was."""

import pytest

from pytest_ddpscale.plugin.fixtures import ItemVerdict

pytestmark = pytest.mark.node_health


@pytest.mark.requirement("node_check")
def test_node_check(verdict: ItemVerdict) -> None:
    """Every node is as it should be, before it works and while it does."""
    verdict.check()


@pytest.mark.requirement("no_regression")
def test_no_regression(verdict: ItemVerdict) -> None:
    """No node fell behind its own earlier runs."""
    verdict.check()
