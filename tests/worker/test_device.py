"""Devices: timing, and what they refuse."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pytest_ddpscale.worker.device import CpuDevice, open_device
from pytest_ddpscale.worker.forward_hooks import Forwards


def test_cpu_steps_are_timed_by_the_wall_clock() -> None:
    timing = CpuDevice().time_steps(lambda: time.sleep(0.02), 5)
    assert len(timing.step_s) == 5
    assert all(0.02 <= step_s < 1 for step_s in timing.step_s)
    assert timing.block_s >= 0.1


def test_a_cpu_that_sleeps_is_not_busy_and_one_that_computes_is() -> None:
    def compute() -> None:
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass

    idle = CpuDevice().time_steps(lambda: time.sleep(0.1), 3).utilization
    busy = CpuDevice().time_steps(compute, 3).utilization
    assert idle is not None
    assert busy is not None
    # Both get less of a core that others use too, so they are compared with each other.
    assert idle < 0.1
    assert busy > 3 * idle


def test_a_cpu_does_not_count_what_tensors_hold() -> None:
    assert CpuDevice().allocated_bytes() == 0


def test_fp16_is_refused_on_cpu_in_words() -> None:
    with pytest.raises(RuntimeError, match="fp16 needs a GPU; expected fp32 or bf16"):
        CpuDevice().check("fp16")
    CpuDevice().check("bf16")


class TestGpus:
    """Without one: in which order a block asks torch.cuda for what. How it times a real GPU is tests/integration's."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        asked: list[str] = []

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                self.at = -1

            def record(self) -> None:
                asked.append("record")
                self.at = asked.count("step")

            def elapsed_time(self, end: Event) -> float:
                return 1000.0 * (end.at - self.at)

        def answer(name: str) -> Callable[..., int]:
            def remember(*_: object) -> int:
                asked.append(name)
                return 0

            return remember

        for name in ("set_device", "reset_peak_memory_stats", "synchronize", "max_memory_allocated"):
            monkeypatch.setattr(torch.cuda, name, answer(name))
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        properties = SimpleNamespace(name="Tested GPU", uuid="0", major=8, minor=0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80"])
        return asked

    def test_start_their_clock_when_they_are_idle_and_stop_it_when_they_are_done(self, asked: list[str]) -> None:
        timing = open_device("cuda", 0).time_steps(lambda: asked.append("step"), 2)
        timed = ["record", "step", "record", "step", "record"]
        assert asked[1:] == ["reset_peak_memory_stats", "synchronize", *timed, "synchronize", "max_memory_allocated"]
        assert (timing.step_s, timing.block_s) == ((1.0, 1.0), 2.0)
        assert (timing.forward_s, timing.unread) == (None, {})

    def test_time_forward_passes_by_events_that_are_there_before(
        self, asked: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        event: Callable[..., torch.cuda.Event] = torch.cuda.Event

        def new_event(*, enable_timing: bool) -> torch.cuda.Event:
            asked.append("event")
            return event(enable_timing=enable_timing)

        monkeypatch.setattr(torch.cuda, "Event", new_event)
        model = Asked(asked)
        timing = open_device("cuda", 0).time_steps(lambda: model(), 2, Forwards(model, 1))
        made = ["reset_peak_memory_stats", *["event"] * (3 + 2 * 2)]
        timed = ["record", *["record", "step", "record", "record"] * 2]
        assert asked[1:] == [*made, "synchronize", *timed, "synchronize", "max_memory_allocated"]
        assert (timing.forward_s, timing.block_s, timing.unread) == (2.0, 2.0, {})

    @pytest.mark.parametrize("made", [0, 1, 3])
    def test_have_no_reading_of_another_number_of_forward_passes(self, asked: list[str], made: int) -> None:
        model = Asked(asked)

        def step() -> None:
            for _ in range(made):
                model()

        timing = open_device("cuda", 0).time_steps(step, 2, Forwards(model, 2))
        assert timing.forward_s is None
        assert list(timing.unread) == ["forward_s"]


class Asked(nn.Module):
    """A model that only says that it was asked."""

    def __init__(self, asked: list[str]) -> None:
        super().__init__()
        self.asked = asked

    def forward(self) -> None:
        self.asked.append("step")


def test_a_rank_without_a_gpu_is_refused_in_words() -> None:
    with pytest.raises(RuntimeError, match="has no GPU: torch sees"):
        open_device("cuda", torch.cuda.device_count())


def test_a_rank_without_a_gpu_says_why_cuda_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old\nPlease update it")

    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(RuntimeError, match=r"sees \d+ \(The NVIDIA driver on your system is too old\)$"):
        open_device("cuda", torch.cuda.device_count())


def test_a_gpu_that_takes_no_process_says_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: int) -> None:
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    with pytest.raises(RuntimeError, match=r"local rank 1 takes no process \(busy or unavailable\).*nvidia-smi -i"):
        open_device("cuda", 1)
