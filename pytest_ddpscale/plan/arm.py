"""An arm: what the ranks of a study time in every round, training, forward passes or a probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from pytest_ddpscale.plan.operation import NAMES_IN_WORDS, Operation, operation, operation_of
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
        kind: the name of a probe's operation, ``all-reduce-32mib``; or how a workload runs. ``alone`` is one rank of a
            node, in turns, without DDP while its others idle; ``each`` is world_size ranks all at once, without DDP;
            ``no_sync`` is the same ranks under DistributedDataParallel that does not communicate; ``ddp`` is with
            communication. ``infer`` is forward passes only, of world_size ranks all at once, or of one rank of a node
            in turns. Of one rank that divides the batch among its node's devices while the others idle:
            ``data_parallel`` is torch's nn.DataParallel, ``vanilla_parallel`` ours, ``parallel_apply`` the part of that
            which computes.
        world_size: ranks that work together, 1 if each device works by itself. If they fit one node, all nodes do at
            once.
        batch_size: per-GPU batch, in samples; if one rank divides it among devices, the batch of all of them. A probe
            has none: 1.
        placement: ``packed`` fills a node before the next; ``spread`` uses all nodes.
        variant: settings that differ from the study's workload.
        devices: devices of its node among which one rank divides the batch.
    """

    kind: str
    world_size: int = 1
    batch_size: int = 1
    placement: Placement = "packed"
    variant: Variant = USUAL
    devices: int = 1

    def __post_init__(self) -> None:
        refuse_below_one(self, "an arm", "world_size", "batch_size", "devices")
        if self.is_probe:
            self._refuse_probe()
            return
        if self.kind not in get_args(ArmKind):
            expected = f"{', '.join(get_args(ArmKind))}, or a probe: {NAMES_IN_WORDS}"
            raise ValueError(f"unknown arm {self.kind!r}; expected {expected}")
        self.variant.batch_of(self.batch_size, 0)
        if (self.devices > 1) != self.is_split or (self.is_split and self.world_size != 1):
            raise ValueError(
                f"{self.name} of {self.world_size} ranks has {self.devices} devices; expected 1, or at least 2 for one "
                f"rank of {', '.join(SPLIT_KINDS)}"
            )
        if self.infers and self.variant != USUAL:
            raise ValueError(f"{self.name}: an inference arm cannot have variants; expected no {self.variant.name}")

    def _refuse_probe(self) -> None:
        if self.operation.is_single_device and self.world_size != 1:
            raise ValueError(f"{self.kind} runs on one device; expected world_size 1")
        if not self.operation.is_single_device and self.world_size < 2:
            raise ValueError(f"{self.kind} needs at least 2 ranks")
        if (self.batch_size, self.devices, self.placement, self.variant) != (1, 1, "packed", USUAL):
            raise ValueError(f"the probe {self.name} has a batch, a placement, devices or a variant; expected none")

    @property
    def name(self) -> str:
        """``alone``, ``matmul-bf16``, or its kind and its ranks or devices: ``ddp@8``, ``all-reduce-32mib@8``; then
        ``-spread`` and its variant's name. Unique in a study."""
        is_single = self.kind == "alone" or (self.is_probe and self.world_size == 1)
        name = self.kind if is_single else f"{self.kind}@{self.world_size * self.devices}"
        spread = "-spread" if self.placement == "spread" else ""
        return f"{name}{spread}" + (f"+{self.variant.name}" if self.variant != USUAL else "")

    def data_of(self, workload: Workload) -> Data:
        """The data it trains on. Arms that compare ranks use synthetic data, so that a slow disk does not look like a
        slow GPU; inference uses images on the device."""
        return "synthetic" if self.kind in ("each", "infer") else self.variant.applied_to(workload).data

    @property
    def is_probe(self) -> bool:
        """Whether it trains nothing, but repeats one operation."""
        return operation_of(self.kind) is not None

    @property
    def operation(self) -> Operation:
        """What a probe does. Raises ValueError if it is none."""
        return operation(self.kind)

    @property
    def is_split(self) -> bool:
        """Whether one rank divides the batch among several devices."""
        return self.kind in SPLIT_KINDS

    @property
    def infers(self) -> bool:
        """Whether it has forward passes only."""
        return self.kind == "infer" or self.is_split

    def times_forward_passes(self, workload: Workload) -> bool:
        """Whether each rank times the forward passes of its model, which show its own pace under DDP too.

        Hooks on a compiled model never fire.
        """
        return not (self.is_probe or self.infers or self.variant.applied_to(workload).compile)

    @property
    def compares_ranks(self) -> bool:
        """Whether its ranks all work at once without waiting for each other, so that a slow one shows."""
        return self.kind == "each" or (self.kind == "infer" and self.world_size > 1)
