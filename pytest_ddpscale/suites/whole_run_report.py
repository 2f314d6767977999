"""Report of whole runs: tables, figures, where the time went, and conclusions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pytest_ddpscale.judge.judged import MOST_SKIPPED_STEPS
from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.training_run import TrainingRun
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.suites.suite import MeasuredSuite, why_missing
from pytest_ddpscale.suites.suite_report import SuiteReport, SuiteSection, SuiteTable
from pytest_ddpscale.suites.trained_run import MOST_UNEXPLAINED, SPANS, RunRecords, trained_runs
from pytest_ddpscale.suites.whole_run_judge import TIME, RunVerdict, run_verdicts
from pytest_ddpscale.suites.whole_run_tables import (
    WholeRunSeries,
    WholeRunSize,
    bottleneck,
    compared_efficiency_table,
    conclusions,
    efficiency_table,
    figures,
    gain_table,
    result_table,
    time_table,
)
from pytest_ddpscale.util.digits import percent

_PARTS = (
    "Complete time is the sum of disjoint spans on rank 0's clock: start-up (from the beginning of the launch to the "
    "first epoch), compilation, training, validation, and waiting for data (blocked in the loader's next()). "
    "Unexplained is the rest on the launching side's clock, from starting the gang to its report of the end; at most "
    "{most} is allowed."
)
_EPOCHS = (
    "Throughput includes waiting for data, at the pace of the slowest rank; its mean leaves out the first epoch. "
    "Accuracy counts every validation image once, over all ranks."
)


def whole_run_report(measured: MeasuredSuite) -> SuiteReport:
    """The whole report."""
    runs = trained_runs(measured.evidence)
    complete = [one for one in runs if one.is_complete]
    series = series_of(complete, measured.evidence.plan.device)
    problems = [f"{one.run.id}: {problem}" for one in runs if (problem := problem_of(one, measured))]
    wrongs = {one.run.id: wrongs for one in complete if (wrongs := wrongs_of(one))}
    verdicts = run_verdicts(runs, list(wrongs), measured.confidence)
    failures = [f"{run}: {wrong}" for run, found in wrongs.items() for wrong in found]
    failures += [verdict_text(one) for one in verdicts if one.outcome != "passed"]
    sections = [SuiteSection("What was trained", _configuration(runs))]
    if verdicts:
        sections.append(_required(verdicts))
    if series:
        said = [line for one in series for line in conclusions(one, _deadline_s(runs, one.name))]
        sections += [
            SuiteSection("Conclusions", [*said, *bottleneck(series), *_largest_part(complete)]),
            _results(series),
        ]
    if complete:
        sections += [_time_parts(complete), _epochs(complete, measured.evidence.plan.unit)]
    values = {"runs": [_values(one) for one in runs], "data_sets": [_series_values(one) for one in series],
              "verdicts": [asdict(one) for one in verdicts]}  # fmt: skip
    return SuiteReport(_headline(runs, complete, series), sections, problems, values, failures=failures)


def series_of(complete: Sequence[RunRecords], device: str) -> list[WholeRunSeries]:
    """Runs by data set and world size; of several launches the median by complete time.

    Runs of one epoch are left out, because they have no throughput.
    """
    by_name: dict[str, dict[int, list[RunRecords]]] = {}
    of_name: dict[str, TrainingRun] = {}
    for one in complete:
        if one.samples_per_s is not None:
            of_name[one.run.name] = one.run
            by_name.setdefault(one.run.name, {}).setdefault(one.run.world_size, []).append(one)
    return [
        WholeRunSeries(
            name,
            [_size(_by_time(runs)) for _, runs in sorted(sizes.items())],
            device,
            of_name[name].samples.train_samples,
            THROUGHPUT_PER_GPU.unit_of(of_name[name].workload.family),
        )
        for name, sizes in by_name.items()
    ]


def _by_time(runs: Sequence[RunRecords]) -> list[RunRecords]:
    return sorted(runs, key=lambda one: one.complete_s)


def _size(launches: Sequence[RunRecords]) -> WholeRunSize:
    one = launches[(len(launches) - 1) // 2]
    assert one.samples_per_s is not None
    reserved = one.most_bytes("reserved_bytes")
    gigabytes = None if reserved is None else reserved / 1e9
    return WholeRunSize(one.run.world_size, one.complete_s, one.samples_per_s, gigabytes, one.run.iterations)


def problem_of(one: RunRecords, measured: MeasuredSuite) -> str:
    """Why a run is not complete; empty if it is."""
    if one.is_complete:
        return ""
    why = why_missing(measured.evidence, one.run.id) or "its end was not recorded"
    return f"{why.rstrip('.')}; {len(one.epochs)} of {one.run.epochs} epochs were trained"


def wrongs_of(one: RunRecords) -> list[str]:
    """Why a complete run is invalid: replicas differ, too many steps were skipped, or too much time is unexplained."""
    wrong = differing_replicas(one)
    if one.skipped_steps > MOST_SKIPPED_STEPS * len(one.losses):
        wrong.append(
            f"{skipped_text(one)}; at most {percent(MOST_SKIPPED_STEPS)} is allowed: train more epochs, or in bf16"
        )
    if abs(one.unexplained) > MOST_UNEXPLAINED:
        wrong.append(
            f"{percent(one.unexplained, 1)} of the {one.outer_s:.4g} s since its launch are unexplained; at most "
            f"{percent(MOST_UNEXPLAINED)} is allowed"
        )
    return wrong


def differing_replicas(one: RunRecords) -> list[str]:
    """A sentence if a complete run's ranks ended with different parameters; empty otherwise."""
    assert one.end is not None
    checksums = [rank.parameters_checksum for rank in one.end.ranks]
    return [f"the ranks' parameters differ at the end: {', '.join(checksums)}"] if len({*checksums}) > 1 else []


def skipped_text(one: RunRecords) -> str:
    """How many optimizer steps of a complete run the loss scaler skipped."""
    return f"loss scaling skipped {one.skipped_steps} of {len(one.losses)} optimizer steps"


def _deadline_s(runs: Sequence[RunRecords], name: str) -> float | None:
    """The time bound of a data set's largest size, used as a deadline that smaller sizes may also meet."""
    largest = max((one.run for one in runs if one.run.name == name), key=lambda run: run.world_size)
    return largest.most_s


def _required(verdicts: Sequence[RunVerdict]) -> SuiteSection:
    rows = [
        (one.run, one.metric, _value_text(one, one.value),
         " … ".join(_value_text(one, end) for end in one.interval or ()) or ABSENT,
         f"{'at most' if one.metric == TIME else 'at least'} {_value_text(one, one.bound)}", one.outcome, one.asked_by)
        for one in verdicts
    ]  # fmt: skip
    said = (
        "A run passes nothing if it is incomplete, its replicas differ, or too much time is unexplained. One launch "
        "has no interval: it shows how long this run took, not the next one; use --launches 3 for an interval."
    )
    columns = ("Run", "Metric", "Value", "Interval over launches", "Required", "Outcome", "Asked by")
    return SuiteSection("Requirements", [said], [SuiteTable(columns, rows)])


def verdict_text(one: RunVerdict) -> str:
    """Why a verdict is not a pass, in a sentence."""
    asked = f"{'at most' if one.metric == TIME else 'at least'} {_value_text(one, one.bound)} ({one.asked_by})"
    if one.value is None:
        return f"{one.run}: {one.metric} was not measured; {asked} is required"
    return f"{one.run}: {one.metric} {_value_text(one, one.value)}, {one.outcome}; {asked} is required"


def _value_text(one: RunVerdict, value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:.4g} s" if one.metric == TIME else percent(value, 2)


def _headline(runs: Sequence[RunRecords], complete: Sequence[RunRecords], series: Sequence[WholeRunSeries]) -> str:
    of = runs[0].run
    what = f"Whole runs of {of.workload.family.model} in {of.workload.precision}, {of.epochs} epochs"
    found = [f"{one.name}: {one.shortest_s:.4g} s on {one.counted(one.fastest)} at best" for one in series]
    missing = len(runs) - len(complete)
    return f"{what}: {'; '.join([*found, *([f'{missing} of {len(runs)} not complete'] if missing else [])])}"


def _configuration(runs: Sequence[RunRecords]) -> list[str]:
    of = runs[0].run
    sets = dict.fromkeys(samples_text(one.run) for one in runs)
    rates = dict.fromkeys(f"{one.run.learning_rate:.3g} at {one.run.global_batch}" for one in runs)
    return [
        f"{of.workload.family.model}, {of.workload.precision}, {of.workload.family.image_size} pixels, "
        f"{of.workload.batch_size} images per rank, {of.epochs} epochs; torch.compile: {of.compile_mode}; "
        "under DistributedDataParallel at every size.",
        *sets,
        f"{of.optimizer}, learning rate by global batch ({of.rule}): {', '.join(rates)}; seed {of.seed}.",
    ]


def samples_text(run: TrainingRun) -> str:
    """The data set in a sentence."""
    samples = run.samples
    kind = {"made": "images made in memory", "mnist": "MNIST", "folder": samples.path}[samples.kind]
    return (
        f"{samples.name}: {samples.train_samples} images to train, {samples.validation_samples} to validate, "
        f"{samples.classes} classes ({kind})."
    )


def _results(series: Sequence[WholeRunSeries]) -> SuiteSection:
    tables = []
    for one in series:
        title = f"{one.name}: complete training time, throughput, memory"
        tables += [result_table(one, title), efficiency_table(one)]
        if len(one.sizes) > 1:
            tables += [gain_table(one), time_table(one)]
    if len(series) > 1:
        tables.append(compared_efficiency_table(series))
    relative = [f"{one.name}: relative to {one.counted(one.sizes[0].gpus)}." for one in series if one.sizes[0].gpus > 1]
    return SuiteSection("Scaling", relative, tables, figures=figures(series))


def _time_parts(complete: Sequence[RunRecords]) -> SuiteSection:
    names = [name.removesuffix("_s").replace("_", "-") for name in SPANS]
    rows = [
        (one.run.id, f"{one.complete_s:.2f}", *(f"{one.spans_s[name]:.2f}" for name in SPANS), f"{one.outer_s:.2f}",
         percent(one.unexplained, 2))
        for one in complete
    ]  # fmt: skip
    table = SuiteTable(("Run", "Complete s", *names, "outer clock", "unexplained"), rows)
    return SuiteSection("Where the time went", [_PARTS.format(most=percent(MOST_UNEXPLAINED))], [table])


def _epochs(complete: Sequence[RunRecords], unit: str) -> SuiteSection:
    rows = [
        (one.run.id, str(epoch.epoch + 1), f"{epoch.samples_per_s:.4g}", f"{epoch.mean_loss:.4g}",
         percent(epoch.accuracy, 2), f"{epoch.validation_samples_per_s:.4g}")
        for one in complete
        for epoch in one.epochs
    ]  # fmt: skip
    rate = f"{unit}/s"
    columns = ("Run", "Epoch", f"Training {rate}", "Mean loss", "Accuracy", f"Validation {rate}")
    held = [
        (one.run.id, f"{one.end.parameters:,}", f"{one.end.trainable_parameters:,}",
         *(_gigabytes(one.most_bytes(name)) for name in ("allocated_bytes", "reserved_bytes")))
        for one in complete
        if one.end is not None
    ]  # fmt: skip
    memory = ("Run", "Parameters", "Trainable", "Allocated GB", "Reserved GB")
    skipped = [f"{one.run.id}: {skipped_text(one)}." for one in complete if one.skipped_steps]
    return SuiteSection(
        "Epochs", [_EPOCHS, *skipped], [SuiteTable(columns, rows), SuiteTable(memory, held, "Model and memory")]
    )


def _gigabytes(number: float | None) -> str:
    return ABSENT if number is None else f"{number / 1e9:.3g}"


def _largest_part(complete: Sequence[RunRecords]) -> list[str]:
    """The largest part of complete time besides training, at each data set's largest size."""
    largest: dict[str, RunRecords] = {}
    for one in complete:
        if one.run.name not in largest or one.run.world_size > largest[one.run.name].run.world_size:
            largest[one.run.name] = one
    said = []
    for name, one in largest.items():
        others = {part: seconds for part, seconds in one.spans_s.items() if part != "training_s"}
        part = max(others, key=lambda key: others[key])
        what = part.removesuffix("_s").replace("_", " ").replace("waiting", "waiting for data")
        said.append(
            f"{name} on {one.run.world_size}: training takes {percent(one.spans_s['training_s'] / one.complete_s)} of "
            f"the complete time; the largest other part is {what}, {percent(others[part] / one.complete_s)}."
        )
    return said


def _series_values(one: WholeRunSeries) -> dict[str, Any]:
    return {
        "name": one.name,
        "saturation": one.saturation,
        "sweet_spot": one.sweet_spot,
        "fastest": one.fastest,
        "most_efficient": one.most_efficient,
        "sizes": [
            {"gpus": fact.gpus, "complete_s": fact.train_s, "samples_per_s": fact.samples_per_s,
             "speedup": fact.speedup, "efficiency": fact.efficiency, "gain": fact.gain, "saved_share": fact.saved_share}
            for fact in one.facts
        ],
    }  # fmt: skip


def _values(one: RunRecords) -> dict[str, Any]:
    found: dict[str, Any] = {
        "run": one.run.id, "world_size": one.run.world_size, "data_set": one.run.samples.name,
        "launch": one.run.launch, "is_complete": one.is_complete, "global_batch": one.run.global_batch,
        "learning_rate": one.run.learning_rate,
        "epochs": [
            {"samples_per_s": epoch.samples_per_s, "loss": epoch.mean_loss,
             "accuracy": epoch.accuracy, "validation_samples_per_s": epoch.validation_samples_per_s}
            for epoch in one.epochs
        ],
    }  # fmt: skip
    if one.is_complete and one.end is not None:
        found |= {
            "complete_s": one.complete_s, "spans_s": dict(one.spans_s), "outer_s": one.outer_s,
            "unexplained": one.unexplained, "samples_per_s": one.samples_per_s, "parameters": one.end.parameters,
            "trainable_parameters": one.end.trainable_parameters, "skipped_steps": one.skipped_steps,
            "allocated_bytes": one.most_bytes("allocated_bytes"),
            "reserved_bytes": one.most_bytes("reserved_bytes"),
        }  # fmt: skip
    return found
