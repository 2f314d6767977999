"""Devices: timing of steps and of the forward passes within, memory, and what they refuse."""

from __future__ import annotations

import copy
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import STEPS_BEFORE_TIMING
from pytest_ddpscale.run.records import RankMemory
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.device import CpuDevice, Forwards, be_ended_first, open_device, resident_memory
from pytest_ddpscale.worker.training import Trainer
from tests.builders.trained import TIMEOUT, TINY, study

from .ranks import on_two_ranks

KIB, MIB = 2**10, 2**20
ACCUMULATING = Arm("ddp", 1, 4, variant=Variant(accumulation_steps=2))
TRAINING = (Arm("alone", 1, 2), Arm("each", 1, 2), Arm("no_sync", 1, 2), Arm("ddp", 1, 2), ACCUMULATING)


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


def test_the_peak_is_told_apart_from_pages_that_others_use_as_well(tmp_path: Path) -> None:
    status = "Name:\tpython\nVmPeak:\t 900 kB\nVmHWM:\t 500 kB\nVmRSS:\t 300 kB\nRssFile:\t 100 kB\nRssShmem:\t 20 kB\n"
    (tmp_path / "status").write_text(status)
    assert resident_memory(tmp_path) == RankMemory(own_bytes=380 * KIB, shared_bytes=120 * KIB)


def test_what_was_given_back_still_counts() -> None:
    before = CpuDevice().memory_held()
    hoard = bytearray(200 * MIB)
    hoard[::4096] = b"x" * len(hoard[::4096])
    held = len(hoard)
    del hoard
    after = CpuDevice().memory_held()
    assert after.own_bytes >= before.own_bytes
    assert after.own_bytes >= held
    assert after.total_bytes is None


def test_the_peak_of_a_block_is_not_that_of_whoever_launched_the_rank() -> None:
    hoard = bytearray(800 * MIB)
    hoard[::4096] = b"x" * len(hoard[::4096])
    rank = (
        "from pytest_ddpscale.worker.device import CpuDevice as Cpu;"
        "print(Cpu().time_steps(lambda: None, 1).peak_memory_bytes)"
    )
    peak = subprocess.run([sys.executable, "-c", rank], capture_output=True, text=True, check=True, timeout=120).stdout
    assert 50 * MIB < int(peak) < len(hoard)


def test_a_rank_is_the_first_that_the_kernel_ends(tmp_path: Path) -> None:
    be_ended_first(tmp_path)
    assert (tmp_path / "oom_score_adj").read_text() == "1000"
    be_ended_first(tmp_path / "nowhere")  # where it cannot be said it is left unsaid


def test_of_a_gpu_all_counts_that_is_in_use_with_torch_at_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "device_count": 1, "set_device": None, "mem_get_info": (300, 1000), "memory_reserved": 500,
        "max_memory_reserved": 550, "get_arch_list": ["sm_80"],
        "get_device_properties": SimpleNamespace(name="Tested GPU", uuid="0", major=8, minor=0),
    }  # fmt: skip
    for name, value in said.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    # 700 are in use, 200 of them by NCCL, CUDA and others.
    assert open_device("cuda", 0).memory_held() == RankMemory(own_bytes=750, total_bytes=1000)


def hooks_on(model: nn.Module) -> int:
    return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())


def arms_of(*arms: Arm, workload: Any = TINY) -> StudyArms:
    return StudyArms(study(*arms, workload=workload), CpuDevice(), 0, Layout(1, 1), TIMEOUT)


def test_every_training_arm_times_its_forward_passes_and_keeps_no_hook(gloo_of_one: None) -> None:
    arms = arms_of(*TRAINING)
    for arm in TRAINING:
        timing = arms.time_block(arm, 4)
        assert timing.forward_s is not None
        assert 0 < timing.forward_s < timing.block_s
        assert timing.unread == {}
        assert hooks_on(arms._replicas.of(arm).weights.model) == 0
        assert hooks_on(copy.deepcopy(arms.model)) == 0
    arms.close()


def test_only_timed_steps_have_hooks(gloo_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    arms, seen, step = arms_of(*TRAINING), list[int](), Trainer.__call__

    def watched(trainer: Trainer) -> None:
        seen.append(hooks_on(arms.model))
        step(trainer)

    monkeypatch.setattr(Trainer, "__call__", watched)
    arms.time_block(TRAINING[0], 4)
    assert seen == [0] * STEPS_BEFORE_TIMING + [2] * 4
    arms.close()


def test_forward_passes_alone_have_none(gloo_of_one: None) -> None:
    infer = Arm("infer", 1, 2)
    arms = arms_of(TRAINING[0], infer)
    timing = arms.time_block(infer, 3)
    assert (timing.forward_s, timing.unread) == (None, {})
    arms.close()


@pytest.mark.parametrize("arm", [TRAINING[0], TRAINING[3]], ids=lambda arm: arm.name)
def test_a_compiled_arm_has_none(gloo_of_one: None, monkeypatch: pytest.MonkeyPatch, arm: Arm) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, mode, *, dynamic: model)
    arms = arms_of(arm, workload=replace(TINY, compile=True))
    timing = arms.time_block(arm, 3)
    assert (timing.forward_s, timing.unread) == (None, {})
    arms.close()


def test_an_exception_in_any_part_of_a_step_leaves_no_hook(gloo_of_one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = arms_of(*TRAINING)
    arms.time_block(TRAINING[0], 1)
    for place, name in (
        (nn.functional, "cross_entropy"),
        (nn.Conv2d, "forward"),
    ):  # behind the forward pass, and within it
        calls = 0
        usual = getattr(place, name)

        def fail(*inputs: Any, usual: Any = usual) -> Any:
            nonlocal calls
            calls += hooks_on(arms.model) > 0
            if calls == 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return usual(*inputs)

        with monkeypatch.context() as patched:
            patched.setattr(place, name, fail)
            with pytest.raises(torch.OutOfMemoryError):
                arms.time_block(TRAINING[0], 4)
        assert calls == 3, "it failed in a timed step"
        assert hooks_on(arms.model) == 0
    arms.close()


@pytest.mark.parametrize(("passes", "made"), [(2, 1), (1, 2), (1, 0)])
def test_another_number_of_passes_is_no_reading(passes: int, made: int) -> None:
    model = nn.Linear(2, 2)

    def step() -> None:
        for _ in range(made):
            model(torch.ones(1, 2))

    timing = CpuDevice().time_steps(step, 3, Forwards(model, passes))
    assert timing.forward_s is None
    saw = f"hooks on the model saw {3 * made} forward passes begin and {3 * made} end; expected {3 * passes}"
    assert timing.unread == {"forward_s": saw}


def test_the_time_is_that_of_all_passes() -> None:
    class Slow(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            time.sleep(0.02)
            return images

    model = Slow()

    def step() -> None:
        for _ in range(2):
            model(torch.ones(1))
            time.sleep(0.05)

    forward_s = CpuDevice().time_steps(step, 3, Forwards(model, 2)).forward_s
    assert forward_s is not None
    assert 6 * 0.02 <= forward_s < 6 * 0.05


class OftenLate(CpuDevice):
    """Of rank 1: before each timed step it does something else for a while."""

    late_s = 0.05

    def time_steps(self, step: Any, steps: int, forwards: Forwards | None = None) -> Any:
        def late() -> None:
            time.sleep(self.late_s)
            step()

        return super().time_steps(late, steps, forwards)


def _one_late(rank: int) -> tuple[float, float]:
    arm = Arm("ddp", 2, 2)
    arms = StudyArms(study(arm), OftenLate() if rank else CpuDevice(), rank, Layout(1, 2), TIMEOUT)
    timing = arms.time_block(arm, 8)
    arms.close()
    assert timing.forward_s is not None
    return timing.block_s / 8, timing.forward_s / 8


def test_a_rank_that_waits_for_a_late_one_keeps_its_own_pace(tmp_path: Path) -> None:
    (step_s, forward_s), (late_step_s, _) = on_two_ranks(_one_late, tmp_path)
    assert step_s > 0.8 * OftenLate.late_s, "it waited"
    assert late_step_s > OftenLate.late_s
    assert forward_s < step_s - 0.8 * OftenLate.late_s, "not in the forward passes"
