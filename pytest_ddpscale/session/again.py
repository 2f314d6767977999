"""Commands to type after a session: the same measurement again, from any directory or machine that reaches its nodes,
and the calibration from its run.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpscale.launch.launcher import Cluster
from pytest_ddpscale.util.masking import masked_arguments

if TYPE_CHECKING:
    from pytest_ddpscale.session.sources import Machine, Subject


def command_again(subject: Subject, machine: Machine) -> tuple[str, ...]:
    """The command's words, with secrets masked: SKU, launcher, nodes, command-line options and paths.

    Append `-k` with a requirement's id to select one.
    """
    settings, site = subject.settings, subject.site
    command = ["pytest", f"--gpu-sku={subject.sku}"]
    if settings.thresholds is not None:
        command.append(f"--thresholds={settings.thresholds}")
    given = dict(site.asked)
    per_node, cluster = settings.gpus_per_node, machine.cluster
    if cluster.launcher != Cluster().launcher:  # name the nodes, which may be others where the command is typed
        given = {"--ddp-launcher": cluster.launcher, "--ddp-nodes": str(cluster.nodes), **given}
        per_node = per_node or machine.per_node
    if per_node is not None:
        given["--ddp-gpus-per-node"] = str(per_node)
    command += [f"{flag}={value}" if value else flag for flag, value in given.items()]
    return tuple(masked_arguments([*command, *site.paths]))


def calibrate_command(subject: Subject, run: Path, *, is_simulated: bool) -> str:
    """The command that computes bounds from a run, to which others may be added, as one line for a shell.

    Args:
        subject: whose thresholds the new bounds extend.
        run: directory of the measurements.
        is_simulated: whether no machine was measured, which the command has to allow.
    """
    command = ["ddpscale", "calibrate", str(run)]
    if subject.settings.thresholds is not None:
        command.append(f"--thresholds={subject.settings.thresholds}")
    if is_simulated:
        command.append("--allow-simulated")
    return shlex.join(command)
