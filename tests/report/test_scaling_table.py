"""`ddpscale scaling`, as it is typed, and its table in the report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.report.scaling_table import scaling_tables
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.session.open import find_source
from pytest_ddpscale.session.session import AcceptanceSession
from pytest_ddpscale.session.sources import Site
from pytest_ddpscale.settings import settings_from
from pytest_ddpscale.util.command_parser import USER_ERROR
from pytest_ddpscale.util.document import plain
from tests.builders.judgements import JUDGEMENT, RUN
from tests.report.page_text import page_text
from tests.report.written import page_of

PUBLISHED = Path(__file__).parents[1] / "data" / "paik_a100_80gb"
Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A simulated run of 16 A100s: weak scaling to all of them, strong scaling inside a node."""
    path = tmp_path_factory.mktemp("run") / "run"
    simulate = ["simulate", "--gpu-sku", "a100", "--gpus", "16", "--world-sizes", "16", "--rounds", "8"]
    main([*simulate, "--workloads", "vit-b-16-fp16", "--out", str(path)])
    return str(path)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The published results of 8 A100s, single values without rounds."""
    path = tmp_path_factory.mktemp("imported") / "run"
    main(["import", "paik", str(PUBLISHED), "--out", str(path)])
    return str(path)


def test_columns_stand_under_their_heads(two_nodes: str, capsys: Printed) -> None:
    main(["scaling", two_nodes])
    head, *rows = capsys.readouterr().out.split("strong/")[0].splitlines()[2:8]
    assert len(rows) == 5
    for title in ("GPUs", "img/s", "speed-up", "efficiency", "gain"):
        end = head.index(title) + len(title)
        assert all(row[end - 1] != " " and row[end : end + 2] == "  " for row in rows)


def test_a_run_of_one_size_is_its_own_sweet_spot(tmp_path: Path, capsys: Printed) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    for one in PUBLISHED.glob("1gpu_weak_*"):
        (alone / one.name).write_bytes(one.read_bytes())
    main(["import", "paik", str(alone), "--out", str(tmp_path / "run")])
    assert main(["scaling", str(tmp_path / "run")]) == 0
    assert "sweet spot for efficiency of 90 %: 1 GPU\n" in capsys.readouterr().out
    assert scaling_tables(read_evidence(RunDirectory.open(tmp_path / "run")), ()) == []


def test_scaling_tells_sweet_spots_of_measured_sizes(two_nodes: str, capsys: Printed) -> None:
    assert main(["scaling", two_nodes, "--images", "1e6", "--deadline", "200", "--gpu-hour-price", "2"]) == 0
    weak, strong = capsys.readouterr().out.split("strong/")
    assert "sweet spot for deadline: 8 GPUs" in weak
    assert "sweet spot for efficiency of 90 %: 16 GPUs" in weak
    assert "sweet spot for efficiency of 90 %: 1 GPU\n" in strong
    assert "sweet spot for energy" not in weak


def test_scaling_as_json_has_each_size(imported: str, capsys: Printed) -> None:
    main(["scaling", imported, "--format", "json"])
    weak = next(one for one in json.loads(capsys.readouterr().out) if one["study"] == "weak/resnet152-fp16")
    assert [size["gpus"] for size in weak["sizes"]] == [1, 2, 4, 8]
    assert weak["sizes"][-1]["efficiency"] == pytest.approx(0.9745, abs=1e-4)


def test_sizes_that_were_judged_have_the_numbers_of_their_verdicts(
    two_nodes: str, tmp_path: Path, capsys: Printed
) -> None:
    """Also before they are judged, although one GPU was trained both alone and under DDP."""
    judged = RunDirectory(tmp_path / "judged")
    shutil.copytree(two_nodes, judged.path)
    settings = settings_from({"ddp_judge": str(judged.path)}, {}, {})
    session = AcceptanceSession(find_source(Site(settings, Path(), Path())))
    session.source.select(session.source.cases)
    judgement = session.conclude(interrupted=False, spoiled=())
    judged.write_json(judged.verdicts_json, judgement)
    main(["scaling", str(judged.path), "--format", "json"])
    with_verdicts = capsys.readouterr().out
    sizes = {one["study"]: {size["gpus"]: size for size in one["sizes"]} for one in json.loads(with_verdicts)}
    told = {
        "throughput_per_gpu": lambda size: size["samples_per_s"] / size["gpus"],
        "weak_scaling_efficiency": lambda size: size["efficiency"],
        "strong_scaling_speedup": lambda size: size["speedup"],
    }
    found = [one for one in judgement.verdicts if one.metric in told and one.value is not None]
    assert {one.metric for one in found} == set(told)
    for one in found:
        study = f"{'strong' if one.metric.startswith('strong') else 'weak'}/{one.workload}"
        assert told[one.metric](sizes[study][one.world_size]) == pytest.approx(one.value, rel=1e-14)
    main(["scaling", two_nodes, "--format", "json"])
    assert json.loads(capsys.readouterr().out) == json.loads(with_verdicts)


@pytest.mark.parametrize("number", ["nan", "-1", "inf", "1e308"])
@pytest.mark.parametrize("option", ["--images", "--fixed-s", "--deadline", "--gpu-hour-price", "--kwh-price"])
def test_nonsense_is_refused(tmp_path: Path, option: str, number: str, capsys: Printed) -> None:
    assert main(["scaling", str(tmp_path), f"{option}={number}"]) == USER_ERROR
    assert f"{option}: found {float(number):g}; expected a number " in capsys.readouterr().err


def test_no_images_are_no_job(tmp_path: Path, capsys: Printed) -> None:
    assert main(["scaling", str(tmp_path), "--images", "0"]) == USER_ERROR
    assert "--images: found 0; expected a number above 0" in capsys.readouterr().err


def test_what_no_machine_did_says_so(two_nodes: str, imported: str, capsys: Printed) -> None:
    main(["scaling", two_nodes])
    assert capsys.readouterr().out.startswith("SIMULATED: no machine was measured\n")
    main(["scaling", imported])
    assert "SIMULATED" not in capsys.readouterr().out
    main(["scaling", two_nodes, "--format", "json"])
    assert all(one["simulated"] for one in json.loads(capsys.readouterr().out))


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert main(["scaling", str(tmp_path)]) == USER_ERROR


def test_the_report_has_the_table_in_gpu_hours_and_kwh(two_nodes: str, capsys: Printed) -> None:
    evidence = read_evidence(RunDirectory.open(Path(two_nodes)))
    (weak_study, weak, remarks), (strong_study, strong, _) = scaling_tables(evidence, ())
    assert (weak_study, strong_study) == ("weak/vit-b-16-fp16", "strong/vit-b-16-fp16")
    main(["scaling", two_nodes, "--gpu-hour-price", "1", "--kwh-price", "1"])
    printed = capsys.readouterr().out.splitlines()
    assert [" ".join(map(plain, row)) for row in weak.rows] == [
        " ".join(line.split()) for line in printed[3 : 3 + len(weak.rows)]
    ]
    assert weak.titles[0] == "GPUs"
    assert weak.titles[-2:] == ["GPU-hours", "kWh"]
    assert "sweet spot for GPU-hours: 1 GPU" in remarks
    assert "sweet spot for efficiency of 90 %: 16 GPUs" in remarks
    page = page_text(page_of(JUDGEMENT, RUN, evidence))
    assert all(f"| {' | '.join(map(plain, row))} |" in page for row in (weak.titles, *weak.rows, *strong.rows))
    assert "\nScaling\n" not in page_text(page_of(JUDGEMENT, RUN, evidence, goes_on=True))
