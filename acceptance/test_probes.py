"""Probes: each tests one component, such as a link or memory, whose faults training can hide."""

import pytest

from pytest_ddpscale.plugin.fixtures import ItemVerdict

pytestmark = pytest.mark.node_health


@pytest.mark.requirement("matmul_tflops")
def test_matmul(verdict: ItemVerdict) -> None:
    """Every GPU multiplies matrices at the required speed."""
    verdict.check()


@pytest.mark.requirement("memory_bandwidth_gbps")
def test_memory_bandwidth(verdict: ItemVerdict) -> None:
    """Every GPU's memory has the required bandwidth."""
    verdict.check()


@pytest.mark.requirement("host_bandwidth_gbps")
def test_host_bandwidth(verdict: ItemVerdict) -> None:
    """Every GPU reaches its host at full speed while the others do so too."""
    verdict.check()


@pytest.mark.requirement("busbw_gbps")
def test_bus_bandwidth(verdict: ItemVerdict) -> None:
    """Collectives are as fast as the links between GPUs allow."""
    verdict.check()


@pytest.mark.requirement("probe_uniformity")
def test_probe_uniformity(verdict: ItemVerdict) -> None:
    """No GPU, host link or pair of GPUs is slower than others that should be alike."""
    verdict.check()


@pytest.mark.requirement("pair_bandwidth_gbps")
def test_pair_bandwidth(verdict: ItemVerdict) -> None:
    """Every pair of GPUs of a node communicates at full speed."""
    verdict.check()
