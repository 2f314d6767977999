"""The command lines `ddpscale simulate` and `ddpscale thresholds power`; light, because every command loads it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpscale.settings import OPTIONS
from pytest_ddpscale.simulate.allreduce import NIC_GBPS
from pytest_ddpscale.simulate.faults import fault_help

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_thresholds(command: argparse.ArgumentParser) -> None:
    """`--thresholds`, of a command that looks nowhere else for them."""
    command.add_argument("--thresholds", type=Path, metavar="FILE", help="thresholds file; default: the packaged one")


def add_simulate(commands: Commands) -> None:
    """`ddpscale simulate`."""
    command = commands.add_parser(
        "simulate", help="make a run directory of a cluster that was never measured, sound or with faults"
    )
    add_thresholds(command)
    _add_cluster(command)
    command.add_argument("--world-sizes", type=_words, default=(), metavar="16,64",
        help="further world sizes of weak scaling; default: --gpus, if no requirement is that large")  # fmt: skip
    command.add_argument("--fault", action="append", default=[], metavar="KIND:ARGS", help=fault_help())
    command.add_argument("--out", type=Path, required=True, metavar="RUN_DIR", help="run directory to make")
    command.set_defaults(run=_simulate)


def add_power(actions: Commands) -> None:
    """`ddpscale thresholds power`."""
    command = actions.add_parser("power", help="which faults the requirements of FILE catch, by simulation")
    command.add_argument("thresholds", type=Path, metavar="FILE")
    _add_cluster(command)
    command.add_argument("--trials", type=int, metavar="N", help="simulated runs for each fault; default: %(default)s",
        default=15)  # fmt: skip
    command.add_argument("--faults", type=_words, metavar="KIND:SIZE,…",
        help="faults to try, each at a place chosen anew in every run; default: a few sizes of every kind")  # fmt: skip
    command.add_argument("--confidence", default=OPTIONS["confidence"].default, metavar="C",
        help="of the verdicts; default: %(default)s")  # fmt: skip
    command.set_defaults(run=_power)


def _add_cluster(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--gpu-sku", required=True, metavar="SKU", help="a name or alias in the thresholds file")
    add("--gpus", type=int, metavar="N", help="size of the cluster; default: of the largest requirement")
    add("--gpus-per-node", type=int, default=8, metavar="N", help="default: %(default)s")
    add("--nic-gbps", type=float, default=NIC_GBPS, metavar="GB/s",
        help="between nodes, for each GPU, one direction; default: %(default)g (200 Gbit/s InfiniBand)")  # fmt: skip
    add("--noise", type=float, metavar="SD",
        help="relative standard deviation of a round; default: 0.003 on GPU, 0.02 on CPU")  # fmt: skip
    add("--workloads", type=_words, metavar="NAME,…", help="only these workloads; default: all")
    add("--rounds", metavar="N", help="of every study; default: as many as a real run does at most")
    add("--seed", type=int, default=0, metavar="S", help="of the noise; default: %(default)s")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _simulate(arguments: argparse.Namespace) -> None:
    from pytest_ddpscale.simulate.subcommands import simulate

    simulate(arguments)


def _power(arguments: argparse.Namespace) -> None:
    from pytest_ddpscale.simulate.subcommands import power

    power(arguments)
