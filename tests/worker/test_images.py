"""Images from a folder: who has which, what arrives on the device, and what is said of those that do not."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.distributed import HashStore

from pytest_ddpscale.datasets.image_samples import ImageSamples, Loaded, read_samples
from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.workload import ImageFolderData
from pytest_ddpscale.worker.arms import steps_at_once, steps_before_timing, steps_for_block
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.loading import SampleLoader, Shard, ShardBatches, open_samples
from tests.builders.image_folder import data_of, image_folder
from tests.builders.trained import CPU, TINY, arms_of, study
from tests.rows import rows

WHOLE = Shard(0, 1, 4)
DEADLINE_S = 60
FIFTH = "train/class-1/004.jpg"
Opened = Callable[..., ImageSamples]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return image_folder(tmp_path_factory.mktemp("images"))


@pytest.fixture
def own_folder(folder: str, tmp_path: Path) -> Path:
    """One that a test may break."""
    return Path(shutil.copytree(folder, tmp_path / "own"))


def samples_of(root: object) -> ImageSamples:
    return read_samples(str(root), "train", TINY.family)


def loader_of(root: object, shard: Shard = WHOLE, workers: int = 0, **options: Any) -> SampleLoader:
    return SampleLoader(samples_of(root), data_of(str(root), workers), shard, TINY.family, CPU, **options)


def workers_of(pid: int) -> list[psutil.Process]:
    """Processes below one that are loader workers: children of a forkserver."""
    below = psutil.Process(pid).children(recursive=True)
    return [one for one in below if one.ppid() != pid and is_alive(one)]


def is_alive(one: psutil.Process) -> bool:
    """Of a process that has ended, and nobody waited for, there is no program."""
    return Path(f"/proc/{one.pid}/exe").exists()


def test_batches_are_normalised_images_and_the_labels_of_their_folders(folder: str) -> None:
    images, labels = next(loader_of(folder, replace(WHOLE, is_training=False)).epoch(0))
    assert (images.dtype, images.shape, labels.tolist()) == (torch.float32, (4, 3, 32, 32), [0, 0, 0, 0])
    with Image.open(Path(folder, "train/class-0/000.jpg")) as image:
        red = torch.tensor(np.asarray(image.convert("RGB"))[:, :, 0] / 255, dtype=torch.float32)
    assert torch.allclose(images[0, 0], (red - 0.485) / 0.229, atol=1e-5)


def test_a_stretch_goes_on_through_epochs(folder: str) -> None:
    loader = loader_of(folder)
    assert len(loader) == 5
    for first, count in ((0, 3), (3, 4), (7, 8)):
        assert len(list(loader.stretch(first, count))) == count == len(loader.waited_s)
        assert min(loader.waited_s) > 0
    whole = [labels.tolist() for _, labels in loader.epoch(1)]
    assert whole == [labels.tolist() for _, labels in loader.stretch(5, 5)]


def test_an_image_that_is_broken_or_gone_or_never_comes_is_named(own_folder: Path) -> None:
    path = own_folder / FIFTH
    here, of_worker, hasty = (
        loader_of(own_folder, workers=workers, timeout_s=timeout_s)
        for workers, timeout_s in ((0, DEADLINE_S), (1, DEADLINE_S), (1, 1.0))
    )

    def assert_named(loader: SampleLoader, message: str) -> None:
        with pytest.raises(RuntimeError, match=f"^{message}$"):
            list(loader.epoch(0))

    path.write_bytes(path.read_bytes()[:300])
    assert_named(here, rf"{re.escape(str(path))}: .*\. Repair or delete it")
    path.unlink()
    assert_named(of_worker, f"{re.escape(str(path))}: No such file or directory. Repair or delete it")
    os.mkfifo(path)  # as of a file system that does not answer: nobody writes
    assert_named(hasty, f"loading {own_folder}/train: no batch came within 1 s")


def more_classes(folder: Path) -> None:
    for number in range(3, 11):
        shutil.copytree(folder / "train/class-0", folder / f"train/class-{number}")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shutil.rmtree(folder), r"own/train: .*; expected a folder train with a folder of images"),
        (lambda folder: (folder / "train/empty").mkdir(), r"own/train: Found no valid file for the classes empty"),
        (id, "own/train: 21 images for 6 ranks; expected at least 24, a batch of 4 for each"),
        (more_classes, "own/train: 11 classes, but the workload has num_classes 10; expected at most as"),
    ],
)
def test_a_folder_that_is_not_as_it_has_to_be_is_named(
    own_folder: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(own_folder)
    with pytest.raises(ValueError, match=message):
        loader_of(own_folder, Shard(0, 6, 4))


def test_loader_workers_have_the_cores_given_and_nothing_of_the_rank_and_are_missed(
    folder: str,
) -> None:
    """No lock or socket, as they are no copies of it; nor Ctrl-C."""
    last = max(os.sched_getaffinity(0))
    before = workers_of(os.getpid())  # of earlier tests in this process
    mine, other = socket.socketpair()
    with mine, other:
        batches = loader_of(folder, workers=2, cores=(last,)).stretch(0, 500)
        for expected in loader_of(folder).epoch(0):
            assert torch.equal(next(batches).inputs, expected.inputs)
        workers = [one for one in workers_of(os.getpid()) if one not in before]
        assert len(workers) == 2
        for worker in workers:
            process = Path(f"/proc/{worker.pid}")
            assert worker.cpu_affinity() == [last]
            _, _, ignored = (process / "status").read_text(encoding="ascii").partition("SigIgn:")
            assert int(ignored.split()[0], 16) & 1 << signal.SIGINT - 1
            theirs = {str(one.readlink()) for one in (process / "fd").iterdir() if one.is_symlink()}
            assert f"socket:[{os.fstat(mine.fileno()).st_ino}]" not in theirs
    workers[0].kill()
    with pytest.raises(RuntimeError, match=rf"^loading .*: .*[Ll]oader worker (.pid.s. {workers[0].pid}. exited|died)"):
        list(batches)


def load_for_ever(folder: str, loading: Event) -> None:
    for _ in loader_of(folder, workers=2).stretch(0, 10**6):
        loading.set()
        time.sleep(0.01)


def test_loader_workers_die_with_their_rank(folder: str) -> None:
    context = multiprocessing.get_context("forkserver")
    loading = context.Event()
    rank = context.Process(target=load_for_ever, args=(folder, loading))
    rank.start()
    assert rank.pid is not None
    assert loading.wait(DEADLINE_S)
    below = psutil.Process(rank.pid).children(recursive=True)
    assert len(workers_of(rank.pid)) == 2
    rank.kill()
    ends_s = time.monotonic() + DEADLINE_S
    while any(map(is_alive, below)) and time.monotonic() < ends_s:
        time.sleep(0.05)
    assert not any(map(is_alive, below))


@pytest.fixture
def opened() -> Opened:
    """What one of two ranks sees."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=0.2))

    def opened(folder: object, rank: int, local_rank: int = 0) -> ImageSamples:
        control = Control(store, rank, local_rank, 2)
        return open_samples(ImageFolderData(str(folder)), "train", TINY.family, control, "images")

    return opened


def test_ranks_wait_for_the_first_of_their_node_and_no_longer_than_the_deadline(folder: str, opened: Opened) -> None:
    with pytest.raises(RuntimeError, match=f"{re.escape(folder)}: rank 0 did not read it in time"):
        opened(folder, 1, local_rank=1)
    first, second = opened(folder, 0), opened(folder, 1, local_rank=1)
    assert (len(first), first.classes, first.digest) == (21, 3, second.digest)


def test_ranks_hear_why_the_first_of_their_node_could_not_read(tmp_path: Path, opened: Opened) -> None:
    for rank, message in ((0, "^[^ ]*own/train: "), (1, "^rank 0 could not read the images: .*own/train: ")):
        with pytest.raises(ValueError, match=message):
            opened(tmp_path / "own", rank, local_rank=rank)


def test_a_node_that_sees_other_images_is_named(folder: str, own_folder: Path, opened: Opened) -> None:
    """Under the same path, which is of one file system on one node and of another on the other."""
    opened(folder, 0)
    (own_folder / FIFTH).unlink()
    with pytest.raises(RuntimeError, match=r"rank 1 sees 20 images, which differ from the 21 of rank 0; expected"):
        opened(own_folder, 1)


def epochs_of(images: int, ranks: int, batch: int, epoch: int, *, is_training: bool = True) -> list[list[list[int]]]:
    """The batches of each rank."""
    shards = [ShardBatches(range(images), Shard(rank, ranks, batch, is_training, 7)) for rank in range(ranks)]
    for one in shards:
        one.first, one.count = epoch * one.per_epoch, one.per_epoch
    return [list(one) for one in shards]


@given(st.integers(1, 90), st.integers(1, 7), st.integers(1, 9), st.integers(0, 3), st.booleans())
def test_in_training_images_that_do_not_divide_are_left_out_and_in_validation_as_many_twice(
    images: int, ranks: int, batch: int, epoch: int, is_training: bool
) -> None:
    of_ranks = epochs_of(images, ranks, batch, epoch, is_training=is_training)
    times = Counter(index for batches in of_ranks for indices in batches for index in indices)
    each = images // ranks // batch * batch if is_training else math.ceil(images / ranks)
    assert {sum(map(len, batches)) for batches in of_ranks} == {each}
    assert {len(batches) for batches in of_ranks} == {math.ceil(each / batch)}
    assert len(times) == (each * ranks if is_training else images)


def test_each_epoch_has_an_order_of_its_own_and_leaves_out_others() -> None:
    def order(epoch: int) -> list[int]:
        (batches,) = epochs_of(23, 1, 4, epoch)
        return [index for batch in batches for index in batch]

    epochs = [*map(order, range(5))]
    assert len(set(map(tuple, epochs))) == 5
    assert len(set(map(frozenset, epochs))) > 1
    assert order(2) == epochs[2], "and the same again"


@rows("ranks", [2, 3, 4, 8])
def test_every_world_size_trains_the_same_images_in_the_same_iterations(ranks: int) -> None:
    """What a whole run at one world size is compared by with that at another."""
    (alone,) = epochs_of(100, 1, 24, 1)
    together = zip(*epochs_of(100, ranks, 24 // ranks, 1), strict=True)
    assert [set().union(*batches) for batches in together] == list(map(set, alone))


def loaded_from(folder: str) -> Any:
    return replace(TINY, data=data_of(folder))


@rows(
    ("workers", "prefetch", "passes", "at_once", "before"),
    [(0, 2, 1, 1, 1), (4, 2, 1, 4, 8), (4, 2, 2, 2, 4), (3, 1, 2, 3, 3)],
)
def test_what_loader_workers_deliver_together_is_timed_as_a_whole(
    folder: str, workers: int, prefetch: int, passes: int, at_once: int, before: int
) -> None:
    arm = Arm("ddp", 1, 4, variant=Variant(workers=workers, prefetch=prefetch, accumulation_steps=passes))
    asked = study(arm, workload=loaded_from(folder))
    assert (steps_at_once(asked, arm), steps_before_timing(asked, arm)) == (at_once, before)
    assert steps_for_block(0.41, 4.0, at_once) == math.ceil(10 / at_once) * at_once


def test_a_block_reads_ahead_to_its_end_and_the_next_one_goes_on_behind_that(
    folder: str,
) -> None:
    loaded, whole = loader_of(folder, Shard(0, 1, 2), workers=1), loader_of(folder, Shard(0, 1, 2))
    labels = [labels.tolist() for _, labels in whole.stretch(0, 10)]
    for first in (0, 5):  # of each block three are trained, and two thrown away
        loaded.begin(3)
        assert [loaded.fetch().targets.tolist() for _ in range(3)] == labels[first : first + 3]
        assert len(loaded.end()) == 3
        with pytest.raises(StopIteration):
            loaded.fetch()


class SlowSamples(ImageSamples):
    """An image takes 20 ms, of a file system's time and not of a core's."""

    def __getitems__(self, indices: list[int]) -> Loaded:
        time.sleep(0.02 * len(indices))
        return super().__getitems__(indices)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_block_is_no_faster_than_its_loader_workers(folder: str, gloo_of_one: None, workers: int) -> None:
    """A stock that was read before the block would make it look up to a third faster."""
    arm, steps, slow = Arm("ddp", 1, 2, variant=Variant(workers=workers, prefetch=4)), 12, samples_of(folder)
    slow.__class__ = SlowSamples
    arms = arms_of(arm, workload=loaded_from(folder), loader=partial(SampleLoader, slow))
    arms.time_block(arm, steps)
    expected_s = steps * 2 * 0.02 / workers
    assert arms.time_block(arm, steps).block_s > 0.9 * expected_s  # a busy machine only makes it longer
    arms.close()


def test_waits_are_those_of_the_timed_steps_of_arms_that_load(folder: str, gloo_of_one: None) -> None:
    kinds = (
        Arm("ddp", 1, 4),
        Arm("ddp", 1, 4, variant=Variant(accumulation_steps=2)),  # the waits of a step's passes are one
        Arm("ddp", 1, 4, variant=Variant(data="synthetic")),
        Arm("each", 1, 4),  # ranks are compared without reading
    )
    arms = arms_of(*kinds, workload=loaded_from(folder), loader=partial(SampleLoader, samples_of(folder)))
    for arm, count in zip(kinds, (3, 3, 0, 0), strict=True):
        timing = arms.time_block(arm, 3)
        assert len(timing.waited_s or ()) == count
        for waited_s, step_s in zip(timing.waited_s or (), timing.step_s, strict=False):
            assert 0 < waited_s < step_s


def test_wrong_settings_are_refused_with_the_study(folder: str) -> None:
    for workload, wrong, message in (
        (TINY, {"workers": 2}, "tiny has synthetic data, which needs no loader workers"),
        (loaded_from(folder), {"uneven_share": 0.5}, "ranks share a folder evenly"),
        (loaded_from(folder), {"workers": 999}, "data.workers is 999; expected 0"),
        (loaded_from(folder), {"prefetch": 0}, "data.prefetch is 0; expected 1"),
        (TINY, {"accumulation_steps": 2}, "a per-GPU batch of 5 cannot be split into 2 equal passes"),
    ):
        with pytest.raises(ValueError, match=message):
            study(Arm("ddp", 2, 5, variant=Variant(**wrong)), workload=workload)
    with pytest.raises(ValueError, match=r"data\.folder is 'images'; expected an absolute path"):
        data_of("images")
