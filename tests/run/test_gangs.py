"""A run whose studies were measured in different places says nothing of one machine."""

from __future__ import annotations

import itertools

from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.gangs import gangs_of, why_not_one_machine
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import GangRecord, SeededSteps
from pytest_ddpscale.run.survey_record import Survey
from tests.rows import rows

Records = list[AnyRecord]


def launch(*devices: str, torch: str = "2.9.0", measured: tuple[AnyRecord | str, ...] = ()) -> Records:
    """A gang with one rank per ``host:device``, and what it measured."""
    number = next(_NUMBERS)
    hosts, _, uuids = zip(*(device.partition(":") for device in devices), strict=True)
    who = GangRecord(gang=number, hosts=hosts, local_ranks=tuple(range(len(hosts))), devices=uuids,
                     versions={"torch": torch, "python": "3.11"})  # fmt: skip
    return [who, *(block(one, number) if isinstance(one, str) else one for one in measured)]


_NUMBERS = itertools.count()


def block(study: str, gang: int) -> Block:
    return Block(study=study, arm="alone", round=0, gang=gang, ranks=(0,), count=1, work=1.0, began_unix_s=1.0,
                 seconds=1.0)  # fmt: skip


def test_studies_of_one_gang_are_of_one_machine() -> None:
    records = launch("a:0", "b:0", measured=("weak/r", "strong/r", "weak/r"))
    assert why_not_one_machine(records) == ""
    gangs = gangs_of(records)
    assert gangs["weak/r"] is gangs["strong/r"]


def test_gangs_on_the_same_devices_are_of_one_machine() -> None:
    records = launch("a:0", "b:0", measured=("weak/r",)) + launch("b:0", "a:0", measured=("strong/r",))
    assert why_not_one_machine(records) == ""


def test_a_launch_with_fewer_ranks_on_the_same_hosts_is_no_contradiction() -> None:
    records = launch("a:0", "a:1", measured=("weak/r",)) + launch("a:0", measured=("weak/r-extra1",))
    assert why_not_one_machine(records) == ""


@rows(
    ("first", "second"),
    [(("a:0", "b:0"), ("a:0", "c:0")), (("a:0", "b:0"), ("a:0",)), (("a:0",), ("a:0", "b:0")), (("a:0",), ("b:0",))],
)
def test_different_hosts_are_named_with_the_studies(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    why = why_not_one_machine(launch(*first, measured=("weak/r",)) + launch(*second, measured=("strong/r",)))
    assert why.startswith("studies were measured on different hosts: strong/r on ")
    for name in {*first, *second}:
        assert name[0] in why.partition(": ")[2]


def test_another_gpu_in_the_same_host_is_named() -> None:
    records = launch("a:GPU-0", "a:GPU-1", measured=("weak/r",)) + launch("a:GPU-0", "a:GPU-2", measured=("strong/r",))
    assert why_not_one_machine(records) == (
        "studies were measured on different devices: strong/r and weak/r differ in GPU-1 of a, GPU-2 of a"
    )


def test_other_software_is_named() -> None:
    records = launch("a:0", measured=("weak/r",)) + launch("a:0", torch="2.10.0", measured=("strong/r",))
    assert why_not_one_machine(records) == (
        "studies were measured with different software: strong/r with torch 2.10.0, weak/r with torch 2.9.0"
    )


@rows("kind", ["block", "seeded_step"])
def test_what_was_not_trained_is_of_the_machine_too(kind: str) -> None:
    """As probes of a run that was resumed elsewhere."""
    first = launch("a:0")
    gang = first[0].gang  # type: ignore[union-attr]
    what: dict[str, AnyRecord] = {
        "block": Block(study="probes", arm="matmul-fp32", round=0, gang=gang, ranks=(0,), count=1, work=1.0,
                       seconds=1.0, began_unix_s=1.0),
        "seeded_step": SeededSteps(study="probes", gang=gang, ranks=(0,), checksums="a"),
    }  # fmt: skip
    records = [*first, what[kind], Survey("b", 1.0), *launch("b:0", measured=("weak/r",))]
    assert why_not_one_machine(records) == "studies were measured on different hosts: probes on a, weak/r on b"


@rows(
    ("surveyed", "why"),
    [
        ("", ""),
        ("ab", ""),
        ("abc", ""),
        ("a", "measured on b, but the surveyed nodes are a"),
        ("cd", "measured on a, b, but the surveyed nodes are c, d"),
    ],
)
def test_a_node_that_was_measured_and_never_looked_at_is_named(surveyed: str, why: str) -> None:
    """As one that an earlier run of surveys alone was gone on with. One of which the ranks died is no contradiction."""
    surveys: Records = [Survey(host, 1.0) for host in surveyed]
    assert why_not_one_machine([*surveys, *launch("a:0", "b:0", measured=("weak/r",))]) == why


def test_a_gang_that_measured_nothing_does_not_count() -> None:
    records = launch("a:0", "z:0") + launch("a:0", "b:0", measured=("weak/r",)) + launch("q:0")
    assert why_not_one_machine(records) == ""
    assert set(gangs_of(records)["weak/r"].hosts) == {"a", "b"}


def test_a_study_measured_again_is_where_it_was_measured_last() -> None:
    records = launch("z:0", measured=("weak/r",)) + launch("a:0", measured=("weak/r", "strong/r"))
    assert why_not_one_machine(records) == ""


def test_of_many_hosts_a_few_are_named() -> None:
    many = [f"node{number:04}:0" for number in range(500)]
    why = why_not_one_machine(launch(*many, measured=("weak/r",)) + launch(*many[1:], measured=("strong/r",)))
    assert "weak/r on node0000, node0001, node0002, node0003 and 496 more" in why
    assert len(why) < 300
