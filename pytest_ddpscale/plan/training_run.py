"""A whole training run, as stored in plan.json: epochs over a data set with validation, by its own gang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_ddpscale.plan.arm import CompileMode
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.words import refuse_below_one
from pytest_ddpscale.plan.workload import Workload

DataKind = Literal["made", "mnist", "folder"]
Optimizer = Literal["sgd", "adam", "adamw"]
LearningRateRule = Literal["constant", "linear", "sqrt"]

# Number of losses averaged for the threshold, since a single batch's loss may be low by chance.
LOSS_WINDOW = 10


@dataclass(frozen=True)
class SampleSet:
    """The data set for training and validation.

    Attributes:
        kind: ``made`` for learnable samples generated from a seed; ``mnist`` for a folder of MNIST's idx files;
            ``folder`` for a folder of samples by class.
        name: its name in tables.
        train_samples: samples of an epoch, before the last incomplete global batch is dropped.
        validation_samples: samples validated once per epoch.
        classes: number of classes; labels are 0 … classes - 1.
        path: the folder; empty for ``made``.
    """

    kind: DataKind
    name: str
    train_samples: int
    validation_samples: int
    classes: int
    path: str = ""

    def __post_init__(self) -> None:
        refuse_below_one(self, f"data set {self.name}", "train_samples", "validation_samples", "classes")


@dataclass(frozen=True)
class TrainingRun:
    """One run from the start of its processes to its last validation.

    Attributes:
        name: name of the training, the same at all world sizes.
        workload: its `batch_size` is per rank.
        samples: the data set.
        nodes: number of nodes.
        ranks_per_node: ranks on each node.
        epochs: largest number of epochs; fewer if `loss_threshold` is reached earlier.
        learning_rate: rate at this world size, after applying `rule`.
        rule: how the rate depends on the global batch; see `suites.training_runs`.
        compile_mode: mode of torch.compile, or ``no``.
        loader_workers: processes of each rank that read samples; 0 for none.
        loss_threshold: training ends with the epoch that reaches this loss; None trains all epochs.
        seed: seed of the data order and the weights.
        launch: the launch of the plan in which it runs, from 1.
        most_s: bound on its complete time, in seconds, judged at the largest world size; None without one.
        least_accuracy: bound on the accuracy of its last validation; likewise.
        deadline_s: complete time within which somebody wants to be done, in seconds; None without one.
        gpu_hour_price: price of a GPU (CPU: rank) for an hour; None if nobody asked for a price.
        kwh_price: price of a kWh of the GPUs' energy; likewise.
        id: ``train/micro-224@8``, in a later launch ``train/micro-224@8/launch-2``.
    """

    name: str
    workload: Workload
    samples: SampleSet
    nodes: int
    ranks_per_node: int
    epochs: int
    optimizer: Optimizer = "sgd"
    learning_rate: float = 0.01
    rule: LearningRateRule = "constant"
    compile_mode: CompileMode = "no"
    loader_workers: int = 0
    loss_threshold: float | None = None
    seed: int = 0
    launch: int = 1
    most_s: float | None = None
    least_accuracy: float | None = None
    deadline_s: float | None = None
    gpu_hour_price: float | None = None
    kwh_price: float | None = None
    id: str = field(init=False, default="")

    def __post_init__(self) -> None:
        refuse_below_one(self, "a training run", "nodes", "ranks_per_node", "epochs", "launch")
        if self.iterations < 1:
            raise ValueError(
                f"{self.samples.name} has {self.samples.train_samples} {self.workload.family.samples}, fewer than one "
                f"global batch of {self.global_batch} ({self.world_size} ranks, {self.workload.batch_size} each)"
            )
        suffix = f"/launch-{self.launch}" if self.launch > 1 else ""
        object.__setattr__(self, "id", f"train/{self.name}@{self.world_size}{suffix}")

    @property
    def layout(self) -> Layout:
        """Layout of its gang."""
        return Layout(self.nodes, self.ranks_per_node)

    @property
    def world_size(self) -> int:
        """Ranks that train together, which are all ranks of its gang."""
        return self.nodes * self.ranks_per_node

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step."""
        return self.world_size * self.workload.batch_size

    @property
    def iterations(self) -> int:
        """Iterations per epoch, without the last incomplete global batch, as with DistributedSampler's drop_last."""
        return self.samples.train_samples // self.global_batch

    @property
    def epoch_samples(self) -> int:
        """Samples trained per epoch."""
        return self.iterations * self.global_batch


def loss_reached(losses: Sequence[float], threshold: float) -> int | None:
    """The first iteration, from 1, at which the mean of the last `LOSS_WINDOW` losses is at most the threshold."""
    ends = range(LOSS_WINDOW, len(losses) + 1)
    return next((end for end in ends if sum(losses[end - LOSS_WINDOW : end]) / LOSS_WINDOW <= threshold), None)
