"""--gpu-sku: which GPU model is judged by."""

from __future__ import annotations

import pytest

from tests.plugin.site import REQUIREMENTS, Site, assert_refused, output_of

PLAN = "ddpscale plan for tested-gpu"


def assert_nothing_was_made(site: Site) -> None:
    assert not (site.path / "ddpscale-runs").exists()


def test_an_unknown_one_is_refused_with_the_nearest_name(site: Site) -> None:
    result = site.run("--gpu-sku=tested-gpus", "--collect-only")
    assert_refused(
        result, "--gpu-sku: ", "thresholds.yaml has no SKU 'tested-gpus'; expected one of cpu, reference-gpu, tested",
        "Did you mean --gpu-sku=tested-gpu?",
    )  # fmt: skip
    assert "test_weak_scaling_efficiency" not in output_of(result)
    assert_nothing_was_made(site)


def test_one_that_this_machine_is_not_is_refused_with_what_can_be_done_here(site: Site) -> None:
    site.thresholds.unlink()
    result = site.run("--gpu-sku=b200")
    assert_refused(
        result, "--gpu-sku=b200: no NVIDIA GPU is visible here", "expected GPUs of SKU b200", "--gpu-sku=cpu",
        "--ddp-judge",
    )  # fmt: skip
    assert_nothing_was_made(site)


def test_a_published_reference_is_refused(site: Site) -> None:
    result = site.run("--gpu-sku=reference-gpu")
    assert_refused(result, "--gpu-sku=reference-gpu", "published reference", "Use --gpu-sku=auto.")
    assert_nothing_was_made(site)


def test_an_alias_is_taken(site: Site) -> None:
    result = site.run("--gpu-sku=tested", "--collect-only")
    assert result.ret == pytest.ExitCode.OK
    assert PLAN in output_of(result)


def test_the_environment_does_not_name_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPSCALE_GPU_SKU", "tested")
    result = site.run("--collect-only")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "DDPSCALE_GPU_SKU: is set, but not read" in result.stderr.str()


def test_in_the_environment_it_does_not_take_over_another_project(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exported for a whole site, it must not replace a project's own tests by acceptance tests."""
    (site.path / "acceptance").rename(site.path / "elsewhere")
    site.write("test_other.py", "def test_other():\n    pass\n")
    monkeypatch.setenv("DDPSCALE_GPU_SKU", "tested")
    result = site.run("test_other.py")
    assert result.ret == pytest.ExitCode.OK
    everything = site.run("--ignore=elsewhere", "--collect-only", "-q")
    assert "test_other.py::test_other" in output_of(everything)
    assert "test_weak_scaling_efficiency" not in output_of(everything)


def test_the_ini_file_names_it(site: Site) -> None:
    site.configure(gpu_sku="tested")
    result = site.run("--collect-only")
    assert result.ret == pytest.ExitCode.OK
    assert PLAN in output_of(result)


def test_alone_it_runs_the_acceptance_tests_that_come_with_the_package(site: Site) -> None:
    """`pytest --gpu-sku=…` in a directory that has none."""
    (site.path / "acceptance").rename(site.path / "elsewhere")
    site.write("test_other.py", "def test_other():\n    assert False\n")
    result = site.run("--gpu-sku=tested", "--collect-only", "-q")
    assert result.ret == pytest.ExitCode.OK
    items = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert sorted(items) == sorted(REQUIREMENTS)


def test_alone_it_prefers_the_sites_own_acceptance_tests(site: Site) -> None:
    for module in (site.path / "acceptance").glob("test_[dnp]*.py"):
        module.unlink()
    result = site.run("--gpu-sku=tested", "--collect-only", "-q")
    items = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert sorted(items) == sorted(item for item in REQUIREMENTS if "device" not in item and "memory" not in item)


def test_judging_takes_the_same_one(site: Site) -> None:
    site.measured()
    assert site.judge("--gpu-sku=tested").ret == pytest.ExitCode.OK


@pytest.mark.parametrize(("option", "testpaths"), [("--gpu-sku=tested", False), ("--ddp-judge=measured", True)])
def test_it_never_ends_well_without_a_test_that_judges(site: Site, option: str, testpaths: bool) -> None:
    """A green run of other tests must not be taken for an acceptance."""
    site.measured()
    (site.path / "acceptance").rename(site.path / "elsewhere")
    site.write("tests/test_login.py" if testpaths else "acceptance/test_login.py", "def test_login():\n    pass\n")
    if testpaths:
        site.configure(testpaths="tests")
    assert_refused(site.run(option), "no test here uses `requirement`", "ddpscale init DIR")
