"""``python -m pytest_ddpscale.node``: the agent of one node, started by a launcher, one on every node."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pytest_ddpscale.node.agent import NodeAgent, Task, host_of


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The agent's own command line; launchers are its only callers."""
    parser = argparse.ArgumentParser(prog="pytest_ddpscale.node")
    parser.add_argument("--gang", required=True, help="id of the gang")
    parser.add_argument("--ranks-per-node", type=int, required=True)
    parser.add_argument("--log-dir", type=Path, required=True)
    parser.add_argument("--slurm", action="store_true", help="Slurm says which node this is")
    parser.add_argument("--beat-s", type=float, default=2.0, help="seconds between two words on every rank")
    parser.add_argument("--survey", action="store_true", help="say first what this node is")
    parser.add_argument("--no-gpu", action="store_true", help="ask for no GPU in that")
    parser.add_argument("--post-mortem", action="store_true", help="look at the GPUs once ranks have failed")
    parser.add_argument("--look-for", type=Path, help="say whether this file of the run directory is seen here")
    parser.add_argument("worker_arguments", nargs=argparse.REMAINDER, help="after --: of pytest_ddpscale.worker")
    return parser.parse_args(argv)


def main() -> int:
    """Serve as the agent. Returns torchrun's exit code, or 0 if it was ended in order."""
    arguments = parse_arguments(sys.argv[1:])
    # srun starts one task on each node of the step: the task's number is the node's.
    node = int(os.environ["SLURM_PROCID"]) if arguments.slurm else 0
    task = Task(
        gang_id=arguments.gang,
        node=node,
        host=host_of(os.environ),
        ranks_per_node=arguments.ranks_per_node,
        log_dir=arguments.log_dir,
        worker_arguments=arguments.worker_arguments[1:],
        beat_s=arguments.beat_s,
        survey=arguments.survey,
        has_gpus=not arguments.no_gpu,
        post_mortem=arguments.post_mortem,
        proof=arguments.look_for,
    )
    return NodeAgent(task).run()


if __name__ == "__main__":
    sys.exit(main())
