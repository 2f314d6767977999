"""Thresholds of a site, which extend the packaged ones."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds

HEAD = """\
schema_version: 2
extends: packaged
sources: {site: 'measured here'}
"""
# One of each kind of change, on the SKU that has the most that is published.
CHANGED_A100 = """\
skus:
  a100-sxm4-80gb:
    requirements:
      - {weak_scaling_efficiency: {8: 0.98}, of: resnet152-fp16, published: site, margin: 0.5 %}
      - {peak_memory_gib: {8: 60}, of: resnet152-fp16, published: site, margin: 0 %}
      - {throughput_per_gpu: {4: 1150}, of: resnet152-fp16, published: site, margin: 5 %}
      - {throughput_per_gpu: {1: 2220}, of: resnet50-fp16, provisional: 'as it is below'}
    change:
      - {strong_scaling_efficiency: [8], of: vit-b-16-fp16, severity: off, who: A. Name, why: 'busy hosts'}
      - {device_utilization: [8], of: resnet152-fp16, severity: warn, who: A. Name, why: 'busy hosts'}
"""


def write_site(directory: Path, rest: str = CHANGED_A100, head: str = HEAD) -> Path:
    """Write a file that extends the packaged one."""
    path = directory / "thresholds.yaml"
    path.write_text(head + rest, encoding="utf-8")
    return path


def site(directory: Path, rest: str = CHANGED_A100, head: str = HEAD) -> ThresholdsFile:
    """The same, read."""
    return load_thresholds(write_site(directory, rest, head))
