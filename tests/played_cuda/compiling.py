"""Compile the library for the torch that is installed: what torch calls and is not played gives success."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import platform
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from tests.nvml_stand_in.machine import build_library

HERE = Path(__file__).parent
LIBRARY_NAME = "libcuda.so.1"
BUILD_LIMIT_S = 180.0
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
HEADERS = (
    "nvidia/cu13/include", "nvidia/cuda_runtime/include", "nvidia/cublas/include", "triton/backends/nvidia/include",
    "nvidia/nccl/include", "nvidia/cudnn/include",
)  # fmt: skip
# Whose undefined symbols must all be there, or torch does not load.
ASKING = (
    *("libc10_cuda.so", "libtorch_cuda.so", "libtorch_python.so", "libtorch_cpu.so", "libtorch_cuda_linalg.so"),
    "libcaffe2_nvrtc.so",
)
OF_CUDA = re.compile(r"(?:__cuda|cuda|cublas|cudnn|nccl|cupti|cu[A-Z][a-z]+[A-Z])")
# torch finds these by name while it runs, and cuFile is not preloaded: its own library answers.
ASKED_BY_NAME = {"cuCtxSetLimit", "cuCtxGetLimit", "cuTensorMapEncodeTiled"}
OF_OTHERS = re.compile(r"cuFile")


def reason_not_to_build() -> str:
    """Why the library cannot be built here; empty: it can."""
    if shutil.which("c++") is None or shutil.which("nm") is None:
        return "needs a C++ compiler (c++ and nm) to build the played libcuda.so.1"
    if platform.machine() != "x86_64":
        return f"the played libcuda.so.1 is built for x86_64, and this is {platform.machine()}"
    if not any((SITE_PACKAGES / folder / "cuda_runtime_api.h").exists() for folder in HEADERS):
        return "torch's wheel came without the headers of CUDA, which the played libcuda.so.1 is compiled with"
    return ""


def build(cache: Path) -> Path:
    """The folder with the libraries of CUDA and NVML, compiled into `cache` unless they are there already.

    Workers of pytest-xdist ask at the same time; one of them compiles.
    """
    content = b"".join(file.read_bytes() for file in [*sorted(HERE.rglob("*.h")), *HERE.glob("*.cpp")])
    version = f"torch-{importlib.metadata.version('torch')}-{hashlib.sha256(content).hexdigest()[:12]}"
    folder = cache / f"played_cuda-{version}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_name(f"{folder.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            _compile(unfinished)
            build_library(unfinished)
            unfinished.rename(folder)
    return folder


def _compile(folder: Path) -> None:
    played, stubs, source = folder / "played.o", folder / "stubs.o", folder / "stubs.c"
    include = [f"-I{path}" for path in (HERE / "compat", *(SITE_PACKAGES / one for one in HEADERS)) if path.exists()]
    flags = ["-std=c++17", "-O1", "-g1", "-fPIC", "-Wall", "-Werror", "-mf16c", "-pthread"]
    _run("c++", *flags, *include, "-c", HERE / "played_cuda.cpp", "-o", played)
    have = _symbols(played, "--defined-only")
    library = SITE_PACKAGES / "torch" / "lib"
    wanted = {name for one in ASKING if (library / one).exists() for name in _symbols(library / one, "-D", "-u")}
    missing = sorted(
        name for name in (wanted | ASKED_BY_NAME) - set(have) if OF_CUDA.match(name) and not OF_OTHERS.match(name)
    )
    source.write_text("".join(f"long {name}() {{ return 0; }}\n" for name in missing), encoding="utf-8")
    _run("c++", "-x", "c", "-w", "-O1", "-fPIC", "-c", source, "-o", stubs)
    _run(
        "c++", "-shared", f"-Wl,-soname,{LIBRARY_NAME}", "-o", folder / LIBRARY_NAME, played, stubs, "-ldl", "-pthread"
    )


def _symbols(file: Path, *options: str) -> list[str]:
    """Names without their versions: ``cudaMalloc@libcudart.so.13`` is cudaMalloc."""
    lines = _run("nm", "-P", *options, file).splitlines()
    return [line.split()[0].partition("@")[0] for line in lines if line.split()[1] in "TU"]


def _run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{command[0]} failed:\n{done.stderr}"
    return done.stdout
