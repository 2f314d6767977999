"""All probes of a run, in interleaved rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.probe import Probe, ProbeStudy
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import Device
from pytest_ddpscale.worker.node_telemetry import GangTelemetry
from pytest_ddpscale.worker.order import arm_order
from pytest_ddpscale.worker.probes.blocks import ProbeBlocks, Record
from pytest_ddpscale.worker.probes.groups import rank_groups
from pytest_ddpscale.worker.rank_progress import RankProgress

# How often a probe is done to learn how long it takes: a few times, and then for this share of a block.
_FIRST_ITERATIONS = 2
_CALIBRATED_SHARE = 0.2
_NeededProbes = Callable[[int], Sequence[str] | None]


class ProbeRounds:
    """One rank's part in the probing; once a gang. Rank 0 also decides and writes.

    Args:
        study: what to probe.
        device: of this rank.
        control: how ranks tell each other things, and how they are numbered over the nodes.
        write: called on rank 0 with records, before any rank goes on.
        telemetry: of the gang's GPUs.
        needed: asked on rank 0, with the number of a round that has ended, for the ids of the probes of which further
            rounds are wanted; None if nobody knows.
        progress: kept up to date.
        timeout: limit for one collective.
        seed: of the order of the probes in each round.
        deadline_unix_s: no round starts after it; None for no limit.
    """

    def __init__(
        self,
        study: ProbeStudy,
        device: Device,
        control: Control,
        write: Callable[[list[Record]], None],
        telemetry: GangTelemetry,
        needed: _NeededProbes,
        progress: RankProgress,
        timeout: timedelta,
        *,
        seed: int = 0,
        deadline_unix_s: float | None = None,
    ) -> None:
        self._study = study
        self._control = control
        self._write = write
        self._telemetry = telemetry
        self._needed = needed
        self._progress = progress
        self._seed = seed
        self._deadline_unix_s = deadline_unix_s
        self._blocks = ProbeBlocks(study.id, device, control, progress, timeout)

    def run(self) -> str:
        """Probe until all rounds are done, time is up or all is known; all ranks of the gang call this.

        Returns:
            Why it ended, as `StudyEnd` has it: ``decided``, ``rounds`` or ``budget``.

        Raises:
            RuntimeError: the gang has too few ranks, or a probe failed otherwise than by being unsupported.
            torch.distributed.DistStoreError: a rank did not answer within the store's timeout.
        """
        reason = self._run_rounds()
        self._progress.arm, self._progress.phase = None, "cleaning up"
        self._blocks.close()
        return reason

    def _run_rounds(self) -> str:
        study, here = self._study, self._progress
        timed = study.probes
        iterations: dict[str, int] = {}
        for number in range(study.rounds):
            ended, names = self._next_round(number, timed)
            if ended:
                return ended
            if number == 0:
                iterations = {probe.id: self._calibrated(probe) for probe in timed}
            here.round = number
            timed = tuple(probe for probe in timed if probe.id in names and iterations[probe.id])
            if not timed:
                return "rounds"  # no rank can do any
            for probe in arm_order(timed, self._seed, study.id, number):
                self._measure(probe, number, iterations[probe.id])
            if self._control.rank == 0:
                ids = [probe.id for probe in timed]
                self._write([{"kind": "round_end", "study": study.id, "round": number, "arms": ids}])
        return "rounds"

    def _next_round(self, number: int, timed: Sequence[Probe]) -> tuple[str, list[str]]:
        """Why round `number` is not begun, or else which probes it has: rank 0's word, which all ranks follow."""
        key = f"{self._study.id}/{number}/next"
        if self._control.rank == 0:
            self._control.say(key, self._next_by_rank_0(number, timed))
        ended, names = self._control.hear(key)
        return ended, names

    def _next_by_rank_0(self, number: int, timed: Sequence[Probe]) -> tuple[str, list[str]]:
        names = [probe.id for probe in timed]
        if self._deadline_unix_s is not None and time.time() >= self._deadline_unix_s:
            return "budget", []
        needed = self._needed(number - 1) if number >= FEWEST_ROUNDS else None
        names = names if needed is None else [name for name in names if name in needed]
        return ("", names) if names else ("decided", [])

    def _calibrated(self, probe: Probe) -> int:
        """How many iterations fill a block on the slowest rank, the same on all of them; 0 if no rank can do it.

        The first few connect and wake the clocks, and say how many it takes to know more.
        """
        self._progress.round = None
        iterations = _FIRST_ITERATIONS
        for attempt, share in enumerate((_CALIBRATED_SHARE, 1.0)):
            key = f"{self._study.id}/calibration-{attempt}/{probe.id}"
            block = self._blocks.block(probe, key, iterations, verify=False)
            goal_s = share * self._study.block_s
            said = [block.seconds, block.unsupported]
            iterations = int(self._answered(key, probe, said, partial(self._iterations, iterations, goal_s)))
            if not iterations:
                return 0
        return iterations

    def _iterations(self, before: int, goal_s: float, said: Sequence[tuple[float | None, Record | None]]) -> int:
        """Rank 0's word on how many iterations take `goal_s` seconds, after so many were done by each rank."""
        self._write([unsupported for _, unsupported in said if unsupported is not None])
        slowest_s = max((seconds for seconds, _ in said if seconds is not None), default=None)
        return 0 if slowest_s is None else max(1, int(before * goal_s / slowest_s))

    def _measure(self, probe: Probe, number: int, iterations: int) -> None:
        key = f"{self._study.id}/{number}/{probe.id}"
        self._telemetry.mark()
        block = self._blocks.block(probe, key, iterations, number)
        self._answered(key, probe, block.records, self._write_all, is_timed=True)

    def _write_all(self, said: Sequence[list[Record]]) -> bool:
        self._write([record for records in said for record in records])
        return True

    def _answered(
        self, key: str, probe: Probe, said: Any, answer: Callable[[list[Any]], Any], *, is_timed: bool = False
    ) -> Any:
        """What rank 0 answers to what the ranks of a probe say; nobody goes on before."""
        self._progress.phase = "gathering"
        control = self._control
        ranks = [rank for crew in rank_groups(probe, control.layout) for rank in crew]
        takes_part = control.rank in ranks
        key = f"{key}/said"
        if takes_part:
            control.say(f"{key}/{control.rank}", said)
        if is_timed:
            self._telemetry.tell(key, ranks)
        if control.rank == 0:
            heard = control.hear_all([f"{key}/{rank}" for rank in ranks])
            if is_timed:
                self._telemetry.collect(key, ranks)
            control.say(f"{key}/answer", answer(heard))
        answered = control.hear(f"{key}/answer")
        if takes_part:
            control.forget(f"{key}/{control.rank}")
        if is_timed:
            self._telemetry.forget(key, ranks)
        return answered
