"""Operations of probes, which are short tests of a GPU or a group of GPUs without training a model.

Its name defines an operation completely: ``matmul-bf16``, ``memory-copy``, ``host-to-device``, ``device-to-host``,
``all-reduce-32mib``, ``all-gather-1gib``, ``reduce-scatter-25mib``, ``broadcast-4kib``, ``reduce-4kib``,
``all-to-all-1mib``, ``send-recv-256mib``.

Probes find broken links that weak scaling at full batch hides: a step of 430 ms hides an all-reduce of 20 ms.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

OperationKind = Literal[
    "matmul",
    "memory-copy",
    "host-to-device",
    "device-to-host",
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "broadcast",
    "reduce",
    "all-to-all",
    "send-recv",
]
MatmulPrecision = Literal["fp32", "fp16", "bf16", "fp8"]

COLLECTIVES: tuple[OperationKind, ...] = (
    "all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce", "all-to-all",
)  # fmt: skip
# Of a single device; all devices do them at once, as in real use.
SINGLE_DEVICE: tuple[OperationKind, ...] = ("matmul", "memory-copy", "host-to-device", "device-to-host")
_SIZED = "|".join((*COLLECTIVES, "send-recv"))
_NAME = re.compile(
    r"matmul-(?P<precision>fp32|fp16|bf16|fp8)|(?P<plain>memory-copy|host-to-device|device-to-host)"
    rf"|(?P<sized>{_SIZED})-(?P<count>[1-9][0-9]{{0,3}})(?P<unit>kib|mib|gib)"
)
_UNITS = {"kib": 2**10, "mib": 2**20, "gib": 2**30}
NAMES_IN_WORDS = (
    "matmul-fp32|fp16|bf16|fp8, memory-copy, host-to-device, device-to-host, "
    f"or {_SIZED} with a message size such as -32mib"
)


@dataclass(frozen=True)
class Operation:
    """What a probe does.

    Attributes:
        kind: the name without precision or size.
        precision: of a matmul; None for other operations.
        message_bytes: message size if ranks communicate, as in nccl-tests; None for other operations. For all-gather
            and reduce-scatter it is the size of the whole; for all-to-all, what each rank sends to all ranks, including
            itself.
    """

    kind: OperationKind
    precision: MatmulPrecision | None = None
    message_bytes: int | None = None

    @property
    def is_single_device(self) -> bool:
        """Whether devices do it by themselves, all at once."""
        return self.kind in SINGLE_DEVICE


@lru_cache(maxsize=1024)  # hundreds of thousands of records share a few names
def operation_of(name: str) -> Operation | None:
    """The operation of that name; None if there is none."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    size = int(match["count"]) * _UNITS[match["unit"]] if match["sized"] else None
    return Operation(match["plain"] or match["sized"] or "matmul", match["precision"], size)  # type: ignore[arg-type]


def operation(name: str) -> Operation:
    """The operation of that name. Raises ValueError if there is none."""
    found = operation_of(name)
    if found is None:
        raise ValueError(f"unknown probe {name!r}; expected {NAMES_IN_WORDS}")
    return found


def name_with_size(kind: OperationKind, message_bytes: int) -> str:
    """Name of an operation that sends messages. Raises ValueError if a name cannot have their size."""
    unit = max((unit for unit in _UNITS if message_bytes % _UNITS[unit] == 0), key=_UNITS.__getitem__, default="kib")
    name = f"{kind}-{message_bytes / _UNITS[unit]:g}{unit}"
    if operation_of(name) is None:
        raise ValueError(f"messages of {message_bytes} bytes; expected 1 KiB or a multiple")
    return name
