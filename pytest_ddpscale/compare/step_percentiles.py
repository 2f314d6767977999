"""Percentiles of the step time of both runs, as PyTorch's own DDP benchmark compares two of its runs.

Source: github.com/pytorch/pytorch, benchmarks/distributed/ddp/diff.py. All raw steps of all ranks, rounds and launches
of an arm are one sample; examples per second are per GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pytest_ddpscale.compare.compared_run import ComparedRun
from pytest_ddpscale.judge.rounds import all_groups
from pytest_ddpscale.judge.step_times import step_time_percentiles_ms
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Study

PERCENTS_COMPARED = (50, 75, 90, 95)
_MS_PER_S = 1000.0


class StepPercentile(NamedTuple):
    """One percentile in both runs.

    Attributes:
        difference: share by which a step takes less time in B than in A; positive is faster.
    """

    per_cent: int
    a_s_per_iter: float
    b_s_per_iter: float
    a_examples_per_s: float
    b_examples_per_s: float
    difference: float


class StepPercentiles(NamedTuple):
    """Percentiles of one arm, without intervals, because pooled steps are not independent.

    Attributes:
        workload: its name in the first run.
        scaling: ``weak`` or ``strong``.
        arm: name of the first run's arm.
    """

    workload: str
    scaling: str
    arm: str
    world_size: int
    batch_size: int
    percentiles: tuple[StepPercentile, ...]


def step_percentiles(a: ComparedRun, b: ComparedRun) -> tuple[StepPercentiles, ...]:
    """Percentiles of each arm with raw steps and the same batch in both runs: alone, under DDP, or inference."""
    return tuple(_of_all_arms(a, b))


def _of_all_arms(a: ComparedRun, b: ComparedRun) -> Iterator[StepPercentiles]:
    others = {_work(study): study for study in _studies(b)}
    for study in _studies(a):
        other = others.get(_work(study))
        for arm in study.arms if other else ():
            twin = next((one for one in other.arms if _is_twin(one, arm)), None) if other else None
            if other is None or twin is None or not (arm.infers or arm.kind in ("alone", "ddp")):
                continue
            of_a, of_b = _percentiles_s(a, study, arm), _percentiles_s(b, other, twin)
            if of_a and of_b:
                yield StepPercentiles(
                    study.workload.name, study.scaling, arm.name, arm.world_size, arm.batch_size,
                    tuple(step_percentile(p, of_a[p], of_b[p], arm.batch_size) for p in PERCENTS_COMPARED),
                )  # fmt: skip


def _studies(run: ComparedRun) -> list[Study]:
    return [study for study in run.evidence.plan.studies if study.launch == 1]


def _work(study: Study) -> tuple[object, ...]:
    return (study.scaling, study.workload.name, *study.workload.kernels.values())


def _is_twin(one: Arm, other: Arm) -> bool:
    return (one.kind, one.world_size, one.placement, one.batch_size) == (
        other.kind, other.world_size, other.placement, other.batch_size,
    )  # fmt: skip


def step_percentile(per_cent: int, a_s: float, b_s: float, batch: int) -> StepPercentile:
    """One percentile from its seconds in both runs, with `batch` samples per step and GPU."""
    return StepPercentile(per_cent, a_s, b_s, batch / a_s, batch / b_s, (a_s - b_s) / a_s)


def _percentiles_s(run: ComparedRun, study: Study, arm: Arm) -> dict[int, float]:
    """Seconds by percentile; empty if no round kept its raw steps."""
    evidence = run.evidence
    twins = [one for one in evidence.plan.studies if (one.scaling, one.workload) == (study.scaling, study.workload)]
    measured = [all_groups(evidence.columns, one.id, arm, evidence.plan.layout) for one in twins]
    return {per_cent: ms / _MS_PER_S for per_cent, ms in step_time_percentiles_ms(*measured).items()}
