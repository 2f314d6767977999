"""Whole commands on played GPUs: what each fault comes to, and that every part runs from its start to its report.

    python benchmarks/played_cuda.py --json played_cuda.json
    python benchmarks/played_cuda.py --match slow        only the rows with that in their name; --list names all

torch, its NCCL backends, DDP, agents and torchrun are real; CUDA, NCCL and NVML are played (tests/played_cuda,
tests/nvml_stand_in): kernels take virtual time, so numbers mean nothing, and verdicts on faults do. A row is as
expected if the command ends within its limit and with the right exit code, the verdicts name exactly the GPUs with a
fault, by NVML's index and UUID, the output says what it must, and no process is left. Each rank takes 1.2 GiB.

Exit code: 0 if all rows are as expected, 1 if not.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from reporting import argument_parser, keep, table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the tests' played GPUs

from played_scenarios import ACCEPTANCE, CONFTEST, SCENARIOS, THRESHOLDS, Scenario  # noqa: E402

from tests.nvml_stand_in.machine import uuid_of  # noqa: E402
from tests.played_cuda.compiling import build, reason_not_to_build  # noqa: E402
from tests.played_cuda.machine import GPU_BOUND, PlayedCuda  # noqa: E402

GRACE_S = 20.0  # between asking a command to stop and killing it
SETTLING_S = 3.0  # of processes that end with the command
UNREADABLE = "expected the file as pytest-ddpscale wrote it"
OUTCOMES = ("ACCEPTED", "REJECTED", "INCOMPLETE", "INCONCLUSIVE", "PARTIAL", "ERROR:", "ddpscale:")


@dataclass(frozen=True)
class Row:
    """What a scenario came to.

    Attributes:
        exit_code: of the command; None: it was ended at its limit.
        headline: the first line of the outcome, or what the command said last.
        named: (index, UUID) of the GPUs that verdicts name.
        left_behind: processes.
        wrong: what is not as expected.
    """

    name: str
    exit_code: int | None
    headline: str
    named: list[tuple[int | None, str | None]]
    seconds: float
    left_behind: list[str]
    wrong: list[str]


def play(scenario: Scenario, libraries: Path, folder: Path) -> Row:
    """Run one command on its machine to its end, or to its limit."""
    site = folder / "site"
    shutil.copytree(ROOT / "acceptance", site / "acceptance", ignore=shutil.ignore_patterns("__pycache__"))
    command = list(scenario.command) or list(ACCEPTANCE)
    if not scenario.command:
        (site / "conftest.py").write_text(CONFTEST, encoding="utf-8")
        (site / "thresholds.yaml").write_text(THRESHOLDS, encoding="utf-8")
    if command[0].endswith(".sh"):
        command = [str(ROOT / "benchmarks" / command[0]), *command[1:]]
    else:
        command = [sys.executable, *command, *scenario.options]
    with PlayedCuda(
        libraries, folder / "machine", scenario.gpus, **{"settings": GPU_BOUND} | scenario.machine
    ) as machine:
        began = time.monotonic()
        with (folder / "output.log").open("w") as output:
            process = subprocess.Popen(
                command, cwd=site, env=machine.environment(PYTHON=sys.executable, **scenario.environ),
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            exit_code = _ended(process, scenario.limit_s)
        seconds = time.monotonic() - began
        left = _end_processes(str(folder))
    return _row(scenario, exit_code, seconds, left, folder)


def _ended(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return None


def _end_processes(folder: str) -> list[str]:
    """Those of a machine that are still there a moment later: all of them have its library in their environment."""
    deadline_s = time.monotonic() + SETTLING_S
    while (there := list(_processes_of(folder))) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    said = [f"{process.pid} {' '.join(process.info['cmdline'] or [])[:80]}" for process in there]
    for process in there:
        process.kill()
    return said


def _processes_of(folder: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["cmdline"]):
        try:
            if folder in process.environ().get("LD_PRELOAD", "") and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.Error, OSError):
            continue


def _row(scenario: Scenario, exit_code: int | None, seconds: float, left: list[str], folder: Path) -> Row:
    lines = [line for line in (folder / "output.log").read_text(errors="replace").splitlines() if line.strip()]
    outcomes = [line for line in lines if line.startswith(OUTCOMES)]
    headline = outcomes[0] if outcomes else lines[-1] if lines else ""
    named = _named(folder / "site" / "run" / "verdicts.json")
    wrong = [] if exit_code in scenario.exit_codes else ["ended at its limit" if exit_code is None else "exit code"]
    lost = scenario.machine.get("lost", ())  # a GPU that was lost before cannot tell its UUID
    wrong += [
        f"GPU {index} is not named"
        for index in scenario.named
        if not {(index, uuid_of(index)), *([(index, None)] if index in lost else [])} & set(named)
    ]
    wrong += [f"GPU {index} is named" for index, _ in named if index is not None and index not in scenario.named]
    wrong += [] if re.search(scenario.says, "\n".join(lines)) else [f"does not say {scenario.says!r}"]
    wrong += ["the run cannot be read"] if any(UNREADABLE in line for line in lines) else []
    wrong += ["left behind"] if left else []
    return Row(scenario.name, exit_code, headline, named, seconds, left, wrong)


def _named(verdicts: Path) -> list[tuple[int | None, str | None]]:
    if not verdicts.exists():
        return []
    found = json.loads(verdicts.read_text(encoding="utf-8"))["verdicts"]
    places = [one["places"][0] for verdict in found for one in verdict["culprits"]]
    return sorted({(place.get("index"), place.get("uuid")) for place in places if len(place) > 1})


def _cells(row: Row) -> tuple[str, ...]:
    named = ", ".join(f"{index} ({uuid[:12]}…)" if uuid else f"{index}" for index, uuid in row.named)
    code = "limit" if row.exit_code is None else str(row.exit_code)
    left = str(len(row.left_behind)) if row.left_behind else "nothing"
    return row.name, code, f"{row.seconds:.0f}", named or "–", left, ", ".join(row.wrong) or "yes", row.headline


def main() -> int:
    """Play what is asked for, and print each row as it ends."""
    parser = argument_parser(__doc__)
    parser.add_argument("--match", default="", metavar="TEXT", help="only rows with this in their name")
    parser.add_argument("--list", action="store_true", help="name the rows, and play none")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep each row's site and output in this new folder")
    arguments = parser.parse_args()
    chosen = [one for one in SCENARIOS if arguments.match in one.name]
    if arguments.list or not chosen:
        print(*(one.name for one in SCENARIOS), sep="\n")
        return 0 if arguments.list else 2
    if reason := reason_not_to_build():
        print(reason, file=sys.stderr)
        return 2
    rows = []
    with tempfile.TemporaryDirectory(prefix="played-cuda-") as temporary:
        libraries = build(Path(temporary))
        for scenario in chosen:
            folder = (arguments.keep or Path(temporary)).resolve() / scenario.name
            folder.mkdir(parents=True)
            rows.append(play(scenario, libraries, folder))
            print("  ".join(_cells(rows[-1])), *(f"\n  left behind: {one}" for one in rows[-1].left_behind), flush=True)
    header = ("row", "exit code", "seconds", "named", "left behind", "as expected")
    print("\n" + table(header, [_cells(row)[:-1] for row in rows]))
    keep(arguments.json, "played_cuda", {"rows": [vars(row) for row in rows]})
    return 1 if any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
