"""Whether this machine can hold a lab, and what to do where it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess

from tests.slurm_lab.cgroup import cpu_controller

INSTALL = "apt-get install -y slurm-wlm slurmctld slurmd munge iproute2 nftables"
COMMANDS = (
    "slurmctld", "slurmd", "munged", "srun", "sbatch", "scontrol", "ip", "tc", "nft", "unshare", "nsenter", "bash",
)  # fmt: skip
# Debian keeps the daemons where an ordinary PATH may not look.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

# All that the lab asks of the kernel, in namespaces that end with the command.
_PROBE = (
    "ip link add name probe0 type bridge && ip link add name probe1 type veth peer name probe2"
    " && tc qdisc add dev probe1 root tbf rate 1mbit burst 32kbit latency 400ms"
    " && nft add table netdev probe"
)


def why_not() -> str | None:
    """Why no lab can run here, with the remedy; None where one can."""
    if os.geteuid() != 0:
        return f"the Slurm lab needs root (namespaces, device nodes): run the tests as root, after {INSTALL}"
    missing = [name for name in COMMANDS if shutil.which(name, path=SEARCH_PATH) is None]
    if missing:
        return f"the Slurm lab needs {', '.join(missing)}: {INSTALL}"
    if cpu_controller() is None:
        return (
            "the Slurm lab needs a writable cgroup v1 cpu controller, for its nodes' CPU quotas: "
            "boot with systemd.unified_cgroup_hierarchy=0, or run in a virtual machine that has it"
        )
    command = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "sh", "-c", _PROBE]
    probe = subprocess.run(
        command, env={**os.environ, "PATH": SEARCH_PATH}, capture_output=True, text=True, timeout=60, check=False
    )
    if probe.returncode != 0:
        return (
            f"the Slurm lab needs namespaces, a bridge, veth, tbf and nftables ({probe.stderr.strip()}): "
            "run outside a container, or in one with --privileged, and load bridge, veth, sch_tbf and nf_tables"
        )
    return None
