"""The seeded step: the same bits wherever it is computed, other bits for anything else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytest_ddpscale.worker import model as seeded
from pytest_ddpscale.worker.model import checksum, seeded_checksum
from pytest_ddpscale.worker.training import Batch, build_model
from tests.builders.trained import CPU, TINY, TRANSFORMER
from tests.builders.workloads import with_settings

from .ranks import on_two_ranks

WORKLOADS = {
    "fp32": TINY,
    "channels-last": with_settings(TINY, memory_format="channels_last"),
    "bf16": replace(TINY, precision="bf16"),
    "transformer": TRANSFORMER,
    "dropout": with_settings(TINY, model="squeezenet1_1", image_size=64),
}


def one_step_of_each(rank: int) -> dict[str, str]:
    torch.manual_seed(rank)  # which must not matter
    return {name: seeded_checksum(build_model(workload, CPU), workload) for name, workload in WORKLOADS.items()}


def test_ranks_that_compute_by_themselves_agree(tmp_path: Path) -> None:
    first, second = on_two_ranks(one_step_of_each, tmp_path)
    assert first == second
    assert len(set(first.values())) == len(WORKLOADS)


def test_another_input_gives_another_checksum() -> None:
    model = build_model(TINY, CPU)
    assert seeded_checksum(model, TINY, seed=1) != seeded_checksum(model, TINY, seed=2)


def test_one_bit_of_one_weight_gives_another_checksum() -> None:
    model = build_model(TINY, CPU)
    before = seeded_checksum(model, TINY)
    bits = next(model.parameters()).detach().view(torch.int32)
    bits[0, 0, 0, 0] ^= 1 << 20
    assert seeded_checksum(model, TINY) != before


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_the_model_is_left_as_it_was(name: str) -> None:
    workload = WORKLOADS[name]
    model = build_model(workload, CPU)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    first = seeded_checksum(model, workload)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert seeded_checksum(model, workload) == first


def test_settings_and_random_numbers_are_left_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    model = build_model(TINY, CPU)
    generator = torch.get_rng_state()
    seeded_checksum(model, TINY)
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.deterministic
    assert torch.get_deterministic_debug_mode() == 0


def test_settings_are_restored_after_a_failure() -> None:
    during: list[object] = []

    def fail() -> None:
        with seeded.reproducible(CPU, 1):
            during.extend([torch.backends.cudnn.deterministic, torch.get_deterministic_debug_mode()])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert during == [True, 1]
    assert not torch.backends.cudnn.deterministic
    assert torch.get_deterministic_debug_mode() == 0


@pytest.mark.parametrize(("batch_size", "expected"), [(1, 2), (2, 2), (5, 5), (512, 8)])
def test_the_batch_is_small_and_never_a_single_image(
    batch_size: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    class Remembered(Batch):
        def refill(self) -> None:
            sizes.append(len(self.labels))
            super().refill()

    monkeypatch.setattr(seeded, "Batch", Remembered)
    seeded_checksum(build_model(TINY, CPU), replace(TINY, batch_size=batch_size))
    assert sizes == [expected]


def test_the_checksum_is_of_the_gradients() -> None:
    model = build_model(TINY, CPU)
    assert seeded_checksum(model, TINY) != checksum(model.parameters())


def test_a_step_that_repeats_says_so() -> None:
    found = seeded.seeded_step(build_model(TINY, CPU), TINY)
    assert found == (seeded_checksum(build_model(TINY, CPU), TINY), True)


def test_a_step_that_does_not_repeat_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter(["aa", "bb"])
    monkeypatch.setattr(seeded, "seeded_checksum", lambda model, workload: next(results))
    assert seeded.seeded_step(build_model(TINY, CPU), TINY) == ("aa+bb", False)
