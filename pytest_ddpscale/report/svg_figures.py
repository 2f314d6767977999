"""The figures of report.html in order; a figure without data is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape

from pytest_ddpscale.plan.study import Plan, Scaling
from pytest_ddpscale.report import svg_bars, svg_maps
from pytest_ddpscale.report.profile_text import largest_profiles
from pytest_ddpscale.report.scaling_curves import EFFICIENCY, OVERVIEW, PLOTS, THROUGHPUT, Quantity, charted_curves
from pytest_ddpscale.report.svg_axes import BAD
from pytest_ddpscale.report.svg_scaling import generation_table, scaling_chart, weak_table
from pytest_ddpscale.report.svg_timeline import step_timeline
from pytest_ddpscale.run.columns import Columns
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import WATERMARK, RunRecord
from pytest_ddpscale.run.verdicts import Judgement

# In the middle of each picture, so that it cannot be cropped away.
_WATERMARK = (
    f'<text class="watermark" x="50%" y="120" text-anchor="middle" font-size="20" font-weight="bold" '
    f'fill="{BAD}" fill-opacity="0.4" textLength="400" lengthAdjust="spacingAndGlyphs">{escape(WATERMARK)}</text>'
)


@dataclass(frozen=True)
class Figure:
    """One picture, or a table where a table is clearer.

    Attributes:
        id: unique among the figures, for links.
        title: plain text, not escaped; so is `caption`.
        svg: safe markup: SVG or HTML, with everything from outside escaped.
        caption: what the picture shows and how to read it.
    """

    id: str
    title: str
    svg: str
    caption: str


def figures(evidence: Evidence, judgement: Judgement, run: RunRecord) -> list[Figure]:
    """All figures of a run, drawn from the same values as the verdicts."""
    columns, plan = evidence.columns, evidence.plan
    found = [*_of_scaling(evidence, judgement), *_of_steps(columns, plan), *_of_places(evidence)]
    found += _of_profiles(evidence)
    shown = [figure for figure in found if figure.svg]
    if judgement.simulated or run.is_simulated():
        # No name can contain the tag, because names are escaped.
        shown = [replace(figure, svg=figure.svg.replace("</svg>", f"{_WATERMARK}</svg>")) for figure in shown]
    return shown


def _of_scaling(evidence: Evidence, judgement: Judgement) -> Iterator[Figure]:
    plan, device = evidence.plan, "GPU" if evidence.plan.device_type == "cuda" else "rank"
    curves = {
        panel: charted_curves(*panel, evidence, judgement.verdicts) for panel in dict.fromkeys((*PLOTS, *OVERVIEW))
    }
    charts = {panel: scaling_chart(_key(*panel), *panel, some, device) for panel, some in curves.items()}
    panels = [_again(_key(*panel), charts[panel]) for panel in OVERVIEW]
    layout = "display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,max(18rem,40%)),1fr))"
    overview = f'<div class="overview" style="{layout}">{"".join(panels)}</div>' if any(panels) else ""
    how = "Points are the judged values, bars their intervals; sizes without a requirement are estimated alike."
    yield Figure("scaling-overview", "Scaling overview", overview, how)
    for scaling, quantity in PLOTS:
        title = f"{scaling.capitalize()} scaling: {quantity.title.format(device=device)}"
        yield Figure(_key(scaling, quantity), title, charts[scaling, quantity], how)
    yield Figure(
        "weak-table", "Weak scaling",
        weak_table(plan, judgement.sku, curves["weak", THROUGHPUT], curves["weak", EFFICIENCY]),
        "Fixed batch per GPU: images per second of one GPU, and the efficiency of many.",
    )  # fmt: skip
    yield Figure(
        "generation-table", "Generation comparison", generation_table(judgement),
        "Images per second per GPU here, and as published for the reference.",
    )  # fmt: skip


def _key(scaling: Scaling, quantity: Quantity) -> str:
    return f"{scaling}-{quantity.file}"


def _again(key: str, chart: str) -> str:
    """A second copy of a chart in the page, with other ids; in the markup, the ids come before any name."""
    for part in ("title", "desc"):
        chart = chart.replace(f"{key}-{part}", f"overview-{key}-{part}", 2)
    return chart


def _of_steps(columns: Columns, plan: Plan) -> Iterator[Figure]:
    yield Figure(
        "where-time-goes", "Where the time goes", svg_bars.where_time_goes("where-time-goes", columns, plan),
        "A step of the slowest rank in each study's largest arm, median over the rounds, with utilization and power of "
        "the median GPU. The rest includes all parts that were not measured separately.",
    )  # fmt: skip
    yield Figure(
        "step-times", "Step-time distribution", svg_bars.step_time_spread("step-times", columns, plan),
        "How much longer than the median (left end) steps take, over the raw steps of all ranks and rounds.",
    )  # fmt: skip
    yield Figure(
        "activity", "GPU activity" if plan.device_type == "cuda" else "CPU activity",
        svg_bars.activity_bars("activity", columns, plan),
        "Median utilization over the rounds, in the DDP arm in which the device was least busy; the line is at 80 %. "
        "NVML counts waiting inside a kernel as busy.",
    )  # fmt: skip


def _of_places(evidence: Evidence) -> Iterator[Figure]:
    slowness = svg_maps.slowness_by_gpu(evidence.columns, evidence.plan)
    yield Figure(
        "heat-map", "Step time by node and GPU", svg_maps.heat_map("heat-map", slowness),
        "Step time without communication relative to the typical GPU; darker is slower. "
        "The slowest workload counts, and the slowest of nodes that share a row.",
    )  # fmt: skip
    yield Figure("slowest-gpus", "Slowest GPUs", svg_maps.slowest_table(slowness), "At most 50, the slowest first.")
    pairs = svg_maps.pair_bandwidths(evidence)
    yield Figure(
        "pair-matrix", "Bandwidth between nodes", svg_maps.pair_matrix("pair-matrix", pairs),
        "Each pair's slowest rail, median over the rounds; darker is slower; "
        "empty was not measured. If nodes share a row, the slowest pair counts.",
    )  # fmt: skip
    yield Figure(
        "slowest-pairs", "Slowest pairs", svg_maps.slowest_pairs_table(pairs), "At most 50, the slowest first."
    )


def _of_profiles(evidence: Evidence) -> Iterator[Figure]:
    for number, profile in enumerate(largest_profiles(evidence.profiles), 1):
        yield Figure(
            f"profile-{number}", f"One step of {profile.study}, {profile.arm}",
            step_timeline(f"profile-{number}", profile),
            f"Rank {profile.rank} under torch.profiler, the step of median duration. "
            + (f"Its trace, for Perfetto or chrome://tracing: {profile.trace}" if profile.trace else ""),
        )  # fmt: skip
