"""--thresholds: which file is judged by, and what is wrong with it."""

from __future__ import annotations

import pytest

from tests.plugin.site import REQUIREMENTS, WEAK_8, Site, assert_refused, contents, output_of, thresholds_with

WEAK_8_LINE = next(
    number
    for number, line in enumerate(thresholds_with(WEAK_8, "0.96", "0.961").splitlines(), start=1)
    if "at_least: 0.961" in line
)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("at_least: 0.96", "at_least: [0.96", ["not valid YAML"]),
        ("at_least: 0.96", "at_least: 0.96, at_least: 0.97", ["key 'at_least' is given twice"]),
        ("at_least: 0.96", "at_leest: 0.96", ["unknown key", "at_leest"]),
        ("at_least: 0.96", "at_least: 96", ["looks like per cent", "0.96"]),
        ("at_least: 0.96", "at_least: .nan", ["at_least is nan"]),
        ("at_least: 0.96", "at_least: 0.96, at_most: 0.97", ["needs exactly one bound"]),
        ("world_size: 8", "world_size: 2", ["is required twice"]),
        ("workload: resnet152-fp16", "workload: resnet512-fp16", ["workload 'resnet512-fp16' is not defined"]),
        ("source: *paper", "source: *papers", ["not valid YAML", "papers"]),
    ],
    ids=["malformed", "duplicate", "unknown", "percent", "nan", "two-bounds", "contradictory", "workload", "anchor"],
)
def test_a_mistake_is_refused_with_file_and_line(site: Site, old: str, new: str, parts: list[str]) -> None:
    run = site.measured()
    site.write("thresholds.yaml", thresholds_with(WEAK_8, old, new))
    before = contents(run.path)
    result = site.judge()
    # A bracket left open is found where the next line begins to make no sense.
    lines = (WEAK_8_LINE, WEAK_8_LINE + 1) if parts == ["not valid YAML"] else (WEAK_8_LINE,)
    assert any(f"ERROR: {site.thresholds}:{line}: " in output_of(result) for line in lines), output_of(result)
    assert_refused(result, *parts)
    assert contents(run.path) == before


@pytest.mark.parametrize("name", ["no-such-file.yaml", "acceptance"])
def test_a_file_that_cannot_be_read_is_refused(site: Site, name: str) -> None:
    result = site.run("--gpu-sku=tested", f"--thresholds={name}")
    assert_refused(result, f"ERROR: {name}: cannot be read", "expected a YAML file", "Check --thresholds.")


def test_an_empty_file_is_refused(site: Site) -> None:
    site.write("thresholds.yaml", "")
    assert_refused(site.run("--gpu-sku=tested"), "thresholds.yaml:1: the file is empty", "expected `schema_version: 1`")


def test_a_newer_schema_is_refused(site: Site) -> None:
    site.write("thresholds.yaml", site.thresholds.read_text(encoding="utf-8").replace("version: 1", "version: 2"))
    assert_refused(site.run("--gpu-sku=tested"), "thresholds.yaml:1: schema_version is 2; expected 1")


def test_the_file_named_wins_over_the_one_in_the_project(site: Site) -> None:
    site.measured()
    site.write("strict.yaml", thresholds_with(WEAK_8, "at_least: 0.96", "at_least: 0.99"))
    assert site.judge().ret == pytest.ExitCode.OK
    result = site.judge("--thresholds=strict.yaml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=len(REQUIREMENTS) - 1, failed=1)
    assert "rerun     pytest --gpu-sku=tested-gpu --thresholds=strict.yaml '" in output_of(result)


def test_without_one_in_the_project_the_shipped_file_is_used(site: Site) -> None:
    site.thresholds.unlink()
    result = site.run("--gpu-sku=a100", "--collect-only")
    assert result.ret == pytest.ExitCode.OK
    assert "ddpscale plan for a100-sxm4-80gb" in output_of(result)


def test_the_file_judged_by_is_named(site: Site) -> None:
    result = site.run("--gpu-sku=tested", "--collect-only")
    assert f"ddpscale judges by {site.thresholds}" in output_of(result)
