"""Probes of a run, in interleaved rounds of all ranks of a gang."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from msgspec import field
from msgspec.structs import replace

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Ranks
from pytest_ddpscale.plan.study import ProbeStudy
from pytest_ddpscale.run.block import RankBlock, Unsupported, joined
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import EndReason
from pytest_ddpscale.run.strict_json import Count, Record, column
from pytest_ddpscale.worker.context import RankContext
from pytest_ddpscale.worker.control import new_group
from pytest_ddpscale.worker.work import CannotProbeError, Work, memory_permitting, open_work

# Untimed iterations before a block, as a share of it, to reach the usual state of clocks and caches.
_BEFORE_TIMING = 0.1
# Calibration runs a probe a few times, and then for this share of a block.
_FIRST_ITERATIONS = 2
_CALIBRATED_SHARE = 0.2
# A single attempt has to exceed the limit by this factor, because on a shared machine any attempt may be interrupted.
_SURELY = 4.0


class RankProbed(Record, frozen=True, kw_only=True):
    """Results of one rank for one probe in one round.

    Attributes:
        rank: global rank in the gang.
        measured: its part of each turn in which it took part, by turn.
        unsupported: why it could not run the probe; empty if it could.
    """

    rank: Count
    measured: dict[int, RankBlock] = field(default_factory=dict)
    unsupported: str = ""


class ProbeRounds:
    """One rank's part in probing, which runs once per gang. Rank 0 also decides and writes."""

    def __init__(self, study: ProbeStudy, context: RankContext, *, seed: int = 0) -> None:
        self._study, self._context, self._seed = study, context, seed
        self._control, self._progress = context.control, context.progress
        self._device, self._layout = context.device, context.control.layout
        # Created on first use, and shared by probes of the same ranks.
        self._groups: dict[Ranks, dist.ProcessGroup | None] = {}
        self._keys: list[str] = []
        self._recorded: set[tuple[str, int]] = set()  # probes and ranks that are recorded as unsupported
        # On rank 0: why a message of that kind and group size takes too long; larger ones come later.
        self._too_slow: dict[tuple[str, int], str] = {}

    def run(self) -> EndReason:
        """Probe until all rounds are done, time is up or all is decided; all ranks of the gang call this.

        Returns:
            Reason of the end, as in `StudyEnd`: ``decided``, ``rounds`` or ``budget``.

        Raises:
            RuntimeError: the gang has too few ranks, or a probe failed for another reason than being unsupported.
            torch.distributed.DistStoreError: a rank did not answer within the store's timeout.
        """
        study, ranks = self._study, self._layout.world_size
        if study.world_size > ranks:
            raise RuntimeError(f"the probes need {study.world_size} ranks; this gang has {ranks}")
        reason = self._context.run_rounds(study, self._seed, self._prepare, self._measure)
        self._progress.arm, self._progress.phase = None, "cleaning up"
        # Each communicator holds device memory. Not after a failure in a collective: destroying it may then hang.
        for group in self._groups.values():
            if group is not None:
                dist.destroy_process_group(group)
        self._device.release()
        return reason

    def _prepare(self, probes: Sequence[Arm]) -> list[Arm]:
        """Calibrate probes. Returns those that any rank can run."""
        self._iterations_of = {probe.name: self._calibrated(probe) for probe in probes}
        return [probe for probe in probes if self._iterations_of[probe.name]]

    def _calibrated(self, probe: Arm) -> int:
        """Number of iterations that fill a block on the slowest rank, the same on all ranks; 0 if no rank can run the
        probe, or if an iteration takes longer than the study allows.

        The first few iterations connect ranks, raise clocks and give a first estimate.
        """
        self._progress.round = None
        iterations, seconds = _FIRST_ITERATIONS, list[float]()
        key = f"{self._study.id}/tried/{probe.name}"
        if self._study.limit_s(probe) is not None and not self._control.decided(key, lambda: self._is_short(probe, 0)):
            return 0
        for attempt, share in enumerate((_CALIBRATED_SHARE, 1.0)):
            key = f"{self._study.id}/calibration-{attempt}/{probe.name}"
            block = self._block(probe, key, iterations, verify=False)
            decide = partial(self._iterations, probe, iterations, share * self._study.block_s, seconds)
            iterations = self._gathered(key, probe, block, decide, is_timed=False)
            if not iterations:
                break
        return iterations

    def _iterations(
        self, probe: Arm, before: int, goal_s: float, seconds: list[float], blocks: Sequence[RankProbed]
    ) -> int:
        """On rank 0: number of iterations that take `goal_s` seconds, from an attempt with `before` iterations.

        `seconds` has the time of one iteration in each attempt; disturbances rarely slow down both.
        """
        self._context.sink.append_records(self._unsupported(probe, blocks))
        slowest_s = max((sum(part.seconds for part in block.measured.values()) for block in blocks), default=0.0)
        if not slowest_s:
            return 0
        seconds.append(slowest_s / before)
        if not self._is_short(probe, min(seconds), 1.0 if len(seconds) > 1 else _SURELY):
            return 0
        return max(1, int(before * goal_s / slowest_s))

    def _is_short(self, probe: Arm, iteration_s: float, tolerance: float = 1.0) -> bool:
        """Whether an iteration, and smaller messages, keep `tolerance` times the limit; else it is recorded."""
        limit_s, kind = self._study.limit_s(probe), (probe.operation.kind, probe.world_size)
        if limit_s is None:
            return True
        if iteration_s > tolerance * limit_s:
            self._too_slow[kind] = f"one iteration takes {iteration_s:.2g} s, more than the limit of {limit_s:g} s"
        if kind not in self._too_slow:
            return True
        unsupported = [RankProbed(rank=rank, unsupported=self._too_slow[kind]) for rank in self._layout.ranks([probe])]
        self._context.sink.append_records(self._unsupported(probe, unsupported))
        return False

    def _measure(self, probe: Arm, number: int) -> None:
        study, gang, iterations = self._study.id, self._context.gang, self._iterations_of[probe.name]
        common: dict[str, Any] = {"study": study, "arm": probe.name, "round": number, "gang": gang, "count": iterations}
        key = f"{study}/{number}/{probe.name}"
        self._context.wait_for_first_poll()
        block = self._block(probe, key, iterations)
        # Once all turns are over, as samples come late.
        measured = {turn: self._context.sampled(part) for turn, part in block.measured.items()}

        def join(heard: list[RankProbed]) -> None:
            rank_blocks = [part for block in heard for part in block.measured.values()]
            self._context.append_telemetry(rank_blocks, study, probe.name, number)
            records = self._unsupported(probe, heard)
            for turn in sorted({turn for block in heard for turn in block.measured}):
                parts = [block.measured[turn] for block in heard if turn in block.measured]
                records.append(joined(parts, **common, turn=turn))
            self._context.sink.append_records(records)

        self._gathered(key, probe, replace(block, measured=measured), join)

    def _unsupported(self, probe: Arm, blocks: Sequence[RankProbed]) -> list[AnyRecord]:
        """A record of ranks that could not run a probe, with reasons; empty if all could or it was recorded before."""
        unable = [block for block in blocks if block.unsupported and (probe.name, block.rank) not in self._recorded]
        self._recorded |= {(probe.name, block.rank) for block in unable}
        if not unable:
            return []
        ranks, reasons = tuple(block.rank for block in unable), column(block.unsupported for block in unable)
        study, gang = self._study.id, self._context.gang
        return [Unsupported(study=study, arm=probe.name, gang=gang, ranks=ranks, reasons=reasons)]

    def _gathered(
        self, key: str, probe: Arm, block: RankProbed, join: Callable[[list[RankProbed]], Any], *, is_timed: bool = True
    ) -> Any:
        """What rank 0 makes of the parts of all ranks of a probe."""
        self._progress.phase = "gathering"
        ranks = self._layout.ranks([probe])
        mine = block if self._control.rank in ranks else None
        return self._context.gather(f"{key}/said", ranks, mine, RankProbed, join, is_timed=is_timed)

    def _block(self, probe: Arm, key: str, iterations: int, *, verify: bool = True) -> RankProbed:
        """Run `iterations` of a probe in each of its turns. All ranks of the gang call this, even without a part, and
        have to wait for each other between two blocks.

        Args:
            key: of messages between ranks, unique for each call.
            verify: whether to check results; unnecessary if the measurements are not kept.
        """
        progress, rank, is_alone = self._progress, self._control.rank, probe.operation.is_single_device
        progress.arm, progress.phase = probe.name, "preparation"
        # Keeps the store from growing with the rounds. All ranks have read these keys, because they ended that block.
        for key_of_block in self._keys:
            self._control.forget(key_of_block)
        self._keys.clear()
        crews = self._layout.crews(probe)
        crew: Ranks = next((crew for crew in crews if rank in crew), ())
        group = None if is_alone else self._group(crews)
        measured: dict[int, RankBlock] = {}
        why_not = ""
        for turn in range(self._layout.turns(probe)):
            progress.phase = "preparation"  # all ranks enter equally many phases, so none seems to be behind
            work, reason = None, ""
            try:
                work = open_work(probe, turn, self._device, group, self._layout) if crew else None
            except CannotProbeError as error:
                reason = str(error)
            progress.phase = "meeting"
            all_can = self._meet(f"{key}/{turn}", crew, can=not reason)
            progress.phase = "timed block"
            if work is not None and (all_can or is_alone):
                members = crews if is_alone else self._layout.groups(probe, turn)
                place = next(place for place, ranks in enumerate(members) if rank in ranks)
                try:
                    with memory_permitting(f"{probe.name} and its verification"):
                        measured[turn] = self._measured(place, work, iterations, verify=verify)
                except CannotProbeError as error:
                    if not is_alone:
                        raise  # the other ranks already wait for this one
                    reason = str(error)
            del work
            self._device.release()
            why_not = why_not or reason
        return RankProbed(rank=rank, measured=measured, unsupported=why_not)

    def _group(self, crews: Sequence[Ranks]) -> dist.ProcessGroup | None:
        """The connected process group of this rank's crew; None if it has none.

        All ranks of the gang call this for the same probes in the same order.
        """
        for ranks in crews:
            if ranks in self._groups:
                continue
            group = self._groups[ranks] = new_group(ranks, self._context.timeout)
            if group is not None:
                # NCCL connects with the first collective; with a send-recv each pair would get its own communicator.
                dist.all_reduce(torch.zeros(1, device=self._device.torch_device), group=group)
        return next((group for ranks in crews if (group := self._groups[ranks]) is not None), None)

    def _meet(self, key: str, crew: Ranks, *, can: bool) -> bool:
        """Wait until all ranks of a crew are ready. Returns whether all of them can run the probe."""
        if not crew:
            return False
        control, ready = self._control, f"{key}/{crew[0]}/ready"
        mine = f"{key}/{control.rank}"
        control.say(mine, can)
        if control.rank == crew[0]:
            control.say(ready, all(control.hear_all([f"{key}/{rank}" for rank in crew], bool)))
            self._keys.append(ready)
        all_can = bool(control.hear(ready))
        control.forget(mine)
        return all_can

    def _measured(self, group: int, work: Work, iterations: int, *, verify: bool) -> RankBlock:
        for _ in range(max(1, round(iterations * _BEFORE_TIMING))):
            work()

        def repeat() -> None:
            for _ in range(iterations):
                work()
                self._device.on_step()

        # As one step, because events between iterations would slow down short ones.
        timing = self._device.time_steps(repeat, 1)
        return RankBlock(
            rank=self._control.rank,
            group=group,
            work=work.work,
            began_unix_s=timing.started_unix_s,
            seconds=timing.block_s,
            readings={"is_correct": work.is_correct() if verify else True},
        )
