"""run.json says who measured, when, on what and by which thresholds, before and after."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from pytest_ddpscale.errors import RunDirectoryError
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import EndReason, GangRecord, Lost, SeededStep, SeededSteps, StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import now_iso
from pytest_ddpscale.run.run_record import (
    ended,
    lost_hosts,
    ranks_by_host,
    studies_measured,
    why_not_one_machine,
)
from pytest_ddpscale.run.survey_record import Survey
from tests.builders.json_types import as_json, begin, run_record
from tests.builders.records import gang_at
from tests.rows import rows


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
        host: [(rank.place.index, rank.device_name) for rank in ranks] for host, ranks in ranks_by_host(gangs).items()
    }
    assert found == {"node1": [(0, "NVIDIA A100"), (1, "another")], "node2": [(0, "NVIDIA A100")]}


@rows(
    "change",
    [
        {"left_out": ["n2"]}, {"notes": 5}, {"hosts": []}, {"status": "hanged"}, {"started_at": "yesterday"},
        {"started_at": "2026-01-01T00:00:00"}, {"colour": "red"}, {"sku": 3}, {"devices_present": -1},
        {"resumed": [{"at": "yesterday"}]}, {"simulated": "true"},
    ],
)  # fmt: skip
def test_what_was_never_written_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    run = RunDirectory.create(Path(mkdtemp(dir=tmp_path)) / "run")
    begin(run)
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


@rows(
    ("sessions", "thresholds", "parts"),
    [
        ([], "cd", []),
        (
            [{"weak/r": "error", "strong/r": "no end"}],
            "ab",
            ["measured in several sessions: resumed AT", "superseded.jsonl): weak/r (error), strong/r (no end)"],
        ),
        (
            [{}, {}],
            "cd",
            ["measured in several sessions: resumed AT, AT", "judged by another thresholds file than at the start"],
        ),
    ],
)
def test_the_reader_is_told_of_sessions(sessions: list[dict[str, str]], thresholds: str, parts: list[str]) -> None:
    at, used = "2026-01-31T12:00:00+00:00", {"path": "thresholds.yaml", "sha256": "ab" * 32}
    resumed = [{"at": at, "argv": [], "status_before": "running", "measured_anew": anew} for anew in sessions]
    notes = [say(one) for one in run_record(resumed=resumed, thresholds=used).resumption_notes(thresholds * 32)]
    assert len(notes) == len(parts)
    assert all(part in note for part, note in zip(parts, (note.replace(at, "AT") for note in notes), strict=True))


def test_now_is_utc_to_the_second() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", now_iso())


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
                "strong/r on node[0001-0499]",
                "weak/r on node[0000-0499]",
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
    found = why_not_one_machine(launches(*told))
    assert (say(found) if found else "") == why


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
    assert (found and say(found)) == (f"ranks were measured with different software: {why}" if why else None)


def test_hosts_are_lost_until_they_take_part_again() -> None:
    lost = Lost(hosts=("a", "b"), message="silent for 30 s")
    assert lost_hosts([gang(("a", 0), ("b", 0)), lost]) == dict.fromkeys("ab", "silent for 30 s")
    assert lost_hosts([lost, gang(("a", 0), number=1)]) == {"b": "silent for 30 s"}
    assert lost_hosts([lost, Survey("b", 1.0), Survey("a", 1.0)]) == {}
