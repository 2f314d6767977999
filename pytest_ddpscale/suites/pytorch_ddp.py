"""`ddpscale suite pytorch-ddp`: the models, sizes and tables of PyTorch's own DDP benchmark, in interleaved rounds.

Source: github.com/pytorch/pytorch, benchmarks/distributed/ddp/benchmark.py. Unchanged: fp32, SGD, 32 images per GPU,
broadcast_buffers off, one GPU without DDP and with it, then 2, 4 … GPUs of a node, then whole nodes; percentiles of the
step time over all steps of all ranks. Changed: arms take turns in rounds, so that ratios of arms have intervals.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import USUAL_BUCKET_CAP_MB, Arm, Variant
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.settings import count_up_to, read_value
from pytest_ddpscale.suites.suite import OF_TRAINING, MeasuredSuite, Suite, SuiteNodes

if TYPE_CHECKING:
    from pytest_ddpscale.run.survey_record import Survey
    from pytest_ddpscale.suites.suite_report import SuiteReport

MODELS = ("resnet50", "resnet101", "resnext50_32x4d", "resnext101_32x8d")
BATCH_SIZE = 32
# The benchmark's only setting that differs from torch's defaults.
AS_THERE = Variant(broadcast_buffers=False)


class PytorchDdp(Suite):
    """PyTorch's DDP benchmark."""

    name = "pytorch-ddp"
    help = "PyTorch's DDP benchmark: four models, sec/iter and ex/sec by number of GPUs, sweep of bucket sizes"
    takes = OF_TRAINING

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for models, batch and buckets, so that it also runs on small machines."""
        add = parser.add_argument
        add("--models", default=",".join(MODELS), metavar="M1,M2", help="torchvision models; default: %(default)s")
        add("--batch", default=str(BATCH_SIZE), metavar="N", help="images per GPU; default: %(default)s")
        add("--image-size", default="224", metavar="PIXELS", help="default: %(default)s")
        add("--bucket-sizes", default="", metavar="MB,MB",
            help="bucket_cap_mb to compare with 25 MiB on all ranks, such as 1,5,10,50,100")  # fmt: skip
        add("--buckets-at-every-size", action="store_true", help="also compare them on one GPU, two, four …")

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each model."""
        batch = read_value("--batch", arguments.batch, count_up_to(10**6))
        pixels = read_value("--image-size", arguments.image_size, count_up_to(10**4))
        buckets = read_value("--bucket-sizes", arguments.bucket_sizes, _bucket_sizes)
        pace = nodes.pace()
        every_size = arguments.buckets_at_every_size
        arms = tuple(_arms(nodes.ranks_per_node, nodes.machine.cluster.nodes, batch, buckets, every_size))
        studies = tuple(
            Study(
                "weak", Workload(model, ImageFamily(model, pixels, "contiguous"), "fp32", batch), arms,
                pace.rounds, pace.block_s, pace.warmup_s,
            )
            for model in read_value("--models", arguments.models, model_names)
        )  # fmt: skip
        has_topology = nodes.subject.device_type == "cuda" or nodes.machine.cluster.nodes > 1
        return replace(nodes.empty_plan(), studies=studies, survey=has_topology)

    def unfit_of(self, surveys: Sequence[Survey]) -> dict[str, str]:
        """Hosts whose topology differs from the first host's; the original benchmark refuses them too."""
        first = surveys[0].topology if surveys else ""
        return {one.host: "its topology differs from the first node's" for one in surveys if one.topology != first}

    def conclude(self, measured: MeasuredSuite) -> SuiteReport:
        """Report the table of each model and the comparison of bucket sizes."""
        from pytest_ddpscale.suites.pytorch_ddp_report import pytorch_ddp_report

        return pytorch_ddp_report(measured, AS_THERE)


def model_names(text: str) -> tuple[str, ...]:
    """Parse names of torchvision's classification models; each once. Raises ValueError."""
    from pytest_ddpscale.families.image import TORCHVISION_MODELS

    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = [name for name in names if name not in TORCHVISION_MODELS]
    if unknown:
        raise ValueError(f"classification models of torchvision; {unknown[0]!r} is not one of them")
    return names


def _bucket_sizes(text: str) -> tuple[float, ...]:
    """Parse sizes in MiB; each once, without the default, which is always measured. Raises ValueError."""
    try:
        sizes = {float(part) for part in text.split(",") if part.strip()} - {USUAL_BUCKET_CAP_MB}
    except ValueError:
        sizes = {0.0}
    if not all(0 < size <= 10**5 for size in sizes):
        raise ValueError("sizes in MiB such as 1,5,50, above 0 and up to 100000")
    return tuple(sorted(sizes))


def _arms(
    ranks_per_node: int, nodes: int, batch: int, buckets: Sequence[float], every_size: bool = False
) -> Iterator[Arm]:
    """One GPU without DDP and with it, 2, 4 … of a node, whole nodes; bucket sizes on all ranks or at every size."""
    sizes = [2**power for power in range(ranks_per_node.bit_length()) if 2**power < ranks_per_node]
    sizes += [ranks_per_node * count for count in range(1, nodes + 1)]
    yield Arm("alone", 1, batch)
    for size in sizes:
        yield Arm("ddp", size, batch, variant=AS_THERE)
    for size in sizes if every_size else sizes[-1:]:
        for megabytes in buckets:
            yield Arm("ddp", size, batch, variant=replace(AS_THERE, bucket_cap_mb=megabytes))
