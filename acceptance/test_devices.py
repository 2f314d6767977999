"""Devices: each is busy, fits its work, keeps up with its peers and computes what they compute."""

import pytest

from pytest_ddpscale.plugin.fixtures import ItemVerdict


@pytest.mark.requirement("device_utilization")
def test_device_utilization(verdict: ItemVerdict) -> None:
    """No device idles while it should train."""
    verdict.check()


@pytest.mark.requirement("model_flops_utilization")
def test_model_flops_utilization(verdict: ItemVerdict) -> None:
    """Each GPU uses as much of what its data sheet promises as it should."""
    verdict.check()


@pytest.mark.requirement("images_per_joule")
def test_images_per_joule(verdict: ItemVerdict) -> None:
    """No GPU takes more energy for an image than it should."""
    verdict.check()


@pytest.mark.requirement("peak_memory_gib")
def test_peak_memory(verdict: ItemVerdict) -> None:
    """Training leaves the memory free that it should."""
    verdict.check()


@pytest.mark.requirement("memory_spread")
def test_memory_spread(verdict: ItemVerdict) -> None:
    """All ranks hold about the same."""
    verdict.check()


@pytest.mark.node_health
@pytest.mark.requirement("rank_uniformity")
def test_rank_uniformity(verdict: ItemVerdict) -> None:
    """No GPU computes slower than its peers: under DDP all ranks wait for the slowest."""
    verdict.check()


@pytest.mark.node_health
@pytest.mark.requirement("replica_agreement")
def test_replica_agreement(verdict: ItemVerdict) -> None:
    """All ranks compute the same, bit for bit."""
    verdict.check()
