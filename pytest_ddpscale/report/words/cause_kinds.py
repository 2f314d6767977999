"""The catalogue of causes: what keeps a machine from being accepted, how bad it is, and what to do about it.

verdicts.json and reports name them by id; `ddpscale explain ID` prints its paragraph, the site has all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, get_args

from pytest_ddpscale.run.verdicts import Category, CauseId, VerdictOutcome


class CauseKind(NamedTuple):
    """One kind of cause.

    Attributes:
        severity: 1, wrong results, to 6, no device is at fault: memory errors, lost GPUs, slow links, slow devices
            between.
        category: ``ISOLATE``: drain it now. ``CHECK``: somebody must look before the machine opens. A cause whose
            device is not certain is a CHECK whatever stands here, and one that only warns is ``MONITOR``.
        action: what to do, in the imperative.
        paragraph: what it is, what else to look at, and when it may be wrong, in Markdown; it follows the action.
    """

    severity: int
    category: Category
    action: str
    paragraph: str


CAUSES: Mapping[CauseId, CauseKind] = {
    "wrong-data": CauseKind(
        1, "ISOLATE", "run no job there; dcgmi diag -r 3, then swap the GPU",
        "Other bits than most ranks computed from the same seed, or wrong products, copies or messages. Without a "
        "named GPU, diagnose all nodes that took part; of two ranks that disagree both are suspects. No waiver covers "
        "it.",
    ),
    "memory-errors": CauseKind(
        2, "ISOLATE", "reset the GPU; swap it if the errors return",
        "Uncorrectable ECC errors or a pending row remap (check `ecc`), new ones under load (`ecc_under_load`), or "
        "ECC is off. End the GPU's jobs before `nvidia-smi -r`. Counters may be of a repaired incident: reload the "
        "driver and measure again.",
    ),
    "lost-node": CauseKind(
        3, "CHECK", "check console, power and network",
        "A node stopped answering and took no part again; see `journalctl -b -1`. The connection or the launcher may "
        "be at fault instead: `ddpscale culprits` lists it to inspect.",
    ),
    "lost-gpu": CauseKind(
        3, "ISOLATE", "look for Xid in dmesg; reseat or reset the GPU",
        "A GPU is missing, of another model, does not answer, ended its ranks with an error of its own, or stopped "
        'while its peers went on (check `gpus`). Xid 79 is "fallen off the bus"; compute mode Prohibited also stands '
        "here (`nvidia-smi -c 0`). A suspect was only missing in some rounds.",
    ),
    "missing-gpus": CauseKind(
        3, "ISOLATE", "do what the check says; else look for Xid in dmesg, reboot",
        'A node has too few GPUs, or CUDA finds fewer than the driver lists (check `gpus`). Error 802, "system not '
        'yet initialized", beside a healthy `nvidia-smi`: the fabric manager is down (`systemctl status '
        "nvidia-fabricmanager`; of the version of the driver), on GB200 and GB300 `nvidia-imex` or a switch tray.",
    ),
    "gpu-error": CauseKind(
        3, "ISOLATE", "look for Xid in dmesg; reset the GPU",
        "A CUDA error of this GPU ended its ranks; see `logs/`, and swap the GPU if it returns. The driver may name "
        "the wrong GPU if one of several peers failed first: then it is a suspect. An error that the program may have "
        "made (illegal memory access, misaligned address, cuDNN, cuBLAS) is certain only after another batch.",
    ),
    "slow-node-link": CauseKind(
        4, "CHECK", "check cable, transceivers and port counters",
        "Messages between two nodes are slow or stall, though each reaches others, or an adapter did not answer "
        "(`status=12` of NCCL's `NET/IB`). Look at the switch port, too (`ibdiagnet`, `perfquery`, `ethtool -S`). One "
        "link proves little of either end, so neither node is drained; slow pairs keep a run from being accepted "
        "although no requirement failed.",
    ),
    "slow-gpu-link": CauseKind(
        4, "CHECK", "check nvidia-smi nvlink -e and topo -m; reseat the GPUs",
        "Two GPUs of a node exchange messages more slowly than the same pair on other nodes, or than the bound.",
    ),
    "slow-host-link": CauseKind(
        4, "ISOLATE", "check PCIe width (nvidia-smi -q -d PCI); reseat the GPU",
        "Fewer PCIe lanes or a lower generation than the SKU has (checks `pcie`, `pcie_under_load`), or copies "
        "between host and GPU slower than the bound or than the same slot on other nodes; a busy host slows them, "
        "too. An idle GPU lowers its generation, which does not deceive the check under load.",
    ),
    "nvlink-down": CauseKind(
        4, "ISOLATE", "check nvidia-smi nvlink -s; reset or reseat the GPU",
        "NVML counts fewer NVLinks up than the SKU has. On NVSwitch machines look at the fabric manager's log first.",
    ),
    "slow-transport": CauseKind(
        4, "ISOLATE", "check network drivers and NCCL_* variables",
        "NCCL's log shows sockets where InfiniBand, NVLink or peer access were expected (check `transport`): a "
        "variable, a missing module (`nvidia_peermem`) or plugin; `NCCL_DEBUG=INFO` names them. If all nodes fail "
        "alike, no node is certain.",
    ),
    "slow-communication": CauseKind(
        4, "ISOLATE", "check NVLinks, PCIe and network ports",
        "A node or GPU is slow only where ranks communicate, in collectives, in training or with all its partners of "
        "a pair, while it computes as fast as its peers. Look at the cores of its ranks, too.",
    ),
    "slow-gpu": CauseKind(
        5, "ISOLATE", "check power cap, clocks and cooling; reseat or swap the GPU",
        "Its own forward passes, products or copies take longer than its peers' by more than the limit of `peers:`, "
        "round after round. Compare `nvidia-smi -q -d POWER,CLOCK,PERFORMANCE,TEMPERATURE` with a sound GPU's. A job "
        "that nobody noticed looks the same (check `processes`).",
    ),
    "slow-node": CauseKind(
        5, "ISOLATE", "check power caps, clocks, cooling and CPUs",
        "All GPUs of a node are slower than the other nodes' median. Look at inlet temperature, BIOS, CPU governor "
        "and other tenants, too. Of two or three nodes the slower one is only a suspect.",
    ),
    "slow-training": CauseKind(
        5, "ISOLATE", "check clocks, power caps and CPUs, then links and ports",
        "A node trains more slowly than the bound, and nothing shows whether its GPUs compute or communicate slowly. "
        "`rank_uniformity` and the probes tell, with more nodes.",
    ),
    "uniform-loss": CauseKind(
        6, "CHECK", "check power caps, clocks and software of all nodes",
        "Throughput is below its reference or bound, and no GPU or node is slower than the others: no device is "
        "named. `ddpscale compare` with an earlier run shows what changed. If the machine is sound, its bound is not: "
        "`ddpscale calibrate`.",
    ),
    "slow-computing": CauseKind(
        6, "CHECK", "check power caps, clocks and software of all nodes",
        "As uniform-loss, but nothing shows that all GPUs are alike, or only single metrics are worse, such as step "
        "time or products.",
    ),
    "slow-scaling": CauseKind(
        6, "CHECK", "check links, NCCL settings and CPU binding",
        "Many GPUs together lose more than the bound allows, and no device stands out: a setting, or the workload's "
        "input, is more likely. The probes tell NVLink and network bandwidth.",
    ),
    "regression": CauseKind(
        6, "ISOLATE", "compare with its earlier runs (ddpscale history)",
        "A node reaches less than in its own earlier runs. What was changed on it since? If all nodes have new "
        "software, begin a new baseline.",
    ),
    "throttling": CauseKind(
        6, "ISOLATE", "check cooling, power supply and power caps",
        "Clocks are held down by heat, power supply or board (checks `throttling`, `throttling_under_load`). The "
        "power cap of the SKU itself is no throttling.",
    ),
    "topology": CauseKind(
        6, "ISOLATE", "compare nvidia-smi topo -m with another node's",
        "GPUs and network cards are connected otherwise than on most nodes: a card in the wrong slot, a disabled "
        "switch, ACS. If nodes differ by design, judge each kind as a run of its own.",
    ),
    "software": CauseKind(
        6, "ISOLATE", "install the other nodes' driver, CUDA, NCCL and torch",
        "Driver, CUDA, NCCL or torch differ between nodes, torch has no kernels for these GPUs, or bf16 is not native "
        "(checks `versions`, `kernels`, `bf16`). With one node, or half against half, nobody knows which is right.",
    ),
    "disk": CauseKind(
        6, "ISOLATE", "free disk space where runs are written",
        "Too little space where runs are written, or none in /dev/shm. `--ddp-run-dir` writes elsewhere; `--shm-size` "
        "gives a container more.",
    ),
    "foreign-processes": CauseKind(
        6, "ISOLATE", "end the processes on the GPUs (nvidia-smi)",
        "Somebody else computes on the GPUs: end the processes, or wait for the job's end. Monitoring agents that "
        "hold a context count too.",
    ),
    "mig": CauseKind(
        6, "ISOLATE", "turn MIG off (nvidia-smi -mig 0)",
        "MIG divides a GPU. `nvidia-smi -i GPU -mig 0`, then reset it.",
    ),
    "requirement-not-met": CauseKind(
        6, "ISOLATE", "compare the value with its bound's source",
        "Another requirement failed, such as memory, utilization or energy; a node that is named for it is drained.",
    ),
    "environment": CauseKind(
        6, "CHECK", "unset the variable, or name it in `environment:` of the thresholds",
        "An environment variable of the ranks decides it, so no device is named: with `CUDA_LAUNCH_BLOCKING=1` no "
        "speed is the hardware's, with `NCCL_IB_DISABLE=1` the check `transport` fails on purpose. NCCL also reads "
        "`~/.nccl.conf` and `/etc/nccl.conf`.",
    ),
    "host-bound": CauseKind(
        6, "ISOLATE", "give each rank more CPU cores, or a larger batch",
        "GPUs waited for their host, so the value says nothing of them. A node of which most GPUs wait, while other "
        "nodes keep the bound, is named and drained. Check CPU clocks, NUMA binding, data loaders and foreign load.",
    ),
    "implausible-value": CauseKind(
        6, "CHECK", "check clocks and the thresholds file",
        "It is beyond what the hardware can do: the clock, the SKU or a peak in the thresholds file is wrong.",
    ),
    "undecided": CauseKind(
        6, "CHECK", "measure longer",
        "The interval includes the bound, or `--ddp-budget` ran out. The command measures twice the rounds without a "
        "time limit, of a busy machine the same ones: wait until it is idle. If that does not decide it, the machine "
        "is at its bound: find what makes it scatter.",
    ),
    "interrupted": CauseKind(
        6, "CHECK", "measure the rest",
        "The run was stopped or killed. The command resumes it, on the same machines. Until then no node is drained "
        "or returned.",
    ),
    "error-in-run": CauseKind(
        6, "CHECK", "read the error in report.md and in logs/",
        "Ranks ended in an error that no GPU is blamed for: out of memory, NCCL's time-out, a failed import. The "
        "first rank that failed says most. `ddpscale culprits` lists the node of a rank that stopped or hangs to "
        "inspect.",
    ),
    "not-measured": CauseKind(
        6, "CHECK", "provide what was missing",
        "GPUs, nodes, a reading or a package was missing; the sentence says what. With `--ddp-allow-incomplete` it is "
        "no failure.",
    ),
    "test-failed": CauseKind(
        6, "CHECK", "read its failure in pytest's output",
        "A test of the site's own failed or was skipped for another reason than its verdict.",
    ),
    "run-not-accepted": CauseKind(
        6, "CHECK", "settle that reason: no requirement failed",
        "The run as a whole is not accepted: nodes were not tested, a node was lost and came back, no published bound "
        "covers all devices, or it is simulated.",
    ),
}  # fmt: skip
assert tuple(CAUSES) == get_args(CauseId)

# Check of a node, also of one under load → cause, if it fails.
OF_CHECK: Mapping[str, CauseId] = {
    "gpus": "lost-gpu",
    "processes": "foreign-processes",
    "mig": "mig",
    "ecc": "memory-errors",
    "throttling": "throttling",
    "pcie": "slow-host-link",
    "nvlink": "nvlink-down",
    "topology": "topology",
    "versions": "software",
    "kernels": "software",
    "bf16": "software",
    "disk": "disk",
    "transport": "slow-transport",
}

# Outcome of a requirement that is not met → what became of it, and a noun for one and for several.
UNMET: Mapping[VerdictOutcome, tuple[str, str, str]] = {
    "failed": ("failed", "failure", "failures"),
    "error": ("ended in an error", "error", "errors"),
    "inconclusive": ("undecided", "undecided", "undecided"),
    "not_measured": ("not measured", "not measured", "not measured"),
}
