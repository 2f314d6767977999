"""An arm: one setting inside a study, which its ranks time in every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_ddpscale.plan.variant import USUAL, Variant
from pytest_ddpscale.plan.words import refuse_below_one
from pytest_ddpscale.plan.workload import Data, Workload

ArmKind = Literal["alone", "each", "no_sync", "ddp", "infer", "data_parallel", "vanilla_parallel", "parallel_apply"]
# One process drives several devices, for forward passes only.
SPLIT_KINDS = ("data_parallel", "vanilla_parallel", "parallel_apply")
# How the single-GPU baseline is trained: without DDP, or wrapped in it like many GPUs.
OneGpu = Literal["alone", "ddp"]
Placement = Literal["packed", "spread"]


@dataclass(frozen=True)
class Arm:
    """One setting inside a study.

    Attributes:
        kind: ``alone`` is one rank of a node, in turns, without DDP while its others idle; ``each`` is
            world_size ranks all at once, without DDP; ``no_sync`` is the same ranks under DistributedDataParallel
            that does not communicate; ``ddp`` is with communication. ``infer`` is forward passes only, of
            world_size ranks all at once, or of one rank of a node in turns. Of one rank that divides the batch among
            its node's devices while the others idle: ``data_parallel`` is torch's nn.DataParallel,
            ``vanilla_parallel`` ours, ``parallel_apply`` the part of that which computes.
        world_size: ranks that train together. If they fit one node, all nodes train the arm at once.
        batch_size: per-GPU batch, in samples; if one rank divides it among devices, the batch of all of them.
        placement: ``packed`` fills a node before the next; ``spread`` uses all nodes.
        variant: settings that differ from the study's workload.
        devices: devices of its node among which one rank divides the batch.
    """

    kind: ArmKind
    world_size: int
    batch_size: int
    placement: Placement = "packed"
    variant: Variant = USUAL
    devices: int = 1

    def __post_init__(self) -> None:
        refuse_below_one(self, "an arm", "world_size", "batch_size", "devices")
        self.variant.batch_of(self.batch_size, 0)
        if (self.devices > 1) != self.is_split or (self.is_split and self.world_size != 1):
            raise ValueError(
                f"{self.name} of {self.world_size} ranks has {self.devices} devices; expected 1, or at least 2 for one "
                f"rank of {', '.join(SPLIT_KINDS)}"
            )
        if self.infers and self.variant != USUAL:
            raise ValueError(f"{self.name}: an inference arm cannot have variants; expected no {self.variant.name}")

    @property
    def name(self) -> str:
        """``alone``, or its kind and its ranks or devices: ``ddp@k``; then ``-spread`` and its variant's name."""
        name = "alone" if self.kind == "alone" else f"{self.kind}@{self.world_size * self.devices}"
        spread = "-spread" if self.placement == "spread" else ""
        return f"{name}{spread}" + (f"+{self.variant.name}" if self.variant != USUAL else "")

    def data_of(self, workload: Workload) -> Data:
        """The data it trains on. Arms that compare ranks use synthetic data, so that a slow disk does not look like a
        slow GPU; inference uses images on the device."""
        return "synthetic" if self.kind in ("each", "infer") else self.variant.applied_to(workload).data

    @property
    def is_split(self) -> bool:
        """Whether one rank divides the batch among several devices."""
        return self.kind in SPLIT_KINDS

    @property
    def infers(self) -> bool:
        """Whether it has forward passes only."""
        return self.kind == "infer" or self.is_split

    @property
    def compares_ranks(self) -> bool:
        """Whether its ranks all work at once without waiting for each other, so that a slow one shows."""
        return self.kind == "each" or (self.kind == "infer" and self.world_size > 1)
