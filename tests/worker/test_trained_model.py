"""A classifier on frozen features: only it learns, only it is reduced, and replicas agree on all of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.image_family import FEATURES, ImageFamily
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker import model as trained_model
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.model import OnFrozenFeatures, build_trained_model, checksum, flops_per_sample, seeded_step
from pytest_ddpscale.worker.training import Batch, build_model
from tests.builders.trained import CPU, TIMEOUT, TINY, study
from tests.builders.workloads import with_settings
from tests.worker.ranks import on_two_ranks

FROZEN = with_settings(TINY, classifier_hidden=16)  # with batch normalisation
LINEAR = with_settings(TINY, model="squeezenet1_1", classifier_hidden=0)
ARMS = (Arm("alone", 1, 2), Arm("no_sync", 2, 2), Arm("ddp", 2, 2))


def frozen(workload: Workload = FROZEN) -> OnFrozenFeatures:
    model = build_trained_model(workload, CPU)
    assert isinstance(model, OnFrozenFeatures)
    return model


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
    built = build_trained_model(workload, meta)
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
        model(Batch(FROZEN, 2, CPU, seed=1).images)
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
    whole = flops_per_sample(build_model(workload, CPU), workload)
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
