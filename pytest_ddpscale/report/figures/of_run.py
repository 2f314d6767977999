"""The figures of a run in order; a figure without data is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpscale.report.figures import maps, step_bars
from pytest_ddpscale.report.figures.cluster_values import pair_bandwidths, slowness_by_gpu
from pytest_ddpscale.report.figures.drawing import WIDE, Drawing, draw
from pytest_ddpscale.report.figures.figure import Figure, Section
from pytest_ddpscale.report.figures.scaling import scaling_panels
from pytest_ddpscale.report.figures.timeline import step_timeline
from pytest_ddpscale.report.profile_text import largest_profiles
from pytest_ddpscale.report.scaling_curves import PLOTS, charted_curves
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import WATERMARK, RunRecord
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.util.tables import Table, html


@dataclass(frozen=True)
class _Content:
    """A figure before it is drawn; its id, title, section and caption are those of `Figure`."""

    id: str
    title: str
    section: Section
    shown: Drawing | Table | None
    caption: str


def figures(evidence: Evidence, judgement: Judgement, run: RunRecord) -> list[Figure]:
    """All figures of a run, drawn from the same values as the verdicts."""
    watermark = WATERMARK if judgement.simulated or run.is_simulated() else ""
    found = [*_of_places(evidence, judgement), *_of_scaling(evidence, judgement), *_of_steps(evidence)]
    return [_drawn(content, judgement.sku, watermark) for content in [*found, *_of_profiles(evidence)]]


def write_pngs(drawn: list[Figure], directory: Path) -> list[Path]:
    """Write each picture beside the page; returns the files. Nothing is written, not even the directory, of none."""
    written = []
    for figure in drawn:
        if figure.png is not None:
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / f"{figure.id}.png"
            path.write_bytes(figure.png())
            written.append(path)
    return written


def _drawn(content: _Content, sku: str, watermark: str) -> Figure:
    shown, title = content.shown, content.title
    if isinstance(shown, Drawing):
        picture = draw(content.id, title, shown, about=sku, watermark=watermark)
        is_wide = shown.width == WIDE
        return Figure(content.id, title, picture.svg, content.caption, content.section, picture.png, is_wide)
    return Figure(content.id, title, html(shown) if shown else "", content.caption, content.section)


def _of_places(evidence: Evidence, judgement: Judgement) -> Iterator[_Content]:
    slowness, pairs = slowness_by_gpu(evidence.columns, evidence.plan), pair_bandwidths(evidence)
    if slowness:
        yield _Content(
            "heat-map", "Step time by node and GPU", "map", maps.heat_map(slowness, judgement.verdicts),
            "Step time without communication relative to the typical GPU; darker is slower, and GPUs at fault are "
            "outlined. The slowest workload counts, and the slowest of nodes that share a row.",
        )  # fmt: skip
    if pairs:
        yield _Content(
            "pair-matrix", "Bandwidth between nodes", "map", maps.pair_matrix(pairs, judgement.verdicts),
            "GB/s of each pair's slowest rail, median over the rounds; darker is slower, and nodes at fault are "
            "outlined; empty was not measured. If nodes share a row, the slowest pair counts.",
        )  # fmt: skip
    slowest = ("slowest-gpus", "Slowest GPUs", maps.slowest_gpus(slowness)), (
        "slowest-pairs", "Slowest pairs", maps.slowest_pairs(pairs))  # fmt: skip
    for key, title, rows in slowest:
        if rows:
            yield _Content(key, title, "map", rows, f"At most {maps.MOST_ROWS}, the slowest first.")


def _of_scaling(evidence: Evidence, judgement: Judgement) -> Iterator[_Content]:
    device = "GPU" if evidence.plan.device_type == "cuda" else "rank"
    for scaling, quantity in PLOTS:
        curves = charted_curves(scaling, quantity, evidence, judgement.verdicts)
        if curves:
            title = f"{scaling.capitalize()} scaling: {quantity.title.format(device=device)}"
            key = f"{scaling}-{quantity.file}"
            yield _Content(key, title, "scaling", *scaling_panels(quantity, curves, device))


def _of_steps(evidence: Evidence) -> Iterator[_Content]:
    columns, plan = evidence.columns, evidence.plan
    found = (
        _Content(
            "where-time-goes", "Where the time goes", "step", step_bars.where_time_goes(columns, plan),
            "A step of the slowest rank in each study's largest arm, median over the rounds, with utilization and "
            "power of the median GPU. The rest includes all parts that were not measured separately.",
        ),
        _Content(
            "step-times", "Step-time distribution", "step", step_bars.step_time_spread(columns, plan),
            "How much longer than the median (left end) steps take, over the raw steps of all ranks and rounds.",
        ),
        _Content(
            "activity", "GPU activity" if plan.device_type == "cuda" else "CPU activity", "telemetry",
            step_bars.activity_bars(columns, plan),
            "Median utilization over the rounds, in the DDP arm in which the device was least busy; the line is at "
            "80 %. NVML counts waiting inside a kernel as busy.",
        ),
    )  # fmt: skip
    yield from (content for content in found if content.shown)


def _of_profiles(evidence: Evidence) -> Iterator[_Content]:
    for number, profile in enumerate(largest_profiles(evidence.profiles), 1):
        timeline = step_timeline(profile)
        if timeline:
            trace = f" Its trace, for Perfetto or chrome://tracing: {profile.trace}" if profile.trace else ""
            yield _Content(
                f"profile-{number}", f"One step of {profile.study}, {profile.arm}", "profile", timeline,
                f"Rank {profile.rank} under torch.profiler, the step of median duration.{trace}",
            )  # fmt: skip
