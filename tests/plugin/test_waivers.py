"""A site's file that waives failures or asks for less: what the session says, and its exit code."""

from __future__ import annotations

from datetime import date, timedelta
from xml.etree import ElementTree

import pytest

from pytest_ddpscale.thresholds.waiver import today
from tests.plugin.site import (
    REQUIREMENTS,
    WEAK_8,
    Site,
    assert_no_crash,
    assert_refused,
    output_of,
    thresholds_text,
    thresholds_with,
)

ALL = len(REQUIREMENTS)
MISSED = "weak_scaling_efficiency[resnet152-fp16-8gpu]"
TOMORROW = today() + timedelta(1)


def overlay(site: Site, *lines: str) -> str:
    """A file that extends the site's thresholds, of which one requirement is not kept; the option that names it."""
    site.write("thresholds.yaml", thresholds_with(WEAK_8, "bound: 0.96", "bound: 0.98"))
    own = ["schema_version: 2", "extends: thresholds.yaml", "skus:", "  tested-gpu:", *(f"    {one}" for one in lines)]
    site.write("own.yaml", "\n".join(own) + "\n")
    site.measured()
    return "--thresholds=own.yaml"


def waiver(until: date | None = TOMORROW, row: str = "weak_scaling_efficiency: 8, of: resnet152-fp16") -> str:
    """The line of a waiver of the requirement that is not kept."""
    ends = f", until: {until}" if until else ""
    return f"waivers: [{{{row}, who: A. Name, why: the fan of GPU 3 is ordered{ends}}}]"


def outcome_line(result: pytest.RunResult) -> str:
    """What the run comes to."""
    words = ("ACCEPTED", "REJECTED", "INCOMPLETE", "PARTIAL")
    [line] = [line for line in result.outlines if line.startswith(words)]
    return line


def test_a_waived_failure_is_accepted_under_another_name_and_signed_for(site: Site) -> None:
    result = site.judge(overlay(site, waiver()))
    assert_no_crash(result)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=ALL - 1, xfailed=1)
    counts = f"{ALL - 1} of {ALL} requirements met, 1 waived"
    assert outcome_line(result) == f"ACCEPTED WITH WAIVERS: {counts}"
    begins = result.outlines.index(outcome_line(result)) + 1
    said = f"waived by A. Name until {TOMORROW}: the fan of GPU 3 is ordered"
    assert said in " ".join(line.strip() for line in result.outlines[begins : begins + 3])
    judgement = site.verdicts()
    assert (judgement["outcome"], judgement["blockers"]) == ("accepted_with_waivers", [])
    [verdict] = [one for one in judgement["verdicts"] if one["outcome"] == "failed"]
    assert verdict["waiver"] == {"who": "A. Name", "why": "the fan of GPU 3 is ordered", "until": str(TOMORROW)}

    report = (site.path / "measured" / "report.md").read_text(encoding="utf-8")
    assert report.startswith("# ACCEPTED WITH WAIVERS: tested-gpu\n")
    waivers, signatures = report.split("## Waivers")[1].split("## Signatures")
    assert f"| {MISSED} | 97.5 % | ≥ 98.0 % | A. Name | {TOMORROW} | the fan of GPU 3 is ordered |" in waivers
    assert "bounds and waivers, and that its outcome is **ACCEPTED WITH WAIVERS**" in signatures
    assert "only warns" not in report

    suite = ElementTree.parse(site.path / "measured" / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "0", "1")
    [skipped] = suite.iter("skipped")
    assert skipped.get("type") == "waived"
    assert (skipped.get("message") or "").startswith(f"{said}: the whole interval misses the bound")


def test_other_failures_reject_whatever_is_waived(site: Site) -> None:
    harder = "{device_utilization: {8: 1}, of: resnet152-fp16, published: paper, bound: 0.99, because: x}"
    result = site.judge(overlay(site, waiver(), f"requirements: [{harder}]"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=ALL - 2, xfailed=1, failed=1)
    assert outcome_line(result).startswith("REJECTED: GPU 7 (GPU-00000007) on node7: least busy of 8")


def test_a_selection_with_a_waiver_stays_partial(site: Site) -> None:
    result = site.judge(overlay(site, waiver()), "-k", "weak_scaling")
    assert result.ret == pytest.ExitCode.OK
    assert outcome_line(result) == f"PARTIAL: 2 of {ALL} requirements met, 1 waived; the others were not selected"


def test_a_waiver_that_has_ended_rejects_by_itself(site: Site) -> None:
    ended = today() - timedelta(1)
    result = site.judge(overlay(site, waiver(ended)))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert outcome_line(result).startswith(f"REJECTED: {MISSED} is ")
    assert f"note: waiver by A. Name ended {ended}" in output_of(result)


def test_a_waiver_without_an_end_is_refused_with_its_line(site: Site) -> None:
    result = site.judge(overlay(site, waiver(None)))
    assert_refused(result, "own.yaml:5: skus.tested-gpu.waivers[0].until is missing")


def test_a_waiver_of_what_is_between_nodes_is_refused(site: Site) -> None:
    row = "{throughput_per_gpu: {all: 500}, of: resnet152-fp16, published: paper, bound: 1, because: x}"
    asked = overlay(site, f"requirements: [{row}]", waiver(row="throughput_per_gpu: all, of: resnet152-fp16"))
    assert_refused(site.judge(asked), "own.yaml:6: ", "cannot be waived: it covers links between nodes")


def test_the_headline_says_how_much_less_the_site_asks_for(site: Site) -> None:
    lower = "{weak_scaling_efficiency: {8: 0.99}, of: resnet152-fp16, published: paper, bound: 0.97, because: x}"
    removed = "remove: [{device_utilization: 8, of: resnet152-fp16}]"
    warns = "change: [{peak_memory_gib: 8, of: resnet152-fp16, severity: warn, because: x}]"
    result = site.judge(overlay(site, f"requirements: [{lower}]", removed, warns))
    assert_no_crash(result)
    assert result.ret == pytest.ExitCode.OK
    less = "1 bound lowered by the site, 1 requirement not asked, 1 requirement made a warning"
    assert outcome_line(result) == f"ACCEPTED: {ALL - 1} of {ALL - 1} requirements passed; {less}"
    weak = "weak_scaling_efficiency of resnet152-fp16 at world size 8"
    assert f"lowered by the site: {weak}: ≥ 98.0 % → ≥ 97.0 %" in result.outlines
    first_page = (site.path / "measured" / "report.md").read_text(encoding="utf-8").split("## The rest")[0]
    assert less in first_page.splitlines()[2]
    assert f"| {weak} | ≥ 98.0 % | ≥ 97.0 % |" in first_page
    assert "| device_utilization of resnet152-fp16 at world size 8 | ≥ 95.0 % | not asked |" in first_page
    assert "| peak_memory_gib of resnet152-fp16 at world size 8 | ≤ 46.3 GiB | ≤ 46.3 GiB, only warns |" in first_page
    assert [one["now"] for one in site.verdicts()["lowered"]] == [0.97, None, 46.3]


def test_a_site_that_asks_for_more_has_lowered_nothing(site: Site) -> None:
    higher = "{throughput_per_gpu: {1: 500}, of: resnet152-fp16, published: paper, bound: 1131, because: x}"
    result = site.judge(overlay(site, f"requirements: [{higher}]", waiver()))
    assert outcome_line(result) == f"ACCEPTED WITH WAIVERS: {ALL - 1} of {ALL} requirements met, 1 waived"
    assert site.verdicts()["lowered"] == []


def test_what_a_file_in_between_lowers_is_lowered_too(site: Site) -> None:
    lower = "{weak_scaling_efficiency: {8: 0.97}, of: resnet152-fp16, published: paper, bound: 0.96, because: x}"
    option = overlay(site, f"requirements: [{lower}]")
    site.write("outer.yaml", "schema_version: 2\nextends: own.yaml\n")
    assert site.judge(option).ret == pytest.ExitCode.OK
    result = site.judge("--thresholds=outer.yaml")
    assert result.ret == pytest.ExitCode.OK
    assert outcome_line(result) == f"ACCEPTED: {ALL} of {ALL} requirements passed; 1 bound lowered by the site"


def test_what_else_lets_a_machine_keep_its_bounds_is_said(site: Site) -> None:
    option = overlay(
        site,
        "node: {nvlinks: 1}",
        "requirements: [{weak_scaling_efficiency: {8: 0.97}, of: resnet152-fp16, published: paper, margin: 0 %}]",
        "remove: [{weak_scaling_efficiency: 8, of: resnet152-fp16}]",
        "detect: {memory_gib: 40}",
        "beyond_node: dropped",
        "aliases: [another-name]",
        "batch: {resnet18-fp32: 4}",
    )
    slower = "{throughput_per_gpu: {1: 250}, of: resnet152-fp16, published: paper, margin: 5 %}"
    own = (site.path / "own.yaml").read_text(encoding="utf-8")
    site.write("own.yaml", f"{own}  reference-gpu: {{requirements: [{slower}]}}\n")
    result = site.judge(option)
    assert result.ret == pytest.ExitCode.OK, output_of(result)
    ratio = "generation_ratio of resnet152-fp16 at world size 1"
    reference = f"throughput of reference-gpu that {ratio} is relative to (500 → 250 img/s)"
    assert outcome_line(result).endswith(
        f"1 requirement not asked by the site; changed by the site: `detect`, `node`, `beyond_node`, {reference}"
    )


def test_another_model_under_the_same_name_is_said(site: Site) -> None:
    option = overlay(site, "waivers: []")
    easier = "workloads: {vit-b-16-fp16: {model: resnet18, precision: fp16}}"
    site.write("own.yaml", (site.path / "own.yaml").read_text(encoding="utf-8") + easier + "\n")
    assert outcome_line(site.judge(option)).endswith(
        "; changed by the site: what vit-b-16-fp16 trains (model vit_b_16 → resnet18)"
    )


def test_a_file_below_may_have_names_alone(site: Site) -> None:
    own = thresholds_text().removeprefix("schema_version: 2\n")
    site.write("names.yaml", "schema_version: 2\nreasons: {measured: by us}\n")
    site.write("own.yaml", f"schema_version: 2\nextends: names.yaml\n{own}")
    site.measured()
    assert outcome_line(site.judge("--thresholds=own.yaml")) == f"ACCEPTED: {ALL} of {ALL} requirements passed"


@pytest.mark.parametrize("own", ["own.yaml", "outer.yaml"])
def test_bounds_of_the_site_alone_are_said_to_accept(site: Site, own: str) -> None:
    """A new row of a bound that everything keeps accepts a machine of which the file below knows nothing for sure."""
    provisional = "{weak_scaling_efficiency: {8: 0.9}, of: resnet152-fp16, provisional: x}"
    easy = "{throughput_per_gpu: {8: 1}, of: resnet152-fp16, published: paper, margin: 5 %}"
    option = overlay(site, f"requirements: [{easy}]")
    site.write("outer.yaml", "schema_version: 2\nextends: own.yaml\n")
    site.write("thresholds.yaml", thresholds_text([provisional]))
    assert outcome_line(site.judge()).startswith(
        "INCOMPLETE: 1 of 1 requirements passed, but none with a published bound"
    )
    said = "ACCEPTED: 2 of 2 requirements passed; changed by the site: the bounds that it is accepted by"
    assert outcome_line(site.judge(option.replace("own.yaml", own))) == said
