"""What probes measured, as values of their metrics: one per round and place.

A place is what a bound is about: one device, one group of ranks that communicate, or one pair of ranks. Bandwidths
follow nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): with S bytes in t seconds among n ranks the bus
bandwidth, which is comparable with that of the hardware whatever n is, is

    all-reduce                   S/t · 2(n - 1)/n
    all-gather, reduce-scatter   S/t · (n - 1)/n, with S the whole buffer: gathered, or before it is scattered
    send-recv                    S/t, with S what each end sends

Where nccl-tests gives the mean time of all ranks, the slowest rank's counts here: what is looked for is a bad one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_ddpscale.metrics.samples import Sample
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.probe import SINGLE_DEVICE, Probe
from pytest_ddpscale.plan.probe_pairs import pair_turns
from pytest_ddpscale.plan.study import Arm
from pytest_ddpscale.results.probe_record import ProbeMeasurement

TERA, GIGA = 1e12, 1e9
# What a worker may leave of a message, so that ranks share it evenly in aligned pieces: bytes for each rank.
_ALIGNMENT_BYTES = 256

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class ProbedPlace:
    """Where a probe's value belongs.

    Attributes:
        kind: ``gpu``: one device. ``node``: a group of ranks of one host. ``gang``: a group of ranks of several.
            ``link``: a pair of ranks.
        ranks: global ranks that measure it together, in order.
        host: of the device or the group, of a gang that of its first rank; of a link that of the lower rank.
        gpu_index: local rank of the device, or of the link's lower rank; None for a group.
        gpu_uuid: as NVML has it; ``cpu`` without a GPU; None for a group.
        peer_host: of a link that of the higher rank; None of anything else.
        peer_gpu_index: as `gpu_index`, of that end.
        peer_gpu_uuid: as `gpu_uuid`, of that end.
    """

    kind: Literal["gpu", "node", "gang", "link"]
    ranks: Ranks
    host: str
    gpu_index: int | None = None
    gpu_uuid: str | None = None
    peer_host: str | None = None
    peer_gpu_index: int | None = None
    peer_gpu_uuid: str | None = None


def value_of(measurement: ProbeMeasurement) -> float:
    """What one rank measured: TFLOPS (10¹² operations per second) of a matmul; else GB/s (10⁹ bytes per second)."""
    return _valuer(Probe(measurement.probe, measurement.world_size))(measurement)


def expected_ranks(probe: Probe, layout: Layout) -> list[Ranks]:
    """The ranks of every place at which a gang measures a probe.

    A single device's probe is measured by all ranks; what communicates by the groups of `Layout.groups`, send-recv by
    the pairs of `pair_turns`.

    Raises:
        ValueError: the layout has fewer ranks than the probe needs.
    """
    if probe.kind in SINGLE_DEVICE:
        return [(rank,) for rank in range(layout.world_size)]
    if probe.kind == "send-recv":
        return sorted(pair for turn in pair_turns(probe, layout) for pair in turn)
    return list(layout.groups(Arm("ddp", probe.world_size, 1)))


def of_probe(measurements: Iterable[ProbeMeasurement], probe: Probe) -> list[ProbeMeasurement]:
    """Those among measurements that are of one probe."""
    return [one for one in measurements if (one.probe, one.world_size) == (probe.name, probe.world_size)]


def places(measurements: Iterable[ProbeMeasurement], probe: Probe, layout: Layout) -> dict[ProbedPlace, list[Sample]]:
    """Values of a probe, in its metric's unit, in the order of the rounds, by place.

    A round in which a rank of a place is missing is left out: how slow that one was is unknown. So is a measurement
    with another message than the probe's. The slowest rank sets the value. Of a repeated measurement the earliest
    counts: a later one was made under other conditions than the rest of its round.

    Args:
        measurements: in any order; those of other probes are passed over.
        probe: which of them count.
        layout: of the gang as it was planned; ranks that are not in it are passed over.

    Raises:
        ValueError: as `expected_ranks`.
    """
    expected = expected_ranks(probe, layout)
    together = {rank: ranks for ranks in expected for rank in ranks} if probe.kind != "send-recv" else {}
    rounds: dict[Ranks, dict[int, dict[int, ProbeMeasurement]]] = {
        ranks: defaultdict(dict) for ranks in sorted(expected)
    }
    is_pair, size = probe.kind == "send-recv", probe.message_bytes
    for one in of_probe(measurements, probe):
        ranks = _pair(one) if is_pair else together.get(one.rank, ())
        if ranks in rounds and (size is None or _has_size(one, size)):
            theirs = rounds[ranks][one.round]
            theirs[one.rank] = min(theirs[one.rank], one, key=_age) if one.rank in theirs else one
    return _samples(probe, rounds)


def _samples(
    probe: Probe, rounds: Mapping[Ranks, Mapping[int, Mapping[int, ProbeMeasurement]]]
) -> dict[ProbedPlace, list[Sample]]:
    found: dict[ProbedPlace, list[Sample]] = {}
    value = _valuer(probe)
    for ranks, by_round in rounds.items():
        own: dict[tuple[tuple[str, int, str], ...], list[Sample]] = {}  # mostly one: ranks stay where they are
        for number in sorted(by_round):
            theirs = by_round[number]
            if len(theirs) == len(ranks):
                ends = [theirs[rank] for rank in ranks]
                where = tuple([(end.host, end.local_rank, end.device) for end in ends])
                if where not in own:
                    own[where] = found.setdefault(place_of(probe, ends), [])
                own[where].append(Sample(min(map(value, ends))))
    return found


def place_of(probe: Probe, ends: Sequence[ProbeMeasurement]) -> ProbedPlace:
    """The place that these ranks, in their order, form; both ends of a send-recv."""
    first, ranks = ends[0], tuple(end.rank for end in ends)
    if probe.kind in SINGLE_DEVICE:
        return ProbedPlace("gpu", ranks, first.host, first.local_rank, first.device)
    if probe.kind == "send-recv":
        last = ends[1]
        return ProbedPlace(
            "link", ranks, first.host, first.local_rank, first.device, last.host, last.local_rank, last.device
        )
    is_one_host = len({end.host for end in ends}) == 1
    return ProbedPlace("node" if is_one_host else "gang", ranks, first.host)


def _pair(measurement: ProbeMeasurement) -> Ranks:
    peer = measurement.peer_rank
    return () if peer is None else (min(measurement.rank, peer), max(measurement.rank, peer))


def _valuer(probe: Probe) -> Callable[[ProbeMeasurement], float]:
    """What `value_of` is of measurements of this probe."""
    if probe.kind == "matmul":
        return lambda one: one.per_second / TERA
    factor = _bus_factor(probe)
    return lambda one: one.per_second / GIGA * factor


def _bus_factor(probe: Probe) -> float:
    n = probe.world_size
    if probe.kind == "all-reduce":
        return 2 * (n - 1) / n
    return (n - 1) / n if probe.kind in ("all-gather", "reduce-scatter") else 1.0


def _has_size(measurement: ProbeMeasurement, message_bytes: int) -> bool:
    return abs(measurement.work - message_bytes) <= _ALIGNMENT_BYTES * measurement.world_size


def _age(measurement: ProbeMeasurement) -> tuple[float, float]:
    """So that the order of records does not matter, not even of two that began at once."""
    return measurement.started_unix_s, measurement.seconds
