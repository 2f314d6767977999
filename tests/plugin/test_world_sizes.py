"""--ddp-world-sizes and --ddp-gpus-per-node: how many train together."""

from __future__ import annotations

import os

import pytest

from tests.plugin.site import REQUIREMENTS, Site, assert_refused, output_of

MORE_THAN_THERE_ARE = len(os.sched_getaffinity(0)) + 1


def items(result: pytest.RunResult) -> list[str]:
    return sorted(line.partition("::")[2] for line in result.outlines if "::" in line)


def test_only_those_world_sizes_are_judged_and_the_run_is_partial(site: Site) -> None:
    site.measured()
    result = site.judge("--ddp-world-sizes=2")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1, deselected=len(REQUIREMENTS) - 1)
    assert "PARTIAL: 1 of 8 requirements passed; the others were not selected" in result.outlines
    assert site.outcome() == "partial"


def test_several_world_sizes(site: Site) -> None:
    result = site.run("--gpu-sku=tested", "--collect-only", "-q", "--ddp-world-sizes= 2, 1 ")
    assert items(result) == sorted(i for i in REQUIREMENTS if "-8gpu" not in i)


def test_a_world_size_that_nothing_requires_selects_nothing(site: Site) -> None:
    run = site.measured()
    result = site.judge("--ddp-world-sizes=3")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert not run.verdicts_json.exists()


def test_more_ranks_than_cores_are_refused_with_the_way_to_share_them(site: Site) -> None:
    result = site.run("--gpu-sku=cpu", f"--ddp-world-sizes=1,{MORE_THAN_THERE_ARE}")
    assert_refused(
        result,
        f"--ddp-world-sizes: found {MORE_THAN_THERE_ARE}, but {MORE_THAN_THERE_ARE - 1} CPU cores can be used",
        f"expected at most {MORE_THAN_THERE_ARE - 1}",
        f"--ddp-gpus-per-node={MORE_THAN_THERE_ARE} lets ranks share cores",
    )
    assert not (site.path / "ddpscale-runs").exists()


def test_ranks_may_share_cores(site: Site) -> None:
    arguments = (f"--ddp-gpus-per-node={MORE_THAN_THERE_ARE}", f"--ddp-world-sizes=1,{MORE_THAN_THERE_ARE}")
    result = site.run("--gpu-sku=cpu", "--collect-only", "-q", *arguments)
    assert result.ret == pytest.ExitCode.OK
    assert items(result) == ["test_throughput_per_gpu[resnet18-fp32-1rank]"]


def test_a_plan_for_fewer_gpus_leaves_out_the_larger_arms(site: Site) -> None:
    plan = output_of(site.run("--gpu-sku=tested", "--collect-only", "--ddp-gpus-per-node=2"))
    assert "ddp@2 (batch 512)" in plan
    assert "ddp@8" not in plan


def test_a_world_size_beyond_the_gpus_is_refused(site: Site) -> None:
    result = site.run("--gpu-sku=tested", "--collect-only", "--ddp-gpus-per-node=2", "--ddp-world-sizes=8")
    assert_refused(result, "--ddp-world-sizes: found 8, but ", "expected at most 2")
