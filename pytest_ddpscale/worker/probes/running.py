"""All probes of a run, in interleaved rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.probe import Probe, ProbeStudy
from pytest_ddpscale.results.probe_record import ProbeUnsupported, joined_probe_block
from pytest_ddpscale.results.record_lines import AnyRecord
from pytest_ddpscale.results.records import EndReason, RoundEnd
from pytest_ddpscale.results.strict_json import column
from pytest_ddpscale.worker.node_telemetry import GangTelemetry, TimedWindow
from pytest_ddpscale.worker.order import arm_order
from pytest_ddpscale.worker.probes.blocks import ProbeBlocks, RankProbed
from pytest_ddpscale.worker.probes.groups import rank_groups
from pytest_ddpscale.worker.rank_context import RankContext

# How often a probe is done to learn how long it takes: a few times, and then for this share of a block.
_FIRST_ITERATIONS = 2
_CALIBRATED_SHARE = 0.2
_NeededProbes = Callable[[int], Sequence[str] | None]


class ProbeRounds:
    """One rank's part in the probing; once a gang. Rank 0 also decides and writes.

    Args:
        study: what to probe.
        context: of this rank.
        write: called on rank 0 with records, before any rank goes on.
        telemetry: of the gang's GPUs.
        needed: asked on rank 0, with the number of a round that has ended, for the ids of the probes of which further
            rounds are wanted; None if nobody knows.
        seed: of the order of the probes in each round.
    """

    def __init__(
        self,
        study: ProbeStudy,
        context: RankContext,
        write: Callable[[list[AnyRecord]], None],
        telemetry: GangTelemetry,
        needed: _NeededProbes,
        *,
        seed: int = 0,
    ) -> None:
        self._study = study
        self._control = context.control
        self._write = write
        self._gang = context.gang
        self._telemetry = telemetry
        self._needed = needed
        self._progress = context.progress
        self._seed = seed
        self._deadline_unix_s = context.deadline_unix_s
        self._blocks = ProbeBlocks(context.device, context.control, context.progress, context.timeout)

    def run(self) -> EndReason:
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

    def _run_rounds(self) -> EndReason:
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
                self._write([RoundEnd(study=study.id, round=number, arms=tuple(probe.id for probe in timed))])
        return "rounds"

    def _next_round(self, number: int, timed: Sequence[Probe]) -> tuple[EndReason | None, list[str]]:
        """Why round `number` is not begun, or else which probes it has: rank 0's word, which all ranks follow."""
        key = f"{self._study.id}/{number}/next"
        if self._control.rank == 0:
            self._control.say(key, self._next_by_rank_0(number, timed))
        ended, names = self._control.hear(key)
        return ended, names

    def _next_by_rank_0(self, number: int, timed: Sequence[Probe]) -> tuple[EndReason | None, list[str]]:
        names = [probe.id for probe in timed]
        if self._deadline_unix_s is not None and time.time() >= self._deadline_unix_s:
            return "budget", []
        needed = self._needed(number - 1) if number >= FEWEST_ROUNDS else None
        names = names if needed is None else [name for name in names if name in needed]
        return (None, names) if names else ("decided", [])

    def _calibrated(self, probe: Probe) -> int:
        """How many iterations fill a block on the slowest rank, the same on all of them; 0 if no rank can do it.

        The first few connect and wake the clocks, and say how many it takes to know more.
        """
        self._progress.round = None
        iterations = _FIRST_ITERATIONS
        for attempt, share in enumerate((_CALIBRATED_SHARE, 1.0)):
            key = f"{self._study.id}/calibration-{attempt}/{probe.id}"
            goal_s = share * self._study.block_s
            said = self._blocks.block(probe, key, iterations, verify=False)
            iterations = int(self._answered(key, probe, said, partial(self._iterations, probe, iterations, goal_s)))
            if not iterations:
                return 0
        return iterations

    def _iterations(self, probe: Probe, before: int, goal_s: float, said: Sequence[RankProbed]) -> int:
        """Rank 0's word on how many iterations take `goal_s` seconds, after so many were done by each rank."""
        self._write(self._unsupported(probe, said))
        slowest_s = max((one.seconds for one in said if one.seconds is not None), default=None)
        return 0 if slowest_s is None else max(1, int(before * goal_s / slowest_s))

    def _measure(self, probe: Probe, number: int, iterations: int) -> None:
        key = f"{self._study.id}/{number}/{probe.id}"
        self._telemetry.mark()
        said = self._blocks.block(probe, key, iterations)
        self._answered(key, probe, said, partial(self._write_block, probe, number, iterations), number)

    def _write_block(self, probe: Probe, number: int, iterations: int, said: Sequence[RankProbed]) -> bool:
        measured = [one for rank in said for one in rank.measured]
        records: list[AnyRecord] = [*self._unsupported(probe, said)]
        if measured:
            records.append(joined_probe_block(measured, probe, self._study.id, number, self._gang, iterations))
        self._write(records)
        return True

    def _unsupported(self, probe: Probe, said: Sequence[RankProbed]) -> list[AnyRecord]:
        """Which ranks could not do a probe, and why, as a record; nothing if all could."""
        unable = [one for one in said if one.unsupported]
        if not unable:
            return []
        ranks, reasons = tuple(one.rank for one in unable), column(one.unsupported for one in unable)
        study, gang = self._study.id, self._gang
        return [ProbeUnsupported(study=study, probe=probe.id, gang=gang, ranks=ranks, reasons=reasons)]

    def _answered(
        self, key: str, probe: Probe, said: RankProbed, answer: Callable[[list[RankProbed]], Any],
        number: int | None = None,
    ) -> Any:  # fmt: skip
        """What rank 0 answers to what the ranks of a probe say; nobody goes on before.

        Args:
            key: another one for each call.
            probe: whose ranks say something.
            said: by this one, if it is among them.
            answer: called on rank 0.
            number: of the round, where GPUs are asked what they saw of it; None elsewhere.
        """
        self._progress.phase = "gathering"
        control = self._control
        ranks = [rank for crew in rank_groups(probe, control.layout) for rank in crew]
        takes_part = control.rank in ranks
        key = f"{key}/said"
        if takes_part:
            control.say(f"{key}/{control.rank}", said)
        if number is not None:
            self._telemetry.tell(key, ranks, self._windows)
        if control.rank == 0:
            heard = control.hear_records([f"{key}/{rank}" for rank in ranks], RankProbed)
            if number is not None:
                self._telemetry.collect(key, ranks, self._study.id, probe.id, number)
            control.say(f"{key}/answer", answer(heard))
        answered = control.hear(f"{key}/answer")
        if takes_part:
            control.forget(f"{key}/{control.rank}")
        if number is not None:
            self._telemetry.forget(key, ranks)
        return answered

    def _windows(self, keys: Sequence[str]) -> list[TimedWindow]:
        said = self._control.hear_records(keys, RankProbed)
        return [TimedWindow(one.rank, one.started_unix_s, one.seconds) for rank in said for one in rank.measured]
