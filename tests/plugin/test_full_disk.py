"""The run directory's disk fills up in the middle: what was measured is kept, judged and shown, and nothing crashes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.site import Site, assert_no_crash, assert_refused, output_of
from tests.plugin.test_resume import THRESHOLDS
from tests.small_disk import SmallDisk, small_disk

RUN = "disk/run"


@pytest.fixture
def disk(site: Site) -> Iterator[SmallDisk]:
    """Where the site's runs go."""
    site.write("conftest.py", Path(__file__).with_name("instant_gang.py").read_text(encoding="utf-8"))
    site.write("thresholds.yaml", THRESHOLDS)
    with small_disk(site.path / "disk", kib=2048) as disk:
        yield disk


def test_a_disk_that_fills_up_while_measuring_costs_what_was_not_measured(
    site: Site, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "No space left on device"
    monkeypatch.setenv("GANG_ENDS", json.dumps({"strong/tiny": "full"}))
    result = site.run("--gpu-sku=cpu", "--ddp-gpus-per-node=2", f"--ddp-run-dir={RUN}", "-p", "no:cacheprovider", "-v")
    assert_no_crash(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2, failed=1)
    output = output_of(result)
    found = f"{RUN}/measurements.jsonl: cannot be written ({why}); expected a writable file system with space left."
    assert f"INCOMPLETE: error: strong_scaling_speedup[tiny-2rank]: {found}" in output
    assert f"or repair the file system, then measure the rest with --ddp-resume={RUN}" in output
    (outcome,) = [line for line in result.outlines if line.startswith("INCOMPLETE: ")]
    assert outcome.startswith("INCOMPLETE: error: strong_scaling_speedup[tiny-2rank]: ")
    (table_line,) = [line for line in result.outlines if line.startswith("weak_scaling_efficiency[tiny-2rank]")]
    assert table_line.endswith("PASS"), "the verdicts are on the terminal at least"
    assert f"verdicts.json cannot be written ({why}). Earlier measurements are kept. " in output
    assert "report: " not in output, "there is none"
    assert not (site.path / RUN / "verdicts.json").exists()
    disk.make_room()
    monkeypatch.delenv("GANG_ENDS")
    assert site.run(f"--ddp-resume={RUN}", "--ddp-gpus-per-node=2").ret == pytest.ExitCode.OK
    assert site.outcome(RUN) == "accepted"


def test_a_full_disk_is_refused_before_anything_is_measured(site: Site, disk: SmallDisk) -> None:
    disk.fill()
    result = site.run("--gpu-sku=cpu", "--ddp-gpus-per-node=2", f"--ddp-run-dir={RUN}", "-p", "no:cacheprovider", "-v")
    assert_refused(result, "cannot be written (No space left on device)")
    disk.make_room()
    assert not list(site.path.glob(f"{RUN}/logs/*"))
    assert site.run("--gpu-sku=cpu", "--ddp-gpus-per-node=2", f"--ddp-run-dir={RUN}").ret == pytest.ExitCode.OK
