"""`ddpscale suite convergence`: iterations, epochs and seconds to a loss, by world size and by size of the model.

The questions are those of Banerjee and Shah, "Benchmarking Distributed Training and Inference on NVIDIA's A6000 GPUs":
how more ranks (and a larger global batch) and more parameters affect convergence.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpscale.families.image import CLASSIFIER
from pytest_ddpscale.settings import count_up_to, read_value
from pytest_ddpscale.suites.inference_suite import classification_model
from pytest_ddpscale.suites.suite import MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.training_options import (
    TrainingOptions,
    above_zero,
    add_training_options,
    counts,
    made_set,
    mnist_set,
    plan_of_runs,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_ddpscale.plan.study import Plan
    from pytest_ddpscale.plan.training_run import TrainingRun
    from pytest_ddpscale.suites.suite_report import SuiteReport

MOST_HIDDEN = 10**5


class Convergence(Suite):
    """Iterations, epochs and seconds to a loss."""

    name = "convergence"
    help = "iterations, epochs and seconds to a loss, by world size and by number of parameters"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for model, data and loss."""
        add = parser.add_argument
        add("--loss", default="0.5", metavar="LOSS", help="cross entropy to reach; default: %(default)s")
        add("--model", metavar="MODEL", help="torchvision model; default: three linear layers, see --hidden")
        add("--hidden", default="256", metavar="N,N",
            help="units of the hidden layers; every world size trains the first model, the largest size trains all; "
            "default: %(default)s")  # fmt: skip
        add("--image-size", metavar="PIXELS", help="default: 28, with --model 64")
        add("--samples", default="4096", metavar="N", help="images made in memory; default: %(default)s")
        add("--mnist", type=Path, metavar="FOLDER", help="train on MNIST's idx files instead")
        add("--global-batch", metavar="N", help="images of all ranks together, instead of --batch per rank")
        add_training_options(parser, epochs=20, batch=32)

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a run for each world size, then one for each further size of the model."""
        options = TrainingOptions.of(arguments, nodes)
        return plan_of_runs(_runs(arguments, options, nodes), options.launches, nodes)

    def conclude(self, measured: MeasuredSuite) -> SuiteReport:
        """Report tables and loss curves."""
        from pytest_ddpscale.suites.convergence_report import convergence_report

        return convergence_report(measured)


def _runs(arguments: argparse.Namespace, options: TrainingOptions, nodes: SuiteNodes) -> Iterator[TrainingRun]:
    pixels = arguments.image_size or ("28" if arguments.model is None else "64")
    size = read_value("--image-size", pixels, count_up_to(10**4))
    samples = made_set(read_value("--samples", arguments.samples, count_up_to(10**7)))
    samples = samples if arguments.mnist is None else mnist_set(arguments.mnist)
    loss = read_value("--loss", arguments.loss, above_zero)
    batch = arguments.global_batch
    global_batch = None if batch is None else read_value("--global-batch", batch, count_up_to(10**8))
    hidden = read_value("--hidden", arguments.hidden, counts(MOST_HIDDEN))
    models = [f"{CLASSIFIER}{units}" for units in hidden]
    if arguments.model is not None:
        models = [read_value("--model", arguments.model, classification_model)]
    for place, model in enumerate(models):
        of_model = options if place == 0 else replace(options, ranks=options.ranks[-1:])
        is_cpu = nodes.subject.device_type == "cpu"
        workload = of_model.workload(model, model, size, samples.classes, is_cpu=is_cpu)
        yield from of_model.runs(model, workload, samples, nodes, loss_threshold=loss, global_batch=global_batch)
