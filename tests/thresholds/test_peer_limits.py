"""Limits of peers make requirements without a published value; a site may change them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.thresholds.cases import cases_for
from pytest_ddpscale.thresholds.changes import weaker_bounds
from pytest_ddpscale.thresholds.loading import ThresholdsFile, first_of, load_thresholds
from pytest_ddpscale.util.packaged import packaged
from tests.rows import rows


def site(folder: Path, text: str) -> ThresholdsFile:
    path = folder / "thresholds.yaml"
    path.write_text(f"schema_version: 2\nextends: packaged\n{text}\n", encoding="utf-8")
    return load_thresholds(path)


def probe_bounds(file: ThresholdsFile, sku: str, nodes: int = 1, gpus: int = 8) -> dict[str, float]:
    cases = cases_for(file, sku, Layout(nodes, gpus))
    return {case.id: case.requirement.bound for case in cases if case.requirement.definition.compares_places}


def bounds(file: ThresholdsFile, sku: str, nodes: int = 1, gpus: int = 8) -> dict[str, float]:
    cases = cases_for(file, sku, Layout(nodes, gpus))
    return {case.id: case.requirement.bound for case in cases if case.requirement.definition.reads_own_pace}


def test_each_weak_workload_is_compared_at_its_largest_size_on_a_node() -> None:
    file = load_thresholds(packaged("thresholds.yaml"))
    one, four = bounds(file, "b200"), bounds(file, "b200", nodes=4)
    assert {name: bound for name, bound in one.items() if "resnet152-fp16" in name} == {
        "rank_uniformity[resnet152-fp16-node]": 1.05
    }
    assert set(one.values()) == {1.05}
    assert one.items() < four.items()
    assert four["node_uniformity[resnet152-fp16-node]"] == 1.03
    assert len(four) == 2 * len(one)


@rows(("sku", "nodes", "gpus"), [("b200", 1, 2), ("cpu", 1, 2)])
def test_fewer_than_four_places_are_not_compared(sku: str, nodes: int, gpus: int) -> None:
    found = bounds(load_thresholds(packaged("thresholds.yaml")), sku, nodes, gpus)
    assert not [name for name in found if "-node" in name or "rank" in name.partition("[")[2]]


def test_they_reject_but_cannot_accept() -> None:
    sku = load_thresholds(packaged("thresholds.yaml")).thresholds.skus["b200"]
    found = [one for one in sku.requirements if one.definition.reads_own_pace]
    assert {(one.severity, one.provisional) for one in found} == {("fail", True)}


MEMORY = {"probe_uniformity[memory-copy]": 1.1}
HOST = {"probe_uniformity[host-to-device]": 1.2, "probe_uniformity[device-to-host]": 1.2}
PAIRS = {"probe_uniformity[send-recv-256mib-node]": 1.2}


@rows(
    ("sku", "nodes", "gpus", "expected"),
    [
        ("b200", 1, 8, MEMORY),
        ("b200", 3, 8, MEMORY),
        ("b200", 4, 8, MEMORY | HOST | PAIRS),
        ("b200", 1, 3, {}),
        ("b200", 2, 2, MEMORY),
        ("b200", 4, 1, MEMORY | HOST),
        ("cpu", 4, 2, {}),
    ],
)
def test_probes_are_compared_where_places_are_alike(
    sku: str, nodes: int, gpus: int, expected: dict[str, float]
) -> None:
    assert probe_bounds(load_thresholds(packaged("thresholds.yaml")), sku, nodes, gpus) == expected


def test_probes_are_measured_only_if_a_row_asks_for_them() -> None:
    for name, sku in load_thresholds(packaged("thresholds.yaml")).thresholds.skus.items():
        asked = {one.probe for one in sku.requirements if one.probe and not one.definition.compares_places}
        compared = {one.probe for one in sku.requirements if one.definition.compares_places}
        assert compared <= asked, name


@rows(
    ("text", "expected"),
    [
        ("peers: {memory: off, host: 30 %}", dict.fromkeys(HOST, 1.3) | PAIRS),
        ("skus: {b200: {peers: {pairs: off, host: off}}}", MEMORY),
        (
            "skus: {b200: {requirements: [{probe_uniformity: {node: 1.4}, probe: send-recv-256mib, provisional: x}]}}",
            MEMORY | HOST | {"probe_uniformity[send-recv-256mib-node]": 1.4},
        ),
    ],
)
def test_a_site_changes_what_probes_are_allowed(
    tmp_path_factory: pytest.TempPathFactory, text: str, expected: dict[str, float]
) -> None:
    assert probe_bounds(site(tmp_path_factory.mktemp("site"), text), "b200", nodes=4) == expected


def test_links_between_nodes_are_not_compared_so(tmp_path: Path) -> None:
    row = "{probe_uniformity: {all: 1.4}, probe: send-recv-256mib, provisional: x}"
    file = site(tmp_path, f"skus: {{b200: {{requirements: [{row}]}}}}")
    with pytest.raises(ThresholdsError, match="compares places inside a node"):
        raise first_of(file.broken["b200"])


def test_a_looser_limit_of_a_probe_counts_as_lowered(tmp_path: Path) -> None:
    file = site(tmp_path, "peers: {memory: 15 %}")
    weaker = [change for change in weaker_bounds(file, "b200") if change.either.metric == "probe_uniformity"]
    assert [change.either.probe for change in weaker] == ["memory-copy"]


def test_a_cpu_has_its_own_limit() -> None:
    found = bounds(load_thresholds(packaged("thresholds.yaml")), "cpu", 2, 2)
    assert found == {"rank_uniformity[shuffle96-fp32-2rank]": 2.0}


@rows(
    ("text", "bound", "lowered"),
    [
        ("peers: {computing: 8 %}", 1.08, True),
        ("peers: {computing: 4 %}", 1.04, False),
        ("peers: {computing: off}", None, True),
        ("peers: {computing: 'off'}", None, True),
        ("skus: {b200: {peers: {computing: 7.5 %}}}", 1.075, True),
        ("skus: {h100: {peers: {computing: 7.5 %}}}", 1.05, False),
    ],
)
def test_a_looser_limit_counts_as_lowered_and_a_tighter_one_does_not(
    tmp_path_factory: pytest.TempPathFactory, text: str, bound: float | None, lowered: bool
) -> None:
    file = site(tmp_path_factory.mktemp("site"), text)
    assert bounds(file, "b200").get("rank_uniformity[resnet152-fp16-node]") == bound
    weaker = [change for change in weaker_bounds(file, "b200") if change.either.metric == "rank_uniformity"]
    assert bool(weaker) == lowered
    if bound not in (None, 1.05):
        (own, *_) = [one for one in file.thresholds.skus["b200"].requirements if one.metric == "rank_uniformity"]
        assert own.where.startswith(str(file.path))


def test_a_row_of_the_site_replaces_the_requirement(tmp_path: Path) -> None:
    row = "{rank_uniformity: {8: 1.2}, of: resnet152-fp16, provisional: made up}"
    found = bounds(site(tmp_path, f"skus: {{b200: {{requirements: [{row}]}}}}"), "b200")
    assert {name: bound for name, bound in found.items() if "resnet152-fp16" in name} == {
        "rank_uniformity[resnet152-fp16-8gpu]": 1.2
    }


@rows(
    ("limits", "found"),
    [
        ("{computing: 0.05}", "peers.computing is 0.05"),
        ("{computing: 0 %}", "peers.computing is '0 %'"),
        ("{computing: 5}", "peers.computing is 5"),
        ("{computing: true}", "peers.computing is True"),
        ("{compute: 5 %}", "unknown key peers.compute; did you mean 'computing'?"),
        ("5 %", "peers is '5 %'"),
    ],
)
def test_a_wrong_limit_is_refused_with_its_line(
    tmp_path_factory: pytest.TempPathFactory, limits: str, found: str
) -> None:
    file = site(tmp_path_factory.mktemp("site"), f"peers: {limits}")
    with pytest.raises(ThresholdsError) as refused:
        raise first_of(file.broken["b200"])
    assert found in str(refused.value)
    assert f"{file.path}:3" in str(refused.value)
