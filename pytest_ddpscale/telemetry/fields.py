"""Counters that NVML gives as field values: PCIe traffic, NVLink traffic and NVLink errors.

PCIe traffic comes from the byte counters alone (and from GPM, where the GPU has it): nvmlDeviceGetPcieThroughput
blocks for 20 ms in each direction to sample a traffic that comes in bursts, eight GPUs would take a third of a
second a poll, and what it sees is 2 % of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pynvml

from pytest_ddpscale.telemetry.buffers import VALUE_MEMBERS
from pytest_ddpscale.telemetry.nvml_calls import NvmlCalls

# nvml.h, NVLink throughput counters: this scope is the sum over all links.
ALL_LINKS = 0xFFFFFFFF
MOST_LINKS = 18  # of a Hopper or Blackwell GPU; earlier ones have up to 12
_KIB = 1024
# A byte counter of 32 bits wraps several times between two polls.
_WIDE = ("ulVal", "ullVal", "sllVal")


@dataclass(frozen=True)
class FieldCounter:
    """A counter that is the sum of fields.

    Attributes:
        reading: name of the record's field.
        alternatives: sets of NVML_FI_…, of which the first that is answered is used. Names, as an older nvidia-ml-py
            lacks some.
        scopes: of each field: links, or `ALL_LINKS`; of a field that has none, 0.
        is_traffic: whether it counts bytes, for which 32 bits are too few, and not errors.
        scale: to bytes, or to a number of errors.
    """

    reading: str
    alternatives: tuple[tuple[str, ...], ...]
    scopes: Sequence[int]
    is_traffic: bool
    scale: float = 1


COUNTERS = (
    FieldCounter("pcie_tx_bytes_per_s", (("NVML_FI_DEV_PCIE_COUNT_TX_BYTES",),), (0,), True),
    FieldCounter("pcie_rx_bytes_per_s", (("NVML_FI_DEV_PCIE_COUNT_RX_BYTES",),), (0,), True),
    FieldCounter("nvlink_tx_bytes_per_s", (("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",),), (ALL_LINKS,), True, _KIB),
    FieldCounter("nvlink_rx_bytes_per_s", (("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",),), (ALL_LINKS,), True, _KIB),
    FieldCounter(
        "nvlink_errors",
        (
            (
                "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY",
                "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
                "NVML_FI_DEV_NVLINK_ERROR_DL_CRC",
            ),
            # NVLink 5, which corrects and repeats by itself: what got through that
            (
                "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS",
                "NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
                "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
            ),
        ),
        range(MOST_LINKS),
        False,
    ),
)


class FieldCounters:
    """The field counters of one GPU. Which of them it has is found out once.

    Args:
        handle: NVML's, of the GPU.
        asker: of the GPU.
    """

    def __init__(self, handle: Any, asker: NvmlCalls) -> None:
        self._handle, self._asker = handle, asker
        self._used: dict[FieldCounter, list[tuple[int, int]]] | None = None

    def read(self, only_traffic: bool) -> dict[str, float]:
        """Reading → total since the driver was loaded, in bytes or errors; what fails is noted and left out.

        Args:
            only_traffic: without errors, of which each link has counters of its own.
        """
        if self._used is None:
            self._used = self._asker.ask("fields", self._find)
        used = {
            counter: fields for counter, fields in (self._used or {}).items() if counter.is_traffic or not only_traffic
        }
        if not used:
            return {}
        wanted = [field for fields in used.values() for field in fields]
        values = self._asker.ask("fields", lambda: self._values(wanted))
        if values is None:
            return {}
        found = {}
        for counter, fields in used.items():
            total = self._asker.ask(counter.reading, partial(_total, counter, fields, values))
            if total is not None:
                found[counter.reading] = total
        return found

    def _values(self, fields: list[tuple[int, int]]) -> dict[tuple[int, int], Any]:
        answers = pynvml.nvmlDeviceGetFieldValues(self._handle, fields)
        return dict(zip(fields, answers, strict=True))

    def _find(self) -> dict[FieldCounter, list[tuple[int, int]]]:
        found = {}
        for counter in COUNTERS:
            answered, refusal = self._find_fields(counter)
            if answered:
                found[counter] = answered
            else:
                self._asker.refuse(counter.reading, refusal)
        return found

    def _find_fields(self, counter: FieldCounter) -> tuple[list[tuple[int, int]], Exception]:
        """The fields of the first alternative that has any, and why one has none."""
        refusal: Exception = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        for alternative in counter.alternatives:
            try:
                candidates = [(getattr(pynvml, field), scope) for field in alternative for scope in counter.scopes]
            except AttributeError as error:  # a sum without one of them would be too small
                refusal = error
                continue
            values = self._values(candidates)
            answered = [field for field in candidates if values[field].nvmlReturn == pynvml.NVML_SUCCESS]
            if answered:
                return answered, refusal
            refusal = pynvml.NVMLError(values[candidates[0]].nvmlReturn)
        return [], refusal


def _total(counter: FieldCounter, fields: list[tuple[int, int]], values: dict[tuple[int, int], Any]) -> float:
    """The sum over the fields.

    Raises:
        pynvml.NVMLError: one of them was not answered: without it the sum would fall.
        ValueError: the counter has too few bits.
    """
    total = 0.0
    for field in fields:
        answer = values[field]
        if answer.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(answer.nvmlReturn)
        member = VALUE_MEMBERS[answer.valueType]
        if counter.is_traffic and member not in _WIDE:
            raise ValueError("the driver's counter has 32 bits and wraps between two polls")
        total += getattr(answer.value, member)
    return total * counter.scale
