"""Whether changed run directories are refused with a message, or judged no better than before.

    python benchmarks/mutate_runs.py [--run DIR …] [--every N] [--json FILE]

Without ``--run`` two simulated runs with faults and a sound one are changed; a real run can be added. Each mutant is
judged in this process: a refusal has to be one of our messages, never a traceback or a hang. No requirement may newly
pass, and none whose evidence a mutant takes away, or makes impossible, may go on passing.
"""

from __future__ import annotations

import base64
import collections
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from reporting import argument_parser, keep, positive_int, table

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.plan.metric_catalogue import METRICS, Metric
from pytest_ddpscale.run.block import STEP_BYTES
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import Judgement, Verdict
from pytest_ddpscale.session import open as session_open
from pytest_ddpscale.session.session import AcceptanceSession
from pytest_ddpscale.session.sources import Site
from pytest_ddpscale.settings import settings_from
from pytest_ddpscale.simulate.cluster import open_cluster
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions, parse_faults
from pytest_ddpscale.simulate.writing import write_simulated_run
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

OUTCOMES = ("refused", "no better", "wrong pass", "traceback", "hang")
HANG_S = 60
SIMULATED_FAULTS = (("slow-gpu:3:1.3", "corrupt-rank:5"), ("missing-rank:3:2",), ("bad-gpu:3:ecc",), ())
FILES = ("run.json", "plan.json", "measurements.jsonl")
WRONG_VALUES = (
    "null", "true", "-1", "0", "1e308", "-1e300", "1e999", "NaN", "Infinity", "1" + "0" * 60, '"x"', "[]", "{}",
    "[[[]]]", "5.5", '""', "[null]", "[" * 2000,
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        family: to which it belongs.
        name: which it is.
        content: of the file; what to make in its place if it is no longer one.
        gone: whether the evidence of a requirement is gone or impossible, so that it must not pass.
        spoils: whether the run as a whole must not be accepted.
    """

    family: str
    name: str
    file: str
    content: bytes | Callable[[Path], None]
    gone: Callable[[Verdict], bool] = lambda verdict: False
    spoils: bool = False


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
        if file == "measurements.jsonl":
            yield from _gone(file, content.splitlines(keepends=True))
            yield from _impossible(file, content.splitlines(keepends=True))
        yield from _no_files(file)


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
    """One field with another value, missing, or one more."""
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


def _gone(file: str, lines: list[bytes]) -> Iterator[Mutant]:
    """All lines of a kind, a study or an arm, and their arms in the ends of rounds, are missing."""
    said = [json.loads(line) for line in lines]

    def without(name: str, is_gone: Callable[[Any], bool], gone: Callable[[Verdict], bool]) -> Mutant:
        kept = [line for line, one in zip(lines, said, strict=True) if not is_gone(one)]
        return Mutant("gone", name, file, b"".join(kept), gone)

    checks = ("gpus", "ecc", "versions", "disk", "kernels", "pcie", "nvlink", "throttling", "processes", "mig")
    yield without("survey", lambda one: one["kind"] == "survey", lambda v: v.id in {f"node_check[{c}]" for c in checks})
    yield without("telemetry", lambda one: one["kind"] == "telemetry", lambda v: "_under_load]" in v.id)
    yield without("transport", lambda one: one["kind"] == "transport", lambda v: v.id == "node_check[transport]")
    yield without("seeded steps", lambda one: one["kind"] == "seeded_step", lambda v: v.metric == "replica_agreement")
    studies = dict.fromkeys(one["study"] for one in said if one["kind"] == "timed")
    for study in studies:
        yield without(f"all of {study}", partial(_is_of, study), partial(_needs, study, ""))
        yield without(f"end of {study}", partial(_ends, study), partial(_needs, study, ""))
        arms = dict.fromkeys(one["arm"] for one in said if one["kind"] == "timed" and one["study"] == study)
        for arm in arms:
            gone = partial(_needs, study, arm)
            yield without(f"{arm} of {study}", partial(_is_of_arm, study, arm), gone)
            left = [_left_out(one, study, arm) for one in said]
            content = b"".join(json.dumps(one).encode() + b"\n" for one in left if one is not None)
            yield Mutant("gone", f"{arm} of {study}, also where its rounds end", file, content, gone)


def _is_of(study: str, one: Any) -> bool:
    return bool(one["kind"] == "timed" and one["study"] == study)


def _is_of_arm(study: str, arm: str, one: Any) -> bool:
    return _is_of(study, one) and one["arm"] == arm


def _ends(study: str, one: Any) -> bool:
    return bool(one["kind"] == "study_end" and one["study"] == study)


def _left_out(one: Any, study: str, arm: str) -> Any:
    """A record without an arm; None if it is of that arm."""
    if _is_of_arm(study, arm, one):
        return None
    if one["kind"] == "round_end" and one["study"] == study:
        return one | {"arms": [name for name in one["arms"] if name != arm]}
    return one


def _needs(study: str, arm: str, verdict: Verdict) -> bool:
    """Whether a verdict rests on an arm of a study, or on the study if none is named."""
    metric, kind = METRICS[verdict.metric], arm.partition("@")[0]
    if study == "probes":
        is_probe = metric.subject == "probe"
        return is_probe and (not arm or verdict.id.partition("[")[2].rstrip("]").rpartition("-")[0] == kind
                             or verdict.id.endswith(f"[{kind}]"))  # fmt: skip
    scaling, _, workload = study.partition("/")
    if metric.subject != "workload" or (metric.scaling, verdict.workload) != (scaling, workload):
        return False
    return not arm or (arm == f"{metric.measured}@{verdict.world_size}" and not metric.reads_own_pace)


def _impossible(file: str, lines: list[bytes]) -> Iterator[Mutant]:
    """What no machine does, or no run: beyond any hardware, in two gangs, on a host that is lost."""
    said = [json.loads(line) for line in lines]

    def changed(name: str, change: Callable[[Any], Any], gone: Callable[[Verdict], bool], *, spoils: bool) -> Mutant:
        content = b"".join(json.dumps(change(one)).encode() + b"\n" for one in said)
        return Mutant("impossible", name, file, content, gone, spoils)

    nothing = lambda verdict: False  # noqa: E731
    trained = dict.fromkeys(one["study"] for one in said if one["kind"] == "timed" and "/" in one["study"])
    for study in trained:
        everything = partial(_rests_on_pace, study)
        yield changed(f"{study} a million times faster", partial(_faster, study, "", 1e6), everything, spoils=True)
        for arm in ("ddp@2", "ddp@8"):
            ratio = partial(_is_ratio, study, arm)
            yield changed(f"{arm} of {study} 8 times faster", partial(_faster, study, arm, 8.0), ratio, spoils=False)
    ranks: list[Any] = next((one["ranks"] for one in said if one["kind"] == "gang"), [])
    hosts = [rank["place"]["host"] for rank in ranks] or ["n1"]
    for host in (hosts[0], "another"):
        lost = {"kind": "lost", "hosts": [host], "message": "silent for 30 s"}
        content = b"".join([*lines, json.dumps(lost).encode() + b"\n"])
        yield Mutant("impossible", f"{host} is lost at the end", file, content, nothing, spoils=True)
    for versions in ({}, {"torch": "1.0"}):
        gang = next(one for one in said if one["kind"] == "gang")
        first, *others = gang["ranks"]
        other = {"kind": "gang", "gang": 7, "ranks": [first | ({"versions": versions} if versions else {}), *others]}
        content = b"".join(
            json.dumps(one | {"gang": 7} if one["kind"] == "timed" and one["round"] % 2 else one).encode() + b"\n"
            for one in [gang, other, *(one for one in said if one is not gang)]
        )
        yield Mutant(
            "impossible", f"half of the rounds by another gang, {versions}", file, content, nothing, spoils=True
        )
    split = {"ranks": [rank | {"versions": {"torch": str(n)}} for n, rank in enumerate(ranks)]}
    yield changed("each rank with its own torch", lambda one: one | split if one["kind"] == "gang" else one, nothing,
                  spoils=True)  # fmt: skip
    agreement = lambda verdict: verdict.metric == "replica_agreement"  # noqa: E731
    for sums in (None, "a+b"):
        unrepeated = {"repeats": False} | ({"checksum": sums} if sums else {})
        yield changed(f"no rank repeats its seeded step, {sums}",
                      partial(_seeded, unrepeated), agreement, spoils=True)  # fmt: skip
    for host in ("\0", "", "\x1b[2J", "a\nACCEPTED", "\u202e", "n" * 10_000):
        renamed = partial(_renamed, hosts[0], host)
        yield changed(f"a host named {host[:9]!r}", renamed, nothing, spoils=False)


def _faster(study: str, arm: str, times: float, one: Any) -> Any:
    """A block, if it is of the arm, in a fraction of its time."""
    if not (_is_of(study, one) and arm in ("", one["arm"])):
        return one
    readings, series = dict(one.get("readings", {})), dict(one.get("series", {}))
    for name in ("forward_s", "step_stdev_s"):
        if name in readings:
            readings[name] = _divided(readings[name], times)
    for name, text in series.items():
        steps = np.frombuffer(base64.b64decode(text), f"<f{STEP_BYTES}") / np.float32(times)
        series[name] = base64.b64encode(steps.astype(f"<f{STEP_BYTES}").tobytes()).decode()
    return one | {"seconds": _divided(one["seconds"], times), "readings": readings, "series": series}


def _divided(value: Any, by: float) -> Any:
    if isinstance(value, list):
        return [_divided(one, by) for one in value]
    return value / by if value is not None else None


def _rests_on_pace(study: str, verdict: Verdict) -> bool:
    return _needs(study, "", verdict) and _is_rate(METRICS[verdict.metric])


def _is_rate(metric: Metric) -> bool:
    return metric.tells_speed and metric.subject == "workload" and not metric.upper_bound


def _is_ratio(study: str, arm: str, verdict: Verdict) -> bool:
    metric = METRICS[verdict.metric]
    is_ratio = metric.baseline is not None and (_is_rate(metric) or metric.unit == "fraction")
    return is_ratio and not metric.reads_folder and _needs(study, arm, verdict)


def _seeded(changes: dict[str, Any], one: Any) -> Any:
    return one | {"ranks": [step | changes for step in one["ranks"]]} if one["kind"] == "seeded_step" else one


def _renamed(before: str, after: str, one: Any) -> Any:
    return json.loads(json.dumps(one).replace(json.dumps(before), json.dumps(after)))


def _no_files(file: str) -> Iterator[Mutant]:
    """Pipes, devices, folders and links to nothing in the place of a file."""
    kinds: dict[str, Callable[[Path], None]] = {
        "a pipe": os.mkfifo, "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"), "a folder": Path.mkdir,
        "a link to itself": lambda path: path.symlink_to(path.name),
    }  # fmt: skip
    for name, make in kinds.items():
        yield Mutant("no file", f"{file} is {name}", file, make, spoils=True)


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
    options = {"ddp_judge": str(run), "thresholds": str(packaged("thresholds.yaml"))}
    session = AcceptanceSession(session_open.find_source(Site(settings_from(options, {}, {}), Path(), Path())))
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
    wrong = _better(before, found) or (_still_good(mutant, found) if mutant is not None else "")
    return ("wrong pass", wrong) if wrong else ("no better", found.outcome)


def _better(before: Judgement, found: Judgement) -> str:
    passed = {verdict.id for verdict in before.verdicts if verdict.passed}
    anew = sorted(verdict.id for verdict in found.verdicts if verdict.passed and verdict.id not in passed)
    if found.outcome == "accepted" != before.outcome:
        anew.append("the run")
    return ", ".join(anew)


def _still_good(mutant: Mutant, found: Judgement) -> str:
    """What passes although its evidence is gone; empty if nothing does."""
    passed = [verdict.id for verdict in found.verdicts if verdict.passed and mutant.gone(verdict)]
    if mutant.spoils and found.outcome in ("accepted", "accepted_with_waivers", "partial"):
        passed.append("the run")
    return ", ".join(passed)


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


if __name__ == "__main__":
    sys.exit(main())
