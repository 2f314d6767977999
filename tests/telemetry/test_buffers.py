"""What becomes of a driver's own samples: all of them are taken, once, and of the right GPU, if there are any."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pytest_ddpscale.results.telemetry_record import Telemetry
from pytest_ddpscale.telemetry.link import Sampler
from tests.nvml_stand_in.machine import A100, FUNCTION_NOT_FOUND, NOT_SUPPORTED, PlayedGpu, PlayedMachine, uuid_of
from tests.telemetry.sampled import cut

HEALTHY, UNSUPPORTED, OLD, IMPOSSIBLE = range(4)
NOWHERE = "GPU-nowhere"
NOTHING = "nothing was read in the window"


def without_buffer(code: int) -> PlayedGpu:
    return dataclasses.replace(A100, utilization_pct=88, failures={"nvmlDeviceGetSamples": code})


@pytest.fixture(scope="module")
def sampler(nvml_library_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sampler]:
    machine = PlayedMachine(nvml_library_directory, tmp_path_factory.mktemp("node") / "machine.json").play(
        [
            dataclasses.replace(A100, utilization_pct=50),
            without_buffer(NOT_SUPPORTED),
            without_buffer(FUNCTION_NOT_FOUND),
            dataclasses.replace(A100, utilization_pct=1000),
        ]
    )
    # NVML does not heed the variable: whoever went by its indices would mix up the GPUs.
    environment = machine.environment(CUDA_VISIBLE_DEVICES="3,2,1,0")
    with closing(Sampler([*map(uuid_of, range(4)), NOWHERE], 60, environment)) as running:
        yield running


def lately(sampler: Sampler, gpu: int) -> Telemetry:
    """What the last two seconds were."""
    now = time.time()
    return cut(sampler, [(uuid_of(gpu), now - 2, now)])[0]


def test_what_the_driver_sampled_before_it_was_first_asked_is_there(sampler: Sampler) -> None:
    lately(sampler, HEALTHY)  # it takes a while to start
    now = time.time()
    (hour,) = cut(sampler, [(uuid_of(HEALTHY), now - 3600, now)])
    assert hour.utilization is not None
    assert hour.utilization.mean == pytest.approx(0.5)
    # A hundred, one each 100 ms, is all that a driver keeps; the oldest may leave between two calls.
    assert hour.utilization.samples >= 99
    assert hour.sources["utilization"] == "buffer"


def test_a_driver_with_nothing_newer_is_no_driver_that_fails(sampler: Sampler) -> None:
    # Asked thrice within the time of a sample, NVML says "Not Found".
    for _ in range(3):
        now = time.time()
        before, after = cut(sampler, [(uuid_of(HEALTHY), now - 3600, now - 3599), (uuid_of(HEALTHY), now + 5, now + 6)])
        for one in (before, after):
            assert one.utilization is None
            assert one.unreadable["utilization"] == NOTHING
    assert lately(sampler, HEALTHY).utilization is not None


@pytest.mark.parametrize("gpu", [UNSUPPORTED, OLD])
def test_a_driver_that_keeps_no_samples_is_asked_for_the_moment(sampler: Sampler, gpu: int) -> None:
    lately(sampler, gpu)  # which reads a value: after its window, but in the next
    telemetry = lately(sampler, gpu)
    assert telemetry.utilization is not None
    assert telemetry.utilization.mean == pytest.approx(0.88)
    assert telemetry.sources["utilization"] == "poll"


def test_values_outside_0_to_100_per_cent_are_left_out(sampler: Sampler) -> None:
    telemetry = lately(sampler, IMPOSSIBLE)
    assert telemetry.utilization is None
    assert telemetry.unreadable["utilization"] == NOTHING
    assert telemetry.power_w is not None


def test_a_gpu_that_is_not_there_says_so(sampler: Sampler) -> None:
    now = time.time()
    (nowhere,) = cut(sampler, [(NOWHERE, now - 1, now)])
    assert list(nowhere.unreadable) == ["device"]
    assert "NotFound" in nowhere.unreadable["device"]
