"""`ddpscale history`. Every command imports this module, so heavy imports are inside functions."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.settings import OPTIONS
from pytest_ddpscale.util.command_parser import Commands, adder, each_run
from pytest_ddpscale.util.listing import count_text


def add_history(commands: Commands) -> None:
    """Add `ddpscale history`."""
    what, variable = "show what nodes reached in earlier runs, and whether they still do", OPTIONS["history"].variable
    command = commands.add_parser("history", help=what)
    add, either = adder(command), adder(command.add_mutually_exclusive_group())
    either("node", "NODE", str, "default: a line for every node", nargs="?")
    usual = f"; default: ${variable}, else ddpscale-runs/history.sqlite here"
    file = f"history file, one per cluster since nodes are known by name{usual}"
    add("--history", "FILE", Path, file, os.environ.get(variable) or None)
    add("--gpu-sku", "SKU", str, "canonical name, as the history lists it; default: all")
    add("--format", None, str, "", "text", choices=("text", "json"))
    either("--add", "RUN_DIR", Path, "add judged runs, each once; print what was added", nargs="+")
    either("--forget", "NODE", str, "remove what a node reached: its next runs become a new baseline")
    command.set_defaults(run=_history)


def _history(arguments: argparse.Namespace) -> int:
    from pytest_ddpscale.history.regression import read_histories
    from pytest_ddpscale.history.store import DEFAULT_HISTORY, add_run, forget
    from pytest_ddpscale.report.listings import json_text, node_lines, overview_lines

    file, node, sku, gone = arguments.history or DEFAULT_HISTORY, arguments.node, arguments.gpu_sku, arguments.forget
    if arguments.add:
        if sku is not None:
            raise OptionError("--add", f"found --gpu-sku={sku} beside it", "run directories only")
        words = {"added": "added", "replaced": "replaced the earlier version", "known": "already in the history"}
        return each_run(arguments.add, lambda directory: print(f"{directory}: {words[add_run(file, directory)]}"))
    if gone is not None:
        print(f"{gone}: {count_text(forget(file, gone, sku), 'run')} forgotten")
        return 0
    nodes = read_histories(file, sku, node)
    if arguments.format == "json":
        print(json_text(nodes))
    elif node is None:
        print(*overview_lines(nodes), sep="\n")
    else:
        for one in nodes:
            print(*node_lines(one), "", sep="\n")
    return 0
