"""`--ddp-rehearse`: a simulated run ends as its machine would, and nothing takes it for an acceptance."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_ddpscale.history.store import add_run
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.simulate.cluster import open_cluster
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions, parse_faults
from pytest_ddpscale.simulate.writing import write_simulated_run
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.plugin.site import Site, assert_no_crash
from tests.plugin.test_first_line import ALL_NODES

BEGINS = "REHEARSED: would be "
OWN_TEST = "def test_fans():\n    assert False\n"


def simulated(site: Site, *faults: str, gpus: int = 16) -> Path:
    """A run of a simulated cluster in the site's folder."""
    site.write("thresholds.yaml", ALL_NODES)
    cluster = open_cluster(load_thresholds(site.thresholds), ClusterOptions("lab-gpu", gpus))
    plan = cluster.plan(rounds=12)
    run = RunDirectory.create(site.path / "simulated")
    measured = SimulatedRun(plan, cluster.performance, parse_faults(faults, plan.layout), seed=0)
    write_simulated_run(run, cluster, measured, ["ddpscale", "simulate"])
    return run.path


def test_a_sound_simulated_machine_shows_an_acceptance_that_nothing_keeps(site: Site) -> None:
    run = simulated(site)
    result = site.judge("--ddp-rehearse", "--junitxml=pytest.xml", run=str(run))
    assert result.ret == 0
    assert any(line.startswith(f"{BEGINS}accepted, ") for line in result.outlines)
    assert not any(
        line.startswith(("ACCEPTED", "INCOMPLETE")) or "--ddp-rehearse shows" in line for line in result.outlines
    )
    assert result.parseoutcomes()["xfailed"] >= 1, "the run as a whole"
    verdicts = json.loads((run / "verdicts.json").read_text())
    assert verdicts["outcome"] == "incomplete"
    assert [one["kind"] for one in verdicts["blockers"]] == ["run"]
    assert ElementTree.parse(run / "junit.xml").getroot().get("failures") == "1"
    of_pytest = ElementTree.parse(site.path / "pytest.xml").getroot()
    assert [one.get("name") for one in of_pytest.iterfind(".//skipped/..")][-1:] == ["acceptance"]
    outcomes = [line for line in (run / "metrics.prom").read_text().splitlines() if "ddpscale_run_outcome{" in line]
    assert [line.split()[-1] for line in outcomes if 'outcome="accepted"' in line] == ["0.0"]
    page = (run / "report.html").read_text()
    assert "SIMULATED: no machine was measured" in page
    assert f"{BEGINS}accepted, " in page
    assert "INCOMPLETE" not in page
    assert "--ddp-rehearse shows" not in page
    history = site.path / "history.sqlite"
    assert add_run(history, run) == "added"
    again = site.judge("--ddp-rehearse", f"--ddp-history={history}", run=str(run))
    assert again.ret == 0


@pytest.mark.parametrize("fault", ["slow-gpu:3:1.2", "missing-rank:3:0", ""])
def test_anything_else_in_the_way_ends_the_rehearsal_as_the_machine_would(site: Site, fault: str) -> None:
    run = simulated(site, *([fault] if fault else []))
    if not fault:
        site.write("acceptance/test_own.py", OWN_TEST)
    result = site.judge("--ddp-rehearse", *["-x"] * (not fault), run=str(run))
    assert_no_crash(result)
    assert result.ret == 1
    assert not any("REHEARSED" in line for line in result.outlines)


def test_a_rehearsal_of_a_selection_says_that_it_is_partial(site: Site) -> None:
    run = simulated(site)
    result = site.judge("--ddp-rehearse", "-k", "throughput_per_gpu", run=str(run))
    assert result.ret == 0
    assert any(line.startswith(f"{BEGINS}partial, ") for line in result.outlines)


def test_a_rehearsal_takes_only_a_simulated_run(site: Site) -> None:
    run = site.measured().path
    refused = site.judge("--ddp-rehearse", run=str(run))
    assert refused.ret == 4
    assert f"--ddp-rehearse: found {run}, a run of a real machine; expected a simulated run" in refused.stderr.str()
    assert not (run / "verdicts.json").exists()
    for arguments in ([f"--ddp-resume={run}"], ["--gpu-sku=cpu"]):
        refused = site.run("--ddp-rehearse", *arguments)
        assert refused.ret == 4
        assert "--ddp-rehearse: found without --ddp-judge" in refused.stderr.str()
