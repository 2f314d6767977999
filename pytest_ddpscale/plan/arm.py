"""An arm: what the ranks of a study time in every round, training, forward passes or a probe; and its settings of
DistributedDataParallel and of the trainer, where they differ from those of its study's workload."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from pytest_ddpscale.families.image import MemoryFormat
from pytest_ddpscale.plan.operation import NAMES_IN_WORDS, Operation, operation, operation_of
from pytest_ddpscale.plan.words import Precision, refuse_below_one
from pytest_ddpscale.plan.workload import Data, Workload

CompileMode = Literal["no", "default", "reduce-overhead", "max-autotune"]
CommunicationHook = Literal["fp16", "bf16", "powersgd"]
# DistributedDataParallel's own default, in MiB.
USUAL_BUCKET_CAP_MB = 25.0
# Settings of the data only; arms that differ only in these share one model.
DATA_SETTINGS = ("data", "workers", "prefetch", "pin_memory")


@dataclass(frozen=True)
class Variant:
    """Settings of one arm; by default those of the workload and torch's defaults.

    Attributes:
        bucket_cap_mb: size of DDP's gradient buckets, in MiB; None for torch's 25.
        gradient_as_bucket_view: gradients are views of the buckets, which saves a copy.
        static_graph: tells DDP that each step uses the same parameters in the same order.
        broadcast_buffers: sends rank 0's buffers, such as batch normalisation's, to all ranks before each forward pass.
        hook: compresses gradients: to fp16, bf16, or a low-rank product (PowerSGD, arXiv:1905.13727).
        high_priority_stream: runs NCCL's kernels before others on the GPU.
        precision: replaces the workload's.
        memory_format: replaces the workload's.
        compile: mode of torch.compile, or ``no``; None for the workload's.
        fused_optimizer: one kernel for all parameters.
        accumulation_steps: forward and backward passes per optimizer step, of which only the last one communicates. The
            arm's per-GPU batch is that of the whole step.
        batch_size: samples per GPU and forward pass; replaces the workload's.
        uneven_share: half of the ranks train this share of the batch more, the others as much less.
        data: ``synthetic`` replaces the workload's folder.
        workers: processes of each rank that read the workload's folder; replaces the workload's.
        prefetch: batches that each of these processes prefetches; replaces the workload's.
        pin_memory: whether batches go through pinned memory; replaces the workload's.
    """

    bucket_cap_mb: float | None = None
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    broadcast_buffers: bool = True
    hook: CommunicationHook | None = None
    high_priority_stream: bool = False
    precision: Precision | None = None
    memory_format: MemoryFormat | None = None
    compile: CompileMode | None = None
    fused_optimizer: bool = False
    accumulation_steps: int = 1
    batch_size: int | None = None
    uneven_share: float = 0.0
    data: Literal["synthetic"] | None = None
    workers: int | None = None
    prefetch: int | None = None
    pin_memory: bool | None = None

    def __post_init__(self) -> None:
        if self.bucket_cap_mb is not None and not 0 < self.bucket_cap_mb <= 10**5:
            raise ValueError(f"bucket_cap_mb above 0 and at most 100000 MiB, not {self.bucket_cap_mb}")
        if not 1 <= self.accumulation_steps <= 10**4:
            raise ValueError(f"accumulation_steps from 1 to 10000, not {self.accumulation_steps}")
        if not 0 <= self.uneven_share < 1:
            raise ValueError(f"uneven_share from 0 to below 1, not {self.uneven_share}")

    @property
    def name(self) -> str:
        """The settings that differ, such as ``bucket_cap_mb=1``; empty if none does."""
        values = [
            (field_.name, getattr(self, field_.name))
            for field_ in fields(self)
            if getattr(self, field_.name) != field_.default
        ]
        return ",".join(f"{name}={f'{value:g}' if isinstance(value, float) else value}" for name, value in values)

    def applied_to(self, workload: Workload) -> Workload:
        """The workload with these settings applied."""
        family = workload.family
        return replace(
            workload,
            family=family.changed(memory_format=self.memory_format) if self.memory_format else family,
            precision=self.precision or workload.precision,
            compile=workload.compile if self.compile is None else self.compile != "no",
            data=self._data_of(workload),
        )

    @property
    def of_model(self) -> Variant:
        """The variant without `DATA_SETTINGS`."""
        return replace(self, data=None, workers=None, prefetch=None, pin_memory=None)

    def _data_of(self, workload: Workload) -> Data:
        data = self.data or workload.data
        if data == "synthetic":
            return data
        return replace(data, **{name: value for name, value in self._loading.items() if value is not None})

    @property
    def _loading(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in DATA_SETTINGS if name != "data"}

    def refuse_data_of(self, workload: Workload) -> None:
        """Raise ValueError if no arm of that workload can have these settings."""
        is_synthetic = self.data == "synthetic" or workload.data == "synthetic"
        if is_synthetic and {*self._loading.values()} != {None}:
            raise ValueError(f"{self.name}: {workload.name} has synthetic data, which needs no loader workers")
        if not is_synthetic and self.uneven_share:
            raise ValueError(f"{self.name}: ranks share a folder evenly; expected synthetic data")
        self._data_of(workload)  # refuses invalid numbers

    def batch_of(self, batch_size: int, rank: int) -> int:
        """Samples of one forward pass of a rank, in an arm with that per-GPU batch.

        Raises:
            ValueError: the batch cannot be divided among the passes of a step, the variant has another batch, or its
                uneven share leaves a rank without samples.
        """
        if batch_size % self.accumulation_steps:
            passes = self.accumulation_steps
            raise ValueError(f"a per-GPU batch of {batch_size} cannot be split into {passes} equal passes")
        of_pass = batch_size // self.accumulation_steps
        if self.batch_size not in (None, of_pass):
            raise ValueError(f"found a pass of {of_pass} samples; expected {self.name}")
        more = round(of_pass * self.uneven_share)
        if more == of_pass:
            raise ValueError(f"uneven_share that leaves each rank one of {of_pass} samples, not {self.uneven_share}")
        return of_pass + (more if rank % 2 else -more)


USUAL = Variant()


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
            if self.operation.is_single_device and self.world_size != 1:
                raise ValueError(f"{self.kind} runs on one device; expected world_size 1")
            if not self.operation.is_single_device and self.world_size < 2:
                raise ValueError(f"{self.kind} needs at least 2 ranks")
            if (self.batch_size, self.devices, self.placement, self.variant) != (1, 1, "packed", USUAL):
                raise ValueError(f"the probe {self.name} has a batch, a placement, devices or a variant; expected none")
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
        slow GPU; inference uses samples on the device."""
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

    @property
    def compares_ranks(self) -> bool:
        """Whether its ranks all work at once without waiting for each other, so that a slow one shows."""
        return self.kind == "each" or (self.kind == "infer" and self.world_size > 1)
