"""Nothing of a run listens where anybody but its own ranks could connect: torch's stores ask for no password."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_ddpscale.launch.limits import Limits
from pytest_ddpscale.launch.supervisor import Supervisor
from pytest_ddpscale.launch.torchrun import launch_here
from pytest_ddpscale.plan.probe import Probe, ProbeStudy
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.run_record import ends_of
from tests.listening import addresses_listened_on

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TINY = Workload("tiny", "shufflenet_v2_x0_5", "fp32", 2, 32, "contiguous", num_classes=10)
STUDY = Study("weak", TINY, (Arm("alone", 1, 2), Arm("ddp", 2, 2)), rounds=2, block_s=0.05, warmup_s=0.05)
PLAN = Plan("cpu", "cpu", (STUDY,), ranks_per_node=2, probes=ProbeStudy((Probe("all-reduce-1mib", 2),), 2, 0.05))
# A machine of its own with loopback and one more interface; the gang is the only process in it that talks.
MACHINE = """
set -e
ip link set lo up
ip link add e0 type veth peer name e1
ip address add 192.0.2.1/24 dev e0
ip link set e0 up
ip link set e1 up
exec "$@"
"""
UNSHARE = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c", MACHINE, "sh"]
PROGRAM = "from tests.integration.test_listening import measure_and_listen; measure_and_listen()"


def measure_and_listen() -> None:
    """Measure in ./run, and print every address that anything listened on meanwhile."""
    run = RunDirectory.create(Path("run"))
    run.write_json(run.plan_json, PLAN)
    found: set[str] = set()
    is_over = threading.Event()

    def listen() -> None:
        while not is_over.wait(0.005):
            found.update(addresses_listened_on())

    listener = threading.Thread(target=listen)
    listener.start()
    Supervisor(launch_here("cpu"), run, Limits(inactivity_s=120)).measure(PLAN)
    is_over.set()
    listener.join()
    print(*sorted(found))


def test_on_one_node_nothing_listens_but_on_loopback(tmp_path: Path) -> None:
    if shutil.which("ip") is None or subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        reason = "needs network namespaces with veth: run as root outside a container, with iproute2"
        if os.environ.get("DDPSCALE_LAB") == "required":
            pytest.fail(f"DDPSCALE_LAB=required, but it {reason}", pytrace=False)
        pytest.skip(reason)
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environ, capture_output=True, text=True,
        timeout=300, check=True,
    )  # fmt: skip
    records = RunDirectory(tmp_path / "run").read_records()
    assert {end.reason for end in ends_of(records).values()} == {"rounds"}
    assert done.stdout.split() == ["127.0.0.1"]
