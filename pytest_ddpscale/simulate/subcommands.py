"""What `ddpscale simulate` and `ddpscale thresholds power` do."""

from __future__ import annotations

import argparse
import sys

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_json import WATERMARK
from pytest_ddpscale.settings import confidence_level, number_of_rounds, read_value
from pytest_ddpscale.simulate.faults import parse_faults
from pytest_ddpscale.simulate.power import DEFAULT_FAULTS, measure_power
from pytest_ddpscale.simulate.power_text import power_lines
from pytest_ddpscale.simulate.simulated_cluster import ClusterOptions, SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.writing import write_simulated_run
from pytest_ddpscale.thresholds.cases import training_cases
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

MOST_SIMULATED_ROUNDS = 1000


def simulate(arguments: argparse.Namespace) -> None:
    """Write a run directory. Raises BadInput."""
    cluster = _cluster(arguments)
    plan = cluster.plan(_rounds(arguments), _world_sizes(arguments, cluster), arguments.seed)
    faults = parse_faults(arguments.fault, plan.layout)
    run = RunDirectory.create(arguments.out)
    write_simulated_run(run, cluster, plan, faults, arguments.seed, sys.argv)
    wrong = f", with {', '.join(map(str, faults.faults))}" if faults.faults else ""
    print(f"{WATERMARK}. Wrote {len(plan.studies)} studies of {plan.world_size} {cluster.sku}{wrong} to {run.path}.")
    print(f"Next: pytest --ddp-judge={run.path}")


def power(arguments: argparse.Namespace) -> None:
    """Print which faults the requirements of a thresholds file catch. Raises BadInput."""
    confidence = read_value("--confidence", arguments.confidence, confidence_level)
    cluster = _cluster(arguments)
    plan = cluster.plan(_rounds(arguments), short_blocks=True)
    faults = DEFAULT_FAULTS if arguments.faults is None else arguments.faults
    found = measure_power(cluster, plan, faults, arguments.trials, confidence, arguments.seed, _progress)
    for line in power_lines(found):
        print(line)


def _progress(fault: str) -> None:
    print(f"simulating {fault} …", file=sys.stderr)


def _cluster(arguments: argparse.Namespace) -> SimulatedCluster:
    thresholds = load_thresholds(arguments.thresholds or packaged("thresholds.yaml"))
    options = ClusterOptions(
        sku=arguments.gpu_sku,
        gpus=arguments.gpus,
        gpus_per_node=arguments.gpus_per_node,
        nic_gbps=arguments.nic_gbps,
        round_noise=arguments.noise,
        workloads=arguments.workloads,
    )
    return open_cluster(thresholds, options)


def _rounds(arguments: argparse.Namespace) -> int | None:
    if arguments.rounds is None:
        return None
    rounds = read_value("--rounds", arguments.rounds, number_of_rounds)
    if rounds > MOST_SIMULATED_ROUNDS:
        raise OptionError(
            "--rounds", f"found {rounds}", f"at most {MOST_SIMULATED_ROUNDS}: every rank of every round is a line"
        )
    return rounds


def _world_sizes(arguments: argparse.Namespace, cluster: SimulatedCluster) -> tuple[int, ...]:
    largest = max(case.world_size for case in training_cases(cluster.cases))
    asked: tuple[str, ...] = arguments.world_sizes
    if not asked:
        return (cluster.gpus,) if cluster.gpus > largest else ()
    wrong = [text for text in asked if not text.isdecimal() or not 1 <= int(text) <= cluster.gpus]
    if wrong:
        expected = f"world sizes from 1 to {cluster.gpus}, the number of GPUs"
        raise OptionError("--world-sizes", f"found {wrong[0]!r}", expected)
    return tuple(sorted({int(text) for text in asked}))
