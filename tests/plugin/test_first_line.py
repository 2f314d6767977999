"""The first line of an outcome names its cause, and a run prints no more than fits on a screen."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.report.causes import counts_text
from pytest_ddpscale.run.run_json import WATERMARK
from pytest_ddpscale.run.verdicts import read_judgement
from tests.plugin.site import LAB_GPU, Site, assert_no_crash, outcome_line

MOST_LINES, COLUMNS = 40, 80
WITHIN_A_NODE = f"""\
{LAB_GPU}    requirements:
      - {{throughput_per_gpu: {{1: 1189.5, 8: 1159.2}}, of: resnet152-fp16, published: paper, margin: 5 %}}
      - {{weak_scaling_efficiency: {{8: 0.9745}}, of: resnet152-fp16, published: paper, margin: 3 %}}
"""
ALL_NODES = (
    WITHIN_A_NODE
    + """\
      - {throughput_per_gpu: {all: 1100}, of: resnet152-fp16, published: paper, margin: 5 %}
      - {weak_scaling_efficiency: {all: 0.93}, of: resnet152-fp16, published: paper, margin: 3 %}
      - {rank_uniformity: {all: 1}, of: resnet152-fp16, published: paper, margin: 5 %}
      - {replica_agreement: {all: 1}, of: resnet152-fp16, published: paper, margin: 0 %}
      - {pair_bandwidth_gbps: {all: 20}, probe: send-recv-256mib, published: paper, margin: 20 %}
"""
)
OWN_TEST = "def test_fans():\n    assert [1, 2, 3] == [1, 2]\n"


class Scenario(NamedTuple):
    """A simulated cluster and what the first line has to say of it; without GPUs the site's usual run is judged."""

    said: str
    gpus: int = 16
    fault: str = ""
    thresholds: str = ALL_NODES


SCENARIOS = {
    "one slow GPU of 128": Scenario(
        "REJECTED: GPU 5 (SIM-77) on simulated-9 is 1.20× slower than its 127 peers even without communication "
        "(5 of 5 failures)", 128, "slow-gpu:77:1.2",
    ),
    "a slow link": Scenario("REJECTED: node simulated-2: 5.93 GB/s, others reach 19.8", 32, "slow-link:2:0.3"),
    "a corrupt GPU": Scenario("REJECTED: wrong data: GPU 5 (SIM-5) on simulated-0: ", fault="corrupt-rank:5"),
    "a uniform loss": Scenario(
        "REJECTED: 19.7 % below the reference throughput; every GPU is within 5.0 % of its peers, so no device is ",
        fault="slow-gpu:all:1.25",
    ),
    "nothing between nodes": Scenario(
        "INCOMPLETE: 3 of 3 requirements passed, but none between nodes: ", thresholds=WITHIN_A_NODE
    ),
    "a test of the site's own fails": Scenario(
        "INCOMPLETE: test test_fans was skipped, or failed for a reason other than its verdict", 0
    ),
}  # fmt: skip


@pytest.fixture
def run(scenario: Scenario, tmp_path: Path) -> Path:
    """Made before any site, because modules that are first imported within one are forgotten with it."""
    if scenario.gpus:
        thresholds = tmp_path / "thresholds.yaml"
        thresholds.write_text(scenario.thresholds, encoding="utf-8")
        faults = [f"--fault={scenario.fault}"] * bool(scenario.fault)
        options = [f"--thresholds={thresholds}", "--gpu-sku=lab-gpu", f"--gpus={scenario.gpus}"]
        assert main(["simulate", *options, *faults, f"--out={tmp_path / 'run'}"]) == 0
    return tmp_path / "run"


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_the_cause_comes_first_and_all_fits_on_a_screen(
    scenario: Scenario, run: Path, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    for name in ("CI", "BUILD_NUMBER"):  # there pytest prints whole assertions in its short summary
        monkeypatch.delenv(name, raising=False)
    site.configure(addopts="-ra")
    if scenario.gpus:
        site.write("thresholds.yaml", scenario.thresholds)
    else:
        run = site.measured().path
        site.write("acceptance/test_own.py", OWN_TEST)
    result = site.judge(run=str(run))
    assert_no_crash(result)
    begins = next(number for number, line in enumerate(result.outlines) if "= ddpscale: " in line)
    assert result.outlines[begins + 1].startswith(scenario.said.partition(": ")[0])
    assert outcome_line(result).startswith(scenario.said)
    assert (WATERMARK in result.outlines) == bool(scenario.gpus)
    assert ("E       assert [1, 2, 3] == [1, 2]" in result.outlines) != bool(scenario.gpus), "its traceback stays"
    lines = [line.replace(str(tmp_path), "/home/hpc/site") for line in result.outlines]
    if not scenario.gpus:  # what pytest prints of failures of the site's own tests is between these two lines
        first, last = (
            next(at for at, line in enumerate(lines) if title in line) for title in ("= FAILURES", "= short")
        )
        lines[first:last] = []
    (report,) = (line.removeprefix("report: ") for line in result.outlines if line.startswith("report: "))
    judgement = read_judgement((site.path / report).with_name("verdicts.json"))
    assert result.parseoutcomes().get("failed", 0) == len(judgement.blockers), "pytest counts what reports count"
    assert any(line.startswith(counts_text(judgement)[:40]) for line in result.outlines) != judgement.accepts
    assert sum(max(1, -(-len(line) // COLUMNS)) for line in lines) <= MOST_LINES, "\n".join(lines)
