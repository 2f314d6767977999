"""whole_runs.yaml: which runs a row is about, what it asks, and what is no row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.training_run import SampleSet, TrainingRun
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.suites.whole_run_bounds import WholeRunBound, read_whole_run_bounds
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import usual_thresholds
from tests.builders.workloads import with_settings
from tests.rows import rows
from tests.suites.published_whole_runs import MICRO, TINY

Published = dict[int, tuple[int, int, int]]
RUN = TrainingRun(
    "tiny-224", Workload("vit", ImageFamily("vit_h_14", memory_format="contiguous"), "bf16", 128),
    SampleSet("folder", "tiny-224", 100_000, 10_000, 200, "/data"), 2, 4, 5, compile_mode="reduce-overhead",
)  # fmt: skip


def rows_about(run: TrainingRun, sku: str = "h100-64gb") -> list[WholeRunBound]:
    return [row for row in read_whole_run_bounds() if row.is_about(sku, run)]


@rows(("name", "table"), [("micro-224", MICRO), ("tiny-224", TINY)])
def test_the_packaged_rows_are_the_published_times_and_a_tenth_more(
    name: str, table: dict[int, tuple[int, int, int]]
) -> None:
    (row,) = rows_about(replace(RUN, samples=replace(RUN.samples, name=name)))
    assert row.time_to_train == {gpus: float(seconds) for gpus, (seconds, _, _) in table.items()}
    assert row.most_s(8) == pytest.approx(1.1 * table[8][0])
    assert row.most_s(3) is None
    assert row.least_accuracy(8) is None, "the chapter publishes no accuracy of these runs"
    assert "MareNostrum 5" in row.published


def test_a_row_is_about_runs_that_are_just_as_it_says_and_no_others() -> None:
    assert len(rows_about(RUN)) == 1
    assert rows_about(RUN, "h100") == []
    for other in (
        replace(RUN, epochs=4),
        replace(RUN, compile_mode="no"),
        replace(RUN, samples=replace(RUN.samples, name="mine")),
        *(
            replace(RUN, workload=with_settings(RUN.workload, **changed))
            for changed in ({"model": "vit_b_16"}, {"precision": "fp16"}, {"batch_size": 64})
        ),
    ):
        assert rows_about(other) == []


ROW = "{sku: cpu, model: m, precision: fp32, batch: 1, epochs: 1, data: d, validation_accuracy: {1: 0.5}%s}"


@rows(
    ("row", "message"),
    [
        (ROW % "", "no source of its numbers; expected `published`, a key of sources, or `provisional`"),
        (ROW % ", published: nobody", "no source of its numbers"),
        (ROW % ", provisional: a, speed: 1", "unknown field `speed`"),
        (ROW % ", provisional: a, margin: 2", "<= 1"),
        (ROW.replace("0.5", "50") % ", provisional: a", "<= 1"),
        ("[", "while parsing"),
    ],
)
def test_what_is_no_row_is_refused_with_the_file(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "bounds.yaml"
    path.write_text(f"schema_version: 1\nbounds:\n- {row}\n")
    with pytest.raises(ThresholdsError) as refused:
        read_whole_run_bounds(path)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)


def test_accuracy_may_be_less_by_the_margin(tmp_path: Path) -> None:
    path = tmp_path / "bounds.yaml"
    path.write_text(f"schema_version: 1\nbounds:\n- {ROW % ', provisional: a guess, margin: 0.1'}\n")
    (row,) = read_whole_run_bounds(path)
    assert row.least_accuracy(1) == pytest.approx(0.45)
    assert row.provisional == "a guess"


def test_the_gpu_of_the_packaged_rows_is_known_and_has_no_synthetic_throughput() -> None:
    file = load_thresholds(usual_thresholds())
    skus = {row.sku for row in read_whole_run_bounds()}
    assert skus == {"h100-64gb"}
    sku = file.thresholds.skus["h100-64gb"]
    assert list(sku.detect.pci_device_ids) == ["2337"]
    assert not {"throughput_per_gpu", "weak_scaling_efficiency"} & {one.metric for one in sku.requirements}
