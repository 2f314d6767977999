"""The rows of values.csv: what each requirement found, and what none asks for, each device's own pace and probes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from pytest_ddpscale.judge.stats import Estimated, estimate
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
_Place = tuple[str, str, int | None, str]  # place, host, gpu_index and gpu_uuid of a row


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
        low, high = one.interval or (None, None)
        of = one.id, one.metric, one.workload, one.world_size, "", one.place, "", None, "", one.value, low, high
        kind, blocks = next(iter(one.bound)), judgement.is_blocked_by(one)
        yield Row(*of, one.unit, one.rounds, one.outcome, one.code, one.severity, kind, one.bound_value, blocks)
        if one.place and one.id in asked and not asked[one.id].requirement.definition.reads_own_pace:  # of each node
            of_nodes = values_of(evidence, asked[one.id].question) / asked[one.id].constant
            named: list[_Place] = [(host, host, None, "") for host in of_nodes.places]
            yield from _rows(of[:5], named, of_nodes.estimated(one.confidence), one.unit, "", without=one.place)
    plan, confidence = evidence.plan, max((one.confidence for one in judgement.verdicts), default=0.95)
    for study in plan.studies:
        for arm in study.arms:
            measured = evidence.columns.arms.get((study.id, arm.name))
            # Only synthetic data: a slow disk does not make a GPU slower.
            is_own = (
                arm.kind in ("alone", "each") and arm.variant == USUAL and arm.data_of(study.workload) == "synthetic"
            )
            if measured is None or not is_own or study.id in evidence.errors:
                continue
            ours = measured.of(measured.is_of_work(arm.batch_size) & ~measured.single_sample)
            found = estimate(np.where(ours.present, ours.per_second, np.nan).T, "factors", confidence)
            named = [_place(one) for one in ours.ranks.rank_places]
            unit = THROUGHPUT_PER_GPU.unit_of(study.workload.family)
            of_arm = "", THROUGHPUT_PER_GPU.name, study.workload.name, arm.world_size, arm.name
            yield from _rows(of_arm, named, found, unit, digest_of(plan, study, arm))
    probes = plan.probes if plan.probes and plan.probes.id not in evidence.errors else None
    for arm in [arm for arm in probes.arms if arm.operation.is_single_device] if probes else ():
        values, metric = values_of_probe(arm, evidence), METRICS[KINDS[arm.operation.kind].metric]
        found = values.estimated(confidence)
        named = [_place(one.ends[0]) for one in values.places]
        yield from _rows(
            ("", metric.name, arm.kind, arm.world_size, arm.name), named, found, metric.unit, digest_of(plan)
        )


def _place(device: Place) -> _Place:
    return f"{device.number} of {device.host}", device.host, device.index, device.uuid


def _rows(
    what: tuple[str, str, str, int, str], named: Iterable[_Place], found: Estimated, unit: str, digest: str,
    without: str = "",
) -> Iterator[Row]:  # fmt: skip
    """The rows of an arm, one for each place that has a value, but for one place."""
    numbers = np.stack([found.values, *(np.where(found.say_nothing, np.nan, end) for end in (found.low, found.high))])
    cells = numbers.T.astype(object)
    cells[np.isnan(numbers.T)] = None
    for place, (value, low, high), rounds in zip(named, cells.tolist(), found.rounds.tolist(), strict=True):
        if rounds and place[0] != without:
            yield Row(*what, *place, value, low, high, unit, rounds, measured=digest)


def digest_of(plan: Plan, study: Study | None = None, arm: Arm | None = None) -> str:
    """Digest of what a value of an arm depends on, besides its place: a rank's workload and block length.

    On a CPU ranks share a node's cores, idle or not, so their number counts too; it is all that a probe depends on.
    """
    said: dict[str, Any] = {"ranks_per_cpu": plan.layout.ranks_per_node if plan.device_type == "cpu" else None}
    if study is not None and arm is not None:
        workload = study.workload.settings
        for name in ("name", "global_batch_size"):
            workload.pop(name)
        said |= {"workload": {**workload, "batch_size": arm.batch_size}, "block_s": study.block_s}
    return hashlib.sha256(strict_json(dict(sorted(said.items()))).encode()).hexdigest()[:_DIGEST_DIGITS]
