"""Figures of "Optimizing Pytorch Performance On Multi-gpu (ddp Tuning)!" (22 May 2026) that can be computed.

docs/evidence/documents.md lists what cannot, and where the article is mistaken.
"""

from __future__ import annotations

import math

import pytest

from pytest_ddpscale.metrics.scaling_facts import MeasuredSize, TrainingJob, scaling_facts, sweet_spots
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.suites.tune_candidates import Candidate, candidates, snippet

GPUS, MICRO_BATCH, ACCUMULATION_STEPS, GLOBAL_BATCH = 8, 16, 2, 256
GOOD_UP_TO, LARGEST, EFFICIENCY = 64, 512, 0.90
WORKLOAD = Workload("r", "resnet50", "fp32", MICRO_BATCH)


def test_eight_gpus_with_two_passes_of_16_images_are_a_global_batch_of_256() -> None:
    (chosen,) = candidates(f"accumulation_steps={ACCUMULATION_STEPS}", WORKLOAD)
    arm, usual = chosen.arm(GPUS, MICRO_BATCH), Candidate().arm(GPUS, MICRO_BATCH)
    assert arm.world_size * arm.batch_size == GLOBAL_BATCH
    assert [arm.variant.batch_of(arm.batch_size, rank) for rank in range(GPUS)] == [MICRO_BATCH] * GPUS
    assert chosen.changes_training == "changes the global batch"
    assert arm.batch_size / usual.batch_size == ACCUMULATION_STEPS, "by which the learning rate grows with it"
    assert "no_sync" in "".join(snippet([chosen]).values())


def sizes(efficiencies: dict[int, float]) -> list[MeasuredSize]:
    return [MeasuredSize(gpus, 1000.0 * gpus * efficiency) for gpus, efficiency in efficiencies.items()]


def test_nine_tenths_at_64_gpus_are_a_speed_up_of_57_6_and_say_nothing_of_512() -> None:
    at_limit = scaling_facts(sizes({1: 1.0, GOOD_UP_TO: EFFICIENCY}), TrainingJob(1e6))[-1]
    assert at_limit.speedup == pytest.approx(57.6)
    assert at_limit.serial_share == pytest.approx(0.00176, abs=1e-5)
    share = at_limit.serial_share or 0.0
    by_amdahl = 1 / (share + (1 - share) / LARGEST) / LARGEST
    assert by_amdahl == pytest.approx(0.526, abs=0.001), "with the same serial share"
    facts = scaling_facts(sizes({1: 1.0, GOOD_UP_TO: EFFICIENCY, LARGEST: by_amdahl}), TrainingJob(1e6))
    assert facts[-1].serial_share == pytest.approx(share)
    assert sweet_spots(facts, None).efficiency == GOOD_UP_TO


def test_its_command_line_does_not_reach_torchrun() -> None:
    run = pytest.importorskip("torch.distributed.run")
    as_printed = run.parse_args(["\N{EN DASH}nproc_per_node=8", "my_training_script.py"])
    assert as_printed.training_script == "\N{EN DASH}nproc_per_node=8"
    assert run.parse_args(["--nproc_per_node=8", "my_training_script.py"]).nproc_per_node == "8"


def test_autocast_leaves_gradients_and_so_the_all_reduce_in_fp32() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(torch.ones(2, 4))
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert {one.grad.dtype for one in layer.parameters()} == {torch.float32}


def test_a_distributed_sampler_repeats_samples_unless_told_to_drop_them() -> None:
    sampler = pytest.importorskip("torch.utils.data.distributed").DistributedSampler
    data, ranks = list(range(10)), 4
    drawn = [one for rank in range(ranks) for one in sampler(data, ranks, rank, shuffle=False)]
    assert len(drawn) == ranks * math.ceil(len(data) / ranks)
    assert len(drawn) - len(set(drawn)) == 2
    dropped = [one for rank in range(ranks) for one in sampler(data, ranks, rank, shuffle=False, drop_last=True)]
    assert len(dropped) == len(set(dropped)) == 8
