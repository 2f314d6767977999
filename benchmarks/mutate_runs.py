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
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import oracle_runs
from hostile_inputs import long
from reporting import Tally, argument_parser, in_a_fork, positive_int

from pytest_ddpscale.cli import main as ddpscale
from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.judge.slow import arms_read
from pytest_ddpscale.judge.values import matching_study
from pytest_ddpscale.plan.study import PROBES, Plan
from pytest_ddpscale.run.verdicts import ACCEPTING, Judgement
from pytest_ddpscale.session import evidence as session_evidence
from pytest_ddpscale.session.evidence import EvidenceSource, find_source
from pytest_ddpscale.session.open import Site
from pytest_ddpscale.session.session import AcceptanceSession
from pytest_ddpscale.settings import settings_from
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

LISTED = Path(__file__).with_name("mutations.txt")
OUTCOMES = {4: "refused", 0: "no better", 2: "wrong pass", 1: "traceback", None: "hang"}  # by exit code
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
    places = {kind: [place for place, one in enumerate(kinds) if one == kind] for kind in reversed(kinds)}
    for kind, (place, *_) in places.items():
        data = json.loads(lines[place])
        for part in ("", "readings", "series"):
            said = data.get(part, {}) if part else data
            for key in said:
                value = chance.choice(WRONG_VALUES)
                without = {name: one for name, one in said.items() if name != key}
                for name, one in {f"{key} = {value[:12]}": said | {key: "VALUE"}, f"without {key}": without}.items():
                    text = json.dumps(data | {part: one} if part else one).replace('"VALUE"', value)
                    yield mutant("field", f"{file}, {kind}: {name}", {place: text.encode() + b"\n"})
        yield mutant("field", f"{file}, {kind}: one more", {place: data | {"colour": "red"}})
    if file != MEASURED:
        return
    for kind, others in places.items():
        for place in sorted({others[0], others[-1], chance.choice(others)}):
            yield mutant("dropped", f"{kind}, line {place + 1}", {place: b""})
            yield mutant("twice", f"{kind}, line {place + 1}", {place: 2 * lines[place]})
        yield mutant("dropped", f"every {kind}", dict.fromkeys(others, b""))
    yield mutant("reordered", "backwards", dict(enumerate(reversed(lines))))
    yield mutant("reordered", "shuffled", dict(enumerate(chance.sample(lines, len(lines)))))
    blocks = [place for place, kind in enumerate(kinds) if kind.startswith("timed")]
    for _ in range(12):
        place, other = chance.sample(blocks, 2)
        one, two = json.loads(lines[place]), json.loads(lines[other])
        for key in (key for key in SWAPPED if key in one and key in two):
            swapped = {place: one | {key: two[key]}, other: two | {key: one[key]}}
            yield mutant("swapped", f"{key} of lines {place + 1} and {other + 1}", swapped)
        later = {key: two[key] for key in ("round", "began_unix_s") if key in two}
        yield mutant("copied", f"line {place + 1} to {other + 1}", {other: one | later})
        oracle_runs.only(one, one["ranks"][:-1])
        yield mutant("left out", f"a rank of line {place + 1}", {place: one})


def omit(run: oracle_runs.Files, kind: str, study: str = "", arm: str = "") -> None:
    """Drop lines of a kind, of a study or an arm."""
    wanted = {"kind": kind, "study": study, "arm": arm}
    run.lines = [line for line in run.lines if any(value and line.get(key) != value for key, value in wanted.items())]


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
    rest = [line for line in run.lines if line is not gang]
    run.lines = [gang, {"kind": "gang", "gang": 7, "ranks": [first | changed, *others]}, *rest]


def apart(run: oracle_runs.Files) -> None:
    """Give each rank its own torch."""
    for gang in run.of_kind("gang"):
        gang["ranks"] = [rank | {"versions": {"torch": str(n)}} for n, rank in enumerate(gang["ranks"])]


OWN: tuple[Callable[..., None], ...] = (omit, unlist, regang, apart)
EDITS = {**oracle_runs.EDITS, **{one.__name__: one for one in OWN}}


def _listed(run: Path) -> Iterator[Mutant]:
    """Those of the list."""
    lines = oracle_runs.Files(run).lines
    host, *_ = [line["ranks"][0]["place"]["host"] for line in lines if line["kind"] == "gang"]
    arms = dict.fromkeys((line["study"], line["arm"]) for line in lines if line["kind"] == "timed")
    for row in LISTED.read_text(encoding="utf-8").splitlines():
        named = {
            row.replace("{trained}", study).replace("{study}", study).replace("{arm}", arm).replace("HOST", host): None
            for study, arm in arms if "/" in study or "{trained}" not in row
        }  # fmt: skip
        for text in () if row.startswith("#") else named:
            family, edits, gone, *spoils = text.split(" | ")
            files = oracle_runs.Files(run)
            for name, *arguments in map(str.split, long(edits).split(";")):
                EDITS[name](files, *arguments)
            content = b"".join(json.dumps(line).encode() + b"\n" for line in files.lines)
            yield Mutant(family, edits, MEASURED, content, gone, bool(spoils))


def is_gone(gone: str, case: AnyCase, plan: Plan) -> bool:
    """Whether a requirement lost its evidence.

    Args:
        gone: ``id PATTERN``; ``needs STUDY [ARM]``; ``pace STUDY`` of speeds; ``ratio STUDY ARM``; ``none``.
        case: the requirement.
        plan: of the run.
    """
    how, *words = gone.split()
    if how in ("id", "none"):
        return how == "id" and bool(re.fullmatch(words[0], case.id))
    if isinstance(case, NodeCase):
        return case.probe is not None and words in ([PROBES], [PROBES, case.probe.name])
    metric, study = case.requirement.definition, matching_study(plan, case.question)
    arms = () if metric.reads_own_pace else [arm.name for arm in arms_read(case.question, study)] if study else ()
    if study is None or study.id != words[0] or not set(words[1:]) <= {*arms}:
        return False
    is_rate = metric.tells_speed and not metric.upper_bound
    is_ratio = metric.baseline is not None and (is_rate or metric.unit == "fraction")
    return {"needs": True, "pace": is_rate, "ratio": is_ratio and not metric.reads_folder}[how]


def judged(run: Path) -> tuple[Judgement, EvidenceSource]:
    """The verdicts on a run, and where they are from; it must have none in a file."""
    options = {"ddp_judge": str(run), "thresholds": str(packaged("thresholds.yaml"))}
    session = AcceptanceSession(find_source(Site(settings_from(options, {}, {}), Path(), Path())))
    session.source.select(session.source.cases)
    return session.conclude(interrupted=False, spoiled=()), session.source


def outcome_of(run: Path, before: Judgement, mutant: Mutant | None = None) -> tuple[str, str]:
    """One of `OUTCOMES`, and the message."""
    ended = in_a_fork(partial(_try, run, before, mutant), run.with_name("said"), HANG_S)
    return OUTCOMES[ended.code], ended.said.strip()


def _try(run: Path, before: Judgement, mutant: Mutant | None) -> int:
    try:
        found, source = judged(run)
    except BadInput as refusal:
        print(refusal)
        return 4
    allowed = {verdict.id for verdict in before.verdicts if verdict.passed}
    if mutant and source.plan:
        allowed -= {case.id for case in source.cases if is_gone(mutant.gone, case, source.plan)}
    wrong = sorted(verdict.id for verdict in found.verdicts if verdict.passed and verdict.id not in allowed)
    is_spoiled = mutant is not None and mutant.spoils and found.outcome in ACCEPTING
    wrong += ["the run"] * (is_spoiled or found.outcome == "accepted" != before.outcome)
    print(", ".join(wrong) or found.outcome)
    return 2 if wrong else 0


def simulated(folder: Path, faults: tuple[str, ...]) -> Path:
    """A small simulated run with faults."""
    options = "--gpu-sku=a100", "--gpus=8", "--workloads=resnet152-fp16", "--rounds=12", "--seed=1", f"--out={folder}"
    command = ["simulate", *options, *(f"--fault={fault}" for fault in faults)]
    made = in_a_fork(partial(ddpscale, command), folder.with_name("said"))
    assert made.code == 0, made.said
    return folder


def tried(run: Path, folder: Path, is_wanted: Callable[[int], bool]) -> Iterator[tuple[Mutant, str, str]]:
    """Mutants of a run, each judged in a folder of its own, with its outcome and what was said."""
    ignored = shutil.ignore_patterns("verdicts.json", "logs", "plots", "baseline.json", "run.lock")
    shutil.copytree(run, folder, ignore=ignored)
    before, _ = judged(folder)
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
    tally = Tally(*OUTCOMES.values())
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
