"""Environment variables that decide what a run measures, whatever the hardware."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

_OFF = "0|n|no|f|false|off|"
_FAR = "P(XB|XN|HB|2C)|SYS|[2-5]|"
_TCP = ("tcp", "unmanaged-ports")


class Variable(NamedTuple):
    """One variable, or all whose names match.

    Attributes:
        name: a trailing ``*`` matches any ending.
        effect: ``reroutes``: paths of the hardware stay unused, which this run does not test; ``slows``: speeds are not
            the hardware's; ``noted``: neither.
        where: paths between GPUs of a ``node``, the ``net`` between nodes, ``ranks`` that communicate; empty for all.
        what: what it does, as a clause.
        unset: regular expression, without case, of values that change nothing: usually 0, none and the default.
        explains: faults that the check `transport` finds by it.
    """

    name: str
    effect: Literal["reroutes", "slows", "noted"]
    where: Literal["node", "net", "ranks", ""]
    what: str
    unset: str = _OFF
    explains: tuple[str, ...] = ()


VARIABLES = (
    Variable("NCCL_P2P_DISABLE", "reroutes", "node", "GPUs of a node do not reach each other", explains=("detour",)),
    # A level is the farthest apart that may use it: LOC, or 0, is nobody.
    Variable("NCCL_P2P_LEVEL", "reroutes", "node", "only near GPUs reach each other", "SYS|[45]|", ("detour",)),
    Variable("NCCL_SHM_DISABLE", "reroutes", "node", "ranks of a node share no memory"),
    Variable("NCCL_NVLS_ENABLE", "reroutes", "node", "the NVLink switch does not reduce", "[12]|"),
    Variable("NCCL_IB_DISABLE", "reroutes", "net", "InfiniBand and RoCE are not used", _OFF, _TCP),
    Variable("NCCL_IB_HCA", "reroutes", "net", "only some adapters are used", "", _TCP),
    Variable("NCCL_NET", "reroutes", "net", "TCP is used between nodes", "(?!socket$).*", _TCP),
    Variable("NCCL_NET_GDR_LEVEL", "reroutes", "net", "adapters reach only near GPUs", _FAR, ("host-memory",)),
    Variable("NCCL_CROSS_NIC", "reroutes", "net", "paths cross between rails", "[02]|"),
    Variable("CUDA_LAUNCH_BLOCKING", "slows", "", "each kernel is waited for"),
    Variable("PYTORCH_NO_CUDA_MEMORY_CACHING", "slows", "", "torch allocates each tensor anew"),
    Variable("TORCH_DISTRIBUTED_DEBUG", "slows", "ranks", "each collective is checked", "(?!detail$).*"),
    Variable("TORCH_NCCL_BLOCKING_WAIT", "slows", "ranks", "each collective is waited for"),
    Variable("NCCL_ALGO", "slows", "ranks", "NCCL does not choose its algorithm"),
    Variable("NCCL_PROTO", "slows", "ranks", "NCCL does not choose its protocol"),
    Variable("OMP_*", "noted", "", "threads of each rank", "[01]|"),
    Variable("CUDA_DEVICE_MAX_CONNECTIONS", "noted", "", "queues of each GPU", "[08]|"),
    Variable("TORCH_DISTRIBUTED_DEBUG", "noted", "", "a log level", "(?!info$).*"),
    Variable("TORCH_CPP_LOG_LEVEL", "noted", "", "a log level", "error|warning|[0-3]|"),
    Variable("TORCH_LOGS", "noted", "", "a log level"),
)  # fmt: skip


def variable_of(name: str, value: str) -> Variable | None:
    """The variable of this name, if this value sets it."""
    for variable in VARIABLES:
        if fnmatchcase(name, variable.name) and not re.fullmatch(variable.unset, value.strip(), re.IGNORECASE):
            return variable
    return None


def is_selected(adapter: str, hca: str) -> bool:
    """Whether NCCL_IB_HCA selects it: by the beginning of its name, or with ``=`` by its name; ``^`` excludes."""
    is_exact, names = "=" in hca[:2], {name.partition(":")[0] for name in hca.lstrip("^=").split(",")}
    is_named = adapter in names if is_exact else adapter.startswith(tuple(names))
    return is_named != hca.startswith("^")
