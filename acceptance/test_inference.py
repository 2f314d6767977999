"""Inference: GPUs are as fast as they should be where nothing is trained, alone and all at once."""

import pytest

from pytest_ddpscale.plugin.fixtures import ItemVerdict


@pytest.mark.requirement("inference_throughput")
def test_inference_throughput(verdict: ItemVerdict) -> None:
    """Each GPU classifies at least as many images per second as it should."""
    verdict.check()


@pytest.mark.requirement("inference_latency_p50")
def test_inference_latency_p50(verdict: ItemVerdict) -> None:
    """Half of all batches take no longer than they should."""
    verdict.check()


@pytest.mark.requirement("inference_latency_p95")
def test_inference_latency_p95(verdict: ItemVerdict) -> None:
    """Few batches take longer than they should."""
    verdict.check()


@pytest.mark.requirement("inference_latency_p99")
def test_inference_latency_p99(verdict: ItemVerdict) -> None:
    """Hardly any batch takes longer than it should."""
    verdict.check()
