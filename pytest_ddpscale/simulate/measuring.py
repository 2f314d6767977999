"""What a simulated cluster measures, record by record, in the order of a real run."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddpscale.plan.estimate import OVERHEAD_PER_BLOCK_S, STARTUP_S
from pytest_ddpscale.plan.study import FEWEST_STEPS_PER_BLOCK, STEPS_BEFORE_TIMING, Arm, DeviceType, Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.results.records import Measurement, SeededStep, StudyEnd
from pytest_ddpscale.simulate.faults import Faults, Moment
from pytest_ddpscale.simulate.models import model_of
from pytest_ddpscale.simulate.performance import Performance, drawn_maximum

COUNTER = "simulated: 6 per multiply-accumulate of torchvision's model documentation"
_WRONG = "f" * 16


@dataclass(frozen=True)
class _Block:
    """What all ranks of one arm in one round have in common.

    Attributes:
        steps: timed ones.
        own_s: computation of a step on a sound rank, without noise.
        slower: factor on it of the ranks that are slower.
        together_s: every step under DDP, where all ranks wait for the slowest; None in other arms.
        checksum: of the parameters after it, where ranks have to agree.
        utilization: of the least busy rank.
        memory_bytes: of every rank.
    """

    steps: int
    own_s: float
    slower: Mapping[int, float]
    together_s: tuple[float, ...] | None
    checksum: str | None
    utilization: float
    memory_bytes: int


class SimulatedRun:
    """One run of a plan. The same arguments give the same records.

    Args:
        plan: what is measured.
        performance: what a sound cluster does.
        faults: what is wrong with this one.
        seed: of all noise.
    """

    def __init__(self, plan: Plan, performance: Performance, faults: Faults, seed: int) -> None:
        self._plan = plan
        self._performance = performance
        self._faults = faults
        self._random = random.Random(seed)  # noqa: S311 (noise, no secret)
        self._clock_s = STARTUP_S
        self._rounds_done = 0
        self._rounds_in_run = sum(study.rounds for study in plan.studies)

    def records(self) -> Iterator[dict[str, Any]]:
        """Every record of measurements.jsonl, as JSON types."""
        for study in self._plan.studies:
            yield {"kind": "study_start", "study": study.id, "unix_s": round(self._clock_s, 3)}
            for step in self.seeded_steps(study):
                yield {"kind": "seeded_step", **vars(step)}
            flops = flops_per_image(study)
            yield {"kind": "workload_flops", "study": study.id, "flops_per_image": flops, "counter": COUNTER}
            names = [arm.name for arm in study.arms]
            for number in range(study.rounds):
                for measurement in self.measure_round(study, number):
                    yield {"kind": "measurement", **vars(measurement)}
                yield {"kind": "round_end", "study": study.id, "round": number, "arms": names}
            yield StudyEnd(study.id, "rounds").as_json()

    def seeded_steps(self, study: Study) -> Iterator[SeededStep]:
        """What each rank of a study computes of a step that is the same on all. Nobody is missing yet."""
        right, corrupt = self._checksum(), self._faults.corrupt
        for rank in range(study.world_size):
            yield SeededStep(study.id, **self._identity(rank), checksum=_WRONG if rank in corrupt else right)

    def measure_round(self, study: Study, number: int) -> Iterator[Measurement]:
        """One round of a study, its arms in random order. Rounds have to be asked for one after another.

        Yields:
            A measurement of every rank of every arm that is there.
        """
        if number == 0:
            self._clock_s += study.warmup_s
        when = Moment(number, self._rounds_done, self._rounds_in_run)
        for arm in self._random.sample(study.arms, len(study.arms)):
            yield from self._block(study, arm, when)
        self._rounds_done += 1

    def _block(self, study: Study, arm: Arm, when: Moment) -> Iterator[Measurement]:
        """One arm in one round: a measurement of every rank that is there."""
        block = self._begin_block(study, arm, when)
        missing = self._faults.missing(when)
        longest_s = 0.0
        for rank in self._ranks(study, arm, when):
            measurement = self._measurement(study, arm, when, block, rank)
            longest_s = max(longest_s, measurement.block_s)
            if rank not in missing:
                yield measurement
        self._clock_s += longest_s * (1 + STEPS_BEFORE_TIMING / block.steps) + OVERHEAD_PER_BLOCK_S

    def _ranks(self, study: Study, arm: Arm, when: Moment) -> Sequence[int]:
        """Who trains an arm in this round."""
        return (study.turn(self._plan.seed, when.round),) if arm.world_size == 1 else range(arm.world_size)

    def _begin_block(self, study: Study, arm: Arm, when: Moment) -> _Block:
        performance = self._performance
        sound = performance.step_time(study, arm)
        own_s = sound.computation_s * self._faults.drift(when)
        steps = max(FEWEST_STEPS_PER_BLOCK, math.ceil(study.block_s / own_s))
        slowdowns = self._faults.slowdowns(study.world_size, when)
        slower = {r: sound.slowed_by(slowdowns[r]) for r in self._ranks(study, arm, when) if r in slowdowns}
        is_ddp = arm.kind == "ddp"
        return _Block(
            steps=steps,
            own_s=own_s,
            slower=slower,
            together_s=self._together(study.workload, arm, own_s, slower, steps) if is_ddp else None,
            checksum=self._checksum() if is_ddp else None,
            utilization=performance.utilization(study, arm),
            memory_bytes=performance.memory_bytes(study.workload, arm),
        )

    def _measurement(self, study: Study, arm: Arm, when: Moment, block: _Block, rank: int) -> Measurement:
        step_s = self._by_itself(block, rank) if block.together_s is None else self._waiting(block.together_s)
        block_s = math.fsum(step_s)
        is_corrupt = block.checksum is not None and rank in self._faults.corrupt
        return Measurement(
            study=study.id,
            arm=arm.name,
            round=when.round,
            batch_size=arm.batch_size,
            steps=block.steps,
            block_s=block_s,
            started_unix_s=round(self._clock_s, 3),
            step_s=step_s,
            step_stdev_s=_standard_deviation(step_s, block_s / block.steps),
            utilization=self._utilization(block.utilization),
            peak_memory_bytes=block.memory_bytes,
            energy_j=self._performance.energy_j(study.workload, block_s),
            parameters_checksum=_WRONG if is_corrupt else block.checksum,
            **self._identity(rank),
        )

    def _by_itself(self, block: _Block, rank: int) -> tuple[float, ...]:
        """Steps of a rank that waits for nobody. Their mean varies by the noise of a round and no more."""
        noise, gauss = self._performance.noise, self._random.gauss
        mean_s = block.own_s * block.slower.get(rank, 1.0) * math.exp(gauss(0.0, noise.round_sd))
        jitter = [gauss(0.0, noise.step_sd) for _ in range(block.steps)]
        centre = 1 - math.fsum(jitter) / block.steps
        return tuple(_nanoseconds(mean_s * (centre + deviation)) for deviation in jitter)

    def _together(
        self, workload: Workload, arm: Arm, own_s: float, slower: Mapping[int, float], steps: int
    ) -> tuple[float, ...]:
        """Steps in which all ranks wait for the slowest of them, and then for communication."""
        performance, share = self._performance, self._faults.link_share(arm.world_size)
        block_noise = math.exp(self._random.gauss(0.0, performance.noise.round_sd))
        found = []
        for _ in range(steps):
            computation_s = own_s * self._slowest(arm.world_size, slower)
            exposed_s = performance.exposed_s(workload, arm.world_size, computation_s, share)
            found.append((computation_s + exposed_s) * block_noise)
        return tuple(found)

    def _slowest(self, ranks: int, slower: Mapping[int, float]) -> float:
        """The longest computation of a step among all ranks, relative to a sound one's."""
        noise, gauss = self._performance.noise, self._random.gauss
        sound = ranks - len(slower)
        found = [factor * (1 + gauss(0.0, noise.step_sd)) for factor in slower.values()]
        if sound:
            # A rank that never waits has its jitter; of many, only the largest shows.
            jitter = drawn_maximum(sound, self._random) if ranks > 1 else gauss(0.0, 1.0)
            found.append(1 + noise.step_sd * jitter)
        return max(found)

    def _waiting(self, together_s: tuple[float, ...]) -> tuple[float, ...]:
        """The steps of all ranks, as one of them sees them."""
        mine = 1 + self._random.gauss(0.0, self._performance.noise.rank_sd)
        return tuple(_nanoseconds(step_s * mine) for step_s in together_s)

    def _utilization(self, expected: float) -> float:
        above = abs(self._random.gauss(0.0, self._performance.noise.utilization_sd))
        return round(min(1.0, expected + above), 6)

    def _checksum(self) -> str:
        return f"{self._random.getrandbits(64):016x}"

    def _identity(self, rank: int) -> dict[str, Any]:
        topology = self._performance.topology
        return {
            "rank": rank,
            "local_rank": rank % topology.gpus_per_node,
            "host": host_name(topology.node(rank)),
            "device": device_id(rank, self._plan.device_type),
        }


def flops_per_image(study: Study) -> float:
    """Of forward and backward pass of what a study trains."""
    return model_of(study.workload).flops_per_image(study.workload.image_size)


def host_name(node: int) -> str:
    """Of a node of a simulated cluster."""
    return f"simulated-{node}"


def device_id(rank: int, device_type: DeviceType) -> str:
    """What stands for a GPU's UUID."""
    return f"SIM-{rank}" if device_type == "cuda" else "cpu"


def _nanoseconds(seconds: float) -> float:
    """A time as a clock would give it: more digits would only lengthen the file."""
    return max(1e-9, round(seconds, 9))


def _standard_deviation(values: tuple[float, ...], mean: float) -> float:
    return round(math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)), 9)
