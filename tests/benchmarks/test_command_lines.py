"""Every benchmark can be asked how it is run, and refuses at once what it cannot do."""

from __future__ import annotations

import json
import os
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


@pytest.mark.lab
def test_help_shows_the_command_and_the_bare_loop_asks_for_torchrun(tmp_path: Path) -> None:
    scripts = [path.stem for path in BENCHMARKS.glob("*.py") if "= argument_parser(" in path.read_text("utf-8")]
    assert len(scripts) >= 17
    commands = json.dumps([[name, "--help"] for name in scripts] + [["bare_ddp", "--device", "cpu"]])
    environ = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN, BENCHMARKS, commands],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    ended = json.loads(done.stdout)
    code, _, errors = ended.pop("bare_ddp")
    assert (code, "torchrun" in errors, "Traceback" in errors) == (1, True, False)
    for name, (code, output, errors) in ended.items():
        assert (code, f"python benchmarks/{name}.py" in output, "--json FILE" in output) == (0, True, True), errors


def test_the_bare_loop_imports_nothing_of_the_package() -> None:
    lines = (BENCHMARKS / "bare_ddp.py").read_text(encoding="utf-8").splitlines()
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    assert imports
    assert not [line for line in imports if "ddpscale" in line or "reporting" in line]
