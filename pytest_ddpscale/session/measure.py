"""A session that measures: plans the selection and launches it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import RunDirectoryError, SkuError
from pytest_ddpscale.launch.environment import worker_environment
from pytest_ddpscale.launch.gang_state import STARTUP_S, Limits
from pytest_ddpscale.launch.launcher import Cluster, Launch, container_of, launchers
from pytest_ddpscale.launch.supervisor import Judge, NotAdmitted, Supervisor
from pytest_ddpscale.plan.estimate import estimate
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.planner import PACES, Pace
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.record_lines import Listener, Unfit
from pytest_ddpscale.run.records import RunStart, StudyEnd
from pytest_ddpscale.run.run_directory import new_run_directory
from pytest_ddpscale.run.run_json import Ending, RunRecord, now_iso
from pytest_ddpscale.run.survey_record import Survey, surveys_of
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.session.sources import THIS_MACHINE, EvidenceSource, Machine, Subject
from pytest_ddpscale.settings import LEAVE_OUT, MEASURE, Settings
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase, plan_of_cases
from pytest_ddpscale.thresholds.waiver import today
from pytest_ddpscale.util.listing import alike
from pytest_ddpscale.util.masking import masked_arguments

if TYPE_CHECKING:
    from pytest_ddpscale.run.evidence import Evidence

# Variables that nsys needs in ranks, besides those passed anyway (CUDA_*, LD_PRELOAD).
_OF_NSYS = ("NVTX_*", "NSYS_*", "QUADD_*")


class MeasureSource(EvidenceSource):
    """A run that this session measures on the machine's devices, or plans for assumed ones if they are unknown."""

    def __init__(self, subject: Subject, machine: Machine, layout: Layout) -> None:
        super().__init__(subject, machine, layout)
        self._was_launched = False

    @property
    def named(self) -> str:
        """Name of its run directory, after the time."""
        return self.subject.sku

    def judge_of(self, plan: Plan) -> Judge | None:
        """Decides when a study of the plan has enough rounds; None measures all rounds."""
        from pytest_ddpscale.judge.judge import Decider

        return Decider(plan, self.selected, self.subject.settings.confidence)

    def unfit_of(self, plan: Plan, surveys: Sequence[Survey]) -> dict[str, str]:
        """Unfit nodes and reasons, from the surveys taken before launch."""
        from pytest_ddpscale.judge.checks import unfit_nodes

        found = unfit_nodes(self.selected, plan, surveys_of(surveys), today())
        return {host: say(why) for host, why in found.items()}

    def hopeless_of(self, plan: Plan, surveys: Sequence[Survey]) -> dict[str, str]:
        """Nodes where no rank can run, and reasons."""
        from pytest_ddpscale.judge.checks import unfit_nodes

        found = unfit_nodes(self.selected, plan, surveys_of(surveys), today(), hopeless=True)
        return {host: say(why) for host, why in found.items()}

    def select(self, cases: Sequence[AnyCase]) -> None:
        """Plan what can be measured here."""
        self.selected = list(cases)
        self.plan = self.plan_to_measure = self.plan_for(self.selected)

    def _open(self) -> None:
        self._refuse_wrong_arguments()
        assert self.plan is not None  # select comes first
        run, self._lock = new_run_directory(self.subject.settings.run_dir, self.named)
        subject, is_here = self.subject, self.machine.cluster.launcher == THIS_MACHINE.launcher
        record = RunRecord(
            sku=subject.sku, id=uuid4().hex, status="running", started_at=now_iso(),
            argv=tuple(masked_arguments(subject.site.argv)), again=tuple(subject.command_again(self.machine)),
            thresholds=subject.used, devices_present=self.machine.devices_present, noted=dict(subject.settings.note),
            load=(round(os.getloadavg()[0], 1), os.cpu_count() or 1) if is_here else None,
            versions={"python": platform.python_version(), "pytest": version("pytest"), "pytest_ddpscale": __version__},
        )  # fmt: skip
        # First, so that a run killed from here on is recognised and can be restarted in its directory.
        run.write_json(run.run_json, record)
        run.write_json(run.plan_json, self.plan)
        self.run = self.measured_run = run

    def _refuse_wrong_arguments(self) -> None:
        """Refuse an invalid container, and tests that a machine without GPUs cannot fail.

        Before a run directory is created.
        """
        checks = [case.requirement.check for case in self.selected if isinstance(case, NodeCase)]
        if self.machine.lacks_gpus and "gpus" not in checks:
            raise SkuError(
                f"--gpu-sku={self.subject.sku}", self.machine.silent[0], "a GPU that answers",
                "Without one, only node_check[gpus] can be judged, and it is not selected.",
            )  # fmt: skip
        self._launch_on_nodes()  # refuses a container that cannot be started

    def why_not(self, case: AnyCase) -> str | None:
        """What this machine lacks for a requirement; None if nothing."""
        requirement = case.requirement
        if self.machine.devices is not None and case.world_size > self.machine.devices:
            what = "GPUs" if self.subject.device_type == "cuda" else "ranks"
            return f"needs {case.world_size} {what}; {self.machine.devices} can be used here"
        if requirement.placement == "spread" and self.machine.cluster.nodes == 1 and not self.subject.site.collect_only:
            return "needs several nodes to spread ranks over; there is 1"
        return case.missing or None

    def plan_for(self, cases: Sequence[AnyCase]) -> Plan:
        """The plan for all requirements that can be measured here."""
        measurable = [case for case in cases if self.why_not(case) is None]
        subject, machine = self.subject, self.machine
        nodes = machine.cluster.nodes if machine.devices is not None else 1
        empty = Plan(
            subject.sku, subject.device_type, (),
            nodes=nodes, ranks_per_node=machine.per_node, gpus_asked=machine.gpus_asked,
        )  # fmt: skip
        return plan_of_cases(empty, measurable, self._pace())

    def _pace(self) -> Pace:
        settings, default, rounds = self.subject.settings, PACES[self.subject.device_type], self.subject.settings.rounds
        usual_s = min(default.sustained_s, settings.inactivity_limit_s / 2)  # ranks record nothing in it
        sustained_s = usual_s if settings.warm_up_s is None else settings.warm_up_s
        pace = replace(default, block_s=settings.block_s or default.block_s, sustained_s=sustained_s)
        return replace(pace, rounds=rounds, uncompared_rounds=rounds) if rounds else pace

    def measure(self, listener: Listener) -> None:
        """Measure the plan, once.

        Raises:
            RunDirectoryError: it could not be read after measuring.
        """
        if self.evidence is not None:
            return
        assert self.plan_to_measure is not None
        if self._was_launched:
            path = str(self.measured_run.path)
            raise RunDirectoryError(path, "could not be read after measuring", "", "See the first error.")
        self._was_launched = True
        with self._writing(self.measured_run):
            self._make_room()
            self._launch(self.plan_to_measure, listener)
        self.evidence = self._read(self.measured_run)

    def _make_room(self) -> None:
        """Called before launch; a new run has no old records to set aside."""

    def measured(self, listener: Listener) -> Evidence:
        """The evidence, measured first if necessary."""
        self.measure(listener)
        assert self.evidence is not None
        return self.evidence

    def close(self, status: Ending) -> None:
        """Record how the session ended, and the ranks' hosts, versions and environment."""
        self.measured_run.note(status=status, finished_at=now_iso())

    def remember(self, judgement: Judgement, history_file: Path) -> str:
        """Add this run's results to the history, for comparison with later runs."""
        from pytest_ddpscale.session.past_runs import remember

        return remember(history_file, self.measured_run, judgement, self.evidence)

    def _launch(self, plan: Plan, listener: Listener) -> None:
        settings = self.subject.settings
        unfit: dict[str, str] = {}

        def admit(surveys: Sequence[Survey]) -> str:
            """Why nothing may be launched on these nodes; empty if it may."""
            nonlocal unfit
            unfit = self.unfit_of(plan, surveys)
            if unfit:
                listener(Unfit(unfit))  # now, not hours later in the report
            may_measure = settings.unfit == MEASURE and not self.machine.lacks_gpus
            # Ranks that cannot run would only fail one study after another.
            refused = self.hopeless_of(plan, surveys) if may_measure else unfit
            return "; ".join(alike({host: f"{host}: {why}" for host, why in refused.items()}))

        supervisor = Supervisor(
            self._launch_on_nodes(), self.measured_run, self._limits(plan), listener,
            isolate=settings.is_isolated, judge=self.judge_of(plan), admit=admit,
        )  # fmt: skip
        if not self.measured_run.read_records():
            self.measured_run.append_record(RunStart(id=self.measured_run.read_run().id))
        try:
            supervisor.measure(plan)
        except NotAdmitted as refusal:
            self._without_unfit_nodes(plan, unfit, str(refusal), listener)

    def _limits(self, plan: Plan) -> Limits:
        settings, samples_per_s = self.subject.settings, self.expected_samples_per_s
        expected_s = estimate(plan, isolate=settings.is_isolated, samples_per_s=samples_per_s).most_seconds
        startup_s = max(STARTUP_S, settings.inactivity_limit_s)
        # Several times the expected time, so that a slow machine is measured and not cut off. The time of a whole
        # training run is unknown.
        total_s = None if plan.training_runs else 5 * expected_s + startup_s
        return Limits(
            budget_s=settings.budget_s, inactivity_s=settings.inactivity_limit_s, startup_s=startup_s, total_s=total_s
        )

    def _launch_on_nodes(self) -> Launch:
        return launch_on(self.machine.cluster, self.subject.settings, self.subject.device_type, os.environ)

    def _without_unfit_nodes(self, plan: Plan, unfit: Mapping[str, str], in_words: str, listener: Listener) -> None:
        """Measure on the remaining nodes if requested and possible, else measure nothing."""
        others, run = self.machine.without(unfit), self.measured_run
        # Only for a whole plan: other measurements are compared with earlier ones on all nodes.
        may_choose = self.subject.settings.unfit == LEAVE_OUT and plan is self.plan
        if others is None or others.devices is None or not may_choose:
            ends = [StudyEnd(study, "error", f"nothing was measured: {in_words}") for study in plan.study_ids]
            run.append_records(ends)
            return
        self.machine = others
        run.note(devices_present=others.devices, left_out=dict(unfit))
        self._ask_anew(Layout(others.cluster.nodes, others.devices // others.cluster.nodes))
        self.plan = self.plan_for(self.selected)
        run.write_json(run.plan_json, self.plan)
        # The surveys are already recorded.
        self._launch(replace(self.plan, survey=False), listener)

    def _ask_anew(self, layout: Layout) -> None:
        """Rebuild the cases for fewer nodes: `all` means fewer ranks; cases for more nodes stay, unmeasured."""
        now = {case.id: case for case in self.subject.cases(layout)}
        self.cases = [now.get(case.id, case) for case in self.cases]
        self.selected = [now.get(case.id, case) for case in self.selected]


def launch_on(cluster: Cluster, settings: Settings, device_type: DeviceType, environ: Mapping[str, str]) -> Launch:
    """How to start gangs on these nodes. Raises OptionError if the container cannot be started here."""
    launcher = launchers()[cluster.launcher](settings, environ)
    passed = (*settings.pass_env, *_OF_NSYS) if settings.nvtx else settings.pass_env
    environment = worker_environment(environ, device_type, pass_env=passed)
    container = container_of(settings.container, device_type, launcher.image_arguments)
    return Launch(launcher, environment, cluster.hosts, device_type, container, cluster.nodes)
