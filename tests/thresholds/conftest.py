from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds

# Line numbers matter: tests name them.
VALID = """\
schema_version: 1
skus:
  old:
    description: the reference generation
    aliases: [older]
    detect: {name: '^Old$', pci_device_ids: ['00a1'], memory_gib: 16}
    workloads:
      r: {model: resnet18, precision: fp16, batch_size: 4, global_batch_size: 8}
    requirements:
      - {metric: throughput_per_gpu, workload: r, world_size: 1, at_least: 95, source: {measured: 100, margin_pct: 5, reference: a paper}}
      - {metric: peak_memory_gib, workload: r, world_size: 2, at_most: 12.6, source: {measured: 12, margin_pct: 5, reference: a paper}}
  new:
    description: the generation under test
    detect: {name: '^New$'}
    workloads:
      r: {model: resnet18, precision: fp16, batch_size: 16, global_batch_size: 8}
    requirements:
      - {metric: weak_scaling_efficiency, workload: r, world_size: 8, at_least: 0.95, source: {measured: 0.97, reference: a paper, reasoning: rounded down}}
      - {metric: generation_ratio, workload: r, world_size: 1, versus: old, at_least: 2, provisional: true, source: {reasoning: twice the units}}
"""  # noqa: E501 - one requirement, one line
WEAK_LINE, RATIO_LINE = 18, 19
WEAK = VALID.splitlines()[WEAK_LINE - 1]

ONE_NODE = Layout(1, 8)

Refusal = Callable[[str | bytes], tuple[int | None, str]]


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], ThresholdsFile]:
    """Write a thresholds file and load it."""

    def write_and_load(text: str) -> ThresholdsFile:
        path = tmp_path / "thresholds.yaml"
        path.write_text(text, encoding="utf-8")
        return load_thresholds(path)

    return write_and_load


@pytest.fixture
def refusal(tmp_path: Path) -> Refusal:
    """Write a file that must not load; its line as the error names it, and the whole message."""

    def write_and_fail(content: str | bytes) -> tuple[int | None, str]:
        path = tmp_path / "thresholds.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ThresholdsError) as raised:
            load_thresholds(path)
        where = raised.value.where
        assert where.startswith(str(path))
        line = where.removeprefix(str(path)).removeprefix(":")
        return (int(line) if line else None), str(raised.value)

    return write_and_fail


def changed(old: str, new: str) -> str:
    """`VALID` with one place changed."""
    assert VALID.count(old) == 1, f"{old!r} is there {VALID.count(old)} times"
    return VALID.replace(old, new)


def weak_changed(old: str, new: str) -> str:
    """`VALID` with the weak-scaling requirement changed."""
    assert WEAK.count(old) == 1
    return VALID.replace(WEAK, WEAK.replace(old, new))
