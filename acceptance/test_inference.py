"""Inference: throughput and latency of GPUs alone and all at once."""

import pytest

from pytest_ddpscale.plugin.fixtures import ItemVerdict


@pytest.mark.requirement("inference_throughput")
def test_inference_throughput(verdict: ItemVerdict) -> None:
    """Each GPU classifies the required number of images per second."""
    verdict.check()


@pytest.mark.requirement("inference_latency_p50")
def test_inference_latency_p50(verdict: ItemVerdict) -> None:
    """50 % of batches finish within the required time."""
    verdict.check()


@pytest.mark.requirement("inference_latency_p95")
def test_inference_latency_p95(verdict: ItemVerdict) -> None:
    """95 % of batches finish within the required time."""
    verdict.check()


@pytest.mark.requirement("inference_latency_p99")
def test_inference_latency_p99(verdict: ItemVerdict) -> None:
    """99 % of batches finish within the required time."""
    verdict.check()
