"""A run whose studies were measured in different places says nothing of one machine."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpscale.results.gangs import gangs_of, why_not_one_machine

Records = list[dict[str, Any]]


def startups(*devices: str, torch: str = "2.9.0") -> Records:
    """One rank per ``host:device``."""
    return [
        {
            "kind": "startup",
            "rank": rank,
            "host": host,
            "device": device,
            "versions": {"torch": torch, "python": "3.11"},
        }
        for rank, (host, _, device) in enumerate(device.partition(":") for device in devices)
    ]


def measured(*studies: str) -> Records:
    return [{"kind": "measurement", "study": study} for study in studies]


def test_studies_of_one_gang_are_of_one_machine() -> None:
    records = startups("a:0", "b:0") + measured("weak/r", "strong/r", "weak/r")
    assert why_not_one_machine(records) == ""
    gangs = gangs_of(records)
    assert gangs["weak/r"] is gangs["strong/r"]


def test_gangs_on_the_same_devices_are_of_one_machine() -> None:
    records = startups("a:0", "b:0") + measured("weak/r") + startups("b:0", "a:0") + measured("strong/r")
    assert why_not_one_machine(records) == ""


def test_a_launch_with_fewer_ranks_on_the_same_hosts_is_no_contradiction() -> None:
    records = startups("a:0", "a:1") + measured("weak/r") + startups("a:0") + measured("weak/r-extra1")
    assert why_not_one_machine(records) == ""


@pytest.mark.parametrize(
    ("first", "second"),
    [(("a:0", "b:0"), ("a:0", "c:0")), (("a:0", "b:0"), ("a:0",)), (("a:0",), ("a:0", "b:0")), (("a:0",), ("b:0",))],
)
def test_different_hosts_are_named_with_the_studies(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    records = startups(*first) + measured("weak/r") + startups(*second) + measured("strong/r")
    why = why_not_one_machine(records)
    assert why.startswith("studies were measured on different hosts: strong/r on ")
    for name in {*first, *second}:
        assert name[0] in why.partition(": ")[2]


def test_another_gpu_in_the_same_host_is_named() -> None:
    records = (
        startups("a:GPU-0", "a:GPU-1") + measured("weak/r") + startups("a:GPU-0", "a:GPU-2") + measured("strong/r")
    )
    assert why_not_one_machine(records) == (
        "studies were measured on different devices: strong/r and weak/r differ in GPU-1 of a, GPU-2 of a"
    )


def test_other_software_is_named() -> None:
    records = startups("a:0") + measured("weak/r") + startups("a:0", torch="2.10.0") + measured("strong/r")
    assert why_not_one_machine(records) == (
        "studies were measured with different software: strong/r with torch 2.10.0, weak/r with torch 2.9.0"
    )


@pytest.mark.parametrize("kind", ["probe", "seeded_step", "pair"])
def test_what_was_not_trained_is_of_the_machine_too(kind: str) -> None:
    """As probes of a run that was resumed elsewhere."""
    survey = {"kind": "survey", "study": "survey", "host": "b"}
    records = [*startups("a:0"), {"kind": kind, "study": "probes"}, survey, *startups("b:0"), *measured("weak/r")]
    assert why_not_one_machine(records) == "studies were measured on different hosts: probes on a, weak/r on b"


@pytest.mark.parametrize(
    ("surveyed", "why"),
    [
        ("", ""),
        ("ab", ""),
        ("abc", ""),
        ("a", "measured on b, but what was looked at before is a"),
        ("cd", "measured on a, b, but what was looked at before is c, d"),
    ],
)
def test_a_node_that_was_measured_and_never_looked_at_is_named(surveyed: str, why: str) -> None:
    """As one that an earlier run of surveys alone was gone on with. One of which the ranks died is no contradiction."""
    surveys: Records = [{"kind": "survey", "study": "survey", "host": host} for host in surveyed]
    assert why_not_one_machine([*surveys, *startups("a:0", "b:0"), *measured("weak/r")]) == why


def test_a_gang_that_measured_nothing_does_not_count() -> None:
    records = startups("a:0", "z:0") + startups("a:0", "b:0") + measured("weak/r") + startups("q:0")
    assert why_not_one_machine(records) == ""
    assert gangs_of(records)["weak/r"].hosts == {"a", "b"}


def test_a_study_measured_again_is_where_it_was_measured_last() -> None:
    records = startups("z:0") + measured("weak/r") + startups("a:0") + measured("weak/r", "strong/r")
    assert why_not_one_machine(records) == ""


def test_results_of_other_tools_announce_no_ranks() -> None:
    assert why_not_one_machine(measured("weak/r", "strong/r")) == ""
    assert why_not_one_machine([{"kind": "startup"}, *measured("weak/r"), {}]) == ""


def test_of_many_hosts_a_few_are_named() -> None:
    many = [f"node{number:04}:0" for number in range(500)]
    why = why_not_one_machine(startups(*many) + measured("weak/r") + startups(*many[1:]) + measured("strong/r"))
    assert "weak/r on node0000, node0001, node0002, node0003 and 496 more" in why
    assert len(why) < 300
