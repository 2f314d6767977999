"""The trained model: what is frozen of it, the step that all ranks agree on bit by bit, and the operations it takes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pytest_ddpscale.families.image import FEATURES, ImageFamily, _convolution_backward_flops
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker import model as seeded
from pytest_ddpscale.worker import model as trained_model
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.model import (
    build_model,
    checksum,
    flops_per_sample,
    seeded_checksum,
    seeded_step,
    workload_flops_record,
)
from pytest_ddpscale.worker.training import Batch
from tests.builders.trained import CPU, TIMEOUT, TINY, TRANSFORMER, study
from tests.builders.workloads import with_settings
from tests.worker.ranks import on_two_ranks

FROZEN = with_settings(TINY, classifier_hidden=16)  # with batch normalisation
LINEAR = with_settings(TINY, model="squeezenet1_1", classifier_hidden=0)
ARMS = (Arm("alone", 1, 2), Arm("no_sync", 2, 2), Arm("ddp", 2, 2))


def frozen(workload: Workload = FROZEN) -> Any:
    return build_model(workload, CPU)


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("model", sorted(FEATURES))
def test_features_are_as_wide_as_the_table_says(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without data: all of them together are gigabytes."""
    monkeypatch.setattr(trained_model, "take_statistics", lambda *ignored: None)
    workload, meta = (
        Workload("x", ImageFamily(model, 64, num_classes=10, classifier_hidden=8), "fp32", 2),
        torch.device("meta"),
    )
    built = build_model(workload, meta)
    assert built(torch.empty(2, 3, 64, 64, device=meta)).shape == (2, 10)
    trained = sum(parameter.numel() for parameter in built.parameters() if parameter.requires_grad)
    assert trained == workload.family.classifier_parameters


@pytest.mark.parametrize("workload", [FROZEN, LINEAR], ids=["two-hidden-layers", "linear"])
def test_only_the_classifier_learns(gloo_of_one: None, workload: Workload) -> None:
    arms = StudyArms(study(ARMS[0], workload=workload), CpuDevice(), 0, Layout(1, 1), TIMEOUT)
    before = state_of(arms.model)
    arms.time_block(ARMS[0], 3)
    changed = {name.split(".")[0] for name, tensor in arms.model.state_dict().items() if (tensor != before[name]).any()}
    assert changed == {"classifier"}, "neither weights nor statistics of the features"
    arms.close()


def test_frozen_batch_normalisation_has_statistics_and_keeps_them() -> None:
    model = frozen()
    before = state_of(model.features)
    assert any((tensor != 0).any() for name, tensor in before.items() if name.endswith("running_mean"))
    assert model.training
    for mode in (False, True):
        model.train(mode)
        assert (model.classifier.training, model.features.training) == (mode, False)
        model(Batch(FROZEN, 2, CPU, seed=1).inputs)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.features.state_dict().items())


def both_ranks(rank: int) -> dict[str, Any]:
    torch.manual_seed(rank)  # which must not matter
    arms = StudyArms(study(*ARMS, workload=FROZEN), CpuDevice(), rank, Layout(1, 2), TIMEOUT)
    seeded = seeded_step(arms.model, FROZEN)
    if rank == 0:
        arms.time_block(ARMS[0], 2)
    arms.time_block(ARMS[1], 2)
    of_block = arms.time_block(ARMS[2], 3).parameters_checksum
    replica = arms._replicas.of(ARMS[2])
    reduced = sum(parameter.numel() for parameter in replica.call.parameters() if parameter.requires_grad)
    found = {
        "seeded": seeded, "block": of_block, "whole": checksum(arms.model.parameters()), "reduced": reduced,
        "buffers sent": replica.call.will_sync_module_buffers(),
        "momentum": sum(state["momentum_buffer"].numel() for state in replica.weights.optimizer.state.values()),
    }  # fmt: skip
    arms.close()
    return found


def test_ranks_agree_on_features_and_classifier_and_ddp_sends_the_classifier_alone(tmp_path: Path) -> None:
    first, second = on_two_ranks(both_ranks, tmp_path)
    assert first == second
    assert first["block"] == first["whole"], "frozen weights are in the checksum, too"
    assert first["seeded"][1], "a seeded step repeats, dropout and all"
    assert first["reduced"] == first["momentum"] == FROZEN.family.classifier_parameters
    assert not first["buffers sent"], "they never change"


def test_flops_have_no_backward_pass_of_the_features() -> None:
    workload = with_settings(LINEAR, image_size=224, num_classes=1000)
    whole = flops_per_sample(build_model(with_settings(workload, classifier_hidden=None), CPU), workload)
    of_classifier = 2 * 2 * 512 * 1000  # forward, and backward only its weights' gradient: its input wants none
    features = flops_per_sample(frozen(workload), workload) - of_classifier
    # Its own head is a convolution, over 13 x 13 places; 0.349e9 multiply-accumulates are published of the whole.
    of_features = 1 - 512 * 1000 * 13 * 13 / 0.349e9
    assert features / whole == pytest.approx(of_features / 3, rel=0.05)


def test_weights_of_a_state_dict_are_used_and_get_no_other_statistics(tmp_path: Path) -> None:
    published = torchvision.models.get_model(FROZEN.family.model, weights=None)
    torch.save(published.state_dict(), tmp_path / "w.pth")
    model = frozen(with_settings(FROZEN, feature_weights=str(tmp_path / "w.pth")))
    theirs = published.state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in model.features.state_dict().items())


def test_densenets_published_with_names_of_old_are_read(tmp_path: Path) -> None:
    state = torchvision.models.get_model("densenet121", weights=None).state_dict()
    old = {name.replace(".norm1.", ".norm.1.").replace(".conv2.", ".conv.2."): one for name, one in state.items()}
    assert old.keys() != state.keys()
    torch.save(old, tmp_path / "w.pth")
    workload = with_settings(FROZEN, model="densenet121", feature_weights=str(tmp_path / "w.pth"))
    name = "features.denseblock1.denselayer1.norm1.weight"
    assert torch.equal(frozen(workload).features.state_dict()[name], state[name])


class Other:
    """Something that a state dict has no business with."""


def not_there(path: Path) -> None:
    path.unlink(missing_ok=True)


def other_model(path: Path) -> None:
    torch.save(torchvision.models.get_model("squeezenet1_1", weights=None).state_dict(), path)


def code(path: Path) -> None:
    path.write_bytes(pickle.dumps(Other(), protocol=2))


def a_tensor(path: Path) -> None:
    torch.save(torch.zeros(3), path)


@pytest.mark.parametrize("spoil", [not_there, other_model, code, a_tensor])
def test_other_weights_are_one_sentence(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    path = tmp_path / "w.pth"
    spoil(path)
    with pytest.raises(
        RuntimeError, match=r"^feature_weights .*w\.pth: .+; expected torchvision's state dict of shuf"
    ) as told:
        frozen(with_settings(FROZEN, feature_weights=str(path)))
    assert "\n" not in str(told.value)


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
            sizes.append(len(self.targets))
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


AT_224 = with_settings(TINY, image_size=224, num_classes=1000)


@pytest.mark.parametrize(
    ("name", "forward_gmac", "tolerance"),
    [
        # "GFLOPS" of torchvision's table of models are multiply-adds of one forward pass.
        ("resnet50", 4.09, 0.02),
        ("vit_b_16", 17.56, 0.01),
        # First layers, whose input wants no gradient, weigh more here.
        ("efficientnet_b0", 0.39, 0.04),
    ],
)
def test_forward_and_backward_cost_three_times_the_published_forward_pass(
    name: str, forward_gmac: float, tolerance: float
) -> None:
    workload = with_settings(AT_224, model=name)
    flops = flops_per_sample(build_model(workload, CPU), workload)
    assert flops == pytest.approx(3 * 2 * forward_gmac * 1e9, rel=tolerance)


def test_attention_is_counted() -> None:
    """2 layers, each with scores and values of 197 tokens in 64 dimensions, once forward and twice backward."""
    workload = with_settings(TRANSFORMER, image_size=224)
    short = with_settings(workload, image_size=112)
    tokens, short_tokens = 197, 50
    difference = flops_per_sample(build_model(workload, CPU), workload)
    difference -= flops_per_sample(build_model(short, CPU), short) * tokens / short_tokens
    attention = 2 * 3 * 2 * 2 * 64 * (tokens**2 - short_tokens**2 * tokens / short_tokens)
    assert difference == pytest.approx(attention, rel=0.05)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions_without_groups_are_counted_as_torch_does(transposed: bool, bias: bool) -> None:
    convolution = (nn.ConvTranspose2d if transposed else nn.Conv2d)(6, 10, 3, stride=2, padding=1, bias=bias)
    image = torch.randn(4, 6, 15, 15, requires_grad=True)
    formulas = {torch.ops.aten.convolution_backward: _convolution_backward_flops}
    counts = []
    for mapping in (None, formulas):
        with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
            convolution(image).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_counting_leaves_the_model_where_it_was_and_without_gradients() -> None:
    model = build_model(TINY, CPU)
    flops_per_sample(model, TINY)
    assert all(parameter.device == CPU and parameter.grad is None for parameter in model.parameters())
    counted = [buffer for name, buffer in model.named_buffers() if name.endswith("num_batches_tracked")]
    assert sum(counted) == 0 < len(counted)


def test_the_record_has_the_operations_of_an_image() -> None:
    workload = with_settings(TINY, model="resnet18")
    record = workload_flops_record(study(workload=workload), build_model(workload, CPU))
    assert record is not None
    assert record.flops_per_sample == pytest.approx(3 * 2 * 0.037e9, rel=0.03)
    assert record.study == "weak/tiny"
