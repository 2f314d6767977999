"""A family of one file, `site/sitecustomize.py`, from thresholds.yaml over real ranks to verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.run.run_directory import RunDirectory
from tests.integration.sites import make_site, measured, session, verdicts_of

SITE = {"PYTHONPATH": str(Path(__file__).with_name("site"))}
THRESHOLDS = """\
schema_version: 2
sources: {paper: nobody}
workloads:
  talk: {model: bigram, precision: fp32, context: 16}
skus:
  cpu:
    description: made up
    detect: {device: cpu}
    batch: {talk: {per_gpu: 32, global: 64}}
    requirements:
      - {throughput_per_gpu: {1: 100}, of: talk, provisional: tried here}
      - {weak_scaling_efficiency: {2: 0.001}, of: talk, provisional: tried here}
      - {strong_scaling_efficiency: {2: 0.001}, of: talk, provisional: tried here}
      - {replica_agreement: {2: 1}, of: talk, published: paper, margin: 0 %}
      - {inference_throughput: {2: 1}, of: talk, provisional: tried here}
"""


def test_it_trains_on_real_ranks_and_is_judged(tmp_path: Path) -> None:
    site = make_site(tmp_path / "site", THRESHOLDS)
    done = measured(site, "-v", **SITE)
    verdicts = {one["metric"]: one for one in verdicts_of(site)["verdicts"]}
    assert {name: one["outcome"] for name, one in verdicts.items()} == dict.fromkeys(verdicts, "passed"), done.stdout
    assert len(verdicts) == 5
    assert [verdicts[name]["unit"] for name in ("throughput_per_gpu", "inference_throughput")] == ["text/s"] * 2
    run = site / "run"
    records = map(json.loads, (run / "measurements.jsonl").read_text().splitlines())
    (flops,) = {record["flops_per_sample"] for record in records if "flops_per_sample" in record}
    assert flops == 3 * 2 * 16 * 32 * 64, "a matrix product forward, two backward"
    plan = json.loads((run / "plan.json").read_text())
    assert {study["workload"]["family"]["kind"] for study in plan["studies"]} == {"characters"}
    assert "texts_per_second" in (run / "metrics.prom").read_text()
    assert " text/s" in done.stdout
    with pytest.raises(RunDirectoryError, match=r"family of kind 'characters'; expected one of image - at `\$.studies"):
        RunDirectory.open(run)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("image_size: 16", "unknown key workloads.talk.image_size"),
        ("context: 1025", "workloads.talk.context is 1025; expected less than or equal to 1024"),
        ("data: {folder: /texts}", "texts are not read from folders; expected `data: synthetic`"),
    ],
)
def test_only_its_own_options_are_taken(tmp_path: Path, said: str, problem: str) -> None:
    site = make_site(tmp_path / "site", THRESHOLDS.replace("context: 16", said))
    done = session(site, "--gpu-sku=cpu", "--collect-only", **SITE)
    assert problem in done.stdout + done.stderr
