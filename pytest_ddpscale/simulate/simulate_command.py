"""`ddpscale simulate`.

Its help needs this module, so heavy imports are inside the functions that use them.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import MISSING
from pathlib import Path

from pytest_ddpscale.settings import read_value
from pytest_ddpscale.simulate.options import FAULTS, READ, TYPED, ClusterOptions, number, parse_faults
from pytest_ddpscale.util.packaged import THRESHOLDS, usual_thresholds

MOST_SIMULATED_ROUNDS = 1000  # every arm of every round is a line


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `ddpscale simulate`."""
    usual = f"default: {THRESHOLDS} here, else the packaged one"
    command.add_argument("--thresholds", type=Path, metavar="FILE", help=usual)
    for flag, option in TYPED.items():
        default = "" if option.default in (None, MISSING) else f"; default: {option.default:g}"
        stands_for, text = option.metadata["metavar"], f"{option.metadata['help']}{default}"
        command.add_argument(flag, metavar=stands_for, required=option.default is MISSING, help=text)
    command.add_argument("--rounds", metavar="N", help="rounds of every study; default: the most of a real run")
    command.add_argument("--seed", metavar="S", default="0", help="seed of the noise; default: %(default)s")
    command.add_argument("--out", type=Path, required=True, metavar="RUN_DIR", help="run directory to make")
    table = "\n".join(f"{form:<35}  {meaning}" for form, meaning in FAULTS.items())
    faults = command.add_argument_group("faults", table)
    faults.add_argument("--fault", action="append", default=[], metavar="KIND:ARGS",
        help="one of these, repeatable; FACTOR is 1 to 1000, SHARE above 0, to 1")  # fmt: skip
    command.set_defaults(run=_simulate)


def _simulate(arguments: argparse.Namespace) -> None:
    """Write a run directory. Raises BadInput."""
    from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
    from pytest_ddpscale.run.run_directory import RunDirectory
    from pytest_ddpscale.run.run_json import WATERMARK
    from pytest_ddpscale.simulate.cluster import open_cluster
    from pytest_ddpscale.simulate.measuring import SimulatedRun
    from pytest_ddpscale.simulate.writing import write_simulated_run
    from pytest_ddpscale.thresholds.cases import training_cases
    from pytest_ddpscale.thresholds.loading import load_thresholds

    typed = {flag: getattr(arguments, option.name) for flag, option in TYPED.items()}
    values = {
        option.name: read_value(flag, typed[flag], READ[option.metadata["metavar"]])
        for flag, option in TYPED.items()
        if typed[flag] is not None
    }
    seed, rounds = read_value("--seed", arguments.seed, READ["S"]), None
    if arguments.rounds is not None:
        rounds = read_value("--rounds", arguments.rounds, number(FEWEST_ROUNDS, MOST_SIMULATED_ROUNDS, int))
    thresholds = load_thresholds(arguments.thresholds or usual_thresholds())
    cluster = open_cluster(thresholds, ClusterOptions(**values))
    largest = max(case.world_size for case in training_cases(cluster.cases))
    plan = cluster.plan(rounds, (cluster.gpus,) if cluster.gpus > largest else (), seed)
    faults = parse_faults(arguments.fault, plan.layout)
    run = RunDirectory.create(arguments.out)
    write_simulated_run(run, cluster, SimulatedRun(plan, cluster.performance, faults, seed), sys.argv)
    wrong = f", with {', '.join(arguments.fault)}" if arguments.fault else ""
    print(f"{WATERMARK}. Wrote {len(plan.studies)} studies of {plan.world_size} {cluster.sku}{wrong} to {run.path}.")
    print(f"Next: pytest --ddp-judge={run.path}")
