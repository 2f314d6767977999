"""What the scripts share, formulas behind published figures, and that each can be asked how it is run."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.benchmarks import BENCHMARKS, benchmark


def test_results_are_tables_and_kept_as_strict_json_with_the_machine(tmp_path: Path) -> None:
    reporting = benchmark("reporting")
    assert reporting.table(("arm", "img/s"), [("alone", 9.5)]).splitlines() == [
        "| arm | img/s |",
        "| --- | --- |",
        "| alone | 9.5 |",
    ]
    kept = tmp_path / "result.json"
    with pytest.raises(ValueError, match="JSON compliant"):
        reporting.keep(kept, "fidelity", {"ratio": math.nan})
    assert not kept.exists()
    reporting.keep(kept, "fidelity", {"ratio": 1.01})
    assert {"ratio", "host", "measured_at", "usable_cpus"} <= set(json.loads(kept.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("work", "limit_s", "code", "says"),
    [
        (lambda: print("one") or 3, math.inf, 3, r"one\n"),
        (lambda: 1 / 0, math.inf, 1, r"Traceback(.|\n)*ZeroDivisionError.*\n"),
        (lambda: math.factorial(10**9), 0.1, None, ""),
    ],
)
def test_work_in_a_fork_ends_with_its_code_or_at_its_limit(
    work: Callable[[], Any], limit_s: float, code: int | None, says: str, tmp_path: Path
) -> None:
    ended = benchmark("reporting").in_a_fork(work, tmp_path / "said", limit_s)
    assert ended.code == code
    assert re.fullmatch(says, ended.said)


def test_a_command_runs_in_its_folder_with_its_environment_and_tells_what_it_took(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import os, time; print(os.getcwd(), *os.environ); [i for i in range(10**6)]")
    ended = benchmark("reporting").run(command, tmp_path, tmp_path / "said", {"ONE": "1", "LC_CTYPE": "C.UTF-8"})
    assert (ended.code, ended.said.split()[:2]) == (0, [str(tmp_path), "ONE"])
    assert ended.cpu_s > 0
    assert ended.mib > 5


def test_two_ways_take_turns_in_a_balanced_random_order() -> None:
    orders = benchmark("reporting").orders(("bare", "worker"), 121, 0)
    assert {order[0] for order in orders[::2]} == {"bare", "worker"}
    assert all(one == other[::-1] for one, other in zip(orders[::2], orders[1::2], strict=False))


def test_two_loops_are_compared_pair_by_pair() -> None:
    fidelity, job = benchmark("fidelity"), SimpleNamespace(batch_size=16, block_steps=3)
    found = fidelity.agreement(job, 2, [{"bare": [1.0, 2.0, 4.0], "worker": [1.25, 2.5, 5.0]}])
    assert (found["ratio"]["value"], found["median_ratio"]) == pytest.approx((0.8, 0.8))
    assert found["samples_per_s"] == {"bare": pytest.approx(96 / 2.0), "worker": pytest.approx(96 / 2.5)}
    launches = [{"bare": [1.0, 1.0], "worker": [0.5, 0.5]}, {"bare": [1.0] * 4, "worker": [2.0] * 4}]
    assert fidelity.agreement(job, 1, launches)["ratio"]["value"] == pytest.approx((2.0**2 * 0.5**4) ** (1 / 6))


def test_the_samplers_cost_is_a_ratio_within_rounds() -> None:
    sampler = benchmark("sampler_overhead")
    # The machine slows down threefold; the sampler costs 2 % all the same.
    ratio, cpu_s_per_s = sampler.overhead([sampler.Round(0.98 * pace, pace, 0.01, 2.0) for pace in (9.0, 6.0, 3.0)])
    assert (ratio.value, cpu_s_per_s) == pytest.approx((0.98, 0.005))


def test_shares_are_of_all_clusters() -> None:
    rehearsal = benchmark("calibrate_rehearsal")
    nodes = {("bad", "left out"): 2, ("bad", "kept"): 2, ("good", "left out"): 2, ("good", "kept"): 34}
    nodes |= {("healthy", "accepted"): 6, ("healthy", "rejected"): 2}
    shares = {names: (one.count, one.runs) for names, one in rehearsal.shares(rehearsal.Nodes(nodes)).items()}
    assert (shares["bad", "left out"], shares["good", "left out"]) == ((2, 4), (2, 36))
    assert shares["healthy", "rejected"] == (2, 8)


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
    scripts = [name for name, text in texts.items() if "(__doc__" in text or "    __doc__,\n" in text]
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
