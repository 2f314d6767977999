"""`ddpscale suite collectives`: nccl-tests' operations over message sizes, on one node and on all nodes.

Sizes take turns in rounds in random order, and each result is checked. Operations and sizes with a bound in the SKU's
thresholds are judged.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import COLLECTIVES, probe_size
from pytest_ddpscale.plan.study import ProbeStudy
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.settings import duration_s, read_value
from pytest_ddpscale.suites.suite import IN_ROUNDS, MeasuredSuite, Suite, SuiteNodes

if TYPE_CHECKING:
    from pytest_ddpscale.launch.supervisor import Judge
    from pytest_ddpscale.plan.study import Plan
    from pytest_ddpscale.suites.suite_report import SuiteReport
    from pytest_ddpscale.thresholds.cases import NodeCase

KIB, MIB, GIB = 2**10, 2**20, 2**30
SMALLEST_BYTES, LARGEST_BYTES = KIB, GIB
# Factor between sizes: 4 gives eleven points from 1 KiB to 1 GiB; users of nccl-tests mostly use 2.
STEP_FACTOR = 4
# Message size of pairs: large enough to fill a link, and the same for all pairs, so that they are comparable.
PAIR_BYTES: dict[DeviceType, int] = {"cuda": 256 * MIB, "cpu": 4 * MIB}
# A block holds hundreds of small messages or a few large ones; short, because there are many sizes.
SWEEP_BLOCKS_S: dict[DeviceType, float] = {"cuda": 0.1, "cpu": 0.03}
# Limit of one collective: on GPUs 1 GiB takes milliseconds over NVLink and a tenth of a second over a slow network;
# over gloo it takes seconds and a laptop's memory.
ITERATION_LIMITS_S: dict[DeviceType, float] = {"cuda": 2.0, "cpu": 0.1}
_SIZE = re.compile(r"([0-9]{1,4}) ?([KMG])(i?B)?", re.IGNORECASE)
_UNIT_BYTES = {"k": KIB, "m": MIB, "g": GIB}
_SIZES = "BEGIN:END or BEGIN:END:FACTOR, with whole KiB, MiB or GiB up to 9999 and a factor from 2 up"


class Collectives(Suite):
    """Sweep of collectives over message sizes."""

    name = "collectives"
    help = "all-reduce, all-gather, reduce-scatter, broadcast, reduce and all-to-all over message sizes, as nccl-tests"
    takes = IN_ROUNDS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for operations, sizes and their time limit."""
        add = parser.add_argument
        add("--sizes", metavar="BEGIN:END[:FACTOR]",
            help=f"message sizes; default: {probe_size(SMALLEST_BYTES)}:{probe_size(LARGEST_BYTES)}:{STEP_FACTOR}, and "
                 "all sizes with a bound in the thresholds")  # fmt: skip
        add("--operations", metavar="A,B", help=f"any of {', '.join(COLLECTIVES)}; default: all")
        add("--iteration-limit", metavar="TIME",
            help="leave out sizes at which one operation takes longer, and all larger ones; default: "
                 f"{ITERATION_LIMITS_S['cuda']:g}s, on CPUs {ITERATION_LIMITS_S['cpu']:g}s")  # fmt: skip

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """One study of all probes. Raises OptionError."""
        sizes = message_sizes(SMALLEST_BYTES, LARGEST_BYTES)
        if arguments.sizes is not None:
            sizes = read_value("--sizes", arguments.sizes, sizes_of)
        kinds = COLLECTIVES
        if arguments.operations is not None:
            kinds = read_value("--operations", arguments.operations, operations_of)
        limit_s = None
        if arguments.iteration_limit is not None:
            limit_s = read_value("--iteration-limit", arguments.iteration_limit, duration_s)
        within = (sizes[0], sizes[-1]) if arguments.sizes is not None else None
        return sweep_plan(nodes, sizes, kinds, within, limit_s)

    def judge_of(self, plan: Plan, nodes: SuiteNodes) -> Judge:
        """Continue after the sweep's rounds until all bounds are decided."""
        from pytest_ddpscale.judge.judge import Decider

        return Decider(plan, bounded_cases(nodes, plan.layout), nodes.settings.confidence)

    def conclude(self, measured: MeasuredSuite) -> SuiteReport:
        """Report tables, curves, pairs and bounds."""
        from pytest_ddpscale.suites.collectives_report import collectives_report

        return collectives_report(measured)


def sweep_plan(
    nodes: SuiteNodes,
    sizes: tuple[int, ...],
    kinds: tuple[str, ...],
    within: tuple[int, int] | None,
    iteration_limit_s: float | None,
) -> Plan:
    """The plan of a sweep.

    Args:
        nodes: to measure on.
        sizes: of messages, in bytes, ascending.
        kinds: operations.
        within: least and most bytes of the sizes added because the thresholds have a bound; None adds all.
        iteration_limit_s: most seconds of one operation; None for the device's default.

    Raises:
        OptionError: there is only one rank.
    """
    from pytest_ddpscale.plan.planner import FEWEST_ROUNDS

    empty, settings = nodes.empty_plan(), nodes.settings
    layout = empty.layout
    if layout.world_size < 2:
        raise OptionError("--ddp-gpus-per-node", "found one rank", "at least 2: a collective needs others")
    bounded = [
        case.probe
        for case in bounded_cases(nodes, layout)
        if case.probe is not None and _is_swept(case.probe, kinds, within)
    ]
    probes = sweep_probes(layout, empty.device_type, sizes, kinds, bounded)
    rounds = settings.rounds or FEWEST_ROUNDS
    study = sweep_study(probes, empty.device_type, rounds, settings.block_s, iteration_limit_s, bounded)
    return replace(empty, probes=study)


def bounded_cases(nodes: SuiteNodes, layout: Layout) -> list[NodeCase]:
    """Requirements of the thresholds on collectives and pairs on these nodes."""
    from pytest_ddpscale.suites.collective_bounds import sweep_cases

    return sweep_cases(nodes.subject.thresholds, nodes.subject.sku, layout)


def sizes_of(text: str) -> tuple[int, ...]:
    """Parse ``1KiB:1GiB`` or ``1M:64M:2``. Raises ValueError."""
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise ValueError(_SIZES)
    try:
        first, last = map(_size_bytes, parts[:2])
        found = message_sizes(first, last, int(parts[2]) if len(parts) == 3 else STEP_FACTOR)
        for size in found:
            probe_size(size)
    except ValueError:
        raise ValueError(f"{_SIZES}, with END not less than BEGIN") from None
    return found


def _size_bytes(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    return int(match[1]) * _UNIT_BYTES[match[2].lower()]


def operations_of(text: str) -> tuple[str, ...]:
    """Parse names of operations; each once, in the order of `COLLECTIVES`. Raises ValueError."""
    names = [name.strip().lower().replace("_", "-") for name in text.split(",")]
    unknown = [name for name in names if name not in COLLECTIVES]
    if unknown:
        raise ValueError(f"names among {', '.join(COLLECTIVES)}; {unknown[0]!r} is not one of them")
    return tuple(kind for kind in COLLECTIVES if kind in names)


def _is_swept(probe: Arm, kinds: tuple[str, ...], within: tuple[int, int] | None) -> bool:
    if probe.operation.kind not in (*kinds, "send-recv"):
        return False
    return within is None or within[0] <= (probe.operation.message_bytes or 0) <= within[1]


def message_sizes(first: int, last: int, factor: int = STEP_FACTOR) -> tuple[int, ...]:
    """Sizes in bytes from the first to the last, each `factor` times the one before, ending with the last.

    Args:
        first: smallest size, a whole number of KiB.
        last: largest size, likewise; at least `first`.
        factor: at least 2.

    Raises:
        ValueError: an argument is invalid.
    """
    if first < 1 or last < first or factor < 2:
        raise ValueError(f"found {first} to {last} bytes by {factor}; expected ascending sizes and a factor from 2 up")
    sizes = []
    while first < last:
        sizes.append(first)
        first *= factor
    return (*sizes, last)


def sweep_probes(
    layout: Layout, device_type: DeviceType, sizes: Sequence[int], kinds: Iterable[str] = COLLECTIVES,
    bounded: Iterable[Arm] = (),
) -> tuple[Arm, ...]:  # fmt: skip
    """One probe per operation, world size and message size, small messages first, and probes of rank pairs.

    Pairs send one size: the largest of the sweep up to `PAIR_BYTES`.

    Args:
        layout: of the gang.
        device_type: of the ranks.
        sizes: message sizes in bytes, ascending.
        kinds: the operations.
        bounded: additional probes that requirements need.

    Raises:
        ValueError: a size that probe names cannot express.
    """
    pair_bytes = max((size for size in sizes if size <= PAIR_BYTES[device_type]), default=sizes[0])
    asked = [*((kind, size) for kind in kinds for size in sizes), ("send-recv", pair_bytes)]
    sent = {f"{kind}-{probe_size(size)}" for kind, size in asked}
    # The ranks of one node test its own links, those of all nodes the network.
    world_sizes = {layout.ranks_per_node, layout.world_size} - {1}
    probes = {Arm(name, world_size) for name in sent for world_size in world_sizes}.union(bounded)
    order = (*COLLECTIVES, "send-recv")

    def in_order(probe: Arm) -> tuple[int, int, int]:
        found = probe.operation
        return probe.world_size, order.index(found.kind), found.message_bytes or 0

    return tuple(sorted(probes, key=in_order))


def sweep_study(
    probes: Sequence[Arm], device_type: DeviceType, rounds: int, block_s: float | None = None,
    iteration_limit_s: float | None = None, bounded: Iterable[Arm] = (),
) -> ProbeStudy:  # fmt: skip
    """The study of a sweep: every probe once per round, in random order; then up to as many rounds again for probes
    with undecided requirements.

    Args:
        probes: from `sweep_probes`.
        device_type: of the ranks.
        rounds: rounds of each probe.
        block_s: seconds of one probe in one round; default by device.
        iteration_limit_s: sizes whose single iteration takes longer are skipped, with larger ones; default by device.
        bounded: probes that requirements need, which have no such limit.
    """
    length_s, limit_s = block_s or SWEEP_BLOCKS_S[device_type], iteration_limit_s or ITERATION_LIMITS_S[device_type]
    required = tuple(sorted({probe.name for probe in bounded}))
    return ProbeStudy(tuple(probes), 2 * rounds if required else rounds, length_s, limit_s, required, rounds)
