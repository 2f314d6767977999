"""Faults that can be injected into a simulated run, as the command line writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.probe import Probe, is_probe_name

# A throttling node heats up: after so many rounds it has come 63 % of the way, as an RC circuit charges.
THROTTLE_ROUNDS = 3.0
# Kinds whose place is a node; that of the others is a rank.
NODE_FAULTS = ("slow-link", "throttle")
_DEFAULT_MISSING_FROM = 1
# What may be wrong with a GPU that its node says of itself: uncorrectable memory errors, a quarter of its PCIe lanes,
# an NVLink that is down, and clocks that heat holds down.
GPU_FAULTS = ("ecc", "lanes", "nvlink", "clock")
LANES_LEFT = 0.25
HELD_DOWN = 1.3  # how much longer a GPU computes whose clocks are held down


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
    "slow-probe": _Form(
        ("RANK", "PROBE", "SHARE"), "slow-probe:3:memory-copy:0.7", "it reaches a SHARE (above 0, to 1) in that probe",
        (1e-6, 1.0),
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
    "bad-gpu": _Form(
        ("RANK", "|".join(GPU_FAULTS)), "bad-gpu:3:ecc",
        "memory errors, a quarter of its PCIe lanes, an NVLink down, or clocks held down by heat",
    ),
}  # fmt: skip


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
        what: of ``bad-gpu`` one of `GPU_FAULTS`, of ``slow-probe`` the probe's name.
    """

    kind: str
    place: int | None
    size: float = 0.0
    from_round: int = _DEFAULT_MISSING_FROM
    what: str = ""

    def __str__(self) -> str:
        place = [] if self.place is None else [str(self.place)]
        what = [self.what] if self.what else []
        size = [] if FORMS[self.kind].sizes == (0.0, 0.0) else [f"{self.size:g}"]
        if self.kind == "missing-rank":
            size = [str(self.from_round)]
        return ":".join([self.kind, *place, *what, *size])

    def ranks(self, layout: Layout) -> range:
        """The ranks that it strikes; none for ``drift``, which strikes all alike."""
        if self.place is None:
            return range(0)
        width = layout.ranks_per_node if self.kind in NODE_FAULTS else 1
        return range(self.place * width, (self.place + 1) * width)


@dataclass(frozen=True)
class Faults:
    """All that is wrong with a simulated cluster.

    Attributes:
        faults: in the order in which they were given.
        layout: which ranks form a node.
    """

    faults: tuple[InjectedFault, ...]
    layout: Layout

    def slowdowns(self, when: Moment) -> dict[int, float]:
        """Factor on the computation time of the ranks that are slower than they should be."""
        found: dict[int, float] = {}
        for fault in self.faults:
            factor = _slowdown(fault, when)
            for rank in fault.ranks(self.layout) if factor > 1 else ():
                found[rank] = found.get(rank, 1.0) * factor
        return found

    def drift(self, when: Moment) -> float:
        """Factor on everybody's time."""
        done = when.rounds_before / max(1, when.rounds_in_run - 1)
        return math.prod(1 + fault.size / 100 * done for fault in self.faults if fault.kind == "drift")

    @property
    def link_shares(self) -> dict[int, float]:
        """Bandwidth left on the links of the nodes that have not all of it, by node."""
        found: dict[int, float] = {}
        for fault in self.faults:
            if fault.kind == "slow-link" and fault.place is not None:
                found[fault.place] = min(found.get(fault.place, 1.0), fault.size)
        return found

    def probe_shares(self, probe: Probe) -> dict[int, float]:
        """What share of its pace each rank reaches in a probe, of those that do not reach all of it."""
        found: dict[int, float] = {}
        for fault in self.faults:
            share = _probe_share(fault, probe)
            for rank in fault.ranks(self.layout) if share < 1 else ():
                found[rank] = found.get(rank, 1.0) * share
        return found

    def missing(self, round_number: int) -> set[int]:
        """Ranks of which there is no record in this round of any study."""
        return {rank for f in self._of("missing-rank") if round_number >= f.from_round for rank in f.ranks(self.layout)}

    @property
    def corrupt(self) -> set[int]:
        """Ranks that compute other bits than their peers."""
        return {rank for fault in self._of("corrupt-rank") for rank in fault.ranks(self.layout)}

    def bad_gpus(self, what: str) -> set[int]:
        """Ranks whose GPUs have that fault of `GPU_FAULTS`."""
        bad = [fault for fault in self._of("bad-gpu") if fault.what == what]
        return {rank for fault in bad for rank in fault.ranks(self.layout)}

    def _of(self, kind: str) -> list[InjectedFault]:
        return [fault for fault in self.faults if fault.kind == kind]


def _slowdown(fault: InjectedFault, when: Moment) -> float:
    """Factor on the computation time of the ranks that a fault strikes."""
    if fault.kind == "throttle":
        return 1 + (fault.size - 1) * -math.expm1(-when.rounds_before / THROTTLE_ROUNDS)
    if fault.kind == "bad-gpu":
        return HELD_DOWN if fault.what == "clock" else 1.0
    return fault.size if fault.kind == "slow-gpu" else 1.0


def _probe_share(fault: InjectedFault, probe: Probe) -> float:
    """What of its pace a rank that a fault strikes reaches in a probe, but for what it computes more slowly."""
    if fault.kind == "slow-probe" and fault.what == probe.name:
        return fault.size
    if fault.kind == "bad-gpu" and fault.what == "lanes" and probe.kind in ("host-to-device", "device-to-host"):
        return LANES_LEFT
    return 1.0


def parse_fault(text: str, layout: Layout, where: str = "--fault") -> InjectedFault:
    """The fault that ``KIND:ARGS`` names.

    Args:
        text: as typed.
        layout: which ranks there are, and which of them form a node.
        where: who asked, for the message.

    Raises:
        OptionError: no such kind, other arguments than it takes, or a rank or node that is not there.
    """
    kind, _, rest = text.partition(":")
    form = FORMS.get(kind)
    if form is None:
        kinds = ", ".join(known.written(name) for name, known in FORMS.items())
        raise OptionError(where, f"found {text!r}", f"one of {kinds}")
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
    _check_place(fault, text, layout, where)
    return fault


def parse_faults(texts: Sequence[str], layout: Layout) -> Faults:
    """All faults of a command line. Raises OptionError as `parse_fault`."""
    return Faults(tuple(parse_fault(text, layout) for text in texts), layout)


def _fault(kind: str, parts: Sequence[str]) -> InjectedFault:
    """Raises ValueError for what is no number, no such fault of a GPU or no such probe."""
    if kind == "drift":
        return InjectedFault(kind, None, float(parts[0]))
    place = int(parts[0])
    if kind == "missing-rank":
        return InjectedFault(kind, place, from_round=int(parts[1]) if len(parts) > 1 else _DEFAULT_MISSING_FROM)
    if kind == "bad-gpu" and parts[1] not in GPU_FAULTS:
        raise ValueError(parts[1])
    if kind == "slow-probe" and not is_probe_name(parts[1]):
        raise ValueError(parts[1])
    has_what = kind in ("bad-gpu", "slow-probe")
    sizes = parts[2:] if has_what else parts[1:]
    return InjectedFault(kind, place, float(sizes[0]) if sizes else 0.0, what=parts[1] if has_what else "")


def _check_place(fault: InjectedFault, text: str, layout: Layout, where: str) -> None:
    what, most = ("node", layout.nodes) if fault.kind in NODE_FAULTS else ("rank", layout.world_size)
    if fault.place is not None and not 0 <= fault.place < most:
        there_are = f"there is only {what} 0" if most == 1 else f"there are {most} {what}s"
        raise OptionError(where, f"found {text!r}, but {there_are}", f"a {what} from 0 to {most - 1}")


def fault_help() -> str:
    """The kinds and their meaning, for ``--help``."""
    return "; ".join(f"{form.written(kind)} ({form.meaning})" for kind, form in FORMS.items())
