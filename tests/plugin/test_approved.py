"""What a session leaves and prints of simulated clusters, judged for real: as it was read and approved."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.simulate.cluster import open_cluster
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions, parse_faults
from pytest_ddpscale.simulate.writing import write_simulated_run
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.approved import FOLDER, assert_approved, masked, shape_of
from tests.plugin.site import Site, assert_no_crash, edit_json

THRESHOLDS = FOLDER / "thresholds.yaml"
# What the simulator writes of a machine, and what stands there of a real one: only those are accepted.
AS_IF_MEASURED = {"SIM-": "GPU-0000000", "simulated-": "node", "simulated tested-gpu": "Tested GPU"}


@dataclass(frozen=True)
class Scenario:
    """A simulated cluster.

    Attributes:
        name: of the files that are approved.
        code: exit code of the session that judges it.
        faults: of the cluster.
        gpus: in nodes of eight.
        is_marked: whether it stays marked as simulated.
    """

    name: str
    code: int
    faults: tuple[str, ...] = ()
    gpus: int = 8
    is_marked: bool = False


SLOW_GPU = Scenario("slow-gpu", 1, ("slow-gpu:3:1.06",))
SCENARIOS = (
    Scenario("accepted", 0),
    SLOW_GPU,
    Scenario("two-faults", 1, ("slow-gpu:3:1.06", "bad-gpu:9:ecc"), gpus=16),
    Scenario("missing-rank", 1, ("missing-rank:5:2",), is_marked=True),
)


def judged(site: Site, scenario: Scenario) -> tuple[Path, str]:
    """The run directory of a simulated cluster, and what was printed while it was judged."""
    site.thresholds.write_text(THRESHOLDS.read_text(encoding="utf-8"), encoding="utf-8")
    cluster = open_cluster(load_thresholds(site.thresholds), ClusterOptions("tested-gpu", scenario.gpus))
    plan = cluster.plan(rounds=12)
    run = RunDirectory.create(site.path / scenario.name)
    simulated = SimulatedRun(plan, cluster.performance, parse_faults(scenario.faults, plan.layout), seed=0)
    write_simulated_run(run, cluster, simulated, ["pytest", "--gpu-sku=tested-gpu"])
    if not scenario.is_marked:
        edit_json(run.run_json, simulated=False, status="finished", simulation=None, notes=None)
        for file in (run.run_json, run.measurements_jsonl):
            text = file.read_text(encoding="utf-8")
            for of_simulated, of_measured in AS_IF_MEASURED.items():
                text = text.replace(of_simulated, of_measured)
            file.write_text(text, encoding="utf-8")
    result = site.judge("-p", "no:cacheprovider", run=scenario.name)
    assert_no_crash(result)
    assert result.ret == scenario.code
    # How long it took to write the run differs with the load of the machine.
    return run.path, re.sub(r"\d\.\d min,", "0.0 min,", masked(result.stdout.str(), site.path))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_terminal_says_what_was_approved(site: Site, scenario: Scenario) -> None:
    _, printed = judged(site, scenario)
    assert_approved(f"{scenario.name}.txt", printed)


def test_files_for_programs_are_as_they_were_approved(site: Site) -> None:
    run, _ = judged(site, SLOW_GPU)
    xml = ElementTree.parse(run / "junit.xml").getroot()
    ElementTree.indent(xml)
    report = json.loads((run / "pytest-report.json").read_text(encoding="utf-8"))
    verdicts = json.loads((run / "verdicts.json").read_text(encoding="utf-8"))
    for name, text in {
        "junit.xml": ElementTree.tostring(xml, encoding="unicode"),
        "pytest-report.json": json.dumps(report, indent=1),
        "metrics.prom": (run / "metrics.prom").read_text(encoding="utf-8"),
        "verdicts-shape.json": json.dumps(shape_of(verdicts | {"requirements": []}), indent=1),
    }.items():
        assert_approved(name, masked(text, site.path))
