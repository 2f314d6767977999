"""What is asked by factor or by setting: convergence over seeds, settings of loaders, what to paste, and pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.judge.stats import Estimate
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import TrainedEpoch
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.suites.convergence import Convergence
from pytest_ddpscale.suites.ddp_benchmark import PytorchDdp
from pytest_ddpscale.suites.factors import by_factor
from pytest_ddpscale.suites.input_pipeline import InputPipeline
from pytest_ddpscale.suites.results import ON_CPU, Column, Drawn, Row, Rows
from pytest_ddpscale.suites.tune import USUAL_SETTINGS, Tune, setting_of
from tests.builders.image_folder import image_folder
from tests.builders.whole_runs import records_of, suite_of, training_run
from tests.suites.planned import planned, played
from tests.suites.played_tune import PlayedTune

FROZEN = ("--model=resnet18,alexnet", "--hidden=64,32", "--batch=8", "--batches=16", "--launches=2", "--ranks=1,4")


def test_a_frozen_backbone_is_trained_by_ranks_batch_model_and_width_in_several_seeds() -> None:
    runs = planned(Convergence(), *FROZEN, "--feature-weights=/weights").training_runs
    assert {run.id: run.seed for run in runs} == {
        f"train/{name}{launch}": seed
        for name in (
            "resnet18-h0-batch-8@1",
            "resnet18-h0-batch-8@4",
            "alexnet-h64-batch-8@4",
            "resnet18-h0-batch-16@4",
        )
        for launch, seed in (("", 0), ("/launch-2", 1000))
    }, "ResNet-18 has one layer, whatever --hidden says"
    families = {run.workload.family for run in runs}
    assert {one.feature_weights for one in families} == {"/weights/resnet18.pth", "/weights/alexnet.pth"}
    assert {one.classifier_hidden for one in families} == {0, 64}
    whole = planned(Convergence(), "--model=resnet18", "--ranks=4").training_runs
    assert [(run.id, run.workload.family.classifier_hidden) for run in whole] == [("train/resnet18@4", None)]
    for options, why in (
        (("--frozen",), "--model: found none"),
        (("--global-batch=8", "--batches=4"), "beside --batches"),
    ):
        with pytest.raises(OptionError, match=why):
            planned(Convergence(), *options)


def test_launches_are_told_as_one_row_with_an_interval_and_as_one_curve() -> None:
    runs = [training_run(ranks, images=96, loss_threshold=1.0, launch=launch) for ranks in (1, 2) for launch in (1, 2)]
    lines = [
        replace_losses(line, 2.0 if run.launch == 1 else 1.0) for gang, run in enumerate(runs)
        for line in records_of(run, gang)
    ]  # fmt: skip
    found = Convergence().results(suite_of(runs, lines))
    both, alone = found.tables[0].rows
    assert (both["factor"], both["value"], alone["value"]) == ("world size", 2, 1)
    assert (both["reached"], both["iterations"]) == ("1 of 2", None), "a mean of those that reached it would flatter"
    low, high = both["accuracy"].interval
    assert low <= both["accuracy"].value <= high
    assert {row["loss"] for row in found.tables[1].rows} == {1.5}, "the mean of both launches"
    assert [one.title for one in found.drawn] == ["Loss by iteration and world size"]


def replace_losses(line: AnyRecord, loss: float) -> AnyRecord:
    from msgspec.structs import replace as changed

    return changed(line, losses=(loss,) * len(line.losses)) if isinstance(line, TrainedEpoch) else line


@pytest.mark.parametrize(
    ("classes", "weights", "reach"),
    [(10, "/w.pth", None), (3, "/w.pth", "62.2"), (2, "/w.pth", "80.6"), (2, None, None)],
)
def test_pretrained_features_whose_classifier_guesses_are_not_as_required(
    classes: int, weights: str | None, reach: str | None
) -> None:
    run = training_run(1, images=96, loss_threshold=1.0)  # half of its images are classified rightly
    family = ImageFamily(
        "resnet18", 32, "contiguous", num_classes=classes, classifier_hidden=0, feature_weights=weights
    )
    run = replace(run, workload=replace(run.workload, family=family), samples=replace(run.samples, classes=classes))
    told = [one for one in Convergence().results(suite_of([run], records_of(run))).failures if "guess" in one]
    assert told == [f"{run.id}: guessing reaches up to {reach} %, the accuracy is 50.0 %: /w.pth"] * bool(reach)


def test_rows_are_of_the_first_factor_in_which_they_differ_from_the_centre() -> None:
    def row(ranks: int = 4, batch: int = 8, model: str = "a", parameters: int = 1) -> dict[str, object]:
        return {"world_size": ranks, "batch": batch, "model": model, "trained_parameters": parameters}

    found = by_factor([row(), row(model="b", parameters=2), row(parameters=3), row(ranks=2, batch=16)])
    assert [(one["factor"], one["value"]) for one in found] == [
        ("world size", 4), ("world size", 2), ("model", "a"), ("model", "b"),
        ("trained parameters", 1), ("trained parameters", 3),
    ]  # fmt: skip
    assert [one["factor"] for one in by_factor([row()])] == ["world size"]


def test_loader_settings_are_tried_on_a_folder_alone(tmp_path: Path) -> None:
    folder = f"--folder={image_folder(tmp_path / 'images')}"
    sku = ("--gpu-sku=cpu", "--ddp-hosts=n1", "--ddp-exec=true {host}")
    plan = planned(Tune(), folder, "--try=workers=2,4 prefetch=2,3 pin_memory=false", sku=sku, gpus=2)
    assert [setting_of(study) for study in plan.studies] == ["workers=2", "prefetch=3", "pin_memory=False"]
    assert all(study.workload.data_kind == "folder" for study in plan.studies)
    usual = {setting_of(study).partition("=")[0] for study in planned(Tune(), folder, sku=sku, gpus=2).studies}
    assert {"workers", "prefetch", "pin_memory", "precision"} <= usual
    with pytest.raises(OptionError, match=r"--try: .* has synthetic data, which needs no loader workers"):
        planned(Tune(), "--try=pin_memory=false", sku=sku, gpus=2)
    of_one = planned(InputPipeline(), folder, "--workers=0,1", "--pin-memory=true,false").studies[0]
    assert [arm.variant.name for arm in of_one.arms] == [
        "data=synthetic",
        "workers=0",
        "workers=0,pin_memory=False",
        "workers=1,prefetch=2",
        "workers=1,prefetch=2,pin_memory=False",
    ]


def test_every_setting_says_what_to_paste() -> None:
    tried = f"--try={USUAL_SETTINGS['cuda']} hook=bf16 compile=max-autotune"
    rows = Tune().results(PlayedTune(tried, gains={}).measured()).tables[0].rows
    pasted = {row["setting"]: row["paste"] for row in rows}
    assert pasted["bucket_cap_mb=5"] == "DistributedDataParallel(model, bucket_cap_mb=5)"
    assert pasted["NCCL_ALGO=Ring"] == "export NCCL_ALGO=Ring"
    assert "ddp.no_sync() if step % 4 else nullcontext()" in pasted["accumulation_steps=4"]
    assert "is_high_priority_stream=True" in pasted["high_priority_stream=True"]
    assert "torch.bfloat16" in pasted["precision=bf16"]
    assert "torch.channels_last" in pasted["memory_format=channels_last"]
    assert "bf16_compress_hook" in pasted["hook=bf16"]
    assert all("{" not in one for one in pasted.values())


def test_rows_named_by_texts_are_bars_of_their_parts_and_say_on_which_device() -> None:
    columns = [Column("name", "Name"), Column("a", "A"), Column("b", "B")]
    rows: list[Row] = [{"name": "x", "a": Estimate(1.2, (1.1, 1.3)), "b": -0.1}, {"name": "y", "a": None}]
    one = Rows("bars", "", columns, rows, drawn=Drawn("Title", "name", ("a",), base=1.0)).picture(ON_CPU)
    two = Rows("bars", "", columns, rows, drawn=Drawn("Title", "name", ("a", "b"))).picture()
    assert one is not None
    assert two is not None
    assert [[*row] for row in one.table.rows] == [["x", "A", "1.2", "1.2"]]
    assert [[*row] for row in two.table.rows] == [["x", "A", "1.2", "1.2 + −0.1"], ["x", "B", "0", "1.2 + −0.1"]]
    assert ON_CPU in one.svg.decode()
    assert Rows("bars", "", columns, [], drawn=Drawn("Title", "name", ("a",))).picture() is None


def test_the_benchmark_shows_how_gpus_are_connected_as_pytorch_s_does() -> None:
    plan = planned(PytorchDdp(), "--models=resnet50", gpus=2)
    assert plan.survey
    assert not planned(PytorchDdp(), "--models=resnet50", sku=("--gpu-sku=cpu",), gpus=2).survey
    measured = played(plan, lambda study, arm, number, rank: 320.0)
    survey = Survey("n1", 0.0, topology="GPU0 X NV18")
    found = PytorchDdp().results(replace(measured, evidence=replace(measured.evidence, surveys={"n1": survey})))
    assert "GPU0 X NV18" in "\n".join(found.lines())
