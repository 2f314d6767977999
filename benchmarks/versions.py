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
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from reporting import argument_parser, row, run, table

ROOT = Path(__file__).resolve().parents[1]
LOWEST, LOWEST_TORCH, MINORS = "lowest", " | 2.9.0 | ", [f"3.{minor}" for minor in range(10, 15)]
OWN, PYTHON = f"3.{sys.version_info.minor}", "environment/bin/python"
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
Step = tuple[str, tuple[str | Path, ...], str]
DDPSCALE = "import sys; from pytest_ddpscale.cli import main; sys.exit(main())"
SUITE = ("inference", "--model=shufflenet_v2_x0_5", "--image-size=32", "--batches=1", "--ddp-gpus-per-node=1")
ORACLE = (ROOT / "benchmarks" / "oracle.py", "--check", "--facts-only", "--only", STORED_RUN)
# What is run with each Python, and what it has to say; the suite writes the byte code of torch that several ranks would
# each compile, and the job is measured away from the checkout.
JUDGE: Step = ("same verdicts", (*ORACLE,), "")
QUICK: tuple[Step, ...] = ("imports", ("-c", IMPORT_AND_COMPILE), ""), JUDGE
WHOLE: tuple[Step, ...] = (
    JUDGE,
    ("suite", ("-c", DDPSCALE, "suite", *SUITE, *SHORT, "--ddp-run-dir=suite"), "img/s per rank"),
    ("main job", ("-m", "pytest", *SHORT, "--ddp-run-dir=job"), "ACCEPTED: 3 of 3 requirements passed"),
)


class StepFailed(Exception):
    """A command failed; the message is its output."""

    @property
    def excuse(self) -> str:
        """What kept it from being tried, if that is no failure."""
        return next((said for words, said in EXCUSED.items() if words in str(self)), "")


def checked(*command: str | Path, folder: Path, says: str = "") -> str:
    """Run a command in a folder, outside this environment. Returns its output.

    Raises:
        StepFailed: it fails, takes too long, or does not say what it has to.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OF_THIS_PYTHON)}
    pyenv = Path(environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    environ["PATH"] = os.pathsep.join([environ["PATH"], *map(str, sorted(pyenv.glob("3.1*/bin"), reverse=True))])
    environ |= {"PYTHONPYCACHEPREFIX": str(folder / "byte-code"), "UV_PYTHON_DOWNLOADS": "never"}
    ended = run(command, folder, folder / "said", environ, LIMIT_S)
    if ended.code != 0 or says not in ended.said:
        raise StepFailed(f"{ended.said.rstrip()}\nexit code {ended.code}")
    return ended.said


def install(wheel: Path | None, folder: Path) -> str:
    """Make the environment that the folder's name asks for, with a wheel or without torch. Gives its versions."""
    uv, asked, packages = [sys.executable, "-m", "uv", "--quiet"], folder.name, PACKAGES if wheel else PACKAGES[2:]
    (folder / "overrides.txt").write_text(WITHOUT_TORCH, encoding="utf-8")
    (folder / "thresholds.yaml").write_text(THRESHOLDS, encoding="utf-8")
    what: list[str | Path] = ["--override", "overrides.txt", "--editable", ROOT]
    if wheel is not None:
        lowest = ["--resolution", "lowest-direct"] if asked == LOWEST else []
        what = [*lowest, "--requirements", ROOT / "pyproject.toml", wheel]
    for number, version in enumerate(minors := MINORS if asked == LOWEST else [asked], 1):
        try:
            checked(*uv, "venv", "--python", version, "environment", folder=folder)
            break
        except StepFailed as error:
            if not error.excuse or number == len(minors):
                raise
    checked(*uv, "pip", "install", "--python", folder / PYTHON, *what, folder=folder)
    torch = LOWEST_TORCH if wheel and asked == LOWEST else ""
    return checked(folder / PYTHON, "-c", ASK_VERSIONS, *packages, folder=folder, says=torch).strip()


def try_steps(wheel: Path | None, folder: Path) -> dict[str, str]:
    """What each step gives in that folder, or the output of one that fails; without an environment no other."""
    try:
        ended = {"": install(wheel, folder)}
    except StepFailed as error:
        return {"": f"{error.excuse or 'FAILED'}\n{error}"}
    for name, arguments, says in WHOLE if wheel else QUICK:
        try:
            checked(folder / PYTHON, *arguments, folder=folder, says=says)
            ended[name] = "yes"
        except StepFailed as error:
            ended[name] = f"FAILED\n{error}"
    return ended


def build(folder: Path) -> Path:
    """Build the wheel. Raises StepFailed."""
    checked(sys.executable, "-m", "uv", "--quiet", "build", "--wheel", "--out-dir", folder, ROOT, folder=folder)
    return next(folder.glob("*.whl"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try and print. Returns the exit code."""
    parser = argument_parser(__doc__)
    parser.add_argument("asked", nargs="*", metavar="VERSION", help="such as 3.10, or lowest; default: other Pythons")
    parser.add_argument("--whole", action="store_true", help="with torch; measure, too")
    given = parser.parse_args(arguments)
    wrong, steps = list[str](), [name for name, *_ in (WHOLE if given.whole else QUICK)]
    with tempfile.TemporaryDirectory(prefix="ddpscale-versions-") as temporary:
        wheel = build(Path(temporary)) if given.whole else None
        print(table(("asked", "Python", *PACKAGES[0 if wheel else 2 :], *steps, "s"), ()))
        for name in given.asked or [one for one in MINORS if one != OWN]:
            began_s, folder = time.monotonic(), Path(temporary, name)
            folder.mkdir()
            ended = try_steps(wheel, folder)
            cells = [ended.get(step, "–").partition("\n")[0] for step in ("", *steps)]
            print(row(name, *cells, f"{time.monotonic() - began_s:.0f}"), flush=True)
            wrong += [f"{name}: {step or 'Python'}: {said}" for step, said in ended.items() if "\n" in said]
            shutil.rmtree(folder)
    print(*wrong, sep="\n")
    return int(any(": FAILED\n" in one for one in wrong))


if __name__ == "__main__":
    sys.exit(main())
