"""What a site's history says of how much a node differs from night to night."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale.calibrate.from_history import past_values
from pytest_ddpscale.calibrate.trusted_runs import TrustedRun, read_trusted_run
from pytest_ddpscale.errors import HistoryError
from pytest_ddpscale.history.recording import add_run
from pytest_ddpscale.plan.arm import OneGpu
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.thresholds.cases import AnyCase, Case, cases_for
from tests.builders.clusters import thresholds
from tests.builders.judged import WORKLOAD
from tests.builders.nights import SKU, judged_run

NAME = "throughput_per_gpu[tried-2gpu]"


def case(world_size: int = 2, one_gpu: OneGpu = "alone") -> AnyCase:
    """On the throughput of the nights' workload, of several GPUs under DDP."""
    some = next(
        one for one in cases_for(thresholds(), "a100-sxm4-80gb", Layout(1, 8))
        if isinstance(one, Case) and one.requirement.metric == "throughput_per_gpu"
    )  # fmt: skip
    requirement = replace(some.requirement, world_size=world_size, one_gpu=one_gpu)
    return replace(
        some, requirement=requirement, workload=WORKLOAD, world_size=world_size, name=f"tried-{world_size}gpu"
    )


@pytest.fixture
def site(tmp_path: Path) -> tuple[Path, TrustedRun]:
    """A history of two nodes over four nights, and a run of the fifth night, which is in it as well."""
    history = tmp_path / "history.sqlite"
    for night, (fast, slow) in enumerate([(100.0, 90.0), (101.0, 91.0), (102.0, 92.0), (103.0, 93.0)]):
        add_run(history, judged_run(tmp_path / str(night), night, {"n1": [fast, fast + 5], "n2": [slow, slow]}).path)
    last = judged_run(tmp_path / "last", 4, {"n1": [110.0, 110.0], "n2": [95.0, 95.0]})
    add_run(history, last.path)
    return history, read_trusted_run(last.path)


def test_each_node_has_its_other_launches(site: tuple[Path, TrustedRun]) -> None:
    history, run = site
    found = past_values(history, SKU, [run], [case(), case(world_size=8)])
    assert found.keys() == {NAME}
    assert found[NAME]["n1"] == pytest.approx([100.0, 101.0, 102.0, 103.0])
    assert found[NAME]["n2"] == pytest.approx([90.0, 91.0, 92.0, 93.0])


def test_other_software_and_rejected_runs_are_passed_over(tmp_path: Path, site: tuple[Path, TrustedRun]) -> None:
    history, run = site
    other = {"torch": "2.13.0", "cuda": "13.0"}
    add_run(history, judged_run(tmp_path / "other", 5, {"n1": [50.0, 50.0]}, versions=other).path)
    add_run(history, judged_run(tmp_path / "rejected", 6, {"n1": [50.0, 50.0]}, outcome="rejected").path)
    assert min(past_values(history, SKU, [run], [case()])[NAME]["n1"]) == pytest.approx(100.0)


def test_gpus_alone_count_with_their_mean(site: tuple[Path, TrustedRun]) -> None:
    history, run = site
    found = past_values(history, SKU, [run], [case(world_size=1)])["throughput_per_gpu[tried-1gpu]"]
    assert found["n1"] == pytest.approx([100.0, 101.0, 102.0, 103.0])


def test_one_gpu_under_ddp_does_not_have_the_past_of_one_alone(site: tuple[Path, TrustedRun]) -> None:
    history, run = site
    assert past_values(history, SKU, [run], [case(world_size=1, one_gpu="ddp")]) == {}


def test_a_simulated_run_finds_no_machines_past(site: tuple[Path, TrustedRun]) -> None:
    history, run = site
    assert past_values(history, SKU, [replace(run, is_simulated=True)], [case()]) == {}


def test_there_has_to_be_a_history(tmp_path: Path, site: tuple[Path, TrustedRun]) -> None:
    with pytest.raises(HistoryError):
        past_values(tmp_path / "none.sqlite", SKU, [site[1]], [case()])
