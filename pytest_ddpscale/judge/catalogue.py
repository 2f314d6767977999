"""All checks by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from pytest_ddpscale.judge import gpu_links as links
from pytest_ddpscale.judge import gpus, host, memory_errors, software, throttling
from pytest_ddpscale.judge import nccl_transport as transport
from pytest_ddpscale.judge.finding import CheckResult, Finding, NodeEvidence, concluded
from pytest_ddpscale.judge.from_survey import each_gpu, each_node
from pytest_ddpscale.judge.topology import topology
from pytest_ddpscale.judge.under_load import each_working_gpu
from pytest_ddpscale.plan.node_check import NODE_CHECKS

_FIND: dict[str, Callable[[NodeEvidence], dict[str, Finding]]] = {
    "gpus": gpus.gpus,
    "processes": partial(each_gpu, gpus.processes),
    "mig": partial(each_gpu, gpus.mig),
    "ecc": partial(each_gpu, memory_errors.ecc),
    "throttling": partial(each_gpu, throttling.throttling),
    "pcie": partial(each_gpu, links.pcie),
    "nvlink": partial(each_node, links.nvlink),
    "topology": topology,
    "versions": software.versions,
    "kernels": partial(each_node, software.kernels),
    "bf16": software.bf16,
    "disk": partial(each_node, host.disk),
    "clock": host.clock,
    "transport": transport.transport,
    "ecc_under_load": memory_errors.ecc_under_load,
    "throttling_under_load": partial(each_working_gpu, throttling.throttling_under_load),
    "pcie_under_load": partial(each_working_gpu, links.pcie_under_load),
}


def check(name: str, evidence: NodeEvidence) -> CheckResult:
    """Run one check over all nodes.

    Returns:
        ``passed`` if every planned node passes, ``failed`` if any has a fault, else ``not_measured``; also
        ``not_measured`` if the check needs a GPU and ranks train on CPUs.
    """
    if evidence.expectation.device_type == "cpu" and not NODE_CHECKS[name].on_cpu:
        return CheckResult(name, "not_measured", None, f"{NODE_CHECKS[name].title}: does not apply without a GPU")
    return concluded(name, _FIND[name](evidence), evidence.hosts_planned)


def unfit_hosts(names: Iterable[str], evidence: NodeEvidence) -> dict[str, str]:
    """Nodes to leave out: those that certainly fail a check of their survey, or whose survey failed.

    A node whose fault is uncertain stays: most nodes fail too, or it is unclear which of several is wrong. Checks that
    do not read surveys are ignored.

    Returns:
        Host → reason, sorted by host.
    """
    reasons: dict[str, list[str]] = {}
    asked = [name for name in names if NODE_CHECKS[name].reads == "survey"]
    for name in asked:
        for culprit in check(name, evidence).culprits:
            if culprit.is_certain:
                gpu = "" if culprit.gpu_index is None else f"GPU {culprit.gpu_index}: "
                reasons.setdefault(culprit.host, []).append(f"{name}: {gpu}{culprit.evidence}")
    for survey in evidence.surveys.values():
        if asked and survey.problem:
            reasons.setdefault(survey.host, []).append(f"survey failed: {survey.problem}")
    return {name: "; ".join(dict.fromkeys(reasons[name])) for name in sorted(reasons)}
