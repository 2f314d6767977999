"""`ddpscale simulate`.

Every command imports this module, so heavy imports are inside the functions that use them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import (
    number_of_rounds,
    read_value,
    world_sizes,
)
from pytest_ddpscale.simulate.faults import fault_help, parse_faults
from pytest_ddpscale.thresholds.commands import warn_of_problems
from pytest_ddpscale.util.packaged import usual_thresholds

if TYPE_CHECKING:
    from pytest_ddpscale.simulate.simulated_cluster import SimulatedCluster

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

MOST_SIMULATED_ROUNDS = 1000


def add_thresholds(command: argparse.ArgumentParser) -> None:
    """Add `--thresholds` to a command that has no other source for them."""
    command.add_argument(
        "--thresholds",
        type=Path,
        metavar="FILE",
        help="default: thresholds.yaml here, else the packaged one",
    )


def add_simulate(commands: Commands) -> None:
    """Add `ddpscale simulate`."""
    command = commands.add_parser(
        "simulate", help="make a run directory of a cluster that was never measured, sound or with faults"
    )
    add_thresholds(command)
    _add_cluster(command)
    command.add_argument("--world-sizes", metavar="16,64",
        help="further world sizes of weak scaling; default: --gpus, if no requirement is that large")  # fmt: skip
    command.add_argument("--fault", action="append", default=[], metavar="KIND:ARGS", help=fault_help())
    command.add_argument("--launch-spread", type=float, default=0.0, metavar="SD",
        help="relative standard deviation of each node from launch to launch; default: %(default)g")  # fmt: skip
    command.add_argument("--out", type=Path, required=True, metavar="RUN_DIR", help="run directory to make")
    command.set_defaults(run=_simulate)


def _add_cluster(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--gpu-sku", required=True, metavar="SKU", help="a name or alias in the thresholds file")
    add("--gpus", type=int, metavar="N", help="size of the cluster; default: that of the largest requirement")
    add("--gpus-per-node", type=int, default=8, metavar="N", help="default: %(default)s")
    add("--noise", type=float, metavar="SD",
        help="relative standard deviation of a round; default: 0.003 on GPU, 0.02 on CPU")  # fmt: skip
    add("--gpu-spread", type=float, default=0.0, metavar="SD",
        help="relative standard deviation between the GPUs of a node, the same with every --seed; default: "
        "%(default)g")  # fmt: skip
    add("--node-spread", type=float, default=0.0, metavar="SD",
        help="relative standard deviation between nodes, the same with every --seed; default: "
        "%(default)g, alike")  # fmt: skip
    add("--nodes-seed", type=int, default=0, metavar="S",
        help="seed of what nodes and GPUs differ by: another one gives other nodes of the cluster; default: "
        "%(default)s")  # fmt: skip
    add("--correlation", type=float, default=0.0, metavar="R",
        help="correlation between successive rounds (AR(1) noise); default: %(default)g")  # fmt: skip
    add("--hiccups", type=float, default=0.0, metavar="SHARE",
        help="share of blocks that take up to 10 standard deviations longer; default: %(default)g")  # fmt: skip
    add("--workloads", type=_words, metavar="NAME,…", help="only these workloads; default: all")
    add("--rounds", metavar="N", help="rounds of every study; default: the most of a real run")
    add("--seed", type=int, default=0, metavar="S", help="seed of the noise; default: %(default)s")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _simulate(arguments: argparse.Namespace) -> None:
    """Write a run directory. Raises BadInput."""
    from pytest_ddpscale.run.run_directory import RunDirectory
    from pytest_ddpscale.run.run_json import WATERMARK
    from pytest_ddpscale.simulate.measuring import SimulatedRun
    from pytest_ddpscale.simulate.writing import write_simulated_run

    if arguments.seed < 0:
        raise OptionError("--seed", f"found {arguments.seed}", "a whole number from 0 up")
    cluster = _cluster(arguments)
    sizes = _world_sizes(arguments, cluster)
    plan = cluster.plan(_rounds(arguments), sizes, arguments.seed)
    faults = parse_faults(arguments.fault, plan.layout)
    run = RunDirectory.create(arguments.out)
    write_simulated_run(run, cluster, SimulatedRun(plan, cluster.performance, faults, arguments.seed), sys.argv)
    wrong = f", with {', '.join(arguments.fault)}" if arguments.fault else ""
    print(f"{WATERMARK}. Wrote {len(plan.studies)} studies of {plan.world_size} {cluster.sku}{wrong} to {run.path}.")
    print(f"Next: pytest --ddp-judge={run.path}")


def _cluster(arguments: argparse.Namespace) -> SimulatedCluster:
    from pytest_ddpscale.simulate.simulated_cluster import ClusterOptions, open_cluster
    from pytest_ddpscale.simulate.spread import NodeSpread
    from pytest_ddpscale.thresholds.loading import load_thresholds

    thresholds = load_thresholds(arguments.thresholds or usual_thresholds())
    options = ClusterOptions(
        sku=arguments.gpu_sku,
        gpus=arguments.gpus,
        gpus_per_node=arguments.gpus_per_node,
        round_noise=arguments.noise,
        workloads=arguments.workloads,
        spread=NodeSpread(arguments.node_spread, arguments.gpu_spread, arguments.launch_spread, arguments.nodes_seed),
        correlation=arguments.correlation,
        hiccups=arguments.hiccups,
    )
    cluster = open_cluster(thresholds, options)
    warn_of_problems(thresholds)
    return cluster


def _rounds(arguments: argparse.Namespace) -> int | None:
    if arguments.rounds is None:
        return None
    rounds = read_value("--rounds", arguments.rounds, number_of_rounds)
    if rounds > MOST_SIMULATED_ROUNDS:
        raise OptionError(
            "--rounds", f"found {rounds}", f"at most {MOST_SIMULATED_ROUNDS}: every arm of every round is a line"
        )
    return rounds


def _world_sizes(arguments: argparse.Namespace, cluster: SimulatedCluster) -> tuple[int, ...]:
    from pytest_ddpscale.thresholds.cases import training_cases

    if not arguments.world_sizes:
        largest = max(case.world_size for case in training_cases(cluster.cases))
        return (cluster.gpus,) if cluster.gpus > largest else ()
    asked = read_value("--world-sizes", arguments.world_sizes, world_sizes)
    if asked[-1] > cluster.gpus:
        expected = f"world sizes from 1 to {cluster.gpus}, the number of GPUs"
        raise OptionError("--world-sizes", f"found '{asked[-1]}'", expected)
    return asked
