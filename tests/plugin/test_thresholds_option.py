"""--thresholds: which file is judged by, and what is wrong with it."""

from __future__ import annotations

import pytest

from tests.plugin.site import REQUIREMENTS, WEAK_8, Site, assert_refused, contents, output_of, thresholds_with

WEAK_8_LINE = next(
    number
    for number, line in enumerate(thresholds_with(WEAK_8, "0.96", "0.961").splitlines(), start=1)
    if "bound: 0.961" in line
)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("bound: 0.96", "bound: [0.96", ["not valid YAML"]),
        ("bound: 0.96", "buond: 0.96", ["unknown key", "did you mean 'bound'"]),
    ],
    ids=["malformed", "unknown"],
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


def test_a_file_that_cannot_be_read_is_refused(site: Site) -> None:
    result = site.run("--gpu-sku=tested", "--thresholds=acceptance")
    assert_refused(result, "ERROR: acceptance: cannot be read", "expected a YAML file", "Check --thresholds.")


def test_the_file_named_wins_over_the_one_in_the_project(site: Site) -> None:
    site.measured()
    site.write("strict.yaml", thresholds_with(WEAK_8, "bound: 0.96", "bound: 0.99"))
    assert site.judge().ret == pytest.ExitCode.OK
    result = site.judge("--thresholds=strict.yaml", "-v")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=len(REQUIREMENTS) - 1, failed=1)
    assert "rerun     pytest --gpu-sku=tested-gpu --thresholds=strict.yaml -k '" in output_of(result)


def test_without_one_in_the_project_the_shipped_file_is_used(site: Site) -> None:
    site.thresholds.unlink()
    result = site.run("--gpu-sku=a100", "--collect-only")
    assert result.ret == pytest.ExitCode.OK
    assert "ddpscale plan for a100-sxm4-80gb" in output_of(result)
