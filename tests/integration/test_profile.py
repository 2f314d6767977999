"""`pytest --gpu-sku=cpu --ddp-profile`, for real: traces, and numbers of two ranks after their rounds."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.records import ArmProfile, StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from tests.integration.sites import make_site, measured, session
from tests.report.page_text import page_text

pytestmark = pytest.mark.lab

ASKED = """
schema_version: 2
sources: {paper: nobody}
workloads:
  tiny: {model: minute, precision: fp32, image_size: 64, memory_format: contiguous, num_classes: 10}
skus:
  cpu:
    description: any CPU
    detect: {device: cpu}
    batch: {tiny: {per_gpu: 4, global: 8}}
    requirements:
      - {throughput_per_gpu: {2: 500}, of: tiny, published: paper, bound: 0.001, because: made up}
      - {exposed_communication: {2: 0.5}, of: tiny, published: paper, bound: 0.9, because: made up, severity: warn}
"""
# What nsys does: a library that NVTX loads, which then hears of all ranges.
NVTX_LISTENER = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
typedef void (*function)(void);
struct callbacks { size_t size; int (*module_table)(int module, function ***table, unsigned *size); };
static FILE *heard;
static int push(const char *name) { fprintf(heard, "push %s\n", name); fflush(heard); return 0; }
static int pop(void) { fprintf(heard, "pop\n"); fflush(heard); return 0; }
int InitializeInjectionNvtx2(const void *(*table_of)(uint32_t)) {
  const struct callbacks *callbacks = table_of(1);
  function **table; unsigned size = 0; char path[4096];
  if (!callbacks || !callbacks->module_table(1, &table, &size) || size <= 11) return 0;
  snprintf(path, sizeof path, "%s.%d", getenv("NVTX_HEARD"), (int)getpid());
  heard = fopen(path, "a");
  *table[9] = (function)push;
  *table[11] = (function)pop;
  return 1;
}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One session for all tests, with whoever listens to NVTX where a compiler makes one."""
    folder = tmp_path_factory.mktemp("profile")
    site, environment = make_site(folder / "site", ASKED), {"NVTX_HEARD": str(folder / "heard")}
    if shutil.which("cc"):
        (folder / "heard.c").write_text(NVTX_LISTENER)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "heard.so", folder / "heard.c"], check=True)
        environment["NVTX_INJECTION64_PATH"] = str(folder / "heard.so")
    result = measured(site, "-q", "acceptance", "--ddp-profile=2", "--ddp-nvtx", **environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return site


def test_each_arm_is_profiled_after_its_rounds_and_reported(site: Path) -> None:
    run = RunDirectory.open(site / "run")
    profiles = {one.arm: one for one in run.read_records() if isinstance(one, ArmProfile)}
    assert set(profiles) == {"each@2", "no_sync@2", "ddp@2"}
    ends = [n for n, record in enumerate(run.read_records()) if isinstance(record, StudyEnd)]
    blocks = [n for n, record in enumerate(run.read_records()) if isinstance(record, Block)]
    assert len(ends) == 1
    assert max(blocks) < ends[0], "no round is timed once anything was profiled"
    for arm, one in profiles.items():
        assert (one.problem, len(one.steps)) == ("", 2)
        events = json.loads(gzip.decompress((run.path / one.trace).read_bytes()))["traceEvents"]
        assert sum(event.get("name") == "gloo:all_reduce" for event in events) == len(one.buckets)
        assert all(step.all_reduce_ms > 0 for step in one.steps) == (arm == "ddp@2")
    assert re.search(r"\| weak/tiny \| ddp@2 \| .*%.* \|", (run.path / "report.md").read_text())
    page = page_text((run.path / "report.html").read_text())
    traces = page.split("Traces for Perfetto or chrome://tracing: ")[1]
    assert all(one.trace in traces for one in profiles.values())


def test_who_judges_the_run_later_reports_its_profile(site: Path) -> None:
    judged = session(site, "-q", "acceptance", "--ddp-judge=run", "-p", "no:cacheprovider")
    assert judged.returncode == 0, judged.stdout
    page = page_text((site / "run" / "judged-1" / "report.html").read_text())
    assert "Where the time of a profiled step goes, means over the steps" in page


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_nsys_would_hear_of_each_step_and_its_parts(site: Path) -> None:
    by_rank = [path.read_text().splitlines() for path in site.parent.glob("heard.[0-9]*")]
    assert len(by_rank) == 2
    names = ("load", "forward", "backward", "optimizer")
    parts = [*(said for name in names for said in (f"push ddpscale:{name}", "pop")), "pop"]
    block = ["push weak/tiny ddp@2", "push ddpscale:step", *parts, "push ddpscale:step"]
    for heard in by_rank:
        assert "\n".join(block) in "\n".join(heard)
        assert heard.count("pop") == sum(line.startswith("push") for line in heard)
