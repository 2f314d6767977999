"""Images from a folder: what arrives on the device, and what is said of those that do not."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torch.distributed import HashStore

from pytest_ddpscale.plan.workload import ImageFolderData
from pytest_ddpscale.run.dataset_record import DATASET_FILE, DatasetRecord
from pytest_ddpscale.run.record_lines import line_of
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.image_loader import ImageLoader, LoaderSettings, open_samples
from pytest_ddpscale.worker.image_samples import read_samples
from pytest_ddpscale.worker.sharding import Shard
from tests.builders.image_folder import data_of, image_folder
from tests.builders.trained import CPU

SETTINGS = LoaderSettings(data_of("/unused"), batch_size=4)
WHOLE = Shard()
DEADLINE_S = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return image_folder(tmp_path_factory.mktemp("images"))


@pytest.fixture
def own_folder(folder: str, tmp_path: Path) -> Path:
    """One that a test may break."""
    return Path(shutil.copytree(folder, tmp_path / "own"))


@pytest.fixture
def loader_of(folder: str) -> Iterator[Callable[..., ImageLoader]]:
    made: list[ImageLoader] = []

    def make(shard: Shard = WHOLE, root: str = folder, **changes: Any) -> ImageLoader:
        workers = changes.pop("workers", 0)
        settings = replace(SETTINGS, data=data_of(root, workers), **changes)
        made.append(ImageLoader(read_samples(root, "train", 32), shard, settings, CPU))
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
    loader_of: Callable[..., ImageLoader], folder: str, workers: int
) -> None:
    loader = loader_of(workers=workers, shuffle=False)
    images, labels = next(iter(loader.epoch(0)))
    assert (images.dtype, images.shape, labels.tolist()) == (torch.float32, (4, 3, 32, 32), [0, 0, 0, 0])
    with Image.open(Path(folder, "train/class-0/000.jpg")) as image:
        red = torch.tensor(np.asarray(image.convert("RGB"))[:, :, 0] / 255, dtype=torch.float32)
    assert torch.allclose(images[0, 0], (red - 0.485) / 0.229, atol=1e-5)


def test_all_ranks_have_equally_many_batches_though_images_do_not_divide(loader_of: Callable[..., ImageLoader]) -> None:
    loaders = [loader_of(Shard(rank, 2)) for rank in range(2)]
    for epoch in range(3):
        for loader in loaders:
            assert len(list(loader.epoch(epoch))) == len(loader) == 2
            assert len(loader.waited_s) == 2
            assert min(loader.waited_s) > 0


def test_a_stretch_goes_on_through_epochs(loader_of: Callable[..., ImageLoader]) -> None:
    loader = loader_of()
    assert len(loader) == 5
    for first, count in ((0, 3), (3, 4), (7, 8)):
        assert len(list(loader.stretch(first, count))) == count
    whole = [labels.tolist() for _, labels in loader.epoch(1)]
    assert whole == [labels.tolist() for _, labels in loader.stretch(5, 5)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_is_named(own_folder: Path, loader_of: Callable[..., ImageLoader], workers: int) -> None:
    broken = own_folder / "train/class-1/004.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    with pytest.raises(RuntimeError, match=rf"^{re.escape(str(broken))}: .*\. Repair or delete it$"):
        list(loader_of(root=str(own_folder), workers=workers).epoch(0))


def test_an_image_that_has_gone_is_named(own_folder: Path, loader_of: Callable[..., ImageLoader]) -> None:
    loader, gone = loader_of(root=str(own_folder)), own_folder / "train/class-1/004.jpg"
    gone.unlink()
    with pytest.raises(RuntimeError, match=f"^{re.escape(str(gone))}: No such file or directory. Repair or delete it"):
        list(loader.epoch(0))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_never_comes_is_named(own_folder: Path, workers: int) -> None:
    """As of a file system that does not answer: a pipe that nobody writes."""
    silent = own_folder / "train/class-1/004.jpg"
    silent.unlink()
    os.mkfifo(silent)
    settings = replace(SETTINGS, data=data_of(str(own_folder), workers))
    loader = ImageLoader(read_samples(str(own_folder), "train", 32, timeout_s=0.2), Shard(), settings, CPU)
    with pytest.raises(RuntimeError, match=f"^{re.escape(str(silent))}: was not read in time; the file system may not"):
        list(loader.epoch(0))
    loader.close()


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
        read_samples(str(own_folder), "train", 32)


def say_images(folder: Path, images: int) -> None:
    (folder / DATASET_FILE).write_bytes(line_of(DatasetRecord(images={"train": images}, classes=3, image_size=32)))


def test_too_few_images_for_a_batch_of_each_rank_are_refused(loader_of: Callable[..., ImageLoader]) -> None:
    with pytest.raises(ValueError, match=r"train: 21 images for 6 ranks; expected at least 24, a batch of 4 for each"):
        loader_of(Shard(0, 6))


def test_loader_workers_have_all_cores_of_the_rank_and_nothing_else_of_it(
    loader_of: Callable[..., ImageLoader],
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


def test_a_loader_worker_that_dies_is_an_error_with_the_folder(loader_of: Callable[..., ImageLoader]) -> None:
    loader = loader_of(workers=2)
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
from pytest_ddpscale.worker.image_loader import ImageLoader, LoaderSettings
from pytest_ddpscale.worker.image_samples import read_samples
from pytest_ddpscale.worker.sharding import Shard
import torch
if __name__ == "__main__":
    data = ImageFolderData(sys.argv[1], workers=2)
    loader = ImageLoader(read_samples(data.folder, "train", 32), Shard(), LoaderSettings(data, 4), torch.device("cpu"))
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
        open_samples(data, "train", 32, control_of(store, 1, local_rank=1), "images")
    assert time.monotonic() - began_s < DEADLINE_S
    first = open_samples(data, "train", 32, control_of(store, 0), "images")
    second = open_samples(data, "train", 32, control_of(store, 1, local_rank=1), "images")
    assert first.digest == second.digest
    assert (len(first), first.classes) == (21, 3)


def test_ranks_hear_why_the_first_of_their_node_could_not_read(own_folder: Path) -> None:
    store, data = hash_store(), ImageFolderData(str(own_folder))
    shutil.rmtree(own_folder)
    for rank, message in ((0, "^[^ ]*own/train: "), (1, "^rank 0 could not read the images: .*own/train: ")):
        with pytest.raises(ValueError, match=message):
            open_samples(data, "train", 32, control_of(store, rank, local_rank=rank), "images")


def test_a_node_that_sees_other_images_is_named(folder: str, own_folder: Path) -> None:
    """Under the same path, which is of one file system on one node and of another on the other."""
    store = hash_store()
    open_samples(ImageFolderData(folder), "train", 32, control_of(store, 0), "images")
    (own_folder / "train/class-1/004.jpg").unlink()
    with pytest.raises(RuntimeError, match=r"rank 1 sees 20 images, which differ from the 21 of rank 0; expected"):
        open_samples(ImageFolderData(str(own_folder)), "train", 32, control_of(store, 1), "images")
