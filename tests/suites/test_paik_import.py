"""The published A100 results, and every way a result file can be wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_ddpscale.errors import ResultFileError, RunDirectoryError, SkuError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.suites.paik_import import import_paik
from pytest_ddpscale.thresholds.model import Sku, Thresholds
from pytest_ddpscale.thresholds.parts import Detect
from tests.approved import assert_approved
from tests.builders.measurements import measurements_in
from tests.rows import rows

PUBLISHED = Path(__file__).parents[1] / "data" / "paik_a100_80gb"
ONE_GPU, TWO_GPUS = (f"{number}gpu_weak_resnet152_fp16_132-145-197-242.json" for number in (1, 2))
A100, V100, UNKNOWN = "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "NVIDIA Graphics Device"
Result = dict[str, Any]


def thresholds(image_size: int | None = None, **more: Sku) -> Thresholds:
    """Some SKUs; A100s train a workload with that image size, as in the published files otherwise."""
    big = Workload("big", ImageFamily("resnet152", image_size or 1), "fp16", 512)
    a100 = Sku("A100", Detect(name="^(NVIDIA )?A100-SXM4?-80GB$"), aliases=("a100",), workloads={"big": big})
    v100 = Sku("V100", Detect(name=f"^{V100}$"))
    return Thresholds(
        {"cpu": Sku("any CPU", Detect(device="cpu")), "v100-sxm2-16gb": v100, "a100-sxm4-80gb": a100, **more}
    )


def result(name: str = ONE_GPU, batch: int = 512, **changes: Any) -> Result:
    """A published result with changes, or with another batch per GPU."""
    found: Result = json.loads((PUBLISHED / name).read_text(encoding="utf-8"))
    return found | {"batch_size_per_gpu": batch, "global_batch_size": batch * found["world_size"]} | changes


def imported(tmp_path: Path, *results: Result, sku: str | None = None, **more: Any) -> RunDirectory:
    """Of results in a folder and one below it."""
    (tmp_path / "results/more").mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(results):
        (tmp_path / "results" / ("more" * (number % 2)) / f"result{number}.json").write_text(json.dumps(one))
    return import_paik(tmp_path / "results", tmp_path / "run", sku, thresholds(**more))


@pytest.fixture(scope="module")
def a100(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = import_paik(PUBLISHED, tmp_path_factory.mktemp("import") / "run", None, thresholds())
    return RunDirectory.open(run.path)


def told(run: RunDirectory) -> str:
    """All that was written, but the time; a line for each study, gang and block."""
    record = json.loads(run.run_json.read_text()) | {"started_at": ""}
    plan, lines = run.plan_json.read_text().replace(',{"scaling"', ',\n{"scaling"'), run.measurements_jsonl.read_text()
    return "\n".join([json.dumps(record, indent=1), plan, lines])


def test_every_rank_of_every_file_becomes_one_measurement_with_what_it_saw(a100: RunDirectory) -> None:
    measured = {(one.study, one.arm, one.rank): one for one in measurements_in(a100)}
    assert len(measurements_in(a100)) == len(measured) == 4 * (1 + 2 + 4 + 8) + 4 * (1 + 8)
    for study in a100.read_plan().studies:
        for arm in study.arms:
            model, precision = study.workload.family.model, study.workload.precision
            (path,) = PUBLISHED.glob(f"{arm.world_size}gpu_{study.scaling}_{model}_{precision}_*.json")
            for source in json.loads(path.read_text())["per_rank"]:
                found = measured[study.id, arm.name, source["rank"]]
                assert found.throughput_samples_per_s == pytest.approx(source["images_per_sec"])
                assert found.block_s == pytest.approx(source["n_steps"] * source["mean_step_sec"])
    assert_approved("import-paik.txt", told(a100).partition('\n{"kind":"gang"')[0])


def test_several_nodes_get_hosts_of_their_own_and_what_was_not_sampled_is_none(tmp_path: Path) -> None:
    one = result(TWO_GPUS, nodes=2, cuda_version=None)
    one["per_rank"][1] |= {"gpu_sampling": None, "n_steps": 1, "stdev_step_sec": 0.0}
    one["per_rank"][0]["gpu_sampling"]["gpu_activity_pct"]["mean"] = None
    assert_approved("import-paik-two-nodes.txt", told(imported(tmp_path, one, result(torch_version="2.10.0"))))


def test_only_what_the_thresholds_train_has_a_name_of_theirs(tmp_path: Path) -> None:
    lines = list[str]()
    cases: list[tuple[int | None, list[Result]]] = [
        (224, [{}]), (128, [{}]), (224, [{}, {"batch": 256}]), (224, [{"scaling_mode": "strong"}, {}]),
        (224, [{}, {"image_size": 192}]), (None, [{}, {"channels_last": False}]), (None, [{}, {"compile": True}]),
    ]  # fmt: skip
    for image_size, changes in cases:
        run = imported(tmp_path / f"{len(lines)}", *(result(**one) for one in changes), image_size=image_size)
        studies = [study.id for study in run.read_plan().studies]
        assert [*dict.fromkeys(one.study for one in measurements_in(run))] == studies
        lines += [f"{image_size}, {changes}:", *studies, *run.read_run().notes[4:], ""]
    assert_approved("import-paik-names.txt", "\n".join(lines))


def test_the_sku_is_that_of_all_devices(tmp_path: Path) -> None:
    again, lines = {"a100-site": thresholds().skus["a100-sxm4-80gb"]}, list[str]()
    cases: list[tuple[str | None, dict[str, Sku], list[str]]] = [
        ("a100", {}, [UNKNOWN]), (None, {}, [A100, "A100-SXM-80GB"]), ("a100-site", again, [A100]),
        (None, again, [A100]), (None, {}, [UNKNOWN]), ("a10", {}, [A100]), ("v100-sxm2-16gb", {}, [A100]),
        (None, {}, [A100, V100]), ("a100", {}, [A100, V100]),
    ]  # fmt: skip
    for asked, more, devices in cases:
        results = [result(name, device_name=one) for name, one in zip((ONE_GPU, TWO_GPUS), devices, strict=False)]
        path = tmp_path / f"{len(lines)}"
        try:
            found = imported(path, *results, sku=asked, **more).read_plan().sku
        except SkuError as error:
            found = f"{error}{' But a run was written.' * (path / 'run').exists()}"
        lines.append(f"{asked}, {[*more]}, {devices}: {found}")
    assert_approved("import-paik-skus.txt", "\n".join(lines))


@rows(("where", "value", "complaint"), [
    ("world_size", None, "`int`, got `null` - at .*world_size"),
    ("per_rank.1.mean_step_sec", 0, r">= 1e-09 - at .*per_rank\[1\].mean_step_sec"),
    ("per_rank.1.mean_step_sec", True, "got `bool` - at .*mean_step_sec"),
    ("per_rank.1.mean_step_sec", 10**400, "out of range"),
    ("per_rank.1.stdev_step_sec", -1, ">= 0.* - at .*stdev_step_sec"),
    ("per_rank.1.n_steps", 0, ">= 1 - at .*n_steps"),
    ("per_rank.1.peak_mem_gb", 0, "peak_mem_gb"),
    ("per_rank.1.rank", 0, "per_rank does not hold all ranks in order"),
    ("per_rank.1.gpu_sampling", {}, r"required field `gpu_activity_pct` - at .*per_rank\[1\].gpu_sampling"),
    ("per_rank.1.gpu_sampling.gpu_activity_pct.mean", -1, ">= 0.* - at .*gpu_activity_pct.mean"),
    ("global_batch_size", 512, "global_batch_size is not batch_size_per_gpu x world_size"),
    ("scaling_mode", "medium", "'medium' - at .*scaling_mode"),
    ("model", "../../etc", "matching regex .* - at .*model"),
    ("device_name", " ", "matching regex .* - at .*device_name"),
    ("torch_version", "\ud800", "surrogate"),
    ("bench_sec_target", 0, "bench_sec_target"),
])  # fmt: skip
def test_an_unsound_file_is_refused_by_file_and_key(tmp_path: Path, where: str, value: Any, complaint: str) -> None:
    broken: Any = result(TWO_GPUS)
    inside, (*path, key) = broken, where.split(".")
    for name in path:
        inside = inside[int(name) if name.isdecimal() else name]
    inside[key] = value
    with pytest.raises(ResultFileError, match=complaint) as caught:
        imported(tmp_path, broken)
    assert caught.value.where.endswith("result0.json")
    assert caught.value.action
    assert not (tmp_path / "run").exists()


@rows("content", [
    b"", b"{", b"\xff\xfe", b"not json", b'{"scaling_mode": NaN}', b'{"nodes": 1e999}', b'{"per_rank": -Infinity}',
    b"[" * 100_000, b"1" * 5000, b"[]", b"3", b"null", b'"text"', b"{}", b'{"schema_version": 1, "sku": "cpu"}',
])  # fmt: skip
def test_what_is_no_result_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    shutil.copy(PUBLISHED / ONE_GPU, tmp_path)
    (tmp_path / "broken.json").write_bytes(content)
    with pytest.raises(ResultFileError, match=r"broken\.json: is not a valid result .*move it elsewhere"):
        import_paik(tmp_path, tmp_path / "run", None, thresholds())
    assert not (tmp_path / "run").exists()


def test_two_results_of_the_same_thing_and_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultFileError, match=r"nowhere: holds no \*\.json file"):
        import_paik(tmp_path / "nowhere", tmp_path / "run", None, thresholds())
    with pytest.raises(ResultFileError, match="two results of weak/resnet152-fp16-224-channels-last-false-512 at one"):
        imported(tmp_path, result(), result())


def test_a_full_disk_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("pytest_ddpscale.run.run_directory.append_whole", full)
    with pytest.raises(RunDirectoryError, match="No space left on device"):
        imported(tmp_path, result())
    assert not (tmp_path / "run/run.json").exists()
