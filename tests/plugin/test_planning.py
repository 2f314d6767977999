"""What is selected and planned, on a machine that has none of the GPUs: nothing is measured, nothing left behind."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from shlex import split

import pytest

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
UNIFORMITY = "test_rank_uniformity[resnet152-fp16-8gpu]"
EVERYTHING = [
    *REQUIREMENTS.values(), *UNTRAINED.values(), f"{{rank_uniformity: {{8: 1.1}}, of: resnet152-fp16, {MADE_UP}}}",
]  # fmt: skip
OTHER_TEST = "def test_other():\n    assert False\n"
PLAN = "ddpscale plan for tested-gpu"


def on(ranks: int, *further: str) -> list[str]:
    """Items of a world size."""
    return [*(item for item in REQUIREMENTS if f"-{ranks}gpu" in item), *further]


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


@dataclass(frozen=True)
class Planning:
    """A session that collects.

    Attributes:
        arguments: of its command line.
        arrange: the site.
        items: that are listed; None for all.
        said: in the output.
        unsaid: nowhere in it.
        environment: of the session.
        ini: keys of pytest.ini.
    """

    arguments: str
    arrange: Callable[[Site], None] = as_it_is
    items: Collection[str] | None = None
    said: Collection[str] = ()
    unsaid: Collection[str] = ("NOTSET",)
    environment: dict[str, str] = field(default_factory=dict)
    ini: dict[str, str] = field(default_factory=dict)


PLANNED = {
    "an alias": Planning("--gpu-sku=tested", items=REQUIREMENTS, said=[PLAN]),
    "the ini file names it": Planning("", items=REQUIREMENTS, said=[PLAN], ini={"gpu_sku": "tested"}),
    # Exported for a whole site, it must not replace a project's own tests by acceptance tests.
    "the environment leaves another project alone": Planning(
        "", beside_another_test, ["test_other"], unsaid=["ddpscale plan"], environment={"DDPSCALE_GPU_SKU": "tested"}
    ),
    "alone it brings the packaged tests": Planning("--gpu-sku=tested", beside_another_test, REQUIREMENTS),
    "alone it prefers the site's tests": Planning(
        "--gpu-sku=tested",
        with_fewer_tests,
        [item for item in REQUIREMENTS if "device" not in item and "memory" not in item],
    ),
    "the shipped thresholds": Planning(
        "--gpu-sku=a100", shipped, said=["ddpscale plan for a100-sxm4-80gb"]
    ),
    "the shipped thresholds of a B200": Planning(
        "--gpu-sku=b200", shipped, said=["ddpscale plan for b200", "at most 16 rounds of matmul-fp16, "]
    ),
    "a node id": Planning(
        f"--gpu-sku=tested '{WEAK_8_NODE_ID}'", items=[WEAK_8], said=[f"{PLAN}: 1 requirement, 1 study, "],
        unsaid=["vit-b-16"],
    ),
    "a pasted node id, as printed without a copy of the tests": Planning(
        f"--gpu-sku=tested-gpu 'test_scaling.py::{WEAK_8}'", without_tests, [WEAK_8]
    ),
    "a pasted node id, as printed with one": Planning(
        f"--gpu-sku=tested-gpu 'acceptance/test_scaling.py::{WEAK_8}'", without_tests, [WEAK_8]
    ),
    "metrics without a requirement leave no items": Planning(
        "--gpu-sku=cpu",
        items=["test_throughput_per_gpu[resnet18-fp32-1rank]", "test_weak_scaling_efficiency[resnet18-fp32-2rank]"],
    ),
    "several world sizes": Planning("--gpu-sku=tested '--ddp-world-sizes= 2, 1 '", items=[*on(1), *on(2)]),
    "ranks share cores": Planning(
        f"--gpu-sku=cpu --ddp-gpus-per-node={CORES + 1} --ddp-world-sizes=1,{CORES + 1}",
        items=["test_throughput_per_gpu[resnet18-fp32-1rank]"],
    ),
    "fewer GPUs leave out the larger arms": Planning(
        "--gpu-sku=tested --ddp-gpus-per-node=2", said=["ddp@2"], unsaid=["ddp@8"]
    ),
    "node health is all that trains little": Planning(
        "--gpu-sku=tested -m node_health", everything, [*UNTRAINED, UNIFORMITY]
    ),
    # A choice of world sizes keeps what is found out of nodes.
    "eight ranks": Planning(
        "--gpu-sku=tested --ddp-world-sizes=8", everything,
        on(8, "test_node_check[gpus]", "test_no_regression[node]", UNIFORMITY),
    ),
    "four ranks": Planning(
        "--gpu-sku=tested --ddp-world-sizes=4", everything,
        ["test_node_check[gpus]", "test_no_regression[node]", "test_bus_bandwidth[all-reduce-32mib-4gpu]"],
    ),
}  # fmt: skip


@rows("planning", PLANNED.values(), ids=PLANNED)
def test_what_is_selected_is_planned(site: Site, planning: Planning, monkeypatch: pytest.MonkeyPatch) -> None:
    site.reset()
    planning.arrange(site)
    site.configure(**planning.ini)
    before = site.files()
    with monkeypatch.context() as changed:
        for name, value in planning.environment.items():
            changed.setenv(name, value)
        result = site.run(*split(planning.arguments), "--collect-only", "-q")
    assert result.ret == pytest.ExitCode.OK, output_of(result)
    if planning.items is not None:
        assert items_of(result) == sorted(planning.items)
    assert [words for words in planning.said if words not in output_of(result)] == []
    assert [words for words in planning.unsaid if words in output_of(result).partition("ddpscale plan")[2]] == []
    assert site.files() == before


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
