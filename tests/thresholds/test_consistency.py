"""What is well-formed and yet nonsense is refused, or remarked on where it may be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.rows import rows
from tests.thresholds.conftest import (
    DETECT,
    RATIO_LINE,
    VALID,
    WEAK,
    WEAK_LINE,
    Load,
    Refusal,
    changed,
    weak_changed,
    with_row,
)
from tests.thresholds.sites import write_site

PEAK = "    peak: {memory_bandwidth_gbps: 2000, link_bandwidth_gbps: 450, fp16_tflops: 900, bf16_tflops: 900}\n"


def with_peak(*more: str) -> str:
    """Further rows of the new generation, whose data sheet is known."""
    return changed(DETECT, DETECT + PEAK, with_row(*(f"{one}, provisional: few" for one in more)))


@rows(
    ("row", "limit"),
    [
        ("memory_bandwidth_gbps: 2001, probe: memory-copy", "the memory's peak is 2000 GB/s"),
        ("matmul_tflops: 901, probe: matmul-fp16-10240", "the peak in fp16 is 900 TFLOPS"),
        ("pair_bandwidth_gbps: {2: 451}, probe: send-recv-256mib", "the link's bandwidth is 450 GB/s"),
        ("busbw_gbps: {8: 788}, probe: all-reduce-8gib", "1.75 times the 450 GB/s of a link (2(n−1)/n) is 787.5 GB/s"),
        ("busbw_gbps: {2: 451}, probe: all-reduce-8gib", "1 times the 450 GB/s of a link (2(n−1)/n) is 450 GB/s"),
        ("busbw_gbps: {node: 901}, probe: all-reduce-8gib", "2 times the 450 GB/s of a link"),
        ("busbw_gbps: {all: 901}, probe: all-reduce-8gib", "2 times the 450 GB/s of a link"),
    ],
)
def test_floors_that_hardware_cannot_reach_are_refused(row: str, limit: str, refusal: Refusal) -> None:
    line, message = refusal(with_peak(row))
    assert limit in message
    assert "cannot be reached" in message
    assert line == RATIO_LINE + 2


@rows(
    "row",
    [
        "memory_bandwidth_gbps: 2000, probe: memory-copy", "busbw_gbps: {8: 460}, probe: all-reduce-8gib",
        "busbw_gbps: {8: 787.5}, probe: all-reduce-8gib", "matmul_tflops: 1500, probe: matmul-fp8",
    ],
)  # fmt: skip
def test_floors_that_it_can_reach_are_not(row: str, load: Load) -> None:
    assert load(with_peak(row)).broken == {}


@rows(
    ("row", "limit"),
    [("model_flops_utilization: {8: 1.01}, of: r", 1), ("strong_scaling_efficiency: {8: 1.11}, of: r", 1.1)],
)
def test_efficiencies_above_what_a_measurement_may_have_are_refused(row: str, limit: float, refusal: Refusal) -> None:
    assert f"no machine could pass it; expected 0.001 to {limit}" in refusal(with_peak(row))[1]


@rows(
    ("text", "line", "complaint"),
    [
        (weak_changed("8: 0.97", "1: 0.9, true: 0.1, 8: 0.97"), WEAK_LINE, "key 'true' is given twice in skus.new.req"),
        (weak_changed("8: 0.97", "8: 0.9, 8.0: 0.97"), WEAK_LINE, "key '8.0' is given twice in skus.new.requirements["),
        (weak_changed("8: 0.97", "+8: 0.9, 8: 0.97"), WEAK_LINE, "first on line 21, there as '+8'; expected each key"),
        (changed("versus: old", "versus: new"), RATIO_LINE, "a ratio of a SKU to itself says nothing; expected anothe"),
        (changed("resnet18, precision: fp16", "vit_b_16, image_size: 63, precision: fp16"), 6,
         "image_size is 63, which vit_b_16 cannot cut into patches of 16 pixels; expected a multiple of 16"),
        (changed("precision: fp16", "precision: fp16, classifier_hidden: 8, feature_weights: w.pt"), 6, "not an absol"),
        (changed("'^New$'", "'^.*$'"), 18, "matches any device; expected the model's name"),
        (changed("'^New$'", "'^[^x]+$'"), 18, "matches any device"),
        (changed(DETECT, f"{DETECT}    node: {{free_disk_gib: 1.0e+300}}\n"), 19, "free_disk_gib is 1e+300; expected"),
        (changed(DETECT, f"{DETECT}    node: {{clock_skew_s: 1.0e+300}}\n"), 19, "clock_skew_s is 1e+300; expected le"),
        (changed(DETECT, f"{DETECT}    node: {{pcie_width: 7}}\n"), 19, "pcie_width is 7; expected 1, 2, 4, 8, 12, 16"),
        (changed("margins: {", "margins: {throughput_per_gp: 5 %, "), 4,
         "margins.throughput_per_gp: 'throughput_per_gp' is no metric; did you mean 'throughput_per_gpu'? Correct it"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(text: str, line: int, complaint: str, refusal: Refusal) -> None:
    named, message = refusal(text)
    assert complaint in message
    assert named == line


@rows(
    ("row", "remark"),
    [
        ("weak_scaling_efficiency: {8: 0.97}, of: r, published: paper, bound: 0.98, because: ours",
         "the bound 0.98 of weak_scaling_efficiency of r at world size 8 is stricter than its published 0.97"),
        ("weak_scaling_efficiency: {8: 0.97}, of: r, published: paper, bound: 0.125, because: ours",
         "passes from 0.125, no faster than one GPU, so it hardly ever fails"),
        ("strong_scaling_speedup: {8: 1}, of: r, provisional: few", "passes from 1x, no faster than one GPU"),
        ("throughput_per_gpu: {1: 100}, of: r, published: paper, margin: 95 %, because: few",
         "the bound 5 of throughput_per_gpu of r at world size 1 is far below the 100 of a sound machine"),
        ("busbw_gbps: {8: 460}, probe: all-reduce-8gib, provisional: few",
         "the bound 460 of busbw_gbps of all-reduce-8gib at world size 8 is above the 450 GB/s of a link"),
    ],
)  # fmt: skip
def test_what_is_odd_and_may_be_meant_is_remarked_on(row: str, remark: str, load: Load) -> None:
    others = VALID.replace(WEAK, "      - {device_utilization: {8: 0.97}, of: r, published: paper, margin: 5 %}")
    file = load(changed(DETECT, DETECT + PEAK, f"{others}      - {{{row}}}\n"))
    [said] = file.remarks["new"]
    assert remark in str(said)
    assert file.warnings == {}


def test_the_usual_site_and_the_packaged_file_get_no_remark(tmp_path: Path) -> None:
    assert load_thresholds(write_site(tmp_path)).remarks == {}


def test_remarks_stop_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = "{throughput_per_gpu: {1: 10}, of: resnet152-fp16, published: site, bound: 11, because: stricter}"
    path = write_site(tmp_path, f"skus: {{a100-sxm4-80gb: {{requirements: [{row}]}}}}\n")
    assert main(["thresholds", "check", str(path)]) == 0
    said = capsys.readouterr().err
    assert (
        f"ddpscale: remark: {path}:4: the bound 11 of throughput_per_gpu of resnet152-fp16 at world size 1 is" in said
    )


@rows(("bound", "sound"), [(5000, 5130), (5500, None)])
def test_a_site_may_ask_for_more_than_a_sound_machine_was_thought_to_reach(
    bound: int, sound: float | None, tmp_path: Path
) -> None:
    site = tmp_path / "site.yaml"
    change = (
        f"throughput_per_gpu: [1], of: resnet50-nchw-fp16, bound: {{1: {bound}}}, who: A. Name, why: 'measured here'"
    )
    site.write_text(f"schema_version: 2\nextends: packaged\nskus: {{b200: {{change: [{{{change}}}]}}}}\n")
    (one,) = [
        one
        for one in load_thresholds(site).thresholds.skus["b200"].requirements
        if (one.metric, one.workload, one.world_size) == ("throughput_per_gpu", "resnet50-nchw-fp16", 1)
    ]
    assert (one.bound, one.sound) == (bound, sound)
