"""Measurements of a simulated cluster with faults: training, probes and pairs of nodes, drawn for all ranks at once."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from pytest_ddpscale.judge.metrics import GIGA
from pytest_ddpscale.judge.values import unit_factor
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.estimate import OVERHEAD_PER_BLOCK_S, STARTUP_S
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import KINDS, Operation
from pytest_ddpscale.plan.pairing import SLOW_SHARES, PairResult, PairStudy, are_stalled, is_undecided, next_round
from pytest_ddpscale.plan.study import FEWEST_STEPS_PER_BLOCK, STEPS_BEFORE_TIMING, Plan, ProbeStudy, Study
from pytest_ddpscale.run.block import STEP_S, Block, joined_checksums, step_bytes
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import (
    RankStretch,
    RoundEnd,
    SeededStep,
    SeededSteps,
    StudyEnd,
    StudyStart,
    Sustained,
    WorkloadFlops,
)
from pytest_ddpscale.simulate.machine import (
    COMPUTING,
    DUTY,
    FORWARD_SHARE,
    HEATING_S,
    Performance,
    all_reduce_s,
    model_of,
)
from pytest_ddpscale.simulate.options import InjectedFault
from pytest_ddpscale.util.arrays import BoolArray, FloatArray, IntArray

# TCP's shortest wait for a lost packet on Linux.
RESEND_S = 0.2
# A throttling node heats up exponentially; this is the time constant in rounds (63 % of the way).
THROTTLE_ROUNDS = 3.0
LANES_LEFT = 0.25  # of the PCIe lanes of a bad GPU
HELD_DOWN = 1.3  # slowdown of a GPU with throttled clocks
GANG = 0  # number of the only gang
_WRONG = "f" * 16
_DIGITS = 7  # decimals of seconds; more would only lengthen the file
_MATMUL_FLOPS = 2.0 * 8192**3


class Moment(NamedTuple):
    """A moment of the run: round of a study, from 0; rounds of the whole run before it, and their share, 0 … 1."""

    round: int
    rounds_before: int
    done: float


@dataclass(frozen=True)
class Faults:
    """All faults of a simulated cluster as arrays over its ranks, (ranks,). Several of a rank act together."""

    faults: Sequence[InjectedFault]
    layout: Layout

    def slowdown(self, when: Moment) -> FloatArray:
        """Factor on computation time."""
        return self._combined(lambda fault: _slowdown(fault, when))

    def drift(self, when: Moment) -> float:
        """Factor on the time of all ranks, whatever they do."""
        return math.prod(1 + fault.size / 100 * when.done for fault in self.faults if fault.kind == "drift")

    def probe_share(self, probe: Arm) -> FloatArray:
        """Share of its pace that is left in a probe, apart from slower computation."""
        return self._combined(lambda fault: _probe_share(fault, probe))

    def left(self, *kinds: str) -> FloatArray:
        """Share of bandwidth that faults of these kinds leave; of several the worst counts."""
        return self._least(lambda fault: fault.size if fault.kind in kinds and len(fault.places) < 2 else 1.0)

    def arriving(self) -> FloatArray:
        """Share of the messages to other nodes that lose no packets; of several faults the worst counts."""
        return self._least(lambda fault: 1 - fault.size if fault.kind == "lossy-link" else 1.0)

    def struck(self, kind: str, subject: str = "", number: float = math.inf) -> BoolArray:
        """Which ranks have this fault in this round of every study."""
        sound = self._least(lambda fault: (fault.kind, fault.what) != (kind, subject) or number < fault.rounds)
        return np.asarray(sound == 0)

    def _combined(self, size_of: Callable[[InjectedFault], float], combine: np.ufunc = np.multiply) -> FloatArray:
        sizes = np.ones(self.layout.world_size)
        for fault in self.faults:
            width = self.layout.ranks_per_node if fault.is_of_node else 1
            first = width * fault.places[0] if fault.places else 0
            ranks = slice(first, first + width if fault.places else None)
            sizes[ranks] = combine(sizes[ranks], size_of(fault))
        return sizes

    def _least(self, size_of: Callable[[InjectedFault], float]) -> FloatArray:
        return self._combined(size_of, np.minimum)


def _slowdown(fault: InjectedFault, when: Moment) -> float:
    match fault.kind:
        case "slow-gpu":
            return fault.size
        case "ramp":
            return 1 + (fault.size - 1) * when.done
        case "step" if when.round >= fault.rounds:
            return fault.size
        case "at-times" if (when.round + 1) % fault.rounds == 0:
            return fault.size
        case "throttle":
            return 1 + (fault.size - 1) * -math.expm1(-when.rounds_before / THROTTLE_ROUNDS)
        case "bad-gpu" if fault.what == "clock":
            return HELD_DOWN
    return 1.0


def _probe_share(fault: InjectedFault, probe: Arm) -> float:
    match fault.kind, fault.what:
        case "slow-probe", probe.kind:
            return fault.size
        case "bad-gpu", "lanes" if probe.operation.kind in ("host-to-device", "device-to-host"):
            return LANES_LEFT
    return 1.0


class SimulatedRun:
    """One run of a plan on a cluster with faults. The same arguments give the same measurements."""

    def __init__(self, plan: Plan, performance: Performance, faults: Sequence[InjectedFault], seed: int) -> None:
        self.plan = plan
        self.performance = performance
        self.faults = Faults(faults, plan.layout)
        self.seed = seed
        self.clock_s = STARTUP_S
        self._chance = np.random.default_rng(seed)
        self._differences: dict[str, FloatArray] = {}
        self._noise: dict[str, FloatArray] = {}  # of one study only: a million GPUs need much memory
        self._arriving = self.faults.arriving()[:: plan.layout.ranks_per_node]
        between, inside = (self.faults.left("slow-link", kind) for kind in ("slow-port", "slow-gpu-link"))
        self._left = np.stack([inside, between], axis=1)
        self._rounds_done = 0
        self._rounds_in_run = sum(study.rounds for study in plan.studies) + (plan.probes.rounds if plan.probes else 0)

    def before_rounds(self, study: Study | ProbeStudy) -> Iterator[AnyRecord]:
        """Records before a study's first round; no rank is missing in its seeded step."""
        yield StudyStart(study=study.id, unix_s=round(self.clock_s, 3))
        if isinstance(study, ProbeStudy):
            return
        (right,), corrupt = self._checksums(1), self.faults.struck("corrupt-rank")
        ranks = study.ranks(study.arms, self.plan.layout)
        steps = (SeededStep(rank=rank, checksum=_WRONG if corrupt[rank] else right) for rank in ranks)
        yield SeededSteps(study=study.id, gang=GANG, ranks=tuple(steps))
        yield WorkloadFlops(study=study.id, flops_per_sample=model_of(study.workload).flops_per_sample)
        if study.stretched is not None:
            yield from self._stretch(study, study.stretched)

    def _stretch(self, study: Study, arm: Arm) -> Iterator[Sustained]:
        """An arm in one stretch, while GPUs become hot, from a random stream of its own: rounds stay the same."""
        chance, self._chance = self._chance, self._stream(f"{study.id}/sustained")
        block, varies = self._block(study, arm, Moment(0, 0, 0.0)), self.performance
        if block is not None:
            firsts = [int(first) for first, *_ in self.plan.layout.groups(arm)]
            noise = self._noise_of_round(study, arm.name, len(firsts), Moment(0, 0, 0.0))
            hot = dict(zip(firsts, (1 + DUTY * varies.heat) * noise, strict=True))
            ranks = []
            for rank, step_s in zip(map(int, block.ranks), block.each("seconds") / block.each("count"), strict=True):
                series = np.zeros(0)
                if rank in hot:
                    cold_s = float(step_s) / hot[rank]
                    times_s = np.arange(0.0, study.sustained_s, cold_s)
                    heat = 1 - varies.heat * np.expm1(-times_s / HEATING_S)
                    series = cold_s * heat * (1 + varies.noise.step_sd * self._chance.standard_normal(len(heat)))
                ranks.append(RankStretch(rank=rank, step_s=step_bytes(series)))
            yield Sustained(study=study.id, arm=arm.name, gang=GANG, ranks=tuple(ranks))
        self._chance = chance

    def _stream(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def measure_round(self, study: Study | ProbeStudy, number: int, timed: Sequence[Arm]) -> Iterator[Block | RoundEnd]:
        """One round of a study: blocks for each timed arm with any rank present, in random order. Call in order.

        The other arms are simulated too but not recorded, so that leaving arms out does not change the noise.
        """
        if number == 0:
            self._noise.clear()
            self.clock_s += study.warmup_s if isinstance(study, Study) else 0.0
        when = Moment(number, self._rounds_done, self._rounds_done / max(1, self._rounds_in_run - 1))
        self._rounds_done += 1
        for place in self._chance.permutation(len(study.arms)):
            arm = study.arms[place]
            if isinstance(study, ProbeStudy):
                blocks = [*self._probed(study, arm, when)]
            else:
                blocks = [block] if (block := self._block(study, arm, when)) else []
            yield from blocks if arm in timed else ()
        yield RoundEnd(study=study.id, round=number, arms=tuple(arm.name for arm in timed))

    def _block(self, study: Study, arm: Arm, when: Moment) -> Block | None:
        groups = _groups(self.plan.layout, arm, study.turn(self.plan.seed, when.round))
        sound, varies = self.performance.step_time(study, arm), self.performance.noise
        normal = self._chance.standard_normal
        own_s, is_ddp = sound.computation_s * self.faults.drift(when), arm.kind == "ddp"
        own_s *= 1 + DUTY * self.performance.heat
        steps = max(FEWEST_STEPS_PER_BLOCK, math.ceil(study.block_s / own_s))
        slower = sound.slowed_by(self.faults.slowdown(when)) * self._differences_in(COMPUTING)
        computed_s = own_s * slower[groups]
        noise = self._noise_of_round(study, arm.name, len(groups) if is_ddp else groups.size, when)
        noise, jitter = noise.reshape(len(groups), -1), varies.step_sd * normal((*groups.shape, steps))
        if is_ddp:
            step_s = self._together(study, arm, groups, computed_s[..., None] * (1 + jitter)) * noise[..., None]
        else:  # jitter leaves the mean of a block unchanged
            step_s = (computed_s * noise)[..., None] * (1 + jitter - jitter.mean(axis=-1, keepdims=True))
        step_s, ranks = step_s.reshape(-1, steps), groups.ravel()
        digests = None
        if is_ddp:
            of_ranks = np.repeat(self._checksums(len(groups)), groups.shape[1])
            digests = np.where(self.faults.struck("corrupt-rank")[ranks], _WRONG, of_ranks)
        utilization = sound.utilization + varies.utilization_sd * np.abs(normal(groups.size))
        began_s, longest_s = self.clock_s, float(step_s.sum(axis=1).max())
        self.clock_s += longest_s * (1 + STEPS_BEFORE_TIMING / steps) + OVERHEAD_PER_BLOCK_S
        present = ~self.faults.struck("missing-rank", number=when.round)[ranks]
        if not present.any():
            return None
        seconds = np.round(step_s[present].sum(axis=1), _DIGITS)
        expectation = self.performance.expectations[study.workload.name]
        readings: dict[str, Any] = {"utilization": np.round(np.minimum(1.0, utilization), 4)[present]}
        if not arm.infers:
            # Noise of its own, independent of the block's: what a rank loses in a round may be in either pass.
            noise = self._noise_of_round(study, f"{arm.name}/forward", groups.size, when)
            readings["forward_s"] = np.round((FORWARD_SHARE * steps * computed_s.ravel() * noise)[present], _DIGITS)
        if expectation.power_w is not None:
            readings["energy_j"] = np.round(expectation.power_w * seconds, 3)
        if not arm.infers:  # no peak memory of a forward pass is published
            readings["peak_memory_bytes"] = expectation.memory_bytes(study.workload, arm.batch_size)
            readings["skipped_steps"] = 0
        return self._recorded(
            study, arm, when.round, began_s,
            ranks=ranks[present],
            groups=np.arange(len(groups)).repeat(groups.shape[1])[present] if len(groups) > 1 else 0,
            count=steps,
            work=float(arm.batch_size),
            seconds=seconds,
            readings=readings,
            series={STEP_S: step_s[present].astype("<f4").tobytes()},
            digests=None if digests is None else joined_checksums(digests[present].tolist()),
        )  # fmt: skip

    def _recorded(
        self, study: Study | ProbeStudy | PairStudy, arm: Arm, number: int, began_s: float, **columns: Any
    ) -> Block:
        began_unix_s = round(began_s, 3)
        return Block(study=study.id, arm=arm.name, round=number, gang=GANG, began_unix_s=began_unix_s, **columns)

    def _noise_of_round(self, study: Study | ProbeStudy, name: str, number: int, when: Moment) -> FloatArray:
        """Factors on the times of a round, (number,); see `Noise` for which ranks share one.

        The series of all rounds are drawn with the first round, from a random stream per arm or probe, so that they do
        not depend on what else is measured or in which order.
        """
        key = f"{study.id}/{name}"
        if key not in self._noise:
            self._noise[key] = self.performance.noise.of_rounds(self._stream(key), study.rounds, number)
        return np.asarray(np.exp(self._noise[key][:, when.round]))

    def _together(self, study: Study, arm: Arm, groups: IntArray, computed_s: FloatArray) -> FloatArray:
        """Steps in which all ranks of a group wait for their slowest rank, and then for communication."""
        slowest_s, nodes = computed_s.max(axis=1), len(np.unique(self._nodes(groups[0])))
        model, exposed_s, left = model_of(study.workload), np.empty_like(slowest_s), self.links_left(groups)
        for shares in set(map(tuple, left.tolist())):
            slow = (left == shares).all(axis=1)
            exposed_s[slow] = self.performance.exposed_s(model, arm.world_size, nodes, slowest_s[slow], *shares)
        slowest_s = slowest_s + exposed_s + self._resent_s(groups, len(model.buckets), slowest_s.shape[1])
        rank_noise = self.performance.noise.rank_sd * self._chance.standard_normal((*groups.shape, 1))
        return np.asarray(slowest_s[:, None, :] * (1 + rank_noise))

    def _nodes(self, ranks: IntArray) -> IntArray:
        return ranks // self.plan.layout.ranks_per_node

    def links_left(self, groups: IntArray) -> FloatArray:
        """Shares of bandwidth left on the slowest links inside and between nodes of each group of ranks (a row),
        (groups, 2). As in a ring, a group uses the links between the nodes of successive ranks."""
        shares, nodes = self._left[groups].min(axis=1), self._nodes(groups)
        for fault in self.faults.faults:
            if fault.kind == "slow-link" and len(fault.places) == 2:
                ends = np.sort([nodes, np.roll(nodes, -1, axis=1)], axis=0)
                across = (ends == np.sort(fault.places)[:, None, None]).all(axis=0).any(axis=1)
                shares[across, 1] = np.minimum(shares[across, 1], fault.size)
        return np.asarray(shares)

    def _span_nodes(self, groups: IntArray) -> BoolArray:
        """Whether each group of ranks (a row) is on several nodes."""
        nodes = self._nodes(groups)
        return np.asarray(nodes.min(axis=1) < nodes.max(axis=1))

    def _resent_s(self, groups: IntArray, messages: int, times: int) -> FloatArray:
        """Seconds that each group of ranks (a row) waits for lost packets, (groups, times), so many messages each time.

        Messages inside a node lose none.
        """
        lossy, arrives = np.flatnonzero(self._arriving < 1), np.ones((len(groups), 1))
        if not len(lossy):
            return np.zeros((len(groups), times))
        for node in lossy:
            uses = self._span_nodes(groups) & (self._nodes(groups) == node).any(axis=1)
            arrives[uses] *= self._arriving[node]
        return np.asarray(RESEND_S * self._chance.binomial(messages, 1 - arrives, (len(groups), times)), np.float64)

    def _differences_in(self, quantity: str) -> FloatArray:
        """Factor on each sound rank's time for `quantity`; see `NodeSpread.factors`."""
        if quantity not in self._differences:
            self._differences[quantity] = self.performance.spread.factors(quantity, self.plan.layout, self.seed)
        return self._differences[quantity]

    def _checksums(self, number: int) -> list[str]:
        return [f"{bits:016x}" for bits in self._chance.integers(2**63, size=number).tolist()]

    def _probed(self, study: ProbeStudy, probe: Arm, when: Moment) -> Iterator[Block]:
        layout, operation, noise = self.plan.layout, probe.operation, self.performance.noise
        turns = [_groups(layout, probe, turn) for turn in range(layout.turns(probe))]
        groups, turn_of = np.concatenate(turns), np.repeat(np.arange(len(turns)), list(map(len, turns)))
        work = _work(operation)
        sound_s = work * unit_factor(probe) / self.performance.reached(probe)
        iterations = max(1, int(study.block_s / sound_s))
        own_s = sound_s * iterations * self.faults.drift(when) / self._shares(probe, groups, when)
        group_s = own_s * self._noise_of_round(study, probe.name, len(groups), when)
        group_s = group_s + self._resent_s(groups, iterations, 1)[:, 0]
        seconds = group_s[:, None] * (1 + noise.rank_sd * self._chance.standard_normal(groups.shape))
        began_s, longest_s = self.clock_s, float(seconds.max())
        self.clock_s += (1 + int(turn_of.max())) * longest_s + OVERHEAD_PER_BLOCK_S
        present = ~self.faults.struck("missing-rank", number=when.round)[groups]
        if operation.kind == "send-recv":
            present &= present.all(axis=1, keepdims=True)
        for turn in np.unique(turn_of).tolist():
            mine = present & (turn_of == turn)[:, None]
            ranks = groups[mine]
            if not len(ranks):
                continue
            of_ranks: Any = 0
            if not operation.is_single_device and len(groups) > 1:
                of_ranks = np.nonzero(mine)[0] - turn_of.searchsorted(turn)
            if operation.is_single_device and layout.nodes > 1:  # all of a node at the same time
                of_ranks = self._nodes(ranks)
            is_correct = ~self.faults.struck("corrupt-rank")[ranks] | (operation.kind != "matmul")
            yield self._recorded(
                study, probe, when.round, began_s + turn * longest_s,
                turn=turn,
                ranks=ranks,
                groups=of_ranks,
                count=iterations,
                work=work,
                seconds=np.round(seconds[mine], _DIGITS),
                readings={"is_correct": True if is_correct.all() else is_correct},
            )  # fmt: skip

    def _shares(self, probe: Arm, groups: IntArray, when: Moment) -> FloatArray:
        """Share of a sound group's pace that each group of ranks reaches, by its slowest rank and its links.

        Links inside a node slow a collective of several nodes only if less is left of them than its ring needs.
        """
        is_matmul, operation = probe.operation.kind == "matmul", probe.operation
        own = self.faults.probe_share(probe) / (self.faults.slowdown(when) if is_matmul else 1.0)
        shares = (own / self._differences_in(COMPUTING if is_matmul else probe.kind))[groups].min(axis=1)
        if operation.is_single_device:
            return np.asarray(shares)
        inside, between = self.links_left(groups).T
        room = max(1.0, self.performance.topology.inside.bytes_per_s / GIGA / self.performance.reached(probe))
        is_pairs = operation.kind == "send-recv"
        of_several_nodes = between if is_pairs else np.minimum(between, room * inside)
        shares = shares * np.where(self._span_nodes(groups), of_several_nodes, inside)
        for fault in self.faults.faults:
            if is_pairs and fault.kind == "slow-pair":
                shares = shares * np.where(np.isin(groups, fault.places).all(axis=1), fault.size, 1.0)
        return np.asarray(shares)

    def search_pairs(self, study: PairStudy) -> Iterator[StudyStart | Block | StudyEnd]:
        """Rounds of the search for a slow node or link, until it is known or every pair lacks a rank."""
        yield StudyStart(study=study.id, unix_s=round(self.clock_s, 3))
        layout, results, slow_share = self.plan.layout, list[PairResult](), SLOW_SHARES[self.plan.device_type]
        sound_s = all_reduce_s(study.message_bytes, 2, 2, self.performance.topology)
        for number in count():
            pairs = next_round(layout.nodes, results, slow_share)
            firsts, slots = np.array(pairs) * layout.ranks_per_node, np.arange(layout.ranks_per_node)
            if not pairs:
                break
            ranks = (firsts[:, None, :] + slots[None, :, None]).reshape(-1, 2)
            # Each round pairs other nodes, so their noise is not correlated.
            seconds = sound_s * np.exp(self.performance.noise.of_rounds(self._chance, 1, len(ranks))[:, 0])
            gbps = np.round(study.message_bytes / seconds / GIGA * self.links_left(ranks)[:, 1], 6)
            began_s = self.clock_s
            self.clock_s += study.iterations * sound_s + OVERHEAD_PER_BLOCK_S
            present = ~self.faults.struck("missing-rank", number=number)[ranks].any(axis=1)
            if not present.any():
                yield StudyEnd(study=study.id, reason="error")
                return
            # All messages take as long as the fastest, unless packets are lost.
            resent_s = self._resent_s(ranks, 1, study.iterations)
            step_s = (study.message_bytes / (gbps * GIGA))[:, None] + resent_s
            both_s = step_s[present].repeat(2, axis=0)
            yield self._recorded(
                study, study.arms[0], number, began_s,
                ranks=ranks[present].ravel(),
                groups=np.arange(len(ranks))[present].repeat(2),
                count=study.iterations,
                work=float(study.message_bytes),
                seconds=both_s.sum(axis=1),
                series={STEP_S: both_s.astype("<f4").tobytes()},
            )  # fmt: skip
            recorded_s = step_s.astype("<f4")
            gbps = study.message_bytes / recorded_s.min(axis=1).astype(float) / GIGA
            slowest = np.where(present, gbps, np.inf).reshape(len(pairs), -1).min(axis=1)
            stalled: BoolArray = np.any((present & are_stalled(recorded_s)).reshape(len(pairs), -1), axis=1)
            measured = zip(pairs, slowest.tolist(), stalled.tolist(), strict=True)
            results += [PairResult(number, *one) for one in measured if math.isfinite(one[1])]
        is_open = is_undecided(layout.nodes, results, slow_share)
        yield StudyEnd(study=study.id, reason="rounds" if is_open else "decided")


@lru_cache(maxsize=128)  # a study has about five arms with eight recurring turns each
def _groups(layout: Layout, arm: Arm, turn: int) -> IntArray:
    """The ranks that work together, a row for each group."""
    return np.array(layout.groups(arm, turn))


def _work(operation: Operation) -> float:
    """FLOPs or bytes of one iteration, as a GPU's."""
    if operation.precision is not None:
        return operation.named_flops or _MATMUL_FLOPS
    kind = KINDS[operation.kind]
    return float(operation.message_bytes or kind.buffer_bytes["cuda"] * kind.counts)
