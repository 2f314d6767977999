"""Whether changed run directories are refused with a message, or judged no better than before.

    python benchmarks/mutate_runs.py [--run DIR …] [--every N] [--json FILE]

Without ``--run`` two simulated runs with faults are changed; a real run can be added. Each mutant is judged in this
process: a refusal has to be one of our messages, never a traceback or a hang, and no requirement may newly pass.
"""

from __future__ import annotations

import collections
import json
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.session import open as session_open
from pytest_ddpscale.session.unjudged import judgement_of
from pytest_ddpscale.simulate.faults import parse_faults
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.simulated_cluster import ClusterOptions, open_cluster
from pytest_ddpscale.simulate.writing import write_simulated_run
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

OUTCOMES = ("refused", "no better", "wrong pass", "traceback", "hang")
HANG_S = 60
SIMULATED_FAULTS = (("slow-gpu:3:1.3", "corrupt-rank:5"), ("missing-rank:3:2",))
FILES = ("run.json", "plan.json", "measurements.jsonl", "telemetry.jsonl")
WRONG_VALUES = (
    "null", "true", "-1", "0", "1e308", "-1e300", "1e999", "NaN", "Infinity", "1" + "0" * 60, '"x"', "[]", "{}",
    "[[[]]]", "5.5", '""', "[null]", "[" * 2000,
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the family it belongs to, which it is, and the file's new content."""

    family: str
    name: str
    file: str
    content: bytes


def mutants(run: Path) -> Iterator[Mutant]:
    """All mutants, always the same and in the same order."""
    chance = random.Random(0)
    for file in FILES:
        content = (run / file).read_bytes() if (run / file).exists() else b""
        if not content:
            continue
        yield from _damaged(file, content)
        yield from _fields(file, content, chance)
        if file.endswith(".jsonl"):
            yield from _lines(file, content.splitlines(keepends=True), chance)
            yield from _blocks(file, content.splitlines(keepends=True), chance)


def _damaged(file: str, content: bytes) -> Iterator[Mutant]:
    for share in (0.0, 0.01, 0.3, 0.5, 0.7, 0.99):
        yield Mutant("truncated", f"{file} at {share}", file, content[: round(share * len(content))])
    for name, damage in (("NUL", b"\0" * 8), ("Latin-1", b"\xe4"), ("a newline", b"\n"), ("brackets", b"[" * 5000)):
        middle = len(content) // 2
        yield Mutant("damaged", f"{name} in {file}", file, content[:middle] + damage + content[middle:])


def _lines(file: str, lines: list[bytes], chance: random.Random) -> Iterator[Mutant]:
    """Whole lines that are missing, there twice, or elsewhere."""
    firsts = {_kind(line): place for place, line in reversed(list(enumerate(lines)))}
    for kind, first in firsts.items():
        others = [place for place, line in enumerate(lines) if _kind(line) == kind]
        for place in sorted({first, others[-1], chance.choice(others)}):
            without, twice = lines[:place] + lines[place + 1 :], [*lines[: place + 1], *lines[place:]]
            yield Mutant("dropped", f"{kind}, line {place + 1}", file, b"".join(without))
            yield Mutant("twice", f"{kind}, line {place + 1}", file, b"".join(twice))
        yield Mutant("dropped", f"every {kind}", file, b"".join(line for line in lines if _kind(line) != kind))
    yield Mutant("reordered", f"{file}, backwards", file, b"".join(reversed(lines)))
    yield Mutant("reordered", f"{file}, shuffled", file, b"".join(chance.sample(lines, len(lines))))


def _fields(file: str, content: bytes, chance: random.Random) -> Iterator[Mutant]:
    """One field with another value, twice, renamed, missing, or one more."""
    lines = content.splitlines(keepends=True) if file.endswith(".jsonl") else [content]
    kinds = {_kind(line): place for place, line in reversed(list(enumerate(lines)))}
    for kind, place in kinds.items():
        data = json.loads(lines[place])
        inside = [(key, name) for key in ("readings", "series") for name in data.get(key, ())]
        for part, key in [(None, key) for key in data] + inside:
            said = data if part is None else data[part]
            values = chance.sample(WRONG_VALUES, 1)
            texts = {
                f"{key} = {value[:12]}": json.dumps(said | {key: "VALUE"}).replace('"VALUE"', value) for value in values
            }
            texts[f"without {key}"] = json.dumps({name: value for name, value in said.items() if name != key})
            if not file.endswith(".jsonl"):  # lines are written by one program at once
                texts[f"{key} twice"] = json.dumps(said)[:-1] + f", {json.dumps(key)}: {json.dumps(said[key])}}}"
            for name, text in texts.items():
                whole = text if part is None else json.dumps(data | {part: "PART"}).replace('"PART"', text)
                changed = [*lines[:place], whole.encode() + b"\n", *lines[place + 1 :]]
                yield Mutant("field", f"{file}, {kind}: {name}", file, b"".join(changed))
        more = json.dumps(data | {"colour": "red"}).encode() + b"\n"
        yield Mutant("field", f"{file}, {kind}: one more", file, b"".join([*lines[:place], more, *lines[place + 1 :]]))


def _blocks(file: str, lines: list[bytes], chance: random.Random) -> Iterator[Mutant]:
    """Swapped ranks, arms and rounds, copied rounds, missing ranks."""
    blocks = [place for place, line in enumerate(lines) if _kind(line).startswith("timed")]
    for _ in range(12 if blocks else 0):
        place, other = chance.sample(blocks, 2)
        one, two = json.loads(lines[place]), json.loads(lines[other])
        keys = [
            key for key in ("arm", "round", "turn", "ranks", "groups", "gang", "study") if key in one and key in two
        ]
        for key in keys:
            swapped = {place: one | {key: two[key]}, other: two | {key: one[key]}}
            yield Mutant("swapped", f"{key} of lines {place + 1} and {other + 1}", file, _with(lines, swapped))
        copied = {other: one | {key: two[key] for key in ("round", "began_unix_s") if key in two}}
        yield Mutant("copied", f"line {place + 1} to {other + 1}", file, _with(lines, copied))
        yield Mutant("left out", f"a rank of line {place + 1}", file, _with(lines, {place: _without_last_rank(one)}))


def _without_last_rank(block: dict[str, Any]) -> dict[str, Any]:
    columns = {key: value[:-1] for key, value in block.items() if isinstance(value, list)}
    readings = {
        key: value[:-1] if isinstance(value, list) else value for key, value in block.get("readings", {}).items()
    }
    return block | columns | {"readings": readings, "series": {}}


def _with(lines: list[bytes], changed: dict[int, Any]) -> bytes:
    return b"".join(
        json.dumps(changed[place]).encode() + b"\n" if place in changed else line for place, line in enumerate(lines)
    )


def _kind(line: bytes) -> str:
    """Kind of a record, with its study if it is a block, so that probes and training are told apart."""
    said = json.loads(line)
    return f"timed {said['study']}" if said.get("kind") == "timed" else str(said.get("kind", "whole"))


def judged(run: Path) -> Judgement:
    """The verdicts on a run; it must have none in a file."""
    return judgement_of(RunDirectory(run))


def outcome_of(run: Path, before: Judgement) -> tuple[str, str]:
    """One of `OUTCOMES`, and the message."""
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(HANG_S)
    try:
        found = judged(run)
    except BadInput as refusal:
        return "refused", str(refusal)
    except TimeoutError as hang:
        return "hang", str(hang)
    except Exception:
        return "traceback", traceback.format_exc()
    finally:
        signal.alarm(0)
    return ("wrong pass", better) if (better := _better(before, found)) else ("no better", found.outcome)


def _better(before: Judgement, found: Judgement) -> str:
    passed = {verdict.id for verdict in before.verdicts if verdict.passed}
    anew = sorted(verdict.id for verdict in found.verdicts if verdict.passed and verdict.id not in passed)
    if found.outcome == "accepted" != before.outcome:
        anew.append("the run")
    return ", ".join(anew)


def _hangs(*_: object) -> None:
    raise TimeoutError(f"not judged within {HANG_S} s")


def simulated(folder: Path, faults: tuple[str, ...]) -> Path:
    """A small simulated run with faults."""
    thresholds = load_thresholds(packaged("thresholds.yaml"))
    cluster = open_cluster(thresholds, ClusterOptions("a100", 8, workloads=("resnet152-fp16",)))
    plan = cluster.plan(rounds=12)
    run = RunDirectory.create(folder)
    simulated = SimulatedRun(plan, cluster.performance, parse_faults(faults, plan.layout), 1)
    write_simulated_run(run, cluster, simulated)
    return folder


def main() -> int:
    """Judge all mutants and print the table. Returns 1 if any result is wrong."""
    # Half of the time otherwise, and no mutant changes them. Here, so that whoever imports this keeps its own.
    session_open.load_thresholds = cache(load_thresholds)  # type: ignore[attr-defined]
    parser = argument_parser(__doc__)
    parser.add_argument("--run", type=Path, action="append", default=[], help="a run directory to be changed as well")
    parser.add_argument("--every", type=positive_int, default=1, metavar="N", help="only every Nth mutant")
    options = parser.parse_args()
    counts: dict[str, collections.Counter[str]] = {}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        runs = [simulated(folder / f"simulated-{i}", faults) for i, faults in enumerate(SIMULATED_FAULTS)]
        for run in (*runs, *options.run):
            for mutant, outcome, said in tried(run, folder / "mutant", lambda number: number % options.every == 0):
                counts.setdefault(mutant.family, collections.Counter())[outcome] += 1
                if outcome not in ("refused", "no better"):
                    wrong.append(f"{outcome}: {run.name}, {mutant.family}, {mutant.name}: {said}")
    rows = [(family, str(found.total()), *(str(found[one]) for one in OUTCOMES)) for family, found in counts.items()]
    print(table(("family", "tried", *OUTCOMES), rows))
    print(*wrong, sep="\n")
    keep(options.json, "mutate_runs", {"counts": counts, "wrong": wrong})
    return 1 if wrong else 0


def tried(run: Path, folder: Path, is_wanted: Callable[[int], bool]) -> Iterator[tuple[Mutant, str, str]]:
    """Mutants of a run, each judged in a folder of its own, with its outcome and what was said."""
    ignored = shutil.ignore_patterns("verdicts.json", "logs", "plots", "baseline.json", "run.lock")
    shutil.copytree(run, folder, ignore=ignored)
    before = judged(folder)
    for number, mutant in enumerate(mutants(run)):
        if not is_wanted(number):
            continue
        untouched = (folder / mutant.file).read_bytes()
        (folder / mutant.file).write_bytes(mutant.content)
        yield mutant, *outcome_of(folder, before)
        (folder / mutant.file).write_bytes(untouched)
    shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
