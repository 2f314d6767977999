"""The published A100 results, and what is told of a run of them. `test_mistakes.py` has files that are wrong."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.errors import BadInput, RunDirectoryError
from pytest_ddpscale.report.causes import headline
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.session.evidence import find_source
from pytest_ddpscale.session.open import Site
from pytest_ddpscale.session.session import AcceptanceSession
from pytest_ddpscale.settings import settings_from
from pytest_ddpscale.suites.paik_import import import_paik
from tests.approved import assert_approved, without_counts
from tests.builders.clusters import thresholds
from tests.builders.measurements import measurements_in

PUBLISHED = Path(__file__).parents[1] / "data" / "paik_a100_80gb"
ONE_GPU, TWO_GPUS, EIGHT_GPUS = (
    json.loads((PUBLISHED / f"{number}gpu_weak_resnet152_fp16_132-145-197-242.json").read_text())
    for number in (1, 2, 8)
)
SKUS = {name: thresholds().thresholds.skus[name] for name in ("cpu", "v100-sxm2-16gb", "a100-sxm4-80gb")}
A100, V100, UNKNOWN = "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "NVIDIA Graphics Device"
Result = dict[str, Any]


def imported(tmp_path: Path, *results: Result, sku: str | None = None, skus: Any = SKUS) -> RunDirectory:
    """Of results in a folder and one below it."""
    (tmp_path / "results/more").mkdir(parents=True, exist_ok=True)
    for number, result in enumerate(results):
        (tmp_path / "results" / ("more" * (number % 2)) / f"result{number}.json").write_text(json.dumps(result))
    return import_paik(tmp_path / "results", tmp_path / "run", sku, replace(thresholds().thresholds, skus=skus))


def told(run: RunDirectory) -> str:
    """All that was written, but the time; a line for each study, gang and block."""
    record = json.loads(run.run_json.read_text()) | {"started_at": ""}
    plan, lines = run.plan_json.read_text().replace(',{"scaling"', ',\n{"scaling"'), run.measurements_jsonl.read_text()
    return "\n".join([json.dumps(record, indent=1), plan, lines])


def judged(run: RunDirectory) -> Judgement:
    """By all requirements of its SKU."""
    session = AcceptanceSession(find_source(Site(settings_from({"ddp_judge": str(run.path)}, {}, {}), Path(), Path())))
    session.source.select(session.source.cases)
    return session.conclude(interrupted=False, spoiled=())


def test_every_rank_of_every_file_becomes_one_measurement_with_what_it_saw(tmp_path: Path) -> None:
    run = import_paik(PUBLISHED, tmp_path / "run", None, thresholds().thresholds)
    measured = {(one.study, one.arm, one.rank): one for one in measurements_in(run)}
    assert len(measurements_in(run)) == len(measured) == 4 * (1 + 2 + 4 + 8) + 4 * (1 + 8)
    for study in RunDirectory.open(run.path).read_plan().studies:
        for arm in study.arms:
            model, precision = study.workload.family.model, study.workload.precision
            (path,) = PUBLISHED.glob(f"{arm.world_size}gpu_{study.scaling}_{model}_{precision}_*.json")
            for source in json.loads(path.read_text())["per_rank"]:
                found = measured[study.id, arm.name, source["rank"]]
                assert found.throughput_samples_per_s == pytest.approx(source["images_per_sec"])
                assert found.block_s == pytest.approx(source["n_steps"] * source["mean_step_sec"])
    assert_approved("import-paik.txt", told(run).partition('\n{"kind":"gang"')[0])


def test_several_nodes_get_hosts_of_their_own_and_what_was_not_sampled_is_none(tmp_path: Path) -> None:
    first, second = TWO_GPUS["per_rank"]
    sampling = first["gpu_sampling"] | {"gpu_activity_pct": {"mean": None}}
    ranks = [
        first | {"gpu_sampling": sampling},
        second | {"gpu_sampling": None, "n_steps": 1, "stdev_step_sec": 0.0},
    ]
    two_nodes = TWO_GPUS | {"nodes": 2, "cuda_version": None, "per_rank": ranks}
    run = imported(tmp_path, two_nodes, ONE_GPU | {"torch_version": "2.10.0"})
    assert_approved("import-paik-two-nodes.txt", told(run))


def test_only_what_the_thresholds_train_has_a_name_of_theirs_and_the_sku_is_that_of_all_devices(tmp_path: Path) -> None:
    again, half = SKUS | {"a100-site": SKUS["a100-sxm4-80gb"]}, {"batch_size_per_gpu": 256, "global_batch_size": 256}
    changes = [
        {"image_size": 128}, half, {"scaling_mode": "strong"}, {"channels_last": False}, {"compile": True},
    ]  # fmt: skip
    devices: list[tuple[str | None, Any, list[str]]] = [
        ("a100", SKUS, [UNKNOWN]), (None, SKUS, [A100, "A100-SXM-80GB"]), ("a100-site", again, [A100]),
        (None, again, [A100]), (None, SKUS, [UNKNOWN]), ("a10", SKUS, [A100]), ("v100-sxm2-16gb", SKUS, [A100]),
        (None, SKUS, [A100, V100]), ("a100", SKUS, [A100, V100]),
    ]  # fmt: skip
    lines = list[str]()
    for number, change in enumerate(changes):
        run = imported(tmp_path / f"{number}", ONE_GPU | change, ONE_GPU)
        studies = [study.id for study in run.read_plan().studies]
        assert [*dict.fromkeys(one.study for one in measurements_in(run))] == studies
        lines += [f"{change}:", *studies, *run.read_run().notes[5:], ""]
    for asked, skus, names in devices:
        results = [one | {"device_name": name} for one, name in zip((ONE_GPU, TWO_GPUS), names, strict=False)]
        path = tmp_path / f"{len(lines)}"
        try:
            found = imported(path, *results, sku=asked, skus=skus).read_plan().sku
        except BadInput as error:
            found = f"{error}{' But a run was written.' * (path / 'run').exists()}"
        lines.append(f"{asked} of {[*skus]}, {names}: {found}")
    assert_approved("import-paik-names.txt", "\n".join([*lines, ""]))


def test_a_full_disk_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("pytest_ddpscale.run.run_directory.append_whole", full)
    with pytest.raises(RunDirectoryError, match="No space left on device"):
        imported(tmp_path, ONE_GPU)
    assert not (tmp_path / "run/run.json").exists()


def test_the_table_of_an_import_has_what_was_published_and_what_follows_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And its judgement begins with the outcome and what was imported."""
    run = RunDirectory(tmp_path / "run")
    assert main(["import", "paik", str(PUBLISHED), "--out", str(run.path)]) == 0
    assert_approved("import-paik-table.txt", capsys.readouterr().out.replace(str(tmp_path), ""))
    judgement = judged(run)
    outcome = without_counts(headline(judgement, run.read_run()))
    assert re.sub(r"\d+ of \d+(?=\)$)", "N of N", outcome) == (
        "INCOMPLETE: imported 1190 img/s per GPU, 97.4 % at 8 GPUs, 2.36× v100-sxm2-16gb (resnet152-fp16; 38 of N "
        "requirements with a value passed); not tested: node checks, links and probes of GPUs, other training, earlier "
        "runs (N of N)"
    )
    found = {verdict.id: (verdict.value, verdict.interval) for verdict in judgement.verdicts}
    value, interval = found["step_time_p95[resnet152-fp16-8gpu]"]
    assert value == pytest.approx(446.2, abs=0.05)
    assert interval == pytest.approx((445.93, 446.55), abs=0.01), "wider than that of the mean"
    per_joule, unknown = found["images_per_joule[resnet152-fp16-8gpu]"]
    assert per_joule == pytest.approx(2.964, abs=0.001)
    assert unknown is None
    assert found["model_flops_utilization[resnet152-fp16-8gpu]"][0] == pytest.approx(
        1159.16 * 69.084e9 / 312e12, rel=1e-4
    )


def test_the_error_of_a_p95_is_that_of_the_rank_whose_steps_vary_most(tmp_path: Path) -> None:
    """Which need not be the slowest one: another rank's slow steps are in its 95th percentile, not in its mean."""
    *others, last = EIGHT_GPUS["per_rank"]
    varied = last | {"stdev_step_sec": 10 * last["stdev_step_sec"], "p95_step_sec": 0.4861}
    run = imported(tmp_path, EIGHT_GPUS | {"per_rank": [*others, varied]}, ONE_GPU)
    found = {verdict.id: (verdict.value, verdict.interval) for verdict in judged(run).verdicts}
    value, interval = found["step_time_p95[resnet152-fp16-8gpu]"]
    assert value == pytest.approx(486.1)
    assert interval == pytest.approx((482.7, 489.5), abs=0.1), "486.1 · (1 ± 1.96 · 2.11 · 6.1 % ÷ √1351)"


@pytest.mark.parametrize(("precision", "has_mfu"), [("bf16", True), ("fp32", False)])
def test_fp32_has_no_mfu_because_it_may_have_run_in_tf32(
    precision: str, has_mfu: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.json").write_text(json.dumps(ONE_GPU | {"precision": precision}))
    assert main(["import", "paik", str(tmp_path), "--out", str(tmp_path / "run")]) == 0
    table = capsys.readouterr().out
    assert "TFLOPS" in table
    assert ("MFU" in table) is has_mfu
