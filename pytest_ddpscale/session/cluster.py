"""On which nodes ranks will run, and who starts them: this machine, those that are named, or a scheduler's."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_ddpscale.launch.container import container_of
from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.launch.launcher import Cluster, Launch, launcher_for, launchers
from pytest_ddpscale.plan.study import DeviceType
from pytest_ddpscale.settings import Settings

THIS_MACHINE = Cluster()


def find_cluster(settings: Settings, environ: Mapping[str, str], *, plans_only: bool = False) -> Cluster:
    """The nodes that the settings and the environment mean.

    With ``--ddp-launcher=auto`` each launcher is asked whether options or environment mean it; else it is this machine.

    Args:
        settings: what the user asked for.
        environ: this process's.
        plans_only: nothing will be started, so that a laptop may plan for many nodes.

    Raises:
        OptionError: options contradict each other or what is there, or what starts agents is not there.
    """
    return launcher_for(settings, environ).cluster(plans_only=plans_only)


def launch_on(cluster: Cluster, settings: Settings, device_type: DeviceType, environ: Mapping[str, str]) -> Launch:
    """How gangs start on these nodes.

    Args:
        cluster: the nodes.
        settings: container, environment and options of the launcher.
        device_type: what ranks train on.
        environ: this process's.

    Raises:
        OptionError: the container cannot be started here.
    """
    launcher = launchers()[cluster.launcher](settings, environ)
    return Launch(
        launcher,
        worker_environment(environ, device_type, pass_env=settings.pass_env),
        cluster.hosts,
        device_type,
        container_of(settings.container, device_type, launcher.image_arguments),
        cluster.nodes,
    )
