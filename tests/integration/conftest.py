from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.integration.gpu_run import gpu, gpu_run, sku
from tests.integration.sites import CHECKOUT

__all__ = ["gpu", "gpu_run", "sku"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(CHECKOUT)]
    subprocess.run(command, check=True, capture_output=True, timeout=180)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scripts folder of a virtual environment with the wheel, which borrows only its dependencies from here."""
    pytest.importorskip("pip", reason="pip installs the wheel, and `uv venv` without --seed has none")
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    purelib = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout.strip()  # fmt: skip
    # A path in a .pth file is searched, but its own .pth files, such as that of an editable install, are not read.
    Path(purelib, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", f"--python={python}", "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*pip, "--force-reinstall", str(wheel)], check=True, timeout=180)
    return environment / "bin"
