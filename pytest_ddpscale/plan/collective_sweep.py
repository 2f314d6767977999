"""A sweep of collectives over message sizes, like nccl-tests: its probes and their ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import COLLECTIVES, probe_size
from pytest_ddpscale.plan.study import ProbeStudy
from pytest_ddpscale.plan.words import DeviceType

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


def size_text(size_bytes: int) -> str:
    """A size for display: ``32 MiB``. Raises as `probe_size`."""
    name = probe_size(size_bytes)
    return f"{name[:-3]} {name[-3].upper()}iB"


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
