"""Facts that benchmarks/oracle.py compares: what programs and people decide by, read from what the product writes.

Files and outputs of commands are read, and none of the product's modules, so that all can be written anew and judged by
the same facts. What a requirement says of itself is no fact of a run.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

Facts = dict[str, dict[str, Any]]
# Runs pytest or ddpscale; returns the exit code and what it says.
Program = Callable[[str, Sequence[str]], tuple[int, str]]
# What a verdict decides and rests on; reasons only of runs that stay as they are.
OF_VERDICT = ("outcome", "value", "interval", "rounds", "place", "correlation", "flags", "notes", "waiver",
              "against_slowest", "launch_sd")  # fmt: skip
OF_CULPRIT = ("is_certain", "slowdown", "slow_rounds", "rounds", "peers")
OF_CAUSE = ("category", "severity", "explains")
NAMES_OF_ROWS = (
    "run", "data_set", "launch", "batch", "gpus", "ranks", "world_size", "name", "size", "model", "workload", "hidden",
    "operation", "size_bytes", "pair", "setting", "data", "requirement", "cell", "factor", "way", "epoch",
    "metric", "bucket_cap_mb", "over",
)  # fmt: skip
# Sentences, settings of the command, and numbers that follow from others.
NO_FACTS_OF_SUITE = {
    "schema_version", "suite", "headline", "problems", "failures", "problem", "reason", "why_not", "why_missing",
    "paste", "document_gb_per_epoch", "failure",
}  # fmt: skip
OF_COMPARED = ("value_a", "value_b", "change", "is_ratio", "difference", "is_worse", "nodes", "of", "is_lost")
OF_CALIBRATED = ("value", "bound", "node_sd", "launch_sd", "reach", "margin_pct", "nodes", "launches", "sd_is")
TEXTS_OF_ROW = {"published", "provisional", "because"}
# Parts of verdicts.json that have facts of their own or are none.
NO_FACTS_OF_RUN = {
    "basis",
    "extends",
    "schema_version",
    "source",
    "verdicts",
    "blockers",
    "causes",
    "coverage",
    "remarks",
    "requirements",
    "requirements_sha256",
}


def judged_run(folder: Path, *, with_sentences: bool) -> Facts:
    """Facts of verdicts.json: the run, what was tested, each cause and each verdict."""
    said = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
    dropped = NO_FACTS_OF_RUN | (set() if with_sentences else {"reason"})
    facts: Facts = {"run": {key: value for key, value in said.items() if key not in dropped}}
    facts["run"]["blockers"] = [f"{one['kind']} {one['name']}" for one in said["blockers"]]
    facts |= _coverage(said["coverage"])
    evidence = ["evidence"] * with_sentences
    numbers = Counter[str]()
    for cause in said["causes"]:
        keys = [*OF_CAUSE, *["sentence", "next_steps"] * with_sentences]
        named = {"culprits": _culprits(cause, "gpu_uuid", *evidence)}
        numbers[cause["id"]] += 1
        facts[f"cause {cause['id']} {numbers[cause['id']]}".removesuffix(" 1")] = _some(cause, keys) | named
    for verdict in said["verdicts"]:
        keys = [*OF_VERDICT, *["reason"] * with_sentences]
        facts[verdict["id"]] = _some(verdict, keys) | {"culprits": _culprits(verdict, *evidence)}
    return facts


def _some(record: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: record[key] for key in keys if record.get(key) not in (None, "", [], {})}


def _culprits(record: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """By name: ``gpu node-0:3``, ``link node-0:1 node-1:1``."""
    found: dict[str, Any] = {}
    for one in record["culprits"]:
        name = " ".join([one["kind"], *(f"{place['host']}:{place.get('index')}" for place in one["places"])])
        name += f" {sum(key.startswith(name) for key in found) + 1}" if name in found else ""
        one["gpu_uuid"] = one["places"][0].get("uuid")
        found[name] = _some(one, (*OF_CULPRIT, *more)) | ({"computed_wrong": True} if one["computed_wrong"] else {})
    return found


def _coverage(said: Mapping[str, Any]) -> Facts:
    """What was tested in total, and on each node its GPUs by what they were tested with."""
    facts: Facts = {"coverage": {key: value for key, value in said.items() if key not in ("nodes", "paths")}}
    facts["coverage paths"] = {f"{one} {other}": [gbps, rounds] for one, other, gbps, rounds in said["paths"]}
    for node in said["nodes"]:
        by_tests: dict[str, list[Any]] = defaultdict(list)
        for gpu in node["gpus"]:
            name = gpu["place"].get("index", gpu["place"].get("local_rank"))
            lacks = [f"{gpu['rounds_missing']} rounds missing"] * bool(gpu["rounds_missing"]) + gpu["missing_in"]
            by_tests[" ".join([*gpu["tested_by"], *lacks, gpu["problem"]]).strip()].append(name)
        facts[f"coverage {node['host']}"] = {"tested_by": node["tested_by"], "left_out": node["left_out"]} | {
            f"GPUs {tests}": gpus for tests, gpus in by_tests.items()
        }
    return facts


def history_rows(history: str) -> Facts:
    """Values of the run that was added last: by what was measured, on each node in the order of its GPUs."""
    facts: Facts = defaultdict(dict)
    with closing(sqlite3.connect(history)) as database:
        asked = "SELECT document FROM nodes WHERE run = (SELECT run FROM nodes ORDER BY rowid DESC) ORDER BY host"
        for node in (json.loads(document) for (document,) in database.execute(asked)):
            facts["history"]["run"] = f"{node['sku']} {node['outcome']}"
            versions = json.dumps(node["versions"], separators=(",", ":"))
            facts["history"].setdefault(versions, []).append(node["host"])
            for (host, gpu, *series, definition), index, value, _, batch, has_regressed in node.get("values", ()):
                uuid = gpu.partition(":")[0] or None
                fact = facts[" ".join(["history", *map(str, series), *[f"batch {batch}"] * (batch is not None)])]
                fact["definition"] = definition
                fact.setdefault(host, {})["node" if index is None else str(index)] = value
                facts["history"].setdefault(f"GPUs of {host}", {})[str(index)] = uuid
                if has_regressed:
                    fact.setdefault("worse", []).append(f"{host} {index}")
    return facts


def suite(program: Program, name: str) -> Facts:
    """A suite's stored run, reported anew: the numbers of suite.json, a fact a row."""
    code, _ = program("ddpscale", ["report", name])
    said = json.loads(Path(name, "suite.json").read_text(encoding="utf-8"))
    facts: Facts = {"run": {"exit code": code, "headline": said["headline"]}}
    facts["run"] |= {key: len(said[key]) for key in ("problems", "failures")}
    return facts | dict(_rows(said.pop("tables") | said, said["suite"]))


def _rows(said: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of nested tables, by what names them; what is in no table is one fact."""
    if isinstance(said, list):
        for number, row in enumerate(said):
            names = [f"{key} {row[key]}" for key in NAMES_OF_ROWS if key in row] or [str(number)]
            yield from _rows({k: v for k, v in row.items() if k not in NAMES_OF_ROWS}, " ".join([path, *names]))
        return
    tables = {key: value for key, value in said.items() if _has_rows(value)}
    yield path, {key: value for key, value in said.items() if key not in tables and key not in NO_FACTS_OF_SUITE}
    for key, value in tables.items():
        yield from _rows(value, f"{path} {key}")


def _has_rows(said: Any) -> bool:
    if isinstance(said, list):
        return bool(said) and isinstance(said[0], dict)
    return isinstance(said, dict) and any(map(_has_rows, said.values()))


def compare(program: Program, _: str, *arguments: str) -> Facts:
    """The changes between two runs of the chain, and the gate."""
    code, said = program("ddpscale", ["compare", *arguments, "--format=json"])
    about = json.loads(said)
    facts: Facts = {"run": {"exit code": code} | _some(about, ("kind", "worse", "lost", "fails", "only_a", "only_b"))}
    return facts | {row["id"]: _some(row, OF_COMPARED) for row in about["requirements"]}


def calibrate(program: Program, _: str, *runs: str) -> Facts:
    """Bounds from nights of the chain, and the rows of the new thresholds file."""
    code, said = program("ddpscale", ["calibrate", *runs, "--json"])
    about = json.loads(said)
    out = sorted(about["not_calibrated"])
    facts: Facts = {"run": {"exit code": code, "excluded": about["excluded"], "not_calibrated": out}}
    facts |= {row["name"]: _some(row, OF_CALIBRATED) for row in about["calibrated"]}
    for row in about["requirements"]:
        metrics = sorted({*row} - TEXTS_OF_ROW - {"of", "probe", "severity"})
        fact = f"row {' '.join(metrics)} {row.get('of', row.get('probe'))}"
        facts[fact] = {key: key in TEXTS_OF_ROW or value for key, value in row.items()}
    return facts


def culprits(program: Program, _: str, *runs: str) -> Facts:
    """The list by which hosts are drained and returned, and how many test items JUnit's file of the last run has."""
    is_simulated = json.loads(Path(runs[0], "verdicts.json").read_text(encoding="utf-8"))["simulated"]
    code, said = program("ddpscale", ["culprits", "--format=tsv", *["--rehearse"] * is_simulated, *runs])
    rows = [line.split("\t") for line in said.splitlines()[1:]]
    facts: Facts = {"culprits": {"exit code": code, "hosts": [" ".join([*row[:2], *row[3:4]]) for row in rows]}}
    items = ElementTree.parse(Path(runs[-1], "junit.xml")).find("testsuite")
    assert items is not None
    return facts | {"junit": {key: items.get(key) for key in ("tests", "failures", "errors", "skipped")}}


# By the first word of a line of runs.txt; all other lines are runs to judge.
READERS: dict[str, Callable[..., Facts]] = {
    "suite": suite,
    "compare": compare,
    "calibrate": calibrate,
    "culprits": culprits,
}
