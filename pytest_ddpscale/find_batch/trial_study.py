"""The study of a trial: the study of the workload in a run of the SKU, with the tried batch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families import family_of, known_models
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import EXPOSED_COMMUNICATION, THROUGHPUT_PER_GPU, WEAK_SCALING_EFFICIENCY
from pytest_ddpscale.plan.planner import Pace, Question, build_plan
from pytest_ddpscale.plan.study import FEWEST_STEPS_PER_BLOCK, STEPS_BEFORE_TIMING, Plan
from pytest_ddpscale.plan.words import DeviceType, Precision
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.thresholds.cases import cases_for, training_cases
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Sku

STEPS_PER_BLOCK = STEPS_BEFORE_TIMING + FEWEST_STEPS_PER_BLOCK
_SHORTEST_BLOCK_S = 0.01  # so that a block has the fewest steps


def questions_of(file: ThresholdsFile, sku: str, workload: Workload, ranks: int) -> list[Question]:
    """A run's questions on the workload's weak scaling on a node with `ranks` ranks, and one that trains all of them.

    Every number of ranks that trains together has its own gradient buckets and NCCL buffers, for which the batch has to
    leave memory. Strong scaling splits a batch of its own and does not use this one.
    """
    layout = Layout(1, ranks)
    cases = training_cases(cases_for(file, sku, layout))
    asked = [case.question for case in cases if case.workload == workload and not case.missing]
    found = [one for one in asked if _is_asked_here(one, ranks)] or _usual_questions(workload, ranks)
    return [*found, Question(WEAK_SCALING_EFFICIENCY, workload, ranks)] if ranks > 1 else found


def trial_plan(empty: Plan, questions: Iterable[Question], batch: int, steps: int) -> Plan:
    """One study of all arms, each with at least `steps` steps.

    Args:
        empty: a plan without studies, of one node.
        questions: of one workload.
        batch: per GPU, in samples.
        steps: of each arm, including warm-up.
    """
    rounds = max(1, math.ceil(steps / STEPS_PER_BLOCK) - 1)
    pace = Pace(rounds, _SHORTEST_BLOCK_S, 0.0, rounds)
    asked = [replace(one, workload=replace(one.workload, batch_size=batch)) for one in questions]
    return build_plan(empty, asked, pace)


def workload_of(sku: Sku, model: str, precision: Precision, size: int | None, device_type: DeviceType) -> Workload:
    """A workload for any model; other settings are those of the SKU's workload with that model, or defaults.

    Raises:
        OptionError: no family has the model.
    """
    kind = family_of(model)
    if kind is None:
        raise OptionError("--model", f"found {model!r}", known_models())
    alike = next((one for one in sku.workloads.values() if one.family.model == model), None)
    if alike is None:
        alike = Workload("", kind.usual(model, is_cpu=device_type == "cpu"), precision, 1)
    name = f"{model}-{precision}".replace("_", "-")
    return replace(alike, name=name, precision=precision, family=alike.family.sized(size), data="synthetic")


def _is_asked_here(question: Question, ranks: int) -> bool:
    is_weak = question.metric.scaling == "weak" and question.placement == "packed"
    return is_weak and question.world_size <= ranks


def _usual_questions(workload: Workload, ranks: int) -> list[Question]:
    """Questions for two, four … and all ranks, the last also without communication; throughput for a single rank."""
    sizes = [2**power for power in range(ranks.bit_length()) if 1 < 2**power < ranks]
    if ranks == 1:
        return [Question(THROUGHPUT_PER_GPU, workload, 1)]
    return [
        *(Question(WEAK_SCALING_EFFICIENCY, workload, size) for size in (*sizes, ranks)),
        Question(EXPOSED_COMMUNICATION, workload, ranks),
    ]
