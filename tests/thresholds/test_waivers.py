"""Waivers, changes with an end, as a site writes them: who, why, until when, and of what there are none."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.thresholds.changes import all_changes
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.thresholds.model import Requirement
from pytest_ddpscale.thresholds.waiver import Waiver, today
from pytest_ddpscale.util.packaged import packaged
from tests.rows import rows

BASE = """\
schema_version: 2
sources: {paper: 'a paper, table 1'}
margins: {throughput_per_gpu: 5 %, weak_scaling_efficiency: 5 %}
workloads: {resnet: {model: resnet18, precision: fp32}}
skus:
  tested:
    description: the generation under test
    detect: {name: '^Tested$'}
    batch: {resnet: 64}
    checks: {ecc: fail, ecc_under_load: fail, gpus: fail, transport: fail, nvlink: fail, clock: warn}
    requirements:
      - {throughput_per_gpu: {1: 500, node: 490, 2 nodes: 480, all: 470}, of: resnet, published: paper}
      - {weak_scaling_efficiency: {4: 0.98}, of: resnet, placement: spread, published: paper}
      - {replica_agreement: {node: 1}, of: resnet, because: DDP keeps replicas equal}
      - {throughput_per_gpu: {2: 500}, of: resnet, published: paper, bound: 480, warn: 490, because: made up}
"""
SIGNED = "who: A. Name, why: a fan is ordered"
BY = f"severity: warn, {SIGNED}"
END = today() + timedelta(days=30)
UNTIL = f"{BY}, until: {END}"


def site(
    folder: Path, *rows: str, more: str = "", extends: str = "base.yaml", name: str = "site.yaml"
) -> ThresholdsFile:
    """A file with waivers that extends another."""
    (folder / "base.yaml").write_text(BASE, encoding="utf-8")
    lines = [f"      - {row}" for row in rows]
    text = [f"schema_version: 2\nextends: {extends}\nskus:\n  tested:\n    change:", *lines, more]
    (folder / name).write_text("\n".join(text) + "\n", encoding="utf-8")
    return load_thresholds(folder / name)


def waived(file: ThresholdsFile) -> list[Requirement]:
    sku = file.thresholds.skus[file.sku_name("tested")]
    return [one for one in sku.requirements if one.waiver is not None]


def test_a_waiver_stands_at_the_rows_that_it_names(tmp_path: Path) -> None:
    node, alone = f"{{throughput_per_gpu: [1, node], of: resnet, {UNTIL}}}", f"{{check: nvlink, {UNTIL}}}"
    found = waived(site(tmp_path, node, alone))
    assert [(one.subject, one.world_size) for one in found] == [("nvlink", 1), ("resnet", 1), ("resnet", "node")]
    assert {one.waiver for one in found} == {Waiver("A. Name", "a fan is ordered", END)}


def test_of_two_bounds_on_one_thing_it_is_for_the_one_that_rejects(tmp_path: Path) -> None:
    [found] = waived(site(tmp_path, f"{{throughput_per_gpu: 2, of: resnet, {UNTIL}}}"))
    assert (found.severity, found.bound) == ("fail", 480)


def test_check_names_each_waiver_with_its_end(tmp_path: Path) -> None:
    (change,) = all_changes(site(tmp_path, f"{{check: nvlink, {UNTIL}}}"))
    assert str(change).endswith(f"node_check of nvlink at world size 1 (waiver by A. Name until {END})")


@rows(
    ("row", "found"),
    [
        (f"{{check: nvlink, severity: warn, why: a fan is ordered, until: {END}}}", ".who is missing"),
        (f"{{check: nvlink, severity: warn, who: A. Name, until: {END}}}", ".why is missing"),
        (f"{{check: nvlink, severity: warn, who: ' ', why: a fan is ordered, until: {END}}}", ".who is ' '"),
        (f"{{check: nvlink, severity: warn, who: '-', why: a fan is ordered, until: {END}}}", "'-' says nothing"),
        (f"{{check: nvlink, severity: warn, who: A. Name, why: '...', until: {END}}}", "'...' says nothing"),
        (f"{{check: nvlink, {SIGNED}, until: {END}}}", "expected `severity: warn` and no `bound`"),
        (f"{{check: nvlink, severity: off, {SIGNED}, until: {END}}}", "expected `severity: warn` and no `bound`"),
        (f"{{throughput_per_gpu: 1, of: resnet, bound: 1, {UNTIL}}}", "expected `severity: warn` and no `bound`"),
        (f"{{check: nvlink, {BY}, until: never}}", "until is 'never'; expected a day such as 2026-12-31"),
        (f"{{check: nvlink, {BY}, until: '2026-12-31'}}", "expected a day such as 2026-12-31, without quotes"),
        (f"{{check: nvlink, {BY}, until: 2026-12-31 12:00:00}}", "expected a day such as"),
        (
            f"{{check: nvlink, {BY}, until: {today() + timedelta(days=401)}}}",
            "is more than 400 days away; expected an earl",
        ),
        (f"{{check: nvlink, {BY}, until: 9999-12-31}}", "is more than 400 days away"),
    ],
)
def test_a_waiver_without_a_name_a_reason_or_an_end_breaks_its_sku(tmp_path: Path, row: str, found: str) -> None:
    with pytest.raises(ThresholdsError) as caught:
        waived(site(tmp_path, row))
    assert found in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'site.yaml'}:6: skus.tested.change[0]")


@rows(
    ("row", "why"),
    [
        ("throughput_per_gpu: 2 nodes, of: resnet", "it covers links between nodes"),
        ("throughput_per_gpu: all, of: resnet", "it covers links between nodes"),
        ("weak_scaling_efficiency: 4, of: resnet, placement: spread", "it covers links between nodes"),
        ("check: transport", "it also covers links between nodes"),
        ("replica_agreement: node, of: resnet", "ranks with different results compute wrong ones"),
        ("check: ecc", "memory errors corrupt data"),
        ("check: ecc_under_load", "memory errors corrupt data"),
        ("check: gpus", "GPUs that are missing or do not answer are not tested"),
        ("check: clock", "it only warns"),
    ],
)
def test_what_no_waiver_covers_is_refused_when_it_is_loaded(tmp_path: Path, row: str, why: str) -> None:
    with pytest.raises(ThresholdsError, match=rf"site\.yaml:6: .*cannot be waived: {why}\."):
        waived(site(tmp_path, f"{{{row}, {UNTIL}}}"))


def test_all_sizes_of_a_metric_are_not_waived_where_one_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ThresholdsError, match="at world size 2 nodes cannot be waived"):
        waived(site(tmp_path, f"{{throughput_per_gpu: any, of: resnet, {UNTIL}}}"))


def test_nothing_is_waived_twice_in_one_file(tmp_path: Path) -> None:
    row = f"{{check: nvlink, {UNTIL}}}"
    with pytest.raises(ThresholdsError, match=r"site\.yaml:7: .*node_check of nvlink at world size 1 is waived twice"):
        waived(site(tmp_path, row, row))


def test_a_nearer_file_has_the_last_word(tmp_path: Path) -> None:
    site(tmp_path, f"{{throughput_per_gpu: [1, node], of: resnet, {UNTIL}}}")
    anew = "    requirements: [{throughput_per_gpu: {1: 500}, of: resnet, published: paper}]"
    later = (
        "{throughput_per_gpu: node, of: resnet, severity: warn, who: B. Name, why: still ordered, until: " + f"{END}}}"
    )
    [found] = waived(site(tmp_path, later, more=anew, extends="site.yaml", name="nearer.yaml"))
    assert (found.world_size, found.waiver) == ("node", Waiver("B. Name", "still ordered", END))


@rows(("days", "remarked"), [(90, False), (91, True), (400, True), (-1, False)])
def test_a_waiver_that_holds_for_long_is_remarked_on(days: int, remarked: bool, tmp_path: Path) -> None:
    file = site(tmp_path, f"{{check: nvlink, {BY}, until: {today() + timedelta(days=days)}}}")
    assert file.problems == ()
    said = [str(one) for one in file.remarks.get("tested", ())]
    assert any(f"node_check of nvlink at world size 1 holds for {days} days" in one for one in said) == remarked


def test_the_how_to_shows_waivers_that_are_valid(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "waiver.md").read_text(encoding="utf-8")
    (tmp_path / "site.yaml").write_text(text.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    requirements = load_thresholds(tmp_path / "site.yaml").thresholds.skus["b200"].requirements
    waived = [(one.subject, one.severity) for one in requirements if one.waiver is not None]
    assert sorted(waived) == [("matmul-bf16", "fail"), ("nvlink", "fail")]


def test_nobody_waives_anything_for_all_sites() -> None:
    skus = load_thresholds(packaged("thresholds.yaml")).thresholds.skus
    assert [one for sku in skus.values() for one in sku.requirements if one.waiver is not None] == []
