"""Other pytest plugins beside this one, for docs/evidence: exit code and verdicts as without them, or a refusal.

    python benchmarks/plugins.py [--environment DIR] [--only NAME ...]

Makes an environment that adds all plugins to this interpreter's packages, and judges two stored runs, one accepted and
one rejected, on a terminal, with one plugin after the other of benchmarks/plugins.txt, the others blocked. Some are
also tried in a short session with real ranks. Prints a Markdown table; exit code 1 if a row is not as expected.
"""

from __future__ import annotations

import json
import os
import platform
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import distributions
from pathlib import Path

from oracle import ROOT, unpack
from reporting import argument_parser, in_a_fork, row, table

# Stored run → its SKU and exit code.
RUNS = {"recorded-cpu": ("cpu", 0), "recorded-a100-slow-gpu": ("a100-sxm4-80gb", 1)}
QUICK = ("--ddp-rounds=8", "--ddp-block=0.02s", "-k", "throughput_per_gpu")
OUTCOME = re.compile(r"(?m)^(?:ACCEPTED|REJECTED|INCOMPLETE|PARTIAL).*(?:\n {10}\S.*)*")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")
LIMIT_S = 300


# Never blocked: what this plugin needs, and pytest-xdist, whose options other plugins read if it is installed.
NEEDED = ("pytest-ddpscale", "pytest-json-report", "pytest-metadata", "pytest-xdist")


@dataclass(frozen=True)
class Found:
    """What a session came to; `verdicts` by requirement are empty if nothing was judged."""

    code: int | None
    verdicts: dict[str, str]
    said: str


def rows() -> Iterator[tuple[list[str], str, bool]]:
    """A command each: plugin (or python) and arguments; same, refused, some or broken; whether ranks are tried, too."""
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            command, _, expected = line.partition(" : ")
            yield command.split(), expected.removesuffix(" real"), expected.endswith(" real")


def make_environment(folder: Path, names: Iterable[str]) -> Path:
    """An environment with these plugins beside this interpreter's packages. Returns its python."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        (packages,) = folder.glob("lib/*/site-packages")
        here = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
        (packages / "here.pth").write_text("\n".join(here), encoding="utf-8")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *sorted({*names} - {"python"})], check=True)
    return python


def plugins_in(folder: Path) -> dict[str, tuple[str, list[str]]]:
    """Version and names of the plugins of each distribution."""
    every = [*distributions(path=[*map(str, folder.glob("lib/*/site-packages"))]), *distributions()]
    plugins = {one: [point.name for point in one.entry_points if point.group == "pytest11"] for one in every[::-1]}
    return {one.name.replace("_", "-").lower(): (one.version, names) for one, names in plugins.items() if names}


def judged(python: Path, blocked: Iterable[str], arguments: Sequence[str], run: str) -> Found:
    """A stored run, judged without these plugins on a terminal; ``real`` measures a short one."""
    flags, *others = ["-O"] * ("-O" in arguments), *(argument for argument in arguments if argument != "-O")
    # PYTHONOPTIMIZE is for ranks, too.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "DDPSCALE"))}
    environment |= {"PYTEST_ADDOPTS": " ".join(f"-p no:{name}" for name in blocked), "COLUMNS": "100", "TERM": "xterm"}
    environment |= {"PYTHONOPTIMIZE": "1"} if flags else {}
    with tempfile.TemporaryDirectory(prefix="plugins-site-") as temporary:
        site = Path(temporary)
        shutil.copytree(ROOT / "acceptance", site / "acceptance", ignore=shutil.ignore_patterns("__pycache__"))
        options = ["--gpu-sku=cpu", "--ddp-run-dir=run", *QUICK]
        if run in RUNS:
            unpack(run, site / "run")
            options = [f"--gpu-sku={RUNS[run][0]}", "--ddp-judge=run"]
        thresholds = f"--thresholds={ROOT / 'thresholds.yaml'}"

        def on_terminal() -> int:
            os.chdir(site)
            os.environ.clear()
            os.environ |= environment
            command = [str(python), *flags, "-m", "pytest", *options, thresholds, *others]
            return os.waitstatus_to_exitcode(pty.spawn(command))

        ended = in_a_fork(on_terminal, site / "said", LIMIT_S)
        file = site / "run" / "verdicts.json"
        verdicts = json.loads(file.read_text(encoding="utf-8"))["verdicts"] if file.exists() else []
        return Found(
            ended.code, {verdict["id"]: verdict["outcome"] for verdict in verdicts}, ESCAPES.sub("", ended.said)
        )


def differences(expected: str, found: Found, without: Found) -> list[str]:
    """What is not as expected; nothing if all is."""
    if expected == "refused":
        errors = [line for line in found.said.splitlines() if line.startswith("ERROR: ")]
        is_refused = found.code == 4 and len(errors) == 1 and "Traceback" not in found.said and not found.verdicts
        return [] if is_refused else [f"not refused in one line (exit code {found.code})"]
    wrong = []
    if found.code != (1 if expected == "broken" else without.code):
        wrong.append(f"exit code {found.code} instead of {without.code}")
    kept = found.verdicts if expected == "some" else without.verdicts
    if not found.verdicts or {name: without.verdicts[name] for name in kept} != found.verdicts:
        wrong.append("other verdicts")
    headline = OUTCOME.search(found.said)
    if headline is None or "report: run/report.html" not in found.said:
        wrong.append("no headline or no path of the report")
    elif (left_out := len(without.verdicts) - len(found.verdicts)) and not re.search(
        rf"\b{left_out} (of \d+ requirements )?not selected", re.sub(r"\s+", " ", headline[0])
    ):
        wrong.append("the headline does not say how many requirements were left out")
    return wrong


def remark(expected: str, found: Found) -> str:
    """How a refusal begins, or what a row comes to."""
    if expected == "refused":
        return f"refused: {re.findall(r'(?m)^ERROR: ([^;.]*)', found.said)[0]}"
    said = {"some": "same verdicts, leaves items out", "broken": "fails itself with this pytest; not accepted"}
    return said.get(expected, "same verdicts")


def main() -> int:
    """Run the script. Returns its exit code: 1 if anything is not as expected."""
    parser = argument_parser(__doc__)
    parser.add_argument("--environment", type=Path, metavar="DIR", help="keep it there, or use it; default: temporary")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some plugins")
    given = parser.parse_args()
    is_wrong, asked = False, [one for one in rows() if not given.only or one[0][0] in given.only]
    print(table(("plugin", "version", "arguments", "exit codes", "remark"), ()))
    with tempfile.TemporaryDirectory(prefix="plugins-") as temporary:
        folder = (given.environment or Path(temporary)).resolve()
        python = make_environment(folder, (one[0][0] for one in asked))
        known = plugins_in(folder)
        everything = [name for of, (_, names) in known.items() for name in names if of not in NEEDED]
        without = {run: judged(python, everything, (), run) for run in RUNS}
        for run, (_, code) in RUNS.items():
            assert without[run].code == code, without[run].said
        for (name, *arguments), expected, is_real in asked:
            version, own = known.get(name, (platform.python_version(), []))
            session = partial(judged, python, [one for one in everything if one not in own], arguments)
            found = {run: session(run) for run in RUNS}
            wrong = [text for run in RUNS for text in differences(expected, found[run], without[run])]
            if is_real:
                real = session("real")
                # Not whether bounds are met, which a busy machine may miss.
                is_measured = real.verdicts and {"error", "not_measured"}.isdisjoint(real.verdicts.values())
                wrong += [] if is_measured else [f"measuring failed: {real.said}"]
            codes = ", ".join(str(one.code) for one in found.values())
            said = "; ".join(wrong) or remark(expected, found["recorded-cpu"]) + ", measured, too" * is_real
            print(row(name, version, " ".join(arguments), codes, said), flush=True)
            if wrong:
                print(*(one.said for one in found.values()), sep="\n", file=sys.stderr)
            is_wrong |= bool(wrong)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
