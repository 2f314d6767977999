"""Images from a folder: who has which, what arrives on the device, and what is said of those that do not."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.distributed import HashStore

from pytest_ddpscale.datasets.dataset_record import DATASET_FILE, DatasetRecord
from pytest_ddpscale.datasets.image_samples import ImageSamples, Loaded, read_samples
from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.workload import ImageFolderData
from pytest_ddpscale.run.record_lines import line_of
from pytest_ddpscale.worker.arms import StudyArms, steps_at_once, steps_before_timing, steps_for_block
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice, Timing
from pytest_ddpscale.worker.loading import (
    SampleLoader,
    Shard,
    ShardBatches,
    open_samples,
)
from tests.builders.image_folder import data_of, image_folder
from tests.builders.trained import CPU, TIMEOUT, TINY, study

WHOLE = Shard(0, 1, 4)
DEADLINE_S = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return image_folder(tmp_path_factory.mktemp("images"))


@pytest.fixture
def own_folder(folder: str, tmp_path: Path) -> Path:
    """One that a test may break."""
    return Path(shutil.copytree(folder, tmp_path / "own"))


@pytest.fixture
def loader_of(folder: str) -> Iterator[Callable[..., SampleLoader]]:
    made: list[SampleLoader] = []

    def make(shard: Shard = WHOLE, root: str = folder, **changes: Any) -> SampleLoader:
        data = data_of(root, changes.pop("workers", 0))
        made.append(SampleLoader(read_samples(root, "train", TINY.family), data, shard, TINY.family, CPU, **changes))
        return made[-1]

    yield make
    for one in made:
        one.close()


def workers_of(pid: int) -> list[psutil.Process]:
    """Processes below one that are loader workers: children of a forkserver."""
    below = psutil.Process(pid).children(recursive=True)
    return [one for one in below if one.ppid() != pid and is_alive(one)]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_normalised_images_and_the_labels_of_their_folders(
    loader_of: Callable[..., SampleLoader], folder: str, workers: int
) -> None:
    loader = loader_of(replace(WHOLE, is_training=False), workers=workers)
    images, labels = next(iter(loader.epoch(0)))
    assert (images.dtype, images.shape, labels.tolist()) == (torch.float32, (4, 3, 32, 32), [0, 0, 0, 0])
    with Image.open(Path(folder, "train/class-0/000.jpg")) as image:
        red = torch.tensor(np.asarray(image.convert("RGB"))[:, :, 0] / 255, dtype=torch.float32)
    assert torch.allclose(images[0, 0], (red - 0.485) / 0.229, atol=1e-5)


def test_all_ranks_have_equally_many_batches_though_images_do_not_divide(
    loader_of: Callable[..., SampleLoader],
) -> None:
    loaders = [loader_of(Shard(rank, 2, 4)) for rank in range(2)]
    for epoch in range(3):
        for loader in loaders:
            assert len(list(loader.epoch(epoch))) == len(loader) == 2
            assert len(loader.waited_s) == 2
            assert min(loader.waited_s) > 0


def test_a_stretch_goes_on_through_epochs(loader_of: Callable[..., SampleLoader]) -> None:
    loader = loader_of()
    assert len(loader) == 5
    for first, count in ((0, 3), (3, 4), (7, 8)):
        assert len(list(loader.stretch(first, count))) == count
    whole = [labels.tolist() for _, labels in loader.epoch(1)]
    assert whole == [labels.tolist() for _, labels in loader.stretch(5, 5)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_is_named(own_folder: Path, loader_of: Callable[..., SampleLoader], workers: int) -> None:
    broken = own_folder / "train/class-1/004.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    with pytest.raises(RuntimeError, match=rf"^{re.escape(str(broken))}: .*\. Repair or delete it$"):
        list(loader_of(root=str(own_folder), workers=workers).epoch(0))


def test_an_image_that_has_gone_is_named(own_folder: Path, loader_of: Callable[..., SampleLoader]) -> None:
    loader, gone = loader_of(root=str(own_folder)), own_folder / "train/class-1/004.jpg"
    gone.unlink()
    with pytest.raises(RuntimeError, match=f"^{re.escape(str(gone))}: No such file or directory. Repair or delete it"):
        list(loader.epoch(0))


def test_an_image_that_never_comes_is_an_error_with_the_folder(
    own_folder: Path, loader_of: Callable[..., SampleLoader]
) -> None:
    """As of a file system that does not answer: a pipe that nobody writes."""
    silent = own_folder / "train/class-1/004.jpg"
    silent.unlink()
    os.mkfifo(silent)
    with pytest.raises(RuntimeError, match=rf"^loading {own_folder}/train: no batch came within 1 s"):
        list(loader_of(root=str(own_folder), workers=1, timeout_s=1.0).epoch(0))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shutil.rmtree(folder), r"own/train: .*; expected a folder train with a folder of images"),
        (lambda folder: (folder / "train/empty").mkdir(), r"own/train: Found no valid file for the classes empty"),
        (lambda folder: say_images(folder, 22), r"own/train: 21 images; expected 22 according to dataset.json. Delete"),
        (lambda folder: (folder / DATASET_FILE).write_text("{"), r"own/dataset.json: .*; expected the file from"),
    ],
)  # fmt: skip
def test_a_folder_that_is_not_as_it_has_to_be_is_named(
    own_folder: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(own_folder)
    with pytest.raises(ValueError, match=message):
        read_samples(str(own_folder), "train", TINY.family)


def say_images(folder: Path, images: int) -> None:
    (folder / DATASET_FILE).write_bytes(line_of(DatasetRecord(images={"train": images}, classes=3, image_size=32)))


def test_too_few_images_for_a_batch_of_each_rank_are_refused(loader_of: Callable[..., SampleLoader]) -> None:
    with pytest.raises(ValueError, match=r"train: 21 images for 6 ranks; expected at least 24, a batch of 4 for each"):
        loader_of(Shard(0, 6, 4))


def test_loader_workers_have_all_cores_of_the_rank_and_nothing_else_of_it(
    loader_of: Callable[..., SampleLoader],
) -> None:
    """No lock or socket, as they are no copies of it; nor Ctrl-C."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, cores[:1])
    mine, other = socket.socketpair()
    try:
        before = workers_of(os.getpid())  # of earlier tests in this process
        list(loader_of(workers=2, cores=cores).epoch(0))
        workers = [one for one in workers_of(os.getpid()) if one not in before]
        assert len(workers) == 2
        for worker in workers:
            assert os.sched_getaffinity(worker.pid) == set(cores)
            ignored = re.search(r"SigIgn:\s*(\w+)", Path(f"/proc/{worker.pid}/status").read_text(encoding="ascii"))
            assert ignored is not None
            assert int(ignored[1], 16) & 1 << signal.SIGINT - 1
            theirs = {str(one.readlink()) for one in Path(f"/proc/{worker.pid}/fd").iterdir() if one.is_symlink()}
            assert f"socket:[{os.fstat(mine.fileno()).st_ino}]" not in theirs
    finally:
        os.sched_setaffinity(0, cores)
        mine.close()
        other.close()


def test_a_loader_worker_that_dies_is_an_error_with_the_folder(loader_of: Callable[..., SampleLoader]) -> None:
    loader = loader_of(workers=2, timeout_s=5.0)
    before = {one.pid for one in workers_of(os.getpid())}
    batches = iter(loader.stretch(0, 500))
    next(batches)
    victims = [one for one in workers_of(os.getpid()) if one.pid not in before]
    assert len(victims) == 2
    victims[0].kill()
    with pytest.raises(RuntimeError, match=rf"^loading .*: .*[Ll]oader worker (.pid.s. {victims[0].pid}. exited|died)"):
        list(batches)


RANK = """
import sys, time
from pytest_ddpscale.plan.workload import ImageFolderData
from pytest_ddpscale.datasets.image_samples import read_samples
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.worker.loading import SampleLoader, Shard
import torch
if __name__ == "__main__":
    data = ImageFolderData(sys.argv[1], workers=2)
    family = ImageFamily("resnet18", 32)
    loader = SampleLoader(read_samples(data.folder, "train", family), data, Shard(0, 1, 4), family, torch.device("cpu"))
    for number, batch in enumerate(loader.stretch(0, 10**6)):
        if number == 0:
            print("loading", flush=True)
        time.sleep(0.01)
"""


def test_loader_workers_die_with_their_rank(folder: str, tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(RANK, encoding="utf-8")
    with subprocess.Popen([sys.executable, program, folder], stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "loading\n"
        below = psutil.Process(rank.pid).children(recursive=True)
        assert len(workers_of(rank.pid)) == 2
        rank.kill()
    ends_s = time.monotonic() + DEADLINE_S
    while any(map(is_alive, below)) and time.monotonic() < ends_s:
        time.sleep(0.05)
    assert not any(map(is_alive, below))


def is_alive(one: psutil.Process) -> bool:
    try:
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def control_of(store: HashStore, rank: int, local_rank: int = 0) -> Control:
    return Control(store, rank, local_rank, 2)


def hash_store() -> HashStore:
    store = HashStore()
    store.set_timeout(timedelta(seconds=0.2))
    return store


def test_ranks_wait_for_the_first_of_their_node_and_no_longer_than_the_deadline(folder: str) -> None:
    store, data = hash_store(), ImageFolderData(folder)
    began_s = time.monotonic()
    with pytest.raises(RuntimeError, match=f"{re.escape(folder)}: rank 0 did not read it in time"):
        open_samples(data, "train", TINY.family, control_of(store, 1, local_rank=1), "images")
    assert time.monotonic() - began_s < DEADLINE_S
    first = open_samples(data, "train", TINY.family, control_of(store, 0), "images")
    second = open_samples(data, "train", TINY.family, control_of(store, 1, local_rank=1), "images")
    assert first.digest == second.digest
    assert (len(first), first.classes) == (21, 3)


def test_ranks_hear_why_the_first_of_their_node_could_not_read(own_folder: Path) -> None:
    store, data = hash_store(), ImageFolderData(str(own_folder))
    shutil.rmtree(own_folder)
    for rank, message in ((0, "^[^ ]*own/train: "), (1, "^rank 0 could not read the images: .*own/train: ")):
        with pytest.raises(ValueError, match=message):
            open_samples(data, "train", TINY.family, control_of(store, rank, local_rank=rank), "images")


def test_a_node_that_sees_other_images_is_named(folder: str, own_folder: Path) -> None:
    """Under the same path, which is of one file system on one node and of another on the other."""
    store = hash_store()
    open_samples(ImageFolderData(folder), "train", TINY.family, control_of(store, 0), "images")
    (own_folder / "train/class-1/004.jpg").unlink()
    with pytest.raises(RuntimeError, match=r"rank 1 sees 20 images, which differ from the 21 of rank 0; expected"):
        open_samples(ImageFolderData(str(own_folder)), "train", TINY.family, control_of(store, 1), "images")


def batches_of(images: int, ranks: int, batch: int, *, is_training: bool = True) -> list[ShardBatches]:
    """Of each rank."""
    return [ShardBatches(range(images), Shard(rank, ranks, batch, is_training, 7)) for rank in range(ranks)]


def epoch_of(one: ShardBatches, epoch: int) -> list[list[int]]:
    one.first, one.count = epoch * one.per_epoch, one.per_epoch
    return list(one)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 7), st.integers(1, 9), st.integers(0, 3))
def test_images_that_do_not_divide_are_left_out_and_the_others_are_there_once(
    images: int, ranks: int, batch: int, epoch: int
) -> None:
    shards = batches_of(images, ranks, batch)
    of_ranks = [[index for indices in epoch_of(one, epoch) for index in indices] for one in shards]
    together = [index for of_rank in of_ranks for index in of_rank]
    assert len(together) == len(set(together)) == images // ranks // batch * batch * ranks
    assert {len(of_rank) for of_rank in of_ranks} == {images // ranks // batch * batch}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 7), st.integers(1, 9))
def test_with_padding_each_image_is_there_and_only_as_many_twice_as_ranks_lack(
    images: int, ranks: int, batch: int
) -> None:
    shards = batches_of(images, ranks, batch, is_training=False)
    times = Counter(index for one in shards for indices in epoch_of(one, 0) for index in indices)
    assert set(times) == set(range(images))
    of_rank = math.ceil(images / ranks)
    assert sum(times.values()) == of_rank * ranks
    assert {one.per_epoch for one in shards} == {math.ceil(of_rank / batch)}


def test_each_epoch_has_an_order_of_its_own_and_leaves_out_others() -> None:
    (one,) = batches_of(23, 1, 4)
    epochs = [epoch_of(one, number) for number in range(5)]
    assert all(former != latter for former, latter in pairwise(epochs))
    left_out = [set(range(23)) - {index for indices in epoch for index in indices} for epoch in epochs]
    assert len({frozenset(some) for some in left_out}) > 1
    assert epoch_of(one, 2) == epochs[2], "and the same again"


def test_the_published_log_of_32_ranks_is_what_as_many_images_come_to() -> None:
    """Torres, "Supercomputing for AI", chapter 12: "Total training samples (batches): 384 (3)"."""
    one = ShardBatches(range(12_288), Shard(31, 32, 128))
    assert (one.per_epoch, sum(map(len, epoch_of(one, 0)))) == (3, 384)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_every_world_size_trains_the_same_images_in_the_same_iterations(ranks: int) -> None:
    """What a whole run at one world size is compared by with that at another."""
    of_ranks = [epoch_of(one, 1) for one in batches_of(100, ranks, 24 // ranks)]
    (alone,) = batches_of(100, 1, 24)
    together = [{index for batch in batches for index in batch} for batches in zip(*of_ranks, strict=True)]
    assert together == list(map(set, epoch_of(alone, 1)))


def study_of(folder: str, *arms: Arm) -> Study:
    return study(*arms, workload=replace(TINY, data=data_of(folder)))


def arms_of(folder: str, *arms: Arm) -> StudyArms:
    asked = study_of(folder, *arms)
    loader = partial(SampleLoader, read_samples(folder, "train", TINY.family))
    return StudyArms(asked, CpuDevice(), 0, Layout(1, 1), TIMEOUT, loader=loader)


@pytest.mark.parametrize(
    ("settings", "at_once", "before"),
    [
        (Variant(data="synthetic"), 1, 1),
        (Variant(workers=0), 1, 1),
        (Variant(workers=4, prefetch=2), 4, 8),
        (Variant(workers=4, prefetch=2, accumulation_steps=2), 2, 4),
        (Variant(workers=3, prefetch=1, accumulation_steps=2), 3, 3),
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_what_loader_workers_deliver_together_is_timed_as_a_whole(
    folder: str, settings: Variant, at_once: int, before: int
) -> None:
    arm = Arm("ddp", 1, 4, variant=settings)
    asked = study_of(folder, arm)
    assert (steps_at_once(asked, arm), steps_before_timing(asked, arm)) == (at_once, before)
    steps = steps_for_block(0.4, 4.0, at_once)
    assert steps >= 10
    assert steps * settings.accumulation_steps % max(1, settings.workers or 1) == 0


def test_a_block_reads_ahead_to_its_end_and_the_next_one_goes_on_behind_that(folder: str) -> None:
    def loader() -> SampleLoader:
        return SampleLoader(
            read_samples(folder, "train", TINY.family), data_of(folder, workers=1), Shard(0, 1, 2), TINY.family, CPU
        )

    loaded, whole = loader(), loader()
    labels = [labels.tolist() for _, labels in whole.stretch(0, 10)]
    for first in (0, 5):  # of each block three are trained, and two thrown away
        loaded.begin(3)
        for number in range(first, first + 3):
            assert loaded.fetch().targets.tolist() == labels[number]
        assert len(loaded.end()) == 3
        with pytest.raises(StopIteration):
            loaded.fetch()
    loaded.close()
    whole.close()


class SlowSamples(ImageSamples):
    """An image takes 20 ms, of a file system's time and not of a core's."""

    def __getitems__(self, indices: list[int]) -> Loaded:
        time.sleep(0.02 * len(indices))
        return super().__getitems__(indices)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_block_is_no_faster_than_its_loader_workers(folder: str, gloo_of_one: None, workers: int) -> None:
    """A stock that was read before the block would make it look up to a third faster."""
    arm, steps = Arm("ddp", 1, 2, variant=Variant(workers=workers, prefetch=4)), 12
    usual = read_samples(folder, "train", TINY.family)
    paths = [os.fsdecode(path) for path in usual._paths]
    slow = SlowSamples(usual.root, TINY.family.image_size, paths, usual._labels.tolist(), usual.classes)
    asked = study_of(folder, arm)
    arms = StudyArms(asked, CpuDevice(), 0, Layout(1, 1), TIMEOUT, loader=partial(SampleLoader, slow))
    arms.time_block(arm, steps)
    expected_s = steps * 2 * 0.02 / workers
    assert arms.time_block(arm, steps).block_s > 0.9 * expected_s  # a busy machine only makes it longer
    arms.close()


def test_waits_are_those_of_the_timed_steps_and_synthetic_data_has_none(folder: str, gloo_of_one: None) -> None:
    loaded, synthetic = Arm("ddp", 1, 4), Arm("ddp", 1, 4, variant=Variant(data="synthetic"))
    halves = Arm("ddp", 1, 4, variant=Variant(accumulation_steps=2))
    arms = arms_of(folder, loaded, synthetic, halves)
    timing = arms.time_block(loaded, 3)
    assert timing.waited_s is not None
    assert len(timing.waited_s) == 3
    assert all(0 < waited < step for waited, step in zip(timing.waited_s, timing.step_s, strict=True))
    assert len(arms.time_block(halves, 3).waited_s or ()) == 3, "the waits of a step's passes are one"
    assert arms.time_block(synthetic, 3).waited_s is None
    arms.close()


def test_settings_of_the_loader_need_no_model_of_their_own(folder: str, gloo_of_one: None) -> None:
    """Seven of them beside each other would not fit a GPU."""
    sizes: list[int] = []
    arms = arms_of(folder, *(Arm("ddp", 1, 4, variant=Variant(workers=0, prefetch=n)) for n in (1, 2)))
    for n in (1, 2):
        timing: Timing = arms.time_block(Arm("ddp", 1, 4, variant=Variant(workers=0, prefetch=n)), 3)
        sizes.append(len(arms._replicas._replicas))
        assert timing.parameters_checksum
    assert sizes == [1, 1]
    arms.close()


def test_ranks_that_are_compared_read_nothing(folder: str, gloo_of_one: None) -> None:
    arm = Arm("each", 1, 4)
    arms = StudyArms(study_of(folder, arm), CpuDevice(), 0, Layout(1, 1), TIMEOUT)  # no folder was opened
    assert arms.time_block(arm, 3).waited_s is None
    arms.close()


def test_a_folder_with_more_classes_than_the_model_is_refused(tmp_path: Path, gloo_of_one: None) -> None:
    folder, arm = image_folder(tmp_path, images=11, classes=11), Arm("ddp", 1, 4)
    with pytest.raises(
        ValueError, match=r"train: 11 classes, but the workload has num_classes 10; expected at most as"
    ):
        arms_of(folder, arm)


def test_wrong_settings_are_refused_with_the_study(folder: str) -> None:
    wrong: list[tuple[Callable[[], object], str]] = [
        (
            lambda: study(Arm("ddp", 1, 2, variant=Variant(workers=2))),
            "tiny has synthetic data, which needs no loader workers",
        ),
        (lambda: study_of(folder, Arm("ddp", 2, 2, variant=Variant(uneven_share=0.5))), "ranks share a folder evenly"),
        (lambda: study_of(folder, Arm("ddp", 2, 2, variant=Variant(workers=999))), "data.workers is 999; expected 0"),
        (lambda: study_of(folder, Arm("ddp", 2, 2, variant=Variant(prefetch=0))), "data.prefetch is 0; expected 1"),
        (lambda: data_of("images"), "data.folder is 'images'; expected an absolute path"),
    ]
    for make, message in wrong:
        with pytest.raises(ValueError, match=message):
            make()
