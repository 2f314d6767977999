"""Which versions of Python, and of what the package depends on, run and judge alike: the table of docs/versions.md.

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

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pythons import MINORS, ROOT, StepFailed, install, interpreter, judge_stored_run, run
from reporting import argument_parser, keep

LOWEST = "lowest"
PACKAGES = ("torch", "torchvision", "numpy", "pytest", "pydantic", "msgspec", "matplotlib", "psutil")
# One rank first: it writes the byte code of torch that several would each compile.
STEPS = ("installed", "same verdicts", "suite", "main job")
ASK_VERSIONS = """
import json, platform, sys
from importlib.metadata import version
print(json.dumps({"Python": platform.python_version()} | {name: version(name) for name in sys.argv[1:]}))
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


@dataclass(frozen=True)
class Tried:
    """One environment.

    Attributes:
        versions: of Python and packages; empty if it could not be made.
        ended: what each step that was tried ended with: ``yes``, or the output of one that failed.
        duration_s: of all.
    """

    versions: dict[str, str]
    ended: dict[str, str]
    duration_s: float

    @property
    def is_as_expected(self) -> bool:
        """Whether all steps ended well."""
        return [self.ended.get(step) for step in STEPS] == ["yes"] * len(STEPS)


def build(folder: Path) -> Path:
    """Build the wheel.

    Raises:
        StepFailed: it cannot be built.
    """
    run(sys.executable, "-m", "uv", "--quiet", "build", "--wheel", "--out-dir", folder, ROOT, folder=folder)
    return next(folder.glob("*.whl"))


def try_versions(asked: str, wheel: Path, folder: Path) -> Tried:
    """Install and run everything in a folder of its own.

    Args:
        asked: a version of Python, or `LOWEST`.
        wheel: of the package.
        folder: new or empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    began_s, ended = time.monotonic(), dict[str, str]()
    pythons = [f"3.{minor}" for minor in MINORS] if asked == LOWEST else [asked]
    resolution = ("--resolution", "lowest-direct") if asked == LOWEST else ()
    try:
        python = install(oldest(pythons), folder, *resolution, "--requirements", ROOT / "pyproject.toml", wheel)
        versions = json.loads(run(python, "-c", ASK_VERSIONS, *PACKAGES, folder=folder))
    except StepFailed as error:
        return Tried({}, {"installed": str(error)}, time.monotonic() - began_s)
    ended["installed"] = "yes"
    for step, try_step in zip(STEPS[1:], (judge_stored_run, suite, main_job), strict=True):
        try:
            try_step(python, folder)
            ended[step] = "yes"
        except StepFailed as error:
            ended[step] = str(error)
    return Tried(versions, ended, time.monotonic() - began_s)


def oldest(versions: Sequence[str]) -> Path:
    """The first of these Pythons that is here.

    Raises:
        StepFailed: none is.
    """
    found = next(filter(None, map(interpreter, versions)), None)
    if found is None:
        raise StepFailed(f"no Python {' or '.join(versions)} on PATH or among pyenv's versions")
    return found


def main_job(python: Path, folder: Path) -> None:
    """Measure with real ranks, away from the checkout, judge and report.

    Raises:
        StepFailed: the run is not accepted.
    """
    (folder / "thresholds.yaml").write_text(THRESHOLDS, encoding="utf-8")
    said = run(python, "-m", "pytest", *SHORT, "--ddp-run-dir=job", folder=folder)
    if "ACCEPTED: 3 of 3 requirements passed" not in said:
        raise StepFailed(said)


def suite(python: Path, folder: Path) -> None:
    """Measure the shortest suite, which has one rank.

    Raises:
        StepFailed: it measured nothing.
    """
    said = run(python.with_name("ddpscale"), "suite", *SUITE, *SHORT, "--ddp-run-dir=suite", folder=folder)
    if "img/s per rank" not in said:
        raise StepFailed(said)


def row(cells: Sequence[str]) -> str:
    """A row in Markdown."""
    return f"| {' | '.join(cells)} |"


def row_of(asked: str, tried: Tried) -> str:
    """The row of an environment."""
    versions = [tried.versions.get(name, "–") for name in ("Python", *PACKAGES)]
    ended = ["yes" if tried.ended.get(step) == "yes" else "NO" for step in STEPS[1:]]
    return row([asked, *versions, *ended, f"{tried.duration_s:.0f}"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Try and print. Returns the exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument("asked", nargs="+", metavar="VERSION", help="of Python, such as 3.10, or lowest")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the environments there; default: delete them")
    given = parser.parse_args(arguments)
    header = ("asked", "Python", *PACKAGES, *STEPS[1:], "s")
    print(row(header), row(["---"] * len(header)), sep="\n", flush=True)
    all_tried: dict[str, Tried] = {}
    with tempfile.TemporaryDirectory(prefix="ddpscale-wheel-") as built:
        wheel = build(Path(built))
        for asked in given.asked:
            with contextlib.ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddpscale-versions-")))
                if given.keep:
                    folder = given.keep.resolve() / asked
                tried = all_tried[asked] = try_versions(asked, wheel, folder)
            print(row_of(asked, tried), flush=True)
            for step, said in tried.ended.items():
                if said != "yes":
                    print(f"{asked}: {step}: {said}", file=sys.stderr, flush=True)
    result = {asked: {"versions": one.versions, "ended": one.ended} for asked, one in all_tried.items()}
    keep(given.json, "versions", {"tried": result})
    return 0 if all(one.is_as_expected for one in all_tried.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
