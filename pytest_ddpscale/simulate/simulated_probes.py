"""Results of a simulated cluster in probes and between pairs of nodes, drawn for all ranks at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from pytest_ddpscale.judge.probes import GIGA, TERA, bus_factor
from pytest_ddpscale.plan.estimate import OVERHEAD_PER_BLOCK_S
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.pairing import SLOW_SHARES, NodePair, PairResult, PairStudy, next_round
from pytest_ddpscale.plan.probe import SINGLE_DEVICE, Probe, ProbeStudy
from pytest_ddpscale.plan.probe_pairs import expected_ranks, pair_turns
from pytest_ddpscale.run.pair_record import PairRound
from pytest_ddpscale.run.probe_record import ProbeBlock
from pytest_ddpscale.run.strict_json import each
from pytest_ddpscale.simulate.allreduce import all_reduce_s
from pytest_ddpscale.simulate.faults import Moment
from pytest_ddpscale.simulate.measuring import GANG, IntArray, SimulatedRun
from pytest_ddpscale.simulate.performance import FloatArray
from pytest_ddpscale.simulate.spread import COMPUTING

_DIGITS = 7  # of seconds
_MATMUL_FLOPS = 2.0 * 8192**3
# As in `worker/probes/memory.py`; within a device each byte is read and written.
_COPIED_BYTES = {"memory-copy": 2.0**31, "host-to-device": 2.0**28, "device-to-host": 2.0**28}


def measure_probes(
    run: SimulatedRun, study: ProbeStudy, number: int, reached: Mapping[Probe, float]
) -> Iterator[ProbeBlock]:
    """One round of the probes, in random order. Call once per round, in order.

    `reached` are the values of a sound cluster in each probe, in the unit of its metric: TFLOPS or GB/s.
    """
    when = run.begin_round(number)
    for place in run.chance.permutation(len(study.probes)):
        yield from _probed(run, study, study.probes[place], reached[study.probes[place]], when)


def _probed(run: SimulatedRun, study: ProbeStudy, probe: Probe, reached: float, when: Moment) -> Iterator[ProbeBlock]:
    groups, turn_of = _groups_in_turns(run.plan.layout, probe)
    work = _MATMUL_FLOPS if probe.kind == "matmul" else _COPIED_BYTES.get(probe.kind) or float(probe.message_bytes or 0)
    sound_s = work * (1 / TERA if probe.kind == "matmul" else bus_factor(probe) / GIGA) / reached
    iterations = max(1, int(study.block_s / sound_s))
    noise, normal = run.performance.noise, run.chance.standard_normal
    own_s = sound_s * iterations * run.faults.drift(when) / _shares(run, probe, groups, when)
    group_s = own_s * run.noise_of_round(study, probe.id, len(groups), when)
    seconds = group_s[:, None] * (1 + noise.rank_sd * normal(groups.shape))
    began_s, started = run.clock_s, (run.clock_s + turn_of * seconds.max()).repeat(groups.shape[1])
    run.clock_s += (1 + int(turn_of.max())) * float(seconds.max()) + OVERHEAD_PER_BLOCK_S
    missing = list(run.faults.missing(when.round))
    ranks, peers = groups.ravel(), groups[:, ::-1].ravel() if probe.kind == "send-recv" else None
    there = ~np.isin(ranks, missing) if peers is None else ~(np.isin(ranks, missing) | np.isin(peers, missing))
    is_wrong = np.isin(ranks, list(run.faults.corrupt)) if probe.kind == "matmul" else np.zeros(len(ranks), dtype=bool)
    if there.any():
        columns: dict[str, Any] = {"ranks": ranks[there], "seconds": np.round(seconds.ravel()[there], _DIGITS)}
        columns["peers"] = None if peers is None else peers[there]
        yield ProbeBlock(
            study=study.id,
            probe=probe.name,
            world_size=probe.world_size,
            round=when.round,
            gang=GANG,
            iterations=iterations,
            work=work,
            started_unix_s=tuple(np.round(started[there], 3).tolist()) if turn_of.any() else round(began_s, 3),
            is_correct=tuple((~is_wrong[there]).tolist()) if is_wrong.any() else True,
            **columns,
        )


@lru_cache(maxsize=32)
def _groups_in_turns(layout: Layout, probe: Probe) -> tuple[IntArray, IntArray]:
    """Groups of ranks that do a probe together, one per row, and their turns; only pairs take turns."""
    if probe.kind != "send-recv":
        groups = np.array(expected_ranks(probe, layout))
        return groups, np.zeros(len(groups), dtype=np.int64)
    turns = pair_turns(probe, layout)
    return np.concatenate([np.array(turn) for turn in turns]), np.repeat(np.arange(len(turns)), list(map(len, turns)))


def _shares(run: SimulatedRun, probe: Probe, groups: IntArray, when: Moment) -> FloatArray:
    """Share of a sound group's pace that each group of ranks reaches, by its slowest rank and its links."""
    factors, others = dict(run.faults.probe_shares(probe)), 1.0
    if probe.kind == "matmul":
        others = 1 / run.faults.common_slowdown(when)
        for rank, factor in run.faults.slowdowns(when).items():
            factors[rank] = factors.get(rank, 1.0) * others / factor
    differences = run.differences(COMPUTING if probe.kind == "matmul" else probe.name)
    found: FloatArray = (run.of_ranks(factors, others) / differences)[groups].min(axis=1)
    return found if probe.kind in SINGLE_DEVICE else found * run.link_share(groups)


def search_pairs(run: SimulatedRun, study: PairStudy) -> Iterator[PairRound]:
    """Rounds of the search for a slow node or link, until it is found."""
    nodes, results = run.plan.layout.nodes, list[PairResult]()
    slow_share, number = SLOW_SHARES[run.plan.device_type], 0
    while pairs := next_round(nodes, results, slow_share):
        paired = _paired(run, study, pairs, number)
        yield paired
        per_node = run.plan.layout.ranks_per_node
        slowest: dict[NodePair, float] = {}
        for (one, other), gbps in zip(paired.ranks, each(paired.busbw_gbps, len(paired.ranks)), strict=True):
            pair = one // per_node, other // per_node
            slowest[pair] = min(slowest.get(pair, gbps), gbps)
        results += [PairResult(number, pair, gbps) for pair, gbps in slowest.items()]
        number += 1


def _paired(run: SimulatedRun, study: PairStudy, pairs: tuple[NodePair, ...], number: int) -> PairRound:
    per_node = run.plan.layout.ranks_per_node
    firsts = np.array(pairs) * per_node
    ranks = (firsts[:, None, :] + np.arange(per_node)[None, :, None]).reshape(-1, 2)
    sound_s = all_reduce_s(study.message_bytes, 2, 2, run.performance.topology)
    # Each round pairs other nodes, so their noise is not correlated.
    seconds = sound_s * np.exp(run.performance.noise.of_rounds.series(run.chance, 1, len(ranks))[:, 0])
    gbps = study.message_bytes / seconds / GIGA * run.link_share(ranks)
    run.clock_s += study.iterations * sound_s + OVERHEAD_PER_BLOCK_S
    there = ~np.isin(ranks, list(run.faults.missing(number))).any(axis=1)
    return PairRound(
        study=study.id,
        round=number,
        gang=GANG,
        message_bytes=study.message_bytes,
        iterations=study.iterations,
        ranks=tuple(map(tuple, ranks[there].tolist())),
        busbw_gbps=tuple(np.round(gbps, 6)[there].tolist()),
    )
