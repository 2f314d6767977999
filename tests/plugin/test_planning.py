"""What is selected and planned, on a machine that has none of the GPUs: nothing is measured, nothing left behind."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from shlex import split
from typing import NamedTuple

import pytest

from tests.approved import assert_approved
from tests.plugin.site import (
    MEASURED_RUN,
    REQUIREMENTS,
    WEAK_8,
    WEAK_8_NODE_ID,
    Site,
    items_of,
    output_of,
    thresholds_text,
)
from tests.rows import rows

HEAD = re.compile(
    r"^ddpscale plan for (\S+): (\d+) requirements?, (\d+) stud(?:y|ies)(?: and \d+ probes?)?, about ([\d.]+) min on "
    r"(\d+) (GPU|core)s? = ([\d.]+) (?:GPU|core)-hours"
)
CORES = len(os.sched_getaffinity(0))
MADE_UP = "provisional: made up for a test"
UNTRAINED = {
    "test_node_check[gpus]": "{check: gpus, severity: warn}",
    "test_matmul[matmul-fp16]": f"{{matmul_tflops: 1, probe: matmul-fp16, {MADE_UP}}}",
    "test_bus_bandwidth[all-reduce-32mib-4gpu]": f"{{busbw_gbps: {{4: 1}}, probe: all-reduce-32mib, {MADE_UP}}}",
    "test_no_regression[node]": f"{{no_regression: 0.9, {MADE_UP}}}",
}
EVERYTHING = [
    *REQUIREMENTS.values(), *UNTRAINED.values(), f"{{rank_uniformity: {{8: 1.1}}, of: resnet152-fp16, {MADE_UP}}}",
]  # fmt: skip
OTHER_TEST = "def test_other():\n    assert False\n"


def as_it_is(site: Site) -> None:
    """The site's own acceptance tests and thresholds."""


def everything(site: Site) -> None:
    site.write("thresholds.yaml", thresholds_text(EVERYTHING))


def without_tests(site: Site) -> None:
    shutil.rmtree(site.path / "acceptance")


def beside_another_test(site: Site) -> None:
    without_tests(site)
    site.write("test_other.py", OTHER_TEST)


def with_fewer_tests(site: Site) -> None:
    for module in (site.path / "acceptance").glob("test_[dnp]*.py"):
        module.unlink()


def shipped(site: Site) -> None:
    site.thresholds.unlink()


class Planning(NamedTuple):
    """A session that collects, with words of its output where the shipped thresholds say what is planned."""

    arguments: str
    arrange: Callable[[Site], None] = as_it_is
    said: Collection[str] = ()
    environment: Mapping[str, str] = {}
    ini: Mapping[str, str] = {}


PLANNED = {
    "an alias": Planning("--gpu-sku=tested"),
    "the ini file names it": Planning("", ini={"gpu_sku": "tested"}),
    # Exported for a whole site, it must not replace a project's own tests by acceptance tests.
    "the environment leaves another project alone": Planning(
        "", beside_another_test, environment={"DDPSCALE_GPU_SKU": "tested"}
    ),
    "alone it brings the packaged tests": Planning("--gpu-sku=tested", beside_another_test),
    "alone it prefers the site's tests": Planning("--gpu-sku=tested", with_fewer_tests),
    "the shipped thresholds": Planning("--gpu-sku=a100", shipped, ["ddpscale plan for a100-sxm4-80gb"]),
    "the shipped thresholds of a B200": Planning(
        "--gpu-sku=b200", shipped, ["ddpscale plan for b200", "at most 16 rounds of matmul-fp16, "]
    ),
    "a node id": Planning(f"--gpu-sku=tested '{WEAK_8_NODE_ID}'"),
    "a pasted node id, as printed without a copy of the tests": Planning(
        f"--gpu-sku=tested-gpu 'test_scaling.py::{WEAK_8}'", without_tests
    ),
    "a pasted node id, as printed with one": Planning(
        f"--gpu-sku=tested-gpu 'acceptance/test_scaling.py::{WEAK_8}'", without_tests
    ),
    "metrics without a requirement leave no items": Planning("--gpu-sku=cpu"),
    "several world sizes": Planning("--gpu-sku=tested '--ddp-world-sizes= 2, 1 '"),
    "ranks share cores": Planning(f"--gpu-sku=cpu --ddp-gpus-per-node={CORES + 1} --ddp-world-sizes=1,{CORES + 1}"),
    "fewer GPUs leave out the larger arms": Planning("--gpu-sku=tested --ddp-gpus-per-node=2"),
    "node health is all that trains little": Planning("--gpu-sku=tested -m node_health", everything),
    # A choice of world sizes keeps what is found out of nodes.
    "eight ranks": Planning("--gpu-sku=tested --ddp-world-sizes=8", everything),
    "four ranks": Planning("--gpu-sku=tested --ddp-world-sizes=4", everything),
}


def test_what_is_selected_is_planned_as_approved(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = ""
    for name, planning in PLANNED.items():
        site.reset()
        planning.arrange(site)
        site.configure(**planning.ini)
        before = site.files()
        with monkeypatch.context() as changed:
            for variable, value in planning.environment.items():
                changed.setenv(variable, value)
            result = site.run(*split(planning.arguments), "--collect-only", "-q")
        assert result.ret == pytest.ExitCode.OK, output_of(result)
        output = output_of(result)
        assert [words for words in planning.said if words not in output] == []
        assert "NOTSET" not in output
        assert site.files() == before
        if not planning.said:
            arms = ", ".join(sorted({*re.findall(r"\b(?:alone|ddp@\d+)", output)}))
            plans = [line.partition(", about ")[0] for line in result.outlines if line.startswith("ddpscale plan for ")]
            printed += "\n  ".join([f"{name}: {arms}", *plans, *items_of(result), ""]).rstrip(" ")
    assert_approved("planned.txt", printed)


def plan_head(result: pytest.RunResult) -> re.Match[str]:
    """The first line of the plan, taken apart."""
    (head,) = [match for line in result.outlines if (match := HEAD.match(line))]
    return head


def test_the_plan_is_printed_with_studies_arms_minutes_and_gpu_hours(site: Site) -> None:
    result = site.run("--gpu-sku=tested", "--collect-only", "-q")
    sku, requirements, studies, minutes, ranks, device, hours = plan_head(result).groups()
    assert (sku, int(requirements), int(studies), int(ranks), device) == ("tested-gpu", len(REQUIREMENTS), 3, 8, "GPU")
    assert float(minutes) > 1
    assert float(hours) == pytest.approx(float(minutes) * 8 / 60, abs=0.02)
    for series in MEASURED_RUN:
        assert re.search(rf" {series.arm.name}(,|$)", output_of(result), re.MULTILINE)
    for study in ("weak/resnet152-fp16", "weak/vit-b-16-fp16", "strong/vit-b-16-fp16"):
        assert re.search(rf"^  {study} +[\d.]+ min  at most 32 rounds of ", output_of(result), re.MULTILINE)
    longer = site.run("--gpu-sku=tested", "--collect-only", "--ddp-rounds=20", "--ddp-block=6s")
    assert "at most 20 rounds of " in output_of(longer)
    assert float(plan_head(longer)[4]) > 1.5 * float(minutes)


@rows(
    ("arguments", "told"),
    [
        ("--collect-only --ddp-judge=measured", ["; evidence from measured (no new measurement)"]),
        ("--setup-plan --ddp-judge=measured", []),
        ("--fixtures --gpu-sku=tested", []),
        ("--fixtures-per-test --gpu-sku=tested", []),
        ("--setup-only --gpu-sku=tested", []),
        ("--help --gpu-sku=b200", ["--gpu-sku=SKU", "--thresholds=FILE", "--ddp-run-dir=DIR", "--ddp-judge=RUN_DIR"]),
        ("--markers --gpu-sku=b200", ["@pytest.mark.requirement"]),
    ],
)
def test_what_runs_no_test_leaves_no_trace(site: Site, arguments: str, told: list[str]) -> None:
    site.reset()
    site.measured()
    before = site.files()
    result = site.run(*split(arguments))
    assert result.ret == pytest.ExitCode.OK, output_of(result)
    assert "ERROR" not in output_of(result)
    assert "ACCEPTED" not in output_of(result)
    assert [words for words in told if words not in output_of(result)] == []
    assert site.files() == before
