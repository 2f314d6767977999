"""All checks by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pytest_ddpscale.checks import gpu_links as links
from pytest_ddpscale.checks import gpus, host, memory_errors, software, throttling
from pytest_ddpscale.checks import nccl_transport as transport
from pytest_ddpscale.checks.finding import Blocks, CheckResult, Finding, NodeEvidence, concluded
from pytest_ddpscale.plan.node_check import NODE_CHECKS, NodeExpectation
from pytest_ddpscale.results.survey_record import Survey
from pytest_ddpscale.results.telemetry_record import Telemetry
from pytest_ddpscale.results.transport_record import Transport

_FIND: dict[str, Callable[[NodeEvidence], dict[str, Finding]]] = {
    "gpus": gpus.gpus,
    "processes": gpus.processes,
    "mig": gpus.mig,
    "ecc": memory_errors.ecc,
    "throttling": throttling.throttling,
    "pcie": links.pcie,
    "nvlink": links.nvlink,
    "versions": software.versions,
    "kernels": software.kernels,
    "bf16": software.bf16,
    "disk": host.disk,
    "clock": host.clock,
    "transport": transport.transport,
    "ecc_under_load": memory_errors.ecc_under_load,
    "throttling_under_load": throttling.throttling_under_load,
    "pcie_under_load": links.pcie_under_load,
}


def check(
    name: str,
    expectation: NodeExpectation,
    surveys: Mapping[str, Survey],
    hosts_planned: int,
    telemetry: Sequence[Telemetry] = (),
    transports: Sequence[Transport] = (),
    blocks: Blocks | None = None,
    post_mortems: Sequence[Survey] = (),
) -> CheckResult:
    """One check of all nodes.

    Args:
        name: in the catalogue `NODE_CHECKS`.
        expectation: what nodes have to be.
        surveys: host → what it is.
        hosts_planned: how many nodes there should be; of one that is missing nothing is known.
        telemetry: what GPUs said while they worked; only checks under load read it.
        transports: what NCCL said; only the check of transports reads it.
        blocks: (host, GPU UUID) → blocks that it took part in; only checks under load read it. Without it nobody knows
            whether telemetry is missing.
        post_mortems: what GPUs were after ranks had failed.

    Returns:
        ``passed`` if every planned node passes, ``failed`` if any does not; ``not_measured`` if that cannot be told of
        some node, or if the check means nothing without a GPU and ranks train on CPUs.

    Raises:
        KeyError: there is no such check.
    """
    if expectation.device_type == "cpu" and not NODE_CHECKS[name].on_cpu:
        return CheckResult(name, "not_measured", None, f"{NODE_CHECKS[name].title}: means nothing without a GPU")
    evidence = NodeEvidence(expectation, surveys, hosts_planned, telemetry, transports, blocks or {}, post_mortems)
    return concluded(name, _FIND[name](evidence), hosts_planned)


def unfit_hosts(
    names: Iterable[str], expectation: NodeExpectation, surveys: Mapping[str, Survey], hosts_planned: int
) -> dict[str, str]:
    """Nodes to leave out: those that certainly fail a check of their survey, or that could not be looked at.

    A node that may be as it should, because most fail alike or nothing says which of two is the odd one, stays.

    Args:
        names: of checks that a node has to pass; those that read no survey are passed over.
        expectation: what nodes have to be.
        surveys: host → what it is.
        hosts_planned: how many nodes there should be.

    Returns:
        Host → why, in the order of hosts.

    Raises:
        KeyError: there is no such check.
    """
    reasons: dict[str, list[str]] = {}
    asked = [name for name in names if NODE_CHECKS[name].reads == "survey"]
    for name in asked:
        for culprit in check(name, expectation, surveys, hosts_planned).culprits:
            if culprit.is_certain:
                gpu = "" if culprit.gpu_index is None else f"GPU {culprit.gpu_index}: "
                reasons.setdefault(culprit.host, []).append(f"{name}: {gpu}{culprit.evidence}")
    for survey in surveys.values():
        if asked and survey.problem:
            reasons.setdefault(survey.host, []).append(f"it could not be looked at: {survey.problem}")
    return {name: "; ".join(dict.fromkeys(reasons[name])) for name in sorted(reasons)}
