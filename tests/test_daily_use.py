"""What a person types on an ordinary day, in an empty directory and in a site's: exit code, and what is said."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ONE = "test_scaling.py::test_throughput_per_gpu[resnet18-fp32-2rank]"
PROGRAMS = {
    "pytest": [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
    "ddpscale": [sys.executable, "-c", "import sys; from pytest_ddpscale.cli import main; sys.exit(main())"],
}
# Of those that pytest makes for itself or a terminal has, nothing may leak in.
KEPT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "DDPSCALE", "COLUMNS"))}


def typed(command: str, where: Path, **environment: str) -> tuple[int, str]:
    """Exit code, and both outputs of a command whose output goes into a pipe."""
    program, *arguments = shlex.split(command)
    done = subprocess.run(
        [*PROGRAMS[program], *arguments], cwd=where, env={**KEPT, **environment}, timeout=120, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An empty directory, and one with acceptance tests; in both a run with a slow GPU, that was judged."""
    found = {name: tmp_path_factory.mktemp(name) for name in ("empty", "site")}
    assert typed("ddpscale init .", found["site"])[0] == 0
    simulated = "ddpscale simulate --gpu-sku=a100 --gpus=8 --rounds=8 --fault=slow-gpu:3:1.2 --out=ddpscale-runs/slow"
    for place in found.values():
        assert typed(simulated, place)[0] == 0
        assert typed("pytest --ddp-judge=ddpscale-runs/slow -q", place)[0] == 1
    return found


@pytest.mark.parametrize("place", ["empty", "site"])
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (f"pytest --gpu-sku=cpu '{ONE}' --co -q", 0, [ONE, "1 test collected"]),
        (f"pytest --gpu-sku=cpu 'acceptance/{ONE}' --co -q", 0, [ONE, "1 test collected"]),
        ("pytest --gpu-sku=cpu no_such_file.py", 4, ["file or directory not found: no_such_file.py"]),
        ("pytest --gpu-sku=b2000", 4, ["--gpu-sku: ", "has no SKU 'b2000'", "b200"]),
        ("pytest --gpu-sku=cpu -k nothing", 5, ["collected 29 items / 29 deselected / 0 selected"]),
        ("pytest --gpu-sku=cpu --co -q", 0, ["29 tests collected"]),
        ("ddpscale runs", 0, ["slow", "a100-sxm4-80gb", "REJECTED: GPU 3 (SIM-3) on simulated-0 is 1.20× slower"]),
        ("ddpscale runs nowhere", 4, ["nowhere: holds no run; expected a folder of run directories"]),
        ("ddpscale report ddpscale-runs/slow", 0, ["REJECTED: GPU 3 (SIM-3) on simulated-0 is 1.20× slower"]),
        ("ddpscale report nowhere", 4, ["nowhere: has no run.json; expected a run directory"]),
        ("ddpscale culprits ddpscale-runs/slow", 0, ["nothing to do: SIMULATED"]),
        ("ddpscale culprits --rehearse ddpscale-runs/slow", 0, ["Rehearsal. ", "simulated-0: rejected: GPU 3 (SIM-3)"]),
        ("ddpscale history nowhere --history=none", 4, ["none: does not exist; expected a history file"]),
        ("ddpscale thresholds show --gpu-sku=b2000", 4, ["has no SKU 'b2000'"]),
    ],
)  # fmt: skip
def test_a_person_gets_what_they_expect(
    places: dict[str, Path], place: str, command: str, code: int, said: list[str]
) -> None:
    found, text = typed(command, places[place])
    assert found == code, text
    assert [words for words in said if words not in text] == []
    assert "Traceback" not in text


@pytest.mark.parametrize("columns", [80, 67])
@pytest.mark.parametrize("flag", ["", " -v"], ids=["brief", "all"])
def test_a_report_fits_the_terminal_and_a_pipe_has_no_colours(places: dict[str, Path], columns: int, flag: str) -> None:
    code, text = typed(f"ddpscale report ddpscale-runs/slow{flag}", places["empty"], COLUMNS=str(columns))
    assert code == 0
    wide = [line for line in text.splitlines() if len(line) > columns and not line.startswith("REJECTED")]
    assert wide == []
    assert "\x1b" not in text


def test_without_colour_means_none_on_a_terminal_too(places: dict[str, Path]) -> None:
    coloured = typed("pytest --ddp-judge=ddpscale-runs/slow -q --color=yes", places["empty"])[1]
    assert "\x1b[31m" in coloured
    plain = typed("pytest --ddp-judge=ddpscale-runs/slow -q", places["empty"], NO_COLOR="1", FORCE_COLOR="")[1]
    assert "\x1b" not in plain
