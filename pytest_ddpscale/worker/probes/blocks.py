"""One probe, done by one rank for a while: with others where they communicate, beside them where not."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from pytest_ddpscale.plan.probe import SINGLE_DEVICE, Probe
from pytest_ddpscale.results.probe_record import RankProbe
from pytest_ddpscale.results.strict_json import Count, Record
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import Device, Timing
from pytest_ddpscale.worker.probes.groups import ProbeGroups, Ranks
from pytest_ddpscale.worker.probes.open_work import open_work, turns
from pytest_ddpscale.worker.probes.work import CannotProbeError, Work, memory_permitting
from pytest_ddpscale.worker.rank_progress import RankProgress

# Share of a block that is done before it, untimed: clocks and caches are then where they are in the middle of it.
_BEFORE_TIMING = 0.1


class RankProbed(Record, frozen=True, kw_only=True):
    """What one rank has to say of one probe in one round.

    Attributes:
        rank: global rank in the gang.
        measured: one for each turn in which it took part.
        unsupported: why it could not; empty if it could, or has said so.
    """

    rank: Count
    measured: tuple[RankProbe, ...] = ()
    unsupported: str = ""

    @property
    def seconds(self) -> float | None:
        """That all turns took together; None if there was none."""
        return sum(one.seconds for one in self.measured) if self.measured else None


class ProbeBlocks:
    """Does probes on this rank. Between two blocks all ranks of the gang have to wait for each other.

    Args:
        device: what is probed.
        control: how ranks tell each other things.
        progress: kept up to date.
        timeout: limit for one collective.
    """

    def __init__(self, device: Device, control: Control, progress: RankProgress, timeout: timedelta) -> None:
        self._device = device
        self._control = control
        self._progress = progress
        self._groups = ProbeGroups(control.layout, control.rank, device.torch_device, timeout)
        self._said: list[str] = []
        self._told: set[str] = set()

    def block(self, probe: Probe, key: str, iterations: int, *, verify: bool = True) -> RankProbed:
        """Do a probe so often in each of its turns. All ranks of the gang call this, also those without a part.

        Args:
            probe: what to do.
            key: of what ranks say to each other meanwhile: another one for each call.
            iterations: the same on all ranks.
            verify: whether results are looked at; not where nobody keeps the measurements.
        """
        here = self._progress
        here.arm, here.phase = probe.id, "preparation"
        self._forget_what_was_said()
        group, crew = self._groups.group(probe), self._groups.crew(probe)
        measured: list[RankProbe] = []
        why_not = ""
        for turn in range(turns(probe, self._control.layout)):
            here.phase = "preparation"  # all ranks enter as many phases, so that none seems to be behind
            work, reason = self._opened(probe, turn, group) if crew else (None, "")
            here.phase = "meeting"
            all_can = self._meet(f"{key}/{turn}", crew, can=not reason)
            here.phase = "timed block"
            if work is not None and (all_can or probe.kind in SINGLE_DEVICE):
                try:
                    measured.append(self._measured(probe, work, iterations, verify=verify))
                except CannotProbeError as error:
                    if probe.kind not in SINGLE_DEVICE:
                        raise  # the others wait for this rank already
                    reason = str(error)
            del work
            self._device.release()
            why_not = why_not or reason
        unsupported = self._said_once(probe, why_not) if why_not else ""
        return RankProbed(rank=self._control.rank, measured=tuple(measured), unsupported=unsupported)

    def close(self) -> None:
        """Give memory and communicators back."""
        self._groups.close()
        self._device.release()

    def _meet(self, key: str, crew: Ranks, *, can: bool) -> bool:
        """Wait until all of a crew are ready. Returns whether all of them can do what comes."""
        if not crew:
            return False
        control, ready = self._control, f"{key}/{crew[0]}/ready"
        mine = f"{key}/{control.rank}"
        control.say(mine, can)
        if control.rank == crew[0]:
            control.say(ready, all(control.hear_all([f"{key}/{rank}" for rank in crew])))
            self._said.append(ready)
        all_can = bool(control.hear(ready))
        control.forget(mine)
        return all_can

    def _forget_what_was_said(self) -> None:
        """So that the store does not grow with the rounds. All have heard it: they came to the end of that block."""
        for key in self._said:
            self._control.forget(key)
        self._said.clear()

    def _opened(self, probe: Probe, turn: int, group: dist.ProcessGroup | None) -> tuple[Work | None, str]:
        """What this rank does in a turn, or why it cannot; neither if it sits out."""
        try:
            return open_work(probe, turn, self._device, group, self._control.layout), ""
        except CannotProbeError as error:
            return None, str(error)

    def _measured(self, probe: Probe, work: Work, iterations: int, *, verify: bool) -> RankProbe:
        with memory_permitting(f"{probe.id} and its verification"):
            timing = self._timed(work, iterations)
            is_correct = work.is_correct() if verify else True
        return RankProbe(
            rank=self._control.rank,
            peer=work.peer_rank,
            work=work.work,
            seconds=timing.block_s,
            started_unix_s=timing.started_unix_s,
            is_correct=is_correct,
        )

    def _timed(self, work: Work, iterations: int) -> Timing:
        for _ in range(max(1, round(iterations * _BEFORE_TIMING))):
            work()

        def repeat() -> None:
            for _ in range(iterations):
                work()
                self._device.on_step()

        # As one step: events between iterations would take some of a short one's time.
        return self._device.time_steps(repeat, 1)

    def _said_once(self, probe: Probe, reason: str) -> str:
        """Why this rank cannot do a probe; nothing once that has been said."""
        if probe.id in self._told:
            return ""
        self._told.add(probe.id)
        return reason
