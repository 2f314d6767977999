"""Number of blocks of each GPU, and number of those with telemetry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pytest_ddpscale.run.column_record import IntArray
from pytest_ddpscale.run.columns import ArmColumns
from pytest_ddpscale.run.probe_columns import ProbeColumns
from pytest_ddpscale.run.telemetry import TelemetryColumns

Gpu = tuple[str, str]  # host and UUID


@dataclass(frozen=True, eq=False)
class GpuBlocks:
    """The blocks of a run.

    Attributes:
        measured: study, name of the arm or probe in telemetry, and its measurements.
    """

    measured: Sequence[tuple[str, str, ArmColumns | ProbeColumns]] = ()

    @cached_property
    def gpus(self) -> Mapping[Gpu, int]:
        """GPUs that took part in any block, numbered."""
        gpus = dict.fromkeys(gpu for _, _, blocks in self.measured for gpu in blocks.ranks.by_gpu)
        return {gpu: i for i, gpu in enumerate(gpus)}

    def watched(self, telemetry: TelemetryColumns) -> Mapping[Gpu, tuple[int, int]]:
        """Number of blocks of each GPU, and number of those with telemetry."""
        counts = np.zeros((2, len(self.gpus)), np.int64)
        places = self._numbers((place.host, place.device) for place in telemetry.places)
        for study, name, blocks in self.measured:
            took_part, is_told = np.zeros((2, len(blocks.numbers), len(self.gpus)), np.bool_)
            columns = self._numbers(zip(blocks.ranks.hosts, blocks.ranks.devices, strict=True))
            rounds, ranks = np.nonzero(blocks.present)
            took_part[rounds, columns[ranks]] = True
            rows = telemetry.rows_of_arm(study, name)
            numbers, gpus = telemetry.round[rows], places[telemetry.place[rows]]
            is_known = np.isin(numbers, blocks.numbers) & (gpus >= 0)
            is_told[np.searchsorted(blocks.numbers, numbers[is_known]), gpus[is_known]] = True
            counts += took_part.sum(axis=0), (took_part & is_told).sum(axis=0)
        return {gpu: (int(counts[0, i]), int(counts[1, i])) for gpu, i in self.gpus.items()}

    def _numbers(self, gpus: Iterable[Gpu]) -> IntArray:
        """Numbers in `gpus`; -1 for any other."""
        return np.array([self.gpus.get(gpu, -1) for gpu in gpus], np.int64)
