"""Values of probe metrics: one per round and place.

A bound applies to each place: one device, one group of ranks that communicate, or one pair of ranks. Bandwidths
follow nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): with S bytes in t seconds among n ranks the bus
bandwidth, which is comparable with that of the hardware for any n, is

    all-reduce                   S/t · 2(n - 1)/n
    all-gather, reduce-scatter   S/t · (n - 1)/n, with S the whole buffer: gathered, or before it is scattered
    all-to-all                   S/t · (n - 1)/n, with S all bytes that a rank sends, including those to itself
    broadcast, reduce            S/t
    send-recv                    S/t, with S the bytes that each end sends

nccl-tests takes the mean time of all ranks; here the slowest rank's time counts, because the aim is to find a bad one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from msgspec import Struct

from pytest_ddpscale.judge.rounds import GIGA, TERA
from pytest_ddpscale.judge.values import Missing, Values, Why, why_broken
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout, Ranks
from pytest_ddpscale.run.column_record import IntArray
from pytest_ddpscale.run.columns import ArmColumns
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.rank_columns import RankColumns
from pytest_ddpscale.util.listing import first_few

# A worker may shorten a message by up to this per rank, to split it evenly in aligned pieces.
_ALIGNMENT_BYTES = 256
# Each rank keeps one of n parts of the message, which crosses no link.


class JudgedPlace(Struct, frozen=True, cache_hash=True):  # thousands are looked up: faster than a dataclass
    """The place that a value belongs to.

    Attributes:
        kind: ``gpu``: one device. ``node``: all or a group of the ranks of one host. ``gang``: a group of ranks of
            several. ``link``: a pair of ranks.
        ranks: global ranks that measure a probe together, in order.
        host: host of the device or the group; for a gang that of its first rank, for a link that of the lower rank.
        ends: the device, or those of both ranks of a link; none of a group.
    """

    kind: Literal["gpu", "node", "gang", "link"]
    ranks: Ranks
    host: str
    ends: tuple[Place, ...] = ()

    @property
    def is_between_nodes(self) -> bool:
        """Whether it is a link between two nodes."""
        return any(end.host != self.host for end in self.ends)

    @property
    def name(self) -> str:
        """``GPU 3 of n1``, ``CPU rank 3 of n1``, ``n1``, ``ranks 0 to 15`` or ``GPUs 2 and 5 of n1``."""
        if self.kind == "node":
            return self.host
        if self.kind == "gang":
            return f"ranks {self.ranks[0]} to {self.ranks[-1]}"
        if self.kind == "gpu":
            return f"{self.ends[0].number} of {self.host}"
        (device, _, number), (_, _, other) = (end.number.rpartition(" ") for end in self.ends)
        if self.is_between_nodes:
            return f"{device} {number} of {self.host} and {other} of {self.ends[1].host}"
        return f"{device}s {number} and {other} of {self.host}"

    @property
    def noun(self) -> str:
        """Plural noun for its kind."""
        return {"gpu": "GPUs", "node": "nodes", "gang": "groups", "link": "pairs"}[self.kind]


_NOTHING = Values[JudgedPlace]("factors", (), np.zeros(0, np.int64), np.zeros((0, 0)), {}, None, np.zeros(0))


def values_of_probe(probe: Arm, evidence: Evidence) -> Values[JudgedPlace]:
    """Values of a probe, in its metric's unit, at the places that took part.

    Raises:
        ValueError: raised by `Layout.crews`.
    """
    study = evidence.plan.probes
    if study is None or probe not in study.arms:
        return replace(_NOTHING, broken=Missing(Why.NOT_PROBED))
    found = probed_values(evidence.probed(probe), probe, evidence.plan.layout)
    why = Missing(Why.NO_PROBED_ROUND)
    if probe.name in evidence.unsupported:
        why = Missing(Why.UNSUPPORTED, evidence.unsupported[probe.name])
    missing = {found.places[place]: why for place in np.flatnonzero(found.rounds() == 0).tolist()}
    return replace(found, missing=missing, broken=why_broken(study.id, evidence))


def probed_values(probed: ArmColumns | None, probe: Arm, layout: Layout) -> Values[JudgedPlace]:
    """Values in measurements of a probe, None if there are none; ranks outside the layout are ignored.

    The slowest rank sets the value. Rounds in which a rank of the place is missing are left out, because its speed is
    unknown, and so are measurements with another message or matrix size than the probe's name has.

    Raises:
        ValueError: raised by `Layout.crews`.
    """
    if probed is None:
        layout.groups_of_round(probe)
        return _NOTHING
    form = "single device" if probe.operation.is_single_device else probe.operation.kind
    key = form, probe.world_size, layout  # probes of a form have the same places, whatever else they ask
    found, ends = probed.ranks.once(key, lambda: _places_there(probed.ranks, probe, layout))
    if not found:
        return _NOTHING
    numbers, rounds = np.unique(probed.numbers, return_inverse=True)
    counts = probed.present
    if probe.operation.message_bytes is not None:
        counts = counts & (np.abs(probed.work - probe.operation.message_bytes) <= _ALIGNMENT_BYTES * probe.world_size)
    if probe.operation.named_flops is not None:
        counts = counts & (probed.work == probe.operation.named_flops)
    reached = np.where(counts, probed.per_second * unit_factor(probe), np.nan)
    values = np.full((len(found), len(numbers)), np.nan)
    for turn in np.unique(probed.turn):
        rows = np.flatnonzero(probed.turn == turn)
        groups, mine = probed.groups[rows], np.arange(len(found))
        if (groups == groups[:1]).all():  # look only at those whose turn it is
            mine = np.flatnonzero((groups[0][ends] == groups[0][ends[:, :1]]).all(axis=1))
        together = (groups[:, ends[mine]] == groups[:, ends[mine, :1]]).all(axis=2)
        slowest = np.where(together, reached[rows][:, ends[mine]].min(axis=2), np.nan)  # NaN if any is
        cells = np.ix_(mine, rounds[rows])
        values[cells] = np.fmax(values[cells], slowest.T)
    return replace(_NOTHING, places=found, numbers=numbers, samples=values, errors=np.full(len(found), np.nan))


def why_incomplete(probe: Arm, values: Values[JudgedPlace], evidence: Evidence) -> str:
    """Why a probe cannot pass although nothing fails: it is unsupported, or places are missing; else empty."""
    if probe.name in evidence.unsupported:
        return Missing(Why.UNSUPPORTED, evidence.unsupported[probe.name]).text(probe)
    expected = evidence.plan.layout.groups_of_round(probe)
    there = [place for place, rounds in zip(values.places, values.rounds().tolist(), strict=True) if rounds]
    if len(there) == len(expected):
        return ""
    if not there:
        return Missing(Why.NO_PROBED_ROUND).text(probe)
    seen = {place.ranks for place in there}
    names = list(dict.fromkeys(_name_of_ranks(ranks, evidence) for ranks in expected if ranks not in seen))
    are = "is" if len(names) == 1 else "are"
    text = f"measured on {len(there)} of {len(expected)} {there[0].noun}; {first_few(names)} {are} missing"
    hosts = {host for probed in evidence.probes for host in probed.ranks.by_host}
    unseen = sorted(set(evidence.hosts) - hosts)
    return f"{text} (no results from {first_few(unseen)})" if unseen else text


def _name_of_ranks(ranks: Ranks, evidence: Evidence) -> str:
    """Name of a place without measurements: ``local rank 3 of n1``, or the node's number if its name is unknown."""
    layout = evidence.plan.layout
    numbers = sorted({rank // layout.ranks_per_node for rank in ranks})
    ends = [(probed.ranks.numbers.tolist(), probed.ranks.hosts.tolist()) for probed in evidence.probes]
    hosts = {
        rank // layout.ranks_per_node: host for ranks, names in ends for rank, host in zip(ranks, names, strict=True)
    }
    where = " and ".join(hosts.get(number, f"node {number + 1} of {layout.nodes}") for number in numbers)
    if len(ranks) > 2 or not set(numbers) <= set(hosts):
        return where
    local = " and ".join(str(rank % layout.ranks_per_node) for rank in ranks)
    return f"local rank{'s' if len(ranks) > 1 else ''} {local} of {where}"


def _places_there(who: RankColumns, probe: Arm, layout: Layout) -> tuple[list[JudgedPlace], IntArray]:
    """Places whose ranks all have a column, and the columns of each, (places, ranks of one)."""
    expected = sorted(layout.groups_of_round(probe))
    ranks = np.array(expected, np.int64)
    at = np.minimum(np.searchsorted(who.numbers, ranks), len(who) - 1)
    at_all = (who.numbers[at] == ranks).all(axis=1)
    there = zip(np.flatnonzero(at_all).tolist(), at[at_all].tolist(), strict=True)
    ends = who.rank_places
    return [place_of(probe, expected[i], [ends[column] for column in of]) for i, of in there], at[at_all]


def place_of(probe: Arm, ranks: Ranks, ends: Sequence[Place]) -> JudgedPlace:
    """The place that these ranks, which are at `ends`, form."""
    kind = probe.operation.kind
    if probe.operation.is_single_device:
        return JudgedPlace("gpu", ranks, ends[0].host, (*ends,))
    if kind == "send-recv":
        return JudgedPlace("link", ranks, ends[0].host, (*ends,))
    is_one_host = len({end.host for end in ends}) == 1
    return JudgedPlace("node" if is_one_host else "gang", ranks, ends[0].host)


def unit_factor(probe: Arm) -> float:
    """Factor from work per second to the metric's unit, TFLOPS for a matmul and GB/s for others."""
    if probe.operation.precision is not None:
        return 1 / TERA
    return probe.operation.bus_factor(probe.world_size) / GIGA
