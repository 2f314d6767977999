"""`ddpscale suite input-pipeline`: training on images from a folder, compared with training on synthetic ones.

Each number of loader workers and batches ahead is an arm of its own, in interleaved rounds of one gang with an arm on
synthetic data. Arms differ only in the source of their images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm, Variant
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import MOST_LOADER_WORKERS, MOST_PREFETCH, ImageFolderData, Workload
from pytest_ddpscale.settings import count_up_to, read_value
from pytest_ddpscale.suites.inference_suite import classification_model, precision_of
from pytest_ddpscale.suites.suite import OF_TRAINING, MeasuredSuite, Suite, SuiteNodes

if TYPE_CHECKING:
    from pytest_ddpscale.datasets.dataset_record import DatasetRecord
    from pytest_ddpscale.suites.suite_report import SuiteReport

SYNTHETIC = Variant(data="synthetic")
MOST_ARMS = 32
_USUAL_CLASSES, _USUAL_PIXELS = 1000, 224


class InputPipeline(Suite):
    """Throughput by loader workers and batches ahead, and whether training waits for its data."""

    name = "input-pipeline"
    help = "training on images from a folder, compared with synthetic ones: which loader settings keep up"
    takes = OF_TRAINING

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for folder, loader and training."""
        add = parser.add_argument
        add("--folder", required=True, type=Path, metavar="PATH", help="has train/CLASS/IMAGE, the same on every node")
        add("--workers", default="0,2,4,8", metavar="N,N", help="loader processes per rank; default: %(default)s")
        add("--prefetch", default="2", metavar="N,N", help="batches that each worker reads ahead; default: %(default)s")
        add("--model", default="resnet50", metavar="MODEL", help="torchvision model; default: %(default)s")
        add("--batch", default="128", metavar="N", help="images per GPU; default: %(default)s")
        add("--image-size", metavar="PIXELS", help="default: as make-dataset wrote them, else 224")
        add("--precision", choices=("fp32", "fp16", "bf16"), help="default: fp16, on a CPU fp32")
        add("--ranks", metavar="N", help="ranks per node; default: all its GPUs (CPU: cores)")

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan one study with synthetic data and each setting of the loader."""
        plan, pace = nodes.empty_plan(), nodes.pace()
        ranks = nodes.ranks_per_node
        if arguments.ranks is not None:
            ranks = read_value("--ranks", arguments.ranks, _at_most(ranks))
        workload = _workload(arguments, nodes)
        variants = (SYNTHETIC, *_variants(arguments))
        if len(variants) > MOST_ARMS:
            found = f"found {len(variants) - 1} settings with --prefetch"
            raise OptionError("--workers", found, f"at most {MOST_ARMS - 1}")
        world_size = ranks * plan.nodes
        arms = tuple(Arm("ddp", world_size, workload.batch_size, variant=one) for one in variants)
        study = Study("weak", workload, arms, pace.rounds, pace.block_s, pace.warmup_s)
        return replace(plan, studies=(study,), ranks_per_node=ranks)

    def conclude(self, measured: MeasuredSuite) -> SuiteReport:
        """Report the table and the recommended setting."""
        from pytest_ddpscale.suites.input_pipeline_report import input_pipeline_report

        return input_pipeline_report(measured)


def _workload(arguments: argparse.Namespace, nodes: SuiteNodes) -> Workload:
    """The workload that reads the folder. Raises OptionError."""
    folder, is_cpu = arguments.folder.expanduser().absolute(), nodes.subject.device_type == "cpu"
    record = _record_of(folder, is_here=not nodes.machine.cluster.is_elsewhere)
    precision = precision_of(arguments, nodes.subject.device_type)
    model = read_value("--model", arguments.model, classification_model)
    pixels = record.image_size if record else _USUAL_PIXELS
    if arguments.image_size is not None:
        pixels = read_value("--image-size", arguments.image_size, count_up_to(10**4))
    batch = read_value("--batch", arguments.batch, count_up_to(10**6))
    classes = max(record.classes if record else 0, _USUAL_CLASSES)
    family = ImageFamily.usual(model, is_cpu=is_cpu, image_size=pixels, num_classes=classes)
    name = f"{model}-{precision}-batch-{batch}".replace("_", "-")
    return Workload(name, family, precision, batch, data=ImageFolderData(str(folder)))


def _record_of(folder: Path, *, is_here: bool) -> DatasetRecord | None:
    """make-dataset's record of the folder, if it has one and this machine can read it. Raises OptionError."""
    from pytest_ddpscale.datasets.dataset_record import DATASET_FILE, read_dataset_record

    if is_here and not (folder / "train").is_dir():
        raise OptionError("--folder", f"{folder} has no folder train", "train/CLASS/IMAGE (see ddpscale make-dataset)")
    try:
        return read_dataset_record(folder)
    except ValueError as error:
        raise OptionError("--folder", f"{folder / DATASET_FILE}: {error}", "a record from make-dataset") from None


def _variants(arguments: argparse.Namespace) -> list[Variant]:
    """Each setting once, those with the fewest workers first. Raises OptionError."""
    workers = read_value("--workers", arguments.workers, _counts(0, MOST_LOADER_WORKERS))
    prefetches = read_value("--prefetch", arguments.prefetch, _counts(1, MOST_PREFETCH))
    return [
        Variant(workers=one, prefetch=ahead if one else None)
        for one in workers
        for ahead in (prefetches if one else prefetches[:1])  # without workers there is no read-ahead
    ]


def _counts(least: int, most: int) -> Callable[[str], list[int]]:
    def parse(text: str) -> list[int]:
        counts = [int(part) if part.strip().isdecimal() else -1 for part in text.split(",")]
        if not all(least <= one <= most for one in counts):
            raise ValueError(f"whole numbers from {least} to {most}, such as 2,4")
        return sorted(set(counts))

    return parse


def _at_most(ranks: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = count_up_to(10**6)(text)
        if number > ranks:
            raise ValueError(f"at most {ranks}, the ranks that each node can run")
        return number

    return parse
