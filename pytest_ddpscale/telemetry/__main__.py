"""``python -m pytest_ddpscale.telemetry``: the sampler, one process a node for all its GPUs."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from pytest_ddpscale.telemetry.sampling import Sampling, serve
from pytest_ddpscale.util.orphans import die_with_parent


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The sampler's command line; `telemetry.link.Sampler` is its only caller."""
    parser = argparse.ArgumentParser(prog="pytest_ddpscale.telemetry")
    parser.add_argument("--uuids", required=True, help="of the GPUs, GPU-…, with commas between them")
    parser.add_argument("--poll-s", type=float, default=1.0, help="seconds between two polls (%(default)s)")
    return parser.parse_args(argv)


def main() -> int:
    """Sample until the asking side ends. Returns 0."""
    die_with_parent()
    # Ctrl-C goes to the whole group: whoever started this one ends it, when the last window is cut.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    arguments = parse_arguments(sys.argv[1:])
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints does not get between the answers
    serve(Sampling(arguments.uuids.split(",")), arguments.poll_s, 0, lambda: os.read(0, 65536), answers.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
