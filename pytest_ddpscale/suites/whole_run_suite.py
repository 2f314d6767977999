"""`ddpscale suite whole-run`: a model trained for some epochs at several world sizes, on one data set or two.

Measures, as in chapter 12 of Jordi Torres' "Supercomputing for AI", not only images per second but also the complete
time from the start of the processes to the last validation, and where it goes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.workload import MOST_LOADER_WORKERS
from pytest_ddpscale.settings import count_up_to, read_value
from pytest_ddpscale.suites.inference_suite import classification_model
from pytest_ddpscale.suites.suite import MeasuredSuite, Suite, SuiteNodes
from pytest_ddpscale.suites.training_options import (
    TrainingOptions,
    add_training_options,
    counts,
    folder_set,
    made_set,
    plan_of_runs,
    whole_number,
)
from pytest_ddpscale.suites.whole_run_judge import add_bound_options, bounded

if TYPE_CHECKING:
    from pytest_ddpscale.plan.study import Plan
    from pytest_ddpscale.plan.training_run import SampleSet
    from pytest_ddpscale.suites.suite_report import SuiteReport


class WholeRun(Suite):
    """Complete time, throughput and accuracy by world size."""

    name = "whole-run"
    help = "whole training runs by world size: complete time and its parts, throughput, accuracy, sweet spots"
    takes = ("confidence",)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for model, data, training and bounds."""
        add = parser.add_argument
        add("--model", default="vit_b_16", metavar="MODEL", help="torchvision model; default: %(default)s")
        add("--image-size", default="224", metavar="PIXELS", help="default: %(default)s")
        add("--folder", action="append", type=Path, default=[], metavar="FOLDER",
            help="images in train/CLASS and val/CLASS; may be given twice, to compare two data sets")  # fmt: skip
        add("--workers", default="4", metavar="N", help="loader processes per rank; default: %(default)s")
        add("--made", default="1024,8192", metavar="N,N",
            help="without --folder: images of data sets made in memory; default: %(default)s")  # fmt: skip
        add("--compile", choices=("no", "default", "reduce-overhead", "max-autotune"), default="no",
            help="mode of torch.compile; default: %(default)s")  # fmt: skip
        add_training_options(parser, epochs=5, batch=64)
        add_bound_options(parser)

    def plan(self, arguments: argparse.Namespace, nodes: SuiteNodes) -> Plan:
        """Plan a run for each data set and world size, one data set after the other."""
        options = TrainingOptions.of(arguments, nodes)
        model = read_value("--model", arguments.model, classification_model)
        pixels = read_value("--image-size", arguments.image_size, count_up_to(10**4))
        workers = read_value("--workers", arguments.workers, whole_number(MOST_LOADER_WORKERS))
        is_cpu = nodes.subject.device_type == "cpu"
        runs = [
            run
            for samples in _sample_sets(arguments)
            for run in options.runs(
                samples.name, options.workload(model, model, pixels, samples.classes, is_cpu=is_cpu), samples, nodes,
                compile_mode=arguments.compile, loader_workers=workers,
            )
        ]  # fmt: skip
        return plan_of_runs(bounded(runs, arguments), options.launches, nodes)

    def conclude(self, measured: MeasuredSuite) -> SuiteReport:
        """Report tables, figures and conclusions."""
        from pytest_ddpscale.suites.whole_run_report import whole_run_report

        return whole_run_report(measured)


def _sample_sets(arguments: argparse.Namespace) -> list[SampleSet]:
    if arguments.folder:
        found = [folder_set(folder) for folder in arguments.folder]
        if len({one.name for one in found}) < len(found):
            raise OptionError("--folder", f"two data sets are called {found[0].name}", "another name for each")
        return found
    return [made_set(count) for count in read_value("--made", arguments.made, counts(10**7))]
