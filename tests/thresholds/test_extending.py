"""A site's file says only what is different from the packaged one, or from another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.thresholds.model import Sku
from tests.builders.clusters import thresholds as packaged_thresholds
from tests.rows import rows
from tests.thresholds.conftest import VALID, first_problem

HEAD = "schema_version: 2\nextends: base.yaml\n"
BY = "who: A. Name, why: our switch is old"
OFF = f"severity: off, {BY}"
BASE = VALID.replace("skus:\n", "families:\n  f:\n    - {check: [ecc, clock, disk], severity: fail}\nskus:\n").replace(
    "    detect: {name: '^New$'}\n",
    "    detect: {name: '^New$', memory_gib: 80}\n    families: [f]\n    peak: {fp16_tflops: 100}\n"
    "    node: {nvlinks: 4}\n",
)

Extend = Callable[[str], ThresholdsFile]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a site's file, with the base beside it."""
    (tmp_path / "base.yaml").write_text(BASE)
    return tmp_path / "site.yaml"


@pytest.fixture
def extend(path: Path) -> Extend:
    """The base with a site's section of the new generation."""

    def write_and_load(section: str) -> ThresholdsFile:
        path.write_text(f"{HEAD}skus:\n  new:\n{section}")
        return load_thresholds(path)

    return write_and_load


def bounds(sku: Sku) -> dict[tuple[str, object], float]:
    return {(one.metric, one.world_size): one.bound for one in sku.requirements if not one.check}


def test_a_file_that_says_nothing_is_the_one_that_it_extends(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text("schema_version: 2\nextends: packaged\n")
    site, packaged = load_thresholds(path), packaged_thresholds()
    assert site.problems == ()
    assert site.thresholds == packaged.thresholds
    assert site.path == path
    assert site.sha256 != packaged.sha256
    assert site.where("skus", "cpu") == packaged.where("skus", "cpu")


def test_the_digest_is_of_all_files(path: Path) -> None:
    path.write_text(HEAD)
    before = load_thresholds(path)
    (path.parent / "base.yaml").write_text(BASE + "# changed\n")
    after = load_thresholds(path)
    assert after.digests != before.digests
    assert after.sha256 == before.sha256


def test_parts_of_a_sku_are_merged_and_all_else_is_the_nearest_files(extend: Extend) -> None:
    file = extend(
        "    description: ours\n    detect: {memory_gib: 40}\n    peak: {bf16_tflops: 90}\n    node: {nvlinks: 8}\n"
        "    checks: {clock: warn}\n    batch: {r: 32}\n    beyond_node: asked\n"
    )
    assert file.problems == ()
    new = file.thresholds.skus["new"]
    assert new.peak is not None
    assert new.node is not None
    assert (new.description, new.detect.name, new.detect.memory_gib) == ("ours", "^New$", 40)
    assert (new.peak.fp16_tflops, new.peak.bf16_tflops, new.node.nvlinks) == (100, 90, 8)
    assert (new.checks, new.workloads["r"].batch_size) == ({"clock": "warn", "ecc": "fail", "disk": "fail"}, 32)
    assert new.beyond_node == "asked"
    assert bounds(new) == {("weak_scaling_efficiency", 8): 0.95, ("generation_ratio", 1): 2}


def test_rows_replace_those_of_the_file_below_and_say_their_own_line(extend: Extend, path: Path) -> None:
    file = extend(
        "    requirements:\n      - {weak_scaling_efficiency: {4: 0.97, 8: 0.96}, of: r, provisional: our own nodes}\n"
        "      - {check: clock, severity: warn}\n"
    )
    assert file.problems == ()
    new = file.thresholds.skus["new"]
    assert bounds(new) == {
        ("weak_scaling_efficiency", 4): 0.97, ("weak_scaling_efficiency", 8): 0.96, ("generation_ratio", 1): 2,
    }  # fmt: skip
    wheres = {one.metric: one.where for one in new.requirements}
    assert wheres["weak_scaling_efficiency"] == f"{path}:6"
    assert wheres["generation_ratio"].startswith(f"{path.parent / 'base.yaml'}:")
    assert new.checks == {"ecc": "fail", "clock": "warn", "disk": "fail"}


def test_rows_are_removed_or_taken_as_less(extend: Extend) -> None:
    file = extend(
        "    change:\n      - {generation_ratio: 1, of: r, versus: old, severity: off, who: A. Name, why: no old}\n"
        "      - {check: disk, severity: off, who: A. Name, why: no local disk}\n"
        "      - {weak_scaling_efficiency: any, of: r, severity: warn, who: A. Name, why: our switch is old}\n"
        "      - {check: clock, severity: warn, who: A. Name, why: no time server}\n"
    )
    assert file.problems == ()
    new = file.thresholds.skus["new"]
    assert {(one.metric, one.check): one.severity for one in new.requirements} == {
        ("node_check", "ecc"): "fail", ("node_check", "clock"): "warn", ("weak_scaling_efficiency", ""): "warn",
    }  # fmt: skip


def test_a_new_bound_keeps_its_published_value_and_says_who_set_it(extend: Extend, path: Path) -> None:
    row = f"{{weak_scaling_efficiency: [8], of: r, bound: {{8: 0.9}}, {BY}}}"
    one, _ = [one for one in extend(f"    change: [{row}]\n").thresholds.skus["new"].requirements if not one.check]
    assert (one.bound, one.severity, one.where) == (0.9, "fail", f"{path}:5")
    assert (one.source.measured, one.source.reasoning) == (0.97, "our switch is old (A. Name)")


# Each way to write that a requirement is off, or only warns.
@rows(
    ("section", "complaint"),
    [
        (
            f"    change: [{{check: ecc, {OFF}}}]\n",
            "node_check of ecc at world size 1 cannot be turned off: memory err",
        ),
        (f"    change: [{{check: ecc, severity: warn, {BY}}}]\n", "cannot be made to warn only: memory errors corrupt"),
        ("    checks: {ecc: warn}\n", "fails in the file below and only warns here; it has to stand: memory errors"),
        ("    requirements: [{check: ecc, severity: warn}]\n", "fails in the file below and only warns here"),
        ("    families: []\n", "ecc at world size 1 is required by the file below and not here; it has to stand"),
    ],
)
def test_what_no_site_may_weaken_stands_however_it_is_written(section: str, complaint: str, extend: Extend) -> None:
    file = extend(section)
    assert "new" in file.broken
    assert complaint in str(file.problems[0])


def test_nor_does_a_broken_file_in_between_hide_it(extend: Extend, path: Path) -> None:
    middle = path.parent / "middle.yaml"
    middle.write_text(f"{HEAD}skus: {{new: {{detect: {{memory_gib: many}}}}}}\n")
    path.write_text(
        "schema_version: 2\nextends: middle.yaml\nskus: {new: {detect: {memory_gib: 80}, checks: {ecc: warn}}}\n"
    )
    assert "only warns here; it has to stand: memory errors" in str(load_thresholds(path).broken["new"][0])


def test_a_site_may_tighten_what_stands_and_drop_the_rest(extend: Extend, path: Path) -> None:
    (path.parent / "base.yaml").write_text(BASE.replace("severity: fail}", "severity: warn}"))
    file = extend(
        "    checks: {ecc: fail}\n    change: [{check: clock, severity: fail, who: A. Name, why: it has to}]\n"
    )
    assert file.problems == ()
    assert file.thresholds.skus["new"].checks == {"ecc": "fail", "clock": "fail", "disk": "warn"}


def test_only_the_world_sizes_that_are_named_go(extend: Extend, path: Path) -> None:
    base = BASE.replace(
        "{8: 0.97}, of: r, published: paper, bound: 0.95", "{4: 0.9, 8: 0.8}, of: r, published: paper, margin: 0 %"
    )
    (path.parent / "base.yaml").write_text(base)
    left = extend(f"    change: [{{weak_scaling_efficiency: 4, of: r, {OFF}}}]\n").thresholds.skus["new"]
    assert bounds(left).keys() == {("weak_scaling_efficiency", 8), ("generation_ratio", 1)}
    gone = extend(f"    change: [{{weak_scaling_efficiency: [4, 8], of: r, {OFF}}}]\n").thresholds.skus["new"]
    assert bounds(gone).keys() == {("generation_ratio", 1)}


def test_names_of_the_nearest_file_hold_for_rows_below(path: Path) -> None:
    path.write_text(HEAD + "margins: {throughput_per_gpu: 10 %}\nsources: {paper: our own runs}\n")
    (throughput, _) = load_thresholds(path).thresholds.skus["old"].requirements
    assert (throughput.bound, throughput.source.reference) == (90, "our own runs")


@rows(
    ("section", "line", "complaint"),
    [
        ("    change: [{weak_scaling_efficiency: 4, of: r, OFF}]\n", 5,
         "there is no weak_scaling_efficiency of r at world size 4 to change; expected at world size 8"),
        ("    change: [{weak_scaling_efficiency: {8: 0.97}, of: r, OFF}]\n", 5, "names world sizes here, found {8: 0."),
        ("    change: [{weak_scaling_efficiency: 0.97, of: r, OFF}]\n", 5, "and a new bound under `bound`"),
        ("    change: [{weak_scaling_efficiency: [], of: r, OFF}]\n", 5, "has no world size; expected some, such as ["),
        ("    change: [{weak_scaling_efficiency: [x], of: r, OFF}]\n", 5, "expected a whole number from 1 to"),
        ("    change: [{weak_scaling_efficiency: 8, of: q, OFF}]\n", 5, "there is no weak_scaling_efficiency of q at"),
        ("    change: [{weak_scaling_eficiency: 8, of: r, OFF}]\n", 5, "did you mean 'weak_scaling_efficiency'?"),
        ("    change: [{busbw_gbps: 8, no_regression: any, OFF}]\n", 5, "has busbw_gbps, no_regression; expected one"),
        ("    change: [{check: gpus, OFF}]\n", 5, "there is no node_check of gpus to change; expected one of generati"),
        ("    change: all\n", 5, "skus.new.change: it is 'all'; expected a list"),
        ("    change: [{check: clock, severity: warn, why: we can}]\n", 5, "skus.new.change[0].who is missing"),
        ("    change: [{check: clock, severity: warn, who: A. Name}]\n", 5, "skus.new.change[0].why is missing"),
        ("    change: [{check: clock, severity: warn, who: '-', why: we can}]\n", 5, "'-' says nothing; expected word"),
        ("    change: [{check: clock, severity: warn, who: A. Name, why: '4711'}]\n", 5, "'4711' says nothing; expect"),
        ("    change: [{check: clock, severity: warn, because: so}]\n", 5, "`because` is written `why` in a change"),
        ("    change: [{check: clock, BY}]\n", 5, "changes nothing; expected `severity` or `bound`"),
        ("    change: [{check: clock, bound: 1, BY}]\n", 5, "a check has no bound; expected no `bound`"),
        ("    change: [{check: clock, severity: info, BY}]\n", 5, "severity is 'info'; expected 'off', 'warn' or 'fai"),
        ("    change: [{weak_scaling_efficiency: 8, of: r, bound: 0.9, OFF}]\n", 5, "a row that is off has no bound"),
        ("    change: [{weak_scaling_efficiency: any, of: r, bound: 0.9, BY}]\n", 5, "one `bound` for several world s"),
        ("    change: [{weak_scaling_efficiency: 8, of: r, bound: {4: 0.9}, BY}]\n", 5, "`bound` has other world size"),
        ("    change: [{weak_scaling_efficiency: 8, of: r, bound: 90, BY}]\n", 5, "looks like per cent"),
        ("    change: [{check: clock, OFF}, {check: clock, severity: warn, BY}]\n", 5, "there is no node_check of clo"),
        ("    change: [{check: clock, severity: warn, BY}, {check: clock, severity: fail, BY}]\n", 5, "is changed twi"),
        ("    remove: [{check: clock}]\n", 5, "skus.new.remove is replaced by `change`; expected `change: [{METRIC: S"),
        ("    waivers: [{check: clock}]\n", 5, "skus.new.waivers is replaced by `change`; expected `change: [{METRIC:"),
        ("    detect: {memory_gib: many}\n", 5, "skus.new.detect.memory_gib is 'many'; expected number"),
        ("    requirements: [{colour: red}]\n", 5, "skus.new.requirements[0]: unknown key 'colour'"),
        ("    checks: {eccc: warn}\n", 5, "there is no check 'eccc'; did you mean 'ecc'?"),
        ("    checks: {ecc: warn}\n    requirements: [{check: ecc, severity: fail}]\n", 5,
         "ecc also has a row under `requirements`; expected one of them"),
        ("    alias: [n]\n", 5, "unknown key skus.new.alias; did you mean 'aliases'?"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_the_line_of_the_file_that_has_it(
    section: str, line: int, complaint: str, extend: Extend, path: Path
) -> None:
    file = extend(section.replace("OFF", OFF).replace("BY", BY))
    assert (list(file.thresholds.skus), list(file.broken)) == (["old"], ["new"])
    (error, *_) = file.problems
    assert error.where == f"{path}:{line}"
    assert complaint in str(error)


def test_a_mistake_below_is_told_with_its_own_line(path: Path) -> None:
    (path.parent / "base.yaml").write_text(BASE.replace("nvlinks: 4", "nvlinks: few"))
    path.write_text(HEAD)
    assert (
        first_problem(path).where == f"{path.parent / 'base.yaml'}:{BASE[: BASE.index('nvlinks')].count(chr(10)) + 1}"
    )


def test_a_new_sku_may_share_what_the_file_below_names(path: Path) -> None:
    mine = "  mine:\n    description: ours\n    detect: {name: '^M$'}\n    families: [f]\n    batch: {r: 4}\n"
    path.write_text(
        f"{HEAD}skus:\n{mine}    requirements:\n      - {{throughput_per_gpu: {{1: 50}}, of: r, published: paper}}\n"
    )
    file = load_thresholds(path)
    assert file.problems == ()
    assert file.thresholds.skus["mine"].checks == {"ecc": "fail", "clock": "fail", "disk": "fail"}
    assert file.thresholds.skus["mine"].requirements[-1].bound == 47.5


def test_files_may_extend_each_other_in_a_chain_but_in_no_circle(path: Path) -> None:
    path.write_text(f"{HEAD}sources: {{paper: site}}\n")
    nearest = path.parent / "rack.yaml"
    nearest.write_text("schema_version: 2\nextends: site.yaml\nskus: {old: {description: ours}}\n")
    old = load_thresholds(nearest).thresholds.skus["old"]
    assert (old.description, old.requirements[0].source.reference) == ("ours", "site")
    (path.parent / "base.yaml").write_text("schema_version: 2\nextends: rack.yaml\n")
    circle = r"base.yaml:2: extends 'rack.yaml', which extends this file; expected no circle"
    with pytest.raises(ThresholdsError, match=circle):
        load_thresholds(nearest)
    path.write_text("schema_version: 2\nextends: ./site.yaml\n")
    with pytest.raises(ThresholdsError, match=r"site.yaml:2: extends './site.yaml', which extends this file"):
        load_thresholds(path)


def test_a_mistake_in_the_middle_of_a_chain_is_told_with_its_line(path: Path) -> None:
    path.write_text(f"{HEAD}\nskus: {{old: {{alias: [o]}}}}\n")
    nearest = path.parent / "rack.yaml"
    nearest.write_text("schema_version: 2\nextends: site.yaml\nskus: {old: {description: ours}}\n")
    assert first_problem(nearest).where == f"{path}:4"


def test_a_chain_has_an_end(path: Path) -> None:
    below = "base.yaml"
    for name in ("a", "b", "c", "d", "e"):
        (path.parent / f"{name}.yaml").write_text(f"schema_version: 2\nextends: {below}\n")
        below = f"{name}.yaml"
    assert len(load_thresholds(path.parent / "d.yaml").layers) == 5
    with pytest.raises(ThresholdsError, match=r"a.yaml:2: more than 4 files that extend each other; expected fewer"):
        load_thresholds(path.parent / "e.yaml")


@rows(
    ("extends", "complaint"),
    [
        (
            "packged",
            r"site.yaml:2: extends .*packged, which does not exist; expected `packaged` or the path of a YAML file",
        ),
        ("''", r"site.yaml:2: extends is ''; expected `packaged` or a path"),
        ("[a]", r"site.yaml:2: extends is \['a'\]; expected `packaged` or a path"),
        ('"a\\0b"', "site.yaml:2: .*cannot be read"),
        ("/dev/zero", "site.yaml:2: extends /dev/zero, which is a device or a pipe; expected `packaged` or the path"),
        (".", r"site.yaml:2: extends .*, which cannot be read \(it is a directory\)"),
    ],
)
def test_what_cannot_be_extended_is_told(extends: str, complaint: str, path: Path) -> None:
    path.write_text(f"schema_version: 2\nextends: {extends}\n")
    with pytest.raises(ThresholdsError, match=complaint):
        load_thresholds(path)
