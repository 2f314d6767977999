"""Shared by `suite whole-run` and `suite convergence`: options, world sizes, data, and training runs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import CompileMode
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.training_run import (
    LearningRateRule,
    Optimizer,
    SampleSet,
    TrainingRun,
)
from pytest_ddpscale.plan.words import Precision
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.settings import count_up_to, read_value
from pytest_ddpscale.suites.inference_suite import precision_of
from pytest_ddpscale.suites.suite import SuiteNodes

# Default for the batch of one rank: SGD's is Banerjee and Shah's, the others are torch's defaults.
LEARNING_RATES: dict[Optimizer, float] = {"sgd": 0.01, "adam": 0.001, "adamw": 0.001}
CLASSES = 10
# The extensions of torchvision's ImageFolder.
_IMAGES = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}
MOST_RUNS = 100


def add_training_options(parser: argparse.ArgumentParser, *, epochs: int, batch: int) -> None:
    """Add options for training."""
    add = parser.add_argument
    add("--ranks", metavar="1,2,4", help="world sizes; default: powers of two up to a node, then whole nodes")
    add("--epochs", default=str(epochs), metavar="N", help="default: %(default)s")
    add("--batch", default=str(batch), metavar="N", help="images per rank and step; default: %(default)s")
    add("--precision", choices=("fp32", "fp16", "bf16"), default="fp32", help="by autocast; default: %(default)s")
    add("--optimizer", choices=tuple(LEARNING_RATES), default="sgd", help="default: %(default)s (momentum 0.9)")
    add("--lr", metavar="RATE", help="learning rate for the batch of one rank; default: 0.01, adam and adamw 0.001")
    add("--lr-rule", choices=("constant", "linear", "sqrt"), default="constant",
        help="how the learning rate scales with the global batch; default: %(default)s")  # fmt: skip
    add("--seed", default="0", metavar="N", help="seed of weights and data order; default: %(default)s")
    add("--launches", default="1", metavar="N", help="how often to repeat every run; default: %(default)s")


@dataclass(frozen=True)
class TrainingOptions:
    """The options as parsed; see `TrainingRun`."""

    ranks: tuple[int, ...]
    epochs: int
    batch: int
    precision: Precision
    optimizer: Optimizer
    rate: float
    rule: LearningRateRule
    seed: int
    launches: int

    @classmethod
    def of(cls, arguments: argparse.Namespace, nodes: SuiteNodes) -> TrainingOptions:
        """Parse the command line's options. Raises OptionError."""
        precision = precision_of(arguments, nodes.subject.device_type)
        optimizer: Optimizer = arguments.optimizer
        rate = LEARNING_RATES[optimizer] if arguments.lr is None else read_value("--lr", arguments.lr, above_zero)
        ranks = usual_sizes(nodes) if arguments.ranks is None else read_value("--ranks", arguments.ranks, _counts)
        for size in ranks:
            layout_at(size, nodes)
        return cls(
            ranks,
            read_value("--epochs", arguments.epochs, count_up_to(10**5)),
            read_value("--batch", arguments.batch, count_up_to(10**6)),
            precision,
            optimizer,
            rate,
            arguments.lr_rule,
            read_value("--seed", arguments.seed, whole_number(10**9)),
            read_value("--launches", arguments.launches, count_up_to(10)),
        )

    def workload(self, name: str, model: str, image_size: int, classes: int, *, is_cpu: bool) -> Workload:
        """The workload of a rank."""
        family = ImageFamily.usual(model, is_cpu=is_cpu, image_size=image_size, num_classes=classes)
        return Workload(name, family, self.precision, self.batch)

    def runs(
        self, name: str, workload: Workload, samples: SampleSet, nodes: SuiteNodes, *,
        compile_mode: CompileMode = "no", loss_threshold: float | None = None, loader_workers: int = 0,
        global_batch: int | None = None,
    ) -> Iterable[TrainingRun]:  # fmt: skip
        """One run for each world size and launch. Raises OptionError if the data is too small for one of them."""
        for size in self.ranks:
            layout = layout_at(size, nodes)
            batch = self.batch if global_batch is None else divided(global_batch, size)
            base = self.batch if global_batch is None else global_batch
            try:
                run = TrainingRun(
                    name, replace(workload, batch_size=batch), samples, layout.nodes, layout.ranks_per_node,
                    self.epochs, self.optimizer, learning_rate_at(self.rate, self.rule, size * batch, base), self.rule,
                    compile_mode, loader_workers, loss_threshold, self.seed,
                )  # fmt: skip
            except ValueError as error:
                raise OptionError("--ranks, --batch", str(error), "", "Take fewer ranks, or a smaller batch.") from None
            yield from (replace(run, launch=launch) for launch in range(1, self.launches + 1))


def learning_rate_at(rate: float, rule: LearningRateRule, global_batch: int, base_batch: int) -> float:
    """The learning rate for a global batch, if `rate` is that for `base_batch`.

    ``linear`` scales it with the batch (Goyal et al., arXiv:1706.02677), ``sqrt`` with its square root (Krizhevsky,
    arXiv:1404.5997).
    """
    factor = global_batch / base_batch
    return rate * {"constant": 1.0, "linear": factor, "sqrt": math.sqrt(factor)}[rule]


def plan_of_runs(runs: Iterable[TrainingRun], launches: int, nodes: SuiteNodes) -> Plan:
    """A plan of all runs, one gang each. Raises OptionError if there are too many."""
    found = tuple(runs)
    if len(found) > MOST_RUNS:
        raise OptionError("--ranks", f"{len(found)} training runs requested", f"at most {MOST_RUNS}")
    return replace(nodes.empty_plan(), training_runs=found, launches=launches)


def layout_at(size: int, nodes: SuiteNodes) -> Layout:
    """Nodes and ranks of a world size: part of one node, or whole nodes. Raises OptionError."""
    per_node = nodes.ranks_per_node
    if size > nodes.world_size:
        hint = ""
        if nodes.subject.device_type == "cpu":
            hint = f"On a CPU, --ddp-gpus-per-node={size} lets ranks share cores."
        found = f"found {size}, but {nodes.world_size} can be used"
        raise OptionError("--ranks", found, f"at most {nodes.world_size}", hint)
    if size > per_node and size % per_node:
        found = f"found {size}, which does not fill whole nodes of {per_node} ranks"
        raise OptionError("--ranks", found, f"at most {per_node}, or a multiple of it")
    return Layout(1, size) if size <= per_node else Layout(size // per_node, per_node)


def usual_sizes(nodes: SuiteNodes) -> tuple[int, ...]:
    """World sizes: powers of two within a node, then powers of two of whole nodes."""
    per_node, count = nodes.ranks_per_node, nodes.machine.cluster.nodes
    within = [2**power for power in range(per_node.bit_length()) if 2**power < per_node]
    across = [per_node * 2**power for power in range(count.bit_length()) if 2**power < count]
    return tuple(dict.fromkeys((*within, *across, per_node * count)))


def divided(global_batch: int, size: int) -> int:
    """Images of each rank. Raises OptionError."""
    if global_batch % size:
        raise OptionError("--global-batch", f"found {global_batch} for {size} ranks", f"a multiple of {size}")
    return global_batch // size


def mnist_set(folder: Path) -> SampleSet:
    """The data set by the headers of MNIST's files. Raises OptionError."""
    from pytest_ddpscale.datasets.idx_file import TRAIN_FILES, VALIDATION_FILES, idx_path, idx_shape

    expected = "a folder with MNIST's four idx files, or their .gz"
    try:
        found = [[idx_shape(idx_path(folder, name)) for name in names] for names in (TRAIN_FILES, VALIDATION_FILES)]
    except (OSError, ValueError) as error:
        why = f"{folder}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise OptionError("--mnist", why, expected) from None
    for images, labels in found:
        if len(images) != 3 or labels != images[:1]:
            raise OptionError("--mnist", f"{folder} has images of sizes {images} and labels of {labels}", expected)
    (train, _), (validation, _) = found
    return SampleSet("mnist", "mnist", train[0], validation[0], CLASSES, str(folder.resolve()))


def folder_set(folder: Path) -> SampleSet:
    """The data set in a folder, by make-dataset's record or else by its files. Raises OptionError."""
    from pytest_ddpscale.datasets.dataset_record import DATASET_FILE, read_dataset_record

    path = folder.expanduser().absolute()
    try:
        record = read_dataset_record(path)
    except (OSError, ValueError) as error:
        raise OptionError("--folder", f"{path / DATASET_FILE}: {error}", "a record from make-dataset") from None
    if record is not None and {"train", "val"} <= record.images.keys():
        train, validation, classes = record.images["train"], record.images["val"], record.classes
    else:
        train, validation = (_images_in(path / split) for split in ("train", "val"))
        classes = sum(one.is_dir() for one in (path / "train").iterdir()) if train else 0
    if not (train and validation and classes):
        found = f"{path} has {train} images in train/CLASS and {validation} in val/CLASS"
        raise OptionError("--folder", found, "images in both", "See `ddpscale make-dataset --help`.")
    name = record.like if record is not None and record.like else path.name
    return SampleSet("folder", name, train, validation, classes, str(path))


def _images_in(split: Path) -> int:
    return sum(one.suffix.lower() in _IMAGES for one in split.glob("*/**/*"))


def made_set(train_samples: int) -> SampleSet:
    """Images made in memory, with an eighth as many for validation, at least one."""
    return SampleSet("made", f"made-{train_samples}", train_samples, max(1, train_samples // 8), CLASSES)


def above_zero(text: str) -> float:
    """Parse a finite number above 0. Raises ValueError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise ValueError("a number above 0")
    return number


def whole_number(most: int) -> Callable[[str], int]:
    """A parser of a whole number from 0 to `most`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) > most:
            raise ValueError(f"a whole number from 0 to {most}")
        return int(text)

    return parse


def counts(most: int) -> Callable[[str], tuple[int, ...]]:
    """A parser of whole numbers from 1, each once, ascending."""
    return lambda text: tuple(sorted({count_up_to(most)(part.strip()) for part in text.split(",")}))


_counts = counts(10**6)
