"""One session of pytest on a played machine: its site, its command, what it left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from tests.builders.telemetry import Telemetry, telemetry_of
from tests.forks.start import command, forking
from tests.node.fake_torch import CUDA_BUILD, write_torch
from tests.nvml_stand_in.machine import PlayedMachine
from tests.played_cuda.compiling import LIBRARY_NAME
from tests.played_cuda.machine import PlayedCuda

CHECKOUT = Path(__file__).parents[3]
RANK_SITE = Path(__file__).with_name("rank_site")
HOST = os.uname().nodename
# No session here takes longer, on a machine that is busy.
LIMIT_S = 300.0
POLL_S = 0.05
OPTIONS = (
    *(
        "--gpu-sku=auto",
        "--ddp-warm-up=0",
        "--ddp-run-dir=run",
        "--ddp-history=history.sqlite",
        "-p",
        "no:cacheprovider",
        "-v",
    ),
    "acceptance",
)
# GPUs are warmed up for ten seconds; what trains here needs none of it.
CONFTEST = """\
from pytest_ddpscale.plan import planner

planner.PACES["cuda"] = planner.Pace(planner.FEWEST_ROUNDS, block_s=0.8, warmup_s=0.1)
planner.PROBE_BLOCKS_S["cuda"] = 0.15
"""


@dataclass(frozen=True)
class PlayedSession:
    """A session that runs, or has run.

    Attributes:
        site: its working directory.
        process: pytest.
    """

    site: Path
    process: subprocess.Popen[str]

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.site / "run"

    def until(self, there: Callable[[PlayedSession], bool]) -> None:
        """Wait for something that happens while the session runs."""
        deadline_s = time.monotonic() + LIMIT_S
        while not there(self):
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                self.process.terminate()
                raise AssertionError(f"the session did not come so far:\n{self.ended().terminal}")
            time.sleep(POLL_S)

    def ended(self) -> EndedSession:
        """Wait for its end."""
        try:
            terminal, _ = self.process.communicate(timeout=LIMIT_S)
        finally:
            self.process.kill()
        return EndedSession(self.site, self.process.returncode, terminal, list(left_behind(str(self.site))))

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Whole lines of a file of the run, so far."""
        return lines_of(self.run / name)


@dataclass(frozen=True)
class EndedSession:
    """What a session left.

    Attributes:
        site: its working directory.
        exit_code: pytest's.
        terminal: all it printed.
        left_behind: processes of it that are still there.
    """

    site: Path
    exit_code: int
    terminal: str
    left_behind: list[str]

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.site / "run"

    @property
    def verdicts(self) -> dict[str, Any]:
        """verdicts.json."""
        record: dict[str, Any] = json.loads((self.run / "verdicts.json").read_text(encoding="utf-8"))
        return record

    @property
    def record(self) -> dict[str, Any]:
        """run.json."""
        record: dict[str, Any] = json.loads((self.run / "run.json").read_text(encoding="utf-8"))
        return record

    def verdict(self, name: str) -> dict[str, Any]:
        """That of a check, or of a metric."""
        found = [
            one for one in self.verdicts["verdicts"] if one["id"] == f"node_check[{name}]" or one["metric"] == name
        ]
        assert len(found) == 1, (name, [one["id"] for one in self.verdicts["verdicts"]])
        return dict(found[0])

    def named(self, name: str) -> set[tuple[str, int | None, str | None]]:
        """Host, GPU and UUID of the culprits of a verdict."""
        places = [one["places"][0] for one in self.verdict(name)["culprits"]]
        return {(place["host"], place.get("index"), place.get("uuid")) for place in places}

    def lines(self, name: str, kind: str) -> list[dict[str, Any]]:
        """Records of a kind."""
        return [one for one in lines_of(self.run / name) if one["kind"] == kind]

    @property
    def timed_blocks(self) -> list[tuple[str, str, int, int]]:
        """Study, arm or probe, round and rank of each block of each rank, in order."""
        blocks = [one for one in RunDirectory(self.run).read_records() if isinstance(one, Block)]
        return sorted((*block.key, rank) for block in blocks for rank in block.each("ranks").tolist())

    @property
    def telemetry(self) -> list[Telemetry]:
        """What each GPU said of itself in each block."""
        records = RunDirectory(self.run).read_records()
        return telemetry_of(records, gangs_by_number(records))


def begin(
    site: Path, machine: PlayedMachine, *arguments: str, link: str = "P2P/CUMEM", **environ: str
) -> PlayedSession:
    """Start a session with the acceptance tests, of as few and as short rounds as can decide.

    Args:
        site: an empty folder to start it in.
        machine: that it runs on.
        arguments: more of pytest's.
        link: by what NCCL connects ranks.
        environ: more of the environment.
    """
    _make(site)
    (site / "torch").mkdir()
    torch = write_torch(site / "torch", CUDA_BUILD.replace("sm_90", "sm_90 sm_100"))
    played = machine.environment(PLAYED_TORCH=str(torch), PLAYED_LINK=link, GLOO_SOCKET_IFNAME="lo", **environ)
    environment = {**played, "PYTHONPATH": os.pathsep.join([str(RANK_SITE), played["PYTHONPATH"]])}
    return _started(
        site, command("pytest", *OPTIONS, "--ddp-pass-env=NVML_STAND_IN,PLAYED_*", *arguments), forking(**environment)
    )


def begin_on_cuda(site: Path, machine: PlayedCuda, *arguments: str, **environ: str) -> PlayedSession:
    """As `begin`, with CUDA and NCCL played as well: ranks train on GPUs as they would with a real driver.

    Everything is a fork of one server, which has the library before it imports torch; what belongs to the machine is
    in the environment that the library gives to each program as it starts.
    """
    _make(site)
    library = str(machine.libraries / LIBRARY_NAME)
    environment = forking(library, **machine.environment(GLOO_SOCKET_IFNAME="lo", **environ))
    return _started(site, command("pytest", *OPTIONS, *arguments, preload=library), environment)


def _make(site: Path) -> None:
    shutil.copytree(CHECKOUT / "acceptance", site / "acceptance", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).with_name("thresholds.yaml"), site)
    (site / "conftest.py").write_text(CONFTEST, encoding="utf-8")


def _started(site: Path, program: list[str], environment: dict[str, str]) -> PlayedSession:
    process = subprocess.Popen(
        program, cwd=site, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return PlayedSession(site, process)


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Whole lines of a JSON-lines file; none if it is not there yet."""
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def has_begun(session: PlayedSession) -> bool:
    """Whether ranks have begun to work."""
    return any(one["kind"] == "study_start" for one in session.lines("measurements.jsonl"))


def left_behind(site: str) -> Iterator[str]:
    """Processes that were started for a site: all have a path in it among their arguments or in their environment."""
    for process in psutil.process_iter():
        try:
            if site in " ".join([*process.cmdline(), *process.environ().values()]) and process.pid != os.getpid():
                yield f"{process.pid} {process.status()} {' '.join(process.cmdline())[:100]}"
        except (psutil.Error, OSError):
            continue
