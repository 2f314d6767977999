"""Models compiled in a process that trains many batch sizes, as in strong scaling."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from pytest_ddpscale.worker.training import compiled, forget_compiled
from tests.worker.two_kernels import TwoKernels, needs_compiler

pytestmark = [pytest.mark.lab, needs_compiler]
BATCHES = range(2, 12)


@pytest.fixture(autouse=True)
def as_in_a_new_process(scalar_kernels: None) -> Iterator[None]:
    forget_compiled()
    counters.clear()
    yield
    forget_compiled()


def graphs_of(model: nn.Module) -> int:
    """How many were compiled for one call of each batch size."""
    before, call = counters["stats"]["unique_graphs"], compiled(model)
    for batch in BATCHES:
        images = torch.randn(batch, 8)
        torch.testing.assert_close(call(images), model(images))
    return counters["stats"]["unique_graphs"] - before


def test_each_batch_size_has_kernels_of_its_own_however_many_there_are() -> None:
    assert graphs_of(TwoKernels(8, 4)) == len(BATCHES)


def test_after_forgetting_a_model_is_compiled_as_in_a_new_process() -> None:
    found = [graphs_of(TwoKernels(8, 4)), graphs_of(TwoKernels(8, 4))]
    forget_compiled()
    found.append(graphs_of(TwoKernels(8, 4)))
    assert found == [len(BATCHES), 0, len(BATCHES)]
