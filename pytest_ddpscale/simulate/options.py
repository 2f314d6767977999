"""What can be asked of a simulated cluster: its options and its faults, each declared once.

Every command imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import operation_of
from pytest_ddpscale.settings import one_of, read_value

# Faults of a GPU that its node reports: uncorrectable memory errors, a quarter of the PCIe lanes, an NVLink that is
# down, and clocks throttled by heat.
GPU_FAULTS = ("ecc", "lanes", "nvlink", "clock")
ALL = "all"  # instead of a rank, for faults that can affect all ranks


def number(least: float, most: float, kind: type[int | float] = float) -> Callable[[str], Any]:
    """Make a parser of a number from `least` to `most`."""

    def parse(text: str) -> Any:
        try:
            if least <= (value := kind(text)) <= most:
                return value
        except ValueError:
            pass
        raise ValueError(f"a {'whole ' if kind is int else ''}number from {least} to {most}")

    return parse


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _probe(name: str) -> str:
    if operation_of(name) is None:
        raise ValueError("a probe such as memory-copy")
    return name


# How a value is read, by what stands for it in help.
READ: dict[str, Callable[[str], Any]] = {
    "SKU": str, "N": number(1, 10**6, int), "NAME,…": _names, "S": number(0, 2**63, int),
    "SD": number(0, 0.2), "R": number(0, 0.99), "P": number(0, 1),
}  # fmt: skip


def _option(metavar: str, text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"metavar": metavar, "help": text})


# fmt: off
@dataclass(frozen=True)
class ClusterOptions:
    """Options of a simulated cluster: those of `ddpscale simulate`, and two that only Python has.

    Attributes:
        nic_gbps: bandwidth between nodes, in GB/s for each GPU in one direction: one NDR400 port for two GPUs, or one
            HDR200 port for each, as in a DGX A100.
        unwaited: efficiency above the published one that GPUs exactly alike would reach, before the wait for the
            slowest of noisy steps (0.4 points on 8 GPUs at 0.3 %). The published nodes leave room for 0 to 0.011: their
            clocks differ by 3 %, but how long they waited was not published. Less than 0 is more communication.
    """

    gpu_sku: str = _option("SKU", "a name or alias in the thresholds file", MISSING)
    gpus: int | None = _option("N", "GPUs of the cluster; default: the largest requirement's")
    gpus_per_node: int = _option("N", "GPUs of each node", 8)
    workloads: tuple[str, ...] | None = _option("NAME,…", "only these workloads; default: all")
    noise: float | None = _option("SD",
        "deviation of a round; default: 0.003, on CPU 0.02")
    gpu_spread: float = _option("SD",
        "relative standard deviation between the GPUs of a node, the same with every --seed", 0.0)
    node_spread: float = _option("SD", "likewise between nodes", 0.0)
    launch_spread: float = _option("SD", "likewise of each node from launch to launch", 0.0)
    nodes_seed: int = _option("S", "seed of what nodes and GPUs differ by: another one gives other nodes", 0)
    correlation: float = _option("R", "correlation of successive rounds (AR(1))", 0.0)
    hiccups: float = _option("P", "share of blocks that take up to 10 standard deviations longer", 0.0)
    heat: float = _option("P", "loss of GPUs that compute without a rest", 0.0)
    nic_gbps: float = 25.0
    unwaited: float = 0.007
# fmt: on


TYPED = {f"--{option.name.replace('_', '-')}": option for option in fields(ClusterOptions) if option.metadata}
# What each kind of fault does, by the form in which it is typed; what is in brackets may be left out.
FAULTS = {
    "slow-gpu:RANK|all:FACTOR": "computes FACTOR times as long",
    "ramp:RANK|all:FACTOR": "slows down linearly, to FACTOR at the end",
    "step:RANK|all:FACTOR:ROUND": "slow-gpu from ROUND of every study on",
    "at-times:RANK|all:FACTOR:ROUNDS": "slow-gpu in one of ROUNDS rounds",
    "throttle:NODE:FACTOR": "its GPUs heat up and slow down by FACTOR",
    "drift:PERCENT": "all GPUs take PERCENT longer at the end",
    # A collective uses the link of neighbours only, as a ring in the order of nodes does.
    "slow-link:NODE|NODE-NODE:SHARE": "a node's links, or one link, keep SHARE",
    "slow-gpu-link:RANK|all:SHARE": "its links inside the node keep SHARE",
    "slow-port:RANK|all:SHARE": "its port to other nodes keeps SHARE",
    # Collectives take other ways.
    "slow-pair:RANK:RANK:SHARE": "messages of two GPUs of a node keep SHARE",
    "lossy-link:NODE:SHARE": "SHARE of its messages takes 0.2 s longer",
    "slow-probe:RANK|all:PROBE:SHARE": "reaches SHARE in that probe",
    "missing-rank:RANK[:ROUND]": "no records from ROUND (1) of a study on",
    "corrupt-rank:RANK": "its results differ in bits",
    f"bad-gpu:RANK:{'|'.join(GPU_FAULTS)}": "fails that node check",
}
FORMS = {form.partition(":")[0]: form for form in FAULTS}
# Attribute of a fault and how it is read, by its part of the form; all other parts are places.
_PARTS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "FACTOR": ("size", number(1, 1000)),
    "SHARE": ("size", number(1e-6, 1)),
    "PERCENT": ("size", number(-50, 1000)),
    "ROUND": ("rounds", number(0, 10**5, int)),
    "ROUNDS": ("rounds", number(1, 10**5, int)),
    "PROBE": ("what", _probe),
    "|".join(GPU_FAULTS): ("what", one_of(*GPU_FAULTS)),
}


@dataclass(frozen=True)
class InjectedFault:
    """One fault.

    Attributes:
        kind: a key of `FORMS`.
        places: its rank or node, or both of a pair; empty for all ranks.
        what: one of `GPU_FAULTS`, or the name of a probe.
        size: factor on the time, share of bandwidth, pace or messages, or per cent.
        rounds: first round of every study with the fault; of ``at-times``, in one of how many it is.
        text: as it was typed.
    """

    kind: str
    places: tuple[int, ...] = ()
    what: str = ""
    size: float = 1.0
    rounds: int = 1
    text: str = ""

    @property
    def is_of_node(self) -> bool:
        """Whether its places are nodes, not ranks."""
        return "NODE" in FORMS[self.kind]


def parse_faults(texts: Sequence[str], layout: Layout, where: str = "--fault") -> tuple[InjectedFault, ...]:
    """The faults that ``KIND:ARGS`` name; the message says `where` they were typed.

    Raises:
        OptionError: unknown kind, wrong arguments, or a rank or node that does not exist.
    """
    return tuple(read_value(where, text, lambda text: _fault(text, layout)) for text in texts)


def _fault(text: str, layout: Layout) -> InjectedFault:
    """Raises ValueError with what is expected."""
    kind, *parts = text.split(":")
    if kind not in FORMS:
        raise ValueError(f"one of {', '.join(FAULTS)}")
    form = FORMS[kind]
    expected, (_, *names) = f"{form} ({FAULTS[form]})", re.split(r"\[?:", form.rstrip("]"))
    if not len(names) - form.count("[") <= len(parts) <= len(names):
        raise ValueError(expected)
    place = number(0, (layout.nodes if "NODE" in form else layout.world_size) - 1, int)
    places, values = list[int](), dict[str, Any]()
    for name, part in zip(names, parts, strict=False):
        try:
            if name in _PARTS:
                attribute, read = _PARTS[name]
                values[attribute] = read(part)
            elif part != ALL or ALL not in name:
                places += map(place, part.split("-", 1) if "-" in name else [part])
        except ValueError as error:
            raise ValueError(f"{expected}, {name} {error}") from None
    nodes = {rank // layout.ranks_per_node for rank in places}
    if len(set(places)) < len(places) or (kind == "slow-pair" and len(nodes) > 1):
        raise ValueError(f"{expected}, two {'nodes' if 'NODE' in form else 'ranks of one node'}")
    return InjectedFault(kind, tuple(places), text=text, **values)
