"""Measurements of a simulated cluster while it trains, drawn for all ranks of an arm at once."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.estimate import OVERHEAD_PER_BLOCK_S, STARTUP_S
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import FEWEST_STEPS_PER_BLOCK, STEPS_BEFORE_TIMING, Plan, ProbeStudy, Study
from pytest_ddpscale.run.block import STEP_S, Block, joined_checksums
from pytest_ddpscale.run.records import RoundEnd, SeededStep, SeededSteps, StudyStart, WorkloadFlops
from pytest_ddpscale.simulate.allreduce import LinkShares
from pytest_ddpscale.simulate.faults import Faults, Moment
from pytest_ddpscale.simulate.models import FORWARD_SHARE, model_of
from pytest_ddpscale.simulate.performance import FloatArray, Performance, StepTime
from pytest_ddpscale.simulate.spread import COMPUTING

# TCP's shortest wait for a lost packet on Linux.
RESEND_S = 0.2
GANG = 0  # number of the only gang
_WRONG = "f" * 16
_DIGITS = 7  # decimals of seconds; more would only lengthen the file
IntArray = NDArray[np.int64]


class SimulatedRun:
    """One run of a plan on a cluster with faults. The same arguments give the same measurements."""

    def __init__(self, plan: Plan, performance: Performance, faults: Faults, seed: int) -> None:
        self.plan = plan
        self.performance = performance
        self.faults = faults
        self.seed = seed
        self.chance = np.random.default_rng(seed)
        self.clock_s = STARTUP_S
        self._step_times: dict[tuple[str, Arm], StepTime] = {}
        self._differences: dict[str, FloatArray] = {}
        self._noise: dict[tuple[str, str], FloatArray] = {}  # of one study only: a million GPUs need much memory
        self._inside_left = self.of_ranks(faults.inside_shares)
        self._between_left = self.of_ranks(faults.between_shares)
        self._rounds_done = 0
        self._rounds_in_run = sum(study.rounds for study in plan.studies) + (plan.probes.rounds if plan.probes else 0)

    def begin_round(self, number: int) -> Moment:
        """The moment at which a study's next round begins. Call once per round, in order."""
        when = Moment(number, self._rounds_done, self._rounds_in_run)
        self._rounds_done += 1
        return when

    def before_rounds(self, study: Study) -> Iterator[StudyStart | SeededSteps | WorkloadFlops]:
        """Records before a study's first round; no rank is missing in its seeded step."""
        yield StudyStart(study=study.id, unix_s=round(self.clock_s, 3))
        (right,), corrupt = self._checksums(1), self.faults.corrupt
        ranks = study.ranks(study.arms, self.plan.layout)
        steps = (SeededStep(rank=rank, checksum=_WRONG if rank in corrupt else right) for rank in ranks)
        yield SeededSteps(study=study.id, gang=GANG, ranks=tuple(steps))
        flops_per_sample = model_of(study.workload).flops_per_sample(study.workload.family.image_size)
        yield WorkloadFlops(study=study.id, flops_per_sample=flops_per_sample)

    def measure_round(self, study: Study, number: int, timed: Sequence[Arm]) -> Iterator[Block | RoundEnd]:
        """One round of a study: a block for each timed arm with any rank present, in random order.

        The other arms are simulated too but not recorded, so that leaving arms out does not change the noise.
        """
        if number == 0:
            self.clock_s += study.warmup_s
        when = self.begin_round(number)
        for place in self.chance.permutation(len(study.arms)):
            block = self._block(study, study.arms[place], when)
            if block is not None and study.arms[place] in timed:
                yield block
        yield RoundEnd(study=study.id, round=number, arms=tuple(arm.name for arm in timed))

    def _block(self, study: Study, arm: Arm, when: Moment) -> Block | None:
        groups = _groups(self.plan.layout, arm, study.turn(self.plan.seed, when.round))
        sound, faults, is_ddp = self._step_time(study, arm), self.faults, arm.kind == "ddp"
        own_s, common = sound.computation_s * faults.drift(when), faults.common_slowdown(when)
        steps = max(FEWEST_STEPS_PER_BLOCK, math.ceil(study.block_s / own_s))
        slower = {rank: sound.slowed_by(common * factor) for rank, factor in faults.slowdowns(when).items()}
        of_ranks = self.of_ranks(slower, sound.slowed_by(common))
        computed_s = own_s * (of_ranks * self.differences(COMPUTING))[groups]
        noise = self.noise_of_round(study, arm.name, len(groups) if is_ddp else groups.size, when)
        if is_ddp:
            step_s = self._together(study, arm, groups, computed_s, steps) * noise[:, None, None]
        else:
            step_s = self._each(computed_s * noise.reshape(groups.shape), steps)
        step_s, ranks = step_s.reshape(-1, steps), groups.ravel()
        checksums = self._parameters(groups) if is_ddp else None
        above = self.performance.noise.utilization_sd * np.abs(self.chance.standard_normal(groups.size))
        utilization = np.round(np.minimum(1.0, sound.utilization + above), 4)
        started_s, longest_s = self.clock_s, float(step_s.sum(axis=1).max())
        self.clock_s += longest_s * (1 + STEPS_BEFORE_TIMING / steps) + OVERHEAD_PER_BLOCK_S
        there = ~np.isin(ranks, list(faults.missing(when.round)))
        if not there.any():
            return None
        seconds = np.round(step_s[there].sum(axis=1), _DIGITS)
        expectation = self.performance.expectations[study.workload.name]
        readings: dict[str, Any] = {"utilization": utilization[there]}
        if not arm.infers:
            # Noise of its own, independent of the block's: what a rank loses in a round may be in either pass.
            noise = self.noise_of_round(study, f"{arm.name}/forward", groups.size, when)
            forward_s = FORWARD_SHARE * steps * computed_s.ravel() * noise
            readings["forward_s"] = np.round(forward_s[there], _DIGITS)
        if expectation.power_w is not None:
            readings["energy_j"] = np.round(expectation.power_w * seconds, 3)
        if not arm.infers:  # no peak memory of a forward pass is published
            readings["peak_memory_bytes"] = expectation.memory_bytes(study.workload, arm.batch_size)
            readings["skipped_steps"] = 0
        columns: dict[str, Any] = {"ranks": ranks[there], "seconds": seconds, "groups": 0}
        if len(groups) > 1:
            columns["groups"] = np.arange(len(groups)).repeat(groups.shape[1])[there]
        return Block(
            study=study.id,
            arm=arm.name,
            round=when.round,
            gang=GANG,
            count=steps,
            work=float(arm.batch_size),
            began_unix_s=round(started_s, 3),
            readings=readings,
            series={STEP_S: step_s[there].astype("<f4").tobytes()},
            digests=None if checksums is None else joined_checksums(checksums[there].tolist()),
            **columns,
        )

    def _step_time(self, study: Study, arm: Arm) -> StepTime:
        """Step time of an arm, the same in every round."""
        key = study.id, arm
        if key not in self._step_times:
            self._step_times[key] = self.performance.step_time(study, arm)
        return self._step_times[key]

    def noise_of_round(self, study: Study | ProbeStudy, name: str, count: int, when: Moment) -> FloatArray:
        """Factors on the times of a round, (count,); see `Noise` for which ranks share one.

        The series of all rounds are drawn with the first round, from a random stream per arm or probe, so that they do
        not depend on what else is measured or in which order.
        """
        key = study.id, name
        if key not in self._noise:
            self._noise = {of: series for of, series in self._noise.items() if of[0] == study.id}
            chance = np.random.default_rng([self.seed, zlib.crc32("/".join(key).encode())])
            self._noise[key] = self.performance.noise.of_rounds.series(chance, study.rounds, count)
        factors: FloatArray = np.exp(self._noise[key][:, when.round])
        return factors

    def _each(self, mean_s: FloatArray, steps: int) -> FloatArray:
        """Steps of ranks that do not wait for others; jitter leaves the mean of a block unchanged."""
        jitter = self.performance.noise.step_sd * self.chance.standard_normal((*mean_s.shape, steps))
        step_s: FloatArray = mean_s[..., None] * (1 + jitter - jitter.mean(axis=-1, keepdims=True))
        return step_s

    def _together(self, study: Study, arm: Arm, groups: IntArray, computed_s: FloatArray, steps: int) -> FloatArray:
        """Steps in which all ranks of a group wait for their slowest rank, and then for communication."""
        noise, normal = self.performance.noise, self.chance.standard_normal
        jitter = noise.step_sd * normal((*groups.shape, steps))
        slowest_s = (computed_s[..., None] * (1 + jitter)).max(axis=1)
        nodes = len(set((groups[0] // self.plan.layout.ranks_per_node).tolist()))
        exposed_s, left = np.empty_like(slowest_s), self.links_left(groups)
        for of_group in set(map(tuple, left.tolist())):
            slow, shares = (left == of_group).all(axis=1), LinkShares(*of_group)
            exposed = self.performance.exposed_s(study.workload, arm.world_size, nodes, slowest_s[slow], shares)
            exposed_s[slow] = exposed
        messages = self.performance.messages_per_step(study.workload)
        slowest_s = slowest_s + exposed_s + self.resent_s(groups, messages, steps)
        step_s: FloatArray = slowest_s[:, None, :] * (1 + noise.rank_sd * normal((*groups.shape, 1)))
        return step_s

    def links_left(self, groups: IntArray) -> FloatArray:
        """`LinkShares` of each group of ranks (a row), (groups, 2); those in one node use no link between nodes."""
        found: FloatArray = np.stack([self._inside_left[groups].min(axis=1), self._between_left[groups].min(axis=1)], 1)
        for link, share in self.faults.link_shares.items():
            across = self._use_link(groups, link)
            found[across, 1] = np.minimum(found[across, 1], share)
        found[~self.span_nodes(groups), 1] = 1.0
        return found

    def _use_link(self, groups: IntArray, link: tuple[int, int]) -> NDArray[np.bool_]:
        """Whether two successive ranks of each group (a row), or its last and first, are on both nodes of a link."""
        nodes = groups // self.plan.layout.ranks_per_node
        following = np.roll(nodes, -1, axis=1)
        there = (nodes == link[0]) & (following == link[1])
        back = (nodes == link[1]) & (following == link[0])
        found: NDArray[np.bool_] = (there | back).any(axis=1)
        return found

    def span_nodes(self, groups: IntArray) -> NDArray[np.bool_]:
        """Whether each group of ranks (a row) is on several nodes."""
        nodes = groups // self.plan.layout.ranks_per_node
        found: NDArray[np.bool_] = nodes.min(axis=1) < nodes.max(axis=1)
        return found

    def resent_s(self, groups: IntArray, messages: int, count: int) -> FloatArray:
        """Seconds that each group of ranks (a row) waits for lost packets, `count` times over so many messages each.

        Messages inside a node lose none.
        """
        found = np.zeros((len(groups), count))
        shares = self.faults.lossy_shares
        if not shares:
            return found
        nodes, spans_nodes = groups // self.plan.layout.ranks_per_node, self.span_nodes(groups)
        arrives = np.ones(len(groups))
        for node, share in shares.items():
            arrives *= np.where(spans_nodes & (nodes == node).any(axis=1), 1 - share, 1.0)
        return np.asarray(RESEND_S * self.chance.binomial(messages, 1 - arrives[:, None], found.shape), np.float64)

    def of_ranks(self, factors: dict[int, float], others: float = 1.0) -> FloatArray:
        """The factor of every rank of the gang; `others` for ranks that `factors` lacks."""
        found = np.full(self.plan.layout.world_size, others)
        found[list(factors)] = list(factors.values())
        return found

    def differences(self, what: str) -> FloatArray:
        """Factor on each sound rank's time for `what`; see `NodeSpread.factors`."""
        if what not in self._differences:
            self._differences[what] = self.performance.spread.factors(what, self.plan.layout, self.seed)
        return self._differences[what]

    def _parameters(self, groups: IntArray) -> NDArray[np.str_]:
        """Checksum of each rank's parameters: its group's, unless the rank is corrupt."""
        found = np.repeat(self._checksums(len(groups)), groups.shape[1])
        found[np.isin(groups.ravel(), list(self.faults.corrupt))] = _WRONG
        return found

    def _checksums(self, count: int) -> list[str]:
        return [f"{bits:016x}" for bits in self.chance.integers(2**63, size=count).tolist()]


@lru_cache(maxsize=128)  # a study has about five arms with eight recurring turns each
def _groups(layout: Layout, arm: Arm, turn: int) -> IntArray:
    """The ranks that train together, a row for each group."""
    return np.array(layout.groups(arm, turn))
