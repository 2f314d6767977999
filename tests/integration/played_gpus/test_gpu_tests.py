"""The tests that want a GPU, on played ones: all that they ask of CUDA, NVML and NCCL is answered as they expect."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.forks.agent import site_of_agents
from tests.forks.start import command
from tests.integration.played_gpus.played_session import CHECKOUT
from tests.nvml_stand_in.machine import B200
from tests.played_cuda.compiling import LIBRARY_NAME
from tests.played_cuda.machine import GPU_BOUND, PlayedCuda

LIMIT_S = 200.0
# What is played takes virtual time, and on a busy host the ranks' own work more than that.
OF_TRUE_NUMBERS = (
    "test_ddp_of_one_rank_costs_little",
    "test_step_times_add_up_to_the_block",
    "test_a_probe_reaches_what_the_data_sheet_lets_expect",
)


@pytest.mark.lab
def test_whoever_wants_a_gpu_has_one(played_libraries: Path, tmp_path: Path) -> None:
    files = sorted(
        str(file.relative_to(CHECKOUT))
        for file in (CHECKOUT / "tests" / "integration").glob("test_*.py")
        if "mark.gpu" in file.read_text(encoding="utf-8")
    )
    with PlayedCuda(played_libraries, tmp_path / "machine", [B200, B200], settings=GPU_BOUND) as machine:
        library = str(played_libraries / LIBRARY_NAME)
        environment = machine.environment(OMP_NUM_THREADS="1")
        site = site_of_agents(tmp_path / "site", library)
        done = subprocess.run(
            command(
                "pytest", *files, "-m", "gpu", "-k", f"not ({' or '.join(OF_TRUE_NUMBERS)})",
                "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'gpu'}", preload=library,
            ),
            cwd=CHECKOUT, env=environment | {"PYTHONPATH": f"{site}:{environment['PYTHONPATH']}"},
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert [line for line in skipped if "nvidia-smi" not in line] == []
