"""Files made to hang, to fill memory, or to judge nothing: refused at their line, within seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from tests.thresholds.conftest import VALID, WEAK, WEAK_LINE, Refusal, changed, weak_changed

MOST_S = 5.0  # generous, as other work may share the cores


def bomb(levels: int, kind: str) -> str:
    """A list, or a mapping, of nine times the one above, and so on."""
    lines = [f"a0: &a0 {'[x, x]' if kind == 'list' else '{x: 1}'}"]
    for level in range(1, levels):
        aliases = [f"*a{level - 1}"] * 9
        inside = ", ".join(aliases if kind == "list" else [f"k{i}: {alias}" for i, alias in enumerate(aliases)])
        body = {"list": f"[{inside}]", "mapping": f"{{{inside}}}", "merge": f"{{<<: [{', '.join(aliases)}]}}"}[kind]
        lines.append(f"a{level}: &a{level} {body}")
    return "\n".join([*lines, VALID])


@pytest.mark.parametrize("kind", ["list", "mapping", "merge"])
def test_aliases_that_explode_are_refused_where_they_do(kind: str, refusal: Refusal) -> None:
    began = time.process_time()
    line, message = refusal(bomb(12, kind))
    assert time.process_time() - began < MOST_S
    assert "more than 30000 keys and values, aliases written out" in message
    assert line is not None
    assert 4 <= line <= 7


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("? [a, b]\n: 1\n" + VALID, 1, "a key of the file is a list or a mapping; expected text"),
        (
            changed("description: the reference generation", f"description: {'x' * 5000}"),
            4,
            "a text of 5000 characters",
        ),
        (weak_changed("world_size: 8", f"world_size: {'9' * 5000}"), WEAK_LINE, "a text of 5000 characters"),
        (weak_changed("world_size: 8", f"world_size: {'9' * 900}"), WEAK_LINE, "world_size is 9999"),
        (VALID + "x: [" + "a," * 60_000 + "]\n", 20, "more than 30000 keys and values"),
        (VALID + "x: " + "{a: " * 300 + "\n", 20, "nested too deeply; expected at most 40 levels"),
        (VALID + "#" * 500_000, 1, "is larger than 400 KiB"),
        (weak_changed("at_least: 0.95", "at_least: !!bool maybe"), WEAK_LINE, "a value that cannot be read"),
    ],
)
def test_a_file_too_large_for_its_purpose_is_refused(text: str, line: int, complaint: str, refusal: Refusal) -> None:
    began = time.process_time()
    named, message = refusal(text)
    assert time.process_time() - began < MOST_S
    assert complaint in message
    assert named == line
    assert len(message) < 1500


def test_what_never_ends_is_not_even_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), Path("/dev/stdin")):
        with pytest.raises(ThresholdsError, match="is a device or a pipe; expected a YAML file"):
            load_thresholds(path)


def test_a_path_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    for path in (Path("a\0b"), tmp_path / ("x" * 5000), tmp_path / "\udcff"):
        with pytest.raises(ThresholdsError, match="cannot be read"):
            load_thresholds(path)


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        (changed("  old:\n", "  ../old:\n"), 3, "'../old' is no name; expected up to 64 letters, digits"),
        (changed("  old:\n", "  /etc/passwd:\n"), 3, "'/etc/passwd' is no name"),
        (changed("  old:\n", "  .:\n"), 3, "'.' is no name"),
        (changed("  old:\n", "  --help:\n"), 3, "'--help' is no name"),
        (changed("  old:\n", "  'o l d':\n"), 3, "'o l d' is no name"),
        (changed("  old:\n", '  "a\\e[31m":\n'), 3, "is no name"),
        (changed("  old:\n", f"  {'o' * 65}:\n"), 3, "is no name"),
        (changed("aliases: [older]", "aliases: [old, ../x]"), 5, "'../x' is no name"),
        (changed("aliases: [older]", "aliases: ['']"), 5, "'' is no name"),
        (changed("aliases: [older]", "aliases: [auto]"), 5, "'auto' cannot name a SKU"),
        (changed("  old:\n", "  auto:\n"), 3, "'auto' cannot name a SKU"),
        (VALID.replace("workload: r,", "workload: a/b,").replace("      r: {", "      a/b: {"), 8, "'a/b' is no name"),
        (VALID.replace("model: resnet18", "model: resnet51"), 8,
         "torchvision has no model 'resnet51'; expected a classification model of it, such as resnet"),
        (VALID.replace("model: resnet18", "model: fasterrcnn_resnet50_fpn"), 8, "torchvision has no model"),
        (VALID.replace("model: resnet18", "model: ''"), 8, "torchvision has no model ''"),
        (changed("the reference generation", "'  '"), 4, "description is '  '; expected String should have at least 1"),
        (changed("the reference generation", '"a\\e[2J"'), 4, "there is a control character"),
        (changed("'^Old$'", "'^(a+)+$'"), 6, "repeats a group, which may take for ever to match"),
        (changed("'^Old$'", "'^a{99999999999999999999}$'"), 6, "is no regular expression: the repetition number"),
    ],
)  # fmt: skip
def test_names_models_and_patterns_that_would_do_harm_are_refused(
    text: str, line: int, complaint: str, refusal: Refusal
) -> None:
    named, message = refusal(text)
    assert complaint in message
    assert named == line
    assert all(c.isprintable() for c in message)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("world_size: 8", "world_size: 1000001", "expected a whole number from 1 to 1000000"),
        ("world_size: 8", "world_size: 1000000000000", "expected a whole number from 1 to 1000000"),
        ("measured: 0.97", "measured: 0", "nobody measured a weak_scaling_efficiency of 0"),
        ("measured: 0.97", "measured: -0.97", "expected greater than or equal to 0"),
        ("reference: a paper", "reference: '    '", "should have at least 3"),
        ("reference: a paper", 'reference: "\\u202e paper"', "there is a control character"),
        ("reasoning: rounded down", "reasoning: '              '", "should have at least 10"),
    ],
)
def test_numbers_and_sources_that_cannot_be_are_refused(old: str, new: str, complaint: str, refusal: Refusal) -> None:
    line, message = refusal(weak_changed(old, new))
    assert complaint in message
    assert line == WEAK_LINE


@pytest.mark.parametrize("field", ["batch_size", "image_size", "num_classes", "global_batch_size"])
def test_a_workload_larger_than_any_is_refused(field: str, refusal: Refusal) -> None:
    workload = "r: {model: resnet18, precision: fp16, batch_size: 16, global_batch_size: 8}"
    fields = {"batch_size": 16, field: 10**9}
    text = ", ".join(f"{key}: {number}" for key, number in fields.items())
    line, message = refusal(changed(workload, f"r: {{model: resnet18, precision: fp16, {text}}}"))
    assert f"{field} is 1000000000; expected at most 1" in message
    assert line == 16


@pytest.mark.parametrize(
    ("metric", "bound", "complaint"),
    [
        ("device_utilization", "at_least: 1.01", "no machine could pass it; expected 0.001 to 1"),
        ("model_flops_utilization", "at_least: 1.5", "no machine could pass it"),
        ("weak_scaling_efficiency", "at_least: 1.2", "no machine could pass it"),
        ("weak_scaling_efficiency", "at_least: 0.0000001", "no machine could fail it"),
        ("strong_scaling_speedup", "at_least: 9", "no machine could pass it; expected 0.001 to 8.8"),
        ("throughput_per_gpu", "at_least: 0.0000001", "no machine could fail it; expected 0.001 to 1e+06 img/s"),
        ("throughput_per_gpu", "at_least: 1.0e+12", "no machine could pass it"),
        ("rank_uniformity", "at_most: 0.99", "no machine could pass it; expected 1 to 1000"),
        ("rank_uniformity", "at_most: 1.0e+6", "no machine could fail it"),
        ("step_time_p95", "at_most: 1.0e+12", "no machine could fail it; expected 0.01 to 3.6e+06 ms"),
        ("step_time_p95", "at_most: 0.000001", "no machine could pass it"),
        ("peak_memory_gib", "at_most: 100000", "no machine could fail it"),
    ],
)
def test_a_bound_that_every_machine_keeps_or_none_is_refused(
    metric: str, bound: str, complaint: str, refusal: Refusal
) -> None:
    line, message = refusal(weak_changed("at_least: 0.95", bound).replace("weak_scaling_efficiency", metric))
    assert complaint in message
    assert line == WEAK_LINE


def test_a_cost_of_nothing_may_have_been_measured(load: Callable[[str], ThresholdsFile]) -> None:
    spread = WEAK.replace("weak_scaling_efficiency", "memory_spread").replace("at_least: 0.95", "at_most: 0.01")
    text = VALID.replace(WEAK, spread.replace("measured: 0.97", "measured: 0"))
    assert load(text).thresholds.skus["new"].requirements[0].source.measured == 0
