"""Report of PyTorch's DDP benchmark: its table of each model, and bucket sizes compared with the default."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pytest_ddpscale.compare.ddp_benchmark_file import size_name
from pytest_ddpscale.judge.metrics import merged
from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.plan.arm import Variant
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.report.where_time_goes import step_time_percentiles_ms
from pytest_ddpscale.suites.ddp_benchmark_export import backend_of, exported_files
from pytest_ddpscale.suites.ddp_benchmark_table import (
    NO_DDP,
    PERCENTS,
    BenchmarkRow,
    benchmark_lines,
    benchmark_values,
    overhead_text,
    scaling_table,
)
from pytest_ddpscale.suites.pace import throughput
from pytest_ddpscale.suites.ratio_text import estimate_texts, interval_title, ratio_values, shown_difference
from pytest_ddpscale.suites.suite import MeasuredSuite, why_missing
from pytest_ddpscale.suites.suite_report import SuiteReport, SuiteSection, SuiteTable


class ComparedArm(NamedTuple):
    """An arm under DDP: throughput per GPU, and its ratio to the baseline; `bucket_cap_mb` is None for the default."""

    size: str
    bucket_cap_mb: float | None
    samples_per_s: Found
    ratio: Found

    @property
    def texts(self) -> tuple[str, ...]:
        """The ratio, its interval, and whether they show a difference."""
        return *estimate_texts(self.ratio), shown_difference(self.ratio)


def pytorch_ddp_report(measured: MeasuredSuite, usual: Variant) -> SuiteReport:
    """The whole report; `usual` are the benchmark's default settings."""
    evidence, sections, problems, values = measured.evidence, [_configuration(measured)], [], {}
    for study in evidence.plan.studies:
        why = why_missing(evidence, study.id)
        if why:
            problems.append(f"{study.workload.family.model}: {why}")
        rows = _rows(measured, study, usual)
        if rows:
            compared = list(_compared(measured, study, usual))
            level = interval_title(measured.confidence)
            sections.append(_section(study, rows, compared, level, evidence.plan.device))
            values[study.workload.family.model] = {**benchmark_values(rows), **_ratio_values(compared)}
    headline = f"PyTorch's DDP benchmark: {len(values)} of {len(evidence.plan.studies)} models measured"
    return SuiteReport(headline, sections, problems, {"benchmarks": values}, exported_files(measured, usual))


def _rows(measured: MeasuredSuite, study: Study, usual: Variant) -> list[BenchmarkRow]:
    """Rows of the arms that have steps."""
    found, evidence = [], measured.evidence
    per_node = evidence.plan.layout.ranks_per_node
    for arm in study.arms:
        if arm.kind == "ddp" and arm.variant != usual:
            continue
        percentiles_ms = step_time_percentiles_ms(merged(evidence.columns, study.id, arm, evidence.plan.layout))
        if percentiles_ms:
            name = NO_DDP if arm.kind == "alone" else size_name(arm.world_size, per_node)
            s_per_iter = {per_cent: percentiles_ms[per_cent] / 1000.0 for per_cent in PERCENTS}
            found.append(BenchmarkRow(arm.world_size, name, s_per_iter))
    return found


def _section(
    study: Study, rows: Sequence[BenchmarkRow], compared: Sequence[ComparedArm], level: str, device: str
) -> SuiteSection:  # fmt: skip
    listing = "\n".join(benchmark_lines(study.workload.family.model, study.workload.batch_size, rows))
    rate = f"{study.workload.family.unit}/s per {device}"
    sizes = [(one.size, *one.texts) for one in compared if one.bucket_cap_mb is None]
    buckets = [
        (one.size, f"{one.bucket_cap_mb:g}", f"{one.samples_per_s.value:.1f}", *one.texts)
        for one in compared
        if one.bucket_cap_mb is not None
    ]
    tables = [
        scaling_table(rows),
        SuiteTable(("size", "against no ddp", level, "says"), sizes, f"Throughput per {device}, round by round"),
        SuiteTable(("size", "bucket_cap_mb", rate, "against 25", level, "says"), buckets, "Bucket sizes"),
    ]
    return SuiteSection(
        study.workload.family.model, overhead_text(rows), [one for one in tables if one.rows], [listing]
    )


def _compared(measured: MeasuredSuite, study: Study, usual: Variant) -> Iterator[ComparedArm]:
    """Each size compared with one GPU without DDP, and each bucket size with the default on as many ranks."""
    evidence, confidence = measured.evidence, measured.confidence
    alone = next(arm for arm in study.arms if arm.kind == "alone")
    usual_arms = {arm.world_size: arm for arm in study.arms if arm.variant == usual}
    for arm in study.arms:
        if arm is alone:
            continue
        bucket = arm.variant.bucket_cap_mb
        beside = alone if bucket is None else usual_arms[arm.world_size]
        samples_per_s = throughput(evidence, study, arm, confidence)
        ratio = throughput(evidence, study, arm, confidence, beside)
        if samples_per_s is not None and ratio is not None:
            yield ComparedArm(
                size_name(arm.world_size, evidence.plan.layout.ranks_per_node), bucket, samples_per_s, ratio
            )


def _ratio_values(compared: Sequence[ComparedArm]) -> dict[str, Any]:
    """Ratios as JSON types."""
    found = [
        {"size": one.size, "bucket_cap_mb": one.bucket_cap_mb, "samples_per_s_per_gpu": one.samples_per_s.value,
         **ratio_values(one.ratio)}
        for one in compared
    ]  # fmt: skip
    return {
        "against_no_ddp": [one for one in found if one["bucket_cap_mb"] is None],
        "against_bucket_25": [one for one in found if one["bucket_cap_mb"] is not None],
    }


def _configuration(measured: MeasuredSuite) -> SuiteSection:
    """Versions and topology, which the benchmark prints first."""
    versions = measured.versions
    said = [f"PyTorch version: {versions.get('torch', 'unknown')}", f"CUDA version: {versions.get('cuda', 'none')}"]
    backend = backend_of(measured.evidence.plan.device_type)
    topologies = [one.topology for one in measured.evidence.surveys.values() if one.topology][:1]
    return SuiteSection("Configuration", [*said, f"Distributed backend: {backend}"], listings=topologies)
