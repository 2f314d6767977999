"""Number of blocks of each GPU, and number of those with telemetry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pytest_ddpscale.run.column_record import IntArray
from pytest_ddpscale.run.columns import ArmColumns
from pytest_ddpscale.run.telemetry import TelemetryColumns

Gpu = tuple[str, str]  # host and UUID


@dataclass(frozen=True, eq=False)
class GpuBlocks:
    """The blocks of a run.

    Attributes:
        measured: of each arm.
    """

    measured: Sequence[ArmColumns] = ()

    @cached_property
    def gpus(self) -> Mapping[Gpu, int]:
        """GPUs that took part in any block, numbered."""
        gpus = dict.fromkeys(gpu for blocks in self.measured for gpu in blocks.ranks.by_gpu)
        return {gpu: i for i, gpu in enumerate(gpus)}

    def watched(self, telemetry: TelemetryColumns) -> Mapping[Gpu, tuple[int, int]]:
        """Number of blocks of each GPU, and number of those with telemetry."""
        counts = np.zeros((2, len(self.gpus)), np.int64)
        places = self._numbers((place.host, place.device) for place in telemetry.places)
        for blocks in self.measured:
            rounds, of_row = np.unique(blocks.numbers, return_inverse=True)
            took_part, is_told = np.zeros((2, len(rounds), len(self.gpus)), np.bool_)
            columns = self._numbers(zip(blocks.ranks.hosts, blocks.ranks.devices, strict=True))
            at, ranks = np.nonzero(blocks.present)
            took_part[of_row[at], columns[ranks]] = True
            rows = telemetry.rows_of_arm(blocks.study, blocks.arm)
            numbers, gpus = telemetry.round[rows], places[telemetry.place[rows]]
            is_known = np.isin(numbers, rounds) & (gpus >= 0)
            is_told[np.searchsorted(rounds, numbers[is_known]), gpus[is_known]] = True
            counts += took_part.sum(axis=0), (took_part & is_told).sum(axis=0)
        return {gpu: (int(counts[0, i]), int(counts[1, i])) for gpu, i in self.gpus.items()}

    def _numbers(self, gpus: Iterable[Gpu]) -> IntArray:
        """Numbers in `gpus`; -1 for any other."""
        return np.array([self.gpus.get(gpu, -1) for gpu in gpus], np.int64)
