"""What a row says: values by world size and name, where bounds come from, and names for what is said more than once."""

from __future__ import annotations

import pytest

from pytest_ddpscale.thresholds.model import Requirement
from tests.rows import rows
from tests.thresholds.conftest import LINES, RATIO_LINE, VALID, WEAK, Load, Refusal, changed, with_row

FAMILY = """\
families:
  shared:
    - {check: [ecc, clock], severity: warn}
    - {busbw_gbps: {8: 50, all: 20}, probe: all-reduce-1mib, provisional: few}
skus:
"""
SHARING = changed("skus:\n", FAMILY).replace("    detect: {", "    families: [shared]\n    detect: {")


def rows_in(text: str, load: Load, sku: str = "new") -> list[Requirement]:
    """The requirements of the new generation but those of `VALID`."""
    found = load(text).thresholds.skus[sku].requirements
    return [one for one in found if one.metric not in ("weak_scaling_efficiency", "generation_ratio")]


def told(text: str, load: Load) -> list[tuple[str, str, int | str, float]]:
    return [(one.metric, one.subject, one.world_size, one.bound) for one in rows_in(text, load)]


def test_a_row_is_a_requirement_for_each_metric_world_size_and_name_at_its_line(load: Load) -> None:
    found = rows_in(
        with_row("throughput_per_gpu: {1: 100, 8: 80}, peak_memory_gib: {8: 10}, of: r, published: paper"), load
    )
    assert [(one.metric, one.world_size, one.bound) for one in found] == [
        ("throughput_per_gpu", 1, 95), ("throughput_per_gpu", 8, 76), ("peak_memory_gib", 8, 10.5),
    ]  # fmt: skip
    assert {one.where.rpartition(":")[2] for one in found} == {str(RATIO_LINE + 1)}
    assert {one.source.reference for one in found} == {"a paper"}


def test_a_row_says_how_its_source_trained_one_gpu(load: Load) -> None:
    text = with_row("throughput_per_gpu: {1: 100, 8: 80}, of: r, published: paper, baseline: ddp")
    assert [(one.world_size, one.one_gpu) for one in rows_in(text, load)] == [(1, "ddp"), (8, "alone")]
    (without,) = rows_in(with_row("throughput_per_gpu: {1: 100}, of: r, published: paper"), load)
    assert without.one_gpu == "alone"


@rows(
    ("row", "expected"),
    [
        ("busbw_gbps: {8: {all-reduce-1mib: 100, all-reduce-1gib: 200}, all: {all-reduce-1gib: 40}}",
         [("all-reduce-1mib", 8, 95), ("all-reduce-1gib", 8, 190), ("all-reduce-1gib", "all", 38)]),
        ("busbw_gbps: {8: 100}, probe: [all-gather-1gib, reduce-scatter-1gib]",
         [("all-gather-1gib", 8, 95), ("reduce-scatter-1gib", 8, 95)]),
        ("busbw_gbps: {node: 100, 2 nodes: 50, 16 nodes: 20}, probe: all-gather-1gib",
         [("all-gather-1gib", "node", 95), ("all-gather-1gib", "2 nodes", 47.5), ("all-gather-1gib", "16 nodes", 19)]),
    ],
)  # fmt: skip
def test_values_may_be_by_name_and_names_may_be_several(
    row: str, expected: list[tuple[str, int | str, float]], load: Load
) -> None:
    assert [one[1:] for one in told(with_row(f"{row}, published: paper"), load)] == expected


def test_of_one_world_size_a_number_says_all(load: Load) -> None:
    text = with_row("matmul_tflops: 75, probe: matmul-fp16, provisional: few", "no_regression: 0.9, provisional: few")
    assert told(text, load) == [("matmul_tflops", "matmul-fp16", 1, 75), ("no_regression", "", 1, 0.9)]


def test_what_a_provisional_row_says_is_the_bound_which_only_warns(load: Load) -> None:
    named, stated = rows_in(with_row(
        "throughput_per_gpu: {1: 100}, of: r, provisional: few",
        "throughput_per_gpu: {8: 100}, of: r, provisional: half of what it was, severity: fail"), load)  # fmt: skip
    assert (named.bound, named.severity, named.provisional, named.source.measured) == (100, "warn", True, None)
    assert named.source.reasoning == "too few to say more"
    assert (stated.severity, stated.source.reasoning) == ("fail", "half of what it was")


@rows(
    ("more", "bound", "margin_pct", "reasoning"),
    [
        ("", 95, 5, None),
        (", because: few", 95, 5, "too few to say more"),
        (", margin: 0 %", 100, 0, None),
        (", margin: 12.5%, because: it is noisy", 87.5, 12.5, "it is noisy"),
        (", margin: loose", 80, 20, "it varies"),
        (", margin: loose, because: few", 80, 20, "too few to say more"),
        (", bound: 42, because: few", 42, None, "too few to say more"),
        (", bound: {8: 42}, because: few", 42, None, "too few to say more"),
    ],
)
def test_a_published_value_has_a_margin_or_a_bound(
    more: str, bound: float, margin_pct: float | None, reasoning: str | None, load: Load
) -> None:
    row = f"busbw_gbps: {{8: 100}}, probe: all-reduce-1mib, published: paper{more}"
    (found,) = rows_in(with_row(row), load)
    assert (found.bound, found.severity, found.provisional) == (bound, "fail", False)
    source = found.source
    assert (source.measured, source.margin_pct, source.reference, source.reasoning) == (
        100, margin_pct, "a paper", reasoning,
    )  # fmt: skip


def test_bounds_may_be_stated_by_world_size(load: Load) -> None:
    row = "throughput_per_gpu: {1: 100, 2: 90}, of: r, published: paper, bound: {1: 10, 2: 5}, because: few"
    assert [one[2:] for one in told(with_row(row), load)] == [(1, 10), (2, 5)]


def test_a_margin_with_a_reason_may_be_of_several_metrics(load: Load) -> None:
    loose = "loose: {matmul_tflops: 10 %, host_bandwidth_gbps: 50 %, busbw_gbps: 20 %, because: it varies}"
    text = with_row("matmul_tflops: 100, probe: matmul-fp16, published: paper, margin: loose")
    assert told(changed("loose: {busbw_gbps: 20 %, because: it varies}", loose, text), load)[0][3] == 90


def test_only_agreement_needs_nobody_who_published_it(load: Load) -> None:
    (found,) = rows_in(with_row("replica_agreement: {8: 1}, of: r, because: arithmetic"), load)
    assert (found.severity, found.provisional, found.source.measured) == ("fail", False, None)


def test_a_family_is_shared_and_a_row_of_the_skus_own_replaces_its(load: Load) -> None:
    bus = "      - {busbw_gbps: {8: 70}, probe: all-reduce-1mib, provisional: few}\n"
    skus = load(f"{SHARING}{bus}      - {{check: ecc, severity: fail}}\n").thresholds.skus
    assert skus["old"].checks == {"ecc": "warn", "clock": "warn"}
    assert skus["new"].checks == {"ecc": "fail", "clock": "warn"}
    bounds = {name: [(r.world_size, r.bound) for r in sku.requirements if r.probe] for name, sku in skus.items()}
    assert bounds == {"old": [(8, 50), ("all", 20)], "new": [(8, 70), ("all", 20)]}
    assert [r.metric for r in skus["new"].requirements][:3] == ["node_check", "node_check", "weak_scaling_efficiency"]
    shared = [r.where.rpartition(":")[2] for r in skus["old"].requirements if r.probe]
    assert shared == [str(LINES.index("skus:") + 4)] * 2, "its line is that of the family"


def test_checks_of_a_sku_go_before_those_of_a_family(load: Load) -> None:
    text = SHARING + "    checks: {ecc: fail, disk: fail}\n"
    assert load(text).thresholds.skus["new"].checks == {"ecc": "fail", "disk": "fail", "clock": "warn"}


PROBE = "busbw_gbps: {8: 100}, probe: all-reduce-1mib"


@rows(
    ("row", "complaint"),
    [
        ("throughput_per_gp: {1: 100}, of: r, published: paper", "key 'throughput_per_gp'; did you mean 'throughput_p"),
        (f"{PROBE}, publisht: paper", "unknown key 'publisht'; did you mean 'published'?"),
        (f"{PROBE}, colour: red", "unknown key 'colour'; expected a metric, or of, probe, published, margin, bound"),
        ("node_check: 1, check: ecc, severity: fail", "unknown key"),
        ("of: r, published: paper", "has no metric; expected one as a key, such as throughput_per_gpu: {8: 480.1}"),
        (f"{PROBE}, published: papr", "there is no 'papr' under `sources`; did you mean 'paper'?"),
        (f"{PROBE}, published: xyz", "there is no 'xyz' under `sources`; expected one of paper"),
        (f"{PROBE}, published: paper, margin: lose", "there is no 'lose' under `margins`; did you mean 'loose'?"),
        (f"{PROBE}, published: paper, margin: 100 %", "margin is '100 %'; expected per cent from 0 to 99, such as `5"),
        (f"{PROBE}, published: paper, margin: 51 %", "a margin of 51 %, above 50 %, needs `because: 'why so wide'`"),
        (f"{PROBE}, published: paper, margin: 5", "margin is 5; expected per cent from 0 to 99"),
        (f"{PROBE}, provisional: fw", "there is no 'fw' under `reasons`; did you mean 'few'?"),
        (f"{PROBE}, published: paper, because: fews", "there is no 'fews' under `reasons`; did you mean 'few'?"),
        ("throughput_per_gpu: {1: 100}, of: q, published: paper", "no `batch` for the workload 'q'; it has r"),
        ("check: eccc, severity: fail", "there is no check 'eccc'; did you mean 'ecc'?"),
        ("check: [ecc, ram], severity: fail", "there is no check 'ram'; expected some of gpus, processes, mig, ecc,"),
        ("check: ecc, severity: error", "severity is 'error'; expected 'fail' or 'warn'"),
        ("check: ecc", "requirements[2].severity is missing; expected a value"),
        ("check: [], severity: fail", "requirements[2].check is []"),
        (PROBE, "has no source of its values; expected `published: NAME`, a name under `sources`, or `provisional:"),
        ("replica_agreement: {8: 1}, of: r", "has no source of its values"),
        (f"{PROBE}, published: paper, provisional: few", "has both `published` and `provisional`; expected one"),
        (f"{PROBE}, provisional: few, margin: 5 %", "`margin` and `bound` need `published`"),
        (f"{PROBE}, provisional: few, bound: 5", "`margin` and `bound` need `published`"),
        (f"{PROBE}, provisional: '  '", "provisional is '  '; expected String should have at least 1 character"),
        (f'{PROBE}, provisional: "\\u202e paper"', "contains the control character"),
        (f"{PROBE}, published: paper, bound: 50", "a stated `bound` needs `because: 'why this distance from"),
        (f"{PROBE}, published: paper, bound: 50, because: few, margin: 5 %", "no `margin`"),
        (f"{PROBE}, published: paper, bound: {{4: 50}}, because: few", "`bound` has other world sizes than the values"),
        ("throughput_per_gpu: {1: 9, 2: 8}, of: r, published: paper, bound: 5, because: few",
         "one `bound` for several values; expected one metric, and {2: …, 4: …} by world size"),
        ("host_bandwidth_gbps: 9, probe: host-to-device, published: paper", "there is no margin for host_bandwidth_gbps"
         "; expected `margin: 5 %` here, `host_bandwidth_gbps: 5 %` under `margins`, or a `bound`"),
        ("throughput_per_gpu: {1: 9}, of: r, published: paper, margin: loose", "there is no margin for throughput_per"),
        ("busbw_gbps: {}, probe: all-reduce-1mib, provisional: few", "busbw_gbps is {}"),
        ("busbw_gbps: {8: {}}, provisional: few", "busbw_gbps.8 is {}"),
        ("busbw_gbps: {8: -1}, probe: all-reduce-1mib, provisional: few", "is -1; expected greater than or equal to 0"),
        ("busbw_gbps: {8: 10}, probe: [], provisional: few", "requirements[2].probe is []"),
        ("throughput_per_gpu: {8: 10}, of: [], provisional: few", "requirements[2].of is []"),
        ("throughput_per_gpu: {8: 10}, of: r, probe: all-reduce-1mib, provisional: few", "has both `of` and `probe`"),
        ("busbw_gbps: {8: {all-reduce-1mib: 1}}, probe: all-gather-1mib, provisional: few", "has a value for each nam"),
        ("busbw_gbps: {1000001: 1}, probe: all-reduce-1mib, provisional: few", "expected a whole number from 1 to 100"),
        (f"{PROBE}, provisional: few, severity: info", "severity is 'info'; expected 'fail' or 'warn'"),
        ("throughput_per_gpu: {8: 9}, of: r, published: paper, baseline: ddp", "none of these values needs one"),
        ("ddp_overhead: 0.1, of: r, provisional: few, baseline: ddp", "none of these values needs one"),
        ("throughput_per_gpu: {1: 9}, of: r, provisional: few, baseline: ddp@1", "expected 'alone' or 'ddp'"),
        ("throughput_per_gpu: {2: 9}, of: r, provisional: few, placement: anyhow", "expected 'packed' or 'spread'"),
        ("weak_scaling_efficiency: {4: 0.9, 8: 0.9}, of: r, published: paper, margin: 5 %",
         "weak_scaling_efficiency of r at world size 8 is required twice: 0.95 and 0.855"),
        ("peak_memory_gib: {8: 9}, of: [r, r], provisional: few", "peak_memory_gib of r at world size 8 is required t"),
    ],
)  # fmt: skip
def test_a_row_that_says_nothing_sound_is_refused(row: str, complaint: str, refusal: Refusal) -> None:
    line, message = refusal(with_row(row))
    assert complaint in message
    assert line == RATIO_LINE + 1
    assert "skus.new" in message
    assert "ddpscale thresholds check" in message, "what to do"


@rows(
    ("old", "new", "complaint"),
    [
        ("aliases: [older]", "alias: [older]", "unknown key skus.old.alias; did you mean 'aliases'? Remove it"),
        ("per_gpu: 4", "pergpu: 4", "unknown key skus.old.batch.r.pergpu"),
        ("per_gpu: 4", "per_gpu: 4, in_all: 8", "unknown key skus.old.batch.r.in_all"),
        ("memory_gib: 16", "memory_gb: 16", "unknown key skus.old.detect.memory_gb; did you mean 'memory_gib'?"),
        ("batch: {r: {per_gpu: 4", "batch: {q: {per_gpu: 4", "there is no 'q' under `workloads`; expected one of r"),
        ("aliases: [older]", "families: [sharde]", "there is no 'sharde' under `families`; did you mean 'shared'?"),
        ("aliases: [older]", "families: shared", "skus.old.families is 'shared'; expected list"),
        ("aliases: [older]", "peak: {fp16_tflops: 1, published: papr}", "there is no 'papr' under `sources`; did you "),
        ("aliases: [older]", "checks: {eccc: fail}", "skus.old.checks: there is no check 'eccc'; did you mean 'ecc'?"),
        ("model: resnet18", "model: resnet81", "torchvision has no model 'resnet81'; did you mean 'resnet18'?"),
        ("{busbw_gbps: 20 %, because: it varies}", "{busbw_gbps: 20 %}", "margins.loose.because is missing"),
        ("{busbw_gbps: 20 %, because: it varies}", "{busbw: 2 %, because: few}", "did you mean 'busbw_gbps'?"),
        ("{busbw_gbps: 20 %, because: it varies}", "0.2", "margins.loose is 0.2; expected per cent from 0 to 99"),
    ],
)  # fmt: skip
def test_other_words_that_are_misspelt_are_told(old: str, new: str, complaint: str, refusal: Refusal) -> None:
    text = changed(old, new, changed("skus:\n", FAMILY))
    line, message = refusal(text)
    assert complaint in message
    assert line == text[: text.index(new)].count("\n") + 1


@rows(
    ("text", "complaint"),
    [
        (WEAK.replace("8: 0.97", ", ".join(f"{n}: 1" for n in range(2, 600))).replace("bound: 0.95", "margin: 5 %"),
         "it is more than 500 requirements"),
        ("\n".join(f"      - {{busbw_gbps: {{{n}: 1}}, probe: all-reduce-1mib, provisional: few}}" for n in range(520)),
         "expected List should have at most 500 items"),
    ],
)  # fmt: skip
def test_more_requirements_than_any_sku_has_are_refused(text: str, complaint: str, refusal: Refusal) -> None:
    assert complaint in refusal(VALID.replace(WEAK, text))[1]


@rows(
    ("row", "sound"),
    [
        ("throughput_per_gpu: {1: 100, 8: 80}, of: r, published: paper, margin: 7 %, sound: {1: 150, 8: 140}",
         [(150, 1 - 93 / 150), (140, 1 - 74.4 / 140)]),
        ("busbw_gbps: {8: {all-gather-1gib: 50, all-reduce-1gib: 60}}, provisional: few, "
         "sound: {8: {all-gather-1gib: 100, all-reduce-1gib: 80}}", [(100, 0.5), (80, 0.25)]),
        ("matmul_tflops: 75, probe: [matmul-fp16, matmul-bf16], provisional: few, sound: 100", [(100, 0.25)] * 2),
        ("step_time_p95: {8: 200}, of: r, provisional: few, sound: 160", [(160, 0.25)]),
        ("throughput_per_gpu: {1: 100}, of: r, published: paper", [(100, 0.05)]),
        ("throughput_per_gpu: {1: 100}, of: r, provisional: few", [(None, None)]),
        ("memory_spread: {8: 0}, of: r, published: paper, bound: 0.01, because: cuDNN", [(0, None)]),
    ],
)  # fmt: skip
def test_the_smallest_fault_that_a_row_sees_is_told_from_what_a_sound_machine_reaches(
    row: str, sound: list[tuple[float | None, float | None]], load: Load
) -> None:
    found = [(one.sound_value, one.smallest_fault) for one in rows_in(with_row(row), load)]
    assert found == [(value, fault if fault is None else pytest.approx(fault)) for value, fault in sound]


@rows(
    ("row", "complaint"),
    [
        ("throughput_per_gpu: {1: 100}, of: r, provisional: few, sound: 99", "would miss the bound 100"),
        ("step_time_p95: {8: 200}, of: r, provisional: few, sound: 201", "expected at most 200"),
        ("throughput_per_gpu: {1: 100, 8: 90}, of: r, provisional: few, sound: {1: 120}", "none of r at world size 8"),
        ("throughput_per_gpu: {1: 100}, peak_memory_gib: {8: 10}, of: r, provisional: few, sound: 120", "one metric"),
        ("weak_scaling_efficiency: {8: 0.9}, of: r, provisional: few, sound: 98", "98, which is impossible for weak"),
        ("throughput_per_gpu: {1: 100}, of: r, provisional: few, sound: {1: 120, 4: 90}", "has world size 4, of which"),
        (
            "matmul_tflops: 75, probe: matmul-fp16, provisional: few, sound: {1: {matmul-fp16: 80, matmul-bf16: 80}}",
            "`sound` has matmul-bf16, of which the row has no value",
        ),
    ],
)
def test_a_sound_value_has_to_pass_and_to_be_there_for_each_value(row: str, complaint: str, refusal: Refusal) -> None:
    line, message = refusal(with_row(row))
    assert line == RATIO_LINE + 1
    assert complaint in message
