"""The commands that measure like suites, and their modules, which are imported only when a command is typed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pytest_ddpscale.util.command_parser import CommandParser, Commands

TUNE = "tune"  # a command of its own, not below `suite`
# By name: the module that has its class, and the command's help.
SUITES: dict[str, tuple[str, str]] = {
    "pytorch-ddp": ("ddp_benchmark", "PyTorch's DDP benchmark: sec/iter and ex/sec by GPUs and bucket sizes"),
    "collectives": ("collectives", "all-reduce and five others over message sizes, by nccl-tests' formulas"),
    "inference": ("inference", "throughput and latency by batch, alone and on all GPUs of a node at once"),
    "data-parallel": ("inference", "inference by one process on several GPUs, against one GPU and a rank on each"),
    "factors": ("factors", "computation and communication by batch, world size, model, trained parameters"),
    "input-pipeline": ("input_pipeline", "which loader settings keep up, on images from a folder"),
    "whole-run": ("training_runs", "complete time by world size, its parts, throughput, accuracy, sweet spots"),
    "convergence": ("convergence", "iterations, epochs and seconds to a loss, by world size or parameters"),
    TUNE: ("tune", "find settings of DDP, the trainer and NCCL that train a workload faster"),
}


def suite_of(name: str) -> Any:
    """The suite of that name, a `Suite` of the engine. Raises ValueError if there is none."""
    if name not in SUITES:
        raise ValueError(f"a suite of this version: {', '.join(SUITES)}")
    module = import_module(f"pytest_ddpscale.suites.{SUITES[name][0]}")
    return next(member for member in vars(module).values() if getattr(member, "name", "") == name)()


def add_suite(commands: Commands) -> None:
    """Add `ddpscale suite`, and `ddpscale tune`, which measures like one; their modules are imported once typed."""
    command = commands.add_parser(
        "suite", help="measure collectives, inference, input pipeline, whole training runs and others"
    )
    names = command.add_subparsers(metavar="SUITE")
    for name, (_, explanation) in SUITES.items():
        parser = (commands if name == TUNE else names).add_parser(name, help=explanation)
        assert isinstance(parser, CommandParser)  # as is its parent
        parser.later = lambda parser, name=name: suite_of(name).add_to(parser)
