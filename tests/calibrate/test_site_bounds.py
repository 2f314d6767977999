"""Rows and source of an overlay, and what people and programs are told."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from pytest_ddpscale import __version__
from pytest_ddpscale.calibrate.calibration import Calibration, calibrate
from pytest_ddpscale.calibrate.site_bounds import calibration_lines, overlay_of, provenance_of, source_text
from pytest_ddpscale.history.past_run import PastRun
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.model import Requirement
from pytest_ddpscale.thresholds.site_file import write_overlay
from pytest_ddpscale.thresholds.waiver import today
from tests.approved import assert_approved
from tests.builders.clusters import thresholds
from tests.builders.trusted import SKU, WORKLOAD, launches, nodes


@pytest.fixture(scope="module")
def runs() -> list[PastRun]:
    return launches(3, nodes(6), "slow-gpu:3:1.3")


@pytest.fixture(scope="module")
def calibration(runs: list[PastRun]) -> Calibration:
    return calibrate(thresholds(), SKU, runs, 0.01, 0.25)


def test_people_are_told_what_was_found_and_get_the_new_file(calibration: Calibration, runs: list[PastRun]) -> None:
    """The packaged file's rows that warn though they are not provisional still warn."""
    provenance = provenance_of(calibration, runs)
    said = "\n".join(calibration_lines(calibration, provenance))
    assert max(map(len, said.splitlines())) <= 100
    overlay = overlay_of(calibration, provenance, thresholds()).text(Path())
    assert_approved("calibrate.txt", f"{said}\n\n{overlay}".replace(__version__, "VERSION"))
    section = yaml.safe_load(overlay)["skus"][SKU]["requirements"]
    written = sum(len(value) for row in section for value in row.values() if isinstance(value, dict))
    assert written == len(calibration.calibrated)


def test_a_source_of_many_nodes_is_short_and_says_if_they_were_simulated(
    calibration: Calibration, runs: list[PastRun]
) -> None:  # fmt: skip
    provenance = {**provenance_of(calibration, runs), "is_simulated": True}
    text = source_text(replace(calibration, nodes=tuple(f"n{i:03}" for i in range(125))), provenance)
    assert text.startswith("SIMULATED, no machine was measured: 125 nodes in 3 launches, 2026-11-21 to 2026-11-23; ")
    assert text.endswith("nodes: n[000-124]")


def test_a_warning_of_its_own_right_stays_one(calibration: Calibration, runs: list[PastRun]) -> None:
    first = calibration.calibrated[0]
    requirement = replace(first.requirement, provisional=False, severity="warn")
    warned = replace(calibration, calibrated=(replace(first, requirement=requirement),))
    [row] = overlay_of(warned, provenance_of(calibration, runs), thresholds()).section["requirements"]
    assert row["severity"] == "warn"


def test_what_the_sites_file_changes_and_waives_holds_for_the_new_rows(tmp_path: Path, runs: list[PastRun]) -> None:
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
