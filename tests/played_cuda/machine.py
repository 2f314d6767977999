"""Machines whose programs see GPUs in CUDA and in NVML: the same ones, by number, kind, UUID and PCI address."""

from __future__ import annotations

import dataclasses
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.nvml_stand_in.machine import (
    A100,
    ANY_FUNCTION,
    B200,
    GPU_IS_LOST,
    RTX_PRO_6000_SERVER,
    V100,
    PlayedGpu,
    PlayedMachine,
    at_work,
    uuid_of,
)
from tests.played_cuda.compiling import LIBRARY_NAME

KINDS = {V100.name: "v100", A100.name: "a100", B200.name: "b200", RTX_PRO_6000_SERVER.name: "rtx"}
DRIVER_VERSION, CUDA_DRIVER_VERSION = "595.45.04", 13020
A_DAY_S = 86_400.0
SHARED_MEMORY = Path("/dev/shm")
# Convolutions take longer on the GPU than the host takes to launch them: a block is then as long as planned on a busy
# machine, too, and GPUs can be compared.
GPU_BOUND = {"PLAYED_CONV_US": "1000"}


@dataclass
class PlayedCuda:
    """One machine with GPUs, for the programs that are started in its `environment`.

    As a context manager, it removes its files from shared memory in the end.

    Attributes:
        libraries: where `compiling.build` put the libraries.
        folder: of its own, for its settings; made if it is not there.
        gpus: that it has, at rest.
        faults: what breaks, as machine.h lists it: ``gpu=1,launch=5000,error=719``.
        lost: GPUs that fell off the bus before anything was started.
        lost_after_fault: GPUs that NVML calls lost from the moment on in which a fault strikes.
        driver_version: as the driver writes it.
        cuda_driver_version: 1000 × major + 10 × minor.
        is_busy_by_itself: NVML calls all GPUs busy from the first kernel on; otherwise `work` has it do so.
        first_uuid: number in the UUID of GPU 0; machines that meet must not share any.
        fabric: machines of one network have the same; empty: a network of its own.
        settings: further ones, such as PLAYED_SPEED.
    """

    libraries: Path
    folder: Path
    gpus: Sequence[PlayedGpu]
    faults: Sequence[str] = ()
    lost: Sequence[int] = ()
    lost_after_fault: Sequence[int] = ()
    driver_version: str = DRIVER_VERSION
    cuda_driver_version: int = CUDA_DRIVER_VERSION
    is_busy_by_itself: bool = True
    first_uuid: int = 0
    fabric: str = ""
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.folder.mkdir(parents=True, exist_ok=True)
        # played.conf lies beside the library as it is loaded, so that each machine has its own.
        (self.folder / LIBRARY_NAME).symlink_to(self.libraries / LIBRARY_NAME)
        self.nvml = PlayedMachine(self.libraries, self.folder / "machine.json")
        self._play(self.nvml, self.gpus, self.lost)
        written = {
            "PLAYED_ID": self.id,
            "PLAYED_FABRIC": self.fabric or self.id,
            "PLAYED_GPUS": str(len(self.gpus)),
            "PLAYED_KIND": ",".join(KINDS[gpu.name] for gpu in self.gpus),
            "PLAYED_DRIVER": str(self.cuda_driver_version),
            "PLAYED_LOST": ",".join(map(str, self.lost)),
            "PLAYED_FAULT": ";".join(self.faults),
            "PLAYED_FIRST_UUID": str(self.first_uuid),
            "NVML_STAND_IN": str(self.nvml.file),
            # cuDNN's attention (Hopper and later) reads results of its own kernels.
            "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",
        }
        # Put in the place of machine.json by the library.
        at_first_launch = PlayedMachine(self.libraries, self.folder / "working.json")
        after_fault = PlayedMachine(self.libraries, self.folder / "after.json")
        working = [at_work(gpu) for gpu in self.gpus]
        if self.is_busy_by_itself:
            self._play(at_first_launch, working, self.lost)
            written["PLAYED_WORKING"] = str(at_first_launch.file)
        if self.lost_after_fault:
            self._play(after_fault, working, [*self.lost, *self.lost_after_fault])
            written["PLAYED_AFTER"] = str(after_fault.file)
        lines = [f"{name}={value}\n" for name, value in (written | self.settings).items()]
        (self.folder / "played.conf").write_text("".join(lines), encoding="utf-8")

    def _play(self, machine: PlayedMachine, gpus: Sequence[PlayedGpu], lost: Sequence[int]) -> None:
        described = [
            dataclasses.replace(
                gpu,
                uuid=gpu.uuid or uuid_of(self.first_uuid + number),
                failures={ANY_FUNCTION: GPU_IS_LOST} if number in lost else gpu.failures,
            )
            for number, gpu in enumerate(gpus)
        ]
        machine.play(described, driver_version=self.driver_version, cuda_driver_version=self.cuda_driver_version)

    def work(self) -> None:
        """Have NVML tell of GPUs that rested until now, and work from now on."""
        now_s = time.time()
        self._play(self.nvml, [at_work(gpu, (now_s, now_s + A_DAY_S)) for gpu in self.gpus], self.lost)

    def environment(self, **extra: str) -> dict[str, str]:
        """This process's environment, on the machine."""
        loaded = [str(self.folder / LIBRARY_NAME), *filter(None, [os.environ.get("LD_PRELOAD")])]
        return self.nvml.environment(LD_PRELOAD=":".join(loaded), **extra)

    @property
    def left_in_shared_memory(self) -> list[Path]:
        """Files of this machine: a GPU's memory in use each, and communicators that nobody closed."""
        return sorted(SHARED_MEMORY.glob(f"played-{self.id}-*"))

    def __enter__(self) -> PlayedCuda:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in self.left_in_shared_memory:
            file.unlink()
