"""Forecasts held against published tables and simulated clusters."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.scripts import BENCHMARKS, benchmark

forecast = benchmark("forecast")
PUBLISHED = Path(__file__).parents[1] / "data" / "paik_a100_80gb"


def test_published_tables_are_held(capsys: pytest.CaptureFixture[str]) -> None:
    assert forecast.tables() == 0
    *lines, last = capsys.readouterr().out.splitlines()
    tables = json.loads((BENCHMARKS / "published_scaling.json").read_text())
    assert len(lines) == len(tables) == len({(table["table"], table["scaling"]) for table in tables})
    assert all(len(table["rates"]) >= 4 for table in tables)
    assert last.endswith("most misses a table 1")


def test_the_a100_tables_are_those_of_the_published_files() -> None:
    tables = json.loads((BENCHMARKS / "published_scaling.json").read_text())
    (table,) = (one for one in tables if one["table"] == "A100 ResNet-152 fp16")
    (path,) = PUBLISHED.glob("8gpu_weak_resnet152_fp16_*")
    assert table["rates"]["8"] == pytest.approx(json.loads(path.read_text())["images_per_sec_global"], abs=0.1)


@pytest.mark.parametrize("launches", [1, 3])
def test_intervals_hold_what_simulated_clusters_reach(launches: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert forecast.clusters(20, 1, launches) == 0
    printed = capsys.readouterr().out
    held = {(scaling, times): float(share) for scaling, times, share in
            re.findall(r"^(weak|strong) +([0-9.]+)x +[0-9]+ +([0-9.]+)%", printed, re.MULTILINE)}  # fmt: skip
    assert len(held) == 6
    assert min(held.values()) > 80
    quiet, noisy = (float(half) for half in re.findall(r"median half-width ([0-9.]+)%", printed))
    assert noisy > quiet


def test_clusters_differ_and_the_same_seed_gives_the_same() -> None:
    first, again, other = (forecast.cluster(np.random.default_rng([0, index])) for index in (1, 1, 2))
    assert first == again
    assert first != other
