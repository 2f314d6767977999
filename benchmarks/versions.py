"""Which versions of Python, and of what the package depends on, run and judge alike: the table of docs/dependencies.md.

    python benchmarks/versions.py 3.10 3.12 3.13 lowest

For each Python, uv makes an environment of some 6 GB with the wheel and the newest of what it depends on. `lowest`
takes the lowest versions that pyproject.toml allows, and the oldest Python here. In each environment

- benchmarks/oracle.py judges a stored run with a slow GPU, and has to find the verdicts, culprits and rows of the
  history that every other environment finds,
- the shortest suite measures,
- a job with few requirements is measured by two ranks under torchrun, and has to be accepted.

Exit code 1 if anything differs from that. A row takes one to three minutes, with the download. `--keep DIR` leaves the
environments there.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pythons import LOWEST, ROOT, Step, StepFailed, install, judge_stored_run, run, tell
from reporting import argument_parser

PACKAGES = ("torch", "torchvision", "numpy", "pytest", "pydantic", "msgspec", "matplotlib", "psutil")
ASK_VERSIONS = """
import platform, sys
from importlib.metadata import version
print(" | ".join([platform.python_version(), *map(version, sys.argv[1:])]))
"""
# One study of a workload that the package brings, with bounds that any machine meets, however busy. Scaling is not
# among them: beside other work an efficiency may be above 1.1, which is not credible.
THRESHOLDS = """\
schema_version: 2
sources: {any: no machine is so slow}
workloads:
  shufflenet-fp32: {model: shufflenet_v2_x0_5, precision: fp32, image_size: 64, memory_format: contiguous}
skus:
  cpu:
    description: any CPU
    detect: {device: cpu}
    batch: {shufflenet-fp32: 4}
    requirements:
      - {throughput_per_gpu: {1: 100}, of: shufflenet-fp32, published: any, bound: 0.1, because: it has to run}
      - {throughput_per_gpu: {2: 100}, of: shufflenet-fp32, published: any, bound: 0.1, because: it has to run}
      - {replica_agreement: {2: 1}, of: shufflenet-fp32, because: arithmetic}
"""
SHORT = ("--gpu-sku=cpu", "--ddp-rounds=8", "--ddp-block=0.02s")
SUITE = ("inference", "--model=shufflenet_v2_x0_5", "--image-size=32", "--batches=1", "--ddp-gpus-per-node=1")


def install_wheel(wheel: Path, python: Path, folder: Path) -> str:
    """With the newest of what the package depends on, or the lowest. Gives the versions."""
    lowest = ("--resolution", "lowest-direct") if folder.name == LOWEST else ()
    made = install(python, folder, *lowest, "--requirements", ROOT / "pyproject.toml", wheel)
    return run(made, "-c", ASK_VERSIONS, *PACKAGES, folder=folder).strip()


def suite(python: Path, folder: Path) -> str:
    """Measure the shortest suite, whose one rank writes the byte code of torch that several would each compile."""
    said = run(python.with_name("ddpscale"), "suite", *SUITE, *SHORT, "--ddp-run-dir=suite", folder=folder)
    if "img/s per rank" not in said:
        raise StepFailed(said)
    return "yes"


def main_job(python: Path, folder: Path) -> str:
    """Measure with real ranks, away from the checkout, judge and report."""
    (folder / "thresholds.yaml").write_text(THRESHOLDS, encoding="utf-8")
    said = run(python, "-m", "pytest", *SHORT, "--ddp-run-dir=job", folder=folder)
    if "ACCEPTED: 3 of 3 requirements passed" not in said:
        raise StepFailed(said)
    return "yes"


def steps_with(wheel: Path) -> dict[str, Step]:
    """What is tried of a wheel."""
    installed = " | ".join(("Python", *PACKAGES))
    steps = {"same verdicts": judge_stored_run, "suite": suite, "main job": main_job}
    return {installed: partial(install_wheel, wheel), **steps}


def build(folder: Path) -> Path:
    """Build the wheel. Raises StepFailed."""
    run(sys.executable, "-m", "uv", "--quiet", "build", "--wheel", "--out-dir", folder, ROOT, folder=folder)
    return next(folder.glob("*.whl"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try and print. Returns the exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument("asked", nargs="+", metavar="VERSION", help="of Python, such as 3.10, or lowest")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the environments there; default: delete them")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ddpscale-wheel-") as built:
        return int(bool(tell(given.asked, steps_with(build(Path(built))), given.json, given.keep)))


if __name__ == "__main__":
    sys.exit(main())
