"""`ddpscale suite inference`: forward passes of one model, batch by batch, on one GPU alone and on all at once.

Without communication and training, any loss of all GPUs at once comes from sharing the host: its cores, memory, power
and cooling.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.words import DeviceType, Precision
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.settings import count_up_to, read_value
from pytest_ddpscale.suites.suite import OF_STEPS, MeasuredSuite, Suite, SuiteNodes

if TYPE_CHECKING:
    from pytest_ddpscale.suites.suite_report import SuiteReport

BATCHES = (32, 64, 128, 256)
MOST_BATCHES = 32
# As in the packaged thresholds: the usual precision for serving.


class InferenceSuite(Suite):
    """Throughput and latency by batch, and the batch at which throughput saturates."""

    name = "inference"
    help = "forward passes: throughput and latency by batch, alone and on all GPUs of a node at once"
    takes = OF_STEPS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for model, batches and ranks."""
        add_inferred_model(parser)
        add = parser.add_argument
        add("--batches", default=",".join(map(str, BATCHES)), metavar="N,N", help="per GPU; default: %(default)s")
        add("--ranks", metavar="N", help="ranks per node that infer at once; default: all its GPUs (CPU: cores)")

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each batch, the smallest first; a batch that exceeds the memory ends only its own study."""
        plan, pace = nodes.empty_plan(), nodes.pace()
        ranks = _ranks(arguments.ranks, nodes.ranks_per_node)
        studies = (
            Study(
                "weak",
                one,
                inference_arms(one.batch_size, ranks),
                pace.rounds,
                pace.block_s,
                pace.warmup_s,
                turns=ranks,
            )
            for one in inferred_workloads(
                arguments, plan.device_type, read_value("--batches", arguments.batches, batches_of)
            )
        )
        return replace(plan, studies=tuple(studies))

    def conclude(self, measured: MeasuredSuite) -> SuiteReport:
        """Report tables, and where throughput saturates."""
        from pytest_ddpscale.suites.inference_report import inference_report

        return inference_report(measured)


def add_inferred_model(parser: argparse.ArgumentParser) -> None:
    """Add options for the model that infers."""
    add = parser.add_argument
    add("--model", default="resnet50", metavar="MODEL", help="torchvision model; default: %(default)s")
    add("--image-size", default="224", metavar="PIXELS", help="default: %(default)s")
    add("--precision", choices=("fp32", "fp16", "bf16"), help="by autocast; default: fp16, on a CPU fp32")


def inferred_workloads(
    arguments: argparse.Namespace, device_type: DeviceType, batches: Sequence[int]
) -> list[Workload]:
    """The model of `add_inferred_model` with each batch. Raises OptionError."""
    model = read_value("--model", arguments.model, classification_model)
    pixels = read_value("--image-size", arguments.image_size, count_up_to(10**4))
    precision = precision_of(arguments, device_type)
    family = ImageFamily.usual(model, is_cpu=device_type == "cpu", image_size=pixels)
    name = f"{model}-{precision}".replace("_", "-")
    return [Workload(f"{name}-batch-{batch}", family, precision, batch) for batch in batches]


def precision_of(arguments: argparse.Namespace, device_type: DeviceType) -> Precision:
    """The precision given, or the usual one of a device. Raises OptionError."""
    is_cpu = device_type == "cpu"
    if is_cpu and arguments.precision == "fp16":
        raise OptionError("--precision", "found 'fp16' on a CPU", "fp32 or bf16")
    precision: Precision = arguments.precision or ("fp32" if is_cpu else "fp16")
    return precision


def inference_arms(batch: int, ranks: int) -> tuple[Arm, ...]:
    """Arms for one rank at a time, and for all ranks at once."""
    return tuple(Arm("infer", size, batch) for size in dict.fromkeys((1, ranks)))


def _ranks(asked: str | None, ranks_per_node: int) -> int:
    ranks = ranks_per_node if asked is None else read_value("--ranks", asked, count_up_to(10**6))
    if ranks > ranks_per_node:
        found = f"found {ranks}, but {ranks_per_node} can be used on each node"
        raise OptionError("--ranks", found, f"at most {ranks_per_node}")
    return ranks


def classification_model(text: str) -> str:
    """Parse the name of a torchvision classification model. Raises ValueError."""
    if text not in ImageFamily.models:
        raise ValueError(ImageFamily.models_are)
    return text


def batches_of(text: str) -> list[int]:
    """Parse batches; each once, ascending. Raises ValueError."""
    batches = sorted({count_up_to(10**6)(part.strip()) for part in text.split(",")})
    if len(batches) > MOST_BATCHES:
        raise ValueError(f"at most {MOST_BATCHES} batches")
    return batches
