"""Groups of ranks that run a probe at the same time, and their process groups."""

from __future__ import annotations

import torch
import torch.distributed as dist

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.probe import SINGLE_DEVICE, Probe
from pytest_ddpscale.worker.process_groups import new_group
from pytest_ddpscale.worker.rank_context import RankContext

Ranks = tuple[int, ...]


def rank_groups(probe: Probe, layout: Layout) -> tuple[Ranks, ...]:
    """The sets of ranks that begin a probe together, in order.

    For probes that communicate: one group on every node, or a single one over the first nodes if it is larger than a
    node. For probes of single devices: all ranks of a node, because devices that share power and links are measured at
    the same time.

    Raises:
        RuntimeError: the gang has too few ranks.
    """
    if probe.world_size > layout.world_size:
        raise RuntimeError(f"probe {probe.id} needs {probe.world_size} ranks; this gang has {layout.world_size}")
    if probe.kind in SINGLE_DEVICE:
        firsts = range(0, layout.world_size, layout.ranks_per_node)
        return tuple(tuple(range(first, first + layout.ranks_per_node)) for first in firsts)
    return layout.groups(Arm("ddp", probe.world_size, 1))


class ProbeGroups:
    """Process groups of probes, created on first use and shared by probes of the same ranks.

    Each NCCL communicator holds device memory, so `close` has to be called at the end of the study.
    """

    def __init__(self, context: RankContext) -> None:
        self._layout, self._rank = context.control.layout, context.control.rank
        self._device, self._timeout = context.device.torch_device, context.timeout
        self._made: dict[Ranks, dist.ProcessGroup | None] = {}

    def crew(self, probe: Probe) -> Ranks:
        """The ranks that begin a probe with this one, including itself; empty if it takes no part."""
        return next((crew for crew in rank_groups(probe, self._layout) if self._rank in crew), ())

    def group(self, probe: Probe) -> dist.ProcessGroup | None:
        """The connected process group in which this rank runs a probe; None if it runs it alone or not at all.

        All ranks of the gang call this for the same probes in the same order.
        """
        if probe.kind in SINGLE_DEVICE:
            return None
        mine = None
        for ranks in rank_groups(probe, self._layout):
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
