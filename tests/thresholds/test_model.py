"""What a requirement has to keep to be worth judging by, whichever file it is from."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pytest_ddpscale.plan.metric_catalogue import METRICS, NODE_CHECK
from pytest_ddpscale.thresholds.form import ROW_METRICS
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.model import Requirement, Source
from pytest_ddpscale.thresholds.parts import Detect
from tests.rows import rows
from tests.thresholds.conftest import (
    BATCH_LINE,
    DETECT,
    RATIO_LINE,
    VALID,
    WEAK_LINE,
    Load,
    Refusal,
    changed,
    weak_changed,
    with_row,
)

STATED = Source(0.97, None, "a paper", "as much as anybody needs")


def requirement(**fields: Any) -> Requirement:
    given: dict[str, Any] = {
        "metric": "weak_scaling_efficiency", "bound": 0.95, "source": STATED, "workload": "r", "world_size": 8,
    }  # fmt: skip
    return Requirement(**(given | fields))


def test_every_metric_of_the_catalogue_can_be_required_and_no_other() -> None:
    assert {*ROW_METRICS, NODE_CHECK.name} == set(METRICS)


def test_ranks_are_packed_unless_the_file_says_otherwise() -> None:
    assert requirement().placement == "packed"
    assert requirement(placement="spread").key() != requirement().key(), "they measure two things"


@rows(
    ("fields", "complaint"),
    [
        ({"bound": 95}, "looks like per cent; expected a fraction, for example 0.95"),
        ({"metric": "device_utilization", "bound": 98.5}, "per cent; expected a fraction, for example 0.985"),
        ({"world_size": 1}, "weak_scaling_efficiency is not defined for world size 1; expected at least 2"),
        ({"versus": "old"}, "weak_scaling_efficiency takes no `versus: SKU`"),
        ({"metric": "generation_ratio", "bound": 2}, "generation_ratio needs `versus: SKU`"),
        ({"workload": ""}, "weak_scaling_efficiency needs `of: NAME`"),
        ({"check": "ecc"}, "weak_scaling_efficiency takes no `check: NAME`"),
        ({"metric": "throughput_per_gpu", "world_size": 1, "placement": "spread"},
         "spread is not defined for world size 1; expected at least 2"),
        ({"metric": "ddp_overhead", "bound": 0.5, "world_size": 2}, "ddp_overhead is not defined for world size 2"),
        ({"metric": "ddp_overhead", "bound": 0.5, "world_size": "node"}, "ddp_overhead is not defined for world size"),
        *(({"metric": metric, "bound": 1, "world_size": 1}, f"{metric} is not defined for world size 1")
          for metric in ("rank_uniformity", "replica_agreement")),
        *(({"metric": metric, "bound": 0.5, "world_size": 1}, f"{metric} is not defined for world size 1")
          for metric in ("exposed_communication", "memory_spread")),
        ({"metric": "strong_scaling_speedup", "world_size": "all"}, "shares one batch among the ranks; expected a num"),
        *(({"metric": "replica_agreement", "bound": bound},
           f"bound {bound:g} for replica_agreement allows ranks to differ, but they must agree bit for bit; expected 1")
          for bound in (0.5, 0.99, 1.01)),
        ({"source": Source(0.0)}, "published weak_scaling_efficiency of 0 is impossible; expected the measured value"),
        ({"source": Source(97.0)}, "published weak_scaling_efficiency of 97 is impossible; expected the meas"),
        ({"metric": "device_utilization", "bound": 1.01}, "no machine could pass it; expected 0.001 to 1"),
        ({"metric": "model_flops_utilization", "bound": 1.5}, "no machine could pass it"),
        ({"bound": 1.2}, "no machine could pass it"),
        ({"bound": 1e-7}, "no machine could fail it"),
        ({"metric": "strong_scaling_speedup", "bound": 9}, "no machine could pass it; expected 0.001 to 8.8"),
        ({"metric": "throughput_per_gpu", "bound": 1e-7}, "no machine could fail it; expected 0.001 to 1e+06 img/s"),
        ({"metric": "throughput_per_gpu", "bound": 1e12}, "no machine could pass it"),
        ({"metric": "rank_uniformity", "bound": 0.99}, "no machine could pass it; expected 1 to 1000"),
        ({"metric": "rank_uniformity", "bound": 1e6}, "no machine could fail it"),
        ({"metric": "step_time_p95", "bound": 1e12}, "no machine could fail it; expected 0.01 to 3.6e+06 ms"),
        ({"metric": "step_time_p95", "bound": 1e-6}, "no machine could pass it"),
        ({"metric": "peak_memory_gib", "bound": 100000}, "no machine could fail it"),
    ],
)  # fmt: skip
def test_a_requirement_that_says_nothing_sound_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError) as raised:
        requirement(**fields)
    assert complaint in str(raised.value)


COSTS = ["exposed_communication", "ddp_overhead", "step_time_cv", "memory_spread"]


@rows("metric", COSTS)
def test_a_cost_in_per_cent_is_refused_because_every_machine_would_keep_it(metric: str) -> None:
    world_size = METRICS[metric].maximum_world_size or 8
    for bound, meant in ((1, "0.01"), (2, "0.02"), (30, "0.3")):
        with pytest.raises(ValueError, match=f"looks like per cent; expected a fraction, for example {meant}"):
            requirement(metric=metric, world_size=world_size, bound=bound)
    assert requirement(metric=metric, world_size=world_size, bound=0.02).bound == 0.02


@rows(
    ("metric", "bound"),
    [("rank_uniformity", 1.08), ("rank_uniformity", 3), ("step_time_p95", 468.5), ("replica_agreement", 1)],
)
def test_a_ratio_and_a_time_may_be_any_number_and_replicas_have_to_agree_altogether(metric: str, bound: float) -> None:
    assert requirement(metric=metric, bound=bound).severity == "fail"


def test_a_cost_of_nothing_may_have_been_measured() -> None:
    assert requirement(metric="memory_spread", bound=0.01, source=Source(0.0)).source.measured == 0


@rows("world_size", ["node", "2 nodes", "16 nodes", "all"])
def test_a_world_size_may_be_a_word(world_size: str) -> None:
    assert str(requirement(world_size=world_size)) == f"weak_scaling_efficiency of r at world size {world_size}"


@rows(
    ("fields", "complaint"),
    [
        ({}, "a GPU needs `name: '^…$'`"),
        ({"name": "RTX PRO 6000"}, "is not anchored"),
        ({"name": "^RTX PRO 6000"}, "is not anchored"),
        ({"name": "RTX PRO 6000$"}, "is not anchored"),
        ({"name": "^(RTX$"}, "is not a regular expression: missing )"),
        ({"name": "^RTX$", "pci_device_ids": ["2BB5"]}, "String should match pattern"),
        ({"name": "^RTX$", "pci_device_ids": ["10de2bb5"]}, "String should match pattern"),
        ({"name": "^RTX$", "memory_gib": 0}, "greater than 0"),
        ({"name": "^RTX$", "memory_gb": 96}, "Extra inputs are not permitted"),
    ],
)
def test_detection_that_would_match_too_much_or_nothing_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Detect.model_validate(fields)
    assert complaint in str(raised.value)


def test_a_cpu_and_a_reference_need_no_name() -> None:
    assert Detect.model_validate({"device": "cpu"}).name is None
    assert Detect.model_validate({"device": "none"}).name is None


def test_names_and_aliases_find_a_sku(load: Load) -> None:
    thresholds = load(VALID).thresholds
    assert thresholds.skus["old"].workloads["r"].name == "r", "as it is listed"
    assert [thresholds.canonical_name(name) for name in ("old", "OLDER", "oldest")] == ["old", "old", None]


def test_a_generation_ratio_is_taken_against_what_the_reference_published(load: Load) -> None:
    thresholds = load(VALID).thresholds
    throughput, source = thresholds.reference_throughput(thresholds.skus["new"].requirements[1])
    assert throughput == 100  # measured, not the bound
    assert source.reference == "a paper"
    batches = [sku.workloads["r"].batch_size for sku in thresholds.skus.values()]
    assert batches == [4, 16], "a batch of its own does not forbid a ratio"


def test_a_warn_bound_stands_beside_the_fail_bound(load: Load) -> None:
    one, _ = load(weak_changed("bound: 0.95", "bound: 0.95, warn: 0.96")).thresholds.skus["new"].requirements
    warning = one.warning()
    assert warning is not None
    assert (one.severity, one.bound, warning.severity, warning.bound) == ("fail", 0.95, "warn", 0.96)


@rows(
    ("more", "complaint"),
    [
        ("warn: 0.95", "weak_scaling_efficiency of r at world size 8: the warn bound is not stricter than the fail bo"),
        ("warn: 0.9", "the warn bound is not stricter than the fail bound, so it never warns"),
        ("warn: 0.96, severity: warn", "it only warns; expected no `warn` beside its bound"),
        ("warn: 96", "bound 96 for weak_scaling_efficiency looks like per cent"),
        ("warn: {4: 0.96}", "`warn` has other world sizes than the values; expected the same"),
    ],
)
def test_a_warn_bound_that_never_warns_is_refused(more: str, complaint: str, refusal: Refusal) -> None:
    line, message = refusal(weak_changed("bound: 0.95", f"bound: 0.95, {more}"))
    assert complaint in message
    assert line == WEAK_LINE


def test_a_looser_upper_warn_bound_is_refused_as_well(refusal: Refusal) -> None:
    memory = VALID.splitlines()[14]
    line, message = refusal(changed(memory, changed("published: paper", "published: paper, warn: 13", memory)))
    assert line == 15
    assert "the warn bound is not stricter than the fail bound" in message


@rows(
    ("old", "new", "line", "complaint"),
    [
        ("aliases: [older]", "aliases: [new]", 10, "alias 'new' already names new"),
        ("aliases: [older]", "aliases: [old]", 10, "alias 'old' already names old"),
        ("aliases: [older]", "aliases: [older, older]", 10, "alias 'older' already names old"),
        ("versus: old", "versus: older", RATIO_LINE, "versus 'older' is an alias; expected 'old'"),
        ("batch: {r: {per_gpu: 16, global: 8}}", "batch: {}", WEAK_LINE,
         "this SKU has no `batch` for the workload 'r'; it has none"),
        ("{throughput_per_gpu: {1: 100}, of: r, published: paper}",
         "{throughput_per_gpu: {1: 100}, of: r, provisional: a mere guess}", RATIO_LINE,
         "old publishes no throughput_per_gpu for r: add a row that is `published`"),
    ],
)  # fmt: skip
def test_parts_that_contradict_each_other_are_refused(
    old: str, new: str, line: int, complaint: str, refusal: Refusal
) -> None:
    named, message = refusal(changed(old, new))
    assert complaint in message
    assert named == line


def test_a_ratio_to_a_sku_without_that_workload_is_refused(refusal: Refusal) -> None:
    others = changed("  r: {", "  q: {model: resnet18, precision: fp16}\n  r: {")
    head, tail = others.split("  new:")
    line, message = refusal(f"{head.replace('of: r', 'of: q').replace('batch: {r:', 'batch: {q:')}  new:{tail}")
    assert line == RATIO_LINE + 1
    assert "versus old: it has no workload 'r' to compare with" in message


MFU = "model_flops_utilization: {8: 0.3}, of: r, provisional: a mere guess"


def with_utilization_and_peak(key: str, precision: str) -> str:
    """`VALID` with a model FLOPs utilization, and a peak of the new generation."""
    peak = f"{DETECT}    peak: {{{key}: 100, published: paper}}\n"
    return changed(DETECT, peak, with_row(MFU)).replace("precision: fp16", f"precision: {precision}")


@rows("precision", ["fp16", "bf16", "fp32"])
def test_flops_utilization_is_of_the_peak_in_the_workloads_precision(precision: str, load: Load) -> None:
    sku = load(with_utilization_and_peak(f"{precision}_tflops", precision)).thresholds.skus["new"]
    assert sku.peak_tflops(sku.workloads["r"]) == 100


@rows(
    ("key", "precision", "tf32"),
    [
        ("fp16_tflops", "bf16", ""),
        ("bf16_tflops", "fp16", ""),
        ("fp16_tflops", "fp32", ", the peak of the plain fp32 units, because TF32 is not used"),
        ("", "fp16", ""),
    ],
)
def test_flops_utilization_without_that_peak_is_refused(key: str, precision: str, tf32: str, refusal: Refusal) -> None:
    line, message = refusal(with_utilization_and_peak(key, precision) if key else with_row(MFU))
    assert line == RATIO_LINE + (2 if key else 1)
    needs = f"model_flops_utilization of r needs `{precision}_tflops: NUMBER` under this SKU's `peak`{tf32}"
    assert needs in message


@rows(
    ("batch", "ranks", "complaint"),
    [
        ("batch: {r: 16}", 8, "workload r has no global_batch_size"),
        ("batch: {r: {per_gpu: 16}}", 8, "workload r has no global_batch_size"),
        ("batch: {r: {per_gpu: 16, global: 8}}", 3, "global_batch_size 8 of r cannot be shared evenly by 3 ranks"),
    ],
)
def test_strong_scaling_needs_a_global_batch_that_the_ranks_can_share(
    batch: str, ranks: int, complaint: str, refusal: Refusal
) -> None:
    strong = weak_changed("weak_scaling_efficiency: {8:", f"strong_scaling_efficiency: {{{ranks}:")
    line, message = refusal(changed(VALID.splitlines()[BATCH_LINE - 1].strip(), batch, strong))
    assert line == WEAK_LINE
    assert complaint in message


@given(published=st.floats(0.5, 1.0), margin_pct=st.integers(0, 20))
def test_the_bound_is_the_published_value_less_its_margin_or_more_where_less_is_better(
    published: float, margin_pct: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    row = f"{{device_utilization: {{8: {published:.4f}}}, peak_memory_gib: {{8: {published:.4f}}}, of: r, "
    path = tmp_path_factory.mktemp("margins") / "thresholds.yaml"
    path.write_text(f"{VALID}      - {row}published: paper, margin: {margin_pct} %}}\n")
    below, above = load_thresholds(path).thresholds.skus["new"].requirements[-2:]
    assert below.bound == pytest.approx(round(published, 4) * (1 - margin_pct / 100), rel=1e-5)
    assert above.bound == pytest.approx(round(published, 4) * (1 + margin_pct / 100), rel=1e-5)
