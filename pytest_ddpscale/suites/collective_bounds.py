"""Requirements of the thresholds on the collectives and pairs of a sweep."""

from __future__ import annotations

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import COLLECTIVES
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.session.open import load_unchanged
from pytest_ddpscale.thresholds.cases import NodeCase, cases_for
from pytest_ddpscale.thresholds.loading import ThresholdsFile


def sweep_cases(thresholds: ThresholdsFile, sku: str, layout: Layout) -> list[NodeCase]:
    """Requirements of a SKU on collectives and pairs that this many ranks can measure."""
    return [
        case
        for case in cases_for(thresholds, sku, layout)
        if isinstance(case, NodeCase) and case.probe is not None and not case.missing
        if not case.requirement.definition.compares_places  # which bounds no bandwidth
        if case.probe.operation.kind in (*COLLECTIVES, "send-recv") and case.probe.world_size <= layout.world_size
    ]


def cases_of_run(record: RunRecord, plan: Plan) -> tuple[list[NodeCase], str]:
    """Requirements on a run's sweep, from the thresholds that it started with.

    Returns:
        The requirements, and why they could not be read (for example because the file changed); else empty.
    """
    used = record.thresholds
    if used is None or plan.probes is None:
        return [], "the run records no thresholds"
    try:
        thresholds = load_unchanged(used)
    except ThresholdsError as error:
        return [], f"{error.where} {error.found}"
    probes = set(plan.probes.arms)
    return [case for case in sweep_cases(thresholds, plan.sku, plan.layout) if case.probe in probes], ""
