"""One acceptance session in the pytest process: what is asked, measured and concluded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_ddpscale.errors import OptionError, RunDirectoryError, SkuError
from pytest_ddpscale.launch.supervisor import Limits, Listener, Supervisor
from pytest_ddpscale.launch.torchrun import TorchrunLauncher
from pytest_ddpscale.packaged import packaged
from pytest_ddpscale.plan.metric import METRICS
from pytest_ddpscale.plan.planner import PACES, Pace, Question, build_plan
from pytest_ddpscale.plan.study import DeviceType, Plan
from pytest_ddpscale.results.run_directory import RunDirectory, broken_file
from pytest_ddpscale.results.run_record import (
    SIMULATED_NOTE,
    finish_run,
    is_simulated,
    new_run_directory,
    now_iso,
    start_run,
)
from pytest_ddpscale.settings import AUTO, Settings
from pytest_ddpscale.sku.detection import Gpu, has_driver, visible_gpus
from pytest_ddpscale.sku.matching import resolve_sku
from pytest_ddpscale.thresholds.cases import Case, cases_for, device_type
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.verdict.deciding import Decider
from pytest_ddpscale.verdict.evaluation import judge, samples_of
from pytest_ddpscale.verdict.evidence import Evidence, read_evidence
from pytest_ddpscale.verdict.matching import covers
from pytest_ddpscale.verdict.outcome import conclude
from pytest_ddpscale.verdict.verdict import Judgement, Verdict

DEFAULT_NAME = "thresholds.yaml"


@dataclass(frozen=True)
class Site:
    """Where the session runs and by what it judges.

    Attributes:
        settings: what the user asked for.
        rootdir: pytest's root directory.
        invocation_dir: where pytest was started.
        argv: the command line, for the record.
        collect_only: nothing will be measured, so no device is needed.
    """

    settings: Settings
    rootdir: Path
    invocation_dir: Path
    argv: tuple[str, ...] = ()
    collect_only: bool = False


@dataclass
class AcceptanceSession:
    """State of one session; made by `open_session`.

    Attributes:
        site: settings and place.
        thresholds: the file judged by.
        sku: canonical SKU name.
        cases: every requirement of the SKU.
        devices: GPUs (CPU: ranks) that may be used; None if unknown, as on a laptop that only plans.
        judged_run: the run directory of an earlier run, when judging without measuring.
    """

    site: Site
    thresholds: ThresholdsFile
    sku: str
    cases: list[Case]
    devices: int | None
    judged_run: RunDirectory | None
    selected: list[Case] = field(default_factory=list)
    plan: Plan | None = None
    run: RunDirectory | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    _evidence: Evidence | None = None
    _extra_launches: int = 0
    _was_launched: bool = False

    @property
    def device_type(self) -> DeviceType:
        """``cpu`` or ``cuda``."""
        return device_type(self.thresholds.thresholds.skus[self.sku])

    @property
    def expected_img_per_s(self) -> dict[str, float]:
        """Throughput of one GPU that the thresholds expect, by workload; for estimates of time only."""
        throughput = [c.requirement for c in self.cases if c.requirement.metric == "throughput_per_gpu"]
        return {r.workload: r.source.measured or r.bound for r in throughput if r.world_size == 1}

    def select(self, cases: Sequence[Case]) -> None:
        """Settle what is asked, and plan exactly that.

        Raises:
            RunDirectoryError: the run that is to be judged is broken.
        """
        self.selected = list(cases)
        measurable = [case.question for case in self._measurable(cases)]
        self.plan = self.judged_run.read_plan() if self.judged_run else self._plan_for(measurable)

    def open_run(self) -> None:
        """Make the run directory and record what is about to happen.

        Raises:
            RunDirectoryError: it cannot be written, or the run that is to be judged is broken.
        """
        assert self.plan is not None  # select comes first
        if self.judged_run is not None:
            self._evidence = read_evidence(self.judged_run)  # refuses a broken run before any item runs
            self.run = _judging_directory(self.judged_run, self.site.settings.run_dir)
            return
        self.run = new_run_directory(self.site.settings.run_dir, self.sku)
        self.run.write_json(self.run.plan_json, self.plan.as_json())
        thresholds = self.thresholds
        start_run(self.run, self.sku, self.site.argv, thresholds.path, thresholds.sha256, self.devices)

    def needs_measuring(self) -> bool:
        """Whether the next verdict has to wait for a measurement."""
        return self._evidence is None

    def measure(self, listener: Listener) -> None:
        """Measure the whole plan, once."""
        assert self.plan is not None
        assert self.run is not None
        if self._was_launched:
            raise RunDirectoryError(str(self.run.path), "could not be read after measuring", "", "See the first error.")
        self._was_launched = True
        self._launch(self.plan, listener)
        self._evidence = read_evidence(self.run)

    def judge(self, case: Case, listener: Listener) -> Verdict:
        """The verdict on one requirement, measured first if it has not been."""
        if case.id not in self.verdicts:
            self.verdicts[case.id] = self._verdict(case, listener)
        return self.verdicts[case.id]

    def samples(self, metric: str, workload: str, world_size: int, listener: Listener) -> list[float]:
        """Per-round values of a metric, in its unit, whether any requirement asks for it or not.

        Raises:
            OptionError: no such metric or workload, or more ranks than there are devices.
        """
        question = self._question(metric, workload, world_size)
        evidence = self._evidence_for(question, listener)
        return [sample.value for sample in samples_of(question, evidence)]

    def conclude(self, *, interrupted: bool, spoiled: Sequence[str]) -> Judgement:
        """All verdicts and what they come to.

        Args:
            interrupted: the session was cut short.
            spoiled: names of items that were skipped, or failed for something else than their verdict.
        """
        for case in self.selected:
            if case.id not in self.verdicts:
                self.verdicts[case.id] = self._late_verdict(case, interrupted)
        verdicts = tuple(self.verdicts[case.id] for case in self.cases if case.id in self.verdicts)
        outcome, reason = conclude(verdicts, len(self.cases), interrupted)
        if spoiled and outcome in ("accepted", "partial"):
            outcome, reason = (
                "incomplete",
                f"{len(spoiled)} test items were skipped or failed otherwise: {', '.join(spoiled)}",
            )
        present, used = self._devices_present(), self.plan.world_size if self.plan else 0
        if outcome == "accepted" and present > used:
            idle = present - used
            outcome, reason = "partial", f"{reason}, but {idle} of {present} GPUs took no part in any of them"
        if outcome in ("accepted", "partial") and self._is_simulated:
            outcome, reason = "incomplete", f"simulated: no machine was measured ({reason})"
        return Judgement(self.sku, outcome, reason, verdicts, self._notes(), self._basis())

    @property
    def _is_simulated(self) -> bool:
        if self.judged_run is None:
            return False
        devices = {one.device for one in self._evidence.measurements} if self._evidence else set()
        return is_simulated(self.judged_run.read_run(), devices)

    def _devices_present(self) -> int:
        """GPUs of the machine that was measured, whether an arm used them or not; 0 if unknown, or on a CPU."""
        present = self.judged_run.read_run().get("devices_present") if self.judged_run else self.devices
        return present if isinstance(present, int) and self.device_type != "cpu" else 0

    def _basis(self) -> dict[str, str]:
        """By which thresholds, on which measurements and when this was judged."""
        source = self.judged_run or self.run
        assert source is not None
        return {
            "judged_at": now_iso(),
            "thresholds_path": str(self.thresholds.path),
            "thresholds_sha256": self.thresholds.sha256,
            "measurements_path": str(source.measurements_jsonl),
            "measurements_sha256": source.measurements_sha256(),
        }

    def close_run(self, status: str) -> None:
        """Record how the session ended; an earlier run that was judged keeps its record."""
        if self.run is not None and self.judged_run is None:
            finish_run(self.run, status)

    def _notes(self) -> tuple[str, ...]:
        if self.judged_run is None:
            return ()
        notes = self.judged_run.read_run().get("notes")
        kept = tuple(map(str, notes)) if isinstance(notes, list) else ()
        if self._is_simulated and SIMULATED_NOTE not in kept:
            kept = (SIMULATED_NOTE, *kept)
        return (f"judged from {self.judged_run.path}, nothing was measured", *kept)

    def _measurable(self, cases: Sequence[Case]) -> list[Case]:
        return [c for c in cases if self.devices is None or c.requirement.world_size <= self.devices]

    def _plan_for(self, questions: Sequence[Question]) -> Plan:
        return build_plan(self.sku, self.device_type, questions, self._pace())

    def _pace(self) -> Pace:
        settings, default = self.site.settings, PACES[self.device_type]
        return replace(default, rounds=settings.rounds or default.rounds, block_s=settings.block_s or default.block_s)

    def _verdict(self, case: Case, listener: Listener) -> Verdict:
        if self.judged_run is None and not self._measurable([case]):
            return self._judged_without_data(case, f"needs {case.requirement.world_size} {self._devices_word()}")
        return judge(case, self._evidence_for(case.question, listener), self.site.settings.confidence)

    def _late_verdict(self, case: Case, interrupted: bool) -> Verdict:
        """Of a case whose test never asked: from what is there, without measuring."""
        if self._evidence is not None:
            return judge(case, self._evidence, self.site.settings.confidence)
        if self.run is not None and self.plan is not None and self.run.measurements_jsonl.exists():
            return judge(case, read_evidence(self.run), self.site.settings.confidence)
        return self._judged_without_data(case, "the session was interrupted" if interrupted else "its test did not ask")

    def _judged_without_data(self, case: Case, reason: str) -> Verdict:
        nothing = Evidence(Plan(self.sku, self.device_type, ()), (), {})
        return replace(judge(case, nothing, self.site.settings.confidence), reason=reason)

    def _devices_word(self) -> str:
        what = "GPUs; {} can be used here" if self.device_type == "cuda" else "ranks; {} can be used here"
        return what.format(self.devices)

    def _question(self, metric: str, workload: str, world_size: int) -> Question:
        workloads = self.thresholds.thresholds.skus[self.sku].workloads
        if metric not in METRICS or METRICS[metric].takes_versus:
            askable = [name for name, definition in METRICS.items() if not definition.takes_versus]
            raise OptionError("run.samples", f"found metric {metric!r}", f"one of {', '.join(askable)}")
        if workload not in workloads:
            raise OptionError("run.samples", f"found workload {workload!r}", f"one of {', '.join(workloads)}")
        if self.devices is not None and world_size > self.devices:
            raise OptionError("run.samples", f"found world size {world_size}", f"at most {self.devices}")
        return Question(METRICS[metric], workloads[workload], world_size)

    def _evidence_for(self, question: Question, listener: Listener) -> Evidence:
        """Evidence that covers a question, by a further launch if the plan did not foresee it."""
        if self._evidence is None:
            self.measure(listener)
        assert self._evidence is not None
        if self.judged_run is None and not covers(self._evidence.plan, question):
            self._measure_outside_the_plan(question, listener)
        return self._evidence

    def _measure_outside_the_plan(self, question: Question, listener: Listener) -> None:
        assert self._evidence is not None
        assert self.run is not None
        self._extra_launches += 1
        extra = self._plan_for([question])
        named = tuple(
            replace(s, workload=replace(s.workload, name=f"{s.workload.name}-extra{self._extra_launches}"))
            for s in extra.studies
        )
        whole = replace(self._evidence.plan, studies=(*self._evidence.plan.studies, *named))
        self.run.write_json(self.run.plan_json, whole.as_json())
        self._launch(replace(extra, studies=named), listener)
        self._evidence = read_evidence(self.run)

    def _launch(self, plan: Plan, listener: Listener) -> None:
        assert self.run is not None
        settings = self.site.settings
        limits = Limits(settings.budget_s, settings.inactivity_limit_s)
        judge = Decider(plan, self.selected, settings.confidence)
        launcher = TorchrunLauncher()
        Supervisor(launcher, self.run, limits, listener, isolate=settings.isolate, judge=judge).measure(plan)


def open_session(site: Site) -> AcceptanceSession:
    """Load thresholds and find out which SKU this is.

    Raises:
        BadInput: thresholds, SKU, options or the run to be judged are not usable.
    """
    settings = site.settings
    thresholds = load_thresholds(_thresholds_path(site))
    judged = RunDirectory.open(settings.judge) if settings.judge else None
    sku = _judged_sku(thresholds, settings, judged) if judged else None
    gpus: list[Gpu] = []
    if sku is None:
        gpus = [] if _needs_no_gpu(thresholds, site) else _gpus(settings.gpu_sku)
        sku = resolve_sku(thresholds, settings.gpu_sku, gpus, require_devices=not site.collect_only)
    kind = device_type(thresholds.thresholds.skus[sku])
    devices = None if judged else _devices(settings, kind, len(gpus), site.collect_only)
    return AcceptanceSession(site, thresholds, sku, cases_for(thresholds, sku), devices, judged)


def _needs_no_gpu(thresholds: ThresholdsFile, site: Site) -> bool:
    """Whether NVML need not be asked, so that a broken driver stops neither planning nor the CPU."""
    asked = site.settings.gpu_sku
    if asked == AUTO:
        return False
    sku = thresholds.thresholds.skus[thresholds.sku_name(asked)]
    return site.collect_only or sku.detect.device == "cpu"


def _gpus(asked: str) -> list[Gpu]:
    """The GPUs here. A driver without a GPU is a fault, and no reason to accept the CPU instead.

    Raises:
        SkuError: NVML is broken, or ``auto`` finds a driver and no GPU.
    """
    gpus = visible_gpus()
    if asked == AUTO and not gpus and has_driver():
        raise SkuError(
            "--gpu-sku=auto", "an NVIDIA driver is loaded, but no GPU is visible", "at least one GPU",
            "Look at nvidia-smi and CUDA_VISIBLE_DEVICES; to measure the CPU all the same, write --gpu-sku=cpu.",
        )  # fmt: skip
    return gpus


def _thresholds_path(site: Site) -> Path:
    if site.settings.thresholds is not None:
        return site.settings.thresholds
    here = [folder / DEFAULT_NAME for folder in (site.invocation_dir, site.rootdir)]
    return next((path for path in here if path.is_file()), None) or packaged(DEFAULT_NAME)


def _judged_sku(thresholds: ThresholdsFile, settings: Settings, judged: RunDirectory) -> str:
    """The SKU that was measured; a run is never judged by another one's thresholds."""
    measured = judged.read_run().get("sku")
    if not isinstance(measured, str):
        raise broken_file(judged.run_json, "names no SKU")
    if settings.gpu_sku == AUTO:
        return thresholds.sku_name(measured, where=str(judged.run_json))
    asked = thresholds.sku_name(settings.gpu_sku)
    if asked != thresholds.thresholds.canonical_name(measured):
        raise SkuError(
            "--gpu-sku", f"{asked} is asked for, but {judged.path} was measured on {measured}", measured,
            f"Leave --gpu-sku out, or write --gpu-sku={measured}.",
        )  # fmt: skip
    return asked


def _devices(settings: Settings, kind: DeviceType, gpus: int, collect_only: bool) -> int | None:
    """How many ranks fit, and whether what was asked fits among them."""
    if kind == "cuda" and gpus == 0 and collect_only:
        present: int | None = settings.gpus_per_node
    elif kind == "cuda":
        present = gpus
    else:
        present = settings.gpus_per_node or len(os.sched_getaffinity(0))
    if present is None:
        return None
    what = "GPUs are visible" if kind == "cuda" else "CPU cores can be used"
    if settings.gpus_per_node is not None and settings.gpus_per_node > present:
        raise OptionError(
            "--ddp-gpus-per-node", f"found {settings.gpus_per_node}, but {present} {what}", f"at most {present}"
        )
    usable = settings.gpus_per_node or present
    too_large = [size for size in settings.world_sizes or () if size > usable]
    if too_large:
        hint = f"On CPU, --ddp-gpus-per-node={too_large[-1]} lets ranks share cores." if kind == "cpu" else ""
        raise OptionError("--ddp-world-sizes", f"found {too_large[-1]}, but {usable} {what}", f"at most {usable}", hint)
    return usable


def _judging_directory(judged: RunDirectory, asked: Path | None) -> RunDirectory:
    """Where the verdicts of a judged run go: never over verdicts that somebody may have signed."""
    if asked is not None:
        return RunDirectory.create(asked)
    if not judged.verdicts_json.exists():
        _check_writable(judged)
        return judged
    number = 1
    while (judged.path / f"judged-{number}").exists():
        number += 1
    return RunDirectory.create(judged.path / f"judged-{number}")


def _check_writable(run: RunDirectory) -> None:
    if not os.access(run.path, os.W_OK):
        raise RunDirectoryError(
            str(run.path), "cannot be written", "a writable directory", "Name one with --ddp-run-dir."
        )
