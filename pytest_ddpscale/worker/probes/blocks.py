"""One timed block of a probe on one rank, together with other ranks if the probe communicates."""

from __future__ import annotations

import torch.distributed as dist
from msgspec import field

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout, Ranks
from pytest_ddpscale.run.block import RankBlock
from pytest_ddpscale.run.strict_json import Count, Record
from pytest_ddpscale.worker.device import Device, Timing
from pytest_ddpscale.worker.probes.collectives import MESSAGES_HELD, open_collective, open_send_receive
from pytest_ddpscale.worker.probes.groups import ProbeGroups
from pytest_ddpscale.worker.probes.matmul import open_matmul
from pytest_ddpscale.worker.probes.memory import open_copy
from pytest_ddpscale.worker.probes.work import CannotProbeError, Work, memory_permitting, refuse_more_than_is_free
from pytest_ddpscale.worker.rank_context import RankContext

# Untimed iterations before a block, as a share of it, to reach the usual state of clocks and caches.
_BEFORE_TIMING = 0.1


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

    @property
    def seconds(self) -> float | None:
        """Seconds of all turns together; None without turns."""
        return sum(one.seconds for one in self.measured.values()) if self.measured else None


class ProbeBlocks:
    """Runs probes on this rank. Between two blocks all ranks of the gang have to wait for each other."""

    def __init__(self, context: RankContext) -> None:
        self._device, self._control, self._progress = context.device, context.control, context.progress
        self._groups = ProbeGroups(context)
        self._said: list[str] = []

    def block(self, probe: Arm, key: str, iterations: int, *, verify: bool = True) -> RankProbed:
        """Run `iterations` of a probe in each of its turns. All ranks of the gang call this, even without a part.

        Args:
            key: of messages between ranks, unique for each call.
            verify: whether to check results; unnecessary if the measurements are not kept.
        """
        here = self._progress
        here.arm, here.phase = probe.name, "preparation"
        # Keeps the store from growing with the rounds. All ranks have read these keys, because they ended that block.
        for said in self._said:
            self._control.forget(said)
        self._said.clear()
        group, crew = self._groups.group(probe), self._groups.crew(probe)
        measured: dict[int, RankBlock] = {}
        why_not = ""
        for turn in range(self._control.layout.turns(probe)):
            here.phase = "preparation"  # all ranks enter equally many phases, so none seems to be behind
            work, reason = self._opened(probe, turn, group) if crew else (None, "")
            here.phase = "meeting"
            all_can = self._meet(f"{key}/{turn}", crew, can=not reason)
            here.phase = "timed block"
            if work is not None and (all_can or probe.operation.is_single_device):
                try:
                    measured[turn] = self._measured(probe, turn, work, iterations, verify=verify)
                except CannotProbeError as error:
                    if not probe.operation.is_single_device:
                        raise  # the other ranks already wait for this one
                    reason = str(error)
            del work
            self._device.release()
            why_not = why_not or reason
        return RankProbed(rank=self._control.rank, measured=measured, unsupported=why_not)

    def close(self) -> None:
        """Free memory and communicators."""
        self._groups.close()
        self._device.release()

    def _meet(self, key: str, crew: Ranks, *, can: bool) -> bool:
        """Wait until all ranks of a crew are ready. Returns whether all of them can run the probe."""
        if not crew:
            return False
        control, ready = self._control, f"{key}/{crew[0]}/ready"
        mine = f"{key}/{control.rank}"
        control.say(mine, can)
        if control.rank == crew[0]:
            control.say(ready, all(control.hear_all([f"{key}/{rank}" for rank in crew], bool)))
            self._said.append(ready)
        all_can = bool(control.hear(ready))
        control.forget(mine)
        return all_can

    def _opened(self, probe: Arm, turn: int, group: dist.ProcessGroup | None) -> tuple[Work | None, str]:
        """The work of this rank in a turn, or why it cannot do it; neither if it sits out."""
        try:
            return open_work(probe, turn, self._device, group, self._control.layout), ""
        except CannotProbeError as error:
            return None, str(error)

    def _measured(self, probe: Arm, turn: int, work: Work, iterations: int, *, verify: bool) -> RankBlock:
        with memory_permitting(f"{probe.name} and its verification"):
            timing = self._timed(work, iterations)
            is_correct = work.is_correct() if verify else True
        rank, layout = self._control.rank, self._control.layout
        groups = layout.crews(probe) if probe.operation.is_single_device else layout.groups(probe, turn)
        return RankBlock(
            rank=rank,
            group=next(number for number, group in enumerate(groups) if rank in group),
            work=work.work,
            began_unix_s=timing.started_unix_s,
            seconds=timing.block_s,
            readings={"is_correct": is_correct},
        )

    def _timed(self, work: Work, iterations: int) -> Timing:
        for _ in range(max(1, round(iterations * _BEFORE_TIMING))):
            work()

        def repeat() -> None:
            for _ in range(iterations):
                work()
                self._device.on_step()

        # As one step, because events between iterations would slow down short ones.
        return self._device.time_steps(repeat, 1)


def peer_of(rank: int, probe: Arm, turn: int, layout: Layout) -> int | None:
    """The peer of a rank in a turn of send-recv; None if it sits out."""
    pair = next((pair for pair in layout.groups(probe, turn) if rank in pair), None)
    return None if pair is None else pair[1] if pair[0] == rank else pair[0]


def open_work(probe: Arm, turn: int, device: Device, group: dist.ProcessGroup | None, layout: Layout) -> Work | None:
    """The work that this rank repeats in one turn of a probe; None if it sits out. Does not communicate yet.

    Raises:
        CannotProbeError: the rank cannot do it; the message says why.
    """
    operation = probe.operation
    if group is None:
        if operation.precision is not None:
            return open_matmul(operation.precision, device, operation.rows, layout.ranks_per_node)
        return open_copy(operation.kind, device.torch_device)
    size = operation.message_bytes
    assert size is not None  # all probes that communicate have a message
    where = device.torch_device
    refuse_more_than_is_free(MESSAGES_HELD * size, layout.ranks_per_node, where)
    with memory_permitting(f"messages of {size} bytes"):
        if operation.kind != "send-recv":
            return open_collective(operation.kind, size, group, where)
        peer = peer_of(dist.get_rank(), probe, turn, layout)
        return None if peer is None else open_send_receive(size, group, where, peer)
