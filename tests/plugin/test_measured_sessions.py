"""Sessions that plan, measure, resume or remember, and those that are refused: what each comes to."""

from __future__ import annotations

import shutil
from contextlib import ExitStack

import pytest

from pytest_ddpscale.history.store import add_run
from pytest_ddpscale.run.run_directory import RunDirectory, RunLock
from tests.plugin.site import WEAK_8, WEAK_8_NODE_ID, Site, edit_json
from tests.plugin.steps import (
    asked,
    begun,
    bound,
    edited,
    everything,
    file,
    measured,
    on_cpu,
    overlay,
    own_test,
    waiver,
)
from tests.plugin.told import Step, approve
from tests.small_disk import SmallDisk, small_disk


def without_tests(site: Site) -> None:
    shutil.rmtree(site.path / "acceptance")


def beside_another_test(site: Site) -> None:
    without_tests(site)
    site.write("other/test_other.py", "def test_other(): assert 0")


def with_fewer_tests(site: Site) -> None:
    for module in (site.path / "acceptance").glob("test_[dnp]*.py"):
        module.unlink()


def shipped(site: Site) -> None:
    site.thresholds.unlink()


def ini(**keys: str) -> Step:
    return lambda site: site.configure(**keys)


EVERYTHING = asked(everything())
PLANNED: dict[str, tuple[Step, ...]] = {
    "an alias, and another pace": ("--co -q --gpu-sku=tested", "--co --gpu-sku=tested --ddp-rounds=20 --ddp-block=6s"),
    "the ini file names it": (ini(gpu_sku="tested"), "--co -q"),
    "the command line wins over the ini file": (
        ini(ddp_world_sizes="2"), "--co -q --gpu-sku=tested", "--co -q --gpu-sku=tested '--ddp-world-sizes= 8, 1 '",
    ),
    # Exported for a whole site, it must not replace a project's own tests by acceptance tests.
    "the environment and the ini file leave another project alone": (
        beside_another_test, "DDPSCALE_GPU_SKU=tested --co -q", ini(gpu_sku="tested"), "--co -q",
    ),
    "alone it brings the packaged tests": (beside_another_test, "--co -q --gpu-sku=tested"),
    "alone it prefers the site's tests": (with_fewer_tests, "--co -q --gpu-sku=tested"),
    "a node id": (f"--co -q --gpu-sku=tested '{WEAK_8_NODE_ID}'",),
    "a pasted node id, as printed without a copy of the tests and with one": (
        without_tests, f"--co -q --gpu-sku=tested 'test_scaling.py::{WEAK_8}'",
        f"--co -q --gpu-sku=tested '{WEAK_8_NODE_ID}'",
    ),
    "metrics without a requirement leave no items": ("--co -q --gpu-sku=cpu",),
    "ranks share cores": ("--co -q --gpu-sku=cpu --ddp-gpus-per-node=MORE --ddp-world-sizes=1,MORE",),
    "fewer GPUs leave out the larger arms": ("--co -q --gpu-sku=tested --ddp-gpus-per-node=2 --ddp-profile",),
    # A choice of world sizes keeps what is found out of nodes.
    "node health": (
        EVERYTHING, "--co -q --gpu-sku=tested -m node_health", "--co -q --gpu-sku=tested --ddp-world-sizes=8",
        "--co -q --gpu-sku=tested --ddp-world-sizes=4",
    ),
    "what runs no test leaves no trace": (
        measured, "judge --co", "judge --setup-plan", "--fixtures --gpu-sku=tested",
        "--fixtures-per-test --gpu-sku=tested", "--setup-only --gpu-sku=tested", "--markers --gpu-sku=b200",
        "--help --gpu-sku=b200",
    ),
}  # fmt: skip


def test_what_is_selected_is_planned_as_approved(site: Site) -> None:
    approve(site, "planned", PLANNED)


def no_acceptance_tests(path: str, **keys: str) -> Step:
    """A test that judges nothing is all that is there."""

    def write(site: Site) -> None:
        site.measured()
        without_tests(site)
        site.write(f"{path}/test_login.py", "def test_login(): pass")
        site.configure(**keys)

    return write


# As pytest-forked does without its option.
FORKED = """
import pytest

def pytest_configure(config):
    config.addinivalue_line("markers", "forked: in a process of its own")

def pytest_itemcollected(item):
    item.add_marker(pytest.mark.forked)
"""
ALL_NODES = "requirements: [{throughput_per_gpu: {all: 5}, of: resnet152-fp16, published: paper, bound: 1, because: x}]"
BY_OWN = "judge --thresholds=own.yaml"
REFUSED: dict[str, tuple[Step, ...]] = {
    "a SKU that is unknown, or a published reference": (
        "--gpu-sku=tested-gpus --collect-only", "--gpu-sku=reference-gpu",
    ),
    "no test that judges": (no_acceptance_tests("acceptance"), "--gpu-sku=tested"),
    "no such test in testpaths": (no_acceptance_tests("tests", testpaths="tests"), "judge"),
    # As a script with a misspelt variable gives it: nothing may be measured in place of being judged.
    "a bad value, or none": (
        measured, "judge --ddp-budget=soon", "--ddp-judge= acceptance", "--gpu-sku=tested --ddp-profile acceptance",
    ),
    "a container that cannot be started": ("--gpu-sku=cpu --ddp-container=image.sqsh --ddp-run-dir=run",),
    "no run, or one that may not be looked at": ("--ddp-judge=nowhere", f"--ddp-judge={'x' * 300}"),
    "an older run": (measured, edited("run.json", schema_version=2), "judge"),
    "a broken baseline": (measured, file("measured/baseline.json", "[" * 100_000), "judge"),
    "an unknown key": (measured, bound("buond: 0.96"), "judge --thresholds=thresholds.yaml"),
    "other thresholds than the run began with": (measured, bound("bound: 0.95"), "judge"),
    "a folder of thresholds": ("--gpu-sku=tested --thresholds=acceptance",),
    "a waiver that is none": (
        measured, overlay(waiver("weak_scaling_efficiency: 8, of: resnet152-fp16", "2099-01-01"), lowers=False), BY_OWN,
    ),
    "a waiver of what is between nodes": (
        measured,
        overlay(ALL_NODES, waiver("throughput_per_gpu: all, of: resnet152-fp16, severity: warn", "2099-01-01"),
                lowers=False), BY_OWN,
    ),
    "verdict without a mark": (measured, own_test("pass", "verdict"), "judge"),
    # Left out silently, the run would be partial, and exit with 0.
    "a mark without a metric, or a misspelt one": (
        measured, own_test("pass", "requirement, run", "@pytest.mark.requirement()"), "judge",
        own_test("pass", "requirement, run", "@pytest.mark.requirement('weak_scaling_eficiency')"), "judge",
    ),
    "workers, which would measure against each other": (
        measured, "-n 2 acceptance", "-n 2 judge", "-n 2 --ddp-resume=measured",
    ),
    "something where the run should go": (
        measured, file("precious.txt", "in the way"), file("opinion/verdicts.json", "{}"),
        "--gpu-sku=cpu --ddp-world-sizes=1 --ddp-run-dir=precious.txt/run",
        "--gpu-sku=cpu --ddp-world-sizes=1 --ddp-run-dir=measured", "judge --ddp-run-dir=measured",
        "judge --ddp-run-dir=opinion",
    ),
    "more ranks than cores": ("--gpu-sku=cpu --ddp-world-sizes=1,MORE",),
    "a world size beyond the GPUs": ("--gpu-sku=tested --co --ddp-gpus-per-node=2 --ddp-world-sizes=8",),
    "a variable that nothing reads": (
        "DDPSCALE_GPU_SKU=x --gpu-sku=tested --co",
    ),
    "resuming an imported run": (begun(status="imported"), "resume"),
    "resuming what another version measured": (begun(versions={"pytest_ddpscale": "0.0.1"}), "resume"),
    "resuming a run whose SKU is not its plan's": (begun(sku="b200"), "resume"),
    "resuming as another SKU, or on fewer devices": (
        begun(sku="cpu"), "resume --gpu-sku=v100", "--ddp-resume=run --ddp-gpus-per-node=1",
    ),
    "resuming a run that still goes on": (
        begun(sku="cpu"), lambda site: RunLock.acquire(site.path / "run"), "resume",
        lambda site: (site.path / "run").rename(site.path / "gone"),
    ),
    "the mark of pytest-forked": (measured, file("conftest.py", FORKED), "judge"),
}  # fmt: skip


@pytest.mark.parametrize("part", range(2))
def test_what_is_refused_is_told_as_approved_and_changes_nothing(site: Site, part: int) -> None:
    approve(site, f"refused-{part}", dict([*REFUSED.items()][part::2]))


STRONG = on_cpu("strong_scaling_speedup: {2: 1.9}, of: tiny, published: paper, bound: 1.5, because: made up")
REGRESSION = "no_regression: 0.9, severity: fail, provisional: it repeats itself"
RESUMED: dict[str, tuple[Step, ...]] = {
    # What is missing is measured anew, and then accepted.
    "a session that was killed": (STRONG, "GANG_ENDS=killed measure", "resume --co", "resume"),
    "a session that was interrupted, and judged": (
        STRONG, "GANG_ENDS=interrupted measure", "--ddp-judge=run", "resume",
    ),
    "a study that broke": (STRONG, "GANG_ENDS=error measure", "resume"),
    "several attempts, and other thresholds": (
        STRONG, "GANG_ENDS=killed measure", "GANG_ENDS=killed resume", on_cpu(REGRESSION.replace("fail", "warn")),
        "resume",
    ),
    "nothing is left to be measured": (STRONG, "measure", "resume"),
    "a kill came before the plan": (STRONG, begun(), "resume"),
    "what the plan did not foresee": (STRONG, "measure -k weak_scaling", "resume"),
    "studies of different hosts": (
        STRONG, "GANG_ENDS=killed measure", "GANG_HOST=node2 resume", "--ddp-judge=run",
    ),
}  # fmt: skip


def test_what_is_missing_is_measured_and_two_machines_never_make_one_acceptance(site: Site) -> None:
    approve(site, "resumed", RESUMED)


def test_a_full_disk_is_refused_and_one_that_fills_up_while_measuring_costs_what_was_not_measured(site: Site) -> None:
    full, disks = "cpu --ddp-run-dir=disk/run -p no:cacheprovider -v", list[SmallDisk]()
    with ExitStack() as mounted:
        scene: tuple[Step, ...] = (
            STRONG, lambda site: disks.append(mounted.enter_context(small_disk(site.path / "disk", kib=2048))),
            lambda _: disks[0].fill(), full, lambda _: disks[0].make_room(), f"GANG_ENDS=full {full}",
            lambda _: disks[0].make_room(), "--ddp-resume=disk/run --ddp-gpus-per-node=2",
        )  # fmt: skip
        approve(site, "full-disk", {"a disk": scene})


def nights(site: Site) -> None:
    """The run, on six nights before."""
    for night in range(1, 7):
        shutil.copytree(site.path / "first", site.path / f"night{night}")
        run = RunDirectory.open(site.path / f"night{night}")
        was = run.digests()["run_sha256"]
        edit_json(run.run_json, started_at=f"2026-01-0{night}T02:00:00+00:00")
        said = run.verdicts_json.read_text(encoding="utf-8")
        run.verdicts_json.write_text(said.replace(was, run.digests()["run_sha256"]), encoding="utf-8")
        add_run(site.path / "history", run.path)


def past(speed: str) -> tuple[Step, ...]:
    """Its past are nights on which it was so many times as fast; judged again, by what was kept of it."""
    return (
        on_cpu(), f"GANG_SPEED={speed} cpu --ddp-run-dir=first --ddp-history=other.sqlite", nights,
        on_cpu(REGRESSION), "measure --ddp-history=history", file("history", "lost"),
        "--ddp-judge=run --ddp-history=history",
    )  # fmt: skip


REMEMBERED: dict[str, tuple[Step, ...]] = {
    "a run is remembered wherever it is kept": (on_cpu(), "measure", "cpu --ddp-run-dir=elsewhere"),
    "a history that cannot be used changes no exit code": (
        on_cpu(REGRESSION.replace("fail", "warn")), file("site.sqlite", "somebody's notes"),
        "measure --ddp-history=site.sqlite",
    ),
    "a node that is as fast as it was": past("1"),
    "a node that was faster": past("1.5"),
    "no_regression by itself": (on_cpu(REGRESSION), "measure -k no_regression"),
}  # fmt: skip


def test_a_node_is_judged_by_its_past_and_again_by_what_was_kept_of_it(site: Site) -> None:
    approve(site, "remembered", REMEMBERED)
