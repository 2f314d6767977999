"""Blocks that read a folder: what is timed is the middle of an epoch, and nobody reads between blocks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.worker.arms import StudyArms, steps_at_once, steps_before_timing, steps_for_block
from pytest_ddpscale.worker.device import CpuDevice, Timing
from pytest_ddpscale.worker.image_loader import ImageLoader, LoaderSettings
from pytest_ddpscale.worker.image_samples import ImageSamples, Sample, read_samples
from pytest_ddpscale.worker.loaded_batch import LoadedBatch, StudyImages
from pytest_ddpscale.worker.sharding import Shard
from tests.builders.image_folder import data_of, image_folder
from tests.builders.trained import CPU, TIMEOUT, TINY, study


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return image_folder(tmp_path_factory.mktemp("images"))


def study_of(folder: str, *arms: Arm) -> Study:
    return study(*arms, workload=replace(TINY, data=data_of(folder)))


def arms_of(folder: str, *arms: Arm) -> StudyArms:
    asked = study_of(folder, *arms)
    images = StudyImages(read_samples(folder, "train", TINY.family.image_size))
    return StudyArms(asked, CpuDevice(), 0, Layout(1, 1), TIMEOUT, images=images)


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
    def loader() -> ImageLoader:
        settings = LoaderSettings(data_of(folder, workers=1), 2)
        return ImageLoader(read_samples(folder, "train", 32), Shard(), settings, CPU)

    loaded, whole = LoadedBatch(loader()), loader()
    labels = [labels.tolist() for _, labels in whole.stretch(0, 10)]
    for first in (0, 5):  # of each block three are trained, and two thrown away
        loaded.begin(3)
        for number in range(first, first + 3):
            loaded.fetch()
            assert loaded.labels.tolist() == labels[number]
        assert len(loaded.end()) == 3
        with pytest.raises(StopIteration):
            loaded.fetch()
    loaded.close()
    whole.close()


class SlowSamples(ImageSamples):
    """An image takes 20 ms, of a file system's time and not of a core's."""

    def __getitem__(self, index: int) -> Sample:
        time.sleep(0.02)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_block_is_no_faster_than_its_loader_workers(folder: str, gloo_of_one: None, workers: int) -> None:
    """A stock that was read before the block would make it look up to a third faster."""
    arm, steps = Arm("ddp", 1, 2, variant=Variant(workers=workers, prefetch=4)), 12
    usual = read_samples(folder, "train", TINY.family.image_size)
    paths = [os.fsdecode(path) for path in usual._paths]
    slow = SlowSamples(usual.root, TINY.family.image_size, paths, usual._labels.tolist(), usual.classes, 60.0)
    asked = study_of(folder, arm)
    arms = StudyArms(asked, CpuDevice(), 0, Layout(1, 1), TIMEOUT, images=StudyImages(slow))
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
    arms = arms_of(folder, arm)
    with pytest.raises(ValueError, match=r"train: 11 classes, but tiny has num_classes 10; expected at most as many"):
        arms.time_block(arm, 3)
    arms.close()


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
