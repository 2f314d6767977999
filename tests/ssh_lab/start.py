"""``python -m tests.ssh_lab.start FOLDER OPTION=VALUE…``: measure a tiny study over hosts, and print how it ended.

Options are those of pytest without ``--ddp-``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.launch.launcher import launcher_for
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import ends_of
from pytest_ddpscale.session.evidence import launch_on
from pytest_ddpscale.settings import settings_from

TINY = Workload("tiny", ImageFamily("shufflenet_v2_x0_5", 32, "contiguous", num_classes=10), "fp32", 2)


def main() -> None:
    """As the module says."""
    folder, *options = sys.argv[1:]
    named = dict(option.split("=", 1) for option in options)
    settings = settings_from({f"ddp_{name}": value for name, value in named.items()}, {}, {})
    cluster = launcher_for(settings, os.environ).cluster(plans_only=False)
    arms = (Arm("alone", 1, 2), Arm("ddp", cluster.nodes, 2))
    study = Study("weak", TINY, arms, rounds=2, block_s=0.05, warmup_s=0.05)
    run = RunDirectory.create(Path(folder))
    launch = launch_on(cluster, settings, "cpu", os.environ)
    plan = Plan("cpu", "cpu", (study,), nodes=cluster.nodes, ranks_per_node=1)
    Supervisor(launch, run, Limits(inactivity_s=120)).measure(plan)
    [end] = ends_of(run.read_records()).values()
    print(f"{end.reason}: {say(end.message)}")


if __name__ == "__main__":
    main()
