"""Options of suites, typed by argparse, and the workloads that they name."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from operator import ne
from pathlib import Path
from typing import Any, TypeVar

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families import family_of, known_models
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.words import DeviceType, Precision
from pytest_ddpscale.plan.workload import ImageFolderData, Workload
from pytest_ddpscale.settings import whole
from pytest_ddpscale.suites.engine import SuiteNodes
from pytest_ddpscale.thresholds.model import Sku
from pytest_ddpscale.util.command_parser import adder

number = whole(10**6)  # beyond any real use; of `Workload` and its batch, too
# On their features there is one linear layer, like their original head.
LINEAR = ("squeezenet1_0", "squeezenet1_1", "resnet18")
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16")
T = TypeVar("T")


def several(parse: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A parser of a comma-separated list of at least one value, each once, in order."""
    return lambda text: list(dict.fromkeys(map(parse, re.split(" *, *", text.strip(", ")))))


def counts(most: int, least: int = 1) -> Callable[[str], list[int]]:
    """A parser of whole numbers, each once, ascending; at least one."""
    return lambda text: sorted(several(whole(most, least))(text))


numbers = counts(10**6)


def above_zero(text: str) -> float:
    """Parse a finite number above 0. Raises ValueError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= 1e15:
        raise ValueError("a number above 0")
    return number


def one_factor(*values: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """All combinations that differ from the first values, the centre, in at most one place; the centre first."""
    combinations = [*product(*values)]
    return (one for one in combinations if sum(map(ne, one, combinations[0])) < 2)


def image_model(text: str) -> str:
    """Parse the name of a torchvision classification model. Raises ValueError."""
    if text not in ImageFamily.models:
        raise ValueError(ImageFamily.models_are)
    return text


def add_image_model(parser: argparse.ArgumentParser) -> None:
    """Add options for a model, its images and its precision."""
    adder(parser)("--model", "MODEL", image_model, "torchvision model", "resnet50")
    add_images(parser, precision=None)


def add_images(parser: argparse.ArgumentParser, pixels: int | None = 224, precision: str | None = "fp32") -> None:
    """Add options for images and precision with these defaults."""
    usual = precision or "fp16, on a CPU fp32"
    adder(parser)("--image-size", "PIXELS", number, "" if pixels else "default: 28, with --model 64", pixels)
    parser.add_argument("--precision", choices=PRECISIONS, default=precision, help=f"by autocast; default: {usual}")


def add_feature_weights(parser: argparse.ArgumentParser) -> None:
    """Add the option for pretrained weights."""
    explanation = "folder on each node with torchvision's MODEL.pth for frozen models; default: random weights"
    adder(parser)("--feature-weights", "DIR", lambda text: Path(text).absolute(), explanation)


def on_features(arguments: argparse.Namespace, model: str, width: int) -> dict[str, Any]:
    """Options of a model that is frozen below a classifier with hidden layers of that width."""
    weights = arguments.feature_weights
    return {
        "classifier_hidden": 0 if model in LINEAR else width,
        "feature_weights": str(weights / f"{model}.pth") if weights else None,
    }


def image_workload(
    arguments: argparse.Namespace, nodes: SuiteNodes, batch: int, *, model: str = "", name: str = "",
    **options: Any,
) -> Workload:  # fmt: skip
    """The options' model, or another, with a batch per GPU and further options of the family. Raises OptionError."""
    model = model or arguments.model
    precision: Precision = arguments.precision or ("fp32" if nodes.is_cpu else "fp16")
    if nodes.is_cpu and precision == "fp16":
        raise OptionError("--precision", "found 'fp16' on a CPU", "fp32 or bf16")
    try:
        options = {"image_size": arguments.image_size, **options}
        family = ImageFamily.usual(model, is_cpu=nodes.is_cpu, **options)
    except ValueError as error:
        raise OptionError("--model, --image-size", str(error)) from None
    return Workload((name or f"{model}-{precision}-batch-{batch}").replace("_", "-"), family, precision, batch)


def at_most(option: str, value: int, most: int) -> None:
    """Refuse more ranks than can be used. Raises OptionError."""
    if value > most:
        raise OptionError(option, f"found {value}, but {most} can be used", f"at most {most}")


def folder_data(arguments: argparse.Namespace, nodes: SuiteNodes) -> tuple[ImageFolderData, int]:
    """The data of `--folder`, and classes for a model: at least 1000, which is enough for most. Raises OptionError."""
    folder = arguments.folder.expanduser().absolute()
    classes = [*(folder / "train").glob("*")]
    if not classes and not nodes.machine.cluster.is_elsewhere:
        expected = "train/CLASS/IMAGE (see ddpscale make-dataset)"
        raise OptionError("--folder", f"{folder} has no train/CLASS", expected)
    return ImageFolderData(str(folder)), max(len(classes), 1000)


def add_workloads(parser: argparse.ArgumentParser, count: int | str, usual: str) -> None:
    """Add options for workloads of the SKU, or any model in their place."""
    add, more = adder(parser), parser.add_argument
    more("--workload", nargs=count, default=[], metavar="NAME", help=f"of the SKU; default: {usual}")
    add("--model", "MODEL", str, "torchvision model instead; needs --precision")
    more("--precision", choices=PRECISIONS, help="of --model")
    add("--image-size", "PIXELS", number, "of --model; default: that of the SKU's workloads, else 224")


def workloads_of(arguments: argparse.Namespace, sku: Sku, device_type: DeviceType) -> list[Workload]:
    """The workloads that `add_workloads` asks for.

    Of a model, other settings are those of the SKU's workload with that model, or defaults.

    Raises:
        OptionError: they are unknown, no family has the model, or it takes no images of that size.
    """
    names, model, precision, size = arguments.workload, arguments.model, arguments.precision, arguments.image_size
    if model and precision and not names:
        kind = family_of(model)
        if kind is None:
            raise OptionError("--model", f"found {model!r}", known_models())
        alike = next((workload for workload in sku.workloads.values() if workload.family.model == model), None)
        if alike is None:
            alike = Workload("", kind.usual(model, is_cpu=device_type == "cpu"), precision, 1)
        name = f"{model}-{precision}".replace("_", "-")
        try:
            family = alike.family.sized(size)
        except ValueError as error:
            raise OptionError("--image-size", str(error)) from None
        return [replace(alike, name=name, precision=precision, family=family, data="synthetic")]
    if model or precision or size:
        expected = "--model with --precision, or --workload alone, which has its own"
        raise OptionError("--model, --precision, --image-size", "these do not name a workload", expected)
    unknown = [name for name in names if name not in sku.workloads]
    if unknown or not sku.workloads:
        known = ", ".join(sku.workloads) or "the workloads of a SKU that has some: --model"
        raise OptionError("--workload", f"found {unknown[0] if unknown else 'nothing'!r}", f"some of {known}")
    return [sku.workloads[name] for name in dict.fromkeys(names or sku.workloads)]
