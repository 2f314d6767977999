"""Probes: what training hides, a broken link or a slow memory, each asked for by itself."""

import pytest

from pytest_ddpscale.plugin.fixtures import ItemVerdict

pytestmark = pytest.mark.node_health


@pytest.mark.requirement("matmul_tflops")
def test_matmul(verdict: ItemVerdict) -> None:
    """Every GPU multiplies matrices as fast as its model should."""
    verdict.check()


@pytest.mark.requirement("memory_bandwidth_gbps")
def test_memory_bandwidth(verdict: ItemVerdict) -> None:
    """Every GPU's memory is as fast as it should be."""
    verdict.check()


@pytest.mark.requirement("host_bandwidth_gbps")
def test_host_bandwidth(verdict: ItemVerdict) -> None:
    """Every GPU reaches its host at full speed, while the others do too."""
    verdict.check()


@pytest.mark.collectives
@pytest.mark.requirement("busbw_gbps")
def test_bus_bandwidth(verdict: ItemVerdict) -> None:
    """Collectives are as fast as the links between GPUs allow."""
    verdict.check()


@pytest.mark.collectives
@pytest.mark.requirement("pair_bandwidth_gbps")
def test_pair_bandwidth(verdict: ItemVerdict) -> None:
    """Any two GPUs of a node reach each other at full speed."""
    verdict.check()
