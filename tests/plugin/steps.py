"""What may be done to a site before a session: its files, thresholds and tests, and the run that it judges."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.simulate.cluster import open_cluster
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions, parse_faults
from pytest_ddpscale.simulate.writing import write_simulated_run
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.waiver import today
from tests.builders.json_types import begin
from tests.plugin.site import REQUIREMENTS, WEAK_8, Site, edit_json, thresholds_text

Do = Callable[[Site], object]
OWN_ITEM = """\
import pytest

@pytest.fixture
def broken():
    raise RuntimeError("the site's own fixture")

@pytest.fixture
def breaks_afterwards():
    yield
    raise RuntimeError("the site's own clean-up")

@pytest.mark.requirement("weak_scaling_efficiency")
{mark}
def test_weak_scaling_efficiency(requirement, run{fixture}):
    {body}
"""
TOMORROW = today() + timedelta(1)
CHECKED = "requirement.judge(run).check()"
# The conftest.py of a site whose gang measures at once.
GANG = Path(__file__).with_name("instant_gang.py").read_text(encoding="utf-8")
ON_CPU = """\
schema_version: 2
sources: {paper: a paper}
workloads: {tiny: {model: resnet18, precision: fp32, image_size: 32}}
skus:
  cpu:
    description: any CPU
    detect: {device: cpu}
    batch: {tiny: {per_gpu: 4, global: 8}}
    requirements:
      - {weak_scaling_efficiency: {2: 0.9}, of: tiny, published: paper, bound: 0.5, because: made up}
"""


def measured(site: Site) -> RunDirectory:
    return site.measured()


def file(name: str, text: str) -> Do:
    return lambda site: site.write(name, text)


def asked(text: str) -> Do:
    """Judged by these thresholds."""
    return file("thresholds.yaml", text)


def bound(text: str, old: str = "bound: 0.96") -> Do:
    """The row of one requirement, which is kept by 0.97, is another one."""
    return asked(thresholds_text((REQUIREMENTS | {WEAK_8: REQUIREMENTS[WEAK_8].replace(old, text)}).values()))


def edited(name: str, **changes: Any) -> Do:
    """Top-level keys of a file of the measured run are others."""
    return lambda site: edit_json(site.path / "measured" / name, **changes)


def own_test(body: str, arguments: str = "", mark: str = "") -> Do:
    return file("acceptance/test_own.py", f"import logging, pytest\n\n{mark}\ndef test_own({arguments}):\n    {body}\n")


def own_item(body: str = CHECKED, mark: str = "", fixture: str = "") -> Do:
    """The test of three requirements as a site might have written it, in place of the one that comes with it."""

    def write(site: Site) -> None:
        scaling = site.path / "acceptance" / "test_scaling.py"
        before, _, after = scaling.read_text("utf-8").partition('@pytest.mark.requirement("weak_scaling_efficiency")')
        scaling.write_text(before + after[after.index("@pytest.mark") :], "utf-8")
        site.write("acceptance/test_own.py", OWN_ITEM.format(body=body, mark=mark, fixture=fixture))

    return write


def overlay(*lines: str, head: str = "skus:\n  tested-gpu:", lowers: bool = True) -> Do:
    """own.yaml: it extends the site's thresholds, of which one requirement is not kept."""

    def write(site: Site) -> None:
        if lowers:
            bound("bound: 0.98")(site)
        own = ["schema_version: 2", "extends: thresholds.yaml", head, *(f"    {line}" for line in lines)]
        site.write("own.yaml", "\n".join(own) + "\n")

    return write


def waiver(row: str, until: object = TOMORROW, why: str = "the fan of GPU 3 is ordered") -> str:
    return f"change: [{{{row}, who: A. Name, why: {why}, until: {until}}}]"


def simulated(thresholds: str, *faults: str, gpus: int = 16, name: str = "measured") -> Do:
    """The site asks for this, and has the run of a simulated cluster."""

    def write(site: Site) -> None:
        site.write("thresholds.yaml", thresholds)
        cluster = open_cluster(load_thresholds(site.thresholds), ClusterOptions("tested-gpu", gpus))
        plan, run = cluster.plan(rounds=12), RunDirectory.create(site.path / name)
        of_faults = SimulatedRun(plan, cluster.performance, parse_faults(faults, plan.layout), seed=0)
        write_simulated_run(run, cluster, of_faults, ["pytest", "--gpu-sku=tested-gpu"])

    return write


def wrong_copy(site: Site) -> None:
    """One copy of one GPU of the simulated run is wrong."""
    text = (site.path / "measured/measurements.jsonl").read_text("utf-8")
    line = next(one for one in text.splitlines() if '"arm":"memory-copy"' in one and '"timed"' in one)
    wrong = line.replace('"is_correct":true', f'"is_correct":{str([rank != 3 for rank in range(8)]).lower()}')
    site.write("measured/measurements.jsonl", text.replace(line, wrong, 1))


def on_cpu(*rows: str) -> Do:
    """The site's gang measures at once, on the CPU, and one requirement is asked, and these."""

    def write(site: Site) -> None:
        site.write("conftest.py", GANG)
        site.write("thresholds.yaml", ON_CPU + "".join(f"      - {{{row}}}\n" for row in rows))

    return write


def begun(**changes: Any) -> Do:
    """A run on the CPU that was killed before it measured anything; without a change before it had a plan."""

    def write(site: Site) -> None:
        run = RunDirectory.create(site.path / "run")
        begin(run, path=site.thresholds, devices_present=2)
        edit_json(run.run_json, **changes)
        if changes:
            run.write_json(run.plan_json, Plan("cpu", "cpu", (), ranks_per_node=2))

    return write


ROWS_ASKED = [*REQUIREMENTS.values()]


def without(*words: str) -> list[str]:
    """Rows that are asked but for those whose item is called like this."""
    return [row for name, row in REQUIREMENTS.items() if not any(word in name for word in words)]


def everything() -> str:
    """Thresholds with node health and others besides."""
    made_up = "provisional: made up for a test"
    rows = (
        "check: gpus, severity: warn", f"matmul_tflops: 1, probe: matmul-fp16, {made_up}",
        f"busbw_gbps: {{4: 1}}, probe: all-reduce-32mib, {made_up}", f"no_regression: 0.9, {made_up}",
        f"rank_uniformity: {{8: 1.1}}, of: resnet152-fp16, {made_up}",
    )  # fmt: skip
    return thresholds_text([*ROWS_ASKED, *(f"{{{row}}}" for row in rows)])
