"""Every benchmark can be asked how it is run, and refuses at once what it cannot do."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.benchmarks.scripts import BENCHMARKS

NAMES = (
    *(
        "calibrate_rehearsal",
        "compared",
        "control_plane",
        "faults",
        "find_max_batch",
        "gang_reuse",
        "fidelity",
        "hostile_inputs",
        "judging",
        "launches",
        "live_page",
        "plugin_load",
    ),
    *(
        "profiled_exposure",
        "sampler_overhead",
        "straggler_roc",
        "stragglers",
        "time_to_verdict",
        "width",
        "wrong_verdicts",
    ),
)
# Each as `python benchmarks/NAME.py` runs it, with its folder on the path and nothing else of the project: one after
# the other in one process, since most import torch.
IN_TURN = """
import contextlib, io, json, runpy, sys
folder, ended = sys.argv[1], {}
for name, *arguments in json.loads(sys.argv[2]):
    sys.argv, sys.path[0], said = [f"{folder}/{name}.py", *arguments], folder, (io.StringIO(), io.StringIO())
    with contextlib.redirect_stdout(said[0]), contextlib.redirect_stderr(said[1]):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            code = 0
        except SystemExit as end:
            print(*[end.code] * isinstance(end.code, str), file=sys.stderr)
            code = 1 if isinstance(end.code, str) else end.code or 0
    ended[name] = [code, *(one.getvalue() for one in said)]
print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Exit code, output and errors of each."""
    environ = {name: value for name, value in os.environ.items() if name != "RANK"}
    commands = json.dumps([[name, "--help"] for name in NAMES] + [["bare_ddp", "--device", "cpu"]])
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN, BENCHMARKS, commands],
        cwd=tmp_path_factory.mktemp("elsewhere"), env=environ, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    found: dict[str, tuple[int, str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_the_command(ended: dict[str, tuple[int, str, str]], name: str) -> None:
    code, output, errors = ended[name]
    assert code == 0, errors
    assert f"python benchmarks/{name}.py" in output
    assert "--json FILE" in output


def test_the_bare_loop_names_torchrun_when_started_without_it(ended: dict[str, tuple[int, str, str]]) -> None:
    code, _, errors = ended["bare_ddp"]
    assert code == 1
    assert "torchrun" in errors
    assert "Traceback" not in errors


def test_the_bare_loop_imports_nothing_of_the_package() -> None:
    lines = (BENCHMARKS / "bare_ddp.py").read_text(encoding="utf-8").splitlines()
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    assert imports
    assert not [line for line in imports if "ddpscale" in line or "reporting" in line]
