"""`ddpscale suite data-parallel`: inference by one process on several GPUs, compared with one process per GPU.

Interleaved rounds time our DataParallel (replicate, scatter, parallel_apply, gather) and torch's nn.DataParallel, which
both copy the model to all GPUs in every pass; one GPU with the whole batch; and a rank on each GPU with its share.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.settings import count_up_to, read_value
from pytest_ddpscale.suites.inference_suite import BATCHES, add_inferred_model, batches_of, inferred_workloads
from pytest_ddpscale.suites.suite import OF_STEPS, MeasuredSuite, Suite, SuiteNodes

if TYPE_CHECKING:
    from pytest_ddpscale.suites.suite_report import SuiteReport


class DataParallelSuite(Suite):
    """Throughput and communication share of DataParallel by batch, and where it is not worth it."""

    name = "data-parallel"
    help = "inference: one process on several GPUs (nn.DataParallel, and ours) against one GPU and a rank on each"
    takes = OF_STEPS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for model, batches and devices."""
        add_inferred_model(parser)
        add = parser.add_argument
        usual = ",".join(map(str, BATCHES))
        add("--batches", metavar="N,N",
            help=f"images of all devices together; default: {usual}, rounded up to multiples of K")  # fmt: skip
        add("--devices", metavar="K", help="devices per node that share a batch; default: all its GPUs (CPU: ranks)")

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a study for each batch, the smallest first."""
        plan, pace = nodes.empty_plan(), nodes.pace()
        devices = _devices(arguments.devices, nodes.ranks_per_node)
        workloads = inferred_workloads(arguments, plan.device_type, _batches(arguments.batches, devices))
        studies = tuple(
            Study(
                "weak", one, data_parallel_arms(one.batch_size, devices, plan.device_type), pace.rounds, pace.block_s,
                pace.warmup_s,
            )
            for one in workloads
        )  # fmt: skip
        return replace(plan, studies=studies)

    def conclude(self, measured: MeasuredSuite) -> SuiteReport:
        """Report throughput, communication shares, and where one process on several devices is not worth it."""
        from pytest_ddpscale.suites.data_parallel_report import data_parallel_report

        return data_parallel_report(measured)


def data_parallel_arms(batch: int, devices: int, device_type: DeviceType) -> tuple[Arm, ...]:
    """Arms that each infer the whole batch; nn.DataParallel only with GPUs, because it just calls the model on CPUs."""
    split = ("vanilla_parallel", "parallel_apply", *(("data_parallel",) if device_type == "cuda" else ()))
    return (
        Arm("infer", 1, batch),
        *(Arm(kind, 1, batch, devices=devices) for kind in split),
        Arm("infer", devices, batch // devices),
    )


def _devices(asked: str | None, per_node: int) -> int:
    devices = per_node if asked is None else read_value("--devices", asked, count_up_to(10**4))
    if not 2 <= devices <= per_node:
        found = f"found {devices}; {per_node} can be used on each node"
        raise OptionError("--devices", found, f"2 to {max(2, per_node)}: this suite compares several devices with one")
    return devices


def _batches(asked: str | None, devices: int) -> Sequence[int]:
    """Batches, each once, ascending. Raises OptionError."""
    if asked is None:
        return [-(-batch // devices) * devices for batch in BATCHES]
    batches = read_value("--batches", asked, batches_of)
    uneven = next((batch for batch in batches if batch % devices), None)
    if uneven is not None:
        found = f"found {uneven}, which {devices} devices cannot share evenly"
        raise OptionError("--batches", found, f"multiples of {devices}, such as {-(-uneven // devices) * devices}")
    return batches
