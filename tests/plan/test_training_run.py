"""Whole runs as plan.json has them: their iterations, their gangs, and what is no run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.training_run import SampleSet, TrainingRun
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.strict_json import parse_strict_json, read_as, strict_json

MICRO = SampleSet("folder", "micro-224", 12_288, 1_000, 10, "/data/micro-224")
RUN = TrainingRun("micro-224", Workload("vit", ImageFamily("vit_h_14"), "bf16", 128), MICRO, 8, 4, 5)


def plan_of(*runs: TrainingRun, launches: int = 1) -> Plan:
    return Plan("h100", "cuda", (), nodes=8, ranks_per_node=4, training_runs=runs, launches=launches)


def test_an_epoch_of_32_gpus_is_that_of_the_published_log() -> None:
    """Jordi Torres, "Supercomputing for AI", chapter 12: "Total training samples (batches): 384 (3)"."""
    assert (RUN.world_size, RUN.global_batch, RUN.iterations) == (32, 4096, 3)
    assert RUN.epoch_samples // RUN.world_size == 384


def test_what_fills_no_global_batch_is_left_out() -> None:
    run = replace(RUN, samples=replace(MICRO, train_samples=16_383))
    assert (run.iterations, run.epoch_samples) == (3, 12_288)


def test_data_of_less_than_one_global_batch_is_no_run() -> None:
    with pytest.raises(ValueError, match="4095 images, fewer than one global batch of 4096"):
        replace(RUN, samples=replace(MICRO, train_samples=4095))


def test_each_run_has_a_gang_of_its_own_size_and_what_it_needs_is_known_when_a_node_is_lost() -> None:
    small = replace(RUN, nodes=1, ranks_per_node=2)
    plan = plan_of(small, RUN)
    assert plan.study_ids == ("train/micro-224@2", "train/micro-224@32")
    assert plan.layout_of(small.id) == Layout(1, 2)
    assert plan.layout_of(RUN.id) == plan.layout == Layout(8, 4)
    assert plan.fits_nodes(small.id)
    assert not plan.fits_nodes(RUN.id)


def test_launches_come_one_after_the_other() -> None:
    runs = [replace(RUN, launch=launch) for launch in (2, 1)]
    plan = plan_of(*runs, launches=2)
    assert plan.study_ids == ("train/micro-224@32", "train/micro-224@32/launch-2")
    assert [plan.launch_of(one) for one in plan.study_ids] == [1, 2]
    with pytest.raises(ValueError, match="a plan for 1 launches has a study in launch 2"):
        plan_of(*runs)


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = plan_of(RUN)
    assert read_as(Plan, parse_strict_json(strict_json(plan))) == plan


def test_a_run_of_more_ranks_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="a plan for 2 x 4 ranks needs 32"):
        replace(plan_of(RUN), nodes=2)
