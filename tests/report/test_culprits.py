"""Whom runs reject, accept, or want looked at: what drains nodes acts on exactly this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import OptionError, RunDirectoryError
from pytest_ddpscale.report.culprits import (
    MOST_REASON_CHARACTERS,
    REASON_PREFIX,
    TSV_HEADER,
    HostFinding,
    read_findings,
    settled,
    text_lines,
    tsv_lines,
)
from pytest_ddpscale.run.coverage import PROBES, SURVEY
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.records import Lost, StudyEnd
from pytest_ddpscale.run.run_json import Resumed
from pytest_ddpscale.run.verdicts import RunOutcome, Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.approved import assert_approved, masked
from tests.builders.culprits import gpu, link, node
from tests.builders.judgements import HOSTILE
from tests.report.judged import STARTED_UNIX_S, failed, write_judged_run

NODES = ("n1", "n2", "n3")
LATER = STARTED_UNIX_S + 3600
WAIVER = Waiver("A. Name", "a fan is ordered", date(2026, 12, 31))
RESUMED = Resumed(at="2026-01-31T12:00:00+00:00", argv=(), status_before="interrupted", measured_anew={})


def maybe(culprit: Any) -> Any:
    """The same, only suspected."""
    return replace(culprit, is_certain=False)


def alone(host: str, value: float, median: float) -> Any:
    """A suspected node, by its value beside the median of 2 others."""
    return replace(maybe(node(host)), because=because("node-alone", "throughput_per_gpu", value, "img/s", 2, median))


ALIKE: dict[str, Any] = {"remarks": (because("most-fail-alike", 3, 3, "nodes"),)}
NEAR = because("all-may-be-slow", because("misses", "p", 1, 1, "GPUs", 80.0, "memory-copy", 81.0), 0.1)
MOST: dict[str, Any] = {"remarks": (because("most-fail-alike", 2, 3, "nodes", 1),)}
OPEN: dict[str, Any] = {"remarks": (because("most-fail-alike", 2, 3, "nodes", 0),)}
CHECK: dict[str, Any] = {
    "metric": "node_check", "id": "node_check[ecc]", "workload": "ecc", "world_size": 1, "bound": {"at_least": 1},
}  # fmt: skip
OTHER: dict[str, Any] = {"metric": "step_time_p95", "bound": {"at_most": 0.1}}
WAIVED: dict[str, Any] = {"waiver": WAIVER}
LOST = Lost(hosts=("n3",), message="n3 was given up by Slurm: it is down")


def of_status(status: str, **changes: Any) -> dict[str, Any]:
    return {"record": {"status": status}} | changes


class Run(NamedTuple):
    """What a run found, the nodes of it, and which of them are drained, looked at, accepted, or none."""

    outcome: RunOutcome
    verdicts: Sequence[Verdict]
    expected: str
    hosts: Sequence[str] = NODES
    given: Mapping[str, Any] = {}


RUNS: dict[str, Run] = {
    "GPU and node": Run("rejected", [failed(gpu("n1")), failed(node("n3"))], "drain n1, drain n3"),
    "not inspected for the same": Run(
        "rejected", [failed(gpu("n2")), failed(gpu("n2"), outcome="inconclusive", **OTHER)], "drain n2"
    ),
    "only a warning": Run("rejected", [failed(gpu("n1")), failed(node("n2"), severity="warn")], "drain n1, look n2"),
    "undecided": Run("rejected", [failed(gpu("n1")), failed(node("n2"), outcome="inconclusive")], "drain n1, look n2"),
    "an error": Run("rejected", [failed(gpu("n1")), failed(node("n2"), outcome="error")], "drain n1, look n2"),
    "waived": Run("rejected", [failed(gpu("n1"), **OTHER), failed(gpu("n2"), **WAIVED)], "drain n1, look n2"),
    "incomplete": Run("incomplete", [failed(node("n2"), outcome="error")], "look -, look n2"),
    "partial": Run("partial", [failed(node("n2"), severity="warn")], "look -, look n2"),
    "a link": Run("rejected", [failed(link("n2", "n9"))], "look -, look n2"),  # neither end
    "nobody": Run("rejected", [failed()], "look -"),
    "suspects": Run("rejected", [failed(maybe(node("n1")), maybe(gpu("n2")))], "look -, look n1, look n2"),
    "a shared loss": Run("rejected", [failed(*(alone(one, 90.0, 91.0) for one in NODES), **ALIKE)], "look -"),
    "two of three lose": Run(
        "rejected", [failed(alone("n1", 80.0, 90.0), alone("n2", 80.0, 90.0), **ALIKE)], "look -, look n1, look n2"
    ),
    "two of three lose, one is open": Run(
        "rejected", [failed(alone("n1", 80.0, 81.0), alone("n2", 81.0, 80.0), bound={"at_least": 90.0}, **OPEN)],
        "look -",
    ),
    "a shared loss of GPUs": Run("rejected", [failed(replace(maybe(gpu("n1")), because=NEAR), **ALIKE)], "look -"),
    "two of three lose alike": Run(
        "rejected", [failed(alone("n1", 80.0, 81.0), alone("n2", 81.0, 80.0), bound={"at_least": 90.0}, **MOST)],
        "look -, look n1, look n2",
    ),
    "two of three hardly lose": Run(
        "rejected", [failed(alone("n1", 80.0, 81.0), alone("n2", 81.0, 80.0), bound={"at_least": 82.0}, **MOST)],
        "look -",
    ),
    "the only node": Run("rejected", [failed(), failed(**OTHER)], "drain n2", ["n2"]),
    "the only node, suspected": Run("rejected", [failed(maybe(node("n2")), **CHECK)], "drain n2, look n2", ["n2"]),
    "one of two, surveyed": Run(
        "rejected", [failed(maybe(node("n2")), **CHECK)], "look -, look n2", ["n1"], {"tested": {"n2": (SURVEY,)}}
    ),
    "accepted": Run("accepted", [], "accepted n1, accepted n3", NODES, {"tested": {"n2": (SURVEY, PROBES)}}),
    "lost": Run("rejected", [failed()], "look -, look n3", NODES, {"records": [LOST]}),
    "interrupted": Run("rejected", [failed(node("n1"))], "look -, look n1", NODES, of_status("interrupted")),
    "running": Run("accepted", [failed(node("n1"), severity="warn")], "look -, look n1", NODES, of_status("running")),
    "imported": Run("rejected", [failed(node("n1"))], "none -", NODES, of_status("imported")),
    "once simulated": Run("rejected", [failed(node("n1"))], "none -", NODES, {"record": {"simulated": True}}),
    "of simulated devices": Run("rejected", [failed(node("n1"))], "none -", NODES, {"device": "SIM-{}"}),
    "accepted with a waiver": Run(
        "accepted_with_waivers", [failed(gpu("n2"), **WAIVED)], "accepted n1, accepted n3, look n2"
    ),
    "a waiver of nobody": Run("accepted_with_waivers", [failed(**WAIVED)], "look -"),
    "gaps allowed": Run("accepted", [], "none -", NODES, {"record": {"argv": ["pytest", "--ddp-allow-incomplete"]}}),
    "resumed": Run("accepted", [], "none -", NODES, {"record": {"resumed": [RESUMED]}}),
}  # fmt: skip


def said(*runs: Path) -> list[str]:
    """Use and host of every finding."""
    return [f"{one.use} {one.host}" for one in settled([one for run in runs for one in read_findings(run)])]


@pytest.mark.parametrize("name", RUNS)
def test_hosts_are_drained_accepted_or_looked_at(tmp_path: Path, name: str) -> None:
    run = RUNS[name]
    path = write_judged_run(tmp_path / "r", run.outcome, run.hosts, run.verdicts, **run.given)
    assert ", ".join(said(path)) == run.expected


STANDSTILLS = {
    "rank 3 on n2 is stopped (SIGSTOP, or a debugger) in timed block (study weak/r)\nits last output:\n  …": "n2",
    "rank 3 on n2, waiting for a device or a disk, is furthest behind of 4 ranks, in timed block": "n2",
    "rank 1 on n1, rank 3 on n2 are furthest behind of 4 ranks: at least one of them is stuck": "n1 n2",
    "rank 3 on n2 has not begun to connect a communicator, for which rank 1 on n1 waits, in warm-up": "n2",
    "the agents on n1, n3 sent nothing meanwhile: stopped, or the node or its link is down": "n1 n3",
    "1 of 4 ranks has not come up: local rank 1 on n2, still importing torch? Look at the file system": "n2",
    "all ranks are stuck in timed block": "",
}


@pytest.mark.parametrize("standstill", STANDSTILLS)
def test_nodes_of_ranks_that_held_up_all_are_looked_at(tmp_path: Path, standstill: str) -> None:
    why = f"ranks recorded nothing for 15 s (--ddp-inactivity-limit), so the gang was ended. {standstill}"
    ends = [StudyEnd("weak/r", "error", why), StudyEnd("weak/s", "error", "rank 1 on n1 failed: ValueError: no")]
    path = write_judged_run(tmp_path / "r", "incomplete", NODES, [failed(outcome="error")], records=ends)
    first, *found = read_findings(path)
    assert " ".join(one.host for one in found) == STANDSTILLS[standstill]
    assert first.use == ("look" if found else "none")
    assert all(standstill.partition("\n")[0] in one.evidence for one in found)


@pytest.mark.parametrize(("outcome", "hosts", "tested", "use"), [
    ("accepted", ["n1"], {}, "look"), ("accepted", ["n2"], {}, "drain"),
    ("accepted", ["n1"], {"n1": (SURVEY,)}, "drain"),
    ("partial", ["n1"], {}, "drain"), ("rejected", ["n1"], {}, "drain"),
])  # fmt: skip
def test_only_a_later_run_that_accepts_a_node_leaves_it_to_a_person(
    tmp_path: Path, outcome: RunOutcome, hosts: Sequence[str], tested: Any, use: str
) -> None:
    rejected = [failed(node("n1"))]
    old = write_judged_run(tmp_path / "old", "rejected", ["n1", "n2"], rejected)
    met = replace(rejected[0], outcome="passed", culprits=())
    after = rejected if outcome == "rejected" else [met]
    new = write_judged_run(tmp_path / "new", outcome, hosts, after, started_unix_s=LATER, tested=tested)
    assert said(old, new)[0] == f"{use} n1"
    assert f"{use} n1" in said(new, old), "whatever is read first"
    before = write_judged_run(tmp_path / "before", outcome, hosts, after, started_unix_s=STARTED_UNIX_S - 60)
    assert said(before, old)[-1] == "drain n1", "an earlier run excuses nobody"
    other = write_judged_run(tmp_path / "other", "accepted", ["n1"], [replace(met, id="x")], started_unix_s=LATER)
    assert said(old, other)[0] == "drain n1", "it was not asked for what failed"


def test_a_node_that_was_rejected_since_is_not_accepted(tmp_path: Path) -> None:
    accepted = write_judged_run(tmp_path / "old", "accepted", ["n1", "n2"])
    rejected = write_judged_run(tmp_path / "new", "rejected", ["n2"], [failed()], started_unix_s=LATER)
    assert said(accepted, rejected) == ["accepted n1", "look n2", "drain n2"]


def test_a_run_that_was_not_judged_is_refused(tmp_path: Path) -> None:
    run = write_judged_run(tmp_path / "r", "accepted", NODES)
    (run / "verdicts.json").unlink()
    with pytest.raises(RunDirectoryError, match=f"was never judged.*--ddp-judge={run}"):
        read_findings(run)


def finding(evidence: str, run: Path = Path("/runs/nightly/2026-01-31/n7")) -> HostFinding:
    return HostFinding("drain", "n7", evidence, run=run, started_unix_s=STARTED_UNIX_S)


@given(st.text(max_size=400), st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=200))
def test_any_reason_is_safe_to_hand_to_slurm(evidence: str, name: str) -> None:
    reason = finding(evidence, Path("/runs") / name).reason
    assert reason.startswith(REASON_PREFIX)
    assert len(reason) <= MOST_REASON_CHARACTERS
    assert reason.isascii()
    assert reason.isprintable()
    assert not set(reason) & set("\"'`\\$|<>")


def test_what_is_said_of_hosts_was_approved(tmp_path: Path) -> None:
    """Of one host all devices; a drained one once, with what else it is named for."""
    reason = finding("slow " * 100).reason
    assert len(reason) == MOST_REASON_CHARACTERS
    assert reason.endswith("... [2026-01-31/n7]")
    runs = {
        "named": (NODES, [
            failed(gpu("n1")), failed(gpu("n1"), metric="exposed_communication"), failed(gpu("n1", index=4)),
            failed(maybe(node("n1")), severity="warn"), failed(link("n2", "n9")), failed(gpu("n3"), **WAIVED),
        ]),
        "unsure": (NODES, [failed(maybe(node("n1")))]),
        "alone": (["n2"], [failed(), failed(**OTHER)]),
        "waived": (NODES, [failed(**WAIVED)]),
        "lost": (NODES, [failed()]),
    }  # fmt: skip
    found: list[HostFinding] = []
    for name, (hosts, verdicts) in runs.items():
        outcome: RunOutcome = "accepted_with_waivers" if name == "waived" else "rejected"
        records = [LOST] * (name == "lost")
        found += read_findings(write_judged_run(tmp_path / "night" / name, outcome, hosts, verdicts, records=records))
    assert_approved("culprits.txt", masked("\n".join([*text_lines(found), "", *tsv_lines(found)]), tmp_path))


def test_every_line_for_scripts_has_five_fields_whatever_is_in_them() -> None:
    hostile = HostFinding("drain", HOSTILE + "\t", HOSTILE, run=Path("/runs") / "a\tb\n", started_unix_s=STARTED_UNIX_S)
    empty = HostFinding("look", "", "", run=Path("/runs/r"))
    lines = list(tsv_lines([hostile, empty]))
    assert lines[0].split("\t") == list(TSV_HEADER)
    for line in lines[1:]:
        assert len(line.split("\t")) == len(TSV_HEADER)
        assert all(field and "\n" not in field for field in line.split("\t"))


def test_a_rehearsal_tells_of_a_simulated_run_as_if_it_had_been_measured_and_of_no_other(tmp_path: Path) -> None:
    simulated = {"status": "simulated", "simulated": True}
    run = write_judged_run(tmp_path / "r", "rejected", NODES, [failed(gpu("n2"))], record=simulated)
    [found] = read_findings(run, rehearses=True)
    assert (found.use, found.host) == ("drain", "n2")
    [found] = read_findings(run)
    assert found.evidence == "SIMULATED: no machine was measured"
    measured = write_judged_run(tmp_path / "m", "rejected", NODES, [failed(gpu("n2"))])
    with pytest.raises(OptionError, match=r"--rehearse: found .*, a run of a real machine; expected simulated runs"):
        read_findings(measured, rehearses=True)
