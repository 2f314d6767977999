"""Profile steps of every training arm of a study with torch.profiler, after the timed rounds.

Rank 0, which is in every arm, records; all ranks of an arm run the same steps. A failure of the profiler costs only the
profile, because measurements are written before.
"""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.rank_folder import LOGS, MOST_TRACE_BYTES, TRACES
from pytest_ddpscale.run.records import ArmProfile
from pytest_ddpscale.util.owned_folder import owned_folder
from pytest_ddpscale.worker import trace_analysis
from pytest_ddpscale.worker.arms import StudyArms
from pytest_ddpscale.worker.rank_context import RankContext, arm_order
from pytest_ddpscale.worker.trace_analysis import TracedStep

_LONGEST_PROBLEM = 400
_NO_KERNELS = (
    "torch.profiler saw no GPU kernel; CUPTI may lack privileges (then the rank's stderr.log has "
    "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES). Load the driver with NVreg_RestrictProfilingToAdminUsers=0, and attach no "
    "other profiler"
)


class StepProfiler:
    """torch.profiler around steps, as a context; its errors are kept as `problem`, and steps go on."""

    def __init__(self, device_type: DeviceType) -> None:
        self.problem = ""
        self._device_type = device_type
        self._profile: torch.profiler.profile | None = None

    def __enter__(self) -> StepProfiler:
        """Begin to record, if possible."""
        activities = [ProfilerActivity.CPU]
        activities += [ProfilerActivity.CUDA] if self._device_type == "cuda" else []
        if not torch.profiler.kineto_available():
            self.problem = "this build of torch has no Kineto, so torch.profiler writes no trace"
            return self
        try:
            profile = torch.profiler.profile(activities=activities, record_shapes=True)  # for message sizes
            profile.start()
        except Exception as error:
            self.problem = in_words(error)
        else:
            self._profile = profile
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop recording. Exceptions of steps pass through."""
        if self._profile is not None:
            try:
                self._profile.stop()
            except Exception as problem:
                self.problem, self._profile = in_words(problem), None

    def write_trace(self, path: Path) -> str:
        """Write the Chrome trace, gzipped if the path's suffix says so. Returns the error, or an empty string."""
        assert self._profile is not None
        try:
            self._profile.export_chrome_trace(str(path))
        except Exception as error:
            return in_words(error)
        return ""


class StudyProfile:
    """The profile of one study. All ranks of the gang construct one and run it together."""

    def __init__(self, study: Study, arms: StudyArms, context: RankContext, seed: int) -> None:
        self._study = study
        self._arms = arms
        self._context = context
        self._seed = seed
        self._profiled = [arm for arm in study.arms if not arm.infers]
        self._traces: dict[str, list[Path]] = {arm.name: [] for arm in self._profiled}
        self._problems: dict[str, str] = {}

    def run(self) -> None:
        """Run the steps, one of each arm per pass, so drift affects all arms equally."""
        context, study = self._context, self._study
        with owned_folder("traces") as folder:
            for number in range(-1, context.profile_steps):  # the first pass warms up the profiler and is thrown away
                key = f"{study.id}/profile/{number}"
                if context.control.decided(f"{key}/late", lambda: context.is_out_of_time):
                    break
                for arm in arm_order(self._profiled, self._seed, f"{study.id}/profile", number):
                    self._step(arm, number, f"{key}/{arm.name}", folder)
            context.progress.phase = "reading the profile"
            if context.control.rank == 0:
                for arm in self._profiled:
                    context.sink.append_record(self._profile_of(arm))
        self._together(f"{study.id}/profile/done")

    def _step(self, arm: Arm, number: int, key: str, folder: Path) -> None:
        """Run one step on the ranks of an arm, while all others are idle."""
        context, path = self._context, folder / f"{number}-{arm.name}.json.gz"
        context.progress.arm, context.progress.round, context.progress.phase = arm.name, None, "profile"
        if context.control.rank == 0:
            profiler = StepProfiler(_device_type(context))
            self._arms.time_block(arm, 1, profiler)
            problem = profiler.problem or profiler.write_trace(path)
            if problem:
                self._problems.setdefault(arm.name, problem)
            elif number >= 0:
                self._traces[arm.name].append(path)
        elif context.control.rank in context.control.layout.ranks([arm]):
            self._arms.time_block(arm, 1)
        context.progress.phase = "gathering"
        self._together(key)

    def _together(self, key: str) -> None:
        """All ranks wait for rank 0."""
        if self._context.control.rank == 0:
            self._context.control.say(key, True)
        else:
            self._context.control.wait_for(key)

    def _profile_of(self, arm: Arm) -> ArmProfile:
        """The profile of an arm, or why there is none."""
        about: Callable[..., ArmProfile] = partial(
            ArmProfile, study=self._study.id, arm=arm.name, gang=self._context.gang, rank=0
        )
        problem = self._problems.get(arm.name, "there was no time left for it (--ddp-budget)")
        read: list[tuple[TracedStep, Path]] = []
        for path in self._traces[arm.name]:
            try:
                read += [(step, path) for step in read_steps(path, _device_type(self._context))]
            except Exception as error:  # unexpected formats of torch versions cost only the profile
                problem = in_words(error)
        if not read:
            return about(problem=problem)
        try:
            typical = trace_analysis.typical_step([step for step, _ in read])
            path = next(path for step, path in read if step is typical)
            return about(trace=self._kept(path, arm), **numbers_of([step for step, _ in read]))
        except Exception as error:  # as above
            return about(problem=in_words(error))

    def _kept(self, path: Path, arm: Arm) -> str:
        """Store a trace for the node's agent to send. Returns its path in the run directory; empty if that failed."""
        name = re.sub(r"[^\w@.-]+", "-", f"gang-{self._context.gang}-rank-0-{self._study.id}-{arm.name}") + ".json.gz"
        place = self._context.sink.folder / LOGS / TRACES
        try:
            if path.stat().st_size > MOST_TRACE_BYTES:
                return ""
            place.mkdir(exist_ok=True)
            shutil.copyfile(path, place / name)
        except OSError:
            return ""
        return f"{TRACES}/{name}"


def read_steps(path: Path, device_type: DeviceType) -> list[TracedStep]:
    """The steps in a trace.

    Raises:
        ValueError: it has no steps, or no GPU kernels.
        OSError: it cannot be read.
    """
    events = trace_analysis.read_trace(gzip.decompress(path.read_bytes()))
    if device_type == "cuda" and not any(event.cat == "kernel" for event in events):
        raise ValueError(_NO_KERNELS)
    return trace_analysis.traced_steps(events, device_type)


def numbers_of(steps: Sequence[TracedStep]) -> dict[str, Any]:
    """Fields of an `ArmProfile` from steps."""
    profiled = tuple(map(trace_analysis.profiled_step, steps))
    return {"steps": profiled, "buckets": trace_analysis.buckets_of(steps)}


def in_words(error: Exception) -> str:
    """Type and message of an error, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_PROBLEM]


def _device_type(context: RankContext) -> DeviceType:
    return "cuda" if context.device.torch_device.type == "cuda" else "cpu"
