"""Folders of images: their layout and sizes, that their classes can be learnt, and none that is half written."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from pytest_ddpscale.cli import main
from pytest_ddpscale.datasets import make_dataset
from pytest_ddpscale.datasets.dataset_record import DatasetRecord, read_dataset_record
from pytest_ddpscale.datasets.make_dataset import KNOWN_SIZES, class_pattern, image_of, write_dataset, write_images
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.util.command_parser import USER_ERROR
from tests.suites.conftest import exit_code

SMALL = DatasetRecord(images={"train": 23, "val": 7}, classes=5, image_size=16)
# Tables 12.1 and 12.5 of Torres, "Supercomputing for AI": seconds of the whole training and img/s, by GPUs.
TIMES = {"micro-224": {1: (556, 240), 2: (439, 464), 4: (380, 892), 32: (328, 5205)},
         "tiny-224": {1: (2350, 242), 2: (1354, 475), 4: (842, 935), 32: (310, 6914)}}  # fmt: skip
EPOCHS = 5  # of its script for tiny-224


def silent(written: int, total: int) -> None:
    """Nobody listens."""


def test_the_command_writes_both_splits_by_class_and_says_how_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "below/images"
    assert (
        main(["make-dataset", str(folder), "--images=23", "--validation-images=7", "--classes=5", "--image-size=16"])
        == 0
    )
    assert re.match(
        rf"{folder}: 23 images in train, 7 images in val, 5 classes, 16 px, 0\.\d MB", capsys.readouterr().out
    )
    assert read_dataset_record(folder) == SMALL
    counts = {
        split: [len(list(one.iterdir())) for one in sorted((folder / split).iterdir())] for split in ("train", "val")
    }
    assert counts == {"train": [5, 5, 5, 4, 4], "val": [2, 2, 1, 1, 1]}
    with Image.open(folder / "train/class-000004/000003.jpg") as image:
        assert (image.format, image.size, image.mode) == ("JPEG", (16, 16), "RGB")
    assert (
        main(["make-dataset", str(folder), "--images=23", "--validation-images=7", "--classes=5", "--image-size=16"])
        == USER_ERROR
    )
    assert capsys.readouterr().err == f"ddpscale: FOLDER: {folder} already exists; expected the name of a new folder.\n"


KILLED = """
import sys
from pathlib import Path
from pytest_ddpscale.datasets.make_dataset import write_dataset
from pytest_ddpscale.datasets.dataset_record import DatasetRecord
if __name__ == "__main__":
    record = DatasetRecord(images={"train": 200_000, "val": 10}, classes=10, image_size=16)
    write_dataset(Path(sys.argv[1]), record, lambda written, total: print(written, flush=True))
"""


def test_a_run_that_is_killed_leaves_no_folder_of_that_name_and_the_next_one_says_so(tmp_path: Path) -> None:
    program, folder = tmp_path / "killed.py", tmp_path / "images"
    program.write_text(KILLED, encoding="utf-8")
    with subprocess.Popen([sys.executable, program, folder], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        process.send_signal(signal.SIGKILL)
    assert not folder.exists()
    assert list(tmp_path.glob("images.incomplete/train/*/*.jpg"))
    with pytest.raises(OptionError, match=r"images.incomplete exists: another run is writing it, or was killed"):
        write_dataset(folder, SMALL, silent)
    size, ends_s = -1, time.monotonic() + 30
    while size != (now := sum(1 for _ in tmp_path.glob("images.incomplete/*/*/*"))):  # nobody writes on
        assert time.monotonic() < ends_s
        size = now
        time.sleep(0.2)


def test_what_cannot_be_written_is_removed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(record: DatasetRecord) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(make_dataset, "line_of", full)
    with pytest.raises(OSError, match="No space"):
        write_dataset(tmp_path / "images", SMALL, silent)
    assert list(tmp_path.iterdir()) == []


def test_the_same_seed_writes_the_same_images_and_another_one_others(tmp_path: Path) -> None:
    written = []
    for place, seed in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / place).mkdir()
        write_images(tmp_path / place, 0, range(5), 16, seed, is_val=False)
        written.append([one.read_bytes() for one in sorted((tmp_path / place).rglob("*.jpg"))])
    assert written[0] == written[1] != written[2]
    assert len(set(written[0])) == len(written[0]) == 5, "no two images are alike"


def images(label: int, numbers: range, size: int = 32) -> npt.NDArray[np.float64]:
    """Spectra of images: waves that move keep their lengths and directions."""
    pattern = class_pattern(label, size, 0)
    made = [image_of(pattern, np.random.default_rng((0, label, number))) for number in numbers]
    return np.array([np.abs(np.fft.fft2(one, axes=(0, 1))).ravel() for one in made])


def test_classes_can_be_learnt() -> None:
    """By the simplest classifier: the mean spectrum that an image is nearest to."""
    means = np.array([images(label, range(10)).mean(axis=0) for label in range(10)])
    found = [
        int(np.argmin(np.linalg.norm(means - one, axis=1)))
        for label in range(10)
        for one in images(label, range(10, 15))
    ]
    wrong = sum(
        one != label for one, label in zip(found, [label for label in range(10) for _ in range(5)], strict=True)
    )
    assert wrong <= 2


@pytest.mark.parametrize("name", KNOWN_SIZES)
def test_published_sizes_fit_the_times_that_are_published_with_them(name: str) -> None:
    """What k GPUs save is what is trained: images x epochs x (1/throughput of one - 1/throughput of k)."""
    (alone_s, alone), *others = TIMES[name].values()
    for seconds, samples_per_s in others:
        of_epoch = (alone_s - seconds) / (1 / alone - 1 / samples_per_s) / EPOCHS
        # micro-224 comes to 5 to 7 % fewer than its log says.
        assert of_epoch == pytest.approx(KNOWN_SIZES[name][0], rel=0.025 if name == "tiny-224" else 0.07)


def test_micro_is_what_its_log_says() -> None:
    assert KNOWN_SIZES["micro-224"][0] == 32 * 3 * 128


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--images=10"], "--classes: not given; expected a number, or --like for all sizes."),
        (["--images=10", "--classes=2", "--image-size=0"], "--image-size: found '0'; expected a whole number from 1"),
        (["--images=100", "--classes=50", "--image-size=8"], "--classes: found 50 for 100 images to train on and 10"),
        (["--like=micro-224", "--classes=2"], "--like: found --classes beside it; expected one or the other."),
        (["--like=micro-224", "--seed=-1"], "--seed: found '-1'; expected a number from 0 to 2147483647."),
        (["--like=micro-224", "--seed=x"], "--seed: found 'x'; expected a number from 0 to 2147483647."),
    ],
)  # fmt: skip
def test_a_wrong_option_is_one_sentence(
    tmp_path: Path, options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("make-dataset", str(tmp_path / "images"), *options) == USER_ERROR
    told = capsys.readouterr().err
    assert expected in told
    assert len(told.splitlines()) == 1
