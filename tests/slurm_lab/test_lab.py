"""The lab is what it claims: real Slurm, real faults, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.slurm_lab.cgroup import cpu_controller, remove_stale
from tests.slurm_lab.fixtures import require_lab
from tests.slurm_lab.lab import SlurmLab
from tests.slurm_lab.polling import wait_until

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
MIB = 2**20
# Prints the rate in MB/s at which it receives: first byte to last.
RECEIVE = """
import socket, time
server = socket.create_server(("0.0.0.0", 29500))
print("listening", flush=True)
peer, _ = server.accept()
first, count = None, 0
while chunk := peer.recv(1 << 20):
    first = first or time.perf_counter()
    count += len(chunk)
print(count / (time.perf_counter() - first) / 1e6)
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 29500), timeout=10) as peer:
    peer.sendall(bytes(int(sys.argv[2])))
"""
SPIN = """
import time
start, cpu = time.perf_counter(), time.process_time()
while time.process_time() - cpu < 0.1:
    pass
print(time.perf_counter() - start)
"""


def rate_mbps(lab: SlurmLab, sender: str, receiver_name: str, size_bytes: int) -> float:
    """The rate from one node to another in MB/s (1e6 bytes/s)."""
    receive = lab.node(receiver_name).command([sys.executable, "-c", RECEIVE])
    with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout
        assert receiver.stdout.readline() == "listening\n"
        send = lab.node(sender).command([sys.executable, "-c", SEND, receiver_name, str(size_bytes)])
        subprocess.run(send, check=True, timeout=30)
        return float(receiver.stdout.read())


def spin_s(lab: SlurmLab, node: str) -> float:
    """The wall time that 0.1 s of CPU time takes on a node."""
    command = lab.node(node).command([sys.executable, "-c", SPIN])
    return float(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)


def test_one_srun_reaches_every_node(lab: SlurmLab) -> None:
    done = lab.run(["srun", f"--nodes={len(lab.nodes)}", "--gres=gpu:2", "hostname"])
    assert sorted(done.stdout.split()) == [node.name for node in lab.nodes]


def test_a_batch_job_runs_on_its_nodes_which_know_each_other_by_name(lab: SlurmLab, tmp_path: Path) -> None:
    job = lab.submit("pwd; srun getent hosts n1 head", "--nodes=2", cwd=tmp_path)
    assert lab.wait_for_job(job) == "COMPLETED"
    where, *names = lab.job_output(job).splitlines()
    assert where == str(tmp_path)
    assert sorted(line.split()[1] for line in names) == ["head", "head", "n1", "n1"]


def test_a_slow_link_is_slow_both_ways_until_it_is_fast_again(lab: SlurmLab) -> None:
    lab.node("n2").slow_link("100mbit")
    from_n2, to_n2 = rate_mbps(lab, "n2", "n1", 4 * MIB), rate_mbps(lab, "n1", "n2", 4 * MIB)
    assert max(from_n2, to_n2) < 100 / 8 * 1.2
    assert rate_mbps(lab, "n3", "n1", 16 * MIB) > 5 * from_n2
    lab.node("n2").fast_link()
    assert rate_mbps(lab, "n2", "n1", 16 * MIB) > 5 * from_n2
    assert rate_mbps(lab, "n1", "n2", 16 * MIB) > 5 * to_n2


def test_a_quota_is_kept_by_the_kernel(lab: SlurmLab) -> None:
    lab.node("n2").cpu_quota(0.2)
    assert spin_s(lab, "n2") >= 0.1 / 0.2 * 0.9
    lab.share_cores("n1", "n2", "n3")
    quotas = [node.cores or 0 for node in lab.nodes]
    assert quotas[0] == quotas[1] == quotas[2] > quotas[3] == pytest.approx(0.1)
    with pytest.raises(ValueError, match="together"):
        lab.node("n1").cpu_quota(psutil.cpu_count() or 1)


def test_a_node_alone_finds_other_files_at_a_path_until_it_is_healed(lab: SlurmLab, tmp_path: Path) -> None:
    shared, other = tmp_path / "shared", tmp_path / "other"
    shared.write_text("shared", encoding="utf-8")
    other.write_text("other", encoding="utf-8")
    lab.node("n2").mount(other, shared)
    read = ["srun", "--nodes=3", "--nodelist=n1,n2,n3", "--label", "cat", str(shared)]
    assert sorted(lab.run(read).stdout.splitlines()) == ["0: shared", "1: other", "2: shared"]
    lab.node("n2").heal()
    assert "other" not in lab.run(read).stdout


def test_taking_a_lab_down_leaves_nothing_behind(tmp_path: Path, lab: SlurmLab) -> None:
    before = traces()
    with SlurmLab(tmp_path, nodes=1) as second:
        assert second.run(["srun", "hostname"]).stdout == "n1\n"  # while the session's lab is up
        namespaces = {namespace(machine.pid) for machine in (second.head, *second.nodes)}
        assert len(inside(namespaces)) >= 5  # first processes, munged, slurmctld, slurmd
        assert traces() != before
    assert inside(namespaces) == []
    assert traces() == before
    assert not second.paths.runtime.exists()
    second.down()  # again: harmless
    assert len(lab.run(["srun", "--nodes=6", "hostname"]).stdout.split()) == 6


def test_a_lab_that_fails_half_way_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_lab()
    before, namespaces = traces(), set[str]()

    def fails(half_up: SlurmLab) -> bool:
        namespaces.update(namespace(machine.pid) for machine in (half_up.head, *half_up.nodes))
        assert inside(namespaces)
        raise RuntimeError("half way")

    monkeypatch.setattr(SlurmLab, "_answers", fails)
    half = SlurmLab(tmp_path, nodes=1)
    with pytest.raises(RuntimeError, match="half way"):
        half.up()
    assert inside(namespaces) == []
    assert not half.paths.runtime.exists()
    assert traces() == before


def test_a_lab_whose_process_is_killed_ends_with_it(tmp_path: Path) -> None:
    require_lab()
    controller = cpu_controller()
    assert controller
    script = (
        "import sys, pathlib\nfrom tests.slurm_lab.lab import SlurmLab\n"
        "lab = SlurmLab(pathlib.Path(sys.argv[1]), nodes=1)\nlab.up()\n"
        "lab.submit('sleep 60'), print(lab.network.outside, lab.node('n1').pid, lab.head.pid, flush=True)\ninput()"
    )
    argv = [sys.executable, "-c", script, str(tmp_path)]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}  # what nobody could remove is removed with the test's directory
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ
    ) as owner:
        assert owner.stdout
        outside, *pids = owner.stdout.readline().split()
        family = [*psutil.Process(owner.pid).children(recursive=True), *(psutil.Process(int(pid)) for pid in pids)]
        owner.kill()
    wait_until(lambda: not any(process.is_running() for process in family), 10, "the lab's processes to end")
    wait_until(lambda: not Path("/sys/class/net", outside).exists(), 10, "the lab's cable to be gone")
    assert (controller / f"{outside}-n1").is_dir()
    remove_stale()
    assert not (controller / f"{outside}-n1").exists()


def namespace(pid: int) -> str:
    """The network namespace of a process; empty when it has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def inside(namespaces: set[str]) -> list[int]:
    """Every process of the machine, whoever's child it is, that is in one of the network namespaces."""
    return [pid for pid in psutil.pids() if namespace(pid) in namespaces]


def traces() -> dict[str, list[str]]:
    """What the labs of this process have on the machine, besides processes."""
    controller, ours = cpu_controller(), f"lab{os.getpid()}x*"
    assert controller
    return {
        "interfaces": sorted(path.name for path in Path("/sys/class/net").glob(ours)),
        "cgroups": sorted(path.name for path in controller.glob(ours)),
        "mounts": Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines(),
    }
