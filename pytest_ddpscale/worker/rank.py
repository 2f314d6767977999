"""The gang: all ranks of one launch, working through studies, rounds and arms together."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch.distributed import PrefixStore

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import FEWEST_STEPS_PER_BLOCK, SUSTAINED_S, Plan, Study
from pytest_ddpscale.run.block import READINGS, STEP_S, WAITED_S, RankBlock, joined, step_bytes
from pytest_ddpscale.run.records import (
    EndReason,
    GangRecord,
    GangTransport,
    Rank,
    RankMemory,
    RankStretch,
    RankTransport,
    SeededStep,
    SeededSteps,
    StudyEnd,
    StudyMemory,
    StudyStart,
    Sustained,
    WarmUp,
)
from pytest_ddpscale.worker.arms import StudyArms, steps_at_once, steps_for_block
from pytest_ddpscale.worker.context import RankContext
from pytest_ddpscale.worker.control import communicator_options, process_group_class
from pytest_ddpscale.worker.device import Timing
from pytest_ddpscale.worker.loading import SampleLoader, open_samples
from pytest_ddpscale.worker.model import seeded_step, workload_flops_record
from pytest_ddpscale.worker.pairs import PairSearch
from pytest_ddpscale.worker.probing import ProbeRounds
from pytest_ddpscale.worker.profiling import StudyProfile
from pytest_ddpscale.worker.training import nvtx_range, profiler_range
from pytest_ddpscale.worker.transport import TransportLog
from pytest_ddpscale.worker.whole_training import WholeTraining

# Round number of decisions before the first round of a study.
_BEFORE_ROUNDS = -1


class GangMember:
    """One rank's part in the gang. Rank 0 also decides and writes."""

    def __init__(self, plan: Plan, context: RankContext) -> None:
        self._plan = plan
        self._context = context
        self._control, self._progress = context.control, context.progress
        self._sink = context.sink
        self._gang = context.gang
        self._layout = context.control.layout
        self._groups: list[Sequence[int]] = []  # process groups that this rank was in
        self._step_s = dict[str, float]()  # of each arm on rank 0, in its warm-up
        self._transport = TransportLog(context.control.rank, self._layout, context.device.backend, os.environ)

    @contextmanager
    def process_group(self) -> Iterator[None]:
        """The default process group, from which studies create theirs."""
        backend = self._context.device.backend
        dist.init_process_group(
            backend,
            store=PrefixStore("process_group", self._control.store),
            rank=self._control.rank,
            world_size=self._control.world_size,
            timeout=self._context.timeout,
            pg_options=communicator_options(backend),
        )
        yield
        if self._context.sampler is not None:
            self._context.sampler.close()  # after a failure it ends with this process
        # Not in a finally: after a failure in a collective, destroying the group may hang.
        dist.destroy_process_group()

    def announce(self, who: Rank) -> None:
        """Record host and device of all ranks.

        Pairs name each other's host by these messages. They stay in the store, a few megabytes for 8,192 ranks: a rank
        of another node may read them long after rank 0 has, and a deleted key reads as empty.
        """
        control = self._control
        control.say(f"startup/{control.rank}", who)
        if self._is_first:
            keys = [f"startup/{rank}" for rank in range(control.world_size)]
            ranks = control.hear_all(keys, Rank)
            others = (replace(rank, versions=None) if rank.versions == who.versions else rank for rank in ranks[1:])
            self._sink.append_record(GangRecord(gang=self._gang, ranks=(ranks[0], *others)))
            control.say("startup/done", True)
        else:
            control.wait_for("startup/done")

    def run_study(self, study_id: str) -> None:
        """Measure one study of the plan, and record its start and the reason of its end."""
        progress, plan = self._progress, self._plan
        progress.study, progress.arm, progress.round, progress.phase = study_id, None, None, "preparation"
        if self._is_first:
            self._sink.append_record(StudyStart(study=study_id, unix_s=time.time()))
        if plan.pairs is not None and study_id == plan.pairs.id:
            reason = PairSearch(plan.pairs, self._context).run()
        elif plan.probes is not None and study_id == plan.probes.id:
            reason = ProbeRounds(plan.probes, self._context, seed=plan.seed).run()
            groups = [crew for probe in plan.probes.arms for crew in self._layout.crews(probe)]
            self._tell_transports(study_id, groups)
        elif (run := plan.training_run(study_id)) is not None:
            self._end(study_id, *WholeTraining(run, self._context).run())
            return
        else:
            study = plan.study(study_id)
            assert study is not None
            refuse_other_layout(study, plan.layout, self._layout)
            # Checked before preparation and warm-up, which may take minutes.
            ended, _ = self._context.next_round(study.id, _BEFORE_ROUNDS, [arm.name for arm in study.arms])
            if ended is None:
                self._measure(study)
                return
            reason = ended
        self._end(study_id, reason)

    def _end(self, study_id: str, reason: EndReason, message: str = "") -> None:
        if self._is_first:
            self._sink.append_record(StudyEnd(study=study_id, reason=reason, message=message))

    def _measure(self, study: Study) -> None:
        """Prepare a study, time the arms round by round, clean up, and record why it ended."""
        context = self._context
        ranges = nvtx_range if context.nvtx and torch.version.cuda else profiler_range
        loader = self._read_folder(study)
        self._progress.phase = "preparation"
        arms = StudyArms(
            study, context.device, self._control.rank, self._layout, context.timeout, ranges, loader, context.gang
        )
        self._examine(study, arms)
        steps = self._warm_up(study, arms)
        self._train_on(study, arms)
        measure = partial(self._run_arm, study, arms, steps)
        reason = context.run_rounds(study, self._plan.seed, lambda timed: timed, measure)
        if context.tries_memory:
            # The peak of every rank, before it is freed.
            held = context.device.memory_held()
            context.record(f"{study.id}/memory", held, RankMemory, partial(StudyMemory, study=study.id))
        self._progress.arm, self._progress.phase = None, "cleaning up"
        self._tell_transports(study.id, _groups(study, self._layout))
        if context.profile_steps and study.launch == 1:
            # Recorded first, in case a profiler kills this process.
            self._end(study.id, reason)
            StudyProfile(study, arms, context, self._plan.seed).run()
            arms.close()
        else:
            arms.close()
            self._end(study.id, reason)

    def _read_folder(self, study: Study) -> Callable[..., SampleLoader] | None:
        """Loaders of the folder that arms of a study read; None if all arms have synthetic data."""
        workload, context = study.workload, self._context
        data = workload.data
        if data == "synthetic" or all(arm.data_of(workload) == "synthetic" for arm in study.arms):
            return None
        progress, is_first = self._progress, context.control.local_rank == 0
        progress.phase = "reading the folder"
        if not is_first:  # one phase further, so a hang points at the reading rank
            progress.phase = "waiting for another rank to read the folder"
        samples = open_samples(data, "train", workload.family, context.control, f"{study.id}/samples")
        if is_first:
            progress.phase = "comparing the folder"
        # Below the limit after which an inactive gang is ended without a reason.
        timeout_s = context.timeout.total_seconds() / 8
        return partial(SampleLoader, samples, cores=context.loader_cores, timeout_s=timeout_s)

    def _tell_transports(self, study_id: str, groups: Sequence[Sequence[int]]) -> None:
        """Record NCCL's connections between ranks so far; communicators are connected on first use."""
        if self._plan.device_type == "cpu":
            return
        control = self._control
        self._groups += [group for group in groups if control.rank in group and group not in self._groups]
        transport = replace(
            self._transport.read(self._groups), process_group=process_group_class(self._context.device.torch_device)
        )

        record = partial(GangTransport, study=study_id, gang=self._gang)
        self._context.record(f"{study_id}/transport", transport, RankTransport, record)

    @property
    def _is_first(self) -> bool:
        return self._control.rank == 0

    def _run_arm(self, study: Study, arms: StudyArms, steps_of: Mapping[str, int], arm: Arm, number: int) -> None:
        progress, steps = self._progress, steps_of[arm.name]
        progress.arm, progress.phase = arm.name, "timed block"
        key = f"{study.id}/{number}/{arm.name}"
        turn, rank, part = study.turn(self._plan.seed, number), self._control.rank, None
        groups, ranks = self._layout.groups(arm, turn), self._layout.ranks([arm], turn)
        self._context.wait_for_first_poll()
        if rank in ranks:
            group = next(group for group, members in enumerate(groups) if rank in members)
            timed = _part(rank, group, arm.batch_size, arms.time_block(arm, steps))
            part = self._context.sampled(timed, "utilization", "energy_j")
        progress.phase = "gathering"
        common = {"study": study.id, "arm": arm.name, "round": number, "gang": self._gang}

        def join(parts: list[RankBlock]) -> None:
            self._context.append_telemetry(parts, study.id, arm.name, number)
            self._sink.append_record(joined(parts, **common, count=steps))

        self._context.gather(key, ranks, part, RankBlock, join, is_timed=True)

    def _examine(self, study: Study, arms: StudyArms) -> None:
        """Record the seeded step of each rank and the FLOPs per sample, before any training."""
        ranks, seeded = study.ranks(study.arms, self._layout), None
        if self._control.rank in ranks:
            checksum, repeats = seeded_step(arms.model, study.workload)
            seeded = SeededStep(rank=self._control.rank, checksum=checksum, repeats=repeats)

        record = partial(SeededSteps, study=study.id, gang=self._gang)
        self._context.record(f"{study.id}/seeded-step", seeded, SeededStep, record, ranks)
        flops = workload_flops_record(study, arms.model) if self._is_first else None
        if flops is not None:
            self._sink.append_record(flops)

    def _warm_up(self, study: Study, arms: StudyArms) -> dict[str, int]:
        """Train each arm for a while, untimed, and find the number of steps that fill a block.

        Returns:
            Steps per block, by arm, the same on every rank.
        """
        steps = {}
        for arm in study.arms:
            compiles = arm.variant.applied_to(study.workload).compile  # max-autotune takes longer than most limits
            self._progress.arm, self._progress.phase = arm.name, "torch.compile and warm-up" if compiles else "warm-up"
            key = f"{study.id}/warm-up/{arm.name}"
            if self._control.rank in study.ranks([arm], self._layout):  # all at once, even if they take turns later
                self._warm_up_arm(study, arms, arm, key)
            self._progress.phase = "gathering"  # also on ranks without a part: a rank in an earlier phase is behind
            steps[arm.name] = int(self._control.hear(f"{key}/steps"))
        return steps

    def _warm_up_arm(self, study: Study, arms: StudyArms, arm: Arm, key: str) -> None:
        began = time.perf_counter()
        first = arms.time_block(arm, FEWEST_STEPS_PER_BLOCK)
        first_block_s = time.perf_counter() - began
        share_s = study.warmup_s / len(study.arms) - first_block_s
        step_s = _usual_step_s(first)
        more = self._control.decided(
            f"{key}/warm-up-steps", lambda: steps_for_block(step_s, share_s) if share_s > 0 else 0
        )
        latest = arms.time_block(arm, more) if more else first
        if self._is_first:
            self._step_s[arm.name] = _usual_step_s(latest)
            steps = steps_for_block(self._step_s[arm.name], study.block_s, steps_at_once(study, arm))
            self._sink.append_record(WarmUp(study=study.id, arm=arm.name, first_block_s=first_block_s))
            self._control.say(f"{key}/steps", steps)

    def _train_on(self, study: Study, arms: StudyArms) -> None:
        """Train an arm in one stretch, and record its steps, with clock and temperature of each GPU at the end."""
        arm, context, key = study.stretched, self._context, f"{study.id}/sustained"
        if arm is None:
            return

        def number() -> int:
            """Of steps; 0 if there is no time for them."""
            step_s = self._step_s[arm.name]
            steps = steps_for_block(step_s, study.sustained_s, steps_at_once(study, arm))
            return steps if context.has_time_for(steps * step_s) else 0

        count = self._control.decided(f"{key}/steps", number)
        if not count:
            return
        progress, stretch, ranks = self._progress, RankStretch(rank=self._control.rank), self._layout.ranks([arm])
        progress.arm, progress.phase = arm.name, "sustained training"
        context.wait_for_first_poll()
        if stretch.rank in ranks:
            timing = arms.time_block(arm, count)
            ended_s = timing.started_unix_s + timing.block_s
            if context.sampler is not None:
                began_s = ended_s - min(SUSTAINED_S, timing.block_s)
                telemetry = context.sampler.cut(began_s, ended_s, tells_errors=False)  # the first block does
                stretch = replace(stretch, sm_clock_mhz=telemetry.sm_clock_mhz, temperature_c=telemetry.temperature_c)
            if any(stretch.rank == first for first, *_ in self._layout.groups(arm)):
                stretch = replace(stretch, step_s=step_bytes(timing.step_s))
        progress.phase = "gathering"
        record = partial(Sustained, study=study.id, arm=arm.name, gang=self._gang)
        context.record(key, stretch if stretch.rank in ranks else None, RankStretch, record, ranks)


def _part(rank: int, group: int, batch_size: int, timing: Timing) -> RankBlock:
    series = {STEP_S: timing.step_s, WAITED_S: timing.waited_s or ()}
    return RankBlock(
        rank=rank,
        group=group,
        work=batch_size,
        began_unix_s=timing.started_unix_s,
        seconds=timing.block_s,
        readings={name: getattr(timing, name) for name in READINGS if hasattr(timing, name)},
        series={name: step_bytes(steps_s) for name, steps_s in series.items() if steps_s},
        unread=dict(timing.unread),
        digest=timing.parameters_checksum,
    )


def _usual_step_s(timing: Timing) -> float:
    """The median step; the mean if data is loaded, because several batches arrive at once and the next steps wait."""
    return statistics.median(timing.step_s) if timing.waited_s is None else statistics.fmean(timing.step_s)


def _groups(study: Study, layout: Layout) -> list[Sequence[int]]:
    """All groups of ranks that train any arm in any round."""
    return [group for turn in range(study.turns) for arm in study.arms for group in layout.groups(arm, turn)]


def refuse_other_layout(study: Study, planned: Layout, actual: Layout) -> None:
    """Refuse to measure another layout than the planned one: after the loss of a node, ``spread`` has fewer nodes.

    Raises:
        RuntimeError: ranks of an arm would be on other nodes than planned.
    """
    for arm in study.arms:
        if arm.world_size > actual.world_size:
            return  # refused with its own message by `StudyArms`
        fits = planned.fits_node(arm)
        if fits != actual.fits_node(arm) or (not fits and planned.groups(arm) != actual.groups(arm)):
            raise RuntimeError(
                f"{arm.name} of {study.id} is planned for {planned.nodes} nodes of {planned.ranks_per_node} ranks; "
                f"this gang has {actual.nodes} of {actual.ranks_per_node}"
            )
