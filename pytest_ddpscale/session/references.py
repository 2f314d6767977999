"""Ratios to another run's measurements: `versus: run:DIR` of a generation_ratio."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median

from pytest_ddpscale.errors import BadInput, ThresholdsError
from pytest_ddpscale.judge.values import samples_of
from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.workload import Workload, incomparable_fields
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.run_opening import open_judged, read_judged
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.thresholds.cases import AnyCase, Case
from pytest_ddpscale.util.listing import first_few


def with_measured_references(cases: Iterable[AnyCase], *, rehearses: bool) -> list[AnyCase]:
    """The cases, with the reference throughput added to those that are compared with a run.

    Args:
        cases: of the run to judge.
        rehearses: whether that run is simulated, and so may be compared with a simulated one.

    Raises:
        ThresholdsError: a run cannot be read, was not accepted, was cut short or simulated, or lacks a comparable
            measurement.
    """
    return [
        _with_reference(case, rehearses=rehearses) if isinstance(case, Case) and _names_a_run(case) else case
        for case in cases
    ]


def refuse_itself(cases: Iterable[AnyCase], run: RunDirectory) -> None:
    """Refuse ratios of a run to itself or to a copy of it, which any machine would pass.

    Raises:
        ThresholdsError: there is such a ratio.
    """
    for case in cases:
        if isinstance(case, Case) and _names_a_run(case):
            other, _ = open_judged(Path(case.requirement.versus_run))
            if other.measurements_sha256() == run.measurements_sha256():
                raise _refused(case, f"it has the same measurements as {run.path}, so it would be compared with itself")


def _names_a_run(case: Case) -> bool:
    return case.requirement.versus_run != "" and not case.missing


def _with_reference(case: Case, *, rehearses: bool) -> Case:
    path = case.requirement.versus_run
    try:
        record, evidence, judgement = _read(path)
    except BadInput as error:
        raise _refused(case, str(error)) from None
    if not record.is_simulated(evidence.columns.devices):
        _refuse_unaccepted(case, record, judgement)
    elif not rehearses:
        raise _refused(case, "it was simulated, not measured")
    asked = replace(case.question, metric=THROUGHPUT_PER_GPU, workload=_comparable(case, evidence))
    values = samples_of(asked, evidence).tolist()
    if not values:
        raise _refused(case, f"it has no throughput of {case.workload.name} in {asked.measured.name}")
    source = f"{record.sku}, median of {len(values)} rounds measured {record.started_at[:10]}, {path}"
    return replace(case, reference_samples_per_s=median(values), reference_source=source)


@cache
def _read(path: str) -> tuple[RunRecord, Evidence, Judgement | None]:
    """A run, or one with verdicts in another directory, such as ``RUN/judged-2``."""
    run, judged = open_judged(Path(path))
    judgement = read_judged(run, judged) if judged.verdicts_json.exists() else None
    return run.read_run(), read_evidence(run), judgement


def _refuse_unaccepted(case: Case, record: RunRecord, judgement: Judgement | None) -> None:
    """Refuse a reference that may be slow or incomplete: nearly any machine is fast beside a faulty one."""
    path = case.requirement.versus_run
    if record.status in ("running", "interrupted"):
        found = "was interrupted" if record.status == "interrupted" else "has not ended, or was killed"
        raise _refused(case, f"it {found}", f"Finish it with `pytest --ddp-resume={path}`, or name another run.")
    if judgement is None:
        raise _refused(case, "it was never judged", f"Judge it with `pytest --ddp-judge={path}`.")
    if judgement.outcome in ("rejected", "incomplete"):
        raise _refused(case, f"it was {judgement.outcome}: {judgement.reason}")
    throughput = [one for one in judgement.verdicts if one.metric == THROUGHPUT_PER_GPU.name and not one.provisional]
    slow = [one.id for one in throughput if one.outcome == "failed"]
    if slow:
        raise _refused(case, f"it was {judgement.outcome}, but it missed {first_few(slow)}, waived or only warning")


def _comparable(case: Case, evidence: Evidence) -> Workload:
    """The run's workload with the same model, image size, format and precision, at any batch."""
    trained = [study.workload for study in evidence.plan.studies if study.scaling == THROUGHPUT_PER_GPU.scaling]
    comparable = [one for one in trained if not incomparable_fields(case.workload, one)]
    if comparable:
        return next((one for one in comparable if one.name == case.workload.name), comparable[0])
    of_this_name = next((one for one in trained if one.name == case.workload.name), None)
    if of_this_name is not None:
        different = ", ".join(incomparable_fields(case.workload, of_this_name))
        raise _refused(case, f"{case.workload.name} differs there in {different}, so no ratio is meaningful")
    raise _refused(case, f"it did not train {case.workload.name}, but {first_few([one.name for one in trained])}")


def _refused(case: Case, why: str, action: str = "Name another run, or a SKU.") -> ThresholdsError:
    return ThresholdsError(
        case.where, f"{case.requirement.metric} versus run {case.requirement.versus_run}: {why}",
        "an accepted run that measured the same model, image size, format and precision", action,
    )  # fmt: skip
