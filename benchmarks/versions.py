"""Which versions of Python, and of what the package depends on, run and judge alike: docs/dependencies.md.

    python benchmarks/versions.py
    python benchmarks/versions.py --whole 3.10 3.12 3.13 lowest

For each Python, which uv looks for on PATH and among pyenv's, uv makes an environment. Without ``--whole``, in half a
minute, it lacks torch and torchvision: every module that trains nothing is imported, all are compiled, and
benchmarks/oracle.py judges a stored run with a slow GPU, whose verdicts, culprits and rows of the history have to be
those of every other environment. With ``--whole`` it has the wheel and the newest of what that depends on, some 6 GB;
then the shortest suite measures, too, and a job with few requirements is measured by two ranks under torchrun, and has
to be accepted. `lowest` takes the lowest versions that pyproject.toml allows, and the oldest Python here.

Exit code 1 if anything fails. A Python that is not found is named; that is no failure, nor is a package index that uv
cannot reach (it reads UV_DEFAULT_INDEX, and not pip's settings).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from reporting import argument_parser, row, table

ROOT = Path(__file__).resolve().parents[1]
LOWEST, MINORS = "lowest", [f"3.{minor}" for minor in range(10, 15)]
OWN = f"3.{sys.version_info.minor}"
STORED_RUN = "recorded-a100-slow-gpu"
LIMIT_S = 600
# Words of uv, and what they mean.
EXCUSED = {
    "Failed to fetch": "not tried, without a package index",
    "No interpreter found": "no such Python on PATH or among pyenv's versions",
}
OF_THIS_PYTHON = ("PYTEST_", "PYTHON", "VIRTUAL_ENV")  # environment variables
PACKAGES = ("torch", "torchvision", "numpy", "pytest", "pydantic", "msgspec", "matplotlib", "psutil")
# uv: a requirement that holds nowhere takes the place of the package's own.
WITHOUT_TORCH = "torch; python_version < '3'\ntorchvision; python_version < '3'\n"
ASK_VERSIONS = """
import platform, sys
from importlib.metadata import version
print(" | ".join([platform.python_version(), *map(version, sys.argv[1:])]))
"""
IMPORT_AND_COMPILE = """
import importlib, pkgutil, sys
from pathlib import Path
import pytest_ddpscale as package
training = tuple(f"{package.__name__}.{name}." for name in ("worker", "datasets.image_samples"))
for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=lambda name: None):
    if not f"{module.name}.".startswith(training):
        importlib.import_module(module.name)
for file in Path(package.__path__[0]).rglob("*.py"):
    compile(file.read_bytes(), str(file), "exec")
assert "torch" not in sys.modules
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
# Takes a folder, in which the first step makes `environment`. Gives what is told of it.
Step = Callable[[Path], str]


class StepFailed(Exception):
    """A command failed; the message is its output."""

    @property
    def excuse(self) -> str:
        """What kept it from being tried, if that is no failure."""
        return next((said for words, said in EXCUSED.items() if words in str(self)), "")


def run(*command: str | Path, folder: Path, expected: int = 0) -> str:
    """Run a command in a folder, outside this environment. Returns its output.

    Raises:
        StepFailed: its exit code is another, or it takes too long.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OF_THIS_PYTHON)}
    pyenv = Path(environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    environ["PATH"] = os.pathsep.join([environ["PATH"], *map(str, sorted(pyenv.glob("3.1*/bin"), reverse=True))])
    environ |= {"PYTHONPYCACHEPREFIX": str(folder / "byte-code"), "UV_PYTHON_DOWNLOADS": "never"}
    try:
        done = subprocess.run(
            list(map(str, command)), cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise StepFailed(str(error)) from None
    if done.returncode != expected:
        raise StepFailed(f"{done.stdout.rstrip()}\nexit code {done.returncode}, expected {expected}")
    return done.stdout


def python_of(folder: Path) -> Path:
    """The Python of its environment."""
    return folder / "environment" / "bin" / "python"


def install(wheel: Path | None, folder: Path) -> str:
    """Make the environment that the folder's name asks for, with a wheel or without torch. Gives its versions."""
    uv, asked, packages = [sys.executable, "-m", "uv", "--quiet"], folder.name, [*PACKAGES]
    (folder / "overrides.txt").write_text(WITHOUT_TORCH, encoding="utf-8")
    what: list[str | Path] = ["--override", "overrides.txt", "--editable", ROOT]
    if wheel is not None:
        lowest = ["--resolution", "lowest-direct"] if asked == LOWEST else []
        what = [*lowest, "--requirements", ROOT / "pyproject.toml", wheel]
    else:
        packages = packages[2:]
    for number, version in enumerate(minors := MINORS if asked == LOWEST else [asked], 1):
        try:
            run(*uv, "venv", "--python", version, "environment", folder=folder)
            break
        except StepFailed as error:
            if not error.excuse or number == len(minors):
                raise
    run(*uv, "pip", "install", "--python", python_of(folder), *what, folder=folder)
    return run(python_of(folder), "-c", ASK_VERSIONS, *packages, folder=folder).strip()


def import_and_compile(folder: Path) -> str:
    """Import all modules but those that train, and compile those, too."""
    run(python_of(folder), "-c", IMPORT_AND_COMPILE, folder=folder)
    return "yes"


def judge_stored_run(folder: Path) -> str:
    """Judge the stored run of a slow GPU: verdicts, culprits and rows of the history are those of all versions."""
    asked = ("--check", "--facts-only", "--only", STORED_RUN)
    run(python_of(folder), ROOT / "benchmarks" / "oracle.py", *asked, folder=folder)
    return "yes"


def suite(folder: Path) -> str:
    """Measure the shortest suite, whose one rank writes the byte code of torch that several would each compile."""
    command = python_of(folder).with_name("ddpscale"), "suite", *SUITE, *SHORT, "--ddp-run-dir=suite"
    if "img/s per rank" not in (said := run(*command, folder=folder)):
        raise StepFailed(said)
    return "yes"


def main_job(folder: Path) -> str:
    """Measure with real ranks, away from the checkout, judge and report."""
    (folder / "thresholds.yaml").write_text(THRESHOLDS, encoding="utf-8")
    said = run(python_of(folder), "-m", "pytest", *SHORT, "--ddp-run-dir=job", folder=folder)
    if "ACCEPTED: 3 of 3 requirements passed" not in said:
        raise StepFailed(said)
    return "yes"


def steps_with(wheel: Path | None) -> dict[str, Step]:
    """What is tried, with a wheel or without torch."""
    names = ("Python", *PACKAGES[0 if wheel else 2 :])
    first: dict[str, Step] = {" | ".join(names): partial(install, wheel)}
    if wheel is None:
        return first | {"imports": import_and_compile, "same verdicts": judge_stored_run}
    return first | {"same verdicts": judge_stored_run, "suite": suite, "main job": main_job}


def try_steps(steps: Mapping[str, Step], folder: Path) -> dict[str, str]:
    """What each step gives in that folder, or the output of one that fails."""
    ended = dict[str, str]()
    for name, step in steps.items():
        try:
            ended[name] = step(folder)
        except StepFailed as error:
            ended[name] = f"{error.excuse or 'FAILED'}\n{error}"
            if len(ended) == 1:
                break
    return ended


def build(folder: Path) -> Path:
    """Build the wheel. Raises StepFailed."""
    run(sys.executable, "-m", "uv", "--quiet", "build", "--wheel", "--out-dir", folder, ROOT, folder=folder)
    return next(folder.glob("*.whl"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try and print. Returns the exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument("asked", nargs="*", metavar="VERSION", help="such as 3.10, or lowest; default: other Pythons")
    parser.add_argument("--whole", action="store_true", help="with torch; measure, too")
    given = parser.parse_args(arguments)
    wrong = list[str]()
    with tempfile.TemporaryDirectory(prefix="ddpscale-versions-") as temporary:
        steps = steps_with(build(Path(temporary)) if given.whole else None)
        print(table(("asked", *steps, "s"), ()))
        for name in given.asked or [one for one in MINORS if one != OWN]:
            began_s, folder = time.monotonic(), Path(temporary, name)
            folder.mkdir()
            ended = try_steps(steps, folder)
            cells = [ended.get(step, "–").partition("\n")[0] for step in steps]
            print(row(name, *cells, f"{time.monotonic() - began_s:.0f}"), flush=True)
            wrong += [f"{name}: {step}: {said}" for step, said in ended.items() if "\n" in said]
            shutil.rmtree(folder)
    print(*wrong, sep="\n")
    return int(any(": FAILED\n" in one for one in wrong))


if __name__ == "__main__":
    sys.exit(main())
