"""Files made to hang, to fill memory, or to judge nothing: refused at their line, within seconds."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.rows import rows
from tests.thresholds.conftest import BATCH_LINE, LINES, VALID, WEAK_LINE, Refusal, changed, weak_changed, with_row

LAST = len(LINES) + 1
MOST_S = 5.0  # generous, as other work may share the cores


def bomb(kind: str) -> str:
    """A list, or a mapping, of nine times the one above, and so on."""
    lines = [f"a0: &a0 {'[x, x]' if kind == 'list' else '{x: 1}'}"]
    for level in range(1, 12):
        aliases = [f"*a{level - 1}"] * 9
        inside = ", ".join(aliases if kind == "list" else [f"k{i}: {alias}" for i, alias in enumerate(aliases)])
        body = {"list": f"[{inside}]", "mapping": f"{{{inside}}}", "merge": f"{{<<: [{', '.join(aliases)}]}}"}[kind]
        lines.append(f"a{level}: &a{level} {body}")
    return "\n".join([*lines, VALID])


@rows("kind", ["list", "mapping", "merge"])
def test_aliases_that_would_explode_are_refused_before_they_do(kind: str, refusal: Refusal) -> None:
    began = time.process_time()
    line, message = refusal(bomb(kind))
    assert time.process_time() - began < MOST_S
    assert (line, "the YAML anchor or alias 'a0'" in message) == (1, True)


ROWS_OF_ALL = "\n".join(
    f"      - {{throughput_per_gpu: {{{', '.join(f'{size}: 1' for size in range(1, 400))}}}, of: r, provisional: few}}"
    for _ in range(20)
)
MANY_SKUS = "".join(
    f"  s{i}: {{description: x, detect: {{name: '^X$'}}, families: [{', '.join(['f'] * 40)}]}}\n" for i in range(150)
)
FAMILY = "".join(
    f"    - {{busbw_gbps: {{{i + 2}: 1}}, probe: all-reduce-1mib, provisional: few}}\n" for i in range(400)
)


@rows(
    ("text", "complaint"),
    [
        (VALID + ROWS_OF_ALL, "is required twice"),
        (VALID.replace("skus:\n", f"families:\n  f:\n{FAMILY}skus:\n") + MANY_SKUS, "is required by two of the"),
        (with_row(f"throughput_per_gpu: {{{', '.join(f'{n}: 1' for n in range(1, 400))}}}, of: [{'r, ' * 400}]"
                  ", provisional: few"), "it is more than 500 requirements"),
    ],
)  # fmt: skip
def test_rows_that_multiply_are_refused_before_they_do(text: str, complaint: str, refusal: Refusal) -> None:
    began = time.process_time()
    assert complaint in refusal(text)[1]
    assert time.process_time() - began < MOST_S


@rows(
    ("text", "line", "complaint"),
    [
        ("? [a, b]\n: 1\n" + VALID, 1, "a key of the file is a list or a mapping; expected text"),
        (
            changed("description: the reference generation", f"description: {'x' * 5000}"),
            9,
            "a text of 5000 characters",
        ),
        (weak_changed("8: 0.97", f"8: {'9' * 5000}"), WEAK_LINE, "a text of 5000 characters"),
        (weak_changed("8: 0.97", f"{'9' * 900}: 0.97"), WEAK_LINE, "is 9999"),
        (VALID + "x: [" + "a," * 60_000 + "]\n", LAST, "more than 30000 keys and values"),
        (VALID + "x: " + "{a: " * 300 + "\n", LAST, "nested too deeply; expected at most 40 levels"),
        (VALID + "#" * 500_000, 1, "is larger than 400 KiB"),
        (weak_changed("bound: 0.95", "bound: !!bool maybe"), WEAK_LINE, "a value that cannot be read"),
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
    for path in (Path("a\0b"), tmp_path / ("x" * 5000)):
        with pytest.raises(ThresholdsError, match="cannot be read"):
            load_thresholds(path)
    with pytest.raises(ThresholdsError, match="does not exist"):
        load_thresholds(tmp_path / "\udcff")


@rows(
    ("text", "line", "complaint"),
    [
        (changed("  old:\n", "  ../old:\n"), 8, "'../old' is not a valid name; expected up to 64 letters, digits"),
        (changed("  old:\n", "  /etc/passwd:\n"), 8, "'/etc/passwd' is not a valid name"),
        (changed("  old:\n", "  .:\n"), 8, "'.' is not a valid name"),
        (changed("  old:\n", "  --help:\n"), 8, "'--help' is not a valid name"),
        (changed("  old:\n", "  'o l d':\n"), 8, "'o l d' is not a valid name"),
        (changed("  old:\n", '  "a\\e[31m":\n'), 8, "is not a valid name"),
        (changed("  old:\n", f"  {'o' * 65}:\n"), 8, "is not a valid name"),
        (changed("aliases: [older]", "aliases: [old, ../x]"), 10, "'../x' is not a valid name"),
        (changed("aliases: [older]", "aliases: ['']"), 10, "'' is not a valid name"),
        (changed("aliases: [older]", "aliases: [auto]"), 10, "'auto' cannot name a SKU"),
        (changed("  old:\n", "  auto:\n"), 8, "'auto' cannot name a SKU"),
        (VALID.replace("of: r,", "of: a/b,").replace("  r: {m", "  a/b: {m").replace("batch: {r", "batch: {a/b"), 12,
         "'a/b' is not a valid name"),
        (VALID.replace("model: resnet18", "model: resnet51"), 6,
         "workloads.r.model: torchvision has no model 'resnet51'; did you mean 'resnet50'?"),
        (VALID.replace("model: resnet18", "model: fasterrcnn"), 6, "torchvision has no model"),
        (VALID.replace("model: resnet18", "model: ''"), 6, "torchvision has no model ''; expected a cl"),
        (changed("the reference generation", "'  '"), 9, "description is '  '; expected String should have at least 1"),
        (changed("the reference generation", '"a\\e[2J"'), 9, "contains the control character"),
        (changed("'^Old$'", "'^(a+)+$'"), 11, "repeats a group, which may take for ever to match"),
        (changed("'^Old$'", "'^a{99999999999999999999}$'"), 11, "is not a regular expression: the repetition number"),
    ],
)  # fmt: skip
def test_names_models_and_patterns_that_would_do_harm_are_refused(
    text: str, line: int, complaint: str, refusal: Refusal
) -> None:
    named, message = refusal(text)
    assert complaint in message
    assert named == line
    assert all(c.isprintable() for c in message)


@rows(
    ("text", "line", "complaint"),
    [
        (weak_changed("8: 0.97", "1000001: 0.97"), WEAK_LINE, "expected a whole number from 1 to 1000000"),
        (weak_changed("8: 0.97", "1000000000000: 0.97"), WEAK_LINE, "expected a whole number from 1 to 1000000"),
        (weak_changed("8: 0.97", "8: 0"), WEAK_LINE, "published weak_scaling_efficiency of 0 is impossible"),
        (weak_changed("8: 0.97", "8: -0.97"), WEAK_LINE, "expected greater than or equal to 0"),
        (weak_changed("bound: 0.95", "bound: 1.2"), WEAK_LINE, "no machine could pass it"),
        (weak_changed("bound: 0.95", "bound: 0.0000001"), WEAK_LINE, "no machine could fail it"),
        (weak_changed("rounded down", "'    '"), WEAK_LINE, "because is '    '; expected String should have at least "),
        (changed("paper: a paper", "paper: '  '"), 2, "sources.paper is '  '; expected String should have at least 1"),
        (changed("paper: a paper", 'paper: "\\u202e paper"'), 2, "contains the control character"),
        (changed("precision: fp16", "precision: fp16, image_size: 1000000000"), 6, "image_size is 1000000000; expecte"),
        (changed("precision: fp16", "precision: fp16, num_classes: 1000000000"), 6, "num_classes is 1000000000; expec"),
        (changed("per_gpu: 16", "per_gpu: 1000000000"), BATCH_LINE, "per_gpu is 1000000000; expected less than or"),
        (changed("16, global: 8", "16, global: 1000000000"), BATCH_LINE, "global is 1000000000; expected less than or"),
        (changed("{per_gpu: 16, global: 8}", "1000000000"), BATCH_LINE, "batch.r is 1000000000; expected less than"),
    ],
)  # fmt: skip
def test_numbers_and_sources_that_cannot_be_are_refused(text: str, line: int, complaint: str, refusal: Refusal) -> None:
    named, message = refusal(text)
    assert complaint in message
    assert named == line
