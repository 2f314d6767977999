"""Results are shown as a table and kept as strict JSON."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import pytest

from tests.benchmarks.scripts import benchmark

reporting = benchmark("reporting")


def test_columns_line_up() -> None:
    assert reporting.table(("arm", "img/s"), [("alone", "9.5"), ("ddp@2", "1234.5")]).splitlines() == [
        "arm     img/s",
        "alone     9.5",
        "ddp@2  1234.5",
    ]


def test_a_result_is_kept_with_what_it_was_measured_on(tmp_path: Path) -> None:
    reporting.keep(tmp_path / "result.json", "fidelity", {"ratio": 1.01})
    kept = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert (kept["benchmark"], kept["ratio"]) == ("fidelity", 1.01)
    assert {"host", "python", "measured_at", "usable_cpus"} <= set(kept)


def test_nothing_is_kept_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reporting.keep(None, "fidelity", {})
    assert list(tmp_path.iterdir()) == []


def test_a_result_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        reporting.keep(tmp_path / "result.json", "fidelity", {"ratio": math.nan})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["0", "-3"])
def test_counts_start_at_one(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="from 1 up"):
        reporting.positive_int(text)


def test_the_score_interval_is_that_of_the_tables() -> None:
    assert list(reporting.Share(8, 10).interval) == pytest.approx([0.4902, 0.9433], abs=1e-4)
    assert list(reporting.Share(0, 10).interval) == pytest.approx([0.0, 0.2775], abs=1e-4)
