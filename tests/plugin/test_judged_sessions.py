"""Sessions that judge an earlier run: what each comes to, and that nothing of the run is ever lost."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.plugin.site import REQUIREMENTS, ROUNDS, WEAK_8, Site, thresholds_text
from tests.plugin.steps import (
    CHECKED,
    asked,
    bound,
    edited,
    file,
    measured,
    overlay,
    own_item,
    own_test,
    simulated,
    waiver,
    without,
    wrong_copy,
)
from tests.plugin.told import Step, approve

WEAK_OF = "of: resnet152-fp16, published: paper"
IMPOSSIBLE = bound("bound: 1.05")
DOCUMENTED = (Path(__file__).parents[2] / "docs" / "own-tests.md").read_text("utf-8")
_PUBLISHED = re.compile(r"\{(\d): [\d.]+\}(.*), published: paper, bound: ([\d.]+), because: made up")
PROVISIONAL = [_PUBLISHED.sub(r"{\1: \3}\2, provisional: nobody published one", line) for line in REQUIREMENTS.values()]
UNSURE = asked(thresholds_text(["{weak_scaling_efficiency: {8: 0.9}, of: resnet152-fp16, provisional: x}"]))
LINK = file("acceptance/test_link.py", "def test_link(): assert 0")
LATE = file("acceptance/test_late.py", "def test_late(): raise TimeoutError('no answer in 5 s')")
OUTER = file("outer.yaml", "schema_version: 2\nextends: own.yaml\n")


def requires(row: str, because: str = "bound: 0.96, because: x") -> str:
    return f"requirements: [{{{row}, {WEAK_OF}, {because}}}]"


WAIVER = waiver("weak_scaling_efficiency: 8, of: resnet152-fp16, severity: warn")
WAIVED = overlay(WAIVER)
LOWER = requires("weak_scaling_efficiency: {8: 0.97}")
# A new row of a bound that everything keeps accepts a machine of which the file below knows nothing for sure.
EASY = overlay(requires("throughput_per_gpu: {8: 1}", "margin: 5 %"))
REMOVED = "change: [{device_utilization: 8, of: resnet152-fp16, severity: off, who: A. Name, why: old fans}]"
SPEED = "{{throughput_per_gpu: {{1: 1130}}, of: resnet152-fp16, {}}}"
OTHERS = without("throughput", "generation")
OTHER_SPEED = asked(thresholds_text([*OTHERS, SPEED.format("published: paper, margin: 0 %, sound: 2000")]))
COUNTED: dict[str, tuple[Step, ...]] = {
    "all is kept": (),
    "a bound is missed": (IMPOSSIBLE,),
    "a miss only warns": (bound("bound: 1.05, severity: warn"),),
    "one is inconclusive": (bound("bound: 0.9745"),),
    "ranks are missing": (lambda site: site.measured(without=2),),
    "what is missing is allowed": (lambda site: site.measured(without=2), "audit --ddp-allow-incomplete"),
    "a miss beside what is allowed": (
        IMPOSSIBLE, lambda site: site.measured(without=2), "audit --ddp-allow-incomplete",
    ),
    "no bound is published": (asked(thresholds_text(PROVISIONAL)),),
    "a simulated cluster": (edited("run.json", simulated=True),),
    "it was killed before it measured": (lambda site: (site.path / "measured/measurements.jsonl").unlink(),),
    "a test of the site's own fails": (LINK,),
    "one fails beside a miss": (IMPOSSIBLE, LINK),
    "one fails in a selection": (LINK, "audit -k 'link or vit and weak'"),
    "items are skipped": (own_item("pass", "@pytest.mark.skip(reason='not today')"),),
    "an assertion of their own fails": (own_item(f"{CHECKED}\n    assert 2 + 2 == 5, 'the site has its own rules'"),),
    # Only `check` ends an item by its verdict.
    "an assertion of their own is not forgiven with a warning": (
        bound("bound: 1.1, severity: warn"),
        own_item(f"assert requirement.case.requirement.severity == 'fail'\n    {CHECKED}"),
    ),
    "a fixture of theirs breaks": (own_item(fixture=", broken"),),
    "a fixture of theirs breaks afterwards": (own_item(fixture=", breaks_afterwards"),),
    "a miss that is not asserted": (IMPOSSIBLE, own_item("requirement.judge(run)")),
    "nothing after the first failure": (IMPOSSIBLE, "audit -x"),
    "a test of the site's own waits too long": (LATE,),
    "items that come twice, as of pytest-repeat, are judged once": (
        file("conftest.py", "def pytest_collection_modifyitems(items): items += items"),
    ),
    "a node id": (f"audit 'acceptance/test_scaling.py::{WEAK_8}'",),
    "the name that reports give it": ("audit -k 'peak_memory_gib[resnet152-fp16-8gpu]'",),
    "a world size": ("audit --ddp-world-sizes=2",),
    "a failure is waived": (WAIVED, "audit --thresholds=own.yaml"),
    "another fails beside it": (
        overlay(WAIVER, requires("device_utilization: {8: 1}", "bound: 0.99, because: x")),
        "audit --thresholds=own.yaml",
    ),
    "a site that asks for more has lowered nothing": (
        overlay(requires("throughput_per_gpu: {1: 500}", "bound: 1131, because: x"), WAIVER),
        "audit --thresholds=own.yaml",
    ),
    "the file in between asks for less": (overlay(LOWER), OUTER, "audit --thresholds=outer.yaml"),
    "what is lowered, removed and made a warning is counted": (
        overlay(requires("weak_scaling_efficiency: {8: 0.97}", "bound: 0.97, because: x"),
                f"{REMOVED[:-1]}, {{peak_memory_gib: 8, of: resnet152-fp16, severity: warn, who: B, why: x}}]"),
        "audit --thresholds=own.yaml",
    ),
    "a part of a rejected run says that the whole is rejected": (
        overlay(requires("weak_scaling_efficiency: {8: 0.97}", "bound: 0.99, because: x")),
        "audit --thresholds=own.yaml", "audit --thresholds=own.yaml -k 'not weak_scaling'",
    ),
    "another model under the same name": (
        overlay(head="workloads: {vit-b-16-fp16: {model: resnet18, precision: fp16}}"), "audit --thresholds=own.yaml",
    ),
    "a file below has names alone": (
        file("names.yaml", "schema_version: 2\nreasons: {measured: by us}\n"),
        file("own.yaml", thresholds_text().replace("\n", "\nextends: names.yaml\n", 1)), "audit --thresholds=own.yaml",
    ),
    "nothing below is sure": (UNSURE,),
    "bounds of the site alone": (EASY, UNSURE, "audit --thresholds=own.yaml"),
    # A loss of all devices alike that no bound sees decides nothing.
    "the bound is far from another GPU's speed": (OTHER_SPEED,),
    "the bound is an estimate": (asked(thresholds_text([*OTHERS, SPEED.format("provisional: an estimate")])),),
    "the bound is the GPU's own speed": (
        asked(thresholds_text([*OTHERS, SPEED.format("published: paper, margin: 0 %")])),
    ),
    "the site's bound would see the loss": (
        overlay(requires("throughput_per_gpu: {1: 1180}", "margin: 4 %"), lowers=False), OTHER_SPEED,
        "audit --thresholds=own.yaml",
    ),
    "items are expected to fail by the site": (own_item("assert 0", "@pytest.mark.xfail(reason='old')"),),
}  # fmt: skip


@pytest.mark.parametrize("part", range(4))
def test_all_who_count_agree_and_each_session_is_as_approved(site: Site, part: int) -> None:
    scenes = {
        name: (measured, *steps, *(() if isinstance(steps and steps[-1], str) else ("audit",)))
        for name, steps in [*COUNTED.items()][part::4]
    }
    approve(site, f"counted-{part}", scenes)


WITHIN = ("throughput_per_gpu: {1: 1189.5, 8: 1159.2}, of: resnet152-fp16",
          "weak_scaling_efficiency: {8: 0.9745}, of: resnet152-fp16")  # fmt: skip
BETWEEN = (
    "throughput_per_gpu: {all: 1100}, of: resnet152-fp16", "weak_scaling_efficiency: {all: 0.93}, of: resnet152-fp16",
    "rank_uniformity: {all: 1}, of: resnet152-fp16", "replica_agreement: {all: 1}, of: resnet152-fp16",
    "pair_bandwidth_gbps: {all: 20}, probe: send-recv-256mib",
)  # fmt: skip
ALL_NODES, WITHIN_A_NODE = (
    thresholds_text([f"{{{row}, published: paper, margin: {0 if 'agree' in row else 5} %}}" for row in rows])
    for rows in (WITHIN + BETWEEN, WITHIN)
)
ALONE = "{{throughput_per_gpu: {{1: {}}}, of: resnet152-fp16, published: paper, margin: 5 %}}"
COPY = "{memory_bandwidth_gbps: 1500, probe: memory-copy, published: paper, margin: 5 %}"
FIRST = "COLUMNS=80 judge -ra"
SHOWN: dict[str, tuple[Step, ...]] = {
    "one slow GPU of 128": (simulated(ALL_NODES, "slow-gpu:77:1.2", gpus=128), FIRST),
    "a slow link": (simulated(ALL_NODES, "slow-link:2:0.3", gpus=32), FIRST),
    "a corrupt GPU": (simulated(ALL_NODES, "corrupt-rank:5"), FIRST),
    "a uniform loss": (simulated(ALL_NODES, "slow-gpu:all:1.25"), FIRST),
    "nothing between nodes": (simulated(WITHIN_A_NODE), FIRST),
    "wrong data of a probe on which nothing is judged, whatever else is wrong": (
        simulated(thresholds_text([ALONE.format(1189.5), COPY]), gpus=8),
        wrong_copy,
        asked(thresholds_text([ALONE.format(1189.5)])),
        "judge --thresholds=thresholds.yaml",
        asked(thresholds_text([ALONE.format(1500)])),
        "judge --thresholds=thresholds.yaml",
    ),
    "a rehearsal of a sound machine": (simulated(ALL_NODES), "rehearse --junitxml=pytest.xml"),
    "of a selection": (simulated(ALL_NODES), "rehearse -k throughput_per_gpu"),
    "of a slow GPU": (simulated(ALL_NODES, "slow-gpu:3:1.2"), "rehearse"),
    "of a missing rank": (simulated(ALL_NODES, "missing-rank:3:0"), "rehearse"),
    "with a test of the site's own": (simulated(ALL_NODES), LINK, "rehearse -x"),
    "of a real machine": (measured, "rehearse"),
    "of what was measured in part": (
        simulated(thresholds_text([ALONE.format(1189.5)]), gpus=8),
        asked(thresholds_text([ALONE.format(1189.5), COPY])),
        "rehearse --thresholds=thresholds.yaml --ddp-allow-incomplete",
    ),
}


def test_the_cause_comes_first_on_one_screen_and_a_rehearsal_ends_as_its_machine_would(site: Site) -> None:
    approve(site, "shown", SHOWN)


OWN = f"""
import pytest

def test_samples(run):
    values = run.samples("weak_scaling_efficiency", "resnet152-fp16", 8)
    assert len(values) == {ROUNDS} and all(0.97 < value < 0.98 for value in values)
    assert run.sku == "tested-gpu" and (run.directory / "run.json").is_file()

@pytest.mark.requirement("throughput_per_gpu", "peak_memory_gib")
class TestSeveralMetrics:
    def test_own(self, requirement, run):
        requirement.judge(run).check()
        asked = (requirement, run, requirement.judge(run))
        assert max(len(repr(one)) for one in asked) < 100
"""
NUMBERS = (
    "record_property('loss', float('nan'))\n    json_metadata['worst'] = float('-inf')\n"
    "    logging.warning('diverged', extra={'loss': float('inf')})"
)
# As pytest-rich and pytest-custom-exit-code do.
FORGIVING = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.pluginmanager.unregister(name="terminalreporter")

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    session.exitstatus = pytest.ExitCode.OK
"""
INTERRUPTING = """
from pytest_ddpscale.session.session import AcceptanceSession

def judge(self, case):
    raise KeyboardInterrupt

AcceptanceSession.judge = judge
"""


def elsewhere(site: Site) -> None:
    """The run, with a space in its name; and in the folder of tests."""
    (site.path / "run 1").mkdir()
    site.measured().path.rename(site.path / "run 1" / "measured")
    os.chdir(site.path / "acceptance")


def in_the_way(site: Site) -> None:
    site.measured()
    site.write("measured/plots", "in the way")


OWN_FILES = "--json-report --json-report-file=own.json"
AROUND: dict[str, tuple[Step, ...]] = {
    "judging again keeps what was measured and the first verdicts": (
        measured, "judge --ddp-run-dir=opinions/second", "judge --gpu-sku=tested",
        IMPOSSIBLE, "judge --thresholds=thresholds.yaml",
        "judge --lf --thresholds=thresholds.yaml", bound("bound: 0.95"), "judge --lf --thresholds=thresholds.yaml",
    ),
    "a run elsewhere is judged from inside the folder of tests": (
        elsewhere, f"'--ddp-judge=../run 1/measured' 'test_scaling.py::{WEAK_8}'", "'--ddp-judge=../run 1/measured'",
    ),
    "nothing selected writes nothing": (
        measured, "judge -k no_such_item", "judge --ddp-world-sizes=3", "judge no_such_file.py",
    ),
    "a file in the way of one report costs only that one": (in_the_way, "judge"),
    "other plugins are off": (
        measured, "judge -p no:pytest_jsonreport", "judge -p no:metadata", "judge -p no:terminal",
        "judge -q -q --tb=no -s", "judge -n 0", "judge -p no:xdist",
    ),
    "they write reports of their own": (measured, f"judge {OWN_FILES} --junitxml=own.xml"),
    "they remove the reporter and forgive failures": (measured, IMPOSSIBLE, file("conftest.py", FORGIVING), "audit"),
    "switches work from the ini file": (
        lambda site: site.measured(without=2), "judge", lambda site: site.configure(ddp_allow_incomplete="on"), "judge",
    ),
    "another confidence widens the intervals": (measured, "judge", "judge --ddp-confidence=0.999"),
    "another thresholds file is in the command": (
        measured, bound("bound: 0.99"), "judge --thresholds=thresholds.yaml -v",
        "judge -q --thresholds=thresholds.yaml",
    ),
    "tests of one's own judge beside the others": (
        measured, file("acceptance/test_documented.py", DOCUMENTED.partition("```python\n")[2].partition("```")[0]),
        file("acceptance/test_own_metrics.py", OWN), "judge",
        "judge acceptance/test_own_metrics.py -k TestSeveralMetrics",
    ),
    "samples of what does not exist": (
        measured, own_test("run.samples('speed', 'resnet152-fp16', 8)", "run"), "judge",
    ),
    "the JSON report has null for what is no number": (
        measured, own_test(NUMBERS, "record_property, json_metadata"), "judge",
    ),
    "an interrupted session counts what was judged": (
        measured, file("conftest.py", INTERRUPTING), "judge", "judge -v",
    ),
    "an interrupted test has not passed": (
        measured, own_test("raise KeyboardInterrupt"), "judge", f"judge {OWN_FILES} --json-report-summary",
        own_test("pytest.exit('enough')"), f"judge {OWN_FILES}",
    ),
    "a module that cannot be imported accepts nothing": (
        measured, file("acceptance/test_broken.py", "import no_such_module"), "judge",
    ),
    "who judges nothing is not disturbed, not even by thresholds that are none of ours": (
        file("thresholds.yaml", "not: [ours"), file("other/test_a.py", "def test_1(): pass\ndef test_2(): assert 0"),
        "other", "-n 2 other", file("other/test_a.py", ""), "other", file("other/test_a.py", "import no_such"), "other",
        file("other/test_a.py", """
import pytest

@pytest.fixture(params=[1, 2])
def requirement(request):
    return request.param

@pytest.fixture
def verdict():
    return "guilty"

@pytest.mark.requirement("REQ-7")
@pytest.mark.parametrize("run", "ab")
def test_one(requirement, run, verdict):
    assert requirement in (1, 2) and run in "ab" and verdict == "guilty"
"""), "other",
    ),
    "pytest alone where no test is says how to begin": (
        lambda site: (site.path / "empty").mkdir(), "--ignore=acceptance --rootdir=empty", "--ignore=acceptance -k x",
        "--ignore=acceptance empty", "--sku=cpu acceptance",
    ),
}  # fmt: skip


@pytest.mark.parametrize("part", range(2))
def test_what_else_a_site_has_changes_no_verdict(site: Site, part: int) -> None:
    approve(site, f"around-{part}", dict([*AROUND.items()][part::2]))
