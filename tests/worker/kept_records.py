"""A rank without an agent: what it writes is kept in a list, and nobody samples its device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from torch.distributed import HashStore

from pytest_ddpscale.run.block import Unsupported
from pytest_ddpscale.run.rank_folder import RecordSink
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import RoundEnd
from pytest_ddpscale.worker.context import RankContext, RankProgress
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice, Device, Forwards, Timing
from tests.builders.trained import TIMEOUT

Kind = TypeVar("Kind")


class KeptRecords(RecordSink):
    def __init__(self, folder: Path = Path("/nowhere")) -> None:
        super().__init__(folder)
        self.records: list[AnyRecord] = []

    def append_records(self, records: Sequence[AnyRecord]) -> None:
        self.records += records

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def rounds(self) -> list[tuple[int, list[str]]]:
        return [(record.round, list(record.arms)) for record in self.of(RoundEnd)]

    @property
    def unsupported(self) -> list[tuple[str, Sequence[int], Any]]:
        return [(record.arm, record.ranks, record.reasons) for record in self.of(Unsupported)]


def control_of_one() -> Control:
    return Control(HashStore(), rank=0, local_rank=0, world_size=1)


def context_on_cpu(device: Device, control: Control, timeout: timedelta = TIMEOUT, **fields: Any) -> RankContext:
    usual = {"sampler": None, "sink": KeptRecords(), "progress": RankProgress()}
    return RankContext(device, control, timeout=timeout, **(usual | fields))


class SteadyCpu(CpuDevice):
    """Says that each iteration took a given time, but the first of several: a shared machine's own is no test."""

    disturbed_s = 2e-3

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.iterations = 0
        self.on_step = self.count

    def count(self) -> None:
        self.iterations += 1

    def time_steps(self, step: Callable[[], None], steps: int, forwards: Forwards | None = None) -> Timing:
        before = self.iterations
        for _ in range(steps):
            step()
        usual_s = self.seconds * max(1, self.iterations - before)
        step_s = (usual_s if steps == 1 else self.disturbed_s, *[usual_s] * (steps - 1))
        return Timing(0.0, step_s, sum(step_s), None, None)
