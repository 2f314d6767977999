"""The report says what of the machine was tested, and first what was not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from msgspec.structs import replace as with_fields

from pytest_ddpscale.report.coverage_text import node_rows, path_rows, summary, took_text
from pytest_ddpscale.report.html_page import render_html
from pytest_ddpscale.run.coverage import Coverage, GpuCoverage, NodeCoverage, PathCoverage
from pytest_ddpscale.run.place import Place
from tests.builders.judgements import ACCEPTED, EVIDENCE, HOSTILE, RUN
from tests.report.page_text import page_text

TRAINED = ("survey", "training", "pairs")
TOGETHER = "weak_scaling_efficiency[r-4gpu]"


def node(name: str, *idle: int) -> NodeCoverage:
    gpus = [GpuCoverage(Place(name, None, f"GPU-{name}-{i}", i), () if i in idle else ("training",)) for i in range(2)]
    return NodeCoverage(name, TRAINED, gpus=tuple(gpus))


def coverage_of(nodes: int) -> Coverage:
    """Alike nodes, all paths measured, each a little faster than the one before."""
    pairs = [(one, other) for one in range(nodes) for other in range(one + 1, nodes)]
    paths = tuple(PathCoverage(*pair, 20.0 + 0.1 * i, 1) for i, pair in enumerate(pairs))
    found = tuple(node(f"n{i:02}") for i in range(nodes))
    return Coverage(found, 0, 2, 2 * nodes, paths, len(paths), between_nodes=(TOGETHER,), over_all_nodes=(TOGETHER,))


def report_of(coverage: Coverage) -> str:
    return page_text(render_html(replace(ACCEPTED, coverage=coverage), RUN, EVIDENCE))


def test_how_long_a_run_took_is_told_unless_its_clock_was_set_back() -> None:
    ended = [(RUN.began + timedelta(minutes=minutes)).isoformat() for minutes in (30, -30)]
    said = [took_text(with_fields(RUN, finished_at=moment), coverage_of(2)) for moment in ended]
    assert said == ["30.0 min, 2.0 GPU-hours", ""]


def test_what_was_not_tested_is_named_first() -> None:
    sound, lost = node("n0"), GpuCoverage(Place("n1", None, "GPU-x", 2), (), "GPU is lost")
    nodes = (sound, replace(node("n1", 1), gpus=(*node("n1", 1).gpus, lost)), NodeCoverage("n2", (), "disk: full"))
    coverage = Coverage(nodes, unnamed_nodes=1, ranks_per_node=2, paths=(PathCoverage(0, 1, 20.0, 1),))
    assert summary(coverage) == [
        "Tested: 2 of 4 nodes, 3 of 5 GPUs.",
        "1 node never answered.",
        "No requirement was decided by all nodes together.",
        "1 of 6 paths between nodes measured directly.",
        "The others were tested not at all: n0 – n2, n1 – n2 and 3 more.",
    ]
    assert node_rows(coverage) == [
        ["n1", "survey, training, node pairs", "1 of 3", "GPU 1 (GPU-n1-1): took no part, GPU 2 (GPU-x): GPU is lost"],
        ["n2", "nothing", "–", "left out: disk: full"],
        ["n0", "survey, training, node pairs", "2 of 2", "–"],
    ]


def test_the_slowest_path_comes_first_in_the_report() -> None:
    coverage = replace(coverage_of(3), paths=(PathCoverage(0, 1, 20.0, 1), PathCoverage(1, 2, 5.0, 3)))
    assert path_rows(coverage)[0] == ["n01 – n02", "5 GB/s", "0.40×", "3"]
    rendered = report_of(coverage)
    assert "| n01 – n02 | 5 GB/s | 0.40× | 3 |\n| n00 – n01 | 20 GB/s | 1.60× | 1 |\n" in rendered
    assert "| n00 | survey, training, node pairs | 2 of 2 | – |\n" in rendered
    assert "Tested: 3 of 3 nodes, 6 of 6 GPUs." in rendered


def test_many_nodes_and_paths_are_counted() -> None:
    rendered = report_of(coverage_of(70))
    assert f"{70 - 64} more: verdicts.json lists all" in rendered
    assert f"{70 * 69 // 2 - 40} more: verdicts.json lists all" in rendered


def test_names_from_anywhere_break_no_table() -> None:
    gpu = GpuCoverage(Place(HOSTILE, None, HOSTILE, 0))
    nodes = tuple(NodeCoverage(f"{HOSTILE}{i}", TRAINED, gpus=(gpu,)) for i in range(2))
    rendered = report_of(Coverage(nodes, 0, 1, 2, (PathCoverage(0, 1, 1.0, 1),), 1))
    table = rendered.split("\nWhat was tested on each node\n")[-1].split("\nTelemetry\n")[0]
    assert {line.count(" | ") for line in table.splitlines() if line.startswith("| ")} == {3}
    assert "<script" in rendered, "as text"
