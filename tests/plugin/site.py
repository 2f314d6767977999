"""A site of its own: the real acceptance tests, small thresholds and a run that somebody measured."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, Scaling, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.strict_json import column
from pytest_ddpscale.util.packaged import packaged
from tests.builders.json_types import begin
from tests.builders.records import gang_on, steady_block
from tests.plugin.forked import run_pytest

SKU = "tested-gpu"
ROUNDS = FEWEST_ROUNDS + 1

# Metric, workload, world size, what is published and the bound, which `Site.measured` keeps.
ROWS = (
    ("throughput_per_gpu", "resnet152-fp16", 1, 500, 1130),
    ("weak_scaling_efficiency", "resnet152-fp16", 2, 0.97, 0.974),
    ("weak_scaling_efficiency", "resnet152-fp16", 8, 0.97, 0.96),
    ("weak_scaling_efficiency", "vit-b-16-fp16", 8, 0.97, 0.965),
    ("strong_scaling_speedup", "vit-b-16-fp16", 8, 6.5, 6.2),
    ("device_utilization", "resnet152-fp16", 8, 0.97, 0.95),
    ("peak_memory_gib", "resnet152-fp16", 8, 44.1, 46.3),
    ("generation_ratio", "resnet152-fp16, versus: reference-gpu", 1, 2.4, 2.2),
)
PAPER = "published: paper, bound: {}, because: made up"


def item(metric: str, of: str, size: int) -> str:
    """The test item of a row."""
    workload, *versus = of.split(", versus: ")
    return f"test_{metric.removesuffix('_gib')}[{'-vs-'.join([f'{workload}-{size}gpu', *versus])}]"


# Test item → the line of the thresholds file that it comes from.
REQUIREMENTS = {
    item(metric, of, size): f"{{{metric}: {{{size}: {published}}}, of: {of}, {PAPER.format(bound)}}}"
    for metric, of, size, published, bound in ROWS
}
WEAK_8 = "test_weak_scaling_efficiency[resnet152-fp16-8gpu]"
WEAK_8_NODE_ID = f"acceptance/test_scaling.py::{WEAK_8}"

_THRESHOLDS = """\
schema_version: 2
sources: {{paper: 'a paper, table 1'}}
workloads:
  resnet152-fp16: {{model: resnet152, precision: fp16}}
  vit-b-16-fp16: {{model: vit_b_16, precision: fp16}}
  resnet18-fp32: {{model: resnet18, precision: fp32, image_size: 32}}
skus:
  reference-gpu:
    description: a published reference, which no machine is
    detect: {{device: none}}
    batch: {{resnet152-fp16: 128}}
    requirements:
      - {{throughput_per_gpu: {{1: 500}}, of: resnet152-fp16, published: paper, bound: 450, because: made up}}
  tested-gpu:
    description: the generation under test
    aliases: [tested]
    detect: {{name: '^Tested GPU$', pci_device_ids: ['00a1'], memory_gib: 80}}
    peak: {{fp16_tflops: 312, memory_bandwidth_gbps: 2039, link: NVLink3, link_bandwidth_gbps: 300, published: paper}}
    batch: {{resnet152-fp16: {{per_gpu: 512, global: 256}}, vit-b-16-fp16: {{per_gpu: 1024, global: 512}}}}
    requirements:
{requirements}
  cpu:
    description: any CPU
    detect: {{device: cpu}}
    batch: {{resnet18-fp32: 4}}
    requirements:
      - {{throughput_per_gpu: {{1: 500}}, of: resnet18-fp32, published: paper, bound: 1, because: made up}}
      - {{weak_scaling_efficiency: {{2: 0.97}}, of: resnet18-fp32, published: paper, bound: 0.1, because: made up}}
"""

_RESNET = Workload("resnet152-fp16", ImageFamily("resnet152"), "fp16", 512, global_batch_size=256)
_VIT = Workload("vit-b-16-fp16", ImageFamily("vit_b_16"), "fp16", 1024, global_batch_size=512)


def thresholds_text(requirements: Iterable[str] = REQUIREMENTS.values()) -> str:
    """A thresholds file whose `tested-gpu` has these requirements."""
    return _THRESHOLDS.format(requirements="\n".join(f"      - {line}" for line in requirements))


# The published figures of eight A100s, more or less: images per second and GPU, by world size.
RATES: dict[tuple[Scaling, Workload], dict[int, float]] = {
    ("weak", _RESNET): {1: 1189.5, 2: 1176.5, 8: 1159.2},
    ("weak", _VIT): {1: 1029.9, 8: 1008.9},
    ("strong", _VIT): {1: 1019.8, 8: 836.2},
}


def write_run(path: Path, thresholds: Path, without: int = 0) -> RunDirectory:
    """A run directory as a measuring session leaves it, but for verdicts and reports.

    Args:
        path: where.
        thresholds: with which it began.
        without: a world size that was not measured.
    """
    run, used = RunDirectory.create(path), hashlib.sha256(thresholds.read_bytes()).hexdigest()
    begin(run, SKU, thresholds={"path": str(thresholds), "sha256": used}, status="finished",
          finished_at="2026-01-31T12:10:00+00:00")  # fmt: skip
    run.append_record(gang_on(["node7"], 8, "GPU-{:08x}"))
    studies = []
    for (scaling, workload), rates in RATES.items():
        batch, shared = workload.batch_size, workload.global_batch_size or 0
        arms = {
            Arm("alone" if size == 1 else "ddp", size, batch if scaling == "weak" else shared // size): rate
            for size, rate in rates.items() if size != without
        }  # fmt: skip
        study = Study(scaling, workload, tuple(arms), ROUNDS, 3.0, 10.0)
        studies.append(study)
        for number in range(ROUNDS):
            for arm, rate in arms.items():
                spread = 1 + 0.0005 * math.sin(1.7 * number + arm.world_size)
                busy = [0.98 - 0.001 * rank + 0.0005 * (number % 3) for rank in range(arm.world_size)]
                readings = {"utilization": column(busy), "peak_memory_bytes": 47_360_000_000 + 1_000_000 * number}
                block = steady_block(study.id, arm, number, range(arm.world_size), rate * spread, readings=readings)
                run.append_record(block)
        run.append_record(StudyEnd(study.id, "rounds"))
    run.write_json(run.plan_json, Plan(SKU, "cuda", tuple(studies)))
    return run


def output_of(result: pytest.RunResult) -> str:
    """Everything that was printed."""
    return f"{result.stdout.str()}\n{result.stderr.str()}"


def assert_no_crash(result: pytest.RunResult) -> None:
    """No reader of the output meets our own code."""
    assert "Traceback (most" not in output_of(result)
    assert "INTERNALERROR" not in output_of(result)


def outcome_in(printed: str) -> str:
    """The sentence that says what a run comes to, out of its lines in the output of pytest or of ddpscale."""
    words = "(?:ACCEPTED|REJECTED|INCOMPLETE|PARTIAL|REHEARSED)"
    said = re.findall(rf"^{words}.*(?:\n {{10}}\S.*)*", printed, re.MULTILINE)
    assert len(said) < 2, said
    return " ".join(line.strip() for line in "".join(said).splitlines())


class Site:
    """A project directory with acceptance tests and thresholds, in which pytest is run for real.

    Attributes:
        path: the directory.
        thresholds: its thresholds.yaml.
    """

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.path = pytester.path
        self.thresholds = self.path / "thresholds.yaml"
        self.reset()

    def reset(self) -> None:
        """As it was before anything was written or run in it."""
        os.chdir(self.path)
        for path in self.path.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.copytree(packaged("acceptance"), self.path / "acceptance", ignore=shutil.ignore_patterns("__pycache__"))
        self.thresholds.write_text(thresholds_text(), encoding="utf-8")
        self.configure()

    def configure(self, **ini: str) -> None:
        """Write pytest.ini: strict, as careful projects are, and with these keys."""
        keys = {"addopts": "--strict-markers --strict-config", "filterwarnings": "error"} | ini
        text = "\n".join(["[pytest]", *(f"{key} = {value}" for key, value in keys.items())])
        (self.path / "pytest.ini").write_text(text + "\n", encoding="utf-8")

    def write(self, name: str, text: str) -> Path:
        """Write a file of the project."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def files(self) -> dict[str, bytes]:
        """Every file but those that starting pytest makes, with its bytes: to see that nothing was lost or changed."""
        made = ("stdout", "stderr", ".pytest_cache", "runpytest-")
        found = {str(one.relative_to(self.path)): one for one in self.path.rglob("*") if one.is_file()}
        return {
            name: one.read_bytes()
            for name, one in found.items()
            if not name.startswith(made) and one.parent.name != "__pycache__"
        }

    def measured(self, **changes: Any) -> RunDirectory:
        """A run directory that somebody measured. For the changes see `write_run`."""
        shutil.rmtree(self.path / "measured", ignore_errors=True)
        return write_run(self.path / "measured", self.thresholds, **changes)

    def run(self, *arguments: str) -> pytest.RunResult:
        """``python -m pytest ARGUMENTS`` in a process of its own."""
        return run_pytest(self.path, *arguments)


def edit_json(path: Path, **changes: Any) -> None:
    """Change top-level keys of a JSON file; None removes one."""
    data = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}), encoding="utf-8")
