"""What of the requirements can be measured here, and the plan of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.limits import Limits
from pytest_ddpscale.plan.estimate import estimate
from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU, TRAINING_METRICS
from pytest_ddpscale.plan.planner import PACES, Pace, Question
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.session.sources import Machine, Subject
from pytest_ddpscale.settings import Settings
from pytest_ddpscale.thresholds.cases import AnyCase, training_cases
from pytest_ddpscale.thresholds.planned_cases import plan_of_cases


@dataclass(frozen=True)
class Planning:
    """What is asked, and what there is to measure."""

    subject: Subject
    machine: Machine

    def why_not(self, case: AnyCase) -> str | None:
        """What this machine lacks for a requirement, or nothing."""
        requirement = case.requirement
        if self.machine.devices is not None and case.world_size > self.machine.devices:
            what = "GPUs" if self.subject.device_type == "cuda" else "ranks"
            return f"needs {case.world_size} {what}; {self.machine.devices} can be used here"
        if requirement.placement == "spread" and self.machine.cluster.nodes == 1 and not self.subject.site.collect_only:
            return "needs several nodes to spread ranks over; there is 1"
        return case.missing or None

    def plan_for(self, cases: Sequence[AnyCase], more: Sequence[Question] = ()) -> Plan:
        """The plan that answers those requirements for which nothing is lacking, and further questions."""
        measurable = [case for case in cases if self.why_not(case) is None]
        subject, machine = self.subject, self.machine
        nodes = machine.cluster.nodes if machine.devices is not None else 1
        empty = Plan(
            subject.sku, subject.device_type, (),
            nodes=nodes, ranks_per_node=machine.per_node, gpus_asked=machine.gpus_asked,
        )  # fmt: skip
        return plan_of_cases(empty, measurable, self._pace(), more)

    def question(self, metric: str, workload: str, world_size: int) -> Question:
        """What a test of the site's own asks.

        Raises:
            OptionError: no such metric or workload, or more ranks than there are devices.
        """
        askable = [name for name, definition in TRAINING_METRICS.items() if not definition.takes_sku]
        if metric not in askable:
            raise OptionError("run.samples", f"found metric {metric!r}", f"one of {', '.join(askable)}")
        workloads = self.subject.thresholds.thresholds.skus[self.subject.sku].workloads
        if workload not in workloads:
            raise OptionError("run.samples", f"found workload {workload!r}", f"one of {', '.join(workloads)}")
        if self.machine.devices is not None and world_size > self.machine.devices:
            raise OptionError("run.samples", f"found world size {world_size}", f"at most {self.machine.devices}")
        return Question(TRAINING_METRICS[metric], workloads[workload], world_size)

    def _pace(self) -> Pace:
        settings, default = self.subject.settings, PACES[self.subject.device_type]
        pace = replace(default, block_s=settings.block_s or default.block_s)
        return replace(pace, rounds=settings.rounds, uncompared_rounds=settings.rounds) if settings.rounds else pace


def expected_img_per_s(cases: Sequence[AnyCase]) -> dict[str, float]:
    """Throughput of one GPU that the thresholds expect, by workload; for estimates of time only."""
    training = [case.requirement for case in training_cases(cases)]
    throughput = [requirement for requirement in training if requirement.definition is THROUGHPUT_PER_GPU]
    return {r.workload: r.source.measured or r.bound for r in throughput if r.world_size == 1}


def limits_of(plan: Plan, settings: Settings, img_per_s: Mapping[str, float]) -> Limits:
    """How long measuring a plan, and each part of it, may take, with this throughput per GPU of each workload."""
    expected_s = estimate(plan, isolate=settings.isolate, img_per_s=img_per_s).most_seconds
    return Limits(
        budget_s=settings.budget_s,
        inactivity_s=settings.inactivity_limit_s,
        startup_s=settings.inactivity_limit_s,
        # Several times what it takes if the machine is as expected: a slow one is to be measured, not cut off.
        total_s=settings.total_limit_s or 5 * expected_s + settings.inactivity_limit_s,
        queue_s=settings.queue_limit_s,
    )
