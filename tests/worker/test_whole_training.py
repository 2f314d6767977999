"""Whole training runs on real ranks: the same at every world size, and ended where there is no sense in going on."""

from __future__ import annotations

import gzip
import math
import struct
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.distributed import HashStore

from pytest_ddpscale.datasets.idx_file import TRAIN_FILES, VALIDATION_FILES, read_idx
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.training_run import SampleSet, TrainingRun
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.record_lines import AnyRecord, RecordReader, line_of
from pytest_ddpscale.run.records import EndReason, TrainedEpoch, TrainedRun
from pytest_ddpscale.worker import whole_training
from pytest_ddpscale.worker.context import RankContext
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.loading import Fed
from pytest_ddpscale.worker.model import checksum
from pytest_ddpscale.worker.training import forget_compiled
from pytest_ddpscale.worker.whole_training import SpanClock, WholeTraining, _loaders, padded
from tests.builders.records import gang_on
from tests.worker.kept_records import KeptRecords, context_on_cpu
from tests.worker.ranks import on_ranks
from tests.worker.two_kernels import TwoKernels, needs_compiler

GLOBAL = 16
SAMPLES = SampleSet("made", "made-100", 100, 21, 10)


def run_of(ranks: int, model: str = "classifier-16", samples: SampleSet = SAMPLES, **fields: object) -> TrainingRun:
    workload = Workload(model, ImageFamily(model, 32, "contiguous", num_classes=10), "fp32", GLOBAL // ranks)
    usual: dict[str, object] = {"epochs": 2, "learning_rate": 0.05}
    return TrainingRun(model, workload, samples, 1, ranks, **{**usual, **fields})  # type: ignore[arg-type]


def context_of(rank: int, size: int, sink: KeptRecords | None = None, **fields: float) -> RankContext:
    control = Control(dist.distributed_c10d._get_default_store(), rank, rank, size)
    context = context_on_cpu(CpuDevice(), control, timedelta(seconds=60), sink=sink or KeptRecords())
    return replace(context, launched_unix_s=time.time() - 5, **fields)  # type: ignore[arg-type]


def carried_out(run: TrainingRun, rank: int) -> tuple[EndReason, str, list[AnyRecord]]:
    sink = KeptRecords()
    return (*WholeTraining(run, context_of(rank, run.world_size, sink)).run(), sink.records)


def classifier(rank: int) -> list[bytes]:
    return [line_of(one) for one in carried_out(run_of(dist.get_world_size()), rank)[2]]


def normalised(rank: int) -> str:
    """Checksum of what a model's batch normalisation has after training: each rank had other images."""
    size = dist.get_world_size()
    training = WholeTraining(run_of(size, "shufflenet_v2_x0_5", epochs=1), context_of(rank, size))
    training.run()
    return checksum(buffer for buffer in training._model.buffers() if buffer.is_floating_point())


def epochs_of(lines: list[bytes]) -> list[TrainedEpoch]:
    reader = RecordReader()
    reader.read(line_of(gang_on(["n1"], 4)))
    return [one for one in map(reader.read, lines) if isinstance(one, TrainedEpoch)]


def test_losses_and_accuracy_are_those_of_one_rank_over_the_same_images(tmp_path: Path) -> None:
    folders = [tmp_path / str(ranks) for ranks in (1, 2)]
    for folder in folders:
        folder.mkdir()
    alone, both = (epochs_of(on_ranks(classifier, folder, n)[0]) for n, folder in zip((1, 2), folders, strict=True))
    for one, two in zip(alone, both, strict=True):
        assert two.losses == pytest.approx(one.losses, rel=1e-4)
        assert [rank.validated for rank in two.ranks] == [11, 10], "21 images, none of them twice"
        assert two.accuracy == pytest.approx(one.accuracy, abs=1e-9)
    assert alone[1].mean_loss < alone[0].mean_loss, "it can be learnt"


def test_all_ranks_validate_one_model_though_each_had_statistics_of_its_own(tmp_path: Path) -> None:
    assert len(set(on_ranks(normalised, tmp_path, 2))) == 1


@pytest.fixture
def one_rank(gloo_of_one: None) -> None:
    """A gang of this process."""


def test_a_run_records_its_epochs_its_spans_and_its_end(one_rank: None) -> None:
    reason, problem, records = carried_out(run_of(1), 0)
    assert (reason, problem) == ("rounds", "")
    first, second, end = records
    assert isinstance(first, TrainedEpoch)
    assert isinstance(second, TrainedEpoch)
    assert isinstance(end, TrainedRun)
    assert [one.epoch for one in (first, second)] == [0, 1]
    assert len(first.losses) == run_of(1).iterations
    assert first.ranks[0].trained == run_of(1).epoch_samples == 96
    assert 5 < end.start_up_s < 35, "from the beginning of the launch"
    assert end.parameters == end.trainable_parameters == 1024 * 16 + 16 + 16 * 16 + 16 + 16 * 10 + 10
    (rank,) = end.ranks
    assert (rank.allocated_bytes, rank.reserved_bytes) == (None, None), "nobody counts on a CPU"
    assert rank.skipped_steps == 0


def test_steps_that_the_loss_scaler_skips_are_counted(one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=math.inf)
    monkeypatch.setattr(whole_training, "new_scaler", lambda workload, device: scaler)
    end = carried_out(run_of(1), 0)[2][-1]
    assert isinstance(end, TrainedRun)
    assert end.ranks[0].skipped_steps == 2 * run_of(1).iterations


def test_training_ends_with_the_epoch_in_which_its_loss_is_reached(one_rank: None) -> None:
    reason, _, records = carried_out(run_of(1, epochs=40, loss_threshold=1.0), 0)
    assert reason == "decided"
    assert 2 <= len(records) - 1 < 40


def test_a_loss_that_is_no_number_ends_the_run_with_its_reason(one_rank: None) -> None:
    reason, problem, records = carried_out(run_of(1, learning_rate=1e30), 0)
    assert reason == "error"
    assert problem.startswith(("the loss is nan in iteration", "the loss is inf in iteration"))
    assert "sgd at a learning rate of 1e+30 does not converge; lower it" in problem
    assert records == []


def test_no_epoch_begins_after_the_deadline(one_rank: None) -> None:
    sink = KeptRecords()
    assert WholeTraining(run_of(1), context_of(0, 1, sink, deadline_unix_s=1.0)).run() == ("budget", "")
    assert sink.records == []


def test_another_gang_than_planned_is_refused(one_rank: None) -> None:
    with pytest.raises(RuntimeError, match="planned for 1 nodes of 2 ranks; this gang has 1 of 1"):
        WholeTraining(run_of(2), context_of(0, 1))


def test_what_fills_up_a_batch_is_never_classified_rightly() -> None:
    images, labels = padded(Fed(torch.ones(3, 1, 2, 2), torch.tensor([4, 0, 2])), 5)
    assert images.shape == (5, 1, 2, 2)
    assert labels.tolist() == [4, 0, 2, -1, -1]
    assert padded(Fed(images, labels), 5).inputs is images


@needs_compiler
def test_compiling_has_a_span_of_its_own_in_the_first_epoch_only(
    one_rank: None, scalar_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_training, "build_model", lambda *ignored: TwoKernels(3 * 32 * 32, 10))
    forget_compiled()
    counters.clear()
    reason, _, (first, second, end) = carried_out(run_of(1, "two-kernels", compile_mode="default"), 0)
    assert reason == "rounds"
    assert counters["stats"]["unique_graphs"] == 2, "one that trains, one that infers; no last, smaller batch made more"
    assert isinstance(first, TrainedEpoch)
    assert isinstance(second, TrainedEpoch)
    assert first.ranks[0].compile_s > 0 == second.ranks[0].compile_s
    assert [one.ranks[0].validated for one in (first, second)] == [21, 21]
    assert isinstance(end, TrainedRun)


def held(run: TrainingRun, rank: int, *, is_training: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """The first batch of a rank that nobody else is with."""
    store = HashStore()
    context = context_on_cpu(CpuDevice(), Control(store, rank, rank, run.world_size), timedelta(seconds=60))
    sources = _loaders(run, context)
    return next(sources[0 if is_training else 1].epoch(0))


def test_made_images_are_the_same_on_every_rank_and_labels_are_those_of_their_patterns() -> None:
    one, again, other = (held(run_of(2), rank) for rank in (0, 0, 1))
    images, labels = one
    assert torch.equal(images, again[0])
    assert torch.equal(labels, again[1])
    assert images.shape == (8, 1, 32, 32)
    assert not torch.equal(images, other[0]), "another part of the batch"
    assert held(run_of(1, "resnet18"), 0)[0].shape == (16, 3, 32, 32)


def written_mnist(folder: Path, *, packed: bool = False) -> Path:
    """Of 30 images to train and 29 to validate, 28 x 28."""
    for (images, labels), count in ((TRAIN_FILES, 30), (VALIDATION_FILES, 29)):
        pixels = np.arange(count * 784, dtype=np.int64).astype(np.uint8)
        for name, sizes, values in ((images, (count, 28, 28), pixels), (labels, (count,), np.arange(count) % 10)):
            data = struct.pack(f">HBB{len(sizes)}I", 0, 8, len(sizes), *sizes) + values.astype(np.uint8).tobytes()
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(data) if packed else data)
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_is_read_from_its_files(tmp_path: Path, packed: bool) -> None:
    folder = written_mnist(tmp_path, packed=packed)
    run = run_of(1, samples=SampleSet("mnist", "mnist", 30, 29, 10, str(folder)))
    images, labels = held(run, 0, is_training=False)
    assert labels.tolist() == [one % 10 for one in range(16)]
    assert images.shape == (16, 1, 32, 32)
    assert images[0, 0, 0, 0] == pytest.approx((0 / 255 - 0.1307) / 0.3081, rel=1e-4)


def test_a_file_that_is_cut_short_or_no_idx_file_is_refused_by_name(tmp_path: Path) -> None:
    path = written_mnist(tmp_path) / TRAIN_FILES[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte has 23519 values; expected 23520 by its header"):
        read_idx(path)
    path.write_bytes(b"<html>")
    with pytest.raises(ValueError, match="is not an idx file of bytes: it begins with 3c68746d"):
        read_idx(path)


def test_spans_of_one_name_add_up_and_what_is_between_them_belongs_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 11.0, 20.0, 22.0, 30.0, 34.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    clock = SpanClock()
    for name in ("training", "waiting", "training"):
        with clock(name):
            pass
    assert clock.taken() == {"training": 5.0, "waiting": 2.0}
    assert clock.taken() == {}


def test_a_span_within_another_is_refused() -> None:
    clock = SpanClock()
    with pytest.raises(RuntimeError, match="waiting begins within training"), clock("training"), clock("waiting"):
        pass


def test_a_span_ends_with_an_error_in_it() -> None:
    clock = SpanClock()
    with pytest.raises(ValueError, match="broken"), clock("training"):
        raise ValueError("broken")
    assert clock.seconds["training"] > 0
    with clock("waiting"):
        pass
