"""--collect-only: the plan, on a machine that has none of the GPUs."""

from __future__ import annotations

import re

import pytest

from tests.plugin.site import MEASURED_RUN, REQUIREMENTS, WEAK_8_NODE_ID, Site, assert_no_crash, contents, output_of

HEAD = re.compile(
    r"^ddpscale plan for (\S+): (\d+) requirements?, (\d+) stud(?:y|ies)(?: and \d+ probes?)?, about ([\d.]+) min on "
    r"(\d+) (GPU|core)s? = ([\d.]+) (?:GPU|core)-hours"
)


def plan_head(result: pytest.RunResult) -> re.Match[str]:
    """The first line of the plan, taken apart."""
    (head,) = [match for line in result.outlines if (match := HEAD.match(line))]
    return head


def test_the_plan_is_printed_with_studies_arms_minutes_and_gpu_hours(site: Site) -> None:
    result = site.run("--gpu-sku=tested", "--collect-only", "-q")
    assert result.ret == pytest.ExitCode.OK
    sku, requirements, studies, minutes, ranks, device, hours = plan_head(result).groups()
    assert (sku, int(requirements), int(studies), int(ranks), device) == ("tested-gpu", len(REQUIREMENTS), 3, 8, "GPU")
    assert float(minutes) > 1
    assert float(hours) == pytest.approx(float(minutes) * 8 / 60, abs=0.02)
    output = output_of(result)
    for series in MEASURED_RUN:
        assert f"{series.arm.name} (batch {series.arm.batch_size})" in output
    for study in ("weak/resnet152-fp16", "weak/vit-b-16-fp16", "strong/vit-b-16-fp16"):
        assert re.search(rf"^  {study} +[\d.]+ min  at most 32 rounds of ", output, re.MULTILINE)


def test_the_shipped_thresholds_of_a_b200_can_be_planned_anywhere(site: Site) -> None:
    site.thresholds.unlink()
    result = site.run("--gpu-sku=b200", "--collect-only")
    assert result.ret == pytest.ExitCode.OK
    assert plan_head(result)[1] == "b200"
    probes = r"^  probes +[\d.]+ min  at most 16 rounds of matmul-fp16, .*\ball-reduce-32mib@8\b"
    assert re.search(probes, output_of(result), re.MULTILINE)
    assert "NOTSET" not in output_of(result)


def test_the_plan_is_of_what_was_selected(site: Site) -> None:
    result = site.run("--gpu-sku=tested", "--collect-only", WEAK_8_NODE_ID)
    assert plan_head(result).groups()[1:3] == ("1", "1")
    assert "vit-b-16" not in output_of(result).partition("ddpscale plan")[2]


def test_rounds_and_blocks_are_those_asked_for(site: Site) -> None:
    usual = plan_head(site.run("--gpu-sku=tested", "--collect-only"))
    result = site.run("--gpu-sku=tested", "--collect-only", "--ddp-rounds=20", "--ddp-block=6s")
    assert "at most 20 rounds of " in output_of(result)
    assert float(plan_head(result)[4]) > 1.5 * float(usual[4])


def test_judging_says_what_would_be_judged_and_writes_nothing(site: Site) -> None:
    run = site.measured()
    before = contents(run.path)
    result = site.judge("--collect-only")
    assert result.ret == pytest.ExitCode.OK
    assert "; evidence from measured (no new measurement)" in output_of(result)
    assert "ACCEPTED" not in output_of(result)
    assert contents(run.path) == before


@pytest.mark.parametrize(
    "option", ["--collect-only", "--fixtures", "--fixtures-per-test", "--setup-plan", "--setup-only"]
)
def test_what_runs_no_test_leaves_no_trace(site: Site, option: str) -> None:
    run = site.measured()
    before = contents(run.path)
    result = site.run(option, "--ddp-judge=measured" if option == "--setup-plan" else "--gpu-sku=tested")
    assert_no_crash(result)
    assert result.ret == pytest.ExitCode.OK, output_of(result)
    assert not (site.path / "ddpscale-runs").exists()
    assert contents(run.path) == before


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--help", ("--gpu-sku=SKU", "--thresholds=FILE", "--ddp-run-dir=DIR", "--ddp-judge=RUN_DIR")),
        ("--markers", ("@pytest.mark.requirement",)),
    ],
)
def test_asking_about_pytest_itself_needs_no_gpu(site: Site, option: str, told: tuple[str, ...]) -> None:
    result = site.run(option, "--gpu-sku=b200")
    assert result.ret == pytest.ExitCode.OK
    assert "ERROR" not in output_of(result)
    assert [word for word in told if word not in output_of(result)] == []
