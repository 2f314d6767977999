"""A site of its own: the real acceptance tests, small thresholds and a run that somebody measured."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
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
from pytest_ddpscale.run.strict_json import parse_strict_json
from pytest_ddpscale.util.packaged import packaged
from tests.builders.json_types import begin
from tests.builders.measurements import Measurement
from tests.builders.records import blocks_of, gang_of
from tests.plugin.prepared import PreparedPytest

TIMEOUT_S = 120
SKU = "tested-gpu"
ROUNDS = FEWEST_ROUNDS + 1

# A file of thresholds up to what its GPU is asked for.
LAB_GPU = """\
schema_version: 2
sources: {paper: 'a paper, table 1'}
workloads: {resnet152-fp16: {model: resnet152, precision: fp16}}
skus:
  lab-gpu:
    description: the generation under test
    detect: {name: '^Lab GPU$', pci_device_ids: ['00a1'], memory_gib: 80}
    peak: {fp16_tflops: 312, memory_bandwidth_gbps: 2039, link: NVLink3, link_bandwidth_gbps: 300, published: paper}
    batch: {resnet152-fp16: 512}
"""
# Test item → the line of the thresholds file that it comes from. `MEASURED_RUN` keeps each of them.
REQUIREMENTS = {
    "test_throughput_per_gpu[resnet152-fp16-1gpu]":
        "{throughput_per_gpu: {1: 500}, of: resnet152-fp16, published: paper, bound: 1130, because: made up}",
    "test_weak_scaling_efficiency[resnet152-fp16-2gpu]":
        "{weak_scaling_efficiency: {2: 0.97}, of: resnet152-fp16, published: paper, bound: 0.974, because: made up}",
    "test_weak_scaling_efficiency[resnet152-fp16-8gpu]":
        "{weak_scaling_efficiency: {8: 0.97}, of: resnet152-fp16, published: paper, bound: 0.96, because: made up}",
    "test_weak_scaling_efficiency[vit-b-16-fp16-8gpu]":
        "{weak_scaling_efficiency: {8: 0.97}, of: vit-b-16-fp16, published: paper, bound: 0.965, because: made up}",
    "test_strong_scaling_speedup[vit-b-16-fp16-8gpu]":
        "{strong_scaling_speedup: {8: 6.5}, of: vit-b-16-fp16, published: paper, bound: 6.2, because: made up}",
    "test_device_utilization[resnet152-fp16-8gpu]":
        "{device_utilization: {8: 0.97}, of: resnet152-fp16, published: paper, bound: 0.95, because: made up}",
    "test_peak_memory[resnet152-fp16-8gpu]":
        "{peak_memory_gib: {8: 44.1}, of: resnet152-fp16, published: paper, bound: 46.3, because: made up}",
    "test_generation_ratio[resnet152-fp16-1gpu-vs-reference-gpu]":
        "{generation_ratio: {1: 2.4}, of: resnet152-fp16, versus: reference-gpu, published: paper, bound: 2.2,"
        " because: made up}",
}  # fmt: skip
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


def thresholds_with(item: str, old: str, new: str) -> str:
    """The thresholds file with one place of one requirement changed."""
    assert REQUIREMENTS[item].count(old) == 1, f"{old!r} in {REQUIREMENTS[item]}"
    changed = REQUIREMENTS | {item: REQUIREMENTS[item].replace(old, new)}
    return thresholds_text(changed.values())


@dataclass(frozen=True)
class Series:
    """What one arm gave.

    Attributes:
        samples_per_s: throughput per GPU.
        utilization: of every GPU, 0 … 1.
        last: by how much the last GPU is less busy.
    """

    scaling: Scaling
    workload: Workload
    arm: Arm
    samples_per_s: float
    utilization: float = 0.98
    last: float = 0.0


# The published figures of eight A100s, more or less.
MEASURED_RUN = (
    Series("weak", _RESNET, Arm("alone", 1, 512), 1189.5),
    Series("weak", _RESNET, Arm("ddp", 2, 512), 1176.5),
    Series("weak", _RESNET, Arm("ddp", 8, 512), 1159.2),
    Series("weak", _VIT, Arm("alone", 1, 1024), 1029.9),
    Series("weak", _VIT, Arm("ddp", 8, 1024), 1008.9),
    Series("strong", _VIT, Arm("alone", 1, 512), 1019.8),
    Series("strong", _VIT, Arm("ddp", 8, 64), 836.2),
)


def write_run(path: Path, thresholds: Path, series: Sequence[Series] = MEASURED_RUN, sku: str = SKU) -> RunDirectory:
    """A run directory as a measuring session leaves it, but for verdicts and reports."""
    run = RunDirectory.create(path)
    plan = _plan(series, sku)
    run.write_json(run.plan_json, plan)
    used = hashlib.sha256(thresholds.read_bytes()).hexdigest()
    ended = {"status": "finished", "finished_at": "2026-01-31T12:10:00+00:00"}
    begin(run, sku, thresholds={"path": str(thresholds), "sha256": used}, **ended)
    measured = [measurement for one in series for measurement in _measurements(one)]
    run.append_records([gang_of(measured), *blocks_of(measured)])
    run.append_records([StudyEnd(study.id, "rounds") for study in plan.studies])
    return run


def _plan(series: Sequence[Series], sku: str) -> Plan:
    arms: dict[tuple[Scaling, Workload], list[Arm]] = {}
    for one in series:
        arms.setdefault((one.scaling, one.workload), []).append(one.arm)
    studies = [Study(scaling, workload, tuple(a), ROUNDS, 3.0, 10.0) for (scaling, workload), a in arms.items()]
    return Plan(sku, "cuda", tuple(studies))


@cache
def _measurements(series: Series) -> list[Measurement]:
    """Every rank in every round; rounds differ by half a thousandth, and rank 0 sets the pace."""
    found = []
    for number in range(ROUNDS):
        spread = 1 + 0.0005 * math.sin(1.7 * number + series.arm.world_size)
        for rank in range(series.arm.world_size):
            rate = series.samples_per_s * spread * (1 if rank == 0 else 1.002)
            found.append(
                Measurement(
                    study=f"{series.scaling}/{series.workload.name}",
                    arm=series.arm.name,
                    round=number,
                    rank=rank,
                    local_rank=rank,
                    host="node7",
                    device=f"GPU-{rank:08x}",
                    batch_size=series.arm.batch_size,
                    steps=20,
                    block_s=series.arm.batch_size * 20 / rate,
                    step_s=(series.arm.batch_size / rate,) * 20,
                    started_unix_s=1.7e9 + number,
                    utilization=series.utilization - 0.001 * rank + 0.0005 * (number % 3) - series.last * (rank == 7),
                    parameters_checksum="c0ffee" * 2 + "c0de" if series.arm.kind == "ddp" else None,
                    peak_memory_bytes=47_360_000_000 + 1_000_000 * number,
                )
            )
    return found


def contents(path: Path) -> dict[str, bytes]:
    """Every file below a directory, or the file itself, with its bytes: to see that nothing was lost or changed.

    Without the byte code that Python may keep beside tests it imports.
    """
    below = sorted(p for p in path.rglob("*") if p.is_file() and p.parent.name != "__pycache__")
    files = [path] if path.is_file() else below
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in files}


def output_of(result: pytest.RunResult) -> str:
    """Everything that was printed."""
    return f"{result.stdout.str()}\n{result.stderr.str()}"


def assert_no_crash(result: pytest.RunResult) -> None:
    """No reader of the output meets our own code."""
    assert "Traceback" not in output_of(result)
    assert "INTERNALERROR" not in output_of(result)


def items_of(result: pytest.RunResult) -> list[str]:
    """What `--collect-only -q` lists, sorted."""
    return sorted(line.partition("::")[2] for line in result.outlines if "::" in line)


def outcome_line(result: pytest.RunResult) -> str:
    """The sentence that says what the run comes to."""
    return outcome_in(result.stdout.str())


def outcome_in(printed: str) -> str:
    """The sentence that says what a run comes to, out of its lines in the output of pytest or of ddpscale."""
    words = "(?:ACCEPTED|REJECTED|INCOMPLETE|PARTIAL)"
    (said,) = re.findall(rf"^{words}.*(?:\n {{10}}\S.*)*", printed, re.MULTILINE)
    return " ".join(line.strip() for line in said.splitlines())


def assert_refused(result: pytest.RunResult, *parts: str) -> str:
    """Bad input: exit code 4 and one sentence with all these parts, which is returned, and nothing else to read."""
    assert_no_crash(result)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    errors = [line for line in output_of(result).splitlines() if line.startswith("ERROR: ")]
    assert len(errors) == 1, errors
    for part in parts:
        assert part in errors[0], f"{part!r} is not in {errors[0]}"
    return errors[0]


class Site:
    """A project directory with acceptance tests and thresholds, in which pytest is run for real.

    Attributes:
        path: the directory.
        thresholds: its thresholds.yaml.
    """

    def __init__(self, pytester: pytest.Pytester, prepared: PreparedPytest) -> None:
        self._pytester, self._prepared = pytester, prepared
        self.path = pytester.path
        self.thresholds = self.path / "thresholds.yaml"
        self.reset()

    def reset(self) -> None:
        """As it was before anything was written or run in it."""
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
        """Every file but those that starting pytest makes, with its bytes."""
        made = ("stdout", "stderr", ".pytest_cache", "runpytest-")
        return {
            name: content
            for name, content in contents(self.path).items()
            if not name.partition("/")[2].startswith(made) and "/__pycache__/" not in name
        }

    def judge_weak_scaling_by(self, test: str) -> None:
        """Have a test of the site's own judge weak scaling, in place of the one it comes with."""
        scaling = self.path / "acceptance" / "test_scaling.py"
        text = scaling.read_text(encoding="utf-8")
        start = text.index('@pytest.mark.requirement("weak_scaling_efficiency")')
        end = text.index("@pytest.mark", start + 1)
        scaling.write_text(text[:start] + text[end:], encoding="utf-8")
        self.write("acceptance/test_own.py", test)

    def measured(self, name: str = "measured", series: Sequence[Series] = MEASURED_RUN, sku: str = SKU) -> RunDirectory:
        """A run directory that somebody measured."""
        return write_run(self.path / name, self.thresholds, series, sku)

    def run(self, *arguments: str) -> pytest.RunResult:
        """``python -m pytest ARGUMENTS`` in a process of its own."""
        return self._prepared.run(self.path, arguments, TIMEOUT_S)

    def python(self, code: str) -> pytest.RunResult:
        """``python -c CODE`` in a process of its own."""
        return self._pytester.run(sys.executable, "-c", code, timeout=TIMEOUT_S)

    def judge(self, *arguments: str, run: str = "measured") -> pytest.RunResult:
        """Judge a run directory."""
        return self.run(f"--ddp-judge={run}", *arguments)

    def verdicts(self, directory: str = "measured") -> dict[str, Any]:
        """verdicts.json of a run directory, read by the strictest rules."""
        text = (self.path / directory / "verdicts.json").read_text(encoding="utf-8")
        found = parse_strict_json(text)
        assert isinstance(found, dict)
        return found

    def outcome(self, directory: str = "measured") -> str:
        """What verdicts.json says the run comes to."""
        return str(self.verdicts(directory)["outcome"])


def edit_json(path: Path, **changes: Any) -> None:
    """Change top-level keys of a JSON file; None removes one."""
    data = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}), encoding="utf-8")
