"""Faults that can be injected into a simulated run, and how the command line writes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import operation_of

# A throttling node heats up exponentially; this is the time constant in rounds (63 % of the way).
THROTTLE_ROUNDS = 3.0
# GPU faults that a node reports: uncorrectable memory errors, a quarter of the PCIe lanes, an NVLink that is down, and
# clocks throttled by heat.
GPU_FAULTS = ("ecc", "lanes", "nvlink", "clock")
LANES_LEFT = 0.25
HELD_DOWN = 1.3  # slowdown of a GPU with throttled clocks
ALL = "all"  # instead of a rank, for faults that can affect all ranks


@dataclass(frozen=True)
class _Form:
    """Syntax of one kind of fault: fields in brackets are optional; sizes are the least and the greatest."""

    fields: tuple[str, ...]
    example: str
    meaning: str
    sizes: tuple[float, float] | None = None

    def written(self, kind: str) -> str:
        """``slow-gpu:RANK:FACTOR``."""
        return kind + "".join(field if field.startswith("[") else f":{field}" for field in self.fields)


FORMS: dict[str, _Form] = {
    "slow-gpu": _Form(
        ("RANK|all", "FACTOR"), "slow-gpu:3:1.1", "its computation takes FACTOR (1 to 1000) times as long",
        (1.0, 1000.0),
    ),
    "ramp": _Form(
        ("RANK|all", "FACTOR"), "ramp:3:1.05",
        "its computation slows down linearly, to FACTOR (1 to 1000) times as long at the end of the run",
        (1.0, 1000.0),
    ),
    "step": _Form(
        ("RANK|all", "FACTOR", "ROUND"), "step:3:1.05:8",
        "from ROUND of every study on, its computation takes FACTOR (1 to 1000) times as long", (1.0, 1000.0),
    ),
    "at-times": _Form(
        ("RANK|all", "FACTOR", "ROUNDS"), "at-times:3:1.2:4",
        "in one of ROUNDS rounds its computation takes FACTOR (1 to 1000) times as long", (1.0, 1000.0),
    ),
    "slow-link": _Form(
        ("NODE|NODE-NODE", "SHARE"), "slow-link:0:0.5",
        "links of that node, or the link between two nodes, keep a SHARE (above 0, to 1) of their bandwidth; a "
        "collective uses the link of neighbours only, as a ring in the order of nodes does", (1e-6, 1.0),
    ),
    "slow-gpu-link": _Form(
        ("RANK|all", "SHARE"), "slow-gpu-link:3:0.5",
        "its links to the GPUs of its node keep a SHARE (above 0, to 1) of their bandwidth", (1e-6, 1.0),
    ),
    "slow-port": _Form(
        ("RANK|all", "SHARE"), "slow-port:3:0.5",
        "its port to other nodes keeps a SHARE (above 0, to 1) of its bandwidth", (1e-6, 1.0),
    ),
    "slow-pair": _Form(
        ("RANK", "RANK", "SHARE"), "slow-pair:3:4:0.5",
        "messages between these two GPUs of a node keep a SHARE (above 0, to 1) of their bandwidth; collectives take "
        "other ways", (1e-6, 1.0),
    ),
    "lossy-link": _Form(
        ("NODE", "SHARE"), "lossy-link:0:0.05",
        "packets are lost, so a SHARE (above 0, to 1) of its messages to other nodes takes 0.2 s longer", (1e-6, 1.0),
    ),
    "slow-probe": _Form(
        ("RANK|all", "PROBE", "SHARE"), "slow-probe:3:memory-copy:0.7",
        "it reaches a SHARE (above 0, to 1) in that probe", (1e-6, 1.0),
    ),
    "throttle": _Form(
        ("NODE", "FACTOR"), "throttle:0:1.2", "its GPUs slow down by FACTOR (1 to 1000) as they heat up", (1.0, 1000.0)
    ),
    "drift": _Form(
        ("PERCENT",), "drift:3", "all GPUs take PERCENT (-50 to 1000) longer at the end of the run", (-50.0, 1000.0)
    ),
    "missing-rank": _Form(
        ("RANK", "[:ROUND]"), "missing-rank:3:2", "it has no records from ROUND (default 1) of every study on", (0, 1e5)
    ),
    "corrupt-rank": _Form(("RANK",), "corrupt-rank:3", "its results differ in bits from its peers'"),
    "bad-gpu": _Form(
        ("RANK", "|".join(GPU_FAULTS)), "bad-gpu:3:ecc",
        "memory errors, a quarter of its PCIe lanes, an NVLink down, or clocks throttled by heat",
    ),
}  # fmt: skip
# Kinds whose place is a node; all others have a rank.
NODE_FAULTS = tuple(kind for kind, form in FORMS.items() if form.fields[0].startswith("NODE"))
# Kinds that are not in every round.
_IN_ROUNDS = ("step", "at-times")
# Kinds that can affect all ranks.
COMMON_FAULTS = tuple(kind for kind, form in FORMS.items() if form.fields[0] == f"RANK|{ALL}")


@dataclass(frozen=True)
class Moment:
    """A moment of the run: round of a study (from 0), rounds of the whole run before it, and rounds of the run."""

    round: int
    rounds_before: int
    rounds_in_run: int

    @property
    def done(self) -> float:
        """Share of the run, 0 in its first round, 1 in its last."""
        return self.rounds_before / max(1, self.rounds_in_run - 1)


@dataclass(frozen=True)
class InjectedFault:
    """One fault.

    Attributes:
        kind: a key of `FORMS`.
        place: rank or node; None for all ranks.
        what: for ``bad-gpu`` one of `GPU_FAULTS`, for ``slow-probe`` the probe's name, for ``slow-pair`` the other
            rank, for the ``slow-link`` between two nodes the other node.
        size: factor on the time, share of the bandwidth, per cent, or the first round in which a ``missing-rank`` is
            missing; 1 if the kind has no size.
        rounds: first round of every study with the fault, for ``step``; in one of how many it is, for ``at-times``.
        text: as it was typed.
    """

    kind: str
    place: int | None = None
    what: str = ""
    size: float = 1.0
    rounds: int = 0
    text: str = ""

    def ranks(self, layout: Layout) -> range:
        """The affected ranks, of a pair the first; empty if it affects all."""
        if self.place is None:
            return range(0)
        width = layout.ranks_per_node if self.kind in NODE_FAULTS else 1
        return range(self.place * width, (self.place + 1) * width)


@dataclass(frozen=True)
class Faults:
    """All faults of a simulated cluster, in the given order."""

    faults: tuple[InjectedFault, ...]
    layout: Layout

    def slowdowns(self, when: Moment) -> dict[int, float]:
        """Factor on computation time of each rank that is slower than the others."""
        return self._factors(lambda fault: _slowdown(fault, when))

    def common_slowdown(self, when: Moment) -> float:
        """Factor on computation time of all ranks."""
        return math.prod(_slowdown(fault, when) for fault in self.faults if fault.place is None)

    def probe_shares(self, probe: Arm) -> dict[int, float]:
        """Share of its normal pace that each affected rank reaches in a probe."""
        return self._factors(lambda fault: _probe_share(fault, probe))

    def common_probe_share(self, probe: Arm) -> float:
        """Share of their normal pace that all ranks reach in a probe."""
        return math.prod((_probe_share(fault, probe) for fault in self.faults if fault.place is None), start=1.0)

    def drift(self, when: Moment) -> float:
        """Factor on the time of all ranks."""
        return math.prod(1 + fault.size / 100 * when.done for fault in self.faults if fault.kind == "drift")

    @property
    def inside_shares(self) -> dict[int, float]:
        """Share of bandwidth left on links to GPUs of the same node, by rank; of several faults the worst counts."""
        return self._least("slow-link", "slow-gpu-link")

    @property
    def between_shares(self) -> dict[int, float]:
        """Share of bandwidth left on links to other nodes, by rank; of several faults the worst counts."""
        return self._least("slow-link", "slow-port")

    @property
    def pair_shares(self) -> dict[tuple[int, int], float]:
        """Share of bandwidth left between two GPUs, by their ranks."""
        pairs = [fault for fault in self.faults if fault.kind == "slow-pair"]
        return {(pair.place or 0, int(pair.what)): pair.size for pair in pairs}

    @property
    def link_shares(self) -> dict[tuple[int, int], float]:
        """Share of bandwidth left on the link between two nodes, by their numbers."""
        links = [fault for fault in self.faults if fault.kind == "slow-link" and fault.what]
        return {(link.place or 0, int(link.what)): link.size for link in links}

    @property
    def lossy_shares(self) -> dict[int, float]:
        """Share of the messages to other nodes that lose packets, by node; of several faults the worst counts."""
        found: dict[int, float] = {}
        for fault in self.faults:
            if fault.kind == "lossy-link" and fault.place is not None:
                found[fault.place] = max(fault.size, found.get(fault.place, 0.0))
        return found

    def _least(self, *kinds: str) -> dict[int, float]:
        found: dict[int, float] = {}
        for fault in self.faults:
            ranks = range(self.layout.world_size) if fault.place is None else fault.ranks(self.layout)
            for rank in ranks if fault.kind in kinds and not fault.what else ():
                found[rank] = min(fault.size, found.get(rank, 1.0))
        return found

    def missing(self, round_number: int) -> set[int]:
        """Ranks without records in this round of every study."""
        gone = [fault for fault in self.faults if fault.kind == "missing-rank" and round_number >= fault.size]
        return {rank for fault in gone for rank in fault.ranks(self.layout)}

    @property
    def corrupt(self) -> set[int]:
        """Ranks whose results differ in bits from their peers'."""
        return self._struck("corrupt-rank")

    def bad_gpus(self, what: str) -> set[int]:
        """Ranks whose GPUs have that fault of `GPU_FAULTS`."""
        return self._struck("bad-gpu", what)

    def _struck(self, kind: str, what: str = "") -> set[int]:
        struck = [fault for fault in self.faults if (fault.kind, fault.what) == (kind, what)]
        return {rank for fault in struck for rank in fault.ranks(self.layout)}

    def _factors(self, factor_of: Callable[[InjectedFault], float]) -> dict[int, float]:
        """Product of the factors of each rank to which any fault gives a factor other than 1."""
        found: dict[int, float] = {}
        for fault in self.faults:
            factor = factor_of(fault)
            for rank in fault.ranks(self.layout) if factor != 1 else ():
                found[rank] = found.get(rank, 1.0) * factor
        return found


def _slowdown(fault: InjectedFault, when: Moment) -> float:
    if fault.kind == "throttle":
        return 1 + (fault.size - 1) * -math.expm1(-when.rounds_before / THROTTLE_ROUNDS)
    if fault.kind == "bad-gpu":
        return HELD_DOWN if fault.what == "clock" else 1.0
    if fault.kind == "ramp":
        return 1 + (fault.size - 1) * when.done
    if fault.kind == "step" and when.round < fault.rounds:
        return 1.0
    if fault.kind == "at-times" and (when.round + 1) % fault.rounds:
        return 1.0
    return fault.size if fault.kind in ("slow-gpu", *_IN_ROUNDS) else 1.0


def _probe_share(fault: InjectedFault, probe: Arm) -> float:
    """Share of its pace that a fault leaves in a probe, apart from slower computation."""
    if fault.kind == "slow-probe" and fault.what == probe.kind:
        return fault.size
    copies_to_host = probe.operation.kind in ("host-to-device", "device-to-host")
    if fault.kind == "bad-gpu" and fault.what == "lanes" and copies_to_host:
        return LANES_LEFT
    return 1.0


def parse_fault(text: str, layout: Layout, where: str = "--fault") -> InjectedFault:
    """The fault that ``KIND:ARGS`` names; the message says `where` it was typed.

    Raises:
        OptionError: unknown kind, wrong arguments, or a rank or node that does not exist.
    """
    kind = text.partition(":")[0]
    form = FORMS.get(kind)
    if form is None:
        kinds = ", ".join(known.written(name) for name, known in FORMS.items())
        raise OptionError(where, f"found {text!r}", f"one of {kinds}")
    try:
        fault = _fault(text, form)
    except ValueError:
        expected = f"{form.written(kind)} ({form.meaning}), for example {form.example}"
        raise OptionError(where, f"found {text!r}", expected) from None
    what, most = ("node", layout.nodes) if kind in NODE_FAULTS else ("rank", layout.world_size)
    if fault.place is not None and not 0 <= fault.place < most:
        there_are = f"there is only {what} 0" if most == 1 else f"there are {most} {what}s"
        raise OptionError(where, f"found {text!r}, but {there_are}", f"a {what} from 0 to {most - 1}")
    if kind == "slow-link" and fault.what and not (fault.place != int(fault.what) in range(layout.nodes)):
        raise OptionError(where, f"found {text!r}", f"two nodes from 0 to {layout.nodes - 1}")
    if kind == "slow-pair" and not _are_on_a_node(fault, layout):
        raise OptionError(where, f"found {text!r}", "two ranks of one node")
    return fault


def _are_on_a_node(pair: InjectedFault, layout: Layout) -> bool:
    one, other = pair.place or 0, int(pair.what)
    return one != other and other >= 0 and one // layout.ranks_per_node == other // layout.ranks_per_node


def parse_faults(texts: Sequence[str], layout: Layout) -> Faults:
    """All faults of a command line. Raises OptionError like `parse_fault`."""
    return Faults(tuple(parse_fault(text, layout) for text in texts), layout)


def _fault(text: str, form: _Form) -> InjectedFault:
    """Raises ValueError for a wrong number of parts, a malformed number, or an unknown GPU fault or probe."""
    kind, *parts = text.split(":")
    if not sum(not field.startswith("[") for field in form.fields) <= len(parts) <= len(form.fields):
        raise ValueError(parts)
    strikes_all = kind == "drift" or (kind in COMMON_FAULTS and parts[0] == ALL)
    first, dash, other = parts[0].partition("-") if kind == "slow-link" else (parts[0], "", "")
    place = None if strikes_all else int(first)
    what = parts[1] if kind in ("bad-gpu", "slow-probe") else str(int(parts[1])) if kind == "slow-pair" else ""
    what = str(int(other)) if dash else what
    if (kind == "bad-gpu" and what not in GPU_FAULTS) or (kind == "slow-probe" and operation_of(what) is None):
        raise ValueError(what)
    number = int if kind == "missing-rank" else float
    has_size = form.sizes is not None and len(parts) == len(form.fields)
    size = number(parts[-2 if kind in _IN_ROUNDS else -1]) if has_size else 1.0
    fault = InjectedFault(kind, place, what, size, int(parts[-1]) if kind in _IN_ROUNDS else 0, text)
    if (form.sizes and not form.sizes[0] <= fault.size <= form.sizes[1]) or fault.rounds < (kind == "at-times"):
        raise ValueError(parts)
    return fault


def fault_help() -> str:
    """The kinds and their meaning, for ``--help``."""
    return "; ".join(f"{form.written(kind)} ({form.meaning})" for kind, form in FORMS.items())
