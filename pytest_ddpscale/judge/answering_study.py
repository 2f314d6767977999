"""The study of a run that answers a question."""

from __future__ import annotations

from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Plan, Scaling, Study
from pytest_ddpscale.plan.workload import Workload


def covers(plan: Plan, question: Question) -> bool:
    """Whether the plan has every arm that the question needs."""
    study = matching_study(plan, question)
    return study is not None and set(question.arms) <= set(study.arms)


def matching_study(plan: Plan, question: Question) -> Study | None:
    """The study of the same training, whatever its workload is called; None if there is none.

    If there are several, the one with most of the needed arms.
    """
    scaling, needed = question.metric.scaling, set(question.arms)
    same = [
        s for s in plan.studies if s.scaling == scaling and not _differences(scaling, s.workload, question.workload)
    ]
    return max(same, key=lambda study: len(needed & set(study.arms)), default=None)


def why_no_study(plan: Plan, question: Question) -> str:
    """The reason for the verdict ``not_measured`` of a question without a study."""
    scaling, workload = question.metric.scaling, question.workload
    near = [s for s in plan.studies if s.scaling == scaling and _is_near(s.workload, workload)]
    if near:
        return f"measured differently: {'; '.join(_differences(scaling, near[0].workload, workload))}"
    return f"{scaling} scaling of {workload.name} was not measured in this run"


def _differences(scaling: Scaling, one: Workload, other: Workload) -> list[str]:
    """``field found, required`` for each field in which the training differs."""
    left_out = ("name", "global_batch_size" if scaling == "weak" else "batch_size")
    both = one.differences(other).items()
    return [f"{field} {found}, required {required}" for field, (found, required) in both if field not in left_out]


def _is_near(one: Workload, other: Workload) -> bool:
    """Whether workloads are probably meant to be the same: equal name, or equal model and precision."""
    return one.name == other.name or (one.family.model, one.precision) == (other.family.model, other.precision)
