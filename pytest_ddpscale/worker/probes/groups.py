"""Process groups of the ranks that run a probe at the same time."""

from __future__ import annotations

import torch
import torch.distributed as dist

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Ranks
from pytest_ddpscale.worker.process_groups import new_group
from pytest_ddpscale.worker.rank_context import RankContext


class ProbeGroups:
    """Process groups of probes, created on first use and shared by probes of the same ranks.

    Each NCCL communicator holds device memory, so `close` has to be called at the end of the study.
    """

    def __init__(self, context: RankContext) -> None:
        self._layout, self._rank = context.control.layout, context.control.rank
        self._device, self._timeout = context.device.torch_device, context.timeout
        self._made: dict[Ranks, dist.ProcessGroup | None] = {}

    def crew(self, probe: Arm) -> Ranks:
        """The ranks that begin a probe with this one, including itself; empty if it takes no part."""
        return next((crew for crew in self._layout.crews(probe) if self._rank in crew), ())

    def group(self, probe: Arm) -> dist.ProcessGroup | None:
        """The connected process group in which this rank runs a probe; None if it runs it alone or not at all.

        All ranks of the gang call this for the same probes in the same order.
        """
        if probe.operation.is_single_device:
            return None
        mine = None
        for ranks in self._layout.crews(probe):
            if ranks not in self._made:
                self._made[ranks] = self._make(ranks)
            mine = mine or self._made[ranks]
        return mine

    def close(self) -> None:
        """Destroy all groups. Not after a failure in a collective: it may then hang."""
        for group in self._made.values():
            if group is not None:
                dist.destroy_process_group(group)
        self._made.clear()

    def _make(self, ranks: Ranks) -> dist.ProcessGroup | None:
        group = new_group(ranks, self._timeout)
        if group is not None:
            # NCCL connects with the first collective; with a send-recv each pair would get its own communicator.
            dist.all_reduce(torch.zeros(1, device=self._device), group=group)
        return group
