"""Devices: utilization, memory, energy, and agreement with peers in speed and results."""

import pytest

from pytest_ddpscale.plugin.fixtures import ItemVerdict


@pytest.mark.requirement("device_utilization")
def test_device_utilization(verdict: ItemVerdict) -> None:
    """Every device is busy while it trains."""
    verdict.check()


@pytest.mark.requirement("model_flops_utilization")
def test_model_flops_utilization(verdict: ItemVerdict) -> None:
    """Each GPU reaches the required share of its data-sheet FLOPS."""
    verdict.check()


@pytest.mark.requirement("images_per_joule")
def test_images_per_joule(verdict: ItemVerdict) -> None:
    """Each GPU trains the required number of images per joule."""
    verdict.check()


@pytest.mark.requirement("peak_memory_gib")
def test_peak_memory(verdict: ItemVerdict) -> None:
    """Training stays within its memory limit."""
    verdict.check()


@pytest.mark.requirement("memory_spread")
def test_memory_spread(verdict: ItemVerdict) -> None:
    """All ranks use about the same amount of memory."""
    verdict.check()


@pytest.mark.requirement("rank_uniformity")
def test_rank_uniformity(verdict: ItemVerdict) -> None:
    """No GPU computes slower than its peers; under DDP all ranks wait for the slowest."""
    verdict.check()


@pytest.mark.requirement("node_uniformity")
def test_node_uniformity(verdict: ItemVerdict) -> None:
    """No node computes slower than the others."""
    verdict.check()


@pytest.mark.node_health
@pytest.mark.requirement("replica_agreement")
def test_replica_agreement(verdict: ItemVerdict) -> None:
    """All ranks compute the same results, bit for bit."""
    verdict.check()
