"""Runs of the oracle that `ddpscale simulate` alone does not make: measured as a session does, and edited afterwards.

A line of benchmarks/oracle/runs.txt that begins with `session` takes the options of `simulate`; its studies end when
the Decider needs no more rounds. After ` | ` follow edits of the run's files, names in `EDITS` with arguments: they
make what no fault of the simulator does, such as a counter that grows or a node that is lost. An argument ``arms`` is a
pattern of study and arm, such as ``weak/*/ddp@*``; ``rounds`` is ``3-5``; a rank may be ``all``; values are JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

THRESHOLDS = Path(__file__).resolve().parent / "oracle" / "thresholds"
CONFIDENCE, MEASURED = 0.95, "measurements.jsonl"
Line = dict[str, Any]
Decided = dict[str, dict[int, str]]
Look = Callable[[str, Any, int, list[str]], None]


def note(decided: Decided, name: str, rounds: int, now: str) -> None:
    """Note a decision after so many rounds, if it is another than that after fewer."""
    found = decided.setdefault(name, {})
    if not found or found[max(found)] != now:
        found[rounds] = now


def until_decided(run: Any, cluster: Any, look: Look, *, with_probes: bool = False) -> Iterator[Any]:
    """Records of a simulated session that ends each study, or only those that train, when it needs no arm further.

    `look` is told after each round of which study, which arms it timed, its number from 1, and the names of the arms
    that are needed.
    """
    from pytest_ddpscale.judge.judge import Decider
    from pytest_ddpscale.run.records import StudyEnd
    from pytest_ddpscale.simulate import writing

    decider, plan = Decider(run.plan, cluster.cases, CONFIDENCE), run.plan

    def of_study(study: Any) -> Iterator[Any]:
        timed, number = study.arms, 0
        yield from run.before_rounds(study)
        while timed and number < study.rounds:
            yield from run.measure_round(study, number, timed)
            number, needed = number + 1, decider.needed_arms(study.id)
            look(study.id, timed, number, needed)
            timed = tuple(arm for arm in timed if arm.name in needed)
        yield StudyEnd(study=study.id, reason="rounds" if timed else "decided")

    def every() -> Iterator[Any]:
        yield from writing.before_measuring(run, cluster)
        if plan.probes:
            yield from of_study(plan.probes) if with_probes else writing.measured(run, plan.probes)
        for study in plan.studies:
            yield from of_study(study)
        yield from writing.after_training(run, cluster)

    for record in every():
        decider.hear(record)
        yield record


def measure_as_sessions_do(looks_file: Path) -> None:
    """Let `ddpscale simulate`, in this process, end studies when they are decided.

    What it decides while it measures is written by number of rounds, only where it changed: the arms that a study
    needs further, ``none`` at its end; the outcome of each requirement, `not final` if more rounds may still turn what
    its interval has decided.
    """
    from pytest_ddpscale.judge import judge as deciding
    from pytest_ddpscale.judge.judge import judge
    from pytest_ddpscale.report.words.reasons import worded
    from pytest_ddpscale.simulate import writing

    looks: dict[str, Decided] = {"needed": {}, "outcomes": {}}
    seen = list[Any]()

    def judge_and_see(*asked: Any) -> Any:
        seen.append(worded(judge(*asked)))
        return seen[-1]

    def look(study: str, _: Any, number: int, needed: list[str]) -> None:
        note(looks["needed"], study, number, " ".join(needed) or "none")
        for one in seen:
            note(looks["outcomes"], one.id, number, "not final" if "not final" in one.reason else one.outcome)
        seen.clear()

    def records(run: Any, cluster: Any) -> Iterator[Any]:
        yield from until_decided(run, cluster, look, with_probes=True)
        looks_file.write_text(json.dumps(looks))

    vars(deciding)["judge"], writing.records = judge_and_see, records


class Files:
    """The files of a run directory, in their JSON.

    Attributes:
        folder: the directory.
        plan: plan.json.
        run: run.json.
        lines: of measurements.jsonl.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = json.loads((folder / "run.json").read_text())
        self.lines: list[Line] = list(map(json.loads, (folder / MEASURED).read_text().splitlines()))

    def write(self) -> None:
        """Write all of them; telemetry only of blocks that are still there."""
        kept = {_key(line) for line in self.of_kind("timed")}
        lines = [line for line in self.lines if line["kind"] != "telemetry" or _key(line) in kept]
        for name, said in (("run.json", [self.run]), (MEASURED, lines)):
            (self.folder / name).write_text("".join(json.dumps(one) + "\n" for one in said))

    def of_kind(self, kind: str) -> list[Line]:
        """Lines of a kind, in order."""
        return [line for line in self.lines if line["kind"] == kind]

    def blocks(self, arms: str, rounds: str = "0-999") -> list[Line]:
        """What was timed in rounds of some arms."""
        return _some(self.of_kind("timed"), arms, rounds)

    def windows(self, arms: str, rounds: str = "0-999") -> list[Line]:
        """Telemetry of some arms."""
        return _some(self.of_kind("telemetry"), arms, rounds)

    def end_of(self, study: str) -> int:
        """Index of the line with which a study ends."""
        return next(i for i, line in enumerate(self.lines) if (line["kind"], line.get("study")) == ("study_end", study))


def _key(line: Line) -> tuple[Any, ...]:
    return line["study"], line["arm"], line["round"]


def _some(lines: Iterable[Line], arms: str, rounds: str) -> list[Line]:
    first, last = map(int, rounds.split("-"))
    return [
        line for line in lines if fnmatch(f"{line['study']}/{line['arm']}", arms) and first <= line["round"] <= last
    ]


def _put(columns: Line, name: str, ranks: Sequence[int], rank: str, value: Any) -> None:
    """Set a rank's value in a column, which is one value as long as all ranks share it."""
    found = columns.get(name, type(value)() if isinstance(value, str | list) else None)
    column = list(found) if isinstance(found, list) and len(found) == len(ranks) else [found] * len(ranks)
    columns[name] = [value if rank in ("all", str(one)) else said for one, said in zip(ranks, column, strict=True)]


def _scale(line: Line, factors: npt.NDArray[np.float64]) -> None:
    """Let each rank take so many times as long in a block: its steps and its forward passes, (ranks,)."""
    for columns, name in ((line, "seconds"), (line["readings"], "forward_s")):
        if name in columns:
            columns[name] = (np.array(columns[name]) * factors).tolist()
    for name, packed in line.get("series", {}).items():
        steps = _unpacked(packed, len(factors)) * factors[:, np.newaxis]
        line["series"][name] = base64.b64encode(steps.astype("<f4").tobytes()).decode()


def _unpacked(packed: str, ranks: int) -> npt.NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(packed), "<f4").reshape(ranks, -1)


def _digests(line: Line) -> list[str]:
    """Of each rank, or one that all have."""
    text = line.get("digests") or ""
    return [text[start : start + 16] for start in range(0, len(text), 16)]


def only(line: Line, there: Sequence[int]) -> None:
    """Keep these ranks of a line."""
    count, at = len(line["ranks"]), [i for i, rank in enumerate(line["ranks"]) if rank in there]

    def kept(said: Any) -> Any:
        if isinstance(said, dict):
            return {name: kept(one) for name, one in said.items()}
        return [said[i] for i in at] if isinstance(said, list) and len(said) == count else said

    for name, packed in line.get("series", {}).items():
        line["series"][name] = base64.b64encode(_unpacked(packed, count)[at].tobytes()).decode()
    digests = _digests(line)
    line |= {"digests": "".join(digests[i] for i in at)} if digests[1:] else {}
    line |= {name: kept(said) for name, said in line.items() if name not in ("series", "digests")}


def scale(run: Files, arms: str, rank: str, factor: str, rounds: str = "0-999") -> None:
    """Let a rank take so many times as long."""
    for line in run.blocks(arms, rounds):
        _scale(line, np.array([float(factor) if rank in ("all", str(one)) else 1.0 for one in line["ranks"]]))


def times(run: Files, arms: str, ranks: str, correlation: str, deviation: str) -> None:
    """Let times of some ranks, ``4-7``, vary alike from round to round: AR(1) noise of that relative deviation."""
    first, end = map(int, ranks.split("-"))
    chance, rho, last = np.random.default_rng(first), float(correlation), dict[str, float]()
    for line in run.blocks(arms):
        noise = chance.standard_normal()
        last[line["arm"]] = rho * last.get(line["arm"], noise) + np.sqrt(1 - rho**2) * noise
        logs = [float(deviation) * last[line["arm"]] * (first <= one <= end) for one in line["ranks"]]
        _scale(line, np.exp(logs))


def reading(run: Files, arms: str, rank: str, name: str, value: str, rounds: str = "0-999", why: str = "") -> None:
    """Set a reading, or say why it is unread."""
    for line in run.blocks(arms, rounds):
        _put(line["readings"], name, line["ranks"], rank, json.loads(value))
        if why:
            _put(line.setdefault("unread", {}), name, line["ranks"], rank, why)


def window(run: Files, arms: str, rank: str, name: str, value: str, rounds: str = "0-999") -> None:
    """Set a quantity of telemetry."""
    for line in run.windows(arms, rounds):
        _put(line, name, line["ranks"], rank, json.loads(value))


def column(run: Files, kind: str, study: str, rank: str, name: str, value: str) -> None:
    """Set a rank's value in lines of a kind, such as ``transport`` and ``seeded_step``, of a study or ``*``."""
    ranks = [one for line in run.of_kind(kind) if fnmatch(line["study"], study) for one in line["ranks"]]
    for one in ranks:
        one |= {name: json.loads(value)} if rank in ("all", str(one["rank"])) else {}


def parameters(run: Files, arms: str, rank: str, rounds: str) -> None:
    """Let a rank's parameters differ after blocks."""
    for line in run.blocks(arms, rounds):
        ranks, digests = line["ranks"], _digests(line)
        each = digests * (len(ranks) // len(digests))
        line["digests"] = "".join("f" * 16 if rank == str(one) else its for one, its in zip(ranks, each, strict=True))


def _set(said: Line, name: str, value: str) -> None:
    """Set a fact; ``NAME.KEY`` of one that has several."""
    name, _, key = name.partition(".")
    said[name] = said[name] | {key: json.loads(value)} if key else json.loads(value)


def gpu(run: Files, rank: str, name: str, value: str) -> None:
    """Set a fact of a surveyed GPU."""
    _set([one for survey in run.of_kind("survey") for one in survey["gpus"]][int(rank)], name, value)


def node(run: Files, number: str, name: str, value: str) -> None:
    """Set a fact of a surveyed node."""
    _set(run.of_kind("survey")[int(number)], name, value)


def post_mortem(run: Files, number: str, index: str, name: str, value: str) -> None:
    """Survey a node again after ranks failed, with another fact of one of its GPUs, or ``-`` of the node."""
    survey = json.loads(json.dumps(run.of_kind("survey")[int(number)]))
    _set(survey if index == "-" else survey["gpus"][int(index)], name, value)
    run.lines.append({"kind": "post_mortem", "survey": {key: said for key, said in survey.items() if key != "kind"}})


def software(run: Files, number: str, version: str) -> None:
    """Give a node another version of torch."""
    (gang,) = run.of_kind("gang")
    versions = gang["ranks"][0]["versions"]
    for one in gang["ranks"]:
        one["versions"] = versions | ({"torch": version} if one["place"]["host"] == f"node-{number}" else {})


def replace(run: Files, before: str, after: str) -> None:
    """Put JSON, such as the UUID of a GPU, in the place of other JSON, wherever it is."""
    run.lines, run.run = json.loads(json.dumps([run.lines, run.run]).replace(before, after))


def add(run: Files, line: str) -> None:
    """Add a line to measurements.jsonl."""
    run.lines.append(json.loads(line))


def forget(run: Files, kind: str, number: str) -> None:
    """Drop a line of a kind, such as the survey of a node."""
    del run.lines[run.lines.index(run.of_kind(kind)[int(number)])]


def noted(run: Files, name: str, value: str) -> None:
    """Set a field of run.json."""
    _set(run.run, name, value)


def judged_by(run: Files, file: str) -> None:
    """Let another thresholds file of the oracle judge it, in which today's day is filled in."""
    day, text = datetime.now(timezone.utc).date(), (THRESHOLDS / file).read_text()
    for word, days in (("TODAY", 0), ("TOMORROW", 1)):
        text = text.replace(word, str(day + timedelta(days)))
    Path(f"{run.folder}.yaml").write_text(text.replace("LAB", str(THRESHOLDS / "lab.yaml")))
    judged_with(run, f"--thresholds={run.folder}.yaml")


def judged_with(run: Files, *options: str) -> None:
    """Let it be judged with these options of pytest, in place of `--thresholds`."""
    Path(f"{run.folder}.options").write_text("\n".join(option.replace("_or_", " or ") for option in options))


def leave(run: Files, arms: str, rank: str, rounds: str) -> None:
    """Take a rank out of blocks."""
    for line in [*run.blocks(arms, rounds), *run.windows(arms, rounds)]:
        only(line, [one for one in line["ranks"] if one != int(rank)])


def unwatched(run: Files, arms: str, rounds: str = "0-999") -> None:
    """Let drivers hang, so that the sampler has no polls."""
    kept = ("kind", "study", "arm", "round", "gang", "ranks", "started_unix_s", "ended_unix_s")
    for line in run.windows(arms, rounds):
        of_block = {key: line[key] for key in kept}
        line.clear()
        line |= of_block | {
            "polls": 0,
            "unreadable": {"device": "the sampler reads nothing any more: its driver may hang"},
        }


def drop(run: Files, arms: str, rounds: str = "0-999") -> None:
    """Drop blocks, and the ends of their rounds."""
    gone = {_key(line) for line in run.blocks(arms, rounds)}
    ended = {(study, number) for study, _, number in gone}
    run.lines = [
        line for line in run.lines
        if not (line["kind"] == "timed" and _key(line) in gone)
        and not (line["kind"] == "round_end" and (line["study"], line["round"]) in ended)
    ]  # fmt: skip


def end(run: Files, study: str, rounds: str, reason: str, message: str = "") -> None:
    """End a study after so many rounds for another reason: ``budget``, ``error``, ``interrupted``."""
    run.lines[run.end_of(study)] |= {"reason": reason, "message": message.replace("_", " ")}
    run.lines = [line for line in run.lines if line.get("study") != study or line.get("round", -1) < int(rounds)]


def stop(run: Files, study: str, rounds: str) -> None:
    """End the session from outside after so many rounds of a study."""
    end(run, study, rounds, "interrupted", "the_job_reached_its_time_limit")
    run.lines = run.lines[: run.end_of(study) + 1]
    run.run["status"] = "interrupted"


def lose(run: Files, host: str, study: str, rounds: str) -> None:
    """Lose a node in a round of a study; a new gang of the others measures the later studies that fit a node."""
    end(run, study, rounds, "error", f"{host}_did_not_answer")
    at, (gang,) = run.end_of(study) + 1, run.of_kind("gang")
    there = [rank for rank, one in enumerate(gang["ranks"]) if one["place"]["host"] != host]
    after = [
        line for line in run.lines[at:] if line.get("study") not in (None, "pairs") and line["kind"] != "transport"
    ]
    for line in after:
        if line["kind"] == "seeded_step":
            of_ranks = {one["rank"]: one for one in line["ranks"]}
            line |= {"ranks": [of_ranks[rank] | {"rank": i} for i, rank in enumerate(there)], "gang": 1}
        elif "ranks" in line:
            only(line, there)
            line |= {"ranks": [there.index(rank) for rank in line["ranks"]], "gang": 1}
    lost = {"kind": "lost", "hosts": [host], "message": f"{host} did not answer"}
    run.lines[at:] = [lost, {"kind": "gang", "gang": 1, "ranks": [gang["ranks"][rank] for rank in there]}, *after]


_ALL = (
    scale, times, reading, window, column, parameters, gpu, node, post_mortem, software, replace, add, forget, noted,
    judged_by, judged_with, leave, unwatched, drop, end, stop, lose,
)  # fmt: skip
EDITS: Mapping[str, Callable[..., None]] = {one.__name__.replace("_", "-"): one for one in _ALL}


def edit(folder: Path, edits: Sequence[str]) -> None:
    """Apply edits, each ``NAME ARGUMENT …``, to a run directory."""
    files = Files(folder)
    for one in edits:
        name, *arguments = one.split()
        EDITS[name](files, *arguments)
    files.write()
