"""The published A100 results, and every way a result file can be wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import BadInput, ResultFileError, RunDirectoryError, SkuError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import ranks_by_host
from pytest_ddpscale.suites.paik_import import import_paik
from pytest_ddpscale.thresholds.model import Sku, Thresholds
from pytest_ddpscale.thresholds.parts import Detect
from tests.builders.measurements import measurements_in
from tests.builders.workloads import with_settings
from tests.rows import rows

PUBLISHED = Path(__file__).parents[1] / "data" / "paik_a100_80gb"
ONE_GPU = "1gpu_weak_resnet152_fp16_132-145-197-242.json"
TWO_GPUS = "2gpu_weak_resnet152_fp16_132-145-197-242.json"
V100 = "Tesla V100-SXM2-16GB"
Result = dict[str, Any]
Edit = Callable[[Result], object]


def thresholds(a100_workloads: dict[str, Any] | None = None) -> Thresholds:
    workloads = {
        name: with_settings(Workload(name, ImageFamily("x"), "fp32", 1), **fields)
        for name, fields in (a100_workloads or {}).items()
    }
    return Thresholds(
        {
            "cpu": Sku("any CPU", Detect(device="cpu")),
            "v100-sxm2-16gb": Sku("V100", Detect(name="^Tesla V100-SXM2-16GB$")),
            "a100-sxm4-80gb": Sku(
                "A100", Detect(name="^(NVIDIA )?A100-SXM4?-80GB$"), aliases=("a100",), workloads=workloads
            ),
        }
    )


def published(name: str = ONE_GPU) -> Result:
    result: Result = json.loads((PUBLISHED / name).read_text(encoding="utf-8"))
    return result


def write(directory: Path, *results: Result) -> Path:
    directory.mkdir(exist_ok=True)
    for number, result in enumerate(results):
        (directory / f"result{number}.json").write_text(json.dumps(result), encoding="utf-8")
    return directory


def edited(name: str = ONE_GPU, **changes: Any) -> Result:
    return published(name) | changes


def with_batch(batch_size: int, name: str = ONE_GPU) -> Result:
    result = published(name)
    return result | {"batch_size_per_gpu": batch_size, "global_batch_size": batch_size * result["world_size"]}


def import_results(tmp_path: Path, *results: Result, workloads: dict[str, Any] | None = None) -> RunDirectory:
    return import_paik(write(tmp_path / "results", *results), tmp_path / "run", None, thresholds(workloads))


def study_ids(run: RunDirectory) -> set[str]:
    return {study.id for study in run.read_plan().studies}


def study_of(run: RunDirectory, study_id: str) -> Study:
    study = run.read_plan().study(study_id)
    assert study is not None
    return study


@pytest.fixture(scope="module")
def a100(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = import_paik(PUBLISHED, tmp_path_factory.mktemp("import") / "run", None, thresholds())
    return RunDirectory.open(run.path)


def test_every_rank_of_every_file_becomes_one_measurement(a100: RunDirectory) -> None:
    measurements = measurements_in(a100)
    ranks = sum(json.loads(path.read_text())["world_size"] for path in PUBLISHED.glob("*.json"))
    assert ranks == 4 * (1 + 2 + 4 + 8) + 4 * (1 + 8)
    assert len({(m.study, m.arm, m.rank) for m in measurements}) == len(measurements) == ranks
    assert all(m.single_sample and m.round == 0 and m.host == "imported" for m in measurements)


def test_a_measurement_carries_what_its_rank_saw(a100: RunDirectory) -> None:
    source = published(TWO_GPUS)["per_rank"][1]
    (found,) = (m for m in measurements_in(a100) if (m.study, m.arm, m.rank) == ("weak/resnet152-fp16", "ddp@2", 1))
    assert (found.steps, found.batch_size, found.local_rank, found.device) == (1384, 512, 1, "unknown-1")
    assert found.block_s == pytest.approx(1384 * source["mean_step_sec"])
    assert found.throughput_samples_per_s == pytest.approx(source["images_per_sec"])
    assert found.step_stdev_s == source["stdev_step_sec"]
    assert found.utilization == pytest.approx(0.983694, abs=1e-6)


def test_the_gb_of_the_source_are_gib(a100: RunDirectory) -> None:
    """66.84 of them and CUDA's own share make the 71.5 thousand MiB that nvidia-smi saw."""
    peaks = [m.peak_memory_bytes for m in measurements_in(a100) if m.study == "weak/vit-b-16-bf16"]
    assert all(peak is not None and peak / 2**30 == pytest.approx(66.84, abs=0.01) for peak in peaks)


def test_plan_has_one_study_per_scaling_and_workload(a100: RunDirectory) -> None:
    plan = a100.read_plan()
    assert (plan.sku, plan.device_type, plan.world_size) == ("a100-sxm4-80gb", "cuda", 8)
    workloads = ("resnet152-fp16", "resnet152-bf16", "vit-b-16-fp16", "vit-b-16-bf16")
    assert study_ids(a100) == {f"{scaling}/{name}" for scaling in ("weak", "strong") for name in workloads}
    weak, strong = study_of(a100, "weak/vit-b-16-fp16"), study_of(a100, "strong/vit-b-16-fp16")
    assert [(arm.name, arm.batch_size) for arm in weak.arms] == [
        ("ddp@1", 1024), ("ddp@2", 1024), ("ddp@4", 1024), ("ddp@8", 1024)
    ]  # fmt: skip
    assert [(arm.name, arm.batch_size) for arm in strong.arms] == [("ddp@1", 512), ("ddp@8", 64)]
    assert (weak.workload.batch_size, weak.workload.global_batch_size) == (1024, None)
    assert (strong.workload.batch_size, strong.workload.global_batch_size) == (512, 512)
    assert weak.workload.family.memory_format == "contiguous"
    assert (weak.rounds, weak.block_s, weak.warmup_s) == (1, 300.0, 60.0)


def test_run_json_says_where_it_comes_from_and_what_is_unknown(a100: RunDirectory) -> None:
    run = a100.read_run()
    assert (run.sku, run.status) == ("a100-sxm4-80gb", "imported")
    assert run.source == "willgpaik/pytorch-ddp-scaling-benchmark"
    assert run.versions == {"torch": "2.12.0+cu130", "cuda": "13.0"}
    ((host, ranks),) = ranks_by_host(gangs_by_number(a100.read_records()).values()).items()
    assert host == "imported"
    assert [(one.place.index, one.place.local_rank) for one in ranks] == [(None, rank) for rank in range(8)]
    assert {one.device_name for one in ranks} == {"NVIDIA A100-SXM4-80GB"}
    assert any("step-time standard deviation" in note for note in run.notes)


def test_subdirectories_are_searched(tmp_path: Path) -> None:
    write(tmp_path / "results", published())
    write(tmp_path / "results" / "more", published(TWO_GPUS))
    run = import_paik(tmp_path / "results", tmp_path / "run", None, thresholds())
    assert [arm.name for arm in study_of(run, "weak/resnet152-fp16").arms] == ["ddp@1", "ddp@2"]


def test_several_nodes_get_hosts_of_their_own(tmp_path: Path) -> None:
    run = import_results(tmp_path, edited(TWO_GPUS, nodes=2))
    assert [(m.host, m.rank, m.local_rank) for m in measurements_in(run)] == [
        ("imported", 0, 0), ("imported-1", 1, 0)
    ]  # fmt: skip


def test_what_was_not_sampled_is_none(tmp_path: Path) -> None:
    result = published(TWO_GPUS)
    result["per_rank"][0]["gpu_sampling"] = None
    result["per_rank"][1]["gpu_sampling"]["gpu_activity_pct"] = {"min": None, "mean": None, "max": None}
    run = import_results(tmp_path, result | {"nccl_topology": None, "cuda_version": None})
    assert [m.utilization for m in measurements_in(run)] == [None, None]
    assert run.read_run().versions["cuda"] == "unknown"


def test_one_step_has_no_standard_deviation(tmp_path: Path) -> None:
    result = published()
    result["per_rank"][0] |= {"n_steps": 1, "stdev_step_sec": 0.0}
    (measurement,) = measurements_in(import_results(tmp_path, result))
    assert measurement.step_stdev_s is None


def test_several_torch_versions_are_noted(tmp_path: Path) -> None:
    run = import_results(tmp_path, published(), edited(TWO_GPUS, torch_version="2.10.0+cu128")).read_run()
    assert run.versions["torch"] == "2.10.0+cu128, 2.12.0+cu130"
    assert any("several versions of torch" in note for note in run.notes)


def named(name: str, batch_size: int, **fields: Any) -> dict[str, Any]:
    """A workload of the thresholds file."""
    return {name: {"model": "resnet152", "precision": "fp16", "batch_size": batch_size, **fields}}


# Results, workloads of the thresholds file if not the packaged ones, and the studies that they become.
NAMES: dict[str, tuple[list[Result], dict[str, Any] | None, set[str]]] = {
    "the name in the thresholds": ([published()], named("big", 512), {"weak/big"}),
    "another image size": ([published()], named("resnet152-fp16", 512, image_size=128), {"weak/resnet152-fp16-bs512"}),
    "another batch": ([published()], named("big", 256), {"weak/big"}),
    "two batches": ([published(), with_batch(256)], None, {"weak/resnet152-fp16-bs256", "weak/resnet152-fp16-bs512"}),
    "two, one of the thresholds": (
        [published(), with_batch(256)], named("big", 512), {"weak/big", "weak/big-bs256"}
    ),
    "weak and strong": (
        [published(), edited(scaling_mode="strong")], None, {"weak/resnet152-fp16", "strong/resnet152-fp16"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMES.values(), ids=NAMES)
def test_studies_are_named_as_the_thresholds_name_what_they_train(
    tmp_path: Path, case: tuple[list[Result], dict[str, Any] | None, set[str]]
) -> None:
    results, workloads, expected = case
    run = import_results(tmp_path, *results, workloads=workloads)
    assert study_ids(run) == expected
    notes = [note for note in run.read_run().notes if "thresholds have" in note]
    other = case is NAMES["another batch"]
    assert notes == (["weak/big: measured with batch_size 512; the thresholds have 256"] if other else [])


@pytest.mark.parametrize("change", [{"image_size": 192}, {"channels_last": False}, {"compile": True}])
def test_two_settings_of_one_batch_are_told_apart(tmp_path: Path, change: dict[str, Any]) -> None:
    run = import_results(tmp_path, published(), edited(**change))
    assert len(study_ids(run)) == len(run.read_plan().studies) == 2
    assert len({m.study for m in measurements_in(run)}) == 2


class TestSku:
    def test_an_alias_is_understood(self, tmp_path: Path) -> None:
        source = write(tmp_path / "results", edited(device_name="NVIDIA Graphics Device"))
        assert import_paik(source, tmp_path / "run", "a100", thresholds()).read_plan().sku == "a100-sxm4-80gb"

    def test_an_unknown_device_asks_for_the_option(self, tmp_path: Path) -> None:
        with pytest.raises(SkuError, match=r"NVIDIA Graphics Device.*no SKU.*--gpu-sku SKU"):
            import_results(tmp_path, edited(device_name="NVIDIA Graphics Device"))

    def test_an_unknown_sku_is_refused_with_the_known_ones(self, tmp_path: Path) -> None:
        with pytest.raises(SkuError, match=r"no SKU 'a10'.*a100-sxm4-80gb"):
            import_paik(PUBLISHED, tmp_path / "run", "a10", thresholds())

    def test_a_sku_that_the_device_name_contradicts_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SkuError, match=r"names v100-sxm2-16gb.*A100-SXM4-80GB.*a100-sxm4-80gb"):
            import_paik(PUBLISHED, tmp_path / "run", "v100-sxm2-16gb", thresholds())

    @rows("sku", [None, "a100"])
    def test_two_skus_in_one_directory_are_refused(self, tmp_path: Path, sku: str | None) -> None:
        source = write(tmp_path / "results", published(), edited(TWO_GPUS, device_name=V100))
        with pytest.raises(ResultFileError) as caught:
            import_paik(source, tmp_path / "run", sku, thresholds())
        for part in (V100, "NVIDIA A100-SXM4-80GB", "result0.json", "result1.json"):
            assert part in str(caught.value)

    def test_old_and_new_drivers_names_of_one_sku_are_the_same(self, tmp_path: Path) -> None:
        run = import_results(tmp_path, published(), edited(TWO_GPUS, device_name="A100-SXM-80GB"))
        assert run.read_plan().sku == "a100-sxm4-80gb"

    def test_a_device_of_two_skus_asks_for_the_option(self, tmp_path: Path) -> None:
        known = thresholds().skus
        ambiguous = Thresholds({**known, "a100-site": known["a100-sxm4-80gb"]})
        with pytest.raises(SkuError, match=r"several SKUs.*a100-sxm4-80gb, a100-site.*--gpu-sku SKU"):
            import_paik(PUBLISHED, tmp_path / "run", None, ambiguous)
        assert import_paik(PUBLISHED, tmp_path / "run", "a100-site", ambiguous).read_plan().sku == "a100-site"


def delete(key: str) -> Edit:
    return lambda result: result.pop(key)


def put(key: str, value: Any) -> Edit:
    return lambda result: result.update({key: value})


def put_rank(key: str, value: Any) -> Edit:
    return lambda result: result["per_rank"][1].update({key: value})


REFUSED: dict[str, tuple[Edit, str]] = {
    "no world size": (delete("world_size"), "required field `world_size`"),
    "no ranks": (delete("per_rank"), "required field `per_rank`"),
    "rank without a step time": (
        lambda result: result["per_rank"][1].pop("mean_step_sec"), r"field `mean_step_sec` - at .*per_rank\[1\]",
    ),
    "rank without activity": (
        lambda result: result["per_rank"][1]["gpu_sampling"].pop("gpu_activity_pct"),
        r"required field `gpu_activity_pct` - at .*per_rank\[1\].gpu_sampling",
    ),
    "step time 0": (put_rank("mean_step_sec", 0), r">= 1e-09 - at .*per_rank\[1\].mean_step_sec"),
    "step time as text": (put_rank("mean_step_sec", "0.4"), r"got `str` - at .*mean_step_sec"),
    "step time true": (put_rank("mean_step_sec", True), r"got `bool` - at .*mean_step_sec"),
    "huge step time": (put_rank("mean_step_sec", 10**400), "out of range"),
    "negative deviation": (put_rank("stdev_step_sec", -1), r">= 0.* - at .*stdev_step_sec"),
    "no steps": (put_rank("n_steps", 0), r">= 1 - at .*n_steps"),
    "half a step": (put_rank("n_steps", 2.5), r"got `float` - at .*n_steps"),
    "no memory": (put_rank("peak_mem_gb", 0), r"peak_mem_gb"),
    "rank twice": (put_rank("rank", 0), "per_rank does not hold the ranks 0 to 1 in order"),
    "activity above 100": (
        lambda result: result["per_rank"][1]["gpu_sampling"].update(gpu_activity_pct={"mean": 101}),
        r"<= 100.* - at .*gpu_activity_pct.mean",
    ),
    "a rank is missing": (lambda result: result["per_rank"].pop(), "per_rank does not hold the ranks 0 to 1"),
    "batches contradict": (put("global_batch_size", 512), "global_batch_size is 512; expected 1024"),
    "no batch": (put("batch_size_per_gpu", 0), "batch_size_per_gpu"),
    "unknown scaling": (put("scaling_mode", "medium"), "'medium' - at .*scaling_mode"),
    "compile is no flag": (put("compile", 1), "Expected `bool`, got `int` - at .*compile"),
    "model is a path": (put("model", "../../etc"), "matching regex .* - at .*model"),
    "device is blank": (put("device_name", " "), "matching regex .* - at .*device_name"),
    "half a surrogate pair": (put("torch_version", "\ud800"), "surrogate"),
    "no block": (put("bench_sec_target", 0), "bench_sec_target"),
}  # fmt: skip


@rows(("edit", "complaint"), REFUSED.values(), ids=REFUSED.keys())
def test_an_unsound_file_is_refused_by_file_and_key(tmp_path: Path, edit: Edit, complaint: str) -> None:
    result = published(TWO_GPUS)
    edit(result)
    with pytest.raises(ResultFileError, match=complaint) as caught:
        import_results(tmp_path, result)
    assert caught.value.where.endswith("result0.json")
    assert caught.value.action
    assert not (tmp_path / "run").exists()


@rows(
    "content",
    [
        b"", b"{", b"\xff\xfe", b"not json", b'{"scaling_mode": NaN}', b'{"nodes": 1e999}',
        b'{"per_rank": -Infinity}', b"[" * 100_000, b"1" * 5000,
    ],
)  # fmt: skip
def test_what_is_not_strict_json_is_refused(tmp_path: Path, content: bytes) -> None:
    shutil.copy(PUBLISHED / ONE_GPU, tmp_path)
    (tmp_path / "broken.json").write_bytes(content)
    with pytest.raises(ResultFileError, match=r"broken\.json: is not a valid result"):
        import_paik(tmp_path, tmp_path / "run", None, thresholds())
    assert not (tmp_path / "run").exists()


@rows("content", [[], 3, None, "text", {}, {"schema_version": 1, "sku": "cpu"}])
def test_other_json_is_refused_with_what_to_do(tmp_path: Path, content: Any) -> None:
    shutil.copy(PUBLISHED / ONE_GPU, tmp_path)
    (tmp_path / "other.json").write_text(json.dumps(content))
    with pytest.raises(ResultFileError, match=r"other\.json: is not a valid result .*move it elsewhere"):
        import_paik(tmp_path, tmp_path / "run", None, thresholds())


def test_two_results_of_the_same_thing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultFileError, match=r"result1\.json: is a second result of weak .*result0\.json"):
        import_results(tmp_path, published(), published())


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no results here")
    with pytest.raises(ResultFileError, match=r"holds no \*\.json file"):
        import_paik(tmp_path, tmp_path / "run", None, thresholds())


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultFileError, match="is not a directory"):
        import_paik(tmp_path / "nowhere", tmp_path / "run", None, thresholds())


def test_a_full_disk_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pytest_ddpscale.run.run_directory.append_whole", full)
    with pytest.raises(RunDirectoryError, match="No space left on device"):
        import_results(tmp_path, published())
    with pytest.raises(BadInput, match=r"has no run\.json"):
        RunDirectory.open(tmp_path / "run")
