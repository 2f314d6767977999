"""The catalogue of causes: what kinds keep a machine from being accepted, how bad each is, and what to do about it.

verdicts.json, reports and docs/how-to/rejected.md name them by id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, get_args

from pytest_ddpscale.run.verdicts import Category, CauseId


class CauseKind(NamedTuple):
    """One kind of cause.

    Attributes:
        severity: 1, wrong results, to 6, no device is at fault: memory errors, lost GPUs, slow links, slow devices
            between.
        category: ``ISOLATE``: drain it now. ``CHECK``: somebody must look before the machine opens. A cause whose
            device is not certain is a CHECK whatever stands here, and one that only warns is ``MONITOR``.
        action: what to do, in the imperative.
    """

    severity: int
    category: Category
    action: str


CAUSES: Mapping[CauseId, CauseKind] = {
    "wrong-data": CauseKind(1, "ISOLATE", "run no job there; dcgmi diag -r 3, then swap the GPU"),
    "memory-errors": CauseKind(2, "ISOLATE", "reset the GPU; swap it if the errors return"),
    "lost-node": CauseKind(3, "CHECK", "check console, power and network"),
    "lost-gpu": CauseKind(3, "ISOLATE", "look for Xid in dmesg; reseat or reset the GPU"),
    "missing-gpus": CauseKind(3, "ISOLATE", "do what the check says; else look for Xid in dmesg, reboot"),
    "gpu-error": CauseKind(3, "ISOLATE", "look for Xid in dmesg; reset the GPU"),
    "slow-node-link": CauseKind(4, "CHECK", "check cable, transceivers and port counters"),
    "slow-gpu-link": CauseKind(4, "CHECK", "check nvidia-smi nvlink -e and topo -m; reseat the GPUs"),
    "slow-host-link": CauseKind(4, "ISOLATE", "check PCIe width (nvidia-smi -q -d PCI); reseat the GPU"),
    "nvlink-down": CauseKind(4, "ISOLATE", "check nvidia-smi nvlink -s; reset or reseat the GPU"),
    "slow-transport": CauseKind(4, "ISOLATE", "check network drivers and NCCL_* variables"),
    "slow-communication": CauseKind(4, "ISOLATE", "check NVLinks, PCIe and network ports"),
    "slow-gpu": CauseKind(5, "ISOLATE", "check power cap, clocks and cooling; reseat or swap the GPU"),
    "slow-node": CauseKind(5, "ISOLATE", "check power caps, clocks, cooling and CPUs"),
    "uniform-loss": CauseKind(6, "CHECK", "check power caps, clocks and software of all nodes"),
    "slow-computing": CauseKind(6, "CHECK", "check power caps, clocks and software of all nodes"),
    "slow-scaling": CauseKind(6, "CHECK", "check links, NCCL settings and CPU binding"),
    "regression": CauseKind(6, "ISOLATE", "compare with its earlier runs (ddpscale history)"),
    "throttling": CauseKind(6, "ISOLATE", "check cooling, power supply and power caps"),
    "topology": CauseKind(6, "ISOLATE", "compare nvidia-smi topo -m with another node's"),
    "software": CauseKind(6, "ISOLATE", "install the other nodes' driver, CUDA, NCCL and torch"),
    "disk": CauseKind(6, "ISOLATE", "free disk space where runs are written"),
    "foreign-processes": CauseKind(6, "ISOLATE", "end the processes on the GPUs (nvidia-smi)"),
    "mig": CauseKind(6, "ISOLATE", "turn MIG off (nvidia-smi -mig 0)"),
    "requirement-not-met": CauseKind(6, "ISOLATE", "compare the value with its bound's source"),
    "environment": CauseKind(6, "CHECK", "unset the variable, or name it in `environment:` of the thresholds"),
    "host-bound": CauseKind(6, "ISOLATE", "give each rank more CPU cores, or a larger batch"),
    "implausible-value": CauseKind(6, "CHECK", "check clocks and the thresholds file"),
    "undecided": CauseKind(6, "CHECK", "measure longer"),
    "interrupted": CauseKind(6, "CHECK", "measure the rest"),
    "error-in-run": CauseKind(6, "CHECK", "read the error in report.md and in logs/"),
    "not-measured": CauseKind(6, "CHECK", "provide what was missing"),
    "test-failed": CauseKind(6, "CHECK", "read its failure in pytest's output"),
    "run-not-accepted": CauseKind(6, "CHECK", "settle that reason: no requirement failed"),
}
assert tuple(CAUSES) == get_args(CauseId)

# Check of a node → cause, if it fails.
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
    "ecc_under_load": "memory-errors",
    "throttling_under_load": "throttling",
    "pcie_under_load": "slow-host-link",
}
