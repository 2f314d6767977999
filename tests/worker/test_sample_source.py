"""Which images ranks train and validate: every world size the same, and none counted twice."""

from __future__ import annotations

import gzip
import itertools
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.training_run import SampleSet, TrainingRun
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.util.idx_file import TRAIN_FILES, VALIDATION_FILES, read_idx
from pytest_ddpscale.worker.sample_source import (
    epoch_order,
    made_samples,
    mnist_samples,
    training_indices,
    validation_indices,
)
from tests.builders.trained import CPU

GLOBAL = 24
SIZES = (1, 2, 3, 4, 8)


MADE = SampleSet("made", "m", 100, 29, 10)


def run_of(ranks: int, samples: SampleSet = MADE, model: str = "classifier-8") -> TrainingRun:
    workload = Workload("c", ImageFamily(model, 16, "contiguous", num_classes=10), "fp32", GLOBAL // ranks)
    return TrainingRun("c", workload, samples, 1, ranks, 2, seed=5)


@pytest.mark.parametrize("ranks", SIZES)
def test_every_world_size_trains_the_same_images_in_the_same_iterations(ranks: int) -> None:
    order = epoch_order(100, 5, 1)
    of_ranks = [list(training_indices(run_of(ranks), 1, rank)) for rank in range(ranks)]
    assert [len(one) for one in of_ranks] == [4] * ranks, "what fills no global batch is left out"
    for iteration in range(4):
        batch = torch.cat([one[iteration] for one in of_ranks])
        assert batch.tolist() == order[iteration * GLOBAL : (iteration + 1) * GLOBAL].tolist()


def test_each_epoch_has_another_order_and_so_has_each_seed() -> None:
    orders = [epoch_order(100, seed, epoch).tolist() for seed, epoch in ((5, 0), (5, 1), (6, 0))]
    assert all(sorted(one) == list(range(100)) for one in orders)
    assert len({tuple(one) for one in orders}) == 3


@pytest.mark.parametrize("ranks", SIZES)
def test_every_image_is_validated_once_whatever_the_world_size(ranks: int) -> None:
    found = [torch.cat(list(validation_indices(run_of(ranks), rank))).tolist() for rank in range(ranks)]
    assert sorted(itertools.chain(*found)) == list(range(29))
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_made_images_are_the_same_on_every_rank_and_labels_are_those_of_their_patterns() -> None:
    one, other = (made_samples(run_of(2), rank, CPU) for rank in (0, 1))
    images, labels = next(one.training(0))
    again, their_labels = next(made_samples(run_of(2), 0, CPU).training(0))
    assert torch.equal(images, again)
    assert torch.equal(labels, their_labels)
    assert images.shape == (12, 1, 16, 16)
    assert not torch.equal(images, next(other.training(0))[0]), "another part of the batch"
    colours, _ = next(made_samples(run_of(1, model="resnet18"), 0, CPU).validation(0))
    assert colours.shape == (24, 3, 16, 16)


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
    source = mnist_samples(run_of(1, SampleSet("mnist", "mnist", 30, 29, 10, str(folder))), 0, CPU)
    images, labels = next(source.validation(0))
    assert labels.tolist() == [one % 10 for one in range(24)]
    assert images.shape == (24, 1, 16, 16)
    assert images[0, 0, 0, 0] == pytest.approx((0 / 255 - 0.1307) / 0.3081, rel=1e-4)


def test_a_file_that_is_cut_short_or_no_idx_file_is_refused_by_name(tmp_path: Path) -> None:
    path = written_mnist(tmp_path) / TRAIN_FILES[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte has 23519 values; expected 23520 by its header"):
        read_idx(path)
    path.write_bytes(b"<html>")
    with pytest.raises(ValueError, match="is not an idx file of bytes: it begins with 3c68746d"):
        read_idx(path)
