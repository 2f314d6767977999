"""Judge known runs and show what a change of the code changed: docs/testing.md. Nothing, or what somebody has to read.

    python benchmarks/oracle.py --check
    python benchmarks/oracle.py --check --only recorded-a100-slow-gpu 'import-*'
    python benchmarks/oracle.py --store
    python benchmarks/oracle.py --record recorded-cpu=RUN_DIR

`--check` finds the facts of all runs of benchmarks/oracle/runs.txt, as users judge them, compares them with those
stored beside it, and exits with 1 if anything differs; `--store` stores what it finds. Facts are lines of
facts/NAME.jsonl, numbers to six digits; they are equal within one unit of the sixth. Of some runs also texts are kept:
what pytest prints, without and with ``-v``, and report.md. Times, digests, versions and paths are masked.

Runs are simulated anew, imported from published results, or stored: `--record` stores the measurements of a run
directory, without the names of its machine. What is stored stays the same when the simulator draws other numbers.
"""

from __future__ import annotations

import difflib
import fnmatch
import gc
import hashlib
import importlib
import json
import math
import os
import pkgutil
import platform
import re
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from oracle_facts import READERS, Facts, culprits, history_rows, judged_run
from oracle_runs import edit, measure_as_sessions_do
from reporting import argument_parser, in_a_fork

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "oracle"
LAB_YAML = str(DATA / "thresholds" / "lab.yaml")
LAB = f"--thresholds={LAB_YAML} --gpu-sku"
_LISTED = re.sub(r"(?m)^#.*\n", "", (DATA / "runs.txt").read_text(encoding="utf-8")).strip()
_LISTED = _LISTED.replace("{root}", str(ROOT)).replace("{lab}", LAB).replace("{lab.yaml}", LAB_YAML)
CHAINS = [dict(line.split(maxsplit=1) for line in chain.splitlines()) for chain in _LISTED.split("\n\n")]
RUNS = {name: command for chain in CHAINS for name, command in chain.items()}
# The other simulated runs lose their marks, as nothing simulated is accepted or compared with the past.
SIMULATED = ("-16-nodes", "-lost-gpu", "-simulated")
MEASURED = ("plan.json", "run.json", "measurements.jsonl", "baseline.json", "suite.json")
# What might change a session or its texts.
ENVIRONMENT = {"TZ": "UTC", "COLUMNS": "100", "OPENBLAS_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
MASKS = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?( UTC|\+00:00|Z)?", "TIME"),
    (r"\b\d{4}-\d\d-\d\d\b", "DAY"),
    (r"\b[0-9a-f]{64}\b", "SHA256"),
    (r'("(?:python|pytest_ddpscale)\\*":\\*")[^"\\]*', r"\1VERSION"),
    (r"in \d+\.\d+s( \([\d:]+\))?", "in SECONDS"),
    (r"={3,}", "==="),
    (r"(?m)^(platform|rootdir|plugins).*\n", ""),
    (r"(thresholds\.yaml):\d+", r"\1:LINE"),
)


def program(name: str, arguments: Sequence[str], before: Callable[[], Any] = int) -> tuple[int, str]:
    """Run pytest or ddpscale in a fork of this process, which has imported the package. Exit code and what it says."""

    def become() -> Any:
        sys.argv = [name, *arguments]
        before()
        return importlib.import_module({"pytest": "pytest", "ddpscale": "pytest_ddpscale.cli"}[name]).main()

    ended = in_a_fork(become, Path(f"said-{os.getpid()}"))
    return ended.code or 0, ended.said


def draw_nothing() -> None:
    """Have figures prepared and not drawn, which takes half of a session."""
    charts = importlib.import_module("pytest_ddpscale.report.charts")

    def not_drawn(about: Any, *given: Any) -> Any:
        return charts.Picture(about.key, about.title, about.caption, about.title, b"", bytes, given[-1], False)

    vars(charts)["_drawn"] = not_drawn


def unpack(name: str, target: Path) -> None:
    """Unpack a stored run directory."""
    shutil.unpack_archive(DATA / "runs" / f"{name}.tar.xz", target)


def make(name: str, number: int) -> None:
    """Make a run directory here, the `number`-th of its chain."""
    if RUNS[name].startswith("stored"):
        unpack(name, Path(name))
        file = Path(name, "run.json")
        record = json.loads(file.read_text())
        sha256 = hashlib.sha256((ROOT / "thresholds.yaml").read_bytes()).hexdigest()
        record["thresholds"] |= {"path": f"{ROOT}/thresholds.yaml", "sha256": sha256}  # its own file is gone
        file.write_text(json.dumps(record))
        return
    command, *edits = RUNS[name].split(" | ")
    looks = partial(measure_as_sessions_do, Path(f"{name}.looks"))
    before: Callable[[], Any] = looks if command.startswith("session") else int
    code, said = program("ddpscale", [*re.sub("^session", "simulate", command).split(), f"--out={name}"], before)
    if code:
        raise SystemExit(f"{name}: {said}")
    is_marked = RUNS[name].startswith("import") or name.endswith(SIMULATED)
    for file in () if is_marked else Path(name).glob("*.json*"):
        file.write_text(file.read_text().replace("SIM-", "GPU-").replace("simulated-", "node-"))
    record = json.loads(Path(name, "run.json").read_text())
    record["started_at"] = record["finished_at"] = f"2026-01-01T{number:02}:00:00+00:00"
    record |= {} if is_marked else {"status": "finished", "simulated": False, "simulation": None}
    Path(name, "run.json").write_text(json.dumps(record))
    if edits:
        edit(Path(name), edits)


def judged(name: str, number: int, history: str) -> tuple[Facts, dict[str, str]]:
    """Facts and texts of a run, judged as users judge it and added to the history."""
    make(name, number)
    sku = json.loads(Path(name, "run.json").read_text())["sku"]
    command = ["-p", "ddpscale", "-p", "no:cacheprovider", f"--gpu-sku={sku}", f"--ddp-judge={name}"]
    given = [word for word in RUNS[name].split() if word.startswith("--thresholds=")]
    command += Path(f"{name}.options").read_text().split("\n") if Path(f"{name}.options").exists() else given
    texts, is_told = dict[str, str](), "texts" in RUNS[name]
    for kind in ("terminal", "verbose")[: 1 + is_told]:
        options = [f"--ddp-history={history}", *["-v"] * (kind == "verbose")]
        code, texts[f"{name}.{kind}"] = program("pytest", command + options, int if is_told else draw_nothing)
    if not Path(name, "verdicts.json").exists():
        return {"run": {"exit code": code, "said": masked(texts[f"{name}.terminal"])}}, {}
    has_sentences = RUNS[name].startswith(("stored", "import")) or sku == "lab-told"
    facts = judged_run(Path(name), with_sentences=has_sentences)
    facts["run"]["exit code"] = code
    facts |= culprits(program, name, name)
    looks = json.loads(file.read_text()) if (file := Path(f"{name}.looks")).exists() else {"needed": {}, "outcomes": {}}
    facts |= {f"needed arms of {study}": arms for study, arms in looks["needed"].items()}
    for requirement, outcomes in looks["outcomes"].items():
        facts[requirement]["looks"] = outcomes
    if not RUNS[name].startswith("import"):
        facts["run"]["history"], _ = program("ddpscale", ["history", f"--history={history}", "--add", name])
        facts |= {} if facts["run"]["history"] else history_rows(history)
    texts[f"{name}.report.md"] = Path(name, "report.md").read_text()
    return facts, texts if is_told else {}


def found(name: str, number: int, history: str) -> tuple[Facts, dict[str, str]]:
    """Facts and texts of a line of runs.txt; its first word says what kind it is."""
    kind, *words = RUNS[name].removesuffix(" with texts").split()
    texts: dict[str, str] = {}
    try:
        if kind in READERS:
            if (DATA / "runs" / f"{name}.tar.xz").exists():
                unpack(name, Path(name))
            facts = READERS[kind](program, name, *words)
        else:
            facts, texts = judged(name, number, history)
    except (LookupError, OSError, SystemExit, TypeError, ValueError) as error:  # not made, or what it wrote is not read
        facts = {"run": {"unreadable": f"{type(error).__name__}: {error}"}}
    return json.loads(masked(json.dumps(kept(facts)))), {key: masked(text) for key, text in texts.items()}


def masked(text: str) -> str:
    """Without times, digests, and what is of this machine."""
    text = text.replace(str(Path.cwd()), "HERE").replace(str(ROOT), "ROOT")
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text)
    return text


def kept(said: Any) -> Any:
    """Without what is empty, numbers to six digits."""
    if isinstance(said, Mapping):
        found = {key: kept(value) for key, value in said.items()}
        return {key: value for key, value in found.items() if value not in (None, "", [], {})}
    if isinstance(said, list):
        return [kept(value) for value in said]
    return float(f"{said:.6g}") if isinstance(said, float) else said


def find_chain(chain: Sequence[str], asked: Sequence[str], folder: Path) -> list[tuple[str, Facts, dict[str, str]]]:
    """Name, facts and texts of the asked runs of a chain."""
    os.chdir(folder)
    end = max((number for number, name in enumerate(chain, 1) if name in asked), default=0)
    history = f"history-{chain[0]}.sqlite"
    done = [(name, *found(name, number, history)) for number, name in enumerate(chain[:end])]
    return [one for one in done if one[0] in asked]


def find_all(asked: Sequence[str], folder: Path, processes: int) -> tuple[dict[str, Facts], dict[str, str]]:
    """Facts and texts of these runs."""
    import pytest_ddpscale

    # Imported once for all forks: what is not torch and not pytest's to load; np.unique imports numpy.ma.
    others = "pytest_ddpscale.worker", "pytest_ddpscale.datasets.image_samples", "pytest_ddpscale.plugin"
    names = [one.name for one in pkgutil.walk_packages(pytest_ddpscale.__path__, "pytest_ddpscale.")]
    more = "numpy.ma", "pdb", "pytest", "unittest", "_pytest.junitxml", "_pytest.unittest"
    for name in (*(name for name in names if not name.startswith(others)), *more):
        importlib.import_module(name)
    gc.freeze()
    facts, texts = dict[str, Facts](), dict[str, str]()
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        for chain in pool.map(partial(find_chain, asked=asked, folder=folder), map(list, CHAINS)):
            for name, its_facts, its_texts in chain:
                facts[name] = its_facts
                texts |= its_texts
    return facts, texts


def stored(data: Path) -> tuple[dict[str, Facts], dict[str, str]]:
    """What is expected."""
    facts = {file.stem: file.read_text(encoding="utf-8").splitlines() for file in (data / "facts").glob("*.jsonl")}
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (data / "texts").glob("*.txt")}
    return {run: dict(map(json.loads, lines)) for run, lines in facts.items()}, texts


def store(data: Path, facts: Mapping[str, Facts], texts: Mapping[str, str]) -> None:
    """Expect that of these runs from now on, a line a fact, and nothing of runs that are no more."""
    form = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    files = {f"texts/{name}.txt": text for name, text in texts.items()}
    for run, of_run in facts.items():
        files[f"facts/{run}.jsonl"] = "".join(f"{form.encode(fact)}\n" for fact in sorted(of_run.items()))
    for old in (*data.glob("facts/*"), *data.glob("texts/*")):
        if old.name.split(".")[0] not in RUNS:
            old.unlink()
    for name, text in files.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(text, encoding="utf-8")


def fact_differences(before: Mapping[str, Facts], after: Mapping[str, Facts]) -> list[str]:
    """A line for each change, outcomes first, with the runs and facts where it is the same."""
    lines = [f"{run}: no facts are stored; --store --only {run} stores them" for run in after if run not in before]
    places: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for run in sorted({*before} & {*after}):
        for fact in sorted({*before[run], *after[run]}):
            sides = [facts[run].get(fact) for facts in (before, after)]
            if None in sides:  # one line for a fact that only one side has
                sides = [{"": "(absent)" if side is None else side.get("outcome", "(present)")} for side in sides]
            old, new = (dict(_flat(side)) for side in sides)
            for field in sorted({*old, *new}):
                was, now = (side.get(field, "(absent)") for side in (old, new))
                if not _is_same(was, now):
                    places[field, str(was), str(now)].append(f"{run} {fact}")
    for (field, was, now), changed in sorted(places.items(), key=lambda change: change[0][0] not in ("", "outcome")):
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        lines.append(f"{', '.join(changed[:3])}{more}: {field}: {was} → {now}".replace(": : ", ": "))
    return lines


def _is_same(was: Any, now: Any) -> bool:
    """Whether it is equal, as numbers within one unit of the sixth digit."""
    if isinstance(was, float) and isinstance(now, float):
        return math.isclose(was, now, rel_tol=1.01e-5, abs_tol=1e-12)
    return (type(was), was) == (type(now), now)


def _flat(said: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its path; a list of words is a set."""
    if isinstance(said, list) and all(isinstance(one, str) for one in said):
        said = dict.fromkeys(said, True)
    if isinstance(said, dict | list) and said:
        for key, value in said.items() if isinstance(said, dict) else enumerate(said):
            yield from _flat(value, f"{path} {key}".lstrip())
    else:
        yield path, said


def text_differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Unified differences of the texts, with a name such as ``recorded-cpu.report.md``."""
    lines: list[str] = []
    for name in sorted({*before, *after}):
        was, now = before.get(name, "").splitlines(), after.get(name, "").splitlines()
        lines += difflib.unified_diff(was, now, f"{name} before", f"{name} after", lineterm="", n=1)
    return lines


def record(name: str, run: Path) -> None:
    """Store the measurements of a run, without what names its machine and folders."""
    names = {str(ROOT): "/site", str(run.resolve().parent): "/runs", f'"{platform.node()}"': '"node-0"'}
    names |= {str(Path.home()): "/home", platform.release(): "linux"}
    with tempfile.TemporaryDirectory() as folder:
        for file in (run / measured for measured in MEASURED if (run / measured).exists()):
            text = file.read_text(encoding="utf-8")
            for own, general in names.items():
                text = text.replace(own, general)
            Path(folder, file.name).write_text(text, encoding="utf-8")
        shutil.make_archive(str(DATA / "runs" / name), "xztar", folder)


def main() -> int:
    """Run the script. Returns its exit code: 1 if anything differs."""
    parser = argument_parser(__doc__)
    does = parser.add_mutually_exclusive_group(required=True)
    does.add_argument("--check", action="store_true", help="compare with what is stored")
    does.add_argument("--store", action="store_true", help="store what is found")
    does.add_argument("--record", metavar="NAME=RUN_DIR", help="store a run directory")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="some runs, such as 'h100-*'")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="processes; default: 2")
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
    if unknown := [pattern for pattern in given.only if not fnmatch.filter(RUNS, pattern)]:
        parser.error(f"found no run {', '.join(unknown)}; expected names of benchmarks/oracle/runs.txt")
    asked = [name for name in RUNS if any(fnmatch.fnmatchcase(name, pattern) for pattern in given.only)]
    os.environ.clear()
    os.environ |= ENVIRONMENT | {"PATH": os.defpath}
    sys.path.insert(0, str(ROOT))
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="oracle-") as temporary:
        folder = (given.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pytest.ini").write_text("[pytest]\n")
        facts, texts = find_all(asked, folder, given.j)
    if given.store:
        store(given.data, facts, texts)
        unread = [
            f"{name}: {of['run']['unreadable']}" for name, of in facts.items() if "unreadable" in of.get("run", {})
        ]
        print(*unread, f"{len(facts)} runs stored, {len(unread)} could not be read", sep="\n")
        return int(bool(unread))
    old_facts, old_texts = stored(given.data)
    lines = fact_differences(old_facts, facts)
    with_texts = () if given.facts_only else asked
    old_texts = {name: text for name, text in old_texts.items() if name.split(".")[0] in with_texts}
    lines += text_differences(old_texts, texts)
    print(*lines, f"{len(lines)} differences in {len(asked)} runs ({time.monotonic() - began_s:.0f} s)", sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
