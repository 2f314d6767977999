"""What of the requirements can be measured here, and the plan of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.launch.limits import Limits
from pytest_ddpscale.metrics.probes import expected_ranks
from pytest_ddpscale.plan.estimate import estimate
from pytest_ddpscale.plan.metric import TRAINING_METRICS
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.planner import PACES, Pace, Question, build_plan, load_probes
from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.plan.study import DeviceType, Plan
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.session.cluster import Cluster
from pytest_ddpscale.settings import Settings
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase, training_cases


@dataclass(frozen=True)
class Planning:
    """The nodes there are, and what the user said of how to measure.

    Attributes:
        sku: canonical name.
        device_type: of the SKU.
        settings: pace.
        cluster: the nodes.
        devices: on all of them; None if unknown, as on a laptop that only plans.
        gpus_asked: that each node should have, if that is more than there are.
        plans_only: nothing will be measured.
    """

    sku: str
    device_type: DeviceType
    settings: Settings
    cluster: Cluster
    devices: int | None
    gpus_asked: int | None
    plans_only: bool

    def measurable(self, cases: Sequence[AnyCase]) -> list[AnyCase]:
        """Those for which nothing is lacking."""
        return [case for case in cases if self.why_not(case) is None]

    def why_not(self, case: AnyCase) -> str | None:
        """What this machine lacks for a requirement, or nothing."""
        requirement = case.requirement
        if self.devices is not None and case.world_size > self.devices:
            what = "GPUs" if self.device_type == "cuda" else "ranks"
            return f"needs {case.world_size} {what}; {self.devices} can be used here"
        if requirement.placement == "spread" and self.cluster.nodes == 1 and not self.plans_only:
            return "needs several nodes to spread ranks over; there is 1"
        return case.missing or None

    def plan_for(self, cases: Sequence[AnyCase]) -> Plan:
        """The plan that answers requirements which can be measured."""
        others = [case for case in cases if isinstance(case, NodeCase)]
        probes = [case.probe for case in others if case.probe is not None]
        checks = [case.requirement.check for case in others if case.requirement.check]
        questions = [case.question for case in training_cases(cases)]
        plan = self._plan(questions, probes, survey=bool(checks))
        load = self._load(plan, checks)
        return self._plan(questions, [*probes, *load], survey=True) if load else plan

    def plan_of(self, question: Question) -> Plan:
        """The plan of a single question."""
        return self._plan([question])

    def question(self, metric: str, workloads: dict[str, Workload], workload: str, world_size: int) -> Question:
        """What a test of the site's own asks.

        Raises:
            OptionError: no such metric or workload, or more ranks than there are devices.
        """
        askable = [name for name, definition in TRAINING_METRICS.items() if not definition.takes_versus]
        if metric not in askable:
            raise OptionError("run.samples", f"found metric {metric!r}", f"one of {', '.join(askable)}")
        if workload not in workloads:
            raise OptionError("run.samples", f"found workload {workload!r}", f"one of {', '.join(workloads)}")
        if self.devices is not None and world_size > self.devices:
            raise OptionError("run.samples", f"found world size {world_size}", f"at most {self.devices}")
        return Question(TRAINING_METRICS[metric], workloads[workload], world_size)

    def _plan(self, questions: Sequence[Question], probes: Sequence[Probe] = (), *, survey: bool = False) -> Plan:
        nodes, pace = (self.cluster.nodes if self.devices is not None else 1), self._pace()
        plan = build_plan(
            self.sku, self.device_type, questions, pace,
            nodes=nodes, ranks_per_node=self._per_node, probes=probes, survey=survey,
        )  # fmt: skip
        return replace(plan, gpus_asked=self.gpus_asked)

    def _load(self, plan: Plan, checks: Sequence[str]) -> tuple[Probe, ...]:
        """Probes that checks under load need besides what is measured anyway: every rank has to work, or to talk."""
        read = {NODE_CHECKS[name].reads for name in checks}
        layout, probes = plan.layout, plan.probes.probes if plan.probes else ()
        arms = [arm for study in plan.studies for arm in study.arms]
        probed = [ranks for probe in probes for ranks in expected_ranks(probe, layout)]
        trained = [ranks for arm in arms if arm.kind == "ddp" for ranks in layout.groups(arm)]
        working = {rank for ranks in probed for rank in ranks}.union(layout.ranks(arms))
        talking = {rank for ranks in (*probed, *trained) if len(ranks) > 1 for rank in ranks}
        needs_load = "telemetry" in read and len(working) < layout.world_size
        needs_links = "transport" in read and len(talking) < layout.world_size
        return load_probes(self.device_type, self._per_node or 1) if needs_load or needs_links else ()

    @property
    def _per_node(self) -> int | None:
        return None if self.devices is None else self.devices // self.cluster.nodes

    def _pace(self) -> Pace:
        settings, default = self.settings, PACES[self.device_type]
        pace = replace(default, block_s=settings.block_s or default.block_s)
        return replace(pace, rounds=settings.rounds, uncompared_rounds=settings.rounds) if settings.rounds else pace


def limits_of(plan: Plan, settings: Settings, img_per_s: Mapping[str, float]) -> Limits:
    """How long measuring a plan, and each part of it, may take.

    Args:
        plan: to be measured.
        settings: what the user asked for.
        img_per_s: expected throughput per GPU, by workload name.
    """
    expected_s = estimate(plan, isolate=settings.isolate, img_per_s=img_per_s).most_seconds
    return Limits(
        budget_s=settings.budget_s,
        inactivity_s=settings.inactivity_limit_s,
        startup_s=settings.inactivity_limit_s,
        # Several times what it takes if the machine is as expected: a slow one is to be measured, not cut off.
        total_s=settings.total_limit_s or 5 * expected_s + settings.inactivity_limit_s,
        queue_s=settings.queue_limit_s,
    )
