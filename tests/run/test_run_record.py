"""run.json says who measured, when, on what and by which thresholds, before and after."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pytest_ddpscale import __version__
from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import EndReason, GangRecord, Lost, SeededStep, SeededSteps, StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import Resumed, ThresholdsUsed
from pytest_ddpscale.run.run_record import (
    binding_notes,
    ended,
    finish_run,
    lost_hosts,
    note_left_out,
    now_iso,
    ranks_by_host,
    resume_run,
    start_run,
    studies_measured,
    why_not_one_machine,
)
from pytest_ddpscale.run.survey_record import Survey
from tests.builders.json_types import as_json, run_record
from tests.builders.records import gang_at
from tests.rows import rows


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run that has just begun."""
    run = RunDirectory.create(tmp_path / "run")
    start_run(run, "a100", ("pytest", "--gpu-sku=a100"), Path("thresholds.yaml"), "ab" * 32)
    return run


def gang(*ranks: tuple[str, int], number: int = 0, **changes: Any) -> GangRecord:
    """A gang with one rank per host and local rank."""
    fields: dict[str, Any] = {
        "device_name": "NVIDIA A100", "import_s": 4.0, "rendezvous_s": 1.0,
        "versions": {"torch": "2.9.0", "cuda": "12.8", "nccl": None}, "environment": {"NCCL_DEBUG": "WARN"},
    } | changes  # fmt: skip
    return gang_at([Place(host, rank, f"GPU-{host}-{rank}", rank) for host, rank in ranks], number, **fields)


def test_ranks_are_listed_once_by_host_and_in_order() -> None:
    gangs = [gang(("node2", 0), ("node1", 1), ("node1", 0)), gang(("node1", 1), number=1, device_name="another")]
    found = {
        host: [(one.place.index, one.device_name) for one in ranks] for host, ranks in ranks_by_host(gangs).items()
    }
    assert found == {"node1": [(0, "NVIDIA A100"), (1, "another")], "node2": [(0, "NVIDIA A100")]}


class TestRunJson:
    def test_what_is_about_to_happen_is_recorded_before_it_happens(self, run: RunDirectory) -> None:
        record = run.read_run()
        assert (record.sku, record.status) == ("a100", "running")
        assert record.argv == ("pytest", "--gpu-sku=a100")
        assert record.thresholds == ThresholdsUsed("thresholds.yaml", "ab" * 32)
        assert record.versions["pytest_ddpscale"] == __version__
        assert record.versions["pytest"] == pytest.__version__
        assert record.finished_at is None

    def test_secrets_of_the_command_line_are_not(self, run: RunDirectory) -> None:
        argv = ("pytest", "--ddp-slurm-args=--comment=token=hunter2", "--password", "hunter2", "-k", "key or token")
        start_run(run, "a100", argv, Path("thresholds.yaml"), "ab" * 32)
        resume_run(run, argv, {})
        assert "hunter2" not in run.run_json.read_text(encoding="utf-8")
        assert run.read_run().argv[-2:] == ("-k", "key or token")

    def test_how_it_ended_is_added(self, run: RunDirectory) -> None:
        before = run.read_run()
        finish_run(run, "interrupted")
        record = run.read_run()
        assert record.status == "interrupted"
        assert datetime.fromisoformat(record.finished_at or "") >= before.began
        assert replace(record, status="running", finished_at=None) == before

    def test_nodes_that_were_left_out_are_recorded_with_the_devices_of_the_others(self, run: RunDirectory) -> None:
        before = run.read_run()
        note_left_out(run, 8, {"n2": "gpus: GPU 3: lost", "n4": "disk: full"})
        left_out = {"n2": "gpus: GPU 3: lost", "n4": "disk: full"}
        assert run.read_run() == replace(before, devices_present=8, left_out=left_out)

    @pytest.mark.parametrize(
        "change",
        [
            {"left_out": ["n2"]}, {"notes": 5}, {"hosts": []}, {"status": "hanged"}, {"started_at": "yesterday"},
            {"started_at": "2026-01-01T00:00:00"}, {"colour": "red"}, {"sku": 3}, {"devices_present": -1},
            {"resumed": [{"at": "yesterday"}]}, {"simulated": "true"},
        ],
    )  # fmt: skip
    def test_what_was_never_written_is_refused(self, run: RunDirectory, change: dict[str, Any]) -> None:
        run.write_json(run.run_json, as_json(run.read_run()) | change)
        with pytest.raises(RunDirectoryError, match=r"run\.json: has invalid content"):
            run.read_run()


@rows(
    "mark",
    [
        {"simulated": True}, {"status": "simulated"},
        {"simulation": {"gpus": 8, "seed": 0, "faults": [], "model": {}}},
    ],
)  # fmt: skip
def test_any_one_mark_of_a_simulated_run_is_enough(mark: dict[str, Any]) -> None:
    assert run_record(**mark).is_simulated()
    assert not run_record().is_simulated(["GPU-0", "cpu"])
    assert run_record().is_simulated(["SIM-3"])


class TestEnds:
    ENDS = (
        StudyEnd("decided", "decided"),
        StudyEnd("rounds", "rounds"),
        StudyEnd("budget", "budget"),
        StudyEnd("error", "error", "no memory"),
        StudyEnd("interrupted", "interrupted", "the job reached its time limit"),
    )

    def test_only_a_study_that_came_to_its_own_end_was_measured(self) -> None:
        assert studies_measured(self.ENDS) == {"decided", "rounds"}

    @rows("last", ["budget", "error", "interrupted"])
    def test_the_last_end_of_a_study_counts(self, last: EndReason) -> None:
        ends = [StudyEnd("a", "decided"), StudyEnd("a", last)]
        assert studies_measured(ends) == set()
        assert studies_measured(ends[::-1]) == {"a"}

    def test_an_interruption_is_no_error(self) -> None:
        records = self.ENDS
        assert ended(records, "interrupted") == {"interrupted": "the job reached its time limit"}
        assert ended(records, "error") == {"error": "no memory"}
        assert ended(records, "budget") == {"budget": ""}


class TestResumed:
    def test_run_json_says_when_by_whom_and_from_what(self, run: RunDirectory) -> None:
        finish_run(run, "interrupted")
        resume_run(run, ("pytest", "--ddp-resume=run"), {"weak/r": "error"})
        record = run.read_run()
        assert (record.status, record.finished_at) == ("running", None)
        (resumed,) = record.resumed
        assert datetime.fromisoformat(resumed.at)
        assert resumed == Resumed(
            at=resumed.at,
            argv=("pytest", "--ddp-resume=run"),
            status_before="interrupted",
            measured_anew={"weak/r": "error"},
        )

    def test_who_resumes_is_added_and_a_ticket_stays_unless_there_is_another(self, run: RunDirectory) -> None:
        noted = {"operator": "Ann", "site": "Hall 1", "ticket": "T-1"}
        start_run(run, "a100", (), Path("thresholds.yaml"), "ab" * 32, noted=noted)
        resume_run(run, (), {}, {"operator": "Bob", "ticket": "T-2", "rack": "B 7"})
        resume_run(run, (), {}, {"operator": "Ann"})
        record = run.read_run()
        assert record.operators == ("Ann", "Bob")
        assert record.noted == {"operator": "Ann", "site": "Hall 1", "ticket": "T-2", "rack": "B 7"}
        assert record.further_notes == {"rack": "B 7"}

    def test_the_reader_is_told_what_was_measured_again(self, run: RunDirectory) -> None:
        assert run.read_run().resumption_notes("cd" * 32) == []
        resume_run(run, (), {"weak/r": "error", "strong/r": "no end"})
        notes = run.read_run().resumption_notes("ab" * 32)
        assert notes[0].startswith("measured in 2 sessions: resumed 20")
        assert notes[1].endswith("superseded.jsonl): weak/r (error), strong/r (no end)")
        assert len(notes) == 2

    def test_the_reader_is_told_of_other_thresholds(self, run: RunDirectory) -> None:
        resume_run(run, (), {})
        (_, note) = run.read_run().resumption_notes("cd" * 32)
        assert "another thresholds file (sha256 cdcdcdcdcdcd)" in note
        assert "(sha256 abababababab)" in note


def test_now_is_utc_to_the_second() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", now_iso())


def test_ranks_that_could_not_be_bound_are_told_once_for_each_reason() -> None:
    refused, absent = "not bound: Operation not permitted", "not bound: no cores"
    who = gang(("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1), numa_note=[refused, "", refused, absent])
    again = [who, msgspec.structs.replace(who, gang=1)]
    assert binding_notes(again) == [f"rank 0 on n1 and 1 more rank: {refused}", f"rank 3 on n2: {absent}"]


Records = list[AnyRecord]


def block(study: str, gang: int) -> Block:
    return Block(study=study, arm="alone", round=0, gang=gang, ranks=(0,), count=1, work=1.0, began_unix_s=1.0,
                 seconds=1.0)  # fmt: skip


def launches(*told: str) -> Records:
    """Gangs with one rank per ``host:device``, and what each measured: ``a:0 b:0 = weak/r strong/r``.

    ``torch@2.10.0`` is another version than 2.9.0; ``survey a`` a surveyed host; ``~study`` has a seeded step alone.
    """
    records: Records = []
    for number, line in enumerate(told):
        if line.startswith("survey "):
            records.append(Survey(line.removeprefix("survey "), 1.0))
            continue
        words, _, studies = line.partition("= ")
        devices = [word.split(":") for word in words.split() if ":" in word]
        torch = next((word.removeprefix("torch@") for word in words.split() if word.startswith("torch@")), "2.9.0")
        places = [Place(host, rank, uuid) for rank, (host, uuid) in enumerate(devices)]
        records.append(gang_at(places, number, versions={"torch": torch, "python": "3.11"}))
        for study in studies.split():
            step = SeededSteps(study=study[1:], gang=number, ranks=(SeededStep(rank=0, checksum="a"),))
            records.append(step if study.startswith("~") else block(study, number))
    return records


def hosts_differ(one: str, other: str) -> str:
    return f"studies were measured on different hosts: {one}, {other}"


MANY = " ".join(f"node{number:04}:0" for number in range(500))


@rows(
    ("told", "why"),
    [
        (["a:0 b:0 = weak/r strong/r weak/r"], ""),
        (["a:0 b:0 = weak/r", "b:0 a:0 = strong/r"], ""),
        (["a:0 a:1 = weak/r", "a:0 = weak/r-extra1"], ""),  # a launch with fewer ranks
        (["a:0 z:0", "a:0 b:0 = weak/r", "q:0"], ""),  # gangs that measured nothing
        (["z:0 = weak/r", "a:0 = weak/r strong/r"], ""),  # measured again, and the last counts
        (["a:0 b:0 = weak/r", "a:0 c:0 = strong/r"], hosts_differ("strong/r on a, c", "weak/r on a, b")),
        (["a:0 b:0 = weak/r", "a:0 = strong/r"], hosts_differ("strong/r on a", "weak/r on a, b")),
        (["a:0 = weak/r", "a:0 b:0 = strong/r"], hosts_differ("strong/r on a, b", "weak/r on a")),
        (["a:0 = probes", "survey b", "b:0 = weak/r"], hosts_differ("probes on a", "weak/r on b")),
        (["a:0 = ~probes", "survey b", "b:0 = weak/r"], hosts_differ("probes on a", "weak/r on b")),
        (
            [f"{MANY} = weak/r", f"{MANY.partition(' ')[2]} = strong/r"],
            hosts_differ(
                "strong/r on node0001, node0002, node0003, node0004 and 495 more",
                "weak/r on node0000, node0001, node0002, node0003 and 496 more",
            ),
        ),
        (
            ["a:GPU-0 a:GPU-1 = weak/r", "a:GPU-0 a:GPU-2 = strong/r"],
            "studies were measured on different devices: strong/r and weak/r differ in GPU-1 of a, GPU-2 of a",
        ),
        (
            ["a:0 = weak/r", "torch@2.10.0 a:0 = strong/r"],
            "studies were measured with different software: strong/r with torch 2.10.0, weak/r with torch 2.9.0",
        ),
        (["survey a", "survey b", "a:0 b:0 = weak/r"], ""),
        (["survey a", "survey b", "survey c", "a:0 b:0 = weak/r"], ""),  # ranks died on one
        (["survey a", "a:0 b:0 = weak/r"], "measured on b, but the surveyed nodes are a"),
        (["survey c", "survey d", "a:0 b:0 = weak/r"], "measured on a, b, but the surveyed nodes are c, d"),
    ],
)
def test_studies_are_of_one_machine_or_it_is_said_why_not(told: list[str], why: str) -> None:
    assert why_not_one_machine(launches(*told)) == why


@rows(
    ("surveyed", "hosts", "why"),
    [
        ("a", "aa", "rank 0 on a with torch 2.9.0, rank 1 on a with torch 2.10.0"),
        ("", "ab", "rank 0 on a with torch 2.9.0, rank 1 on b with torch 2.10.0"),
        ("ab", "ab", ""),  # the node check `versions` compares them
    ],
)
def test_ranks_with_other_software_than_their_peers_are_named(surveyed: str, hosts: str, why: str) -> None:
    versions = [{"torch": "2.9.0"}, {"torch": "2.10.0"}]
    who = gang(*[(host, rank) for rank, host in enumerate(hosts)], versions=versions)
    found = why_not_one_machine([*(Survey(host, 1.0) for host in surveyed), who, block("weak/r", 0)])
    assert found == (why and f"ranks were measured with different software: {why}")


def test_hosts_are_lost_until_they_take_part_again() -> None:
    lost = Lost(hosts=("a", "b"), message="silent for 30 s")
    assert lost_hosts([gang(("a", 0), ("b", 0)), lost]) == dict.fromkeys("ab", "silent for 30 s")
    assert lost_hosts([lost, gang(("a", 0), number=1)]) == {"b": "silent for 30 s"}
    assert lost_hosts([lost, Survey("b", 1.0), Survey("a", 1.0)]) == {}
