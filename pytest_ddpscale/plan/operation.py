"""Operations of probes, which are short tests of a GPU or a group of GPUs without training a model.

Its name defines an operation completely: ``matmul-bf16``, ``matmul-bf16-10240`` (rows and columns, else those of the
device type), ``memory-copy``, ``host-to-device``, ``device-to-host``, ``all-reduce-32mib``, ``all-gather-1gib``,
``reduce-scatter-25mib``, ``broadcast-4kib``, ``reduce-4kib``, ``all-to-all-1mib``, ``send-recv-256mib``.

Probes find broken links that weak scaling at full batch hides: a step of 430 ms hides an all-reduce of 20 ms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from pytest_ddpscale.plan.words import DeviceType

MatmulPrecision = Literal["fp32", "fp16", "bf16", "fp8"]
# Rows and columns that a name may have. Half-precision units need multiples of 8, those of fp8 of 16; below the least,
# which is a CPU's default, a product times its launch.
MATRIX_STEP, FEWEST_ROWS, MOST_ROWS = 16, 512, 65536
# Far larger than any cache (B200: 126 MB of L2), except for the largest ones of CPUs.
_COPIED: Mapping[DeviceType, int] = {"cuda": 2**30, "cpu": 2**26}
_COPIED_TO_HOST: Mapping[DeviceType, int] = {"cuda": 2**28, "cpu": 2**26}


class OperationKind(NamedTuple):
    """A kind of operations.

    Attributes:
        metric: name of the metric that it measures.
        named: what its name says besides: a precision, which a matrix size may follow; a message size; or nothing.
        buffer_bytes: size of a single device's buffer, by device type.
        counts: how often each byte of the buffer counts: within a device it is read and written.
        bus: factor from message bytes per second to bus bandwidth, for a number of ranks.
        peers: the limit of `peers:` by which its places are compared; empty if they are not. Those of ``memory`` are
            all alike; for ``host`` and ``pairs`` the same position on other nodes is, as nodes are wired alike.
    """

    metric: str
    named: Literal["precision", "size", ""] = ""
    buffer_bytes: Mapping[DeviceType, int] = {}
    counts: int = 1
    bus: Callable[[int], float] = lambda ranks: 1.0
    peers: Literal["memory", "host", "pairs", ""] = ""


def _shared_evenly(ranks: int) -> float:
    return (ranks - 1) / ranks


# All that there is to declare of a probe: planner, judge, simulator and thresholds read it here, and its work is in
# `worker/work.py`. nccl-tests, doc/PERFORMANCE.md, has the factors; STREAM and nvbandwidth count copied bytes likewise.
KINDS: Mapping[str, OperationKind] = {
    "matmul": OperationKind("matmul_tflops", "precision"),
    "memory-copy": OperationKind("memory_bandwidth_gbps", buffer_bytes=_COPIED, counts=2, peers="memory"),
    "host-to-device": OperationKind("host_bandwidth_gbps", buffer_bytes=_COPIED_TO_HOST, peers="host"),
    "device-to-host": OperationKind("host_bandwidth_gbps", buffer_bytes=_COPIED_TO_HOST, peers="host"),
    "all-reduce": OperationKind("busbw_gbps", "size", bus=lambda ranks: 2 * (ranks - 1) / ranks),
    "all-gather": OperationKind("busbw_gbps", "size", bus=_shared_evenly),
    "reduce-scatter": OperationKind("busbw_gbps", "size", bus=_shared_evenly),
    "broadcast": OperationKind("busbw_gbps", "size"),
    "reduce": OperationKind("busbw_gbps", "size"),
    "all-to-all": OperationKind("busbw_gbps", "size", bus=_shared_evenly),
    "send-recv": OperationKind("pair_bandwidth_gbps", "size", peers="pairs"),
}
COLLECTIVES = tuple(kind for kind, one in KINDS.items() if one.metric == "busbw_gbps")
_UNITS = {"kib": 2**10, "mib": 2**20, "gib": 2**30}
_MOST_OF_UNIT = 9999  # four digits, as `_NAME` has them
_SIZED, _PLAIN = (tuple(kind for kind, one in KINDS.items() if one.named == named) for named in ("size", ""))
_NAME = re.compile(
    rf"(?P<exact>matmul)-(?P<precision>{'|'.join(get_args(MatmulPrecision))})(?:-(?P<rows>[1-9][0-9]{{0,9}}))?"
    rf"|(?P<plain>{'|'.join(_PLAIN)})"
    rf"|(?P<sized>{'|'.join(_SIZED)})-(?P<count>[1-9][0-9]{{0,3}})(?P<unit>{'|'.join(_UNITS)})"
)
NAMES_IN_WORDS = (
    f"matmul-{'|'.join(get_args(MatmulPrecision))}, also with rows and columns such as -10240, {', '.join(_PLAIN)}, "
    f"or {'|'.join(_SIZED)} with a message size such as -32mib"
)


@dataclass(frozen=True)
class Operation:
    """What a probe does.

    Attributes:
        kind: the name without precision or size.
        precision: of a matmul; None for other operations.
        rows: rows and columns of a matmul's square matrices; None for those of the device type, and for other
            operations.
        message_bytes: message size if ranks communicate, as in nccl-tests; None for other operations. For all-gather
            and reduce-scatter it is the size of the whole; for all-to-all, what each rank sends to all ranks, including
            itself.
    """

    kind: str
    precision: MatmulPrecision | None = None
    message_bytes: int | None = None
    rows: int | None = None

    @property
    def named_flops(self) -> float | None:
        """Floating-point operations of a matrix product whose name has its size, 2·n³; None for other operations."""
        return None if self.rows is None else 2.0 * self.rows**3

    def bus_factor(self, ranks: int) -> float:
        """Ratio of bus bandwidth to message bytes per second, for a number of ranks."""
        return KINDS[self.kind].bus(ranks)

    @property
    def is_single_device(self) -> bool:
        """Whether devices do it by themselves, all at once."""
        return self.message_bytes is None


@lru_cache(maxsize=1024)  # hundreds of thousands of records share a few names
def operation_of(name: str) -> Operation | None:
    """The operation of that name; None if there is none."""
    try:
        return operation(name)
    except ValueError:
        return None


@lru_cache(maxsize=1024)
def operation(name: str) -> Operation:
    """The operation of that name. Raises ValueError if there is none."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"unknown probe {name!r}; expected {NAMES_IN_WORDS}")
    rows = int(match["rows"]) if match["rows"] else None
    if rows and rows != (near := min(max(MATRIX_STEP * round(rows / MATRIX_STEP), FEWEST_ROWS), MOST_ROWS)):
        raise ValueError(
            f"{name} has matrices of {rows} rows and columns; expected a multiple of {MATRIX_STEP} from "
            f"{FEWEST_ROWS} to {MOST_ROWS}. Write matmul-{match['precision']}-{near}, or matmul-{match['precision']} "
            "for the default size"
        )
    size = int(match["count"]) * _UNITS[match["unit"]] if match["sized"] else None
    return Operation(match["exact"] or match["plain"] or match["sized"], match["precision"], size, rows)  # type: ignore[arg-type]


def probe_size(size_bytes: int) -> str:
    """A message size as in names: ``32mib``. Raises ValueError if no name has it."""
    for unit, unit_bytes in reversed(_UNITS.items()):
        count, rest = divmod(size_bytes, unit_bytes)
        if not rest and 1 <= count <= _MOST_OF_UNIT:
            return f"{count}{unit}"
    raise ValueError(f"{size_bytes} bytes; expected 1 to {_MOST_OF_UNIT} whole KiB, MiB or GiB")


def size_text(size_bytes: int) -> str:
    """A size for display: ``32 MiB``. Raises as `probe_size`."""
    name = probe_size(size_bytes)
    return f"{name[:-3]} {name[-3].upper()}iB"
