"""The rows of values.csv: what each requirement found, and what none asks for, each device's own pace and probes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from pytest_ddpscale.judge.stats import OF_LAUNCH, Estimated, estimate
from pytest_ddpscale.judge.values import values as values_of
from pytest_ddpscale.judge.values import values_of_probe
from pytest_ddpscale.plan.arm import USUAL, Arm
from pytest_ddpscale.plan.metric_catalogue import METRICS, THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.thresholds.cases import Case, cases_of, training_cases

_DIGEST_DIGITS = 12
_NOT_WORK = "name", "global_batch_size"


class Row(NamedTuple):
    """One value of one place.

    Attributes:
        requirement: its id; empty where none asks.
        workload: workload or probe.
        arm: that was measured; empty of a requirement, which may compare two.
        place: that decides a requirement, in words; or the node, device, group or pair that was measured.
        host: with NVML's index and UUID of a device, on a CPU the local rank and ``cpu``; empty where a place decides.
        value: in `unit`, with its interval.
        outcome: of the verdict, at the place that decides it; empty elsewhere, as are then the next five.
        code: why it has its outcome: `Verdict.code`.
        blocks: whether it keeps the machine from being accepted.
        measured: digest of all that a value depends on beside its place; equal digests may be compared.
    """

    requirement: str
    metric: str
    workload: str
    world_size: int
    arm: str
    place: str
    host: str
    gpu_index: int | None
    gpu_uuid: str
    value: float | None
    low: float | None
    high: float | None
    unit: str
    rounds: int
    outcome: str = ""
    code: str = ""
    severity: str = ""
    bound_kind: str = ""
    bound: float | None = None
    blocks: bool | None = None
    measured: str = ""


def rows_of(judgement: Judgement, evidence: Evidence) -> Iterator[Row]:
    """All rows of a run: the numbers of the place that decides a requirement are its verdict's own."""
    asked = dict[str, Case]()
    with suppress(ValueError):  # an earlier version compiled them
        asked = {case.id: case for case in training_cases(cases_of(judgement.requirements))}
    for one in judgement.verdicts:
        what, case = (one.id, one.metric, one.workload, one.world_size, ""), asked.get(one.id)
        kind, (low, high) = next(iter(one.bound)), one.interval or (None, None)
        yield Row(
            *what, one.place, "", None, "", one.value, low, high, one.unit, one.rounds,
            one.outcome, one.code, one.severity, kind, one.bound_value, judgement.is_blocked_by(one),
        )  # fmt: skip
        if one.place and case and not case.requirement.definition.reads_own_pace:
            of_nodes = values_of(evidence, case.question) / case.constant
            rows = _rows(what, map(Place, of_nodes.places), of_nodes.estimated(one.confidence), one.unit)
            yield from (row for row in rows if row.place != one.place)
    plan, confidence = evidence.plan, max((one.confidence for one in judgement.verdicts), default=0.95)
    for study in plan.studies:
        unit = THROUGHPUT_PER_GPU.unit_of(study.workload.family)
        for arm in study.arms if study.id not in evidence.errors else ():
            measured = evidence.columns.arms.get((study.id, arm.name))
            # Only synthetic data: a slow disk does not make a GPU slower.
            is_own = arm.variant == USUAL and arm.data_of(study.workload) == "synthetic"
            if measured is not None and is_own and arm.kind in ("alone", "each"):
                of_launch = OF_LAUNCH * (plan.device_type == "cuda")
                found = estimate(measured.per_second.T, "factors", confidence, of_launch=of_launch)
                what = "", THROUGHPUT_PER_GPU.name, study.workload.name, arm.world_size, arm.name
                yield from _rows(what, measured.ranks.rank_places, found, unit, digest_of(plan, study, arm))
    for arm in plan.probes.arms if plan.probes and plan.probes.id not in evidence.errors else ():
        if arm.operation.is_single_device:
            values, metric = values_of_probe(arm, evidence), METRICS[KINDS[arm.operation.kind].metric]
            what, places = ("", metric.name, arm.kind, arm.world_size, arm.name), (one.ends[0] for one in values.places)
            yield from _rows(what, places, values.estimated(confidence), metric.unit, digest_of(plan))


def _rows(
    what: tuple[str, str, str, int, str], places: Iterable[Place], found: Estimated, unit: str, digest: str = ""
) -> Iterator[Row]:
    """The rows of an arm, one for each node or device that has a value."""
    ends = (np.where(found.say_nothing, np.nan, end) for end in (found.low, found.high))
    cells = np.stack([found.values, *ends], axis=1).astype(object)
    cells[cells != cells] = None  # NaN
    for at, (value, low, high), rounds in zip(places, cells.tolist(), found.rounds.tolist(), strict=True):
        name = at.host if at == Place(at.host) else f"{at.number} of {at.host}"
        if rounds:
            yield Row(*what, name, at.host, at.index, at.uuid, value, low, high, unit, rounds, measured=digest)


def digest_of(plan: Plan, study: Study | None = None, arm: Arm | None = None) -> str:
    """Digest of what a value of an arm depends on, besides its place: a rank's workload and block length.

    On a CPU ranks share a node's cores, idle or not, so their number counts too; it is all that a probe depends on.
    """
    said: dict[str, Any] = {"ranks_per_cpu": plan.layout.ranks_per_node if plan.device_type == "cpu" else None}
    if study is not None and arm is not None:
        workload = {name: one for name, one in study.workload.settings.items() if name not in _NOT_WORK}
        said |= {"workload": workload | {"batch_size": arm.batch_size}, "block_s": study.block_s}
    return hashlib.sha256(strict_json(dict(sorted(said.items()))).encode()).hexdigest()[:_DIGEST_DIGITS]
