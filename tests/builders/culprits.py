"""Culprits."""

from __future__ import annotations

from typing import Any

from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.verdicts import Culprit

SAID = because("text")  # its sentence is the evidence
SLOW = "1.31× the median of 15 peers in 9 of 9 rounds"


def gpu(host: str = "node7", index: int = 3, evidence: str = SLOW, uuid: str = "", **changes: Any) -> Culprit:
    """A GPU that is to blame."""
    uuid = uuid or f"GPU-{index:08x}-77aa-4be1-9d0f-1f0c2d9f6a3b"
    return Culprit("gpu", (Place(host, None, uuid, index),), SAID, evidence=evidence, **changes)


def node(host: str, evidence: str = "its 8 GPUs at 1.20× the median of the other nodes", **changes: Any) -> Culprit:
    """A node that is to blame."""
    return Culprit("node", (Place(host),), SAID, evidence=evidence, **changes)


def link(*hosts: str, evidence: str = "all-reduce with n9 at 0.02 GB/s, its other pairs at 1.1 GB/s") -> Culprit:
    """A link between nodes that is to blame."""
    return Culprit("link", tuple(map(Place, hosts)), SAID, evidence=evidence)
