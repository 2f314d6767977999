"""Machines to play: compile the library, describe GPUs, run a program that sees them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.forks.start import python
from tests.nvml_stand_in.gpus import (
    ANY_FUNCTION,
    COMPUTE_MODE_DEFAULT,
    COMPUTE_MODE_EXCLUSIVE_PROCESS,
    COMPUTE_MODE_PROHIBITED,
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    HANG,
    LIB_RM_VERSION_MISMATCH,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN_ERROR,
    Changing,
    Failing,
    Failures,
    PlayedGpu,
    uuid_of,
)
from tests.nvml_stand_in.profiles import A100, B200, PROFILES, RTX_PRO_6000_SERVER, V100, at_work, node_of

__all__ = [
    "A100", "ANY_FUNCTION", "B200", "COMPUTE_MODE_DEFAULT", "COMPUTE_MODE_EXCLUSIVE_PROCESS",
    "COMPUTE_MODE_PROHIBITED", "DRIVER_NOT_LOADED", "FUNCTION_NOT_FOUND", "GPU_IS_LOST", "HANG",
    "LIB_RM_VERSION_MISMATCH", "NOT_SUPPORTED", "NO_PERMISSION", "PROFILES", "RTX_PRO_6000_SERVER", "UNKNOWN_ERROR",
    "V100", "Changing", "Failing", "PlayedGpu", "PlayedMachine", "at_work", "build_library", "machine_text", "node_of",
    "uuid_of",
]  # fmt: skip

SOURCES = sorted(Path(__file__).parent.glob("*.c"))
LIBRARY_NAME = "libnvidia-ml.so.1"
REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM_TIMEOUT_S = 60.0
DRIVER_LOADED_UNIX_S = 1_700_000_000.0


def build_library(directory: Path) -> Path:
    """Compile the stand-in into `directory` with ``cc`` and return that directory, for LD_LIBRARY_PATH."""
    warnings = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    command = ["cc", *warnings, "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]
    command += [f"-Wl,-soname,{LIBRARY_NAME}", "-o", str(directory / LIBRARY_NAME), *map(str, SOURCES)]
    subprocess.run(command, check=True, timeout=PROGRAM_TIMEOUT_S)
    return directory


@cache
def played_functions() -> frozenset[str]:
    """The names that a failure may have: a misspelt one would fail nothing, and its test prove nothing.

    ``nvmlInit`` stands for all its versions; giving a GPM sample back asks no driver.
    """
    exported = re.compile(r"^(?:EXPORT nvmlReturn_t |GIVES_\w+\()(nvml\w+)", re.MULTILINE)
    texts = [source.read_text(encoding="utf-8") for source in SOURCES]
    names = {name for text in texts for name in exported.findall(text)}
    return frozenset(names - {"nvmlInit_v2", "nvmlInitWithFlags", "nvmlGpmSampleFree"} | {"nvmlInit", ANY_FUNCTION})


def machine_text(
    gpus: Sequence[PlayedGpu], failures: Failures, driver_version: str, cuda_driver_version: int = 12080,
    driver_loaded_unix_s: float = DRIVER_LOADED_UNIX_S,
) -> str:  # fmt: skip
    """The machine file, in JSON, that played.c reads.

    Raises:
        AssertionError: a failure of a function that the stand-in does not play.
    """
    unknown = {name for names in (failures, *(gpu.failures for gpu in gpus)) for name in names} - played_functions()
    assert not unknown, f"no function of the stand-in: {sorted(unknown)}"
    machine = {
        "driver_version": driver_version,
        "nvml_version": f"{cuda_driver_version // 1000}.{driver_version}",
        "cuda_driver_version": cuda_driver_version,
        "driver_loaded_unix_s": driver_loaded_unix_s,
        "failures": failures,
        "gpus": [_described(i, gpu) for i, gpu in enumerate(gpus)],
    }
    return json.dumps(machine, default=dataclasses.asdict, allow_nan=False)


def _described(index: int, gpu: PlayedGpu) -> dict[str, Any]:
    utilization = gpu.utilization_pct
    if gpu.utilization_changes:
        assert not isinstance(utilization, Changing), "utilization_changes belong to a plain utilization_pct"
        utilization = Changing(utilization, gpu.utilization_changes)
    described = dataclasses.asdict(
        dataclasses.replace(gpu, uuid=gpu.uuid or uuid_of(index), utilization_pct=utilization)
    )
    return {name: value for name, value in described.items() if name not in ("work", "utilization_changes")}


@dataclass(frozen=True)
class PlayedMachine:
    """A machine whose programs see the GPUs last given to `play`.

    Attributes:
        nvml_directory: where `build_library` put the library.
        file: the machine file.
    """

    nvml_directory: Path
    file: Path

    def play(
        self, gpus: Sequence[PlayedGpu], failures: Failures | None = None, driver_version: str = "570.86.15",
        cuda_driver_version: int = 12080, driver_loaded_unix_s: float = DRIVER_LOADED_UNIX_S,
    ) -> PlayedMachine:  # fmt: skip
        """Replace the machine, at once, also for programs that run on it already.

        Args:
            gpus: what NVML lists.
            failures: NVML function, or `ANY_FUNCTION` → the nvmlReturn_t it gives for every GPU, or when it begins to.
            driver_version: as the driver writes it.
            cuda_driver_version: 1000 × major + 10 × minor.
            driver_loaded_unix_s: when counters of energy and traffic began, in seconds since the epoch.
        """
        new = self.file.with_suffix(".new")
        text = machine_text(gpus, failures or {}, driver_version, cuda_driver_version, driver_loaded_unix_s)
        new.write_text(text, encoding="utf-8")
        new.replace(self.file)
        return self

    def environment(self, **extra: str) -> dict[str, str]:
        """This process's environment, on the played machine, with all GPUs visible unless `extra` says otherwise."""
        environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        paths = [str(self.nvml_directory), *filter(None, [environ.get("LD_LIBRARY_PATH")])]
        python_paths = [str(REPOSITORY), *filter(None, [environ.get("PYTHONPATH")])]
        return {
            **environ,
            "LD_LIBRARY_PATH": os.pathsep.join(paths),
            "PYTHONPATH": os.pathsep.join(python_paths),
            "NVML_STAND_IN": str(self.file),
            **extra,
        }

    def run_python(self, program: str, *arguments: str, **environ: str) -> str:
        """Run Python code on the machine, in a fork.

        Returns:
            What it printed.

        Raises:
            AssertionError: it failed; with what it wrote to stderr.
        """
        done = subprocess.run(
            python("-c", program, *arguments), env=self.environment(**environ),
            capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout
