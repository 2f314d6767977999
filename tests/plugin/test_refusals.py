"""Bad input of every kind: exit code 4, one sentence that names it, and every file as it was."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from shlex import split
from typing import Any

import pytest

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.run_directory import RunDirectory, RunLock
from tests.approved import assert_approved, masked
from tests.builders.json_types import begin
from tests.plugin.site import WEAK_8, Site, assert_refused, edit_json, output_of, thresholds_with
from tests.rows import rows

Arrange = Callable[[Site], object]
CORES = len(os.sched_getaffinity(0))


def as_it_is(site: Site) -> None:
    """Nothing was measured."""


def measured(site: Site) -> RunDirectory:
    return site.measured()


def shipped(site: Site) -> None:
    """No thresholds of its own."""
    site.thresholds.unlink()


def without_acceptance_tests(path: str, **ini: str) -> Arrange:
    """A test that judges nothing is all that is there."""

    def arrange(site: Site) -> None:
        site.measured()
        (site.path / "acceptance").rename(site.path / "elsewhere")
        site.write(f"{path}/test_login.py", "def test_login():\n    pass\n")
        site.configure(**ini)

    return arrange


def with_file(name: str, text: str) -> Arrange:
    """One file of a measured run, or beside it, has this in it."""

    def arrange(site: Site) -> None:
        site.measured()
        site.write(name, text)

    return arrange


def of_schema(name: str, version: int) -> Arrange:
    return lambda site: edit_json(site.measured().path / name, schema_version=version)


def with_an_impossible_measurement(site: Site) -> None:
    run = site.measured()
    lines = run.measurements_jsonl.read_text(encoding="utf-8").splitlines()
    lines[41] = json.dumps(json.loads(lines[41]) | {"block_s": -1.0})
    run.measurements_jsonl.write_text("\n".join(lines) + "\n", encoding="utf-8")


def with_thresholds(old: str, new: str) -> Arrange:
    return with_file("thresholds.yaml", thresholds_with(WEAK_8, old, new))


def own_test(mark: str, arguments: str) -> Arrange:
    return with_file("acceptance/test_own.py", f"import pytest\n\n{mark}\ndef test_own({arguments}):\n    pass\n")


def overlay(line: str, *others: str) -> Arrange:
    """A site's file that extends the thresholds."""
    text = [
        "schema_version: 2",
        "extends: thresholds.yaml",
        "skus:",
        "  tested-gpu:",
        *(f"    {one}" for one in others),
    ]
    return with_file("own.yaml", "\n".join([*text, f"    change: [{{{line}, who: A. Name, why: a fan}}]"]) + "\n")


def begun(**changes: Any) -> Arrange:
    """A run on the CPU that was killed before it measured anything."""

    def arrange(site: Site) -> None:
        run = RunDirectory.create(site.path / "run")
        arms = (Arm("alone", 1, 4), Arm("ddp", 2, 4))
        study = Study(
            "weak", Workload("resnet18-fp32", ImageFamily("resnet18", image_size=32), "fp32", 4), arms, 7, 1.0, 1.0
        )
        run.write_json(run.plan_json, Plan("cpu", "cpu", (study,), ranks_per_node=2))
        begin(run, path=site.thresholds, devices_present=2)
        edit_json(run.run_json, **changes)

    return arrange


JUDGE, RESUME = "--ddp-judge=measured", "--ddp-resume=run --ddp-gpus-per-node=2"
HERE = "--gpu-sku=cpu --ddp-world-sizes=1"
# How the site is arranged, the command line, and parts of the sentence where its whole depends on the machine.
REFUSED: dict[str, tuple[Any, ...]] = {
    "an unknown SKU": (as_it_is, "--gpu-sku=tested-gpus --collect-only"),
    "a SKU that is not here": (
        shipped, "--gpu-sku=b200", "--gpu-sku=b200: no NVIDIA GPU is visible here", "expected GPUs of SKU b200",
        "--gpu-sku=cpu", "--ddp-judge",
    ),
    "a published reference": (as_it_is, "--gpu-sku=reference-gpu"),
    "no test that judges": (without_acceptance_tests("acceptance"), "--gpu-sku=tested"),
    "no such test in testpaths": (without_acceptance_tests("tests", testpaths="tests"), JUDGE),
    "a bad value": (measured, f"{JUDGE} --ddp-budget=soon"),
    # As a script with a misspelt variable gives it: nothing may be measured in place of being judged.
    "an empty value": (as_it_is, "--ddp-judge= acceptance"),
    "the value of an option that may stand alone": (as_it_is, "--gpu-sku=tested --ddp-profile acceptance"),
    "a container that cannot be started": (as_it_is, "--gpu-sku=cpu --ddp-container=image.sqsh --ddp-run-dir=run"),
    "no run": (as_it_is, "--ddp-judge=nowhere"),
    "a run that may not be looked at": (as_it_is, f"--ddp-judge={'x' * 300}"),
    "an older run": (of_schema("run.json", 2), JUDGE),
    "an impossible measurement": (
        with_an_impossible_measurement, JUDGE, "measured/measurements.jsonl: line 42 is not a record",
    ),
    "a broken baseline": (with_file("measured/baseline.json", "[" * 100_000), JUDGE, "measured/baseline.json: "),
    "an unknown key": (with_thresholds("bound: 0.96", "buond: 0.96"), f"{JUDGE} --thresholds=thresholds.yaml"),
    "other thresholds than the run began with": (with_thresholds("bound: 0.96", "bound: 0.95"), JUDGE),
    "a folder of thresholds": (as_it_is, "--gpu-sku=tested --thresholds=acceptance"),
    "a waiver that is none": (
        overlay("weak_scaling_efficiency: 8, of: resnet152-fp16, until: 2099-01-01"), f"{JUDGE} --thresholds=own.yaml",
    ),
    "a waiver of what is between nodes": (
        overlay(
            "throughput_per_gpu: all, of: resnet152-fp16, severity: warn, until: 2099-01-01",
            "requirements: "
            "[{throughput_per_gpu: {all: 5}, of: resnet152-fp16, published: paper, bound: 1, because: x}]",
        ),
        f"{JUDGE} --thresholds=own.yaml",
    ),
    "verdict without a mark": (own_test("", "verdict"), JUDGE),
    "a mark without a metric": (own_test("@pytest.mark.requirement()", "requirement, run"), JUDGE),
    # Left out silently, the run would be partial, and exit with 0.
    "a misspelt metric": (
        own_test("@pytest.mark.requirement('weak_scaling_eficiency')", "requirement, run"), JUDGE,
    ),
    "a file where the run should go": (
        with_file("precious.txt", "in the way"), f"{HERE} --ddp-run-dir=precious.txt/run",
    ),
    "a run where the run should go": (measured, f"{HERE} --ddp-run-dir=measured"),
    "a run where verdicts should go": (measured, f"{JUDGE} --ddp-run-dir=measured"),
    "verdicts where verdicts should go": (with_file("opinion/verdicts.json", "{}"), f"{JUDGE} --ddp-run-dir=opinion"),
    "more ranks than cores": (
        as_it_is, f"--gpu-sku=cpu --ddp-world-sizes=1,{CORES + 1}",
        f"--ddp-world-sizes: found {CORES + 1}, but {CORES} CPU cores can be used; expected at most {CORES}",
        f"--ddp-gpus-per-node={CORES + 1} lets ranks share cores",
    ),
    "a world size beyond the GPUs": (
        as_it_is, "--gpu-sku=tested --collect-only --ddp-gpus-per-node=2 --ddp-world-sizes=8",
    ),
    "resuming an imported run": (begun(status="imported"), RESUME),
    "resuming what another version measured": (
        begun(versions=None), RESUME, "run: was measured by pytest-ddpscale None",
    ),
    "resuming a run whose SKU is not its plan's": (begun(sku="b200"), RESUME),
    "resuming as another SKU": (begun(), f"{RESUME} --gpu-sku=v100"),
    "resuming on fewer devices": (begun(), "--ddp-resume=run --ddp-gpus-per-node=1"),
}  # fmt: skip


@pytest.mark.parametrize("part", range(2))
def test_what_is_refused_is_told_as_approved_and_changes_nothing(site: Site, part: int) -> None:
    printed = ""
    for name, (arrange, arguments, *parts) in [*REFUSED.items()][part::2]:
        site.reset()
        arrange(site)
        before = site.files()
        result = site.run(*split(arguments))
        error, *_ = assert_refused(result, *parts).partition(" with one of ")  # metrics
        printed += "" if parts else f"{name}:\n  {masked(error, site.path)}"
        assert not re.search(r"^acceptance/.*::", output_of(result), re.MULTILINE), "nothing is collected"
        assert site.files() == before, name
    assert_approved(f"refused-{part}.txt", printed)


@rows("name", ["DDPSCALE_CONFIDENCE", "DDPSCALE_GPU_SKU"])
def test_a_variable_that_nothing_reads_is_refused(site: Site, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setenv(name, "0.999")
        refused = f"{name}: is set, but not read from the environment; expected --"
        assert_refused(site.run("--gpu-sku=tested", "--collect-only"), refused)


def test_a_run_that_still_goes_on_is_not_resumed(site: Site) -> None:
    begun()(site)
    lock = RunLock.acquire(site.path / "run")
    before = site.files()
    assert_refused(site.run(*split(RESUME)), "run: is in use: process ", "Wait until it has ended")
    assert site.files() == before
    lock.release()
