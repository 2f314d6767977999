"""Whole commands on played GPUs, for docs/evidence: what each fault comes to, and that every part ends in a report.

    python benchmarks/played_cuda.py
    python benchmarks/played_cuda.py --match slow        only the rows of rows.jsonl with that in their name

torch, its NCCL backends, DDP, agents and torchrun are real; CUDA, NCCL and NVML are played (tests/played_cuda,
tests/nvml_stand_in): kernels take virtual time, so numbers mean nothing, and verdicts on faults do. Each line of
benchmarks/played/rows.jsonl is a `Scenario`. It is as expected if the command ends within its limit and with the right
exit code, the verdicts name exactly the GPUs with a fault, by NVML's index and UUID, the output says what it must, and
no process is left. Each rank takes 1.2 GiB. Exit code: 0 if all are as expected, 1 if not.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from reporting import arguments, row, run, table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the tests' played GPUs

from tests.integration.played_gpus.played_session import left_behind  # noqa: E402
from tests.nvml_stand_in.gpus import Changing, PlayedGpu, Process  # noqa: E402
from tests.nvml_stand_in.machine import A100, B200, V100, uuid_of  # noqa: E402
from tests.played_cuda.compiling import build, reason_not_to_build  # noqa: E402
from tests.played_cuda.machine import GPU_BOUND, PlayedCuda  # noqa: E402

DATA = Path(__file__).with_name("played")
GPUS = {"A100": A100, "B200": B200, "V100": V100}
# Of acceptance on four GPUs: as few and short rounds as can decide, but through every stage.
CONFTEST = """\
from pytest_ddpscale.plan import planner

planner.PACES["cuda"] = planner.Pace(planner.FEWEST_ROUNDS, block_s=0.5, warmup_s=0.1)
planner.PROBE_BLOCKS_S["cuda"] = 0.15
"""
ACCEPTANCE = ("-m", "pytest", "--ddp-run-dir=run", "-p", "no:cacheprovider", "acceptance")
DDPSCALE = ("-c", "import sys; from pytest_ddpscale.cli import main; sys.exit(main())")
SETTLING_S = 3.0  # of processes that end with the command
UNREADABLE = "expected the file as pytest-ddpscale wrote it"
YES = "yes"
OUTCOMES = ("ACCEPTED", "REJECTED", "INCOMPLETE", "INCONCLUSIVE", "PARTIAL", "ERROR:", "ddpscale:")


@dataclass(frozen=True)
class Scenario:
    """One row.

    Attributes:
        name: of the row.
        exit_codes: that are right.
        named: NVML's numbers of the GPUs that the verdicts must name, and no others.
        says: a regular expression that the output matches somewhere.
        gpus: of the machine, a model and how many.
        odd: what the driver says of a GPU, by its number: fields of `PlayedGpu` and of its work.
        machine: further arguments of `PlayedCuda`.
        ddpscale: arguments of ``ddpscale``.
        command: arguments of Python, or a script; none of both: the acceptance tests of a site with thresholds.yaml.
        options: added to the command.
        environ: more of the environment.
        limit_s: for the whole command.
    """

    name: str
    exit_codes: Sequence[int] = (1,)
    named: Sequence[int] = ()
    says: str = ""
    gpus: tuple[str, int] = ("A100", 4)
    odd: dict[str, dict[str, Any]] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    ddpscale: Sequence[str] = ()
    command: Sequence[str] = ()
    options: Sequence[str] = ("--gpu-sku=auto",)
    environ: dict[str, str] = field(default_factory=dict)
    limit_s: float = 180.0

    @property
    def played(self) -> list[PlayedGpu]:
        """Its GPUs."""
        model, count = self.gpus
        return [_odd(GPUS[model], self.odd.get(str(number), {})) for number in range(count)]


def _odd(gpu: PlayedGpu, said: dict[str, Any]) -> PlayedGpu:
    at_work = {name: value for name, value in said.items() if hasattr(gpu.work, name)}
    before = {name: value for name, value in said.items() if name not in at_work}
    if at_work.get("utilization_pct") == "at times":  # of samples, 0.1 s each, from now on
        busy = [(time.time() + 0.1 * number, 99 * (number % 2)) for number in range(3000)]
        at_work["utilization_pct"] = Changing(99, busy)
    if "processes" in before:
        before["processes"] = [Process(*one) for one in before["processes"]]
    return replace(gpu, work=replace(gpu.work, **at_work), **before) if said else gpu


SCENARIOS = [Scenario(**json.loads(line)) for line in (DATA / "rows.jsonl").read_text(encoding="utf-8").splitlines()]


def play(scenario: Scenario, libraries: Path, folder: Path) -> dict[str, Any]:
    """Run one command on its machine to its end, or to its limit. Returns what it came to."""
    site = folder / "site"
    shutil.copytree(ROOT / "acceptance", site / "acceptance", ignore=shutil.ignore_patterns("__pycache__"))
    command = [*DDPSCALE, *scenario.ddpscale] if scenario.ddpscale else list(scenario.command or ACCEPTANCE)
    if not (scenario.command or scenario.ddpscale):
        (site / "conftest.py").write_text(CONFTEST, encoding="utf-8")
        shutil.copy2(DATA / "thresholds.yaml", site)
    if command[0].endswith(".sh"):
        command = [str(ROOT / "benchmarks" / command[0]), *command[1:]]
    else:
        command = [sys.executable, *command, *scenario.options]
    given, began = {"settings": GPU_BOUND} | scenario.machine, time.monotonic()
    with PlayedCuda(libraries, folder / "machine", scenario.played, **given) as machine:
        environment = machine.environment(PYTHON=sys.executable, **scenario.environ)
        ended = run(command, site, folder / "output.log", environment, scenario.limit_s)
        seconds = time.monotonic() - began
        deadline_s = time.monotonic() + SETTLING_S
        while (left := list(left_behind(str(folder)))) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        for one in left:
            psutil.Process(int(one.split()[0])).kill()
    lines = [line for line in ended.said.splitlines() if line.strip()]
    headline = next((line for line in lines if line.startswith(OUTCOMES)), (lines or [""])[-1])
    named = _named(site / "run" / "verdicts.json")
    # A GPU that was lost before cannot tell its UUID.
    lost = scenario.machine.get("lost", ())
    right = {one: {(one, uuid_of(one)), (one, None) if one in lost else (one, uuid_of(one))} for one in scenario.named}
    wrong = {f"GPU {one} is not named": not its & named for one, its in right.items()}
    wrong |= {f"GPU {one} is named": one not in right for one, _ in named if one is not None} | {
        "exit code": ended.code not in scenario.exit_codes, "left behind": bool(left),
        f"does not say {scenario.says!r}": not re.search(scenario.says, "\n".join(lines)),
        "the run cannot be read": UNREADABLE in ended.said,
    }  # fmt: skip
    said = ", ".join(sorted(f"{index} ({uuid[:12]}…)" if uuid else f"{index}" for index, uuid in named))
    return {
        "row": scenario.name, "exit code": "limit" if ended.code is None else ended.code, "seconds": f"{seconds:.0f}",
        "named": said or "–", "left behind": ", ".join(left) or "nothing",
        "as expected": ", ".join(what for what, is_so in wrong.items() if is_so) or YES, "first line": headline,
    }  # fmt: skip


def _named(verdicts: Path) -> set[tuple[int | None, str | None]]:
    """NVML's index and UUID of the GPUs that verdicts name."""
    found = json.loads(verdicts.read_text(encoding="utf-8"))["verdicts"] if verdicts.exists() else []
    places = [one["places"][0] for verdict in found for one in verdict["culprits"]]
    return {(place.get("index"), place.get("uuid")) for place in places if len(place) > 1}


def main() -> int:
    """Play what is asked for, and print each row as it ends."""
    given = arguments(
        __doc__,
        match=("", "only rows with this in their name"),
        keep=(Path, "keep each row's site and output in this new folder"),
    )
    if reason := reason_not_to_build():
        print(reason, file=sys.stderr)
        return 2
    rows = []
    with tempfile.TemporaryDirectory(prefix="played-cuda-") as temporary:
        libraries = build(Path(temporary))
        for scenario in (scenario for scenario in SCENARIOS if given.match in scenario.name):
            folder = (given.keep or Path(temporary)).resolve() / scenario.name
            folder.mkdir(parents=True)
            rows.append(play(scenario, libraries, folder))
            print(row(*rows[-1].values()) if rows[1:] else table(list(rows[0]), [list(rows[0].values())]), flush=True)
    return int(any(row["as expected"] != YES for row in rows))


if __name__ == "__main__":
    sys.exit(main())
