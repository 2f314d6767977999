"""Nodes: each is healthy and no slower than in earlier runs."""

import pytest

from pytest_ddpscale.plugin.fixtures import ItemVerdict

pytestmark = pytest.mark.node_health


@pytest.mark.requirement("node_check")
def test_node_check(verdict: ItemVerdict) -> None:
    """Every node passes the check, before launch and under load."""
    verdict.check()


@pytest.mark.requirement("no_regression")
def test_no_regression(verdict: ItemVerdict) -> None:
    """No node is slower than in its own earlier runs."""
    verdict.check()
