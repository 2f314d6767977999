"""What becomes of a driver's own samples: all of them are taken, once, and of the right GPU, if there are any."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pytest_ddpscale.telemetry.link import Sampler
from tests.builders.telemetry import Telemetry
from tests.nvml_stand_in.machine import A100, PlayedMachine, uuid_of
from tests.telemetry.sampled import cut

HALF_BUSY = 1
NOTHING = "no sample in the window"


@pytest.fixture(scope="module")
def sampler(nvml_library_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sampler]:
    machine = PlayedMachine(nvml_library_directory, tmp_path_factory.mktemp("node") / "machine.json").play(
        [A100, dataclasses.replace(A100, utilization_pct=50)]
    )
    # NVML does not heed the variable: whoever went by its indices would mix up the GPUs.
    environment = machine.environment(CUDA_VISIBLE_DEVICES="1,0")
    with closing(Sampler([uuid_of(0), uuid_of(1)], 60, environment)) as running:
        yield running


def lately(sampler: Sampler, gpu: int) -> Telemetry:
    """What the last two seconds were."""
    now = time.time()
    return cut(sampler, [(uuid_of(gpu), now - 2, now)])[0]


def test_what_the_driver_sampled_before_it_was_first_asked_is_there(sampler: Sampler) -> None:
    lately(sampler, HALF_BUSY)  # it takes a while to start
    now = time.time()
    (hour,) = cut(sampler, [(uuid_of(HALF_BUSY), now - 3600, now)])
    assert hour.utilization is not None
    assert hour.utilization.mean == pytest.approx(0.5)
    # A hundred, one each 100 ms, is all that a driver keeps; the oldest may leave between two calls.
    assert hour.utilization.samples >= 99
    assert hour.sources["utilization"] == "buffer"


def test_a_driver_with_nothing_newer_is_no_driver_that_fails(sampler: Sampler) -> None:
    # Asked thrice within the time of a sample, NVML says "Not Found".
    for _ in range(3):
        now = time.time()
        before, after = cut(
            sampler, [(uuid_of(HALF_BUSY), now - 3600, now - 3599), (uuid_of(HALF_BUSY), now + 5, now + 6)]
        )
        for one in (before, after):
            assert one.utilization is None
            assert one.unreadable["utilization"] == NOTHING
    assert lately(sampler, HALF_BUSY).utilization is not None
