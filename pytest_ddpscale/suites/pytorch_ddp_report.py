"""What PyTorch's DDP benchmark has shown: its table of each model, and sizes of buckets beside the usual one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from pytest_ddpscale.metrics.rounds import all_groups
from pytest_ddpscale.metrics.step_times import step_time_percentiles_ms
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.variant import Variant
from pytest_ddpscale.suites.ddp_benchmark_table import PERCENTS, BenchmarkRow, benchmark_lines
from pytest_ddpscale.suites.ratio_text import ratio_texts
from pytest_ddpscale.suites.suite import MeasuredSuite, why_missing
from pytest_ddpscale.suites.suite_report import SuiteReport, SuiteSection, SuiteTable
from pytest_ddpscale.verdict.arm_change import throughput, throughput_ratio


def pytorch_ddp_report(measured: MeasuredSuite, usual: Variant) -> SuiteReport:
    """All of it; `usual` are the settings that the benchmark has by itself."""
    evidence, sections, problems, values = measured.evidence, [_configuration(measured)], [], {}
    for study in evidence.plan.studies:
        why = why_missing(evidence, study.id)
        if why:
            problems.append(f"{study.workload.model}: {why}")
        rows = _rows(measured, study, usual)
        if rows:
            sections.append(_section(measured, study, rows, usual))
            values[study.workload.model] = [asdict(row) for row in rows]
    headline = f"PyTorch's DDP benchmark: {len(values)} of {len(evidence.plan.studies)} models measured"
    return SuiteReport(headline, sections, problems, {"benchmarks": values})


def _rows(measured: MeasuredSuite, study: Study, usual: Variant) -> list[BenchmarkRow]:
    """Those of which there are steps."""
    found, evidence = [], measured.evidence
    per_node = evidence.plan.layout.ranks_per_node
    for arm in study.arms:
        if arm.kind == "ddp" and arm.variant != usual:
            continue
        percentiles_ms = step_time_percentiles_ms(all_groups(evidence.columns, study.id, arm, evidence.plan.layout))
        if percentiles_ms:
            machines = max(1, arm.world_size // per_node)
            name = "no ddp" if arm.kind == "alone" else f"{machines}M/{arm.world_size // machines}G"
            s_per_iter = {per_cent: percentiles_ms[per_cent] / 1000.0 for per_cent in PERCENTS}
            found.append(BenchmarkRow(arm.world_size, name, s_per_iter))
    return found


def _section(measured: MeasuredSuite, study: Study, rows: Sequence[BenchmarkRow], usual: Variant) -> SuiteSection:
    listing = "\n".join(benchmark_lines(study.workload.model, study.workload.batch_size, rows))
    tables = [table for table in (_bucket_table(measured, study, usual),) if table.rows]
    return SuiteSection(study.workload.model, listings=[listing], tables=tables)


def _bucket_table(measured: MeasuredSuite, study: Study, usual: Variant) -> SuiteTable:
    """Each size of bucket beside the usual one, on as many ranks."""
    columns = ("bucket_cap_mb", "img/s per GPU", "against 25", "95 % interval")
    largest = max(arm.world_size for arm in study.arms)
    compared = next(arm for arm in study.arms if arm.variant == usual and arm.world_size == largest)
    rows = []
    for arm in study.arms:
        if arm.variant.bucket_cap_mb is None:
            continue
        evidence, confidence = measured.evidence, measured.confidence
        value, ratio = (
            throughput(evidence, study, arm, confidence),
            throughput_ratio(evidence, study, arm, compared, confidence),
        )
        if value is not None and ratio is not None:
            rows.append((f"{arm.variant.bucket_cap_mb:g}", f"{value.value:.1f}", *ratio_texts(ratio)))
    return SuiteTable(columns, rows, f"Bucket sizes on {largest} GPUs")


def _configuration(measured: MeasuredSuite) -> SuiteSection:
    """Versions and topology, which that benchmark prints first."""
    versions = measured.record.versions
    said = [f"PyTorch version: {versions.get('torch', 'unknown')}", f"CUDA version: {versions.get('cuda', 'none')}"]
    backend = "nccl" if measured.evidence.plan.device_type == "cuda" else "gloo"
    topologies = [one.topology for one in measured.evidence.surveys.values() if one.topology][:1]
    return SuiteSection("Configuration", [*said, f"Distributed backend: {backend}"], listings=topologies)
