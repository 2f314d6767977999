"""Every benchmark can be asked how it is run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.scripts import BENCHMARKS

# Each as `python benchmarks/NAME.py` runs it, with its folder on the path and nothing else of the project: one after
# the other in one process, since most import torch.
IN_TURN = """
import contextlib, io, json, runpy, sys
folder, ended = sys.argv[1], {}
for name in json.loads(sys.argv[2]):
    sys.argv, sys.path[0], said = [f"{folder}/{name}.py", "--help"], folder, io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        runpy.run_path(sys.argv[0], run_name="__main__")
    ended[name] = said.getvalue()
print(json.dumps(ended))
"""


@pytest.mark.lab
def test_help_shows_the_command(tmp_path: Path) -> None:
    texts = {path.stem: path.read_text("utf-8") for path in BENCHMARKS.glob("*.py")}
    scripts = [name for name, text in texts.items() if "= argument_parser(" in text]
    assert len(scripts) >= 16
    command = [sys.executable, "-c", IN_TURN, str(BENCHMARKS), json.dumps(scripts)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    for name, said in json.loads(done.stdout).items():
        assert (f"python benchmarks/{name}.py" in said, "--help" in said) == (True, True), said


def test_the_bare_loop_imports_nothing_of_the_package() -> None:
    lines = (BENCHMARKS / "bare_ddp.py").read_text(encoding="utf-8").splitlines()
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    assert imports
    assert not [line for line in imports if "ddpscale" in line or "reporting" in line]
