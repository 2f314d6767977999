"""A ratio to another generation: both throughputs are shown, and what cannot be compared is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from shutil import copytree

import pytest

from tests.plugin.site import (
    MEASURED_RUN,
    REQUIREMENTS,
    Series,
    Site,
    assert_refused,
    edit_json,
    output_of,
    thresholds_text,
)

SKU_RATIO = "test_generation_ratio[resnet152-fp16-1gpu-vs-reference-gpu]"
RUN_RATIO = "{generation_ratio: {1: 1.9}, of: resnet152-fp16, versus: 'run:old', provisional: made up}"
OLD = 594.75  # half of what the run under test reaches


def old_cluster(**workload: object) -> tuple[Series, ...]:
    """What another machine gave on one GPU."""
    alone = MEASURED_RUN[0]
    trained = replace(alone.workload, **workload)  # type: ignore[arg-type]
    return (replace(alone, workload=trained, arm=replace(alone.arm, batch_size=trained.batch_size), img_per_s=OLD),)


@pytest.fixture
def compared(site: Site) -> Site:
    """A site that asks for nearly twice what a run of its own reached."""
    site.write("thresholds.yaml", thresholds_text([*REQUIREMENTS.values(), RUN_RATIO]))
    site.measured()
    return site


def test_both_throughputs_and_their_sources_are_shown(compared: Site) -> None:
    compared.measured("old", old_cluster(batch_size=128))
    result = compared.judge("-k", "generation_ratio", "-v")
    result.assert_outcomes(passed=2)
    said = " ".join(output_of(result).split())
    assert "1190 img/s per GPU here, 500 of reference-gpu" in said
    assert re.search(r"1190 img/s per GPU here, 59\d\.\d of run-old", said)
    report = (compared.path / "measured" / "report.html").read_text(encoding="utf-8")
    assert "500 of reference-gpu (a paper, table 1)" in report
    assert re.search(r"59\d\.\d of run-old \(tested-gpu, median of 9 rounds measured ", report)
    (of_run,) = [one for one in compared.verdicts()["verdicts"] if one["id"].endswith("vs-run-old]")]
    assert of_run["compared"]["reference_img_per_s"] == pytest.approx(OLD, rel=0.001)
    assert of_run["value"] == pytest.approx(2, rel=0.001)


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({"image_size": 192}, "differs there in image_size"),
        ({"memory_format": "contiguous"}, "differs there in memory_format"),
        ({"name": "other", "model": "resnet50"}, "it did not train resnet152-fp16, but other"),
    ],
    ids=["image size", "memory format", "model"],
)
def test_a_run_of_something_else_is_refused(compared: Site, workload: dict[str, object], said: str) -> None:
    compared.measured("old", old_cluster(**workload))
    assert_refused(compared.judge(), "thresholds.yaml:", "generation_ratio versus run ", said)


def test_a_run_that_is_not_there_is_refused(compared: Site) -> None:
    assert_refused(compared.judge(), "generation_ratio versus run ", "/old: ")


def test_a_simulated_run_is_no_reference(compared: Site) -> None:
    run = compared.measured("old", old_cluster())
    edit_json(run.run_json, simulated=True)
    assert_refused(compared.judge(), "it was simulated, not measured")


def test_a_copy_of_a_run_is_no_reference_for_it(compared: Site) -> None:
    copytree(compared.path / "measured", compared.path / "old")
    assert_refused(compared.judge(), "thresholds.yaml:", "it has the same measurements as measured")
