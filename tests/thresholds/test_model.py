from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Detect, MetricName, Requirement
from tests.thresholds.conftest import RATIO_LINE, VALID, WEAK, WEAK_LINE, Refusal, changed, weak_changed

PUBLISHED = {"measured": 0.97, "margin_pct": 2, "reference": "a paper"}


def requirement(**fields: Any) -> Requirement:
    given: dict[str, Any] = {
        "metric": "weak_scaling_efficiency", "workload": "r", "world_size": 8, "at_least": 0.95, "source": PUBLISHED,
    }  # fmt: skip
    return Requirement.model_validate({k: v for k, v in (given | fields).items() if v is not None})


def test_every_metric_of_the_catalogue_can_be_required_and_no_other() -> None:
    assert set(MetricName.__args__) == set(METRICS)  # type: ignore[attr-defined]


def test_ranks_are_packed_unless_the_file_says_otherwise() -> None:
    assert requirement().placement == "packed"
    assert requirement(placement="spread").key() != requirement().key(), "they measure two things"


def test_a_published_bound_fails_by_default() -> None:
    assert requirement().severity == "fail"
    assert requirement(severity="warn").severity == "warn"


def test_a_provisional_bound_only_warns_unless_the_file_says_otherwise() -> None:
    reasoning = {"reasoning": "half of what an A100 does"}
    assert requirement(provisional=True, source=reasoning).severity == "warn"
    assert requirement(provisional=True, severity="fail", source=reasoning).severity == "fail"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"at_least": None}, "needs exactly one bound, `at_least: NUMBER`"),
        ({"at_least": None, "at_most": 0.95}, "needs exactly one bound, `at_least: NUMBER`"),
        ({"at_most": 0.99}, "needs exactly one bound, `at_least: NUMBER`"),
        ({"metric": "peak_memory_gib"}, "needs exactly one bound, `at_most: NUMBER`"),
        ({"at_least": 95}, "looks like per cent; expected a fraction, for example 0.95"),
        ({"metric": "device_utilization", "at_least": 98.5}, "per cent; expected a fraction, for example 0.985"),
        ({"at_least": 0}, "greater than 0"),
        ({"at_least": "0.95"}, "valid number"),
        ({"at_least": float("nan")}, "finite number"),
        ({"world_size": 1}, "world_size 1 says nothing about weak_scaling_efficiency"),
        *(({"world_size": value}, "a whole number from 1 to 1000000, `node`, `all`, or a number of nodes: `2 nodes`")
          for value in (8.0, 0, True, "1 nodes", "2 node", "2nodes", "8", "every")),
        ({"versus": "old"}, "weak_scaling_efficiency takes no `versus: SKU`"),
        ({"metric": "generation_ratio"}, "generation_ratio needs `versus: SKU`"),
        ({"metric": "speed"}, "Input should be 'throughput_per_gpu'"),
        ({"severity": "info"}, "Input should be 'fail' or 'warn'"),
        ({"source": {}}, "a bound needs `source: {measured: NUMBER, reference: …}`"),
        ({"source": {"measured": 0.97}}, "a bound needs `source: {measured: NUMBER, reference: …}`"),
        ({"source": {"reasoning": "half of what an A100 does"}}, "without a published figure write `provisional"),
        ({"provisional": True}, "a provisional bound needs `source: {reasoning: …}`"),
        ({"source": PUBLISHED | {"measured": float("nan")}}, "finite number"),
        ({"source": PUBLISHED | {"margin_pct": 100}}, "less than 100"),
        ({"source": {"measured": 0.97, "reference": "a paper"}}, "bound 0.95 says not why it is that far from the 0.97 "
         "that was measured; expected `margin_pct: NUMBER` or `reasoning: …` beside `measured`"),
        ({"source": PUBLISHED | {"margin_pct": 5}}, "contradicts its source: 0.97 with a margin of 5 % is 0.9215"),
        ({"at_lest": 0.9}, "Extra inputs are not permitted"),
        ({"placement": "anyhow"}, "Input should be 'packed' or 'spread'"),
        ({"metric": "throughput_per_gpu", "world_size": 1, "placement": "spread"}, "spread says nothing about "
         "world_size 1; expected at least 2"),
    ],
)  # fmt: skip
def test_a_requirement_that_says_nothing_sound_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError) as raised:
        requirement(**fields)
    assert complaint in str(raised.value)


REASONED = {"measured": 0.97, "reference": "a paper", "reasoning": "as much as anybody needs"}


@pytest.mark.parametrize(
    ("metric", "world_size", "complaint"),
    [
        ("ddp_overhead", 2, "world_size 2 says nothing about ddp_overhead; expected 1"),
        ("ddp_overhead", "node", "world_size node says nothing about ddp_overhead; expected 1"),
        ("rank_uniformity", 1, "world_size 1 says nothing about rank_uniformity; expected at least 2"),
        ("exposed_communication", 1, "world_size 1 says nothing about exposed_communication; expected at least 2"),
        ("memory_spread", 1, "world_size 1 says nothing about memory_spread; expected at least 2"),
        ("replica_agreement", 1, "world_size 1 says nothing about replica_agreement; expected at least 2"),
    ],
)
def test_a_world_size_of_which_a_metric_says_nothing_is_refused(
    metric: str, world_size: int | str, complaint: str
) -> None:
    key = "at_least" if metric == "replica_agreement" else "at_most"
    bound = {"at_least": None} | {key: 1 if key == "at_least" else 0.5}
    with pytest.raises(ValidationError) as raised:
        requirement(metric=metric, world_size=world_size, source=REASONED, **bound)
    assert complaint in str(raised.value)


COSTS = ["exposed_communication", "ddp_overhead", "step_time_cv", "memory_spread"]


@pytest.mark.parametrize("metric", COSTS)
@pytest.mark.parametrize(("at_most", "meant"), [(1, "0.01"), (2, "0.02"), (30, "0.3")])
def test_a_cost_in_per_cent_is_refused_because_every_machine_would_keep_it(
    metric: str, at_most: float, meant: str
) -> None:
    world_size = METRICS[metric].maximum_world_size or 8
    with pytest.raises(ValidationError, match=f"looks like per cent; expected a fraction, for example {meant}"):
        requirement(metric=metric, world_size=world_size, at_least=None, at_most=at_most, source=REASONED)


@pytest.mark.parametrize("metric", COSTS)
def test_a_cost_is_a_fraction(metric: str) -> None:
    world_size = METRICS[metric].maximum_world_size or 8
    required = requirement(metric=metric, world_size=world_size, at_least=None, at_most=0.02, source=REASONED)
    assert required.bound == 0.02


def test_a_ratio_and_a_time_may_be_any_number() -> None:
    for metric, at_most in (("rank_uniformity", 1.08), ("rank_uniformity", 3), ("step_time_p95", 468.5)):
        assert requirement(metric=metric, at_least=None, at_most=at_most, source=REASONED).bound == at_most


AGREED = {"measured": 1, "margin_pct": 0, "reference": "arithmetic: the same gradients for all"}


def test_replicas_have_to_agree_altogether() -> None:
    assert requirement(metric="replica_agreement", at_least=1, source=AGREED).severity == "fail"


@pytest.mark.parametrize("at_least", [0.5, 0.99, 1.01])
def test_replicas_that_need_not_all_agree_are_refused(at_least: float) -> None:
    sentence = (
        f"at_least {at_least:g} for replica_agreement lets ranks differ that have to agree bit for bit; expected 1"
    )
    with pytest.raises(ValidationError, match=sentence):
        requirement(metric="replica_agreement", at_least=at_least, source=AGREED)


@pytest.mark.parametrize("at_least", [0.9506, 0.95, 0.956])
def test_a_rounded_bound_agrees_with_its_source(at_least: float) -> None:
    assert requirement(at_least=at_least).bound == at_least


@given(measured=st.floats(0.5, 1.0), margin_pct=st.floats(0, 20))
def test_the_bound_is_measured_less_margin_for_at_least_and_more_for_at_most(
    measured: float, margin_pct: float
) -> None:
    source = {"measured": measured, "margin_pct": margin_pct, "reference": "a paper"}
    below, above = measured * (1 - margin_pct / 100), measured * (1 + margin_pct / 100)
    assert requirement(at_least=below, source=source).bound == below
    assert requirement(metric="peak_memory_gib", at_least=None, at_most=above, source=source).bound == above
    if margin_pct > 1:
        with pytest.raises(ValidationError, match="contradicts its source"):
            requirement(at_least=above, source=source)
        with pytest.raises(ValidationError, match="contradicts its source"):
            requirement(metric="peak_memory_gib", at_least=None, at_most=below, source=source)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({}, "a GPU needs `name: '^…$'`"),
        ({"name": "RTX PRO 6000"}, "is not anchored"),
        ({"name": "^RTX PRO 6000"}, "is not anchored"),
        ({"name": "RTX PRO 6000$"}, "is not anchored"),
        ({"name": "^(RTX$"}, "is no regular expression: missing )"),
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


def test_a_workload_is_called_what_it_is_listed_under(load: Callable[[str], ThresholdsFile]) -> None:
    assert load(VALID).thresholds.skus["old"].workloads["r"].name == "r"


def test_names_and_aliases_find_a_sku(load: Callable[[str], ThresholdsFile]) -> None:
    thresholds = load(VALID).thresholds
    assert thresholds.canonical_name("old") == "old"
    assert thresholds.canonical_name("older") == "old"
    assert thresholds.canonical_name("oldest") is None


def test_a_generation_ratio_is_taken_against_what_the_reference_published(
    load: Callable[[str], ThresholdsFile],
) -> None:
    thresholds = load(VALID).thresholds
    throughput, source = thresholds.reference_throughput(thresholds.skus["new"].requirements[1])
    assert throughput == 100  # measured, not the bound
    assert source.reference == "a paper"


def test_a_warn_bound_may_be_tighter_than_the_fail_bound(load: Callable[[str], ThresholdsFile]) -> None:
    tighter = WEAK.replace("at_least: 0.95", "at_least: 0.96, severity: warn")
    requirements = load(VALID.replace(WEAK, f"{WEAK}\n{tighter}")).thresholds.skus["new"].requirements
    assert [(r.severity, r.bound) for r in requirements[:2]] == [("fail", 0.95), ("warn", 0.96)]


@pytest.mark.parametrize("looser", ["0.95", "0.9"])
def test_a_warn_bound_no_tighter_than_the_fail_bound_is_refused(looser: str, refusal: Refusal) -> None:
    warn = WEAK.replace("at_least: 0.95", f"at_least: {looser}, severity: warn")
    line, message = refusal(VALID.replace(WEAK, f"{WEAK}\n{warn}"))
    assert line == WEAK_LINE + 1
    assert "weak_scaling_efficiency of r at world size 8: the warn bound is looser than the fail bound" in message


def test_a_looser_upper_warn_bound_is_refused_as_well(refusal: Refusal) -> None:
    memory = VALID.splitlines()[10]
    warn = memory.replace("at_most: 12.6", "at_most: 13, severity: warn").replace("margin_pct: 5", "margin_pct: 8")
    line, message = refusal(VALID.replace(memory, f"{memory}\n{warn}"))
    assert line == 12
    assert "the warn bound is looser than the fail bound" in message


def test_a_requirement_given_twice_is_refused(refusal: Refusal) -> None:
    line, message = refusal(VALID.replace(WEAK, f"{WEAK}\n{WEAK.replace('0.95', '0.94')}"))
    assert line == WEAK_LINE + 1
    assert (
        "skus.new.requirements[1]: weak_scaling_efficiency of r at world size 8 is required twice: 0.95 and 0.94"
        in message
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "complaint"),
    [
        ("aliases: [older]", "aliases: [new]", 5, "alias 'new' already names new"),
        ("aliases: [older]", "aliases: [old]", 5, "alias 'old' already names old"),
        ("aliases: [older]", "aliases: [older, older]", 5, "alias 'older' already names old"),
        ("versus: old", "versus: older", RATIO_LINE, "versus 'older' is no SKU of this file (an alias will not do)"),
        ("versus: old", "versus: oldest", RATIO_LINE, "versus 'oldest' is no SKU of this file"),
        ("precision: fp16, batch_size: 16", "precision: bf16, batch_size: 16", RATIO_LINE,
         "versus old: r differs in precision, so no ratio is meaningful"),
        ("batch_size: 16,", "batch_size: 16, memory_format: contiguous, image_size: 192,", RATIO_LINE,
         "versus old: r differs in image_size, memory_format, so no ratio is meaningful"),
        ("r: {model: resnet18, precision: fp16, batch_size: 4, global_batch_size: 8}", "{}", 10, "its workloads: none"),
        ("source: {measured: 100, margin_pct: 5, reference: a paper}",
         "provisional: true, source: {reasoning: a mere guess}", RATIO_LINE,
         "old publishes no throughput_per_gpu for r: add one with `source: {measured: …}`"),
    ],
)  # fmt: skip
def test_parts_that_contradict_each_other_are_refused(
    old: str, new: str, line: int, complaint: str, refusal: Refusal
) -> None:
    named, message = refusal(changed(old, new))
    assert complaint in message
    assert named == line


def test_a_batch_of_its_own_does_not_forbid_a_ratio(load: Callable[[str], ThresholdsFile]) -> None:
    skus = load(VALID).thresholds.skus
    assert skus["old"].workloads["r"].batch_size != skus["new"].workloads["r"].batch_size


def test_a_ratio_to_a_sku_without_that_workload_is_refused(refusal: Refusal) -> None:
    text = changed(
        "      r: {model: resnet18, precision: fp16, batch_size: 4,",
        "      q: {model: resnet18, precision: fp16, batch_size: 4,",
    )
    line, message = refusal(text.replace("throughput_per_gpu, workload: r", "throughput_per_gpu, workload: q").replace(
        "peak_memory_gib, workload: r", "peak_memory_gib, workload: q"))  # fmt: skip
    assert line == RATIO_LINE
    assert "versus old: it has no workload 'r' to compare with" in message


def test_an_unknown_workload_is_refused_and_the_known_ones_are_named(refusal: Refusal) -> None:
    line, message = refusal(weak_changed("workload: r", "workload: resnet"))
    assert line == WEAK_LINE
    assert "workload 'resnet' is not defined for this SKU; its workloads: r" in message


MFU = WEAK.replace("weak_scaling_efficiency", "model_flops_utilization").replace("0.95", "0.3")
PEAK = "    peak: {{{key}: 100, source: {{reference: a data sheet}}}}\n    workloads:\n      r: {{model: resnet18, precision: {precision}, batch_size: 16,"  # noqa: E501 - as in VALID
WORKLOAD_HEAD = "    workloads:\n      r: {model: resnet18, precision: fp16, batch_size: 16,"


def with_utilization_and_peak(key: str, precision: str) -> str:
    """`VALID` with a model FLOPs utilization in place of the efficiency, and a peak of the new generation."""
    peak = changed(WORKLOAD_HEAD, PEAK.format(key=key, precision=precision))
    ratio = peak.splitlines()[RATIO_LINE]  # one further down, for the line of the peak
    return peak.replace(WEAK, MFU).replace(f"{ratio}\n", "")


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_flops_utilization_is_of_the_peak_in_the_workloads_precision(
    precision: str, load: Callable[[str], ThresholdsFile]
) -> None:
    sku = load(with_utilization_and_peak(f"{precision}_tflops", precision)).thresholds.skus["new"]
    assert sku.peak_tflops(sku.workloads["r"]) == 100


@pytest.mark.parametrize(
    ("key", "precision", "tf32"),
    [
        ("fp16_tflops", "bf16", ""),
        ("bf16_tflops", "fp16", ""),
        ("fp16_tflops", "fp32", ", that of the plain fp32 units, for TF32 is not used"),
    ],
)
def test_flops_utilization_without_that_peak_is_refused(key: str, precision: str, tf32: str, refusal: Refusal) -> None:
    line, message = refusal(with_utilization_and_peak(key, precision))
    assert line == WEAK_LINE + 1
    needs = f"model_flops_utilization of r needs `{precision}_tflops: NUMBER` under this SKU's `peak`{tf32}"
    assert needs in message


def test_flops_utilization_without_any_peak_is_refused(refusal: Refusal) -> None:
    line, message = refusal(VALID.replace(WEAK, MFU))
    assert line == WEAK_LINE
    assert "needs `fp16_tflops: NUMBER`" in message


def test_strong_scaling_needs_a_global_batch_that_the_ranks_can_share(refusal: Refusal) -> None:
    strong = weak_changed("weak_scaling_efficiency", "strong_scaling_efficiency")
    for text, complaint in (
        (strong.replace("batch_size: 16, global_batch_size: 8", "batch_size: 16"), "r has no global_batch_size"),
        (
            strong.replace("world_size: 8", "world_size: 3"),
            "global_batch_size 8 of r cannot be shared evenly by 3 ranks",
        ),
    ):
        line, message = refusal(text)
        assert line == WEAK_LINE
        assert complaint in message


def test_several_contradictions_are_counted(refusal: Refusal) -> None:
    _, message = refusal(weak_changed("workload: r", "workload: x").replace("aliases: [older]", "aliases: [new]"))
    assert "(1 more like this)" in message


@pytest.mark.parametrize("world_size", ["node", "2 nodes", "16 nodes", "all"])
def test_a_world_size_may_be_a_word(world_size: str) -> None:
    assert requirement(world_size=world_size).world_size == world_size


def test_strong_scaling_is_of_a_number_of_ranks_that_can_share_the_batch() -> None:
    with pytest.raises(
        ValidationError, match="strong_scaling_speedup shares one batch among the ranks; expected a num"
    ):
        requirement(metric="strong_scaling_speedup", world_size="all")
