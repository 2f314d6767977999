"""What probes measured, as values of their metrics: one per round and place.

A place is what a bound is about: one device, one group of ranks that communicate, or one pair of ranks. Bandwidths
follow nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): with S bytes in t seconds among n ranks the bus
bandwidth, which is comparable with that of the hardware whatever n is, is

    all-reduce                   S/t · 2(n - 1)/n
    all-gather, reduce-scatter   S/t · (n - 1)/n, with S the whole buffer: gathered, or before it is scattered
    all-to-all                   S/t · (n - 1)/n, with S what a rank sends to all, itself among them
    broadcast, reduce            S/t
    send-recv                    S/t, with S what each end sends

Where nccl-tests gives the mean time of all ranks, the slowest rank's counts here: what is looked for is a bad one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from pytest_ddpscale.evidence.probe_columns import ProbeColumns
from pytest_ddpscale.metrics.per_place import PerPlace
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.per_round import PerRound
from pytest_ddpscale.plan.probe import SINGLE_DEVICE, Probe
from pytest_ddpscale.plan.probe_pairs import Ranks, expected_ranks
from pytest_ddpscale.results.column_record import BoolArray, IntArray
from pytest_ddpscale.results.probe_record import NO_PEER, ProbeMeasurement

TERA, GIGA = 1e12, 1e9
# What a worker may leave of a message, so that ranks share it evenly in aligned pieces: bytes for each rank.
_ALIGNMENT_BYTES = 256
# What each rank keeps for itself, one of n parts of the message, crosses no link.
_SHARED_EVENLY = ("all-gather", "reduce-scatter", "all-to-all")


class ProbedPlace(Struct, frozen=True, cache_hash=True):  # thousands are looked up: no dataclass is as quick
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

    @property
    def name(self) -> str:
        """``GPU 3 of n1``, ``CPU rank 3 of n1``, ``n1``, ``ranks 0 to 15`` or ``GPUs 2 and 5 of n1``."""
        if self.kind == "node":
            return self.host
        if self.kind == "gang":
            return f"ranks {self.ranks[0]} to {self.ranks[-1]}"
        device = "CPU rank" if self.gpu_uuid == "cpu" else "GPU"
        if self.kind == "gpu":
            return f"{device} {self.gpu_index} of {self.host}"
        if self.host == self.peer_host:
            return f"{device}s {self.gpu_index} and {self.peer_gpu_index} of {self.host}"
        return f"{device} {self.gpu_index} of {self.host} and {self.peer_gpu_index} of {self.peer_host}"

    @property
    def noun(self) -> str:
        """What several of its kind are called."""
        return {"gpu": "GPUs", "node": "nodes", "gang": "groups", "link": "pairs"}[self.kind]


def value_of(measurement: ProbeMeasurement) -> float:
    """What one rank measured: TFLOPS (10¹² operations per second) of a matmul; else GB/s (10⁹ bytes per second)."""
    return measurement.per_second * _factor(Probe(measurement.probe, measurement.world_size))


def places(probed: ProbeColumns | None, probe: Probe, layout: Layout) -> Mapping[ProbedPlace, PerRound]:
    """Values of a probe, in its metric's unit, by place.

    A round in which a rank of a place is missing is left out: how slow that one was is unknown. So is a measurement
    with another message than the probe's. The slowest rank sets the value.

    Args:
        probed: what was measured of it; None if nothing was.
        probe: with its message.
        layout: of the gang as it was planned; ranks that are not in it are passed over.

    Raises:
        ValueError: as `expected_ranks`.
    """
    if probed is None:
        expected_ranks(probe, layout)
        return {}
    key = probe, layout
    if key not in probed.kept:
        probed.kept[key] = _places_there(probed, probe, layout)
    found, ends = probed.kept[key]
    if not found:
        return {}
    values = np.where(_counts(probed, probe), probed.per_second * _factor(probe), np.nan)
    return PerPlace(found, probed.numbers, values[:, ends].min(axis=2).T)  # NaN if any is


def _places_there(probed: ProbeColumns, probe: Probe, layout: Layout) -> tuple[list[ProbedPlace], IntArray]:
    """Places of which all ranks are among the columns, and the columns of each, (places, ranks of one)."""
    expected = sorted(expected_ranks(probe, layout))
    ranks = np.array(expected, np.int64)
    peers = ranks[:, ::-1] if probe.kind == "send-recv" else np.full_like(ranks, NO_PEER)
    most = int(max(ranks.max(), probed.peers.max())) + 2  # so that a rank and its peer make one number
    columns, wanted = (one * most + peer + 1 for one, peer in ((probed.ranks.numbers, probed.peers), (ranks, peers)))
    at = np.minimum(np.searchsorted(columns, wanted), len(columns) - 1)
    at_all = (columns[at] == wanted).all(axis=1)
    who = list(zip(probed.ranks.hosts, probed.ranks.local_ranks.tolist(), probed.ranks.devices, strict=True))
    there = zip(np.flatnonzero(at_all).tolist(), at[at_all].tolist(), strict=True)
    return [place_of(probe, expected[i], [who[column] for column in ends]) for i, ends in there], at[at_all]


def _counts(probed: ProbeColumns, probe: Probe) -> BoolArray:
    """Where the message was the probe's, (rounds, ranks)."""
    size = probe.message_bytes
    if size is None:
        return probed.present
    return probed.present & (np.abs(probed.work - size) <= _ALIGNMENT_BYTES * probed.world_size)


def place_of(probe: Probe, ranks: Ranks, ends: Sequence[tuple[str, int, str]]) -> ProbedPlace:
    """The place that these ranks form, of each of which host, local rank and device are known."""
    kind = probe.kind
    if kind in SINGLE_DEVICE:
        return ProbedPlace("gpu", ranks, *ends[0])
    if kind == "send-recv":
        return ProbedPlace("link", ranks, *ends[0], *ends[1])
    is_one_host = len({host for host, _, _ in ends}) == 1
    return ProbedPlace("node" if is_one_host else "gang", ranks, ends[0][0])


def _factor(probe: Probe) -> float:
    """Of what ranks do per second, in the unit of the metric."""
    return 1 / TERA if probe.kind == "matmul" else bus_factor(probe) / GIGA


def bus_factor(probe: Probe) -> float:
    """Bus bandwidth over bytes of the message per second."""
    n = probe.world_size
    if probe.kind == "all-reduce":
        return 2 * (n - 1) / n
    return (n - 1) / n if probe.kind in _SHARED_EVENLY else 1.0
