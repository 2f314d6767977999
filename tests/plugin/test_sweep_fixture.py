"""The sweep of collectives runs only where somebody asks for it, and the session ends by what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ddpscale.plan.probe import COLLECTIVES
from tests.plugin.site import Site, assert_no_crash, output_of

SWEEP = "test_collectives"
BANDWIDTH = "test_bus_bandwidth[all-reduce-1mib-2rank]"
LAST_OF_CPU = "bound: 0.1, because: made up}\n"
REQUIRED = "      - {busbw_gbps: {2: 0.5}, probe: all-reduce-1mib, provisional: made up for a test}\n"


@pytest.fixture
def on_cpu(site: Site) -> Site:
    """A site that requires something of a collective, whose gang measures at once."""
    text = site.thresholds.read_text(encoding="utf-8")
    assert text.endswith(LAST_OF_CPU)
    site.write("thresholds.yaml", text + REQUIRED)
    site.write("conftest.py", Path(__file__).with_name("instant_gang.py").read_text(encoding="utf-8"))
    return site


def selected(site: Site, *arguments: str) -> list[str]:
    result = site.run("--gpu-sku=cpu", "--collect-only", "-q", *arguments)
    assert result.ret == pytest.ExitCode.OK
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


def measured(site: Site, *arguments: str) -> pytest.RunResult:
    options = ("--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--ddp-run-dir=measured", "-m", "collectives")
    return site.run(*options, *arguments)


def test_nobody_gets_a_sweep_that_did_not_ask(on_cpu: Site) -> None:
    names = selected(on_cpu)
    assert BANDWIDTH in names
    assert SWEEP not in names
    assert SWEEP not in selected(on_cpu, "-m", "node_health")


def test_the_mark_selects_it_with_what_is_required_of_collectives(on_cpu: Site) -> None:
    assert selected(on_cpu, "-m", "collectives") == [BANDWIDTH, SWEEP]


def test_a_sound_machine_passes_and_has_a_report_beside_the_runs(on_cpu: Site) -> None:
    result = measured(on_cpu)
    assert_no_crash(result)
    result.assert_outcomes(passed=2, deselected=2)
    assert result.ret == pytest.ExitCode.OK, output_of(result)
    sweep = on_cpu.path / "measured" / "collectives"
    rows = json.loads((sweep / "suite.json").read_text(encoding="utf-8"))["rows"]
    assert {row["operation"] for row in rows} == set(COLLECTIVES)
    assert {row["world_size"] for row in rows} == {2}
    assert (sweep / "report.html").exists()
    assert on_cpu.verdicts()["verdicts"][0]["outcome"] == "passed"


def test_wrong_results_fail_the_test_and_the_machine(on_cpu: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GANG_WRONG", "broadcast-16kib")
    result = measured(on_cpu)
    result.assert_outcomes(passed=1, failed=1, deselected=2)
    output = output_of(result)
    assert "broadcast-16kib@2 gave 32 wrong results of 32" in output
    assert "sweep_fixture.py" not in output, "no traceback"
    assert "INCOMPLETE" in output
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_on_one_rank_there_is_nothing_to_sweep(on_cpu: Site) -> None:
    result = on_cpu.run("--gpu-sku=cpu", "--ddp-gpus-per-node=1", "--ddp-run-dir=measured", "-m", "collectives", "-rs")
    assert "a collective needs at least two ranks; there is one" in output_of(result)


def test_a_run_that_is_only_judged_has_no_sweep(on_cpu: Site) -> None:
    assert measured(on_cpu, "--deselect", f"acceptance/test_sweep.py::{SWEEP}").ret == pytest.ExitCode.OK
    result = on_cpu.run("--gpu-sku=cpu", "--ddp-judge=measured", "--ddp-run-dir=again", "-m", "collectives", "-rs")
    assert "the sweep runs only in a new measurement" in output_of(result)
    assert not (on_cpu.path / "again" / "collectives").exists()
