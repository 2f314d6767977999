"""Rows and source of an overlay, and what people and programs are told."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from pytest_ddpscale.calibrate.calibration import Calibration, calibrate
from pytest_ddpscale.calibrate.site_bounds import (
    calibration_json,
    calibration_lines,
    overlay_of,
    provenance_of,
    source_text,
)
from pytest_ddpscale.calibrate.trusted_runs import TrustedRun
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.model import Requirement
from pytest_ddpscale.thresholds.site_file import write_overlay
from pytest_ddpscale.thresholds.waiver import today
from tests.builders.clusters import thresholds
from tests.builders.trusted import SKU, WORKLOAD, launches, nodes


@pytest.fixture(scope="module")
def runs() -> list[TrustedRun]:
    return launches(3, nodes(6), "slow-gpu:3:1.3")


@pytest.fixture(scope="module")
def calibration(runs: list[TrustedRun]) -> Calibration:
    return calibrate(thresholds(), SKU, runs, 0.01, 0.25)


def test_the_source_says_who_when_and_with_what(calibration: Calibration, runs: list[TrustedRun]) -> None:
    provenance = provenance_of(calibration, runs)
    assert provenance["name"] == "calibrated-2026-11-23"
    text = source_text(calibration, provenance)
    for said in (
        "5 nodes in 3 launches, 2026-11-21 to 2026-11-23; ", "nodes: simulated-0 simulated-2 simulated-3",
        "driver 580.1", "torch 2.14.0", "nccl 2.28.3", "10 GPUs: GPU-simulate", "at most 0.01", "left out: simulated-1",
    ):  # fmt: skip
        assert said in text
    assert "SIMULATED" not in text
    assert "GPU-simulated-1-0" not in [uuid for node in provenance["gpus"].values() for uuid in node]
    rehearsed = provenance_of(calibration, [replace(run, is_simulated=True) for run in runs])
    assert source_text(calibration, rehearsed).startswith("SIMULATED, no machine was measured: ")


def test_of_a_thousand_gpus_the_source_has_a_digest(calibration: Calibration, runs: list[TrustedRun]) -> None:
    gpus = {f"n{i:03}": tuple(f"GPU-{i:08x}-{gpu}" for gpu in range(8)) for i in range(125)}
    everybody = {**provenance_of(calibration, runs), "nodes": list(gpus), "gpus": gpus}
    text = source_text(calibration, everybody)
    assert "1000 GPUs: GPU-00000000 … GPU-0000007c, sha256 " in text
    assert len(text) < 4000


def test_rows_are_those_of_an_overlay(calibration: Calibration, runs: list[TrustedRun]) -> None:
    text = overlay_of(calibration, provenance_of(calibration, runs), thresholds()).text(Path())
    rows = yaml.safe_load(text)["skus"][SKU]["requirements"]
    by_name = {one.name: one for one in calibration.calibrated}
    one = by_name[f"throughput_per_gpu[{WORKLOAD}-1gpu]"]
    assert rows[0] == {
        "throughput_per_gpu": {1: one.value}, "of": WORKLOAD, "published": "calibrated-2026-11-23",
        "margin": f"{one.margin_pct:g} %",
    }  # fmt: skip
    assert {"memory_bandwidth_gbps", "busbw_gbps", "host_bandwidth_gbps"} <= {next(iter(row)) for row in rows}
    said = sum(len(value) for row in rows for value in row.values() if isinstance(value, dict))
    assert said == len(calibration.calibrated)
    assert all(("of" in row) != ("probe" in row) for row in rows)
    assert not any("placement" in row or "versus" in row for row in rows)
    # Of the packaged file's, these warn though they are not provisional.
    warning = {next(iter(row)) for row in rows if row.get("severity") == "warn"}
    assert warning <= {"matmul_tflops", "busbw_gbps", "host_bandwidth_gbps"}


def test_a_warning_of_its_own_right_stays_one(calibration: Calibration, runs: list[TrustedRun]) -> None:
    first = calibration.calibrated[0]
    requirement = replace(first.requirement, provisional=False, severity="warn")
    warned = replace(calibration, calibrated=(replace(first, requirement=requirement),))
    [row] = overlay_of(warned, provenance_of(calibration, runs), thresholds()).section["requirements"]
    assert row["severity"] == "warn"


def test_what_the_sites_file_changes_and_waives_holds_for_the_new_rows(
    tmp_path: Path, runs: list[TrustedRun]
) -> None:  # fmt: skip
    """As it would if the rows were replaced in the site's own file."""
    site, new, edited = (tmp_path / f"{name}.yaml" for name in ("site", "new", "edited"))
    waived = {"throughput_per_gpu": "any", "of": WORKLOAD, "severity": "warn", "who": "Ada", "why": "fans",
              "until": today() + timedelta(30)}  # fmt: skip
    section = {
        "requirements": [
            {"throughput_per_gpu": {1: 700}, "of": WORKLOAD, "provisional": "our guess", "severity": "fail"}
        ],
        "change": [
            {"memory_bandwidth_gbps": [1], "probe": "memory-copy", "severity": "warn", "who": "Ada", "why": "slow"},
            waived,
        ],
    }  # fmt: skip
    content = {"schema_version": 2, "extends": "packaged", "skus": {SKU: section}}
    site.write_text(yaml.safe_dump(content))
    file = load_thresholds(site)
    found = calibrate(file, SKU, runs, 0.01, 0.25)
    overlay = overlay_of(found, provenance_of(found, runs), file)
    write_overlay(new, overlay)
    rows = overlay.section["requirements"]
    unchanged = [{key: value for key, value in row.items() if "memory_bandwidth_gbps" not in row or key != "severity"}
                 for row in rows]  # fmt: skip
    assert unchanged != rows
    assert overlay.section["change"] == [{**waived, "throughput_per_gpu": [1]}]
    in_place = {"sources": dict(overlay.sources), "skus": {SKU: {**section, "requirements": unchanged}}}
    edited.write_text(yaml.safe_dump({**content, **in_place}))

    def requirements(path: Path) -> list[Requirement]:
        every = load_thresholds(path).thresholds.skus[SKU].requirements
        return sorted((replace(one, where="") for one in every), key=str)

    assert requirements(new) == requirements(edited)
    assert {one.waiver.who for one in requirements(new) if one.waiver} == {"Ada"}


def test_people_are_told_in_a_table(calibration: Calibration, runs: list[TrustedRun]) -> None:
    text = "\n".join(calibration_lines(calibration, provenance_of(calibration, runs)))
    row = next(line for line in text.splitlines() if line.startswith(f"  {WORKLOAD}-1gpu "))
    one = calibration.calibrated[0]
    assert f"{one.value:.4g} img/s" in row
    assert f"{one.found_from_pct:.1f} %" in row
    assert f"≥ 750  →  ≥ {one.bound:.4g}" in " ".join(row.split()).replace(" → ", "  →  ")
    assert "Left out: simulated-1. " in text
    assert "fails a run with these bounds with a chance of at most 0.01" in text
    assert "Not calibrated: node_check[gpus]" in text


def test_programs_get_all_of_it(calibration: Calibration, runs: list[TrustedRun]) -> None:
    provenance = provenance_of(calibration, runs)
    rows = overlay_of(calibration, provenance, thresholds()).section["requirements"]
    found = json.loads(strict_json(calibration_json(calibration, provenance, rows)))
    assert found["provenance"]["gpus"]["simulated-0"] == ["GPU-simulated-0-0", "GPU-simulated-0-1"]
    assert found["calibrated"][0]["old_bound"] == 750
    assert found["excluded"][0]["node"] == "simulated-1"
    assert found["requirements"][0]["throughput_per_gpu"] == {"1": found["calibrated"][0]["value"]}
