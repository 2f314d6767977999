"""Plots are drawn for what there is, without a warning, and hold the numbers they claim."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from pytest_ddpscale.report.plots import write_plots
from tests.builders.judged import evidence_of_plan
from tests.builders.judgements import (
    ACCEPTED,
    FAILED,
    HOSTILE,
    JUDGEMENT,
    MEASUREMENTS,
    PLAN,
    RESNET,
    judgement_with,
    make_measurements,
    make_plan,
    make_study,
)
from tests.builders.measurements import Measurement

PNG = b"\x89PNG\r\n\x1a\n"


def _names(paths: list[Path]) -> list[str]:
    for path in paths:
        assert path.read_bytes().startswith(PNG)
    return [path.name for path in paths]


def test_all_quantities_of_both_scalings_are_drawn(tmp_path: Path) -> None:
    assert _names(write_plots(evidence_of_plan(PLAN, MEASUREMENTS), JUDGEMENT, tmp_path / "new" / "plots")) == [
        "weak-throughput.png",
        "weak-efficiency.png",
        "strong-throughput.png",
        "strong-speedup.png",
        "strong-efficiency.png",
        "overview.png",
    ]


def test_nothing_measured_leaves_no_file_and_no_directory(tmp_path: Path) -> None:
    assert write_plots(evidence_of_plan(PLAN, []), JUDGEMENT, tmp_path / "plots") == []
    assert write_plots(evidence_of_plan(make_plan(), MEASUREMENTS), JUDGEMENT, tmp_path / "plots") == []
    assert not (tmp_path / "plots").exists()


@pytest.mark.parametrize(
    ("world_sizes", "expected"),
    [
        ((8,), ["weak-throughput.png", "overview.png"]),
        ((1, 8), ["weak-throughput.png", "weak-efficiency.png", "overview.png"]),
        ((1, *(3 * k for k in range(1, 15))), ["weak-throughput.png", "weak-efficiency.png", "overview.png"]),
    ],
)
def test_few_or_odd_world_sizes_draw_what_they_can(
    world_sizes: tuple[int, ...], expected: list[str], tmp_path: Path
) -> None:
    study = make_study("weak", RESNET, world_sizes)
    measurements = make_measurements(study, 1000.0, 0.05, rounds=len(world_sizes))
    assert _names(write_plots(evidence_of_plan(make_plan(study), measurements), ACCEPTED, tmp_path)) == expected


def test_many_workloads_with_hostile_names_fit(tmp_path: Path) -> None:
    studies = [
        make_study("weak", replace(RESNET, name=f"{prefix}{i}{HOSTILE}測試"), (1, 2))
        for i, prefix in enumerate(["_private", "$", "\\", "x" * 80] * 3)
    ]
    measurements: list[Measurement] = []
    for study in studies:
        measurements += make_measurements(study, 1000.0, 0.05, rounds=2)
    judgement = replace(judgement_with(replace(FAILED, workload=studies[0].workload.name)), sku=HOSTILE)
    assert len(write_plots(evidence_of_plan(make_plan(*studies), measurements), judgement, tmp_path)) == 3


def test_the_overview_shows_pictures_as_they_are_on_their_own(tmp_path: Path) -> None:
    write_plots(evidence_of_plan(PLAN, MEASUREMENTS), JUDGEMENT, tmp_path)
    overview, throughput, efficiency, speedup = (
        imread(tmp_path / f"{name}.png")
        for name in ("overview", "weak-throughput", "weak-efficiency", "strong-speedup")
    )
    height, width = throughput.shape[:2]
    assert overview.shape == (2 * height, 2 * width, 4)
    np.testing.assert_array_equal(overview[:height, :width], throughput)
    np.testing.assert_array_equal(overview[:height, width:], efficiency)
    np.testing.assert_array_equal(overview[height:, :width], speedup)
    assert (overview[height:, width:] == 1).all()  # utilization, which was not measured


def _modules_after(code: str) -> set[str]:
    """What a fresh interpreter has imported after running `code`."""
    code += "; import sys; print(*sys.modules)"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_reports_that_draw_nothing_import_no_library() -> None:
    modules = _modules_after("from pytest_ddpscale.report import text, terminal, junit")
    assert not modules & {"matplotlib", "jinja2", "torch", "pydantic", "yaml", "pytest"}


def test_drawing_leaves_pyplot_alone(tmp_path: Path) -> None:
    modules = _modules_after(
        "from pathlib import Path; from pytest_ddpscale.report.plots import write_plots; "
        "from tests.builders.judged import evidence_of_plan; "
        "from tests.builders.judgements import MEASUREMENTS, PLAN, JUDGEMENT; "
        f"write_plots(evidence_of_plan(PLAN, MEASUREMENTS), JUDGEMENT, Path({str(tmp_path)!r}))"
    )
    assert "matplotlib.figure" in modules
    assert "matplotlib.pyplot" not in modules
