"""What a person types on an ordinary day, in an empty directory and in a site's: exit code, and what is said.

The programs are forks; integration/test_installed_wheel.py starts interpreters.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.forks.start import command as forked
from tests.forks.start import python

ONE = "test_scaling.py::test_throughput_per_gpu[shuffle96-fp32-2rank]"
PROGRAMS = {
    "pytest": partial(forked, "pytest", "-pno:cacheprovider", "-ptests.plugin.quick"),
    "ddpscale": partial(python, "-c", "import sys; from pytest_ddpscale.cli import main; sys.exit(main())"),
}
# Of those that pytest makes for itself or a terminal has, nothing may leak in.
KEPT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "DDPSCALE", "COLUMNS"))}


def typed(command: str, where: Path, **environment: str) -> tuple[int, str]:
    """Exit code, and both outputs of a command whose output goes into a pipe."""
    program, *arguments = shlex.split(command)
    done = subprocess.run(
        PROGRAMS[program](*arguments), cwd=where, env={**KEPT, **environment}, timeout=120, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with acceptance tests, and a run with a slow GPU that was judged."""
    path = tmp_path_factory.mktemp("site")
    for command, code in [
        ("ddpscale init .", 0),
        ("ddpscale simulate --gpu-sku=a100 --gpus=8 --rounds=8 --fault=slow-gpu:3:1.2 --out=ddpscale-runs/slow", 0),
        ("pytest --ddp-judge=ddpscale-runs/slow -q", 1),
    ]:
        assert typed(command, path)[0] == code
    return path


# Exit code and what is said: of pytest with and without acceptance tests here, of ddpscale, of mistakes.
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (f"pytest --gpu-sku=cpu '{ONE}' --co -q", 0, [f"acceptance/{ONE}", "1 test collected"]),
        ("pytest --gpu-sku=cpu no_such_file.py", 4, ["file or directory not found: no_such_file.py"]),
        ("pytest --gpu-sku=b2000", 4, ["--gpu-sku: ", "has no SKU 'b2000'", "b200"]),
        ("pytest --gpu-sku=cpu -k nothing", 5, ["deselected / 0 selected"]),
        ("ddpscale runs", 0, ["slow", "a100-sxm4-80gb", "REJECTED: GPU 3 (SIM-3) on simulated-0 is 1.20× slower"]),
        ("ddpscale report nowhere", 4, ["nowhere: does not exist. `ddpscale runs` lists runs."]),
        ("ddpscale report ddpscale-runs", 4, ["has no run.json; expected a run directory. `ddpscale runs`"]),
        ("ddpscale culprits ddpscale-runs/slow", 0, ["nothing to do: SIMULATED"]),
        ("ddpscale culprits --rehearse ddpscale-runs/slow", 0, ["Rehearsal. ", "simulated-0: rejected: GPU 3 (SIM-3)"]),
        ("ddpscale history nowhere --history=none", 4, ["none: does not exist, or is empty; expected a history file"]),
    ],
)  # fmt: skip
def test_a_person_gets_what_they_expect(site: Path, tmp_path: Path, command: str, code: int, said: list[str]) -> None:
    for place in [site, tmp_path] if command.startswith("pytest") else [site]:
        found, text = typed(command, place)
        assert found == code, text
        assert [words for words in said if words not in text] == []
        assert "Traceback" not in text


def test_a_report_fits_the_terminal_and_a_pipe_has_no_colours(site: Path) -> None:
    code, text = typed("ddpscale report ddpscale-runs/slow -v", site, COLUMNS="67")
    assert code == 0
    assert [line for line in text.splitlines() if len(line) > 67] == []
    assert "\x1b" not in text
    assert "\x1b[31m" in typed("pytest --ddp-judge=ddpscale-runs/slow -q --color=yes", site)[1]
