"""Values that make no sense, wherever they come from."""

from __future__ import annotations

import pytest

from tests.plugin.site import REQUIREMENTS, Site, assert_refused, output_of


def test_a_misspelt_option_is_refused_with_the_one_it_resembles(site: Site) -> None:
    assert_refused(result := site.run("--sku=cpu", "acceptance"), "usage: ")
    assert "unrecognized arguments: --sku=cpu\n  ddpscale: did you mean '--gpu-sku'?\n" in output_of(result)
    gone = site.run("--ddp-launches=3", "acceptance")
    assert "  ddpscale: runs on several days, which ddpscale compare and the history" in output_of(gone)


def test_pytest_alone_where_no_test_is_says_how_to_begin(site: Site) -> None:
    (site.path / "empty").mkdir()
    for arguments, is_told in (("--rootdir=empty", True), ("-k x", False), ("empty", False)):
        output = output_of(site.run("--ignore=acceptance", *arguments.split()))
        assert ("ddpscale: `pytest --gpu-sku=auto` judges the GPUs of this machine" in output) == is_told


def test_switches_work_from_the_ini_file(site: Site) -> None:
    site.write("thresholds.yaml", site.thresholds.read_text(encoding="utf-8").replace("per_gpu: 1024", "per_gpu: 8"))
    site.measured()
    assert site.judge().ret == pytest.ExitCode.TESTS_FAILED, "the ViT was measured with another batch"
    site.configure(ddp_allow_incomplete="on")
    assert site.judge().ret == pytest.ExitCode.OK


def test_the_command_line_wins_over_the_ini_file(site: Site) -> None:
    def asked(*arguments: str) -> list[str]:
        result = site.run("--collect-only", "-q", "--gpu-sku=tested", *arguments)
        return [line.partition("::")[2] for line in result.outlines if "::" in line]

    site.configure(ddp_world_sizes="2")
    assert asked() == ["test_weak_scaling_efficiency[resnet152-fp16-2gpu]"]
    assert sorted(asked("--ddp-world-sizes=8")) == sorted(item for item in REQUIREMENTS if "-8gpu" in item)


def test_a_confidence_other_than_the_usual_widens_the_intervals(site: Site) -> None:
    site.measured()
    site.judge()
    site.judge("--ddp-confidence=0.999")
    judged = (site.verdicts(directory)["verdicts"] for directory in ("measured", "measured/judged-1"))
    # Of rates most of the interval are differences between launches.
    usual, wide = (next(one for one in of if one["metric"] == "weak_scaling_efficiency") for of in judged)
    assert (usual["confidence"], wide["confidence"]) == (0.95, 0.999)
    assert wide["interval"][1] - wide["interval"][0] > 1.5 * (usual["interval"][1] - usual["interval"][0])


def test_the_model_of_gpus_that_are_elsewhere_has_to_be_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = site.path / "bin"
    programs.mkdir()
    (programs / "srun").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    result = site.run("--gpu-sku=auto", "--ddp-nodes=2", "--ddp-gpus-per-node=8")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "cannot look at GPUs on other machines; expected a model" in result.stderr.str()


def test_an_option_that_may_stand_alone_then_has_a_value_of_its_own(site: Site) -> None:
    assert site.run("--collect-only", "-q", "--gpu-sku=tested", "acceptance", "--ddp-profile").ret == 0
