"""Comparison of two runs by requirement: rows of verdicts, joined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddpscale.compare.value_change import ValueChange, ValueInterval, change_between
from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.history.past_run import PastRun, past_run
from pytest_ddpscale.plan.metric_catalogue import METRICS, Metric
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.report.digits import ABSENT, number_text
from pytest_ddpscale.report.words.outcome import outcome_word
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import WATERMARK
from pytest_ddpscale.run.verdicts import Verdict, read_judged
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Items, Line, Table, bullets, holds, text_lines
from pytest_ddpscale.util.listing import first_nodes
from pytest_ddpscale.util.printable import one_line

COLUMNS = 100  # of a line
ALIKE = "no difference shown"
_LEAST_SHARE = 1e-6  # smallest lower limit relative to the value, for values that err by factors
_UNMEASURED = ("not_measured", "error")
_TITLES = ("REQUIREMENT", "A", "B", "B ÷ A", "INTERVAL", "RESULT")
# Ordered by their effect on speed.
_SOFTWARE = ("driver", "cuda_driver", "cuda", "torch", "nccl", "process_group", "kernel", "python", "pytest_ddpscale")
_BATCH = {"weak": "batch_size", "strong": "global_batch_size"}  # the batch that stays constant
_OF_WORKLOAD = ("compile", "cudnn_benchmark", "num_classes")
_OF_STUDY = ("rounds", "block_s", "warmup_s")


def read_judged_run(path: Path) -> PastRun:
    """Read a run with its verdicts.

    Raises:
        BadInput: it is not a run directory, contradicts itself, or was not judged.
    """
    run = RunDirectory.open(path)
    return past_run(run, read_judged(run, run))


@dataclass(frozen=True)
class ComparedRequirement:
    """One requirement in both runs: their verdicts, and the change from the first to the second.

    Attributes:
        change: relative to the first value, or a difference if the value may be 0; None if not compared.
        why_not: why it was not compared; empty if it was.
    """

    a: Verdict
    b: Verdict
    change: ValueChange | None = None
    why_not: str = ""

    @property
    def metric(self) -> Metric:
        """What is compared."""
        return METRICS[self.a.metric]

    @property
    def is_ratio(self) -> bool:
        """Whether the change is relative: of what cannot be 0, as a share or a difference of two arms can."""
        return self.metric.scale == "factors" or (self.metric.unit != "fraction" and self.metric.baseline is None)

    @property
    def is_worse(self) -> bool:
        """Whether the second run is certainly worse; of computed results any disagreement is."""
        if self.change is None or self.metric.compares_results:
            return self.change is not None and self.change.size < 0
        return self.change.is_shown and (self.change.size > 0) == self.metric.upper_bound

    @property
    def difference(self) -> str:
        """The change in a word."""
        if self.change is None:
            return "not compared"
        return "worse" if self.is_worse else "better" if self.change.is_shown else ALIKE

    @property
    def is_lost(self) -> bool:
        """Whether the first run has a value but the second has none to compare with it."""
        return self.change is None and _has_value(self.a)

    def is_worse_by(self, share: float) -> bool:
        """Whether the near end of the interval is worse by more than `share` of the first value, or in points.

        Wrong data is worse at any share, because one wrong rank of many is a small share.
        """
        if not self.is_worse or self.change is None or self.metric.compares_results:
            return self.is_worse
        near = self.change.low if self.metric.upper_bound else -self.change.high
        return near > share * (1.0 if self.is_ratio or self.a.unit == "fraction" else abs(self.a.value or 0.0))

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON types; shares and ratios are numbers, not per cent."""
        data = {name: getattr(self.a, name) for name in ("id", "metric", "workload", "world_size", "unit")}
        for letter, verdict in (("a", self.a), ("b", self.b)):
            data |= {f"{name}_{letter}": getattr(verdict, name) for name in ("value", "interval", "place")}
        data |= {name: getattr(self, name) for name in ("is_ratio", "difference", "is_worse", "is_lost", "why_not")}
        return data | {"change": self.change and self.change._asdict()}

    def cells(self) -> tuple[str, ...]:
        """``0.909×`` and ``0.905 … 0.914``; of shares ``+1.2 points``, of other differences ``+1.2 ms``."""
        values = [number_text(side.value or 0.0, side.unit) for side in (self.a, self.b)]
        form, factor, unit = ("{:+.3g}", 1, f" {self.a.unit}")
        if self.is_ratio:
            form, unit = "{:.3f}", "×"
        elif self.a.unit == "fraction":
            form, factor, unit = "{:+.1f}", 100, " points"
        changes = (form.format(factor * (self.is_ratio + x)).replace("-", "−") for x in self.change or ())
        size, low, high = changes
        result = ABSENT if self.difference == ALIKE else self.difference
        return self.a.id, *values, f"{size}{unit}", f"{low} … {high}", result


@dataclass(frozen=True)
class ComparedRuns:
    """A comparison of two runs.

    Attributes:
        confidence: of each interval, 0 … 1.
        requirements: in the order of the first run.
        only_a: ids of requirements that only the first run was judged by.
        only_b: likewise for the second run.
        lost: ids of requirements with a value in the first run but none to compare with it in the second.
    """

    a: PastRun
    b: PastRun
    confidence: float
    requirements: tuple[ComparedRequirement, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    def worse_by(self, share: float) -> list[str]:
        """Ids of the requirements in which the second run is certainly worse by more than `share`."""
        return [requirement.a.id for requirement in self.requirements if requirement.is_worse_by(share)]

    def lines(self) -> Iterator[str]:
        """The answer, the runs, differences of configuration, and each requirement that differs."""
        words = [requirement.difference for requirement in self.requirements if requirement.change]
        worse, better, alike = map(words.count, ("worse", "better", ALIKE))
        answer = " and ".join(["worse"] * bool(worse) + ["better"] * bool(better)) or ALIKE
        yield (
            f"{answer.capitalize()}: of {len(words)} requirements {worse} are worse in B, {better} better, {alike} "
            "show no difference."
        )
        for letter, run in (("A", self.a), ("B", self.b)):
            marks = [WATERMARK] * run.is_simulated + ["imported"] * run.record.is_imported
            text = ", ".join((one_line(run.record.sku), f"{run.record.began:%Y-%m-%d %H:%M} UTC", *marks))
            yield f"{letter}  {one_line(run.path)}: {outcome_word(run.judgement.outcome)}, {text}"
        differ = [
            requirement for requirement in self.requirements if requirement.change and requirement.difference != ALIKE
        ]
        differ.sort(
            key=lambda requirement: (
                not requirement.is_worse,
                -abs(requirement.change.size if requirement.change else 0),
            )
        )
        differences = configuration_differences(self.a, self.b)
        same, others = Line("Configuration: no difference known."), Table(("differs", "A", "B"), differences)
        results, notes = Table(_TITLES, [requirement.cells() for requirement in differ]), self._notes(alike)
        for block, width in ((others if differences else same, COLUMNS), (results, None), (notes, COLUMNS)):
            yield from ["", *text_lines(block, width=width)] * holds(block)

    def _notes(self, alike: int) -> Items:
        by_reason, neither = defaultdict[str, list[str]](list), 0
        for requirement in self.requirements:
            places = [side.place or "all" for side in (requirement.a, requirement.b)]
            if {requirement.a.outcome, requirement.b.outcome} <= {*_UNMEASURED}:
                neither += 1
            elif requirement.change is None:
                by_reason[f"not compared: {requirement.why_not}"].append(requirement.a.id)
            elif places[0] != places[1]:
                by_reason["the worst places: {} in A, {} in B".format(*places)].append(requirement.a.id)
        by_reason |= {
            f"only in {letter}": [*names] for letter, names in (("A", self.only_a), ("B", self.only_b)) if names
        }
        by_itself = any(
            None in (requirement.a.launch_sd, requirement.b.launch_sd)
            for requirement in self.requirements
            if requirement.change
        )
        return bullets([
            *[f"{alike} without a difference: --format=json has each"] * bool(alike),
            *[f"{neither} measured in neither run"] * bool(neither),
            *(f"{reason}: {', '.join(ids)}" for reason, ids in by_reason.items()),
            f"each interval at {percent(self.confidence)} confidence: noise of rounds alone shows a difference in at "
            f"most {percent(1 - self.confidence)} of requirements",
            *["these two launches only: 5 earlier runs in the history would show how launches differ"] * by_itself,
        ])  # fmt: skip

    def json(self) -> dict[str, Any]:
        """One JSON object; shares and ratios are numbers, not per cent."""
        runs = {
            letter: {
                "path": run.path, "sku": run.record.sku, "outcome": run.judgement.outcome,
                "started_at": run.record.started_at, "simulated": run.is_simulated,
                "imported": run.record.is_imported, "hosts": run.hosts, "measurements_sha256": run.digest,
            }
            for letter, run in (("a", self.a), ("b", self.b))
        }  # fmt: skip
        differences = configuration_differences(self.a, self.b)
        return {
            "schema_version": 4, "kind": "runs", "confidence": self.confidence, **runs,
            "configuration": [dict(zip(("name", "a", "b"), difference, strict=True)) for difference in differences],
            "requirements": [row.as_json() for row in self.requirements], "only_a": self.only_a, "only_b": self.only_b,
        }  # fmt: skip


def compare_runs(a: PastRun, b: PastRun, confidence: float) -> ComparedRuns:
    """Compare the second run with the first: the values of the verdicts with their intervals.

    Those that compare the places of a probe are left out: the values of these places are compared by themselves.

    Args:
        a: the first run.
        b: the second run.
        confidence: of each interval; verdicts have their own.

    Raises:
        OptionError: the runs have the same measurements, no requirement in common, or verdicts of another confidence.
    """
    if a.digest == b.digest:
        raise OptionError("RUN_DIR", f"{b.path} has the same measurements as {a.path}", "two runs")
    asked_a, asked_b = (
        {verdict.id: verdict for verdict in run.judgement.verdicts if _has_values(verdict)} for run in (a, b)
    )
    judged = min((verdict.confidence for verdict in (*asked_a.values(), *asked_b.values())), default=confidence)
    if judged != confidence:
        raise OptionError("--confidence", f"found {confidence:g}; the verdicts have {judged:g}", f"{judged:g}",
                          "`pytest --ddp-judge=RUN_DIR --ddp-confidence=C` judges a run again.")  # fmt: skip
    requirements = [
        _compared(verdict, asked_b[name], _why_other_work(verdict, asked_b[name], a, b))
        for name, verdict in asked_a.items()
        if name in asked_b
    ]
    if not any(requirement.change for requirement in requirements):
        why = (
            f"{requirements[0].a.id}: {requirements[0].why_not}" if requirements else "no requirement is common to both"
        )
        raise OptionError("RUN_DIR", f"{a.path} and {b.path} cannot be compared: {why}", "two runs that measured the "
                          "same")  # fmt: skip
    only_a, only_b = (
        tuple(name for name in ours if name not in theirs) for ours, theirs in ((asked_a, asked_b), (asked_b, asked_a))
    )
    lost = [requirement.a.id for requirement in requirements if requirement.is_lost] + [
        name for name in only_a if _has_value(asked_a[name])
    ]
    return ComparedRuns(a, b, confidence, tuple(requirements), only_a, only_b, tuple(lost))


def _has_values(verdict: Verdict) -> bool:
    metric = METRICS[verdict.metric]
    return metric.subject in ("workload", "probe") and not metric.compares_places


def _has_value(verdict: Verdict) -> bool:
    """Whether a value was measured that a later run can lack."""
    return verdict.value is not None and verdict.outcome not in _UNMEASURED


def _compared(a: Verdict, b: Verdict, why_not: str) -> ComparedRequirement:
    blank, reasons, limits = ComparedRequirement(a, b), [why_not] * bool(why_not), list[ValueInterval]()
    for run, verdict in (("A", a), ("B", b)):
        if verdict.value is None or verdict.interval is None or verdict.outcome in _UNMEASURED:
            reasons.append(f"{run}: {verdict.outcome.replace('_', ' ')}: {verdict.reason}")
        elif blank.is_ratio and verdict.value <= 0:
            reasons.append(f"{run}: an impossible value was measured")
        else:
            low = max(verdict.interval[0], _LEAST_SHARE * verdict.value) if blank.is_ratio else verdict.interval[0]
            limits.append(ValueInterval(verdict.value, (low, verdict.interval[1])))
    if reasons:
        return ComparedRequirement(a, b, None, "; ".join(reasons))
    return ComparedRequirement(a, b, change_between(*limits, by_factors=blank.is_ratio))


def _why_other_work(a: Verdict, b: Verdict, run_a: PastRun, run_b: PastRun) -> str:
    """Why two requirements of the same name are not comparable; empty if they are."""
    both: list[tuple[str, Any, Any]] = [
        ("world size", a.world_size, b.world_size), ("one-GPU baseline", a.one_gpu, b.one_gpu),
    ]  # fmt: skip
    if a.compared and b.compared:
        both.append(("reference", a.compared.reference_samples_per_s, b.compared.reference_samples_per_s))
    ours, theirs = (
        next(
            (study.workload.kernels for study in run.evidence.plan.studies if study.workload.name == verdict.workload),
            {},
        )
        for verdict, run in ((a, run_a), (b, run_b))
    )
    if ours and theirs:  # no probe
        both += [(name, ours.get(name), theirs.get(name)) for name in ours | theirs]
    return "; ".join(f"{setting} {one} in A, {other} in B" for setting, one, other in both if one != other)


def configuration_differences(a: PastRun, b: PastRun) -> list[tuple[str, str, str]]:
    """Name, text of A and text of B of all known differences, which may explain a difference before any GPU does.

    What either run does not record is not compared, but a variable may be not set.
    """
    ours, theirs = ({study.id: study for study in run.evidence.plan.studies} for run in (a, b))
    shared = [name for name in ours if name in theirs]
    facts = [dict(_facts(run, [of[name] for name in shared])) for run, of in ((a, ours), (b, theirs))]
    differences = [(name, str(facts[0][name]), str(facts[1].get(name))) for name in facts[0]]
    topologies = [
        {host: survey.topology for host, survey in run.evidence.surveys.items() if survey.topology} for run in (a, b)
    ]
    others = [host for host, topology in topologies[0].items() if topologies[1].get(host, topology) != topology]
    if others:
        differences.append(("topology", f"nvidia-smi topo -m of {first_nodes(others)}", "differs there"))
    for name in sorted({*a.evidence.environment, *b.evidence.environment}):
        of_a, of_b = (run.evidence.environment.get(name, "not set") for run in (a, b))
        differences.append((name, of_a, of_b))
    return [difference for difference in differences if difference[1] != difference[2] and "None" not in difference]


def _facts(run: PastRun, studies: list[Study]) -> Iterator[tuple[str, Any]]:
    """What a run has, by name; None if it is not known. Of several studies or nodes each value once."""
    plan, versions = run.evidence.plan, [*run.versions.values()] or [run.record.versions]
    yield "SKU", run.record.sku
    yield "nodes", f"{len(run.hosts)}: {first_nodes(run.hosts)}" if run.hosts else plan.nodes
    yield "GPUs per node", plan.layout.ranks_per_node
    for name in _SOFTWARE:
        yield (
            name,
            ", ".join(sorted({versions_of_gang[name] for versions_of_gang in versions if name in versions_of_gang}))
            or None,
        )
    for name in ("batch", *_OF_WORKLOAD):
        settings = [
            study.workload.settings.get(_BATCH[study.scaling] if name == "batch" else name) for study in studies
        ]
        yield name, ", ".join(dict.fromkeys(map(str, settings)))
    for name in _OF_STUDY:
        yield name, ", ".join(dict.fromkeys(str(getattr(study, name)) for study in studies))
