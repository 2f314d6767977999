"""`pytest --gpu-sku=cpu` with bounds on the computation and communication."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.sites import make_site, measured, verdicts_of

pytestmark = pytest.mark.lab

ASKED = """
schema_version: 2
sources: {paper: nobody}
workloads:
  tiny: {model: minute, precision: fp32, image_size: 32, memory_format: contiguous, num_classes: 10}
skus:
  cpu:
    description: any CPU
    detect: {device: cpu}
    batch: {tiny: 2}
    requirements:
      - {computation_time: {2: 0.01}, of: tiny, published: paper, bound: 0.02, because: no CPU is that fast}
      - {communication_time: {2: 5}, of: tiny, published: paper, bound: 10000, because: made up}
      - {replica_agreement: {2: 1}, of: tiny, because: arithmetic}
"""


def test_bounds_are_kept_and_missed_and_replicas_agree(tmp_path: Path) -> None:
    site = make_site(tmp_path / "site", ASKED)
    result = measured(site, "-q", "acceptance")
    assert result.returncode == 1, result.stdout + result.stderr
    verdicts = {one["metric"]: one for one in verdicts_of(site)["verdicts"]}
    assert {metric: one["outcome"] for metric, one in verdicts.items()} == {
        "computation_time": "failed", "communication_time": "passed", "replica_agreement": "passed",
    }  # fmt: skip
    computation, communication = verdicts["computation_time"], verdicts["communication_time"]
    assert 0.02 < computation["interval"][0] < computation["value"] < computation["interval"][1]
    # Communication that computation hides costs nothing: noise then makes the difference negative.
    assert communication["interval"][0] <= communication["value"] < communication["interval"][1] < 10_000
    assert (computation["unit"], communication["unit"]) == ("ms", "ms")
