"""Judge known runs and show what a change of the code changed: nothing, or differences that somebody has to read.

    python benchmarks/oracle.py --check
    python benchmarks/oracle.py --check --only recorded-a100-slow-gpu import-v100
    python benchmarks/oracle.py --store
    python benchmarks/oracle.py --record recorded-cpu=RUN_DIR

`--check` judges all runs of benchmarks/oracle/runs.txt as users judge them, compares them with what is stored beside
it, and exits with 1 if anything differs; `--store` stores what it finds. Of each run it keeps facts: verdicts.json and
the rows of the history, numbers to six digits, without sentences except for stored and imported runs; of some
also what pytest prints, without and with ``-v``, and report.md. Times, digests, versions and paths are masked.

Runs are simulated anew, imported from published results, or stored: `--record` stores the measurements of a run
directory, without the names of its machine. What is stored stays the same when the simulator draws other numbers.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib
import io
import json
import lzma
import math
import os
import pkgutil
import platform
import re
import sqlite3
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "oracle"
# Old name to new: a name that a change only replaces is no difference. `--store` stores the new one; then remove it.
RENAMED: dict[str, str] = {}
_LISTED = re.sub(r"(?m)^#.*\n", "", (DATA / "runs.txt").read_text(encoding="utf-8")).strip()
CHAINS = [dict(line.split(maxsplit=1) for line in chain.splitlines()) for chain in _LISTED.split("\n\n")]
RUNS = {name: command for chain in CHAINS for name, command in chain.items()}
# The other simulated runs lose their marks, as nothing simulated is accepted or compared with the past.
SIMULATED = ("-16-nodes", "-lost-gpu")
MEASURED = ("plan.json", "run.json", "measurements.jsonl", "telemetry.jsonl", "baseline.json")
# Keys that are no facts, and sentences.
DROPPED = {"basis", "extends", "schema_version", "source", "verdicts", "blockers", "last_acceptance"}
SENTENCES = {"reason", "evidence", "place"}
# Columns of the history that name a run, a place or a time.
DROPPED_COLUMNS = {"run", "run_path", "started_at", "judged_at", "measurements_sha256"}
MASKS = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?( UTC|\+00:00|Z)?", "TIME"),
    (r"\b[0-9a-f]{64}\b", "SHA256"),
    (r'("(?:python|pytest_ddpscale)\\*":\\*")[^"\\]*', r"\1VERSION"),
    (r"in \d+\.\d+s( \([\d:]+\))?", "in SECONDS"),
    (r"={3,}", "==="),
    (r"(?m)^(platform|rootdir|plugins).*\n", ""),
    (r"(thresholds\.yaml):\d+", r"\1:LINE"),
)
Facts = dict[str, dict[str, Any]]


def program(name: str, arguments: Sequence[str], said: Path) -> int:
    """Run pytest or ddpscale in a fork of this process, which has imported the package. Returns its exit code."""
    fork = get_context("fork").Process(target=_become, args=(name, arguments, said))
    fork.start()
    fork.join()
    return fork.exitcode or 0


def _become(name: str, arguments: Sequence[str], said: Path) -> None:
    for number in (1, 2):
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.argv = [name, *arguments]
    sys.exit(importlib.import_module({"pytest": "pytest", "ddpscale": "pytest_ddpscale.cli"}[name]).main())


def make(name: str, number: int) -> None:
    """Make a run directory here, the `number`-th of its chain."""
    if RUNS[name].startswith("stored"):
        with tarfile.open(DATA / "runs" / f"{name}.tar.xz") as packed:
            # Python before 3.10.12 and 3.11.4, which Debian 12 has, has no filters.
            packed.extraction_filter = getattr(tarfile, "data_filter", None)
            packed.extractall(name)
        return
    if program("ddpscale", [*RUNS[name].format(root=ROOT).split(), f"--out={name}"], said := Path(f"{name}.made")):
        raise SystemExit(f"{name}: {said.read_text()}")
    is_marked = RUNS[name].startswith("import") or name.endswith(SIMULATED)
    for file in () if is_marked else Path(name).glob("*.json*"):
        file.write_text(file.read_text().replace("SIM-", "GPU-").replace("simulated-", "node-"))
    record = json.loads(Path(name, "run.json").read_text())
    record["started_at"] = record["finished_at"] = f"2026-01-01T{number:02}:00:00+00:00"
    record |= {} if is_marked else {"status": "finished", "simulated": False, "simulation": None}
    Path(name, "run.json").write_text(json.dumps(record))


def judged(name: str, number: int, history: str) -> tuple[Facts, dict[str, str]]:
    """Facts and texts of a run, judged as users judge it and added to the history."""
    make(name, number)
    sku = json.loads(Path(name, "run.json").read_text())["sku"]
    command = ["-p", "ddpscale", "-p", "no:cacheprovider", f"--gpu-sku={sku}", f"--ddp-judge={name}"]
    texts, code = {}, 0
    for kind in ("terminal", "verbose") if "texts" in RUNS[name] else ("terminal",):
        options = [f"--ddp-history={history}", *["-v"] * (kind == "verbose")]
        code = program("pytest", command + options, said := Path(f"{name}.{kind}"))
        texts[f"{name}.{kind}"] = said.read_text()
    facts: Facts = {"run": {"exit code": code}}
    if not Path(name, "verdicts.json").exists():
        return {"run": {"exit code": code, "said": masked(texts[f"{name}.terminal"])}}, {}
    judgement = json.loads(Path(name, "verdicts.json").read_text())
    dropped = DROPPED if RUNS[name].startswith(("stored", "import")) else DROPPED | SENTENCES
    facts["run"] |= kept(judgement, dropped)
    facts["run"]["blockers"] = [f"{one['kind']} {one['name']}" for one in judgement["blockers"]]
    for verdict in judgement["verdicts"]:
        named: dict[str, list[Any]] = defaultdict(list)
        for culprit in verdict["culprits"]:
            named[culprit_name(culprit)].append(culprit)
        facts[verdict["id"]] = kept(verdict | {"culprits": named}, dropped)
    if not RUNS[name].startswith("import"):
        facts["run"]["history"] = program("ddpscale", ["history", f"--history={history}", "--add", name], Path("added"))
        facts |= {} if facts["run"]["history"] else history_rows(history)
    texts[f"{name}.report.md"] = Path(name, "report.md").read_text()
    has_texts = "texts" in RUNS[name]
    return json.loads(masked(json.dumps(facts))), {k: masked(text) for k, text in texts.items() if has_texts}


def culprit_name(culprit: Mapping[str, Any]) -> str:
    """``gpu node-0:3``, ``link node-0:1 node-1:1``."""
    ends = [(culprit["host"], culprit["gpu_index"]), (culprit["peer_host"], culprit["peer_gpu_index"])]
    return " ".join([culprit["kind"], *(f"{host}:{index}" for host, index in ends if host is not None)])


def history_rows(history: str) -> Facts:
    """Rows of the run that was added last, by table: their numbers, by all that is no measured number."""
    rows: Facts = defaultdict(dict)
    with closing(sqlite3.connect(history)) as database:
        (last,) = database.execute("SELECT id FROM runs ORDER BY rowid DESC").fetchone()
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            found = database.execute(f"SELECT * FROM {table} WHERE {'id' if table == 'runs' else 'run'} = ?", [last])
            columns = [column[0] for column in found.description]
            for values in found:
                row = {c: v for c, v in zip(columns, values, strict=True) if c not in DROPPED_COLUMNS and v != last}
                words = " ".join(str(value) for value in row.values() if not isinstance(value, float))
                rows[f"history {table}"][words] = kept({c: v for c, v in row.items() if isinstance(v, float)}, set())
    return rows


def masked(text: str) -> str:
    """Without times, digests, and what is of this machine."""
    text = text.replace(str(Path.cwd()), "HERE").replace(str(ROOT), "ROOT")
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text)
    return text


def kept(said: Any, dropped: set[str]) -> Any:
    """Without dropped keys and what is empty, numbers to nine digits."""
    if isinstance(said, dict):
        found = {key: kept(value, dropped) for key, value in said.items() if key not in dropped}
        return {key: value for key, value in found.items() if value not in (None, "", [], {})}
    if isinstance(said, list):
        return [kept(value, dropped) for value in said]
    return float(f"{said:.9g}") if isinstance(said, float) else said


def judge_chain(chain: Sequence[str], asked: Sequence[str], folder: Path) -> list[tuple[str, Facts, dict[str, str]]]:
    """Name, facts and texts of the asked runs of a chain."""
    os.chdir(folder)
    end = max((number for number, name in enumerate(chain, 1) if name in asked), default=0)
    found = [(name, *judged(name, number, f"history-{chain[0]}.sqlite")) for number, name in enumerate(chain[:end])]
    return [one for one in found if one[0] in asked]


def judge_all(asked: Sequence[str], folder: Path) -> tuple[dict[str, Facts], dict[str, str]]:
    """Facts and texts of these runs, in two processes."""
    import pytest_ddpscale

    # Imported once for all forks: what is not torch and not pytest's to load.
    for module in pkgutil.walk_packages(pytest_ddpscale.__path__, "pytest_ddpscale."):
        if not module.name.startswith(("pytest_ddpscale.worker", "pytest_ddpscale.plugin")):
            importlib.import_module(module.name)
    importlib.import_module("pytest")
    gc.freeze()
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        chains = list(pool.map(partial(judge_chain, asked=asked, folder=folder), map(list, CHAINS)))
    done = [one for chain in chains for one in chain]
    return {name: facts for name, facts, _ in done}, {key: text for *_, texts in done for key, text in texts.items()}


def fact_differences(before: Mapping[str, Facts], after: Mapping[str, Facts]) -> list[str]:
    """A line for each change, outcomes first, with the runs and requirements where it is the same."""
    old, new = dict(_flat(before)), dict(_flat(after))
    places: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for path in sorted({*old, *new}):
        was, now = (found.get(path, "(absent)") for found in (old, new))
        numbers = isinstance(was, float) and isinstance(now, float)
        if not (
            math.isclose(was, now, rel_tol=1e-6, abs_tol=1e-12) if numbers else (type(was), was) == (type(now), now)
        ):
            places[" ".join(path[2:]), str(was), str(now)].append(" ".join(path[:2]))
    lines = []
    for (field, was, now), changed in sorted(places.items(), key=lambda change: change[0][0] != "outcome"):
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        lines.append(f"{', '.join(changed[:3])}{more}: {field}: {was} → {now}")
    return lines


def _flat(said: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value with its path."""
    if isinstance(said, dict | list) and said:
        for key, value in said.items() if isinstance(said, dict) else enumerate(said):
            yield from _flat(value, (*path, str(key)))
    else:
        yield path, said


def text_differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Unified differences of the texts."""
    lines: list[str] = []
    for name in sorted({*before, *after}):
        was, now = before.get(name, "").splitlines(), after.get(name, "").splitlines()
        lines += difflib.unified_diff(was, now, f"{name} before", f"{name} after", lineterm="", n=1)
    return lines


def stored(data: Path) -> tuple[dict[str, Facts], dict[str, str]]:
    """What is expected, with the new names."""
    facts = lzma.decompress((data / "facts.json.xz").read_bytes()).decode()
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (data / "texts").glob("*.txt")}
    for old, new in RENAMED.items():
        facts, texts = facts.replace(old, new), {name: text.replace(old, new) for name, text in texts.items()}
    return json.loads(facts), texts


def store(data: Path, facts: Mapping[str, Facts], texts: Mapping[str, str]) -> None:
    """Expect that from now on."""
    (data / "texts").mkdir(parents=True, exist_ok=True)
    (data / "facts.json.xz").write_bytes(lzma.compress(json.dumps(facts, sort_keys=True).encode(), preset=9))
    for name, text in texts.items():
        (data / "texts" / f"{name}.txt").write_text(text, encoding="utf-8")


def record(name: str, run: Path) -> None:
    """Store the measurements of a run, without what names its machine and folders."""
    names = {str(ROOT): "/site", str(run.resolve().parent): "/runs", f'"{platform.node()}"': '"node-0"'}
    names |= {str(Path.home()): "/home", platform.release(): "linux"}
    (DATA / "runs").mkdir(exist_ok=True)
    with tarfile.open(DATA / "runs" / f"{name}.tar.xz", "w:xz", preset=9) as packed:
        for file in (run / measured for measured in MEASURED if (run / measured).exists()):
            text = file.read_text(encoding="utf-8")
            for own, general in names.items():
                text = text.replace(own, general)
            about = tarfile.TarInfo(file.name)
            about.size = len(text.encode())
            packed.addfile(about, io.BytesIO(text.encode()))


def main() -> int:
    """Run the script. Returns its exit code: 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    does = parser.add_mutually_exclusive_group(required=True)
    does.add_argument("--check", action="store_true", help="compare with what is stored")
    does.add_argument("--store", action="store_true", help="store what is found")
    does.add_argument("--record", metavar="NAME=RUN_DIR", help="store a run directory")
    parser.add_argument("--only", nargs="+", default=[*RUNS], choices=RUNS, metavar="NAME", help="some runs")
    parser.add_argument("--facts-only", action="store_true", help="without texts, which depend on pytest's version")
    parser.add_argument("--data", type=Path, default=DATA, help="what to compare with; default: benchmarks/oracle")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the run directories there; default: nowhere")
    given = parser.parse_args()
    if given.record:
        name, _, run = given.record.partition("=")
        record(name, Path(run))
        return 0
    for name in RUNS if given.facts_only else ():
        RUNS[name] = RUNS[name].removesuffix(" with texts")
    os.environ.clear()  # what might change a session or its texts
    os.environ |= {"PATH": os.defpath, "TZ": "UTC", "COLUMNS": "100", "OPENBLAS_NUM_THREADS": "1"}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.path.insert(0, str(ROOT))
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="oracle-") as temporary:
        folder = (given.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pytest.ini").write_text("[pytest]\n")
        facts, texts = judge_all(given.only, folder)
    if given.store:
        before = stored(given.data) if (given.data / "facts.json.xz").exists() else ({}, {})
        store(given.data, before[0] | facts, before[1] | texts)
        return 0
    old_facts, old_texts = stored(given.data)
    lines = fact_differences({name: old_facts.get(name, {}) for name in given.only}, facts)
    asked = () if given.facts_only else given.only
    lines += text_differences({k: text for k, text in old_texts.items() if k.split(".")[0] in asked}, texts)
    print(*lines, f"{len(lines)} differences in {len(given.only)} runs ({time.monotonic() - began_s:.0f} s)", sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
