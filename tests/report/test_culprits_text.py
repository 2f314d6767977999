"""Whom runs reject, accept, or want looked at: what drains nodes acts on exactly this."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import OptionError, RunDirectoryError
from pytest_ddpscale.report.culprits_text import (
    MOST_REASON_CHARACTERS,
    REASON_PREFIX,
    TSV_HEADER,
    HostFinding,
    read_findings,
    settled,
    text_lines,
    tsv_lines,
)
from pytest_ddpscale.run.records import Lost, StudyEnd
from pytest_ddpscale.run.run_json import Resumed
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import RunOutcome, Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.approved import assert_approved, masked
from tests.builders.culprits import gpu, link, node
from tests.builders.judgements import HOSTILE
from tests.report.judged import STARTED_UNIX_S, failed, write_judged_run

NODES = ("n1", "n2", "n3")
LATER = STARTED_UNIX_S + 3600
WAIVER = Waiver("A. Name", "a fan is ordered", date(2026, 12, 31))


# Of a requirement that is missed by a run with this outcome.
SEVERITY = {"rejected": "fail", "accepted": "warn"}


def passed(metric: str = "weak_scaling_efficiency", **changes: Any) -> Verdict:
    """The same requirement as `failed` has, kept."""
    return failed(metric=metric, **{"outcome": "passed", "value": 0.97, **changes})


def said(*runs: Path) -> list[tuple[str, str]]:
    """Use and host of every finding."""
    return [(finding.use, finding.host) for finding in settled([read_findings(run) for run in runs])]


def finding(evidence: str, run: Path = Path("/runs/nightly/2026-01-31/n7")) -> HostFinding:
    return HostFinding("drain", "n7", evidence, run=run, started_unix_s=STARTED_UNIX_S)


def test_only_those_who_certainly_made_a_run_fail_are_drained(tmp_path: Path) -> None:
    two = [("drain", "n1"), ("look", "n2")]
    undecided = failed(gpu("n2"), metric="exposed_communication", outcome="inconclusive")
    rows: list[tuple[RunOutcome, list[Verdict], list[tuple[str, str]]]] = [
        ("rejected", [failed(gpu("n1")), failed(node("n3"))], [("drain", "n1"), ("drain", "n3")]),
        ("rejected", [failed(gpu("n2")), undecided], [("drain", "n2")]),  # not inspected for the same
        ("rejected", [failed(gpu("n1")), failed(node("n2"), severity="warn")], two),
        ("rejected", [failed(gpu("n1")), failed(node("n2"), outcome="inconclusive")], two),
        ("rejected", [failed(gpu("n1")), failed(node("n2"), outcome="error")], two),
        ("rejected", [failed(gpu("n1")), failed(node("n2"), outcome="passed")], two),
        ("incomplete", [failed(node("n2"), outcome="error")], [("look", "-"), ("look", "n2")]),
        ("partial", [failed(node("n2"), severity="warn")], [("look", "-"), ("look", "n2")]),
        ("rejected", [failed(link("n2", "n9"))], [("look", "-"), ("look", "n2")]),  # neither end
        ("rejected", [failed()], [("look", "-")]),  # of several nodes, with nobody named
        (
            "rejected",
            [failed(gpu("n1"), metric="device_utilization"), failed(gpu("n2"), waiver=WAIVER)],
            [("drain", "n1"), ("look", "n2")],
        ),
    ]
    for number, (outcome, verdicts, expected) in enumerate(rows):
        assert said(write_judged_run(tmp_path / str(number), outcome, NODES, verdicts)) == expected, verdicts


def test_a_rejected_run_on_one_node_drains_it_with_nobody_named(tmp_path: Path) -> None:
    verdicts = [failed(), failed(metric="exposed_communication", bound={"at_most": 0.1})]
    [found] = read_findings(write_judged_run(tmp_path / "r", "rejected", ["n2"], verdicts)).findings
    assert (found.use, found.host) == ("drain", "n2")
    assert found.evidence == "weak_scaling_efficiency resnet152-fp16-8gpu 71.0 %, bound ≥ 96.0 % and 1 more failed"


RESUMED = Resumed(at="2026-01-31T12:00:00+00:00", argv=(), status_before="interrupted", measured_anew={})


def test_the_only_node_is_drained_although_no_rank_came_up_on_it(tmp_path: Path) -> None:
    of_a_check = failed(replace(node("n2"), is_certain=False), metric="node_check", bound={"at_least": 1})
    run = write_judged_run(tmp_path / "r", "rejected", [], [of_a_check], records=[Survey("n2", 1.0)])
    assert said(run) == [("drain", "n2"), ("look", "n2")]


def test_what_one_of_two_nodes_was_looked_at_for_does_not_drain_the_one_that_was_measured(tmp_path: Path) -> None:
    of_a_check = failed(replace(node("n2"), is_certain=False), metric="node_check", bound={"at_least": 1})
    surveys = [Survey(host, 1.0) for host in ("n1", "n2")]
    run = write_judged_run(tmp_path / "r", "rejected", ["n1"], [of_a_check], records=surveys)
    assert said(run) == [("look", "-"), ("look", "n2")]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"status": "imported"}, "imported: measured by another tool"),
        ({"status": "simulated"}, "SIMULATED: no machine was measured"),
        ({"simulated": True}, "SIMULATED: no machine was measured"),
        ({}, "SIMULATED: no machine was measured"),  # by its devices
    ],
)
@pytest.mark.parametrize("outcome", ["rejected", "accepted"])
def test_nothing_follows_from_what_is_no_finished_measurement(
    tmp_path: Path, outcome: RunOutcome, record: dict[str, Any], why: str
) -> None:
    missed = failed(node("n1"), severity=SEVERITY[outcome])
    device = "GPU-{}" if record else "SIM-{}"
    run = write_judged_run(tmp_path / "r", outcome, ["n1"], [missed], record=record, device=device)
    [found] = read_findings(run).findings
    assert (found.use, found.host) == ("none", "-")
    assert found.evidence.startswith(why)


@pytest.mark.parametrize("status", ["interrupted", "running"])
@pytest.mark.parametrize("outcome", ["rejected", "accepted"])
def test_an_unfinished_run_has_whom_it_names_looked_at_and_rejects_nobody(
    tmp_path: Path, outcome: RunOutcome, status: str
) -> None:
    record = {"status": status}
    of_it, of_nobody = failed(node("n1"), severity=SEVERITY[outcome]), failed(severity=SEVERITY[outcome])
    named = write_judged_run(tmp_path / "named", outcome, ["n1"], [of_it], record=record)
    assert said(named) == [("look", "-"), ("look", "n1")]
    nobody = write_judged_run(tmp_path / "nobody", outcome, ["n1"], [of_nobody], record=record)
    [found] = read_findings(nobody).findings
    assert (found.use, found.host) == ("none", "-")
    assert found.evidence.startswith(f"its status is {status}: an unfinished run")


@pytest.mark.parametrize(
    ("outcome", "status"), [("incomplete", "finished"), ("incomplete", "running"), ("rejected", "finished")]
)
def test_nodes_that_were_lost_are_named_for_a_person(tmp_path: Path, outcome: RunOutcome, status: str) -> None:
    verdict = failed(outcome="failed" if outcome == "rejected" else "error")
    lost = Lost(hosts=("n3",), message="n3 was given up by Slurm: it is down")
    path = write_judged_run(tmp_path / "r", outcome, NODES, [verdict], record={"status": status}, records=[lost])
    assert said(path) == [("look", "-"), ("look", "n3")]
    lines = list(text_lines(read_findings(path).findings))
    assert lines[1].startswith("n3: inspect: lost: n3 was given up by Slurm: it is down [")
    assert not any("nothing to do" in line for line in lines)


@pytest.mark.parametrize(
    ("standstill", "hosts"),
    [
        (
            "rank 3 on n2 is stopped (SIGSTOP, or a debugger) in timed block (study weak/r)\nits last output:\n  …",
            ["n2"],
        ),
        ("rank 3 on n2, waiting for a device or a disk, is furthest behind of 4 ranks, in timed block", ["n2"]),
        ("rank 1 on n1, rank 3 on n2 are furthest behind of 4 ranks: at least one of them is stuck", ["n1", "n2"]),
        ("rank 3 on n2 has not begun to connect a communicator, for which rank 1 on n1 waits, in warm-up", ["n2"]),
        ("the agents on n1, n3 sent nothing meanwhile: stopped, or the node or its link is down", ["n1", "n3"]),
        ("1 of 4 ranks has not come up: local rank 1 on n2, still importing torch? Look at the file system", ["n2"]),
        ("all ranks are stuck in timed block", []),
    ],
)
def test_nodes_of_ranks_that_held_up_all_are_named_for_a_person(
    tmp_path: Path, standstill: str, hosts: list[str]
) -> None:
    ended = "ranks recorded nothing for 15 s (--ddp-inactivity-limit), so the gang was ended."
    end = StudyEnd("weak/r", "error", f"{ended} {standstill}")
    path = write_judged_run(tmp_path / "r", "incomplete", NODES, [failed(outcome="error")], records=[end])
    found = read_findings(path).findings
    assert [one.host for one in found if one.use == "look" and one.host != "-"] == hosts
    assert all(standstill.partition("\n")[0] in one.evidence for one in found[1:])


def test_a_rank_that_fails_by_itself_has_no_node_looked_at(tmp_path: Path) -> None:
    end = StudyEnd("weak/r", "error", "rank 1 on n1 failed in training: ValueError: no")
    path = write_judged_run(tmp_path / "r", "incomplete", NODES, [failed(outcome="error")], records=[end])
    assert said(path) == [("none", "-")]


def test_an_accepted_run_accepts_the_hosts_it_measured(tmp_path: Path) -> None:
    run = write_judged_run(tmp_path / "r", "accepted", NODES, measured=["n1", "n3", "n3"])
    assert said(run) == [("accepted", "n1"), ("accepted", "n3")]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"argv": ["pytest", "--gpu-sku=b200", "--ddp-allow-incomplete"]}, "--ddp-allow-incomplete was given"),
        ({"resumed": [RESUMED]}, "it was resumed"),
    ],
)
def test_an_acceptance_with_gaps_or_on_changing_nodes_accepts_nobody(
    tmp_path: Path, record: dict[str, Any], why: str
) -> None:
    run = write_judged_run(tmp_path / "r", "accepted", NODES, record=record)
    [found] = read_findings(run).findings
    assert (found.use, found.host) == ("none", "-")
    assert found.evidence.startswith(f"accepted, but {why}")


@pytest.mark.parametrize("outcome", ["accepted", "partial"])
def test_a_later_run_that_found_nothing_keeps_a_node_from_being_drained(tmp_path: Path, outcome: RunOutcome) -> None:
    rejected = write_judged_run(tmp_path / "old", "rejected", NODES, [failed(node("n1")), failed(node("n2"))])
    later = write_judged_run(tmp_path / "new", outcome, ["n2"], [passed()], started_unix_s=LATER)
    assert said(rejected, later)[:2] == [("drain", "n1"), ("look", "n2")]
    assert said(later, rejected)[-2:] == [("drain", "n1"), ("look", "n2")]


@pytest.mark.parametrize(
    ("verdicts", "arms"),
    [
        ([], ["ddp@8"]),
        ([passed("memory_spread")], ["ddp@8"]),  # another requirement
        ([passed(world_size=16, id="weak_scaling_efficiency[resnet152-fp16-16gpu]")], ["ddp@16"]),
        ([passed()], ["alone"]),  # kept by other nodes
        ([passed(outcome="inconclusive", severity="warn")], ["ddp@8"]),
    ],
    ids=["nothing", "another metric", "another size", "elsewhere", "undecided"],
)
def test_a_later_run_that_did_not_judge_the_same_of_a_node_leaves_it_drained(
    tmp_path: Path, verdicts: list[Verdict], arms: list[str]
) -> None:
    rejected = write_judged_run(tmp_path / "old", "rejected", NODES, [failed(node("n1"))])
    later = write_judged_run(tmp_path / "new", "partial", NODES, verdicts, started_unix_s=LATER, arms=arms)
    assert said(rejected, later)[0] == ("drain", "n1")


@pytest.mark.parametrize(("metric", "arms", "changes"), [
    ("rank_uniformity", ["each@8"], {"bound": {"at_most": 1.05}}),  # of a compiled model
    ("inference_throughput", ["infer@1"], {"world_size": 1}),
    ("throughput_per_gpu", ["ddp@1"], {"world_size": 1, "one_gpu": "ddp"}),
    ("throughput_per_gpu", ["ddp@16-spread"], {"world_size": 16, "placement": "spread"}),
])  # fmt: skip
def test_a_requirement_is_kept_later_on_by_the_arm_that_measures_it(
    tmp_path: Path, metric: str, arms: list[str], changes: dict[str, Any]
) -> None:
    rejected = write_judged_run(tmp_path / "old", "rejected", NODES, [failed(node("n1"), metric=metric, **changes)])
    for by, use in ((arms, "look"), (["alone"], "drain")):
        new = tmp_path / by[0]
        later = write_judged_run(new, "partial", NODES, [passed(metric, **changes)], started_unix_s=LATER, arms=by)
        assert said(rejected, later)[0] == (use, "n1")


@pytest.mark.parametrize("hosts", [["n1"], ["n1", "n2"]], ids=["alone", "named"])
def test_all_that_rejected_a_node_has_to_be_kept_later_on(tmp_path: Path, hosts: list[str]) -> None:
    culprits = [node("n1")] if len(hosts) > 1 else []
    verdicts = [failed(*culprits), failed(*culprits, metric="step_time_p95", bound={"at_most": 0.1})]
    rejected = write_judged_run(tmp_path / "old", "rejected", hosts, verdicts)
    half = write_judged_run(tmp_path / "half", "partial", hosts, [passed()], started_unix_s=LATER)
    both = [passed(), passed("step_time_p95")]
    whole = write_judged_run(tmp_path / "whole", "partial", hosts, both, started_unix_s=LATER)
    assert said(rejected, half)[0] == ("drain", "n1")
    assert said(rejected, whole)[0] == ("look", "n1")


def test_who_is_not_certain_to_be_at_fault_is_for_a_person(tmp_path: Path) -> None:
    unsure = [replace(culprit, is_certain=False) for culprit in (node("n1"), gpu("n2"))]
    run = write_judged_run(tmp_path / "r", "rejected", NODES, [failed(*unsure)])
    assert said(run) == [("look", "-"), ("look", "n1"), ("look", "n2")]
    assert read_findings(run).findings[0].evidence.endswith("but no node or GPU is certain to be at fault")


@pytest.mark.parametrize("outcome", ["accepted", "partial"])
def test_an_earlier_run_excuses_nobody(tmp_path: Path, outcome: RunOutcome) -> None:
    earlier = write_judged_run(tmp_path / "old", outcome, ["n2"])
    rejected = write_judged_run(tmp_path / "new", "rejected", ["n2"], [failed()], started_unix_s=LATER)
    assert ("drain", "n2") in said(earlier, rejected)


def test_a_host_of_a_waived_failure_is_neither_drained_nor_accepted(tmp_path: Path) -> None:
    verdicts = [passed(), failed(gpu("n2"), waiver=WAIVER)]
    run = write_judged_run(tmp_path / "r", "accepted_with_waivers", NODES, verdicts)
    assert said(run) == [("accepted", "n1"), ("accepted", "n3"), ("look", "n2")]
    evidence = read_findings(run).findings[-1].evidence
    assert evidence.endswith(
        "(weak_scaling_efficiency[resnet152-fp16-8gpu], waived by A. Name until 2026-12-31: a fan is ordered)"
    )


def test_a_waived_failure_that_names_nobody_accepts_no_host(tmp_path: Path) -> None:
    run = write_judged_run(tmp_path / "r", "accepted_with_waivers", NODES, [passed(), failed(waiver=WAIVER)])
    [found] = read_findings(run).findings
    assert (found.use, found.host) == ("look", "-")
    assert found.evidence.startswith("ACCEPTED WITH WAIVERS: ")
    assert "weak_scaling_efficiency[resnet152-fp16-8gpu] failed without naming a host" in found.evidence


def test_a_node_that_was_rejected_since_is_not_accepted(tmp_path: Path) -> None:
    accepted = write_judged_run(tmp_path / "old", "accepted", ["n1", "n2"])
    rejected = write_judged_run(tmp_path / "new", "rejected", ["n2"], [failed()], started_unix_s=LATER)
    assert said(accepted, rejected) == [("accepted", "n1"), ("look", "n2"), ("drain", "n2")]


def test_a_run_that_was_not_judged_is_refused(tmp_path: Path) -> None:
    run = write_judged_run(tmp_path / "r", "accepted", NODES)
    (run / "verdicts.json").unlink()
    with pytest.raises(RunDirectoryError, match=f"was never judged.*--ddp-judge={run}"):
        read_findings(run)


@given(st.text(max_size=400), st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=200))
def test_any_reason_is_safe_to_hand_to_slurm(evidence: str, name: str) -> None:
    reason = finding(evidence, Path("/runs") / name).reason
    assert reason.startswith(REASON_PREFIX)
    assert len(reason) <= MOST_REASON_CHARACTERS
    assert reason.isascii()
    assert reason.isprintable()
    assert not set(reason) & set("\"'`\\$|<>")


def test_a_long_reason_keeps_the_name_of_the_run_and_of_one_host_all_devices(tmp_path: Path) -> None:
    reason = finding("slow " * 100).reason
    assert len(reason) == MOST_REASON_CHARACTERS
    assert reason.endswith("... [2026-01-31/n7]")
    verdicts = [failed(gpu("n1")), failed(gpu("n1"), metric="exposed_communication"), failed(gpu("n1", index=4))]
    run = write_judged_run(tmp_path / "r", "rejected", NODES, [*verdicts, failed(link("n2", "n9"))])
    assert_approved("culprits.txt", masked("\n".join(text_lines(read_findings(run).findings)), tmp_path))


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
    assert [one.use for one in read_findings(run).findings] == ["none"]
    [found] = read_findings(run, rehearses=True).findings
    assert (found.use, found.host) == ("drain", "n2")
    measured = write_judged_run(tmp_path / "m", "rejected", NODES, [failed(gpu("n2"))])
    with pytest.raises(OptionError, match=r"--rehearse: found .*, a run of a real machine; expected simulated runs"):
        read_findings(measured, rehearses=True)
