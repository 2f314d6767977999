"""`ddpscale forecast` and `ddpscale scaling`, as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ddpscale.cli import USER_ERROR, main

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


def test_a_study_that_is_refused_keeps_no_other_from_a_forecast(two_nodes: str, capsys: Printed) -> None:
    assert main(["forecast", two_nodes, "--gpus", "8,16,32"]) == 0
    printed = capsys.readouterr().out
    weak, strong = printed.split("strong/vit-b-16-fp16")
    assert "2x the largest measured" in weak
    assert "no forecast" not in weak
    assert "  no forecast: --gpus: found 16, but no arm of vit-b-16-fp16 was measured across nodes" in strong
    assert "measured" in next(line for line in strong.splitlines() if line.split()[:1] == ["8"])


def test_columns_stand_under_their_heads(two_nodes: str, capsys: Printed) -> None:
    main(["forecast", two_nodes, "--gpus", "16,32,1000000"])
    head, *rows = capsys.readouterr().out.split("strong/")[0].splitlines()[2:]
    assert len(rows) == 3
    for title in ("GPUs", "img/s", "efficiency"):
        end = head.index(title) + len(title)
        assert all(row[end - 1] != " " and row[end : end + 2] == "  " for row in rows)


def test_measured_sizes_have_what_was_measured(two_nodes: str, capsys: Printed) -> None:
    main(["forecast", two_nodes, "--gpus", "16,32", "--format", "json"])
    weak = json.loads(capsys.readouterr().out)[0]
    assert weak["forecasts"][0]["img_per_s"] == weak["sizes"][-1]["img_per_s"]
    assert weak["forecasts"][0]["interval"] is None
    low, high = weak["forecasts"][1]["interval"]
    assert low < weak["forecasts"][1]["img_per_s"] < high
    assert weak["refused"] is None
    assert all(0 < size["error"] < 0.01 for size in weak["sizes"])


def test_an_imported_run_is_forecast_by_what_is_assumed(imported: str, capsys: Printed) -> None:
    assert main(["forecast", imported, "--gpus", "6", "--format", "json"]) == 0
    for one in json.loads(capsys.readouterr().out):
        assert {size["error"] for size in one["sizes"]} == {None}
        assert one["forecasts"][0]["interval"][0] > 0


def test_where_every_study_is_refused_the_first_says_why(imported: str, capsys: Printed) -> None:
    assert main(["forecast", imported, "--gpus", "16"]) == USER_ERROR
    assert "expected at most 8, the GPUs of one node" in capsys.readouterr().err


def test_a_run_of_one_size_is_told_what_to_measure(tmp_path: Path, capsys: Printed) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    for one in PUBLISHED.glob("1gpu_weak_*"):
        (alone / one.name).write_bytes(one.read_bytes())
    main(["import", "paik", str(alone), "--out", str(tmp_path / "run")])
    assert main(["forecast", str(tmp_path / "run"), "--gpus", "8"]) == USER_ERROR
    assert "at one world size only; expected at least two. Measure ddp at another" in capsys.readouterr().err
    assert main(["scaling", str(tmp_path / "run")]) == 0
    assert "sweet spot for efficiency of 90 %: 1 GPU\n" in capsys.readouterr().out


@pytest.mark.parametrize("gpus", ["", "0", "8,x", "-4", "2000000"])
def test_sizes_that_are_none_are_refused(two_nodes: str, gpus: str, capsys: Printed) -> None:
    assert main(["forecast", two_nodes, f"--gpus={gpus}"]) == USER_ERROR
    assert "--gpus: found" in capsys.readouterr().err


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


@pytest.mark.parametrize("number", ["nan", "-1", "inf", "1e308"])
@pytest.mark.parametrize("option", ["--images", "--fixed-s", "--deadline", "--gpu-hour-price", "--kwh-price"])
def test_nonsense_is_refused(tmp_path: Path, option: str, number: str, capsys: Printed) -> None:
    assert main(["scaling", str(tmp_path), f"{option}={number}"]) == USER_ERROR
    assert f"{option}: found {float(number):g}; expected a number " in capsys.readouterr().err


def test_no_images_are_no_job(tmp_path: Path, capsys: Printed) -> None:
    assert main(["scaling", str(tmp_path), "--images", "0"]) == USER_ERROR
    assert "--images: found 0; expected a number above 0" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["forecast", "--gpus", "8"], ["scaling"]])
def test_what_no_machine_did_says_so(two_nodes: str, imported: str, command: list[str], capsys: Printed) -> None:
    main([*command, two_nodes])
    assert capsys.readouterr().out.startswith("SIMULATED: no machine was measured\n")
    main([*command, imported])
    assert "SIMULATED" not in capsys.readouterr().out
    main([*command, two_nodes, "--format", "json"])
    assert all(one["simulated"] for one in json.loads(capsys.readouterr().out))


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert main(["forecast", str(tmp_path), "--gpus", "8"]) == USER_ERROR
