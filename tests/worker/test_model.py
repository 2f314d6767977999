"""The trained model and its step: precision, data, what is frozen, how it is compiled, the step that all ranks agree on
bit by bit, and the operations it takes.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torch._dynamo.utils import counters

from pytest_ddpscale.families.image import FEATURES, ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.worker import model as models
from pytest_ddpscale.worker.model import (
    build_model,
    checksum,
    flops_per_sample,
    reproducible,
    seeded_checksum,
    seeded_step,
    workload_flops_record,
)
from pytest_ddpscale.worker.training import Batch, compiled, compute_fp32_in_full, forget_compiled, new_scaler
from pytest_ddpscale.worker.work import Matmul
from tests.builders.trained import CPU, TINY, TRANSFORMER, arms_of, study
from tests.builders.workloads import with_settings
from tests.rows import rows
from tests.worker.ranks import on_two_ranks
from tests.worker.two_kernels import TwoKernels, needs_compiler

FROZEN = with_settings(TINY, model="shufflenet_v2_x0_5", classifier_hidden=16)  # with batch normalisation
LINEAR = with_settings(TINY, model="squeezenet1_1", classifier_hidden=0)
CHANNELS_LAST = with_settings(TINY, memory_format="channels_last")
ALONE = Arm("alone", 1, 2)
ARMS = (ALONE, Arm("no_sync", 2, 2), Arm("ddp", 2, 2))


def built(workload: Workload = TINY) -> Any:
    return build_model(workload, CPU)


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def changed(model: nn.Module, before: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


def test_channels_last_holds_for_weights_and_images() -> None:
    images = Batch(CHANNELS_LAST, 2, CPU, seed=1).inputs
    weights = [one for one in built(CHANNELS_LAST).parameters() if one.dim() == 4 and min(one.shape[1:3]) > 1]
    assert weights
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in (*weights, images))


def test_a_block_draws_new_images_and_labels_in_range() -> None:
    batch = Batch(TINY, 64, CPU, seed=1)
    before = [one.clone() for one in batch.fetch()]
    batch.begin(1)
    images, labels = batch.fetch()
    assert not any(map(torch.equal, (images, labels), before))
    assert 0 <= labels.min() < labels.max() < 10
    assert abs(float(images.mean())) < 0.1
    assert float(images.std()) == pytest.approx(1.0, abs=0.1)


def test_only_fp16_scales_its_loss() -> None:
    scalers = [new_scaler(replace(TINY, precision=one), CPU) for one in ("fp32", "bf16", "fp16")]
    assert [isinstance(one, torch.amp.GradScaler) for one in scalers] == [False, False, True]


BACKENDS: Any = torch.backends
CUDNN = "cudnn.fp32_precision cudnn.conv.fp32_precision"


@rows(
    ("settings", "compute"),
    [
        ("cuda.matmul.allow_tf32 cudnn.allow_tf32", compute_fp32_in_full),
        ("fp32_precision", compute_fp32_in_full),
        ("cuda.matmul.fp32_precision", compute_fp32_in_full),
        (CUDNN, compute_fp32_in_full),
        (CUDNN, lambda: arms_of(ALONE)),
        (CUDNN, lambda: Matmul("fp32", CPU, 128)),
    ],
)
def test_every_way_to_allow_tf32_is_taken_back(settings: str, compute: Callable[[], object]) -> None:
    torch.set_float32_matmul_precision("medium")
    for setting in settings.split():
        *path, name = setting.split(".")
        setattr(reduce(getattr, path, BACKENDS), name, True if name == "allow_tf32" else "tf32")
    compute()
    # torch.compile reads these, and torch refuses to answer where its settings disagree.
    assert (BACKENDS.cuda.matmul.allow_tf32, BACKENDS.cudnn.allow_tf32) == (False, False)
    assert torch.get_float32_matmul_precision() == "highest"
    for one in (BACKENDS.cuda.matmul, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn, BACKENDS):
        assert one.fp32_precision == "ieee"


def test_a_rank_takes_tf32_from_its_environment_before_a_library_reads_it() -> None:
    overrides = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "NVIDIA_TF32_OVERRIDE": "1"}
    environ = os.environ | overrides | {"CUBLASLT_WORKSPACE_SIZE": "1024"}
    code = (
        "import os; from pytest_ddpscale.worker.__main__ import recorded; import torch; "
        "print(torch.get_float32_matmul_precision(), *(name for name in os.environ if 'TF32' in name)); "
        "print(recorded(os.environ)['CUBLASLT_WORKSPACE_SIZE'])"
    )
    told = subprocess.check_output([sys.executable, "-c", code], env=environ, text=True, timeout=120)
    notes = [f"{name}=1 is ignored: fp32 is computed in full" for name in overrides]
    assert told.splitlines() == [*notes, "highest", "1024"]


@pytest.mark.lab
@needs_compiler
def test_each_batch_size_has_kernels_of_its_own_and_after_forgetting_they_are_compiled_anew(
    scalar_kernels: None,
) -> None:
    forget_compiled()
    counters.clear()
    found = []
    for forgets in (False, True, True):
        model, before = TwoKernels(8, 4), counters["stats"]["unique_graphs"]
        call = compiled(model)
        for batch in range(2, 12):
            images = torch.randn(batch, 8)
            torch.testing.assert_close(call(images), model(images))
        found.append(counters["stats"]["unique_graphs"] - before)
        if forgets:
            forget_compiled()
    assert found == [10, 0, 10]


@rows("model", sorted(FEATURES))
def test_features_are_as_wide_as_the_table_says(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without data: all of them together are gigabytes."""
    monkeypatch.setattr(models, "take_statistics", lambda *ignored: None)
    family, meta = ImageFamily(model, 64, num_classes=10, classifier_hidden=8), torch.device("meta")
    found = build_model(Workload("x", family, "fp32", 2), meta)
    assert found(torch.empty(2, 3, 64, 64, device=meta)).shape == (2, 10)
    trained = sum(parameter.numel() for parameter in found.parameters() if parameter.requires_grad)
    assert trained == family.classifier_parameters


@rows("workload", [FROZEN, LINEAR])
def test_only_the_classifier_learns(gloo_of_one: None, workload: Workload) -> None:
    ddp = Arm("ddp", 1, 2)
    arms = arms_of(ddp, workload=workload)
    before = state_of(arms.model)
    arms.time_block(ddp, 3)
    assert {name.split(".")[0] for name in changed(arms.model, before)} == {"classifier"}
    replica = arms._replicas.of(ddp)
    assert not replica.call.will_sync_module_buffers(), "they never change"
    momentum = [state["momentum_buffer"].numel() for state in replica.weights.optimizer.state.values()]
    assert sum(momentum) == workload.family.classifier_parameters


def test_frozen_batch_normalisation_has_statistics_and_keeps_them() -> None:
    model = built(FROZEN)
    before = state_of(model)
    assert any(tensor.any() for name, tensor in before.items() if name.endswith("running_mean"))
    assert model.training
    for mode in (False, True):
        model.train(mode)
        assert (model.classifier.training, model.features.training) == (mode, False)
        model(Batch(FROZEN, 2, CPU, seed=1).inputs)
    assert not changed(model, before)


@rows(
    ("model", "renamed"),
    [
        ("shufflenet_v2_x0_5", {}),
        ("densenet121", {".norm1.": ".norm.1.", ".conv2.": ".conv.2."}),
    ],
)
def test_published_weights_are_used_and_get_no_other_statistics(
    tmp_path: Path, model: str, renamed: dict[str, str]
) -> None:
    """DenseNets are published with names of old."""
    state = torchvision.models.get_model(model, weights=None).state_dict()
    published = {reduce(lambda name, new: name.replace(*new), renamed.items(), name): state[name] for name in state}
    assert (published.keys() != state.keys()) == bool(renamed)
    torch.save(published, tmp_path / "w.pth")
    workload = with_settings(FROZEN, model=model, feature_weights=str(tmp_path / "w.pth"))
    assert not changed(built(workload).features, state)


@rows(
    "spoil",
    [
        lambda path: path.unlink(missing_ok=True),
        lambda path: torch.save(torchvision.models.get_model("squeezenet1_1", weights=None).state_dict(), path),
        lambda path: path.write_bytes(pickle.dumps(Path(), protocol=2)),
        lambda path: torch.save(torch.zeros(3), path),
    ],
)
def test_other_weights_are_one_sentence(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    path = tmp_path / "w.pth"
    spoil(path)
    expected = r"^feature_weights .*w\.pth: .+; expected torchvision's state dict of shuf.*$"
    with pytest.raises(RuntimeError, match=expected):
        built(with_settings(FROZEN, feature_weights=str(path)))


WORKLOADS = (
    TINY, CHANNELS_LAST, replace(TINY, precision="bf16"), TRANSFORMER, FROZEN,
    with_settings(TINY, model="squeezenet1_1", image_size=64),  # with dropout
)  # fmt: skip


def by_two_ranks(rank: int) -> tuple[Any, ...]:
    torch.manual_seed(rank)  # which must not matter
    seeded = [seeded_checksum(built(workload), workload) for workload in WORKLOADS]
    arms = arms_of(*ARMS, workload=FROZEN, rank=rank, ranks=2)
    for arm in ARMS[rank:]:
        of_block = arms.time_block(arm, 2).parameters_checksum
    found = checksum(arms.model.parameters())
    arms.close()
    return seeded, of_block, found


def test_ranks_agree_by_themselves_and_on_frozen_weights_and_what_they_trained(tmp_path: Path) -> None:
    one, other = on_two_ranks(by_two_ranks, tmp_path)
    seeded, of_block, whole = one
    assert one == other
    assert len(set(seeded)) == len(WORKLOADS)
    assert of_block == whole, "frozen weights are in the checksum, too"


@rows("workload", WORKLOADS)
def test_a_seeded_step_repeats_and_leaves_the_model_as_it_was_as_counting_does(workload: Workload) -> None:
    model = built(workload)
    state, first = state_of(model), seeded_checksum(model, workload)
    assert seeded_step(model, workload) == (first, True)
    assert flops_per_sample(model, workload) > 0
    assert not changed(model, state)
    assert all(parameter.device == CPU and parameter.grad is None for parameter in model.parameters())
    assert model.training


def test_a_seeded_checksum_is_of_the_gradients_and_changes_with_the_input_and_with_a_bit_of_a_weight() -> None:
    model = built()
    found = [seeded_checksum(model, TINY), seeded_checksum(model, TINY, seed=2), checksum(model.parameters())]
    next(model.parameters()).detach().view(torch.int32)[0, 0, 0, 0] ^= 1 << 20
    assert len({*found, seeded_checksum(model, TINY)}) == 4


def test_a_step_that_does_not_repeat_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter(["aa", "bb"])
    monkeypatch.setattr(models, "seeded_checksum", lambda model, workload: next(results))
    assert seeded_step(built(), TINY) == ("aa+bb", False)


def test_settings_and_random_numbers_are_restored_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn, generator = torch.backends.cudnn, torch.get_rng_state()
    monkeypatch.setattr(cudnn, "benchmark", True)

    def settings() -> tuple[bool, bool, int]:
        return cudnn.benchmark, cudnn.deterministic, torch.get_deterministic_debug_mode()

    def fail() -> None:
        with reproducible(CPU, 1):
            assert settings() == (False, True, 1)
            torch.randn(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert settings() == (True, False, 0)
    assert torch.equal(torch.get_rng_state(), generator)


def test_the_batch_of_a_seeded_step_is_small_and_never_a_single_image() -> None:
    model, sizes = built(), list[int]()
    model.register_forward_hook(lambda model, inputs, outputs: sizes.append(len(outputs)))
    for batch_size in (1, 2, 5, 512):
        seeded_checksum(model, replace(TINY, batch_size=batch_size))
    assert sizes == [2, 2, 5, 8]


AT_224 = with_settings(TINY, image_size=224, num_classes=1000)


@rows(
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
    record = workload_flops_record(study(workload=workload), built(workload))
    assert record is not None
    assert record.study == "weak/tiny"
    assert record.flops_per_sample == pytest.approx(3 * 2 * forward_gmac * 1e9, rel=tolerance)


def flops_of(workload: Workload) -> float:
    return flops_per_sample(built(workload), workload)


def test_flops_have_no_backward_pass_of_the_features() -> None:
    workload = with_settings(LINEAR, image_size=224, num_classes=1000)
    whole = flops_of(with_settings(workload, classifier_hidden=None))
    # Forward, and backward only its weights' gradient: its input wants none.
    features = flops_of(workload) - 2 * 2 * 512 * 1000
    # Its own head is a convolution, over 13 x 13 places; 0.349e9 multiply-accumulates are published of the whole.
    of_features = 1 - 512 * 1000 * 13 * 13 / 0.349e9
    assert features / whole == pytest.approx(of_features / 3, rel=0.05)


def test_attention_is_counted() -> None:
    """2 layers, each with scores and values of 197 tokens in 64 dimensions, once forward and twice backward."""
    long, short = (with_settings(TRANSFORMER, image_size=size) for size in (224, 112))
    tokens, short_tokens = 197, 50
    difference = flops_of(long) - flops_of(short) * tokens / short_tokens
    attention = 2 * 3 * 2 * 2 * 64 * (tokens**2 - short_tokens**2 * tokens / short_tokens)
    assert difference == pytest.approx(attention, rel=0.05)
