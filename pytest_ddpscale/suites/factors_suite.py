"""`ddpscale suite factors`: computation and communication time by batch, world size, model and trained parameters.

One factor changes at a time while the others stay at the centre, and a classifier is trained on frozen features, as in
Banerjee and Shah, "Benchmarking Distributed Training and Inference on NVIDIA's A6000 GPUs". Computation is a step under
DDP without communication; communication is the additional time of a step with it, in interleaved rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import FEATURES, MOST_HIDDEN, ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.settings import count_up_to, read_value
from pytest_ddpscale.suites.inference_suite import precision_of
from pytest_ddpscale.suites.suite import OF_TRAINING, MeasuredSuite, Suite, SuiteNodes

if TYPE_CHECKING:
    from pytest_ddpscale.suites.suite_report import SuiteReport

MODELS = ("squeezenet1_0", "alexnet", "resnet18", "densenet121", "vgg16")
# These have one linear layer, like their original head.
LINEAR = ("squeezenet1_0", "squeezenet1_1", "resnet18")
BATCHES = (64, 128, 256, 512, 1024)
HIDDEN = (4096, 2048, 1024)
MOST_RANKS_BY_DEFAULT = 4
CLASSES = 10
MOST_CELLS = 64
T = TypeVar("T")


class Factors(Suite):
    """Computation, communication and data moved, one factor at a time."""

    name = "factors"
    help = "computation and communication time by batch, world size, model and trained parameters (frozen features)"
    takes = OF_TRAINING

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for the centre and the values swept around it."""
        add = parser.add_argument
        centre = parser.add_argument_group("the centre, the value of each factor that is not swept")
        centre.add_argument("--model", default="vgg16", metavar="MODEL", help="frozen; default: %(default)s")
        centre.add_argument("--batch", default="1024", metavar="N", help="images per GPU; default: %(default)s")
        centre.add_argument("--world-size", metavar="K", help="default: 4, or all GPUs if there are fewer")
        centre.add_argument("--hidden", default="4096", metavar="H",
            help="width of the classifier's two hidden layers; default: %(default)s")  # fmt: skip
        add("--batches", default=_joined(BATCHES), metavar="N,N", help="swept; default: %(default)s")
        add("--world-sizes", metavar="K,K", help="swept; default: each from 1 to the centre's")
        add("--models", default=_joined(MODELS), metavar="M,M", help="swept; default: %(default)s")
        add("--hidden-sizes", default=_joined(HIDDEN), metavar="H,H", help="swept; default: %(default)s")
        add("--image-size", default="224", metavar="PIXELS", help="default: %(default)s")
        add("--precision", choices=("fp32", "fp16", "bf16"), default="fp32", help="by autocast; default: %(default)s")
        add("--feature-weights", metavar="DIR",
            help="folder on each node with torchvision's state dicts MODEL.pth; default: random weights")  # fmt: skip

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each workload, the centre first; the centre has arms for each world size."""
        plan, pace = nodes.empty_plan(), nodes.pace()
        ranks = _world_size(arguments.world_size, plan.layout.world_size)
        sizes = _world_sizes(arguments.world_sizes, ranks, plan.layout.world_size)
        centre, *others = _workloads(arguments, nodes)
        studies = tuple(
            Study("weak", one, factor_arms(one.batch_size, of), pace.rounds, pace.block_s, pace.warmup_s)
            for one, of in ((centre, {*sizes, ranks}), *((other, {ranks}) for other in others))
        )
        return replace(plan, studies=studies)

    def conclude(self, measured: MeasuredSuite) -> SuiteReport:
        """Report tables and bars by factor, and data moved."""
        from pytest_ddpscale.suites.factors_report import factors_report

        return factors_report(measured)


def factor_arms(batch: int, world_sizes: Iterable[int]) -> tuple[Arm, ...]:
    """For each world size an arm under DDP without communication, and one with it."""
    return tuple(Arm(kind, size, batch) for size in sorted(world_sizes) for kind in ("no_sync", "ddp"))


def _workloads(arguments: argparse.Namespace, nodes: SuiteNodes) -> list[Workload]:
    """The centre, then each workload that differs from it in one factor. Raises OptionError."""
    model = read_value("--model", arguments.model, _model)
    batch = read_value("--batch", arguments.batch, count_up_to(10**6))
    hidden = read_value("--hidden", arguments.hidden, count_up_to(MOST_HIDDEN))
    pixels = read_value("--image-size", arguments.image_size, count_up_to(10**4))
    precision, is_cpu = precision_of(arguments, nodes.subject.device_type), nodes.subject.device_type == "cpu"
    cells = [(model, batch, hidden)]
    cells += [(model, one, hidden) for one in read_value("--batches", arguments.batches, _several(count_up_to(10**6)))]
    cells += [(one, batch, hidden) for one in read_value("--models", arguments.models, _several(_model))]
    cells += [
        (model, batch, one)
        for one in read_value("--hidden-sizes", arguments.hidden_sizes, _several(count_up_to(MOST_HIDDEN)))
        if model not in LINEAR
    ]
    directory = arguments.feature_weights and Path(arguments.feature_weights).absolute()
    return [
        Workload(
            f"{name}-{f'h{width}' if name not in LINEAR else 'linear'}-batch-{images}".replace("_", "-"),
            ImageFamily.usual(
                name, is_cpu=is_cpu, image_size=pixels, num_classes=CLASSES,
                classifier_hidden=0 if name in LINEAR else width,
                feature_weights=str(directory / f"{name}.pth") if directory else None,
            ),
            precision, images,
        )
        for name, images, width in dict.fromkeys(cells)
    ]  # fmt: skip


def _world_size(asked: str | None, most: int) -> int:
    if asked is None:
        return min(MOST_RANKS_BY_DEFAULT, most)
    return _at_most("--world-size", read_value("--world-size", asked, count_up_to(10**6)), most)


def _world_sizes(asked: str | None, centre: int, most: int) -> list[int]:
    if asked is None:
        return list(range(1, centre + 1))
    sizes = read_value("--world-sizes", asked, _several(count_up_to(10**6)))
    return [_at_most("--world-sizes", size, most) for size in sizes]


def _at_most(option: str, size: int, most: int) -> int:
    if size > most:
        raise OptionError(option, f"found {size}, but there are {most} GPUs (CPU: ranks)", f"at most {most}")
    return size


def _model(text: str) -> str:
    if text not in FEATURES:
        raise ValueError(f"a model whose features can be frozen: {', '.join(sorted(FEATURES))}")
    return text


def _several(parse: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A parser of a comma-separated list, each value once, in order; an empty text is an empty list."""

    def several(text: str) -> list[T]:
        found = list(dict.fromkeys(parse(part.strip()) for part in text.split(",") if part.strip()))
        if len(found) > MOST_CELLS:
            raise ValueError(f"at most {MOST_CELLS} values")
        return found

    return several


def _joined(values: Iterable[object]) -> str:
    return ",".join(map(str, values))
