"""``python -m pytest_ddpscale.node``: the agent of one node, started by a launcher, one on every node.

Its command line only names the node, so it needs no quoting and is stable across versions; everything else comes in
the `Task` over standard input.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys

from pytest_ddpscale.node.agent import NodeAgent


def main() -> int:
    """Serve as the agent. Returns torchrun's exit code, or 0 if the supervisor ended it."""
    parser = argparse.ArgumentParser(prog="pytest_ddpscale.node")
    parser.add_argument("--node", type=int, default=0, help="the node's index")
    parser.add_argument("--host", default="", help="the node's name; default: the host's")
    parser.add_argument("--node-from", metavar="VARIABLE", help="environment variable with the node's index")
    parser.add_argument("--host-from", metavar="VARIABLE", help="environment variable with the node's name")
    arguments = parser.parse_args()
    node = int(os.environ[arguments.node_from]) if arguments.node_from else arguments.node
    named = os.environ.get(arguments.host_from, "") if arguments.host_from else arguments.host
    return NodeAgent(node, named or socket.gethostname()).run()


if __name__ == "__main__":
    sys.exit(main())
