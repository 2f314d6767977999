"""Results of a simulated cluster in probes and between pairs of nodes, drawn for all ranks at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from pytest_ddpscale.judge.metrics import GIGA
from pytest_ddpscale.judge.values import unit_factor
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.estimate import OVERHEAD_PER_BLOCK_S
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import KINDS, Operation
from pytest_ddpscale.plan.pairing import (
    SLOW_SHARES,
    NodePair,
    PairResult,
    PairStudy,
    are_stalled,
    is_undecided,
    next_round,
)
from pytest_ddpscale.plan.study import ProbeStudy
from pytest_ddpscale.run.block import STEP_S, Block
from pytest_ddpscale.run.records import EndReason
from pytest_ddpscale.simulate.allreduce import all_reduce_s
from pytest_ddpscale.simulate.faults import Moment
from pytest_ddpscale.simulate.measuring import GANG, IntArray, SimulatedRun
from pytest_ddpscale.simulate.performance import FloatArray
from pytest_ddpscale.simulate.spread import COMPUTING

_DIGITS = 7  # of seconds
_MATMUL_FLOPS = 2.0 * 8192**3


def measure_probes(run: SimulatedRun, study: ProbeStudy, number: int, reached: Mapping[Arm, float]) -> Iterator[Block]:
    """One round of the probes, in random order. Call once per round, in order.

    `reached` are the values of a sound cluster in each probe, in the unit of its metric: TFLOPS or GB/s.
    """
    when = run.begin_round(number)
    for place in run.chance.permutation(len(study.arms)):
        yield from _probed(run, study, study.arms[place], reached[study.arms[place]], when)


def _probed(run: SimulatedRun, study: ProbeStudy, probe: Arm, reached: float, when: Moment) -> Iterator[Block]:
    groups, turn_of = _groups_in_turns(run.plan.layout, probe)
    operation, work = probe.operation, _work(probe.operation)
    sound_s = work * unit_factor(probe) / reached
    iterations = max(1, int(study.block_s / sound_s))
    noise, normal = run.performance.noise, run.chance.standard_normal
    own_s = sound_s * iterations * run.faults.drift(when) / _shares(run, probe, groups, when, reached)
    group_s = own_s * run.noise_of_round(study, probe.name, len(groups), when)
    group_s = group_s + run.resent_s(groups, iterations, 1)[:, 0]
    seconds = group_s[:, None] * (1 + noise.rank_sd * normal(groups.shape))
    began_s, longest_s = run.clock_s, float(seconds.max())
    run.clock_s += (1 + int(turn_of.max())) * longest_s + OVERHEAD_PER_BLOCK_S
    there = ~np.isin(groups, list(run.faults.missing(when.round)))
    if operation.kind == "send-recv":
        there &= there.all(axis=1, keepdims=True)
    corrupt = list(run.faults.corrupt) if operation.kind == "matmul" else []
    for turn in np.unique(turn_of).tolist():
        mine = there & (turn_of == turn)[:, None]
        if not mine.any():
            continue
        columns: dict[str, Any] = {"ranks": groups[mine], "seconds": np.round(seconds[mine], _DIGITS), "groups": 0}
        if len(groups) > 1 and not operation.is_single_device:
            columns["groups"] = np.nonzero(mine)[0] - turn_of.searchsorted(turn)
        if operation.is_single_device and run.plan.nodes > 1:  # all of a node at the same time
            columns["groups"] = columns["ranks"] // run.plan.layout.ranks_per_node
        is_correct = ~np.isin(columns["ranks"], corrupt)
        yield Block(
            study=study.id,
            arm=probe.name,
            round=when.round,
            turn=turn,
            gang=GANG,
            count=iterations,
            work=work,
            began_unix_s=round(began_s + turn * longest_s, 3),
            readings={"is_correct": True if is_correct.all() else is_correct},  # type: ignore[dict-item]
            **columns,
        )


def _work(operation: Operation) -> float:
    """FLOPs or bytes of one iteration, as a GPU's."""
    if operation.precision is not None:
        return operation.named_flops or _MATMUL_FLOPS
    kind = KINDS[operation.kind]
    return float(operation.message_bytes or kind.buffer_bytes["cuda"] * kind.counts)


@lru_cache(maxsize=32)
def _groups_in_turns(layout: Layout, probe: Arm) -> tuple[IntArray, IntArray]:
    """Groups of ranks that do a probe together, one per row, and their turns; only pairs take turns."""
    turns = [np.array(layout.groups(probe, turn)) for turn in range(layout.turns(probe))]
    return np.concatenate(turns), np.repeat(np.arange(len(turns)), list(map(len, turns)))


def _shares(run: SimulatedRun, probe: Arm, groups: IntArray, when: Moment, reached: float) -> FloatArray:
    """Share of a sound group's pace that each group of ranks reaches, by its slowest rank and its links."""
    own, others = dict(run.faults.probe_shares(probe)), run.faults.common_probe_share(probe)
    if probe.operation.kind == "matmul":
        others /= run.faults.common_slowdown(when)
        for rank, factor in run.faults.slowdowns(when).items():
            own[rank] = own.get(rank, 1.0) / factor
    factors = {rank: others * share for rank, share in own.items()}
    differences = run.differences(COMPUTING if probe.operation.kind == "matmul" else probe.kind)
    found: FloatArray = (run.of_ranks(factors, others) / differences)[groups].min(axis=1)
    return found if probe.operation.is_single_device else found * _link_shares(run, probe, groups, reached)


def _link_shares(run: SimulatedRun, probe: Arm, groups: IntArray, reached: float) -> FloatArray:
    """Share of a sound group's bandwidth, `reached` in GB/s, that its links leave it.

    Links inside a node slow a collective of several nodes only if less is left of them than its ring needs.
    """
    inside, between = run.links_left(groups).T
    room = max(1.0, run.performance.topology.inside.bytes_per_s / GIGA / reached)
    is_pairs = probe.operation.kind == "send-recv"
    of_several_nodes = between if is_pairs else np.minimum(between, room * inside)
    left: FloatArray = np.where(run.span_nodes(groups), of_several_nodes, inside)
    for pair, share in run.faults.pair_shares.items() if is_pairs else ():
        left = left * np.where(np.isin(groups, pair).all(axis=1), share, 1.0)
    return left


def search_pairs(run: SimulatedRun, study: PairStudy) -> Generator[Block, None, EndReason]:
    """Rounds of the search for a slow node or link; returns why it ended."""
    nodes, results = run.plan.layout.nodes, list[PairResult]()
    slow_share, number = SLOW_SHARES[run.plan.device_type], 0
    while pairs := next_round(nodes, results, slow_share):
        paired = _paired(run, study, pairs, number)
        if paired is None:
            return "error"
        yield paired
        results += _results(paired, run.plan.layout.ranks_per_node)
        number += 1
    return "rounds" if is_undecided(nodes, results, slow_share) else "decided"


def _results(paired: Block, per_node: int) -> Iterator[PairResult]:
    """Each pair of nodes with the fastest message of its slowest rail."""
    step_s = paired.each(STEP_S)[::2]  # both ranks of a rail say the same
    gbps, stalled = paired.each("work")[::2] / step_s.min(axis=1) / GIGA, are_stalled(step_s)
    by_pair: dict[NodePair, list[int]] = defaultdict(list)
    for rail, (one, other) in enumerate((paired.each("ranks").reshape(-1, 2) // per_node).tolist()):
        by_pair[one, other].append(rail)
    for pair, rails in by_pair.items():
        yield PairResult(paired.round, pair, float(gbps[rails].min()), bool(stalled[rails].any()))


def _paired(run: SimulatedRun, study: PairStudy, pairs: tuple[NodePair, ...], number: int) -> Block | None:
    """One round; None if every pair lacks a rank."""
    per_node = run.plan.layout.ranks_per_node
    firsts = np.array(pairs) * per_node
    ranks = (firsts[:, None, :] + np.arange(per_node)[None, :, None]).reshape(-1, 2)
    sound_s = all_reduce_s(study.message_bytes, 2, 2, run.performance.topology)
    # Each round pairs other nodes, so their noise is not correlated.
    seconds = sound_s * np.exp(run.performance.noise.of_rounds.series(run.chance, 1, len(ranks))[:, 0])
    gbps = np.round(study.message_bytes / seconds / GIGA * run.links_left(ranks)[:, 1], 6)
    began_s = run.clock_s
    run.clock_s += study.iterations * sound_s + OVERHEAD_PER_BLOCK_S
    there = ~np.isin(ranks, list(run.faults.missing(number))).any(axis=1)
    if not there.any():
        return None
    # All messages take as long as the fastest, unless packets are lost.
    resent_s = run.resent_s(ranks, 1, study.iterations)
    step_s = ((study.message_bytes / (gbps * GIGA))[:, None] + resent_s)[there].repeat(2, axis=0)
    columns: dict[str, Any] = {
        "ranks": ranks[there].ravel(),
        "groups": np.arange(len(ranks))[there].repeat(2),
        "seconds": step_s.sum(axis=1),
        "series": {STEP_S: step_s.astype("<f4").tobytes()},
    }
    return Block(
        study=study.id,
        arm=study.arms[0].name,
        round=number,
        gang=GANG,
        count=study.iterations,
        work=float(study.message_bytes),
        began_unix_s=round(began_s, 3),
        **columns,
    )
