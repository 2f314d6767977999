"""Whole training runs on real ranks: the same at every world size, and ended where there is no sense in going on."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters

from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.training_run import SampleSet, TrainingRun
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.record_lines import AnyRecord, RecordReader, line_of
from pytest_ddpscale.run.records import EndReason, TrainedEpoch, TrainedRun
from pytest_ddpscale.worker import whole_training
from pytest_ddpscale.worker.compiled_call import forget_compiled
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import CpuDevice
from pytest_ddpscale.worker.rank_context import RankContext
from pytest_ddpscale.worker.replica_checksum import checksum
from pytest_ddpscale.worker.whole_training import WholeTraining, padded
from tests.builders.records import gang_on
from tests.worker.kept_records import KeptRecords, context_on_cpu
from tests.worker.ranks import on_ranks
from tests.worker.two_kernels import TwoKernels, needs_compiler

GLOBAL = 16
SAMPLES = SampleSet("made", "made-100", 100, 21, 10)


def run_of(ranks: int, model: str = "classifier-16", **fields: object) -> TrainingRun:
    workload = Workload(model, ImageFamily(model, 32, "contiguous", num_classes=10), "fp32", GLOBAL // ranks)
    usual: dict[str, object] = {"epochs": 2, "learning_rate": 0.05}
    return TrainingRun(model, workload, SAMPLES, 1, ranks, **{**usual, **fields})  # type: ignore[arg-type]


def context_of(rank: int, size: int, sink: KeptRecords | None = None, **fields: float) -> RankContext:
    control = Control(dist.distributed_c10d._get_default_store(), rank, rank, size)
    context = context_on_cpu(CpuDevice(), control, timedelta(seconds=60), sink=sink or KeptRecords())
    return replace(context, launched_unix_s=time.time() - 5, **fields)  # type: ignore[arg-type]


def carried_out(run: TrainingRun, rank: int) -> tuple[EndReason, str, list[AnyRecord]]:
    sink = KeptRecords()
    return (*WholeTraining(run, context_of(rank, run.world_size, sink)).run(), sink.records)


def classifier(rank: int) -> list[bytes]:
    return [line_of(one) for one in carried_out(run_of(dist.get_world_size()), rank)[2]]


def normalised(rank: int) -> str:
    """Checksum of what a model's batch normalisation has after training: each rank had other images."""
    size = dist.get_world_size()
    training = WholeTraining(run_of(size, "shufflenet_v2_x0_5", epochs=1), context_of(rank, size))
    training.run()
    return checksum(buffer for buffer in training._model.buffers() if buffer.is_floating_point())


def epochs_of(lines: list[bytes]) -> list[TrainedEpoch]:
    reader = RecordReader()
    reader.read(line_of(gang_on(["n1"], 4)))
    return [one for one in map(reader.read, lines) if isinstance(one, TrainedEpoch)]


def test_losses_and_accuracy_are_those_of_one_rank_over_the_same_images(tmp_path: Path) -> None:
    folders = [tmp_path / str(ranks) for ranks in (1, 2)]
    for folder in folders:
        folder.mkdir()
    alone, both = (epochs_of(on_ranks(classifier, folder, n)[0]) for n, folder in zip((1, 2), folders, strict=True))
    for one, two in zip(alone, both, strict=True):
        assert two.losses == pytest.approx(one.losses, rel=1e-4)
        assert [rank.validated for rank in two.ranks] == [11, 10], "21 images, none of them twice"
        assert two.accuracy == pytest.approx(one.accuracy, abs=1e-9)
    assert alone[1].mean_loss < alone[0].mean_loss, "it can be learnt"


def test_all_ranks_validate_one_model_though_each_had_statistics_of_its_own(tmp_path: Path) -> None:
    assert len(set(on_ranks(normalised, tmp_path, 2))) == 1


@pytest.fixture
def one_rank(gloo_of_one: None) -> None:
    """A gang of this process."""


def test_a_run_records_its_epochs_its_spans_and_its_end(one_rank: None) -> None:
    reason, problem, records = carried_out(run_of(1), 0)
    assert (reason, problem) == ("rounds", "")
    first, second, end = records
    assert isinstance(first, TrainedEpoch)
    assert isinstance(second, TrainedEpoch)
    assert isinstance(end, TrainedRun)
    assert [one.epoch for one in (first, second)] == [0, 1]
    assert len(first.losses) == run_of(1).iterations
    assert first.ranks[0].trained == run_of(1).epoch_samples == 96
    assert 5 < end.start_up_s < 35, "from the beginning of the launch"
    assert end.parameters == end.trainable_parameters == 1024 * 16 + 16 + 16 * 16 + 16 + 16 * 10 + 10
    (rank,) = end.ranks
    assert (rank.allocated_bytes, rank.reserved_bytes) == (None, None), "nobody counts on a CPU"
    assert rank.skipped_steps == 0


def test_steps_that_the_loss_scaler_skips_are_counted(one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=math.inf)
    monkeypatch.setattr(whole_training, "new_scaler", lambda workload, device: scaler)
    end = carried_out(run_of(1), 0)[2][-1]
    assert isinstance(end, TrainedRun)
    assert end.ranks[0].skipped_steps == 2 * run_of(1).iterations


def test_training_ends_with_the_epoch_in_which_its_loss_is_reached(one_rank: None) -> None:
    reason, _, records = carried_out(run_of(1, epochs=40, loss_threshold=1.0), 0)
    assert reason == "decided"
    assert 2 <= len(records) - 1 < 40


def test_a_loss_that_is_no_number_ends_the_run_with_its_reason(one_rank: None) -> None:
    reason, problem, records = carried_out(run_of(1, learning_rate=1e30), 0)
    assert reason == "error"
    assert problem.startswith(("the loss is nan in iteration", "the loss is inf in iteration"))
    assert "sgd at a learning rate of 1e+30 does not converge; lower it" in problem
    assert records == []


def test_no_epoch_begins_after_the_deadline(one_rank: None) -> None:
    sink = KeptRecords()
    assert WholeTraining(run_of(1), context_of(0, 1, sink, deadline_unix_s=1.0)).run() == ("budget", "")
    assert sink.records == []


def test_another_gang_than_planned_is_refused(one_rank: None) -> None:
    with pytest.raises(RuntimeError, match="planned for 1 nodes of 2 ranks; this gang has 1 of 1"):
        WholeTraining(run_of(2), context_of(0, 1))


def test_what_fills_up_a_batch_is_never_classified_rightly() -> None:
    images, labels = padded((torch.ones(3, 1, 2, 2), torch.tensor([4, 0, 2])), 5)
    assert images.shape == (5, 1, 2, 2)
    assert labels.tolist() == [4, 0, 2, -1, -1]
    assert padded((images, labels), 5)[0] is images


@needs_compiler
def test_compiling_has_a_span_of_its_own_in_the_first_epoch_only(
    one_rank: None, scalar_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_training, "_model_of", lambda run, device: TwoKernels(3 * 32 * 32, 10))
    forget_compiled()
    counters.clear()
    reason, _, (first, second, end) = carried_out(run_of(1, "two-kernels", compile_mode="default"), 0)
    assert reason == "rounds"
    assert counters["stats"]["unique_graphs"] == 2, "one that trains, one that infers; no last, smaller batch made more"
    assert isinstance(first, TrainedEpoch)
    assert isinstance(second, TrainedEpoch)
    assert first.ranks[0].compile_s > 0 == second.ranks[0].compile_s
    assert [one.ranks[0].validated for one in (first, second)] == [21, 21]
    assert isinstance(end, TrainedRun)
