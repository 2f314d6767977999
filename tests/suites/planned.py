"""What a suite would plan for GPUs that are not here."""

from __future__ import annotations

import argparse

from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.suites.suite import Suite
from pytest_ddpscale.suites.suite_command import add_measuring_command, nodes_of

A6000 = ("--gpu-sku=a6000", "--ddp-hosts=n1", "--ddp-exec=true {host}")


def planned(suite: Suite, *options: str, gpus: int = 4) -> Plan:
    """On one node of A6000. Raises BadInput."""
    parser = argparse.ArgumentParser()
    add_measuring_command(parser.add_subparsers(), suite)
    arguments = parser.parse_args([suite.name, *A6000, f"--ddp-gpus-per-node={gpus}", *options])
    return suite.plan(arguments, nodes_of(arguments))
