"""What rank 0 writes, kept in lists in the place of its agent's pipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from pytest_ddpscale.run.rank_folder import RecordSink
from pytest_ddpscale.run.record_lines import AnyRecord, OfDevices
from pytest_ddpscale.run.records import ArmProfile, StudyEnd, StudyMemory
from pytest_ddpscale.worker.context import RankContext, RankProgress
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import Device


class KeptRecords(RecordSink):
    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.records: list[AnyRecord] = []
        self.memory: list[StudyMemory] = []
        self.profiles: list[ArmProfile] = []
        self.after_study: Callable[[], object] = lambda: None

    def append_records(self, records: Sequence[AnyRecord]) -> None:
        self.profiles += [record for record in records if isinstance(record, ArmProfile)]
        self.memory += [record for record in records if isinstance(record, StudyMemory)]
        self.records += [record for record in records if not isinstance(record, OfDevices | StudyMemory)]
        if any(isinstance(record, StudyEnd) for record in records):
            self.after_study()


def context_on_cpu(
    device: Device, control: Control, timeout: timedelta, *, sink: RecordSink | None = None,
    progress: RankProgress | None = None, deadline_unix_s: float | None = None, steered: bool = False,
) -> RankContext:  # fmt: skip
    """Of a rank whose device nobody samples."""
    sink = sink or KeptRecords()
    progress = progress or RankProgress()
    return RankContext(device, control, progress, sink, None, timeout, deadline_unix_s, steered=steered)
