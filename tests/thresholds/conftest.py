from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds

# Line numbers matter: tests name them.
VALID = """\
schema_version: 2
sources: {paper: a paper}
reasons: {few: too few to say more}
margins: {throughput_per_gpu: 5 %, peak_memory_gib: 5 %, busbw_gbps: 5 %, loose: {busbw_gbps: 20 %, because: it varies}}
workloads:
  r: {model: resnet18, precision: fp16}
skus:
  old:
    description: the reference generation
    aliases: [older]
    detect: {name: '^Old$', pci_device_ids: ['00a1'], memory_gib: 16}
    batch: {r: {per_gpu: 4, global: 8}}
    requirements:
      - {throughput_per_gpu: {1: 100}, of: r, published: paper}
      - {peak_memory_gib: {2: 12}, of: r, published: paper}
  new:
    description: the generation under test
    detect: {name: '^New$'}
    batch: {r: {per_gpu: 16, global: 8}}
    requirements:
      - {weak_scaling_efficiency: {8: 0.97}, of: r, published: paper, bound: 0.95, because: rounded down}
      - {generation_ratio: {1: 2}, of: r, versus: old, provisional: twice the units}
"""
LINES = VALID.splitlines()
WORKLOAD_LINE, OLD_LINE, NEW_LINE, BATCH_LINE, WEAK_LINE, RATIO_LINE = 6, 8, 16, 19, 21, 22
WEAK = LINES[WEAK_LINE - 1]
DETECT = LINES[NEW_LINE + 1] + "\n"

ONE_NODE = Layout(1, 8)

Load = Callable[[str], ThresholdsFile]
Refusal = Callable[[str | bytes], tuple[int | None, str]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Write a thresholds file in which nothing is wrong, and load it."""

    def write_and_load(text: str) -> ThresholdsFile:
        path = tmp_path / "thresholds.yaml"
        path.write_text(text, encoding="utf-8")
        file = load_thresholds(path)
        assert file.problems == ()
        return file

    return write_and_load


@pytest.fixture
def refusal(tmp_path: Path) -> Refusal:
    """Write a file in which something is wrong; the line that the first complaint names, and all of its message."""

    def write_and_fail(content: str | bytes) -> tuple[int | None, str]:
        path = tmp_path / "thresholds.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        error = first_problem(path)
        assert error.where.startswith(str(path))
        line = error.where.removeprefix(str(path)).removeprefix(":")
        return (int(line) if line else None), str(error)

    return write_and_fail


def first_problem(path: Path) -> ThresholdsError:
    """What is wrong with a file, or with the first of its parts."""
    try:
        return load_thresholds(path).problems[0]
    except ThresholdsError as error:
        return error


def changed(old: str, new: str, text: str = VALID) -> str:
    """`VALID`, or another text, with one place changed."""
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)


def weak_changed(old: str, new: str) -> str:
    """`VALID` with the weak-scaling requirement changed."""
    return changed(WEAK, changed(old, new, WEAK))


def with_row(*rows: str) -> str:
    """`VALID` with further rows of the new generation."""
    return VALID + "".join(f"      - {{{row}}}\n" for row in rows)
