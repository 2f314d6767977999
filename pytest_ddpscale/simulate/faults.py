"""Faults that can be injected into a simulated run, as the command line writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.simulate.allreduce import Topology

# A throttling node heats up: after so many rounds it has come 63 % of the way, as an RC circuit charges.
THROTTLE_ROUNDS = 3.0
# Kinds whose place is a node; that of the others is a rank.
NODE_FAULTS = ("slow-link", "throttle")
_DEFAULT_MISSING_FROM = 1


@dataclass(frozen=True)
class _Form:
    """How one kind of fault is written.

    Attributes:
        fields: names of what follows the kind; in brackets what may be left out.
        example: one that can be typed.
        meaning: for ``--help``.
        sizes: least and greatest size it may have.
    """

    fields: tuple[str, ...]
    example: str
    meaning: str
    sizes: tuple[float, float] = (0.0, 0.0)

    def written(self, kind: str) -> str:
        """``slow-gpu:RANK:FACTOR``."""
        needed = [field for field in self.fields if not field.startswith("[")]
        return ":".join((kind, *needed)) + "".join(field for field in self.fields if field.startswith("["))


FORMS: dict[str, _Form] = {
    "slow-gpu": _Form(
        ("RANK", "FACTOR"), "slow-gpu:3:1.1", "its computation takes FACTOR (1 to 1000) times as long", (1.0, 1000.0)
    ),
    "slow-link": _Form(
        ("NODE", "SHARE"), "slow-link:0:0.5", "a SHARE (above 0, to 1) of its links' bandwidth is left", (1e-6, 1.0)
    ),
    "throttle": _Form(
        ("NODE", "FACTOR"), "throttle:0:1.2", "its GPUs slow down by FACTOR (1 to 1000) as they heat up", (1.0, 1000.0)
    ),
    "drift": _Form(
        ("PERCENT",), "drift:3", "all GPUs take PERCENT (-50 to 1000) longer at the end of the run", (-50.0, 1000.0)
    ),
    "missing-rank": _Form(
        ("RANK", "[:ROUND]"), "missing-rank:3:2", "no record of it from ROUND (default 1) of any study on"
    ),
    "corrupt-rank": _Form(("RANK",), "corrupt-rank:3", "it computes other bits than its peers"),
}


@dataclass(frozen=True)
class Moment:
    """When in the run.

    Attributes:
        round: of the study, from 0.
        rounds_before: rounds of the whole run before this one.
        rounds_in_run: how many the whole run has.
    """

    round: int
    rounds_before: int
    rounds_in_run: int


@dataclass(frozen=True)
class InjectedFault:
    """One thing that is wrong.

    Attributes:
        kind: a key of `FORMS`.
        place: rank or node; None for ``drift``.
        size: factor on the time, share of the bandwidth, or per cent; 0 where the kind has none.
        from_round: of ``missing-rank``: first round of every study without it.
    """

    kind: str
    place: int | None
    size: float = 0.0
    from_round: int = _DEFAULT_MISSING_FROM

    def __str__(self) -> str:
        size = f"{self.from_round}" if self.kind == "missing-rank" else f"{self.size:g}"
        parts = [self.kind, *([] if self.place is None else [str(self.place)])]
        return ":".join(parts if self.kind == "corrupt-rank" else [*parts, size])

    def ranks(self, topology: Topology, world_size: int) -> range:
        """The ranks below `world_size` that it strikes; none for ``drift``, which strikes all alike."""
        if self.place is None:
            return range(0)
        width = topology.gpus_per_node if self.kind in NODE_FAULTS else 1
        first = self.place * width
        return range(min(first, world_size), min(first + width, world_size))


@dataclass(frozen=True)
class Faults:
    """All that is wrong with a simulated cluster.

    Attributes:
        faults: in the order in which they were given.
        topology: which ranks form a node.
    """

    faults: tuple[InjectedFault, ...]
    topology: Topology

    def slowdowns(self, world_size: int, when: Moment) -> dict[int, float]:
        """Factor on the computation time of the ranks that are slower than they should be."""
        found: dict[int, float] = {}
        for fault in self.faults:
            if fault.kind not in ("slow-gpu", "throttle"):
                continue
            factor = fault.size if fault.kind == "slow-gpu" else _throttled(fault.size, when)
            for rank in fault.ranks(self.topology, world_size):
                found[rank] = found.get(rank, 1.0) * factor
        return found

    def drift(self, when: Moment) -> float:
        """Factor on everybody's time."""
        done = when.rounds_before / max(1, when.rounds_in_run - 1)
        return math.prod(1 + fault.size / 100 * done for fault in self.faults if fault.kind == "drift")

    def link_share(self, world_size: int) -> float:
        """Bandwidth left on the slowest links that the ranks 0 … world_size−1 use."""
        nodes = self.topology.nodes(world_size)
        slow = [f.size for f in self.faults if f.kind == "slow-link" and f.place is not None and f.place < nodes]
        return min(slow, default=1.0)

    def missing(self, when: Moment) -> set[int | None]:
        """Ranks of which there is no record in this round."""
        return {f.place for f in self.faults if f.kind == "missing-rank" and when.round >= f.from_round}

    @property
    def corrupt(self) -> set[int | None]:
        """Ranks that compute other bits than their peers."""
        return {fault.place for fault in self.faults if fault.kind == "corrupt-rank"}


def _throttled(factor: float, when: Moment) -> float:
    return 1 + (factor - 1) * -math.expm1(-when.rounds_before / THROTTLE_ROUNDS)


def parse_fault(text: str, gpus: int, topology: Topology, where: str = "--fault") -> InjectedFault:
    """The fault that ``KIND:ARGS`` names.

    Args:
        text: as typed.
        gpus: of the whole cluster.
        topology: which of them form a node.
        where: who asked, for the message.

    Raises:
        OptionError: no such kind, other arguments than it takes, or a rank or node that is not there.
    """
    kind, _, rest = text.partition(":")
    form = FORMS.get(kind)
    if form is None:
        kinds = ", ".join(known.written(name) for name, known in FORMS.items())
        raise OptionError(where, f"found {text!r}", f"one of {kinds}")
    parts = rest.split(":") if rest else []
    refused = OptionError(
        where, f"found {text!r}", f"{form.written(kind)} ({form.meaning}), for example {form.example}"
    )
    fewest = sum(not field.startswith("[") for field in form.fields)
    parts = rest.split(":") if rest else []
    if not fewest <= len(parts) <= len(form.fields):
        raise refused
    try:
        fault = _fault(kind, parts)
    except ValueError:
        raise refused from None
    least, most = form.sizes
    if not least <= fault.size <= most or fault.from_round < 0:
        raise refused
    _check_place(fault, text, gpus, topology, where)
    return fault


def parse_faults(texts: Sequence[str], gpus: int, topology: Topology) -> Faults:
    """All faults of a command line. Raises OptionError as `parse_fault`."""
    return Faults(tuple(parse_fault(text, gpus, topology) for text in texts), topology)


def _fault(kind: str, parts: Sequence[str]) -> InjectedFault:
    if kind == "drift":
        return InjectedFault(kind, None, float(parts[0]))
    place = int(parts[0])
    if kind == "missing-rank":
        return InjectedFault(kind, place, from_round=int(parts[1]) if len(parts) > 1 else _DEFAULT_MISSING_FROM)
    return InjectedFault(kind, place, float(parts[1]) if len(parts) > 1 else 0.0)


def _check_place(fault: InjectedFault, text: str, gpus: int, topology: Topology, where: str) -> None:
    what, most = ("node", topology.nodes(gpus)) if fault.kind in NODE_FAULTS else ("rank", gpus)
    if fault.place is not None and not 0 <= fault.place < most:
        there_are = f"there is only {what} 0" if most == 1 else f"there are {most} {what}s"
        raise OptionError(where, f"found {text!r}, but {there_are}", f"a {what} from 0 to {most - 1}")


def fault_help() -> str:
    """The kinds and their meaning, for ``--help``."""
    return "; ".join(f"{form.written(kind)} ({form.meaning})" for kind, form in FORMS.items())
