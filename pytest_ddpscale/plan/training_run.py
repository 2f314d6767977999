"""A whole training run: epochs over a data set with validation, by a gang of its own; what plan.json has of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_ddpscale.plan.layout import Layout, refuse_below_one
from pytest_ddpscale.plan.variant import CompileMode
from pytest_ddpscale.plan.workload import Workload

DataKind = Literal["made", "mnist", "folder"]
Optimizer = Literal["sgd", "adam", "adamw"]
LearningRateRule = Literal["constant", "linear", "sqrt"]

# How many losses are averaged to say that a threshold is reached: one batch's may be low by chance.
LOSS_WINDOW = 10
# A model of the project's own: three linear layers with so many hidden units; the number follows.
CLASSIFIER = "classifier-"


@dataclass(frozen=True)
class SampleSet:
    """What is trained on and validated with.

    Attributes:
        kind: ``made`` are images made from a seed, which can be learnt; ``mnist`` is a folder of MNIST's idx files;
            ``folder`` one of images by class.
        name: in tables.
        train_samples: images of an epoch, before what fills no global batch is dropped.
        validation_samples: each is validated once an epoch.
        classes: labels are 0 … classes - 1.
        path: of the folder; empty for ``made``.
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
class RunBounds:
    """What a run has to reach: complete time in seconds, accuracy of its last validation; None where nothing is asked.

    Attributes:
        most_s_from: who asks for `most_s`: an option, or the source of a published number.
        least_accuracy_from: likewise.
    """

    most_s: float | None = None
    least_accuracy: float | None = None
    most_s_from: str = ""
    least_accuracy_from: str = ""


@dataclass(frozen=True)
class TrainingRun:
    """One run from the start of its processes to its last validation.

    Attributes:
        name: of what is trained, the same at all world sizes.
        workload: its `batch_size` is per rank.
        samples: the data.
        nodes: that train.
        ranks_per_node: on each of them.
        epochs: at most: fewer where `loss_threshold` is reached before.
        learning_rate: of this world size, after `rule`.
        rule: how it follows from the global batch: see `learning_rate_at`.
        compile_mode: of torch.compile, or ``no``.
        loader_workers: processes of each rank that read images; 0 for none.
        loss_threshold: training ends with the epoch in which the loss gets there; None trains all epochs.
        seed: of the data's order, the weights, and made images.
        launch: in which of the plan's launches it is done, from 1.
        bounds: what it has to reach.
        id: ``train/micro-224@8``, of a later launch ``train/micro-224@8/launch-2``.
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
    bounds: RunBounds = RunBounds()
    id: str = field(init=False, default="")

    def __post_init__(self) -> None:
        refuse_below_one(self, "a training run", "nodes", "ranks_per_node", "epochs", "launch")
        if self.iterations < 1:
            raise ValueError(
                f"{self.samples.name} has {self.samples.train_samples} images, fewer than one global batch of "
                f"{self.global_batch} ({self.world_size} ranks, {self.workload.batch_size} each)"
            )
        suffix = f"/launch-{self.launch}" if self.launch > 1 else ""
        object.__setattr__(self, "id", f"train/{self.name}@{self.world_size}{suffix}")

    @property
    def layout(self) -> Layout:
        """Its gang's."""
        return Layout(self.nodes, self.ranks_per_node)

    @property
    def world_size(self) -> int:
        """Ranks that train together: all of its gang."""
        return self.nodes * self.ranks_per_node

    @property
    def global_batch(self) -> int:
        """Images of an optimizer step."""
        return self.world_size * self.workload.batch_size

    @property
    def iterations(self) -> int:
        """Of an epoch: what fills no global batch is left out, as DistributedSampler does with drop_last."""
        return self.samples.train_samples // self.global_batch

    @property
    def epoch_samples(self) -> int:
        """Images that an epoch trains."""
        return self.iterations * self.global_batch


def learning_rate_at(rate: float, rule: LearningRateRule, global_batch: int, base_batch: int) -> float:
    """The learning rate of a global batch where `rate` is that of `base_batch`.

    ``linear`` scales it with the batch (Goyal et al., arXiv:1706.02677), ``sqrt`` with its square root (Krizhevsky,
    arXiv:1404.5997).
    """
    factor = global_batch / base_batch
    return rate * {"constant": 1.0, "linear": factor, "sqrt": math.sqrt(factor)}[rule]


def loss_reached(losses: Sequence[float], threshold: float) -> int | None:
    """The first iteration, from 1, after which the mean of the last `LOSS_WINDOW` losses is no higher."""
    for end in range(LOSS_WINDOW, len(losses) + 1):
        if sum(losses[end - LOSS_WINDOW : end]) / LOSS_WINDOW <= threshold:
            return end
    return None
