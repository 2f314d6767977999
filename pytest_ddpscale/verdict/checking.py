"""A check of the nodes against what was found out about them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from pytest_ddpscale.checks.catalogue import check, unfit_hosts
from pytest_ddpscale.checks.finding import NodeEvidence
from pytest_ddpscale.evidence.columns import ArmColumns
from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.evidence.probe_columns import ProbeColumns
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.survey_record import STUDY_ID, Survey
from pytest_ddpscale.results.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase
from pytest_ddpscale.thresholds.node_expectation import node_expectation


def judge_check(blank: Verdict, case: NodeCase, evidence: Evidence) -> Verdict:
    """The verdict on one check; its value is the share of nodes that pass, which has no error.

    Args:
        blank: on the requirement, ``not_measured``.
        case: the requirement, with its check.
        evidence: what was found out, before the launch and under load.
    """
    name = case.requirement.check
    reads_telemetry = NODE_CHECKS[name].reads == "telemetry"
    of_nodes = evidence.once(("nodes", id(case.sku), reads_telemetry), lambda: _of_nodes(case, evidence))
    found = check(name, of_nodes)
    reason = found.reason
    why_no_survey = evidence.errors.get(STUDY_ID) or evidence.interrupted.get(STUDY_ID)
    if found.outcome == "not_measured" and why_no_survey:
        reason = f"{reason}: {why_no_survey}"
    # Of nodes of which only some could be looked at no share is known.
    share = None if found.outcome == "not_measured" else found.share
    interval = None if share is None else (share, share)
    return replace(
        blank,
        outcome=found.outcome,
        value=share,
        interval=interval,
        rounds=1 if share is not None else 0,
        reason=reason,
        notes=found.notes,
        culprits=found.culprits,
    )


def _of_nodes(case: NodeCase, evidence: Evidence) -> NodeEvidence:
    reads_telemetry = NODE_CHECKS[case.requirement.check].reads == "telemetry"
    return NodeEvidence(
        node_expectation(case.sku, evidence.plan), evidence.surveys, evidence.plan.nodes, evidence.telemetry,
        evidence.transports, _BlocksOfGpus(evidence) if reads_telemetry else {}, evidence.post_mortems,
    )  # fmt: skip


class _BlocksOfGpus(Mapping[tuple[str, str], Collection[tuple[str, str, int]]]):
    """In which blocks each GPU took part, by the names that telemetry has for them; of each GPU when it is asked."""

    def __init__(self, evidence: Evidence) -> None:
        self._measured: list[tuple[str, str, ArmColumns | ProbeColumns]] = []
        self._measured += [(arm.study, arm.arm, arm) for arm in evidence.columns.arms.values()]
        for probe in evidence.probes.values():
            self._measured.append((probe.study, Probe(probe.probe, probe.world_size).id, probe))
        self._gpus = dict.fromkeys(gpu for _, _, blocks in self._measured for gpu in blocks.ranks.by_gpu)

    def __getitem__(self, gpu: tuple[str, str]) -> Collection[tuple[str, str, int]]:
        if gpu not in self._gpus:
            raise KeyError(gpu)
        found: set[tuple[str, str, int]] = set()
        for study, name, blocks in self._measured:
            there = blocks.present[:, blocks.ranks.by_gpu.get(gpu, [])].any(axis=1)
            found.update((study, name, number) for number in blocks.numbers[there].tolist())
        return found

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._gpus)

    def __len__(self) -> int:
        return len(self._gpus)


def unfit_nodes(cases: Iterable[AnyCase], plan: Plan, surveys: dict[str, Survey]) -> dict[str, str]:
    """Nodes that fail a check of severity ``fail`` before anything is launched on them.

    Args:
        cases: that were selected.
        plan: of what is to be launched.
        surveys: host → what it is.

    Returns:
        Host → why.
    """
    checks = [case for case in cases if isinstance(case, NodeCase) and case.requirement.check]
    names = [case.requirement.check for case in checks if case.requirement.severity == "fail"]
    if not checks:
        return {}
    return unfit_hosts(names, NodeEvidence(node_expectation(checks[0].sku, plan), surveys, plan.nodes))
