"""Whom runs reject, accept, or want looked at: what drains nodes acts on exactly this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

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
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.coverage import PROBES, SURVEY
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.records import Lost, StudyEnd
from pytest_ddpscale.run.run_json import Resumed
from pytest_ddpscale.run.verdicts import Culprit, Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.approved import assert_approved, masked
from tests.builders.culprits import gpu, link, node
from tests.builders.judgements import HOSTILE
from tests.report.judged import STARTED_UNIX_S, failed, write_judged_run

LATER, EARLIER = {"started_unix_s": STARTED_UNIX_S + 3600}, {"started_unix_s": STARTED_UNIX_S - 60}
RESUMED_AT = Resumed(at="2026-01-31T12:00:00+00:00", argv=(), status_before="interrupted", measured_anew={})


def alone(host: str, value: str, median: str) -> Culprit:
    """A suspected node, by its value beside the median of 2 others."""
    why = because("node-alone", "throughput_per_gpu", float(value), "img/s", 2, float(median))
    return replace(node(host, is_certain=False), because=why)


WHO: dict[str, Callable[..., Culprit]] = {
    "gpu": gpu, "gpu4": partial(gpu, index=4), "node": node, "link": link, "alone": alone,
    "gpu?": partial(gpu, is_certain=False), "node?": partial(node, is_certain=False),
}  # fmt: skip
# What a requirement changes.
WARNS = {"severity": "warn"}
UNDECIDED, BROKEN, MET = ({"outcome": outcome} for outcome in ("inconclusive", "error", "passed"))
EXPOSED, OTHER = {"metric": "exposed_communication"}, {"metric": "step_time_p95", "bound": {"at_most": 0.1}}
WAIVED = {"waiver": Waiver("A. Name", "a fan is ordered", date(2026, 12, 31))}
ALIKE = {"remarks": (because("most-fail-alike", 3, 3, "nodes"),)}
NEAR = because("all-may-be-slow", because("misses", "p", 1, 1, "GPUs", 80.0, "memory-copy", 81.0), 0.1)
ALIKE_GPUS = ALIKE | {"culprits": (replace(gpu("n1", is_certain=False), because=NEAR),)}
MOST, MOST_OPEN = ({"remarks": (because("most-fail-alike", 2, 3, "nodes", failed),)} for failed in (1, 0))
AT_90, AT_82 = ({"bound": {"at_least": bound}} for bound in (90.0, 82.0))
ECC = {"metric": "node_check", "id": "node_check[ecc]", "workload": "ecc", "world_size": 1, "bound": {"at_least": 1}}
# What a run changes.
ON_N1, ON_N2, ON_BOTH = ({"hosts": hosts} for hosts in (["n1"], ["n2"], ["n1", "n2"]))
SURVEYED_N1, SURVEYED_N2 = ({"tested": {host: (SURVEY, PROBES)}} for host in ("n1", "n2"))
INTERRUPTED, RUNNING, IMPORTED = ({"record": {"status": status}} for status in ("interrupted", "running", "imported"))
ONCE_SIMULATED, SIMULATED = {"record": {"simulated": True}}, {"record": {"status": "simulated", "simulated": True}}
SIMULATED_GPUS, RESUMED = {"device": "SIM-{}"}, {"record": {"resumed": [RESUMED_AT]}}
GAPS_ALLOWED = {"record": {"argv": ["pytest", "--ddp-allow-incomplete"]}}
LOST_N3 = {"records": [Lost(hosts=("n3",), message="n3 was given up by Slurm: it is down")]}


def required(line: str) -> Verdict:
    """A requirement that fails: who is named as ``node:n1``, or ``node?:n1`` if only suspected, and what it changes."""
    culprits, changes = [], dict[str, Any]()
    for word in line.split():
        kind, *of = word.split(":")
        if of:
            culprits.append(WHO[kind](*of))
        else:
            changes |= globals()[word]
    return failed(**{"culprits": tuple(culprits), **changes})


def run_of(path: Path, line: str, **further: Any) -> Path:
    """A run of n1, n2 and n3: its outcome and what it changes, then its requirements, after a ``;`` each."""
    run, *verdicts = line.split(";")
    outcome, *changes = run.split()
    given: dict[str, Any] = {"hosts": ("n1", "n2", "n3"), **further}
    for word in changes:
        given |= globals()[word]
    return write_judged_run(path, outcome, verdicts=[*map(required, verdicts)], **given)  # type: ignore[arg-type]


# Which nodes are drained, looked at, accepted, or none.
RUNS = {
    "rejected; gpu:n1; node:n3": "drain n1, drain n3",
    "rejected; gpu:n2; gpu:n2 UNDECIDED OTHER": "drain n2",  # and not inspected for the same
    "rejected; gpu:n1; node:n2 WARNS": "drain n1, look n2",
    "rejected; gpu:n1; node:n2 UNDECIDED": "drain n1, look n2",
    "rejected; gpu:n1; node:n2 BROKEN": "drain n1, look n2",
    "rejected; gpu:n1 OTHER; gpu:n2 WAIVED": "drain n1, look n2",
    "incomplete; node:n2 BROKEN": "look -, look n2",
    "partial; node:n2 WARNS": "look -, look n2",
    "rejected; link:n2:n9": "look -, look n2",  # neither end
    "rejected;": "look -",
    "rejected; node?:n1 gpu?:n2": "look -, look n1, look n2",
    # a loss that all share, or two of three nodes
    "rejected; alone:n1:90:91 alone:n2:90:91 alone:n3:90:91 ALIKE": "look -",
    "rejected; ALIKE_GPUS": "look -",
    "rejected; alone:n1:80:90 alone:n2:80:90 ALIKE": "look -, look n1, look n2",
    "rejected; alone:n1:80:81 alone:n2:81:80 AT_90 MOST_OPEN": "look -",
    "rejected; alone:n1:80:81 alone:n2:81:80 AT_90 MOST": "look -, look n1, look n2",
    "rejected; alone:n1:80:81 alone:n2:81:80 AT_82 MOST": "look -",
    # the only node
    "rejected ON_N2;; OTHER": "drain n2",
    "rejected ON_N2; node?:n2 ECC": "drain n2, look n2",
    "rejected ON_N1 SURVEYED_N2; node?:n2 ECC": "look -, look n2",
    "accepted SURVEYED_N2": "accepted n1, accepted n3",
    "rejected LOST_N3;": "look -, look n3",
    "rejected INTERRUPTED; node:n1": "look -, look n1",
    "accepted RUNNING; node:n1 WARNS": "look -, look n1",
    "rejected IMPORTED; node:n1": "none -",
    "rejected ONCE_SIMULATED; node:n1": "none -",
    "rejected SIMULATED_GPUS; node:n1": "none -",
    "accepted_with_waivers; gpu:n2 WAIVED": "accepted n1, accepted n3, look n2",
    "accepted_with_waivers; WAIVED": "look -",
    "accepted GAPS_ALLOWED": "none -",
    "accepted RESUMED": "none -",
}


def said(*runs: Path) -> list[str]:
    """Use and host of every finding."""
    return [f"{one.use} {one.host}" for one in settled([one for run in runs for one in read_findings(run)])]


@pytest.mark.parametrize("line", RUNS)
def test_hosts_are_drained_accepted_or_looked_at(tmp_path: Path, line: str) -> None:
    assert ", ".join(said(run_of(tmp_path / "r", line))) == RUNS[line]


PLACE = because("in-phase", "timed block", "weak/r", None, False)
STANDSTILLS = {
    because("quoted", (because("stuck-in-kernel", ("rank 3 on n2",), PLACE),), ("…",), ()): "n2",
    because("stuck-behind", ("rank 1 on n1", "rank 3 on n2"), 4, "", PLACE): "n1 n2",
    because("quoted", (because("stuck-connecting", ("rank 3 on n2",), ("rank 1 on n1",), PLACE),), (), ()): "n2",
    because("stuck-agents", ("n1", "n3")): "n1 n3",
    because("stuck-absent", ("local rank 1 on n2",), 4): "n2",
    because("all-stuck", ("timed block",)): "",
}


@pytest.mark.parametrize("standstill", STANDSTILLS)
def test_nodes_of_ranks_that_held_up_all_are_looked_at(tmp_path: Path, standstill: Reason) -> None:
    why = because("both", because("both", because("nothing-recorded", 15.0, True), standstill, "."), "A step is left")
    ends = [StudyEnd("weak/r", "error", why), StudyEnd("weak/s", "error", "rank 1 on n1 failed: ValueError: no")]
    first, *found = read_findings(run_of(tmp_path / "r", "incomplete; BROKEN", records=ends))
    assert " ".join(one.host for one in found) == STANDSTILLS[standstill]
    assert first.use == ("look" if found else "none")
    assert all(say(why).partition("\n")[0] in one.evidence for one in found)


@pytest.mark.parametrize(("since", "use"), [
    ("accepted ON_N1 LATER; MET", "look"), ("accepted ON_N2 LATER; MET", "drain"),
    ("accepted ON_N1 LATER SURVEYED_N1; MET", "drain"), ("partial ON_N1 LATER; MET", "drain"),
    ("rejected ON_N1 LATER; node:n1", "drain"), ("accepted ON_N1 EARLIER; MET", "drain"),
    ("accepted ON_N1 LATER; MET EXPOSED", "drain"),  # it was not asked for what failed
])  # fmt: skip
def test_only_a_later_run_that_accepts_a_node_leaves_it_to_a_person(tmp_path: Path, since: str, use: str) -> None:
    old, new = run_of(tmp_path / "old", "rejected ON_BOTH; node:n1"), run_of(tmp_path / "new", since)
    assert said(old, new)[0] == f"{use} n1"
    assert f"{use} n1" in said(new, old), "whatever is read first"


def test_a_node_that_was_rejected_since_is_not_accepted(tmp_path: Path) -> None:
    runs = run_of(tmp_path / "old", "accepted ON_BOTH"), run_of(tmp_path / "new", "rejected ON_N2 LATER;")
    assert said(*runs) == ["accepted n1", "look n2", "drain n2"]


def test_a_run_that_was_not_judged_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", "accepted")
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
        "named": "rejected; gpu:n1; gpu:n1 EXPOSED; gpu4:n1; node?:n1 WARNS; link:n2:n9; gpu:n3 WAIVED",
        "unsure": "rejected; node?:n1",
        "alone": "rejected ON_N2;; OTHER",
        "waived": "accepted_with_waivers; WAIVED",
        "lost": "rejected LOST_N3;",
    }
    found = [one for name, line in runs.items() for one in read_findings(run_of(tmp_path / "night" / name, line))]
    assert_approved("culprits.txt", masked("\n".join([*text_lines(found), "", *tsv_lines(found)]), tmp_path))


def test_every_line_for_scripts_has_five_fields_whatever_is_in_them() -> None:
    hostile = HostFinding("drain", HOSTILE + "\t", HOSTILE, run=Path("/runs") / "a\tb\n", started_unix_s=STARTED_UNIX_S)
    empty = HostFinding("look", "", "", run=Path("/runs/r"))
    for line in tsv_lines([hostile, empty]):
        assert len(line.split("\t")) == len(TSV_HEADER)
        assert all(field and "\n" not in field for field in line.split("\t"))


def test_a_rehearsal_tells_of_a_simulated_run_as_if_it_had_been_measured_and_of_no_other(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", "rejected SIMULATED; gpu:n2")
    [found] = read_findings(run, rehearses=True)
    assert (found.use, found.host) == ("drain", "n2")
    [found] = read_findings(run)
    assert found.evidence == "SIMULATED: no machine was measured"
    with pytest.raises(OptionError, match=r"--rehearse: found .*, a run of a real machine; expected simulated runs"):
        read_findings(run_of(tmp_path / "m", "rejected; gpu:n2"), rehearses=True)
