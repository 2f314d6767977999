"""All probes of a run, in interleaved rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import ProbeStudy
from pytest_ddpscale.run.block import Unsupported, joined
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import EndReason, RoundEnd
from pytest_ddpscale.run.strict_json import column
from pytest_ddpscale.worker.node_telemetry import TimedWindow
from pytest_ddpscale.worker.probes.blocks import ProbeBlocks, RankProbed
from pytest_ddpscale.worker.rank_context import RankContext, arm_order

# Calibration runs a probe a few times, and then for this share of a block.
_FIRST_ITERATIONS = 2
_CALIBRATED_SHARE = 0.2
# A single attempt has to exceed the limit by this factor, because on a shared machine any attempt may be interrupted.
_SURELY = 4.0


class ProbeRounds:
    """One rank's part in probing, which runs once per gang. Rank 0 also decides and writes."""

    def __init__(self, study: ProbeStudy, context: RankContext, *, seed: int = 0) -> None:
        self._study = study
        self._context = context
        self._control, self._progress, self._telemetry = context.control, context.progress, context.telemetry
        self._seed = seed
        self._blocks = ProbeBlocks(context)
        self._told: set[tuple[str, int]] = set()  # probes and ranks that are recorded as unsupported
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
        reason = self._run_rounds()
        self._progress.arm, self._progress.phase = None, "cleaning up"
        self._blocks.close()
        return reason

    def _run_rounds(self) -> EndReason:
        study, here = self._study, self._progress
        timed, ranks = study.arms, self._control.layout.world_size
        if study.world_size > ranks:
            raise RuntimeError(f"the probes need {study.world_size} ranks; this gang has {ranks}")
        iterations: dict[str, int] = {}
        for number in range(study.rounds):
            ended, names = self._context.next_round(study.id, number, [probe.name for probe in timed])
            if ended:
                return ended
            if number == 0:
                iterations = {probe.name: self._calibrated(probe) for probe in timed}
            here.round = number
            timed = tuple(probe for probe in timed if probe.name in names and iterations[probe.name])
            if not timed:
                return "rounds"  # no rank can run any probe
            for probe in arm_order(timed, self._seed, study.id, number):
                self._measure(probe, number, iterations[probe.name])
            if self._control.rank == 0:
                arms = tuple(probe.name for probe in timed)
                self._context.sink.append_record(RoundEnd(study=study.id, round=number, arms=arms))
        return "rounds"

    def _calibrated(self, probe: Arm) -> int:
        """Number of iterations that fill a block on the slowest rank, the same on all ranks; 0 if no rank can run the
        probe, or if an iteration takes longer than the study allows.

        The first few iterations connect ranks, raise clocks and give a first estimate.
        """
        self._progress.round = None
        iterations, seconds = _FIRST_ITERATIONS, list[float]()
        if self._study.limit_s(probe) is not None:
            key = f"{self._study.id}/tried/{probe.name}"
            if not self._control.decided(key, partial(self._is_short, probe, 0.0)):
                return 0
        for attempt, share in enumerate((_CALIBRATED_SHARE, 1.0)):
            key = f"{self._study.id}/calibration-{attempt}/{probe.name}"
            said = self._blocks.block(probe, key, iterations, verify=False)
            heard: list[RankProbed] = []
            self._gather(f"{key}/said", probe, said, heard.extend)
            goal_s = share * self._study.block_s
            decide = partial(self._iterations, probe, iterations, goal_s, heard, seconds)
            iterations = int(self._control.decided(f"{key}/iterations", decide))
            if not iterations:
                return 0
        return iterations

    def _iterations(
        self, probe: Arm, before: int, goal_s: float, said: Sequence[RankProbed], seconds: list[float]
    ) -> int:
        """On rank 0: number of iterations that take `goal_s` seconds, from an attempt with `before` iterations.

        `seconds` has the time of one iteration in each attempt; disturbances rarely slow down both.
        """
        self._context.sink.append_records(self._unsupported(probe, said))
        slowest_s = max((one.seconds for one in said if one.seconds is not None), default=None)
        if slowest_s is None:
            return 0
        seconds.append(slowest_s / before)
        tolerance = 1.0 if len(seconds) > 1 else _SURELY
        if not self._is_short(probe, min(seconds), tolerance):
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
        told = [RankProbed(rank=rank, unsupported=self._too_slow[kind]) for rank in _ranks(probe, self._control.layout)]
        self._context.sink.append_records(self._unsupported(probe, told))
        return False

    def _measure(self, probe: Arm, number: int, iterations: int) -> None:
        key = f"{self._study.id}/{number}/{probe.name}"
        self._telemetry.wait_for_first_poll()
        said = self._blocks.block(probe, key, iterations)
        key = f"{key}/said"

        def join(heard: list[RankProbed]) -> None:
            self._telemetry.collect(key, _ranks(probe, self._control.layout), self._study.id, probe.name, number)
            records = self._unsupported(probe, heard)
            common = {"study": self._study.id, "arm": probe.name, "round": number, "gang": self._context.gang}
            for turn in sorted({turn for one in heard for turn in one.measured}):
                parts = [one.measured[turn] for one in heard if turn in one.measured]
                records.append(joined(parts, **common, turn=turn, count=iterations))
            self._context.sink.append_records(records)

        self._gather(key, probe, said, join, _windows)

    def _unsupported(self, probe: Arm, said: Sequence[RankProbed]) -> list[AnyRecord]:
        """A record of ranks that could not run a probe, with reasons; empty if all could or it was recorded before."""
        unable = [one for one in said if one.unsupported and (probe.name, one.rank) not in self._told]
        self._told |= {(probe.name, one.rank) for one in unable}
        if not unable:
            return []
        ranks, reasons = tuple(one.rank for one in unable), column(one.unsupported for one in unable)
        study, gang = self._study.id, self._context.gang
        return [Unsupported(study=study, arm=probe.name, gang=gang, ranks=ranks, reasons=reasons)]

    def _gather(
        self, key: str, probe: Arm, said: RankProbed, join: Callable[[list[RankProbed]], object],
        windows: Callable[[RankProbed], Sequence[TimedWindow]] | None = None,
    ) -> None:  # fmt: skip
        self._progress.phase = "gathering"
        ranks = _ranks(probe, self._control.layout)
        self._context.gather(key, ranks, said if self._control.rank in ranks else None, RankProbed, join, windows)


def _ranks(probe: Arm, layout: Layout) -> list[int]:
    """All ranks that take part in a probe."""
    return list(layout.ranks([probe]))


def _windows(said: RankProbed) -> list[TimedWindow]:
    return [TimedWindow(one.rank, one.began_unix_s, one.seconds) for one in said.measured.values()]
