"""Whole training runs on real ranks: the same at every world size, and ended where there is no sense in going on."""

from __future__ import annotations

import gzip
import math
import re
import struct
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.distributed import HashStore

from pytest_ddpscale.datasets.image_samples import read_mnist
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.training_run import SampleSet, TrainingRun
from pytest_ddpscale.plan.workload import Split, Workload
from pytest_ddpscale.worker import whole_training
from pytest_ddpscale.worker.context import RankContext
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.loading import DeviceBatch
from pytest_ddpscale.worker.model import checksum
from pytest_ddpscale.worker.training import forget_compiled
from pytest_ddpscale.worker.whole_training import SpanClock, WholeTraining, _loaders, padded
from tests.rows import rows
from tests.small_disk import small_disk
from tests.worker.kept_records import KeptRecords, context_on_cpu
from tests.worker.ranks import on_two_ranks
from tests.worker.two_kernels import TwoKernels, needs_compiler

GLOBAL = 16
SAMPLES = SampleSet("made", "made-100", 100, 21, 10)


def run_of(ranks: int, model: str = "classifier-16", samples: SampleSet = SAMPLES, **fields: Any) -> TrainingRun:
    workload = Workload(model, ImageFamily(model, 32, "contiguous", num_classes=10), "fp32", GLOBAL // ranks)
    return TrainingRun(model, workload, samples, 1, ranks, **{"epochs": 2, "learning_rate": 0.05, **fields})


def context_of(rank: int, size: int, store: Any = None, **fields: Any) -> RankContext:
    control = Control(store or dist.distributed_c10d._get_default_store(), rank, rank, size)
    context = context_on_cpu(CpuDevice(), control, timedelta(seconds=60), **fields)
    return replace(context, launched_unix_s=time.time() - 5)


def carried_out(run: TrainingRun, rank: int = 0, **fields: Any) -> tuple[Any, list[Any], Any]:
    """How it ended, its records, and the model."""
    sink = KeptRecords()
    training = WholeTraining(run, context_of(rank, run.world_size, sink=sink, **fields))
    return training.run(), sink.records, training._model


def by_two_ranks(rank: int) -> tuple[list[Any], str]:
    """What is told of a classifier, and what a model's batch normalisation has after training on other images."""
    _, _, model = carried_out(run_of(2, "shufflenet_v2_x0_5", epochs=1), rank)
    statistics = checksum(buffer for buffer in model.buffers() if buffer.is_floating_point())
    return carried_out(run_of(2), rank)[1], statistics


def test_losses_and_accuracy_of_two_ranks_are_those_of_one_over_the_same_images(
    gloo_of_one: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("ranks")  # not the one by which this process meets itself
    (both, statistics), (nothing, the_same) = on_two_ranks(by_two_ranks, folder)
    assert (nothing, the_same) == ([], statistics), "all ranks validate one model"
    ended, (*alone, end), _ = carried_out(run_of(1))
    assert ended == ("rounds", "")
    for epoch, (one, two) in enumerate(zip(alone, both[:-1], strict=True)):
        assert one.epoch == two.epoch == epoch
        assert len(one.losses) == run_of(1).iterations
        assert one.ranks[0].trained == run_of(1).epoch_samples == 96
        assert two.losses == pytest.approx(one.losses, rel=1e-4)
        assert [rank.validated for rank in two.ranks] == [11, 10], "21 images, none of them twice"
        assert two.accuracy == pytest.approx(one.accuracy, abs=1e-9)
    assert alone[1].mean_loss < alone[0].mean_loss, "it can be learnt"
    assert 5 < end.start_up_s < 35, "from the beginning of the launch"
    assert end.parameters == end.trainable_parameters == 1024 * 16 + 16 + 16 * 16 + 16 + 16 * 10 + 10
    (rank,) = end.ranks
    assert (rank.allocated_bytes, rank.reserved_bytes) == (None, None), "nobody counts on a CPU"
    assert rank.skipped_steps == 0


def test_steps_that_the_loss_scaler_skips_are_counted(gloo_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=math.inf)
    monkeypatch.setattr(whole_training, "new_scaler", lambda workload, device: scaler)
    _, (*_, end), _ = carried_out(run_of(1))
    assert end.ranks[0].skipped_steps == 2 * run_of(1).iterations


DIVERGED = (
    r"the loss is (nan|inf) in iteration \d of epoch 1: training with sgd at a learning rate of 1e\+30 "
    "does not converge; lower it"
)


@rows(
    ("fields", "deadline", "reason", "problem", "fewest"),
    [
        ({"epochs": 40, "loss_threshold": 1.0}, None, "decided", "", 3),  # two epochs and the end
        ({"learning_rate": 1e30}, None, "error", DIVERGED, 0),
        ({}, 1.0, "budget", "", 0),
    ],
)
def test_a_run_ends_for_a_reason(
    gloo_of_one: None, fields: dict[str, Any], deadline: float | None, reason: str, problem: str, fewest: int
) -> None:
    (found, told), records, _ = carried_out(run_of(1, **fields), deadline_unix_s=deadline)
    assert found == reason
    assert re.fullmatch(problem, told)
    assert fewest <= len(records) <= 20 * fewest


def test_another_gang_than_planned_is_refused(gloo_of_one: None) -> None:
    with pytest.raises(RuntimeError, match="planned for 1 nodes of 2 ranks; this gang has 1 of 1"):
        WholeTraining(run_of(2), context_of(0, 1))


def test_what_fills_up_a_batch_is_never_classified_rightly() -> None:
    images, labels = padded(DeviceBatch(torch.ones(3, 1, 2, 2), torch.tensor([4, 0, 2])), 5)
    assert (len(images), labels.tolist()) == (5, [4, 0, 2, -1, -1])
    assert padded(DeviceBatch(images, labels), 5).inputs is images


@needs_compiler
def test_compiling_has_a_span_of_its_own_in_the_first_epoch_only(
    gloo_of_one: None, scalar_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_training, "build_model", lambda *ignored: TwoKernels(3 * 32 * 32, 10))
    for epochs in (1, 2):  # by the second run, what the first one compiled is on disk
        forget_compiled()
        counters.clear()
        ended, told, _ = carried_out(run_of(1, "two-kernels", compile_mode="default", epochs=epochs))
        assert counters["inductor"]["fxgraph_cache_miss"] > 0 == counters["inductor"]["fxgraph_cache_hit"]
    first, second, _ = told
    assert ended == ("rounds", "")
    assert counters["stats"]["unique_graphs"] == 2, "one that trains, one that infers; no last, smaller batch made more"
    assert first.ranks[0].compile_s > first.ranks[0].training_s > 0 == second.ranks[0].compile_s
    assert [one.ranks[0].validated for one in (first, second)] == [21, 21]


def held(run: TrainingRun, rank: int = 0, *, is_training: bool = True) -> DeviceBatch:
    """The first batch of a rank that nobody else is with."""
    training, validation = _loaders(run, context_of(rank, run.world_size, HashStore()))
    return next((training if is_training else validation).epoch(0))


def test_made_images_are_the_same_on_every_rank_and_labels_are_those_of_their_patterns() -> None:
    one, again, other = (held(run_of(2), rank) for rank in (0, 0, 1))
    assert all(map(torch.equal, one, again))
    assert one.inputs.shape == (8, 1, 32, 32)
    assert not torch.equal(one.inputs, other.inputs), "another part of the batch"
    assert held(run_of(1, "resnet18")).inputs.shape == (16, 3, 32, 32)


def test_mnist_is_read_from_its_files_and_one_that_is_no_longer_whole_is_refused_by_name(tmp_path: Path) -> None:
    """30 images to train and 29 to validate, 28 x 28, packed; labels are not."""
    for split, count in (("train", 30), ("t10k", 29)):
        images = struct.pack(">HBB3I", 0, 8, 3, count, 28, 28) + b"\x33" * count * 784
        (tmp_path / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        labels = struct.pack(">HBBI", 0, 8, 1, count) + bytes(number % 10 for number in range(count))
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(labels)
    samples = SampleSet("mnist", "mnist", 30, 29, 10, str(tmp_path))
    inputs, targets = held(run_of(1, samples=samples), is_training=False)
    assert targets.tolist() == [one % 10 for one in range(16)]
    assert inputs.shape == (16, 1, 32, 32)
    assert inputs[0, 0, 0, 0] == pytest.approx((0.2 - 0.1307) / 0.3081, rel=1e-4)
    assert held(run_of(1, "resnet18", samples)).inputs.shape == (16, 3, 32, 32)
    assert [len(read_mnist(tmp_path, split)[0]) for split in get_args(Split)] == [30, 29]
    for name, content, message in (
        ("train-labels-idx1-ubyte", labels[:-1], f"{tmp_path}: 23520 pixels for 28 labels of train; expected 784"),
        ("train-labels-idx1-ubyte", b"<html>", "train-labels-idx1-ubyte: .*; expected one of MNIST's four"),
        ("train-images-idx3-ubyte.gz", gzip.compress(images)[:-9], "train-images-idx3-ubyte.gz: .*; expected one of"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_mnist(tmp_path, "train")
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz: No such file or directory"):
        read_mnist(tmp_path / "nowhere", "train")


def test_spans_of_one_name_add_up_and_do_not_overlap_and_end_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 11.0, 20.0, 22.0, 30.0, 34.0, 40.0, 47.0, 50.0, 51.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    clock = SpanClock()
    for name in ("training", "waiting", "training"):
        with clock(name):
            pass
    assert clock.taken() == {"training": 5.0, "waiting": 2.0}, "what is between them belongs to none"
    with pytest.raises(RuntimeError, match="waiting begins within training"), clock("training"), clock("waiting"):
        pass
    with clock("waiting"):
        pass
    assert clock.taken() == {"training": 7.0, "waiting": 1.0}


def temporary(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder))


def test_a_checkpoint_is_written_read_back_and_removed_after_a_training_that_is_not_to_a_loss(
    gloo_of_one: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "temporary").mkdir()
    temporary(monkeypatch, folder)
    _, (*_, end), model = carried_out(run_of(1))
    parameters = sum(one.numel() for one in model.parameters())
    assert end.checkpoint.size_bytes > 2 * 4 * parameters, "with the momentum of each"
    assert 0 < end.checkpoint.read_s < end.checkpoint.seconds
    assert end.checkpoint.problem == ""
    assert [*folder.iterdir()] == []
    (reason, _), (*_, to_loss), _ = carried_out(run_of(1, epochs=40, loss_threshold=1.0))
    assert (reason, to_loss.checkpoint) == ("decided", None)


def test_a_full_disk_and_one_that_changes_weights_are_told_and_lose_no_training(
    gloo_of_one: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", kib=40) as disk:
        temporary(monkeypatch, disk.path)
        ended, (*_, full), _ = carried_out(run_of(1))
        assert [*disk.path.iterdir()] == []
        temporary(monkeypatch, tmp_path / "nowhere")
        _, (*_, missing), _ = carried_out(run_of(1))
    assert ended == ("rounds", "")
    assert full.checkpoint.problem.startswith(f"{disk.path}: cannot be written or read, or is full: ")
    assert full.checkpoint.seconds > 0
    assert missing.checkpoint.problem.startswith(f"{tmp_path / 'nowhere'}: cannot be written or read, or is full: ")
    temporary(monkeypatch, tmp_path)
    read = torch.load

    def changed(*arguments: Any, **options: Any) -> Any:
        state = read(*arguments, **options)
        next(iter(state["model"].values())).flatten()[0] += 1
        return state

    monkeypatch.setattr(torch, "load", changed)
    _, (*_, other), _ = carried_out(run_of(1))
    assert other.checkpoint.problem == f"{tmp_path}: a checkpoint was read with other weights than written"


def test_the_energy_of_a_gpu_is_that_of_its_sampler(gloo_of_one: None) -> None:
    sampler = Mock(energy_j=Mock(return_value=12.5))
    _, (*_, end), _ = carried_out(run_of(1), sampler=sampler)
    assert end.ranks[0].energy_j == 12.5
    sampler.wait_for_first_poll.assert_called_once_with()
