"""Machines to play: compile the library, describe GPUs, run a program that sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml_stand_in.c")
LIBRARY_NAME = "libnvidia-ml.so.1"
REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM_TIMEOUT_S = 60.0

# nvmlReturn_t, for `failures`
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
LIB_RM_VERSION_MISMATCH = 18
ANY_FUNCTION = "any"


@dataclass(frozen=True)
class PlayedGpu:
    """One GPU of a played machine.

    Attributes:
        name: as NVML gives it.
        pci_device_id: four hexadecimal digits.
        memory_mib: total memory as the driver reports it, MiB.
        uuid: ``GPU-…``; empty: made from the GPU's position.
        utilization_pct: per cent from the beginning of time.
        utilization_changes: (seconds since the epoch, per cent from then on).
        failures: NVML function, or `ANY_FUNCTION` → the nvmlReturn_t it gives for this GPU.
    """

    name: str
    pci_device_id: str
    memory_mib: int
    uuid: str = ""
    utilization_pct: int = 0
    utilization_changes: Sequence[tuple[float, int]] = ()
    failures: Mapping[str, int] = field(default_factory=dict)


V100 = PlayedGpu("Tesla V100-SXM2-16GB", "1db1", 16160)
A100 = PlayedGpu("NVIDIA A100-SXM4-80GB", "20b2", 81251)
B200 = PlayedGpu("NVIDIA B200", "2901", 183359)
RTX_PRO_6000_SERVER = PlayedGpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", "2bb5", 97280)


def uuid_of(index: int) -> str:
    """The UUID of the GPU at that position, where none is given: its first digits tell it from the others."""
    return f"GPU-{index:08x}-1111-2222-3333-444455556666"


def build_library(directory: Path) -> Path:
    """Compile the stand-in into `directory` with ``cc`` and return that directory, for LD_LIBRARY_PATH."""
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-O1", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", str(directory / LIBRARY_NAME), str(SOURCE)], check=True, timeout=PROGRAM_TIMEOUT_S)
    return directory


def machine_text(gpus: Sequence[PlayedGpu], failures: Mapping[str, int], driver_version: str) -> str:
    """The machine file that nvml_stand_in.c reads."""
    lines = [f"driver_version={driver_version}", *(f"fail.{name}={code}" for name, code in failures.items())]
    for i, gpu in enumerate(gpus):
        changes = "".join(f" {unix_s!r}:{percent}" for unix_s, percent in gpu.utilization_changes)
        values = {
            "name": gpu.name,
            "uuid": gpu.uuid or uuid_of(i),
            "pci_device_id": gpu.pci_device_id,
            "memory_mib": gpu.memory_mib,
            "utilization_pct": f"{gpu.utilization_pct}{changes}",
            **{f"fail.{name}": code for name, code in gpu.failures.items()},
        }
        lines += [f"gpu.{i}.{key}={value}" for key, value in values.items()]
    return "".join(f"{line}\n" for line in lines)


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
        self, gpus: Sequence[PlayedGpu], failures: Mapping[str, int] | None = None, driver_version: str = "570.86.15"
    ) -> PlayedMachine:
        """Replace the machine, at once, also for programs that run on it already."""
        new = self.file.with_suffix(".new")
        new.write_text(machine_text(gpus, failures or {}, driver_version), encoding="utf-8")
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
        """Run Python code on the machine.

        Returns:
            What it printed.

        Raises:
            AssertionError: it failed; with what it wrote to stderr.
        """
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], env=self.environment(**environ),
            capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout
