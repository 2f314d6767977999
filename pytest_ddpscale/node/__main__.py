"""``python -m pytest_ddpscale.node``: the agent of one node, started by a launcher, one on every node.

Its command line only names the node, so it needs no quoting and is stable across versions; everything else comes in
the `Task` over standard input. ``--try`` shows whether a command of a site's carries all that an agent needs.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import subprocess
import sys

from pytest_ddpscale.node.agent import NodeAgent

INPUT, CODE, LIMIT_S = bytes(range(256)) * 1000, 7, 60


def echo() -> int:
    """The other end of `tried`: give standard input back once it has ended, a word on standard error, and a code."""
    sys.stdout.buffer.write(sys.stdin.buffer.read())
    print("word", file=sys.stderr)
    return CODE


def tried(command: str) -> str:
    """What a command, up to and including the host's Python, does not carry as it is; empty if it carries all."""
    try:
        words = [*shlex.split(command), "-m", "pytest_ddpscale.node", "--echo"]
        done = subprocess.run(words, input=INPUT, capture_output=True, timeout=LIMIT_S, check=False)
    except (OSError, ValueError) as error:  # ValueError: a quotation that does not end
        return f"cannot be started: {error}"
    except subprocess.TimeoutExpired:
        return f"the end of standard input, or that of the command, does not arrive within {LIMIT_S} s"
    arrived = {
        f"{len(INPUT)} bytes and back": done.stdout == INPUT,
        "standard error, by itself": b"word" in done.stderr,
        f"exit code {CODE}": done.returncode == CODE,
    }
    lost = [name for name, has in arrived.items() if not has]
    text = done.stderr[-300:].decode(errors="replace").strip()
    return f"does not arrive: {', '.join(lost)}; it ended with {done.returncode}: {text}" if lost else ""


def main() -> int:
    """Serve as the agent. Returns torchrun's exit code, or 0 if the supervisor ended it."""
    parser = argparse.ArgumentParser(prog="pytest_ddpscale.node")
    parser.add_argument("--node", type=int, default=0, help="the node's index")
    parser.add_argument("--host", default="", help="the node's name; default: the host's")
    parser.add_argument("--node-from", metavar="VARIABLE", help="environment variable with the node's index")
    parser.add_argument("--host-from", metavar="VARIABLE", help="environment variable with the node's name")
    parser.add_argument(
        "--try", metavar="COMMAND", help="show whether it carries both streams, their end and exit codes"
    )
    parser.add_argument("--echo", action="store_true", help="be the other end of --try")
    arguments = parser.parse_args()
    if arguments.echo:
        return echo()
    if command := vars(arguments)["try"]:
        print((wrong := tried(command)) or "both streams, their ends and the exit code arrive")
        return int(bool(wrong))
    node = int(os.environ[arguments.node_from]) if arguments.node_from else arguments.node
    named = os.environ.get(arguments.host_from, "") if arguments.host_from else arguments.host
    return NodeAgent(node, named or socket.gethostname()).run()


if __name__ == "__main__":
    sys.exit(main())
