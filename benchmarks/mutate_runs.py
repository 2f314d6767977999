"""Whether changed run directories are refused with a message, or judged no better than before: docs/evidence.

    python benchmarks/mutate_runs.py [--run DIR …] [--every N]

Without ``--run`` three simulated runs with faults and a sound one are changed; a real run can be added. Each mutant is
judged in this process: a refusal has to be one of our messages, never a traceback or a hang. No requirement may newly
pass, and none whose evidence a mutant of benchmarks/mutations.txt takes away, or makes impossible, may go on passing.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import oracle_runs
from hostile_inputs import long
from reporting import Tally, argument_parser, positive_int

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.plan.metric_catalogue import METRICS, Metric
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import ACCEPTING, Judgement, Verdict
from pytest_ddpscale.session import evidence as session_evidence
from pytest_ddpscale.session.evidence import find_source
from pytest_ddpscale.session.open import Site
from pytest_ddpscale.session.session import AcceptanceSession
from pytest_ddpscale.settings import settings_from
from pytest_ddpscale.simulate.cluster import open_cluster
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions, parse_faults
from pytest_ddpscale.simulate.writing import write_simulated_run
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

LISTED = Path(__file__).with_name("mutations.txt")
OUTCOMES = ("refused", "no better", "wrong pass", "traceback", "hang")
HANG_S = 300  # of wall time: generous, as other work may share the cores
SIMULATED_FAULTS = (("slow-gpu:3:1.3", "corrupt-rank:5"), ("missing-rank:3:2",), ("bad-gpu:3:ecc",), ())
MEASURED = oracle_runs.MEASURED
WRONG_VALUES = (
    "null", "true", "-1", "0", "1e308", "-1e300", "1e999", "NaN", "Infinity", "1" + "0" * 60, '"x"', "[]", "{}",
    "[[[]]]", "5.5", '""', "[null]", "[" * 2000,
)  # fmt: skip
NO_FILES: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo, "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"), "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path.name),
}  # fmt: skip
DAMAGES = {"NUL": b"\0" * 8, "Latin-1": b"\xe4", "a newline": b"\n", "brackets": b"[" * 5000}
SWAPPED = ("arm", "round", "turn", "ranks", "groups", "gang", "study")
Line = dict[str, Any]


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        family: to which it belongs.
        name: which it is.
        content: of the file; what to make in its place if it is no longer one.
        gone: requirements whose evidence is gone or impossible, so that they must not pass: see `is_gone`.
        spoils: whether the run as a whole must not be accepted.
    """

    family: str
    name: str
    file: str
    content: bytes | Callable[[Path], None]
    gone: str = "none"
    spoils: bool = False


def mutants(run: Path) -> Iterator[Mutant]:
    """All mutants, always the same and in the same order."""
    chance = random.Random(0)
    for file in ("run.json", "plan.json", MEASURED):
        content = (run / file).read_bytes()
        for share in (0.0, 0.01, 0.3, 0.5, 0.7, 0.99):
            yield Mutant("truncated", f"{file} at {share}", file, content[: round(share * len(content))])
        middle = len(content) // 2
        for name, damage in DAMAGES.items():
            yield Mutant("damaged", f"{name} in {file}", file, content[:middle] + damage + content[middle:])
        yield from _of_lines(file, content.splitlines(keepends=True) if file == MEASURED else [content], chance)
        if file == MEASURED:
            yield from _listed(run)
        for name, make in NO_FILES.items():
            yield Mutant("no file", f"{file} is {name}", file, make, spoils=True)


def _kind(line: bytes) -> str:
    """Kind of a record, with its study if it is a block, so that probes and training are told apart."""
    said = json.loads(line)
    return f"timed {said['study']}" if said.get("kind") == "timed" else str(said.get("kind", "whole"))


def _of_lines(file: str, lines: Sequence[bytes], chance: random.Random) -> Iterator[Mutant]:
    """Other fields; of measurements also lines that are missing, twice, elsewhere or mixed up with others."""

    def mutant(family: str, name: str, changed: Mapping[int, bytes | Line]) -> Mutant:
        new = [changed.get(place, line) for place, line in enumerate(lines)]
        texts = [one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in new]
        return Mutant(family, name, file, b"".join(texts))

    kinds = [*map(_kind, lines)]
    for kind in dict.fromkeys(reversed(kinds)):
        place = kinds.index(kind)
        data = json.loads(lines[place])
        inside = [(key, name) for key in ("readings", "series") for name in data.get(key, ())]
        for part, key in [(None, key) for key in data] + inside:
            said = data if part is None else data[part]
            value = chance.choice(WRONG_VALUES)
            changed = {f"{key} = {value[:12]}": said | {key: "VALUE"}}
            changed[f"without {key}"] = {name: one for name, one in said.items() if name != key}
            for name, one in changed.items():
                text = json.dumps(one if part is None else data | {part: one}).replace('"VALUE"', value)
                yield mutant("field", f"{file}, {kind}: {name}", {place: text.encode() + b"\n"})
        yield mutant("field", f"{file}, {kind}: one more", {place: data | {"colour": "red"}})
    for kind in dict.fromkeys(reversed(kinds)) if file == MEASURED else ():
        others = [place for place, one in enumerate(kinds) if one == kind]
        for place in sorted({others[0], others[-1], chance.choice(others)}):
            yield mutant("dropped", f"{kind}, line {place + 1}", {place: b""})
            yield mutant("twice", f"{kind}, line {place + 1}", {place: 2 * lines[place]})
        yield mutant("dropped", f"every {kind}", dict.fromkeys(others, b""))
    if file == MEASURED:
        yield mutant("reordered", "backwards", dict(enumerate(reversed(lines))))
        yield mutant("reordered", "shuffled", dict(enumerate(chance.sample(lines, len(lines)))))
    blocks = [place for place, kind in enumerate(kinds) if kind.startswith("timed")]
    for _ in range(12 if blocks else 0):
        place, other = chance.sample(blocks, 2)
        one, two = json.loads(lines[place]), json.loads(lines[other])
        for key in (key for key in SWAPPED if key in one and key in two):
            swapped = {place: one | {key: two[key]}, other: two | {key: one[key]}}
            yield mutant("swapped", f"{key} of lines {place + 1} and {other + 1}", swapped)
        later = {key: two[key] for key in ("round", "began_unix_s") if key in two}
        yield mutant("copied", f"line {place + 1} to {other + 1}", {other: one | later})
        columns, readings = ({k: v[:-1] for k, v in of.items() if isinstance(v, list)} for of in (one, one["readings"]))
        fewer = one | columns | {"readings": one["readings"] | readings, "series": {}}
        yield mutant("left out", f"a rank of line {place + 1}", {place: fewer})


def omit(run: oracle_runs.Files, kind: str, study: str = "", arm: str = "") -> None:
    """Drop lines of a kind, of a study or an arm."""
    wanted = {"kind": kind, "study": study, "arm": arm}
    run.lines = [one for one in run.lines if any(value and one.get(key) != value for key, value in wanted.items())]


def unlist(run: oracle_runs.Files, study: str, arm: str) -> None:
    """Take an arm out of the ends of the rounds of a study."""
    for one in run.of_kind("round_end"):
        one["arms"] = [name for name in one["arms"] if (one["study"], name) != (study, arm)]


def regang(run: oracle_runs.Files, versions: str) -> None:
    """Let another gang, whose first rank has these versions, have measured each second round."""
    gang = run.of_kind("gang")[0]
    first, *others = gang["ranks"]
    changed = {"versions": json.loads(versions)} if json.loads(versions) else {}
    for one in run.of_kind("timed"):
        one["gang"] = 7 if one["round"] % 2 else one["gang"]
    rest = [one for one in run.lines if one is not gang]
    run.lines = [gang, {"kind": "gang", "gang": 7, "ranks": [first | changed, *others]}, *rest]


def apart(run: oracle_runs.Files) -> None:
    """Give each rank its own torch."""
    for gang in run.of_kind("gang"):
        gang["ranks"] = [rank | {"versions": {"torch": str(n)}} for n, rank in enumerate(gang["ranks"])]


def rename(run: oracle_runs.Files, before: str, after: str) -> None:
    """Rename a host."""
    run.lines = json.loads(json.dumps(run.lines).replace(json.dumps(before), long(after)))


OWN: tuple[Callable[..., None], ...] = (omit, unlist, regang, apart, rename)
EDITS = {**oracle_runs.EDITS, **{one.__name__: one for one in OWN}}


def _listed(run: Path) -> Iterator[Mutant]:
    """Those of the list."""
    lines = oracle_runs.Files(run).lines
    arms = dict.fromkeys((one["study"], one["arm"]) for one in lines if one["kind"] == "timed")
    studies = list(dict.fromkeys(study for study, _ in arms))
    hosts = [one["ranks"][0]["place"]["host"] for one in lines if one["kind"] == "gang"]
    choices: dict[str, list[tuple[str, ...]]] = {
        "{study} {arm}": list(arms), "{study}": [(one,) for one in studies],
        "{trained}": [(one,) for one in studies if "/" in one],
    }  # fmt: skip
    for row in LISTED.read_text(encoding="utf-8").splitlines():
        kind = next((key for key in choices if key in row), "")
        for chosen in () if row.startswith("#") else choices.get(kind, [()]):
            text = row.replace("HOST", hosts[0])
            for word, value in zip(kind.split(), chosen, strict=True):
                text = text.replace(word, value)
            family, edits, gone, *spoils = text.split(" | ")
            files = oracle_runs.Files(run)
            for name, *arguments in map(str.split, edits.split(";")):
                EDITS[name](files, *arguments)
            content = b"".join(json.dumps(one).encode() + b"\n" for one in files.lines)
            yield Mutant(family, edits, MEASURED, content, gone, bool(spoils))


def is_gone(gone: str, verdict: Verdict) -> bool:
    """Whether a verdict lost its evidence.

    Args:
        gone: ``id PATTERN``; ``needs STUDY [ARM]``; ``pace STUDY`` of speeds; ``ratio STUDY ARM``; ``none``.
        verdict: to be judged.
    """
    how, *words = gone.split()
    metric = METRICS[verdict.metric]
    if how == "id":
        return bool(re.fullmatch(words[0], verdict.id))
    if how == "none" or not _needs(verdict, metric, *words):
        return False
    is_ratio = metric.baseline is not None and (_is_rate(metric) or metric.unit == "fraction")
    return {"needs": True, "pace": _is_rate(metric), "ratio": is_ratio and not metric.reads_folder}[how]


def _needs(verdict: Verdict, metric: Metric, study: str, arm: str = "") -> bool:
    """Whether a verdict rests on an arm of a study, or on the study if none is named."""
    if study == "probes":
        inside, kind = verdict.id.partition("[")[2].rstrip("]"), arm.partition("@")[0]
        return metric.subject == "probe" and (not arm or kind in (inside, inside.rpartition("-")[0]))
    if metric.subject != "workload" or (metric.scaling, verdict.workload) != tuple(study.split("/", 1)):
        return False
    return not arm or (arm == f"{metric.measured}@{verdict.world_size}" and not metric.reads_own_pace)


def _is_rate(metric: Metric) -> bool:
    return metric.tells_speed and metric.subject == "workload" and not metric.upper_bound


def judged(run: Path) -> Judgement:
    """The verdicts on a run; it must have none in a file."""
    options = {"ddp_judge": str(run), "thresholds": str(packaged("thresholds.yaml"))}
    session = AcceptanceSession(find_source(Site(settings_from(options, {}, {}), Path(), Path())))
    session.source.select(session.source.cases)
    return session.conclude(interrupted=False, spoiled=())


def outcome_of(run: Path, before: Judgement, mutant: Mutant | None = None) -> tuple[str, str]:
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
    passed = {verdict.id for verdict in before.verdicts if verdict.passed}
    anew = [
        one
        for one in found.verdicts
        if one.passed and (one.id not in passed or is_gone(mutant.gone if mutant else "none", one))
    ]
    is_better = found.outcome == "accepted" != before.outcome
    is_spoiled = mutant is not None and mutant.spoils and found.outcome in ACCEPTING
    wrong = sorted(one.id for one in anew) + ["the run"] * (is_better or is_spoiled)
    return ("wrong pass", ", ".join(wrong)) if wrong else ("no better", found.outcome)


def _hangs(*_: object) -> None:
    raise TimeoutError(f"not judged within {HANG_S} s")


def simulated(folder: Path, faults: tuple[str, ...]) -> Path:
    """A small simulated run with faults."""
    thresholds = load_thresholds(packaged("thresholds.yaml"))
    cluster = open_cluster(thresholds, ClusterOptions("a100", 8, workloads=("resnet152-fp16",)))
    plan = cluster.plan(rounds=12)
    run = SimulatedRun(plan, cluster.performance, parse_faults(faults, plan.layout), 1)
    write_simulated_run(RunDirectory.create(folder), cluster, run)
    return folder


def tried(run: Path, folder: Path, is_wanted: Callable[[int], bool]) -> Iterator[tuple[Mutant, str, str]]:
    """Mutants of a run, each judged in a folder of its own, with its outcome and what was said."""
    ignored = shutil.ignore_patterns("verdicts.json", "logs", "plots", "baseline.json", "run.lock")
    shutil.copytree(run, folder, ignore=ignored)
    before = judged(folder)
    for number, mutant in enumerate(mutants(run)):
        if not is_wanted(number):
            continue
        path = folder / mutant.file
        untouched = path.read_bytes()
        if isinstance(mutant.content, bytes):
            path.write_bytes(mutant.content)
        else:
            path.unlink()
            mutant.content(path)
        yield mutant, *outcome_of(folder, before, mutant)
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(untouched)
    shutil.rmtree(folder)


def main() -> int:
    """Judge all mutants and print the table. Returns 1 if any result is wrong."""
    # Half of the time otherwise, and no mutant changes them. Here, so that whoever imports this keeps its own.
    session_evidence.load_thresholds = cache(load_thresholds)  # type: ignore[attr-defined]
    parser = argument_parser(__doc__)
    parser.add_argument("--run", type=Path, action="append", default=[], help="a run directory to be changed as well")
    parser.add_argument("--every", type=positive_int, default=1, metavar="N", help="only every Nth mutant")
    options = parser.parse_args()
    tally = Tally(*OUTCOMES)
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        runs = [simulated(folder / f"simulated-{i}", faults) for i, faults in enumerate(SIMULATED_FAULTS)]
        for run in (*runs, *options.run):
            for mutant, outcome, said in tried(run, folder / "mutant", lambda number: number % options.every == 0):
                tally.note(mutant.family, outcome, f"{mutant.name} of {run.name}: {said}")
    print(tally.tell())
    return int(bool(tally.wrong))


if __name__ == "__main__":
    sys.exit(main())
