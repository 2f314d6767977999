"""What a session comes to: exit code, first line and outcome; whoever counts what is in the way counts alike."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from shlex import split
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.report.causes import counts_text
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import read_judgement
from pytest_ddpscale.thresholds.waiver import today
from tests.builders.json_types import run_record
from tests.plugin.site import (
    MEASURED_RUN,
    REQUIREMENTS,
    WEAK_8,
    WEAK_8_NODE_ID,
    Site,
    assert_no_crash,
    outcome_line,
    output_of,
    thresholds_text,
    thresholds_with,
)
from tests.rows import rows

ALL = len(REQUIREMENTS)
# Something done to the site and the run before it is judged.
Step = Callable[[Site, RunDirectory], object]
WEAK = WEAK_8.removeprefix("test_")
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
CHECKED = "requirement.judge(run).check()"
_PUBLISHED = re.compile(r"\{(\d): [\d.]+\}(.*), published: paper, bound: ([\d.]+), because: made up")
PROVISIONAL = [_PUBLISHED.sub(r"{\1: \3}\2, provisional: nobody published one", line) for line in REQUIREMENTS.values()]
WITHOUT_TWO_RANKS = tuple(one for one in MEASURED_RUN if one.arm != Arm("ddp", 2, 512))


def file(name: str, text: str) -> Step:
    return lambda site, run: site.write(name, text)


def asked(text: str) -> Step:
    """Judged by these thresholds."""
    return file("thresholds.yaml", text)


def bound(text: str) -> Step:
    """The bound of one requirement, which is kept by 0.97, is another one."""
    return asked(thresholds_with(WEAK_8, "bound: 0.96", text))


def own_item(body: str = CHECKED, mark: str = "", fixture: str = "") -> Step:
    """The test of three requirements as a site might have written it."""
    text = OWN_ITEM.format(body=body, mark=mark, fixture=fixture)
    return lambda site, run: site.judge_weak_scaling_by(text)


def without_two_ranks(site: Site, run: RunDirectory) -> None:
    """They were not measured."""
    for path in sorted(run.path.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    run.path.rmdir()
    site.measured(series=WITHOUT_TWO_RANKS)


def simulated(site: Site, run: RunDirectory) -> None:
    run.write_json(run.run_json, run_record(run.read_run(), simulated=True))


def broke(site: Site, run: RunDirectory) -> None:
    run.append_record(StudyEnd("strong/vit-b-16-fp16", "error", "it broke"))


def killed_at_once(site: Site, run: RunDirectory) -> None:
    run.measurements_jsonl.unlink()


def overlay(*lines: str, head: str = "skus:\n  tested-gpu:") -> Step:
    """own.yaml: it extends the site's thresholds, of which one requirement is not kept."""

    def write(site: Site, run: RunDirectory) -> None:
        bound("bound: 0.98")(site, run)
        own = ["schema_version: 2", "extends: thresholds.yaml", head, *(f"    {one}" for one in lines)]
        site.write("own.yaml", "\n".join(own) + "\n")

    return write


def asks(row: str) -> str:
    return f"requirements: [{{{row}}}]"


def waiver(until: date) -> str:
    """Of the requirement that is not kept."""
    row = "weak_scaling_efficiency: 8, of: resnet152-fp16, severity: warn"
    return f"change: [{{{row}, who: A. Name, why: the fan of GPU 3 is ordered, until: {until}}}]"


TOMORROW = today() + timedelta(1)
WAIVED = overlay(waiver(TOMORROW))
ENDS_TOMORROW = f"waived by A. Name until {TOMORROW}: the fan of GPU 3 is ordered"
LOWER = asks("weak_scaling_efficiency: {8: 0.97}, of: resnet152-fp16, published: paper, bound: 0.96, because: x")
HIGHER = asks("throughput_per_gpu: {1: 500}, of: resnet152-fp16, published: paper, bound: 1131, because: x")
HARDER = asks("device_utilization: {8: 1}, of: resnet152-fp16, published: paper, bound: 0.99, because: x")
# A new row of a bound that everything keeps accepts a machine of which the file below knows nothing for sure.
EASY = asks("throughput_per_gpu: {8: 1}, of: resnet152-fp16, published: paper, margin: 5 %")
UNSURE = asked(thresholds_text(["{weak_scaling_efficiency: {8: 0.9}, of: resnet152-fp16, provisional: x}"]))
LINK = file("acceptance/test_link.py", "def test_link(): assert 0")
OUTER = file("outer.yaml", "schema_version: 2\nextends: own.yaml\n")
OWN, OUTERMOST = "--thresholds=own.yaml", "--thresholds=outer.yaml"
SLOWER = asks("throughput_per_gpu: {1: 250}, of: resnet152-fp16, published: paper, margin: 5 %")


@dataclass(frozen=True)
class Situation:
    """A run and what becomes of it.

    Attributes:
        blockers: how many things keep the machine from being accepted.
        outcome: what the run comes to.
        first: how the first line begins.
        steps: what was done to the site and the run.
        arguments: of pytest.
        judged: how many requirements.
        said: elsewhere in the output.
        counts: of items by their outcomes, as pytest tells them.
    """

    blockers: int
    outcome: str
    first: str
    steps: tuple[Step, ...] = ()
    arguments: str = ""
    judged: int = ALL
    said: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


ALLOWING = "--ddp-allow-incomplete"
MISSED = f"REJECTED: {WEAK} is "
MISSING = "INCOMPLETE: not measured: weak_scaling_efficiency[resnet152-fp16-2gpu]: no complete round of 2 ranks"
NOT_JUDGED = "INCOMPLETE: tests test_weak_scaling_efficiency["
ONE_NOT_JUDGED = f"INCOMPLETE: test {WEAK_8}"
PARTIAL = f"PARTIAL: 1 of {ALL} requirements passed; {ALL - 1} not selected"
MET = f"{ALL - 1} of {ALL} requirements met, 1 waived"
OWN_RULES = "'the site has its own rules'"
RATIO = "generation_ratio of resnet152-fp16 at world size 1"
SITUATIONS = {
    "all is kept": Situation(0, "accepted", "ACCEPTED: 8 of 8 requirements passed", counts={"passed": ALL}),
    "a bound is missed": Situation(1, "rejected", MISSED, (bound("bound: 1.05"),)),
    "a miss only warns": Situation(
        0, "accepted", "ACCEPTED: 7 of 8 requirements passed, 1 warned", (bound("bound: 1.05, severity: warn"),)
    ),
    "one is inconclusive": Situation(1, "incomplete", f"INCOMPLETE: inconclusive: {WEAK}: ", (bound("bound: 0.9745"),)),
    "ranks are missing": Situation(1, "incomplete", MISSING, (without_two_ranks,)),
    "what is missing is allowed": Situation(
        0, "incomplete", "INCOMPLETE: 1 of 8 requirements not measured: ", (without_two_ranks,), ALLOWING
    ),
    "a miss beside what is allowed": Situation(
        1, "rejected", MISSED, (bound("bound: 1.05"), without_two_ranks), ALLOWING
    ),
    "a study broke": Situation(
        1, "incomplete", "INCOMPLETE: error: strong_scaling_speedup[vit-b-16-fp16-8gpu]: it broke", (broke,)
    ),
    "no bound is published": Situation(
        1, "incomplete", "INCOMPLETE: not decidable without site bounds: ddpscale calibrate ",
        (asked(thresholds_text(PROVISIONAL)),),
    ),
    "a simulated cluster": Situation(1, "incomplete", "INCOMPLETE: ", (simulated,)),
    "it was killed before it measured": Situation(
        8, "incomplete", "INCOMPLETE: error: throughput_per_gpu[resnet152-fp16-1gpu], ", (killed_at_once,)
    ),
    "a test of the site's own fails": Situation(
        1, "incomplete", "INCOMPLETE: ", (LINK,)
    ),
    "one fails beside a miss": Situation(
        2, "rejected", "REJECTED: ", (bound("bound: 1.05"), LINK)
    ),
    "one fails in a selection": Situation(
        1, "incomplete", "INCOMPLETE: ", (LINK,),
        "-k 'link or vit and weak'", judged=1, counts={"passed": 1, "failed": 1},
    ),
    "it is not selected": Situation(
        0, "accepted", "ACCEPTED: 8 of 8", (LINK,),
        "-m requirement", counts={"passed": ALL, "deselected": 1},
    ),
    "items are skipped": Situation(
        3, "incomplete", NOT_JUDGED, (own_item("pass", "@pytest.mark.skip(reason='not today')"),)
    ),
    "items raise": Situation(3, "incomplete", NOT_JUDGED, (own_item("raise KeyError('rack')"),)),
    "an assertion of their own fails": Situation(
        3, "incomplete", NOT_JUDGED, (own_item(f"{CHECKED}\n    assert 2 + 2 == 5, {OWN_RULES}"),),
        said=("the site has its own rules",), counts={"passed": ALL - 3, "failed": 3},
    ),
    # Only `check` ends an item by its verdict.
    "an assertion of their own is not forgiven with a warning": Situation(
        1, "incomplete", ONE_NOT_JUDGED,
        (bound("bound: 1.1, severity: warn"),
         own_item(f"assert requirement.case.requirement.severity == 'fail', {OWN_RULES}\n    {CHECKED}")),
        counts={"passed": ALL - 1, "failed": 1},
    ),
    "a fixture of theirs breaks": Situation(
        3, "incomplete", NOT_JUDGED, (own_item(fixture=", broken"),), counts={"passed": ALL - 3, "errors": 3}
    ),
    "a fixture of theirs breaks afterwards": Situation(
        3, "incomplete", NOT_JUDGED, (own_item(fixture=", breaks_afterwards"),), counts={"passed": ALL, "errors": 3}
    ),
    "a miss that is not asserted": Situation(
        1, "rejected", MISSED, (bound("bound: 1.05"), own_item("requirement.judge(run)"))
    ),
    "nothing after the first failure": Situation(1, "rejected", MISSED, (bound("bound: 1.05"),), "-x"),
    "a selection of which one is missed": Situation(
        1, "rejected", MISSED, (bound("bound: 1.05"),), "-k weak_scaling", judged=3,
        said=(f"; {ALL - 3} of {ALL} requirements not selected", f"2 passed, {ALL - 3} not selected ("),
    ),
    "a test of the site's own waits too long": Situation(
        1, "incomplete", "INCOMPLETE: test test_late ran into a time-out: no answer in 5 s",
        (file("acceptance/test_late.py", "def test_late(): raise TimeoutError('no answer in 5 s')"),),
    ),
    "a node id": Situation(0, "partial", PARTIAL, arguments=f"'{WEAK_8_NODE_ID}'", judged=1),
    "a keyword": Situation(0, "partial", PARTIAL, arguments="-k 'vit and weak'", judged=1),
    "the name that reports give it": Situation(
        0, "partial", PARTIAL, arguments="-k 'peak_memory_gib[resnet152-fp16-8gpu]'", judged=1
    ),
    "a world size": Situation(
        0, "partial", PARTIAL, arguments="--ddp-world-sizes=2", judged=1,
        counts={"passed": 1, "deselected": ALL - 1},
    ),
    "another thresholds file is named": Situation(
        1, "rejected", MISSED, (file("strict.yaml", thresholds_with(WEAK_8, "bound: 0.96", "bound: 0.99")),),
        "--thresholds=strict.yaml -v",
        said=("rerun     pytest --gpu-sku=tested-gpu --thresholds=strict.yaml -k '",),
    ),
    "a failure is waived": Situation(
        0, "accepted_with_waivers", f"ACCEPTED WITH WAIVERS: {MET}", (WAIVED,), OWN,
        counts={"passed": ALL - 1, "xfailed": 1},
    ),
    "another fails beside it": Situation(
        1, "rejected", "REJECTED: device_utilization[resnet152-fp16-8gpu] is 97.3 %",
        (overlay(waiver(TOMORROW), HARDER),), OWN, counts={"passed": ALL - 2, "xfailed": 1, "failed": 1},
    ),
    "a site that asks for more has lowered nothing": Situation(
        0, "accepted_with_waivers", f"ACCEPTED WITH WAIVERS: {MET}", (overlay(HIGHER, waiver(TOMORROW)),), OWN
    ),
    "the file in between asks for less": Situation(
        0, "accepted", f"ACCEPTED: {ALL} of {ALL} requirements passed; 1 bound lowered by the site",
        (overlay(LOWER), OUTER), OUTERMOST,
    ),
    "what else lets a machine keep its bounds": Situation(
        0, "accepted",
        "ACCEPTED: 7 of 7 requirements passed; 1 requirement not asked by the site; changed by the site: `detect`, "
        f"`node`, `beyond_node`, throughput of reference-gpu that {RATIO} is relative to (500 → 250 img/s)",
        (overlay(
            "node: {nvlinks: 1}",
            asks("weak_scaling_efficiency: {8: 0.97}, of: resnet152-fp16, published: paper, margin: 0 %"),
            "change: [{weak_scaling_efficiency: 8, of: resnet152-fp16, severity: off, who: A. Name, why: old fans}]",
            "detect: {memory_gib: 40}", "beyond_node: dropped", "aliases: [another-name]", "batch: {resnet18-fp32: 4}",
            head=f"skus:\n  reference-gpu:\n    {SLOWER}\n  tested-gpu:",
        ),),
        OWN, judged=7,
    ),
    "another model under the same name": Situation(
        3, "rejected", MISSED,
        (overlay(head="workloads: {vit-b-16-fp16: {model: resnet18, precision: fp16}}"),), OWN,
        said=("changed by the site: what vit-b-16-fp16 trains (model vit_b_16 → resnet18)",),
    ),
    "a file below has names alone": Situation(
        0, "accepted", f"ACCEPTED: {ALL} of {ALL} requirements passed",
        (file("names.yaml", "schema_version: 2\nreasons: {measured: by us}\n"),
         file("own.yaml", thresholds_text().replace("\n", "\nextends: names.yaml\n", 1))), OWN,
    ),
    "nothing below is sure": Situation(
        1, "incomplete", "INCOMPLETE: not decidable without site bounds: ddpscale calibrate ", (UNSURE,), judged=1
    ),
    "bounds of the site alone": Situation(
        0, "accepted", "ACCEPTED: 2 of 2 requirements passed; changed by the site: the bounds that it is accepted by",
        (overlay(EASY), UNSURE), OWN, judged=2,
    ),
    "bounds of a site in between alone": Situation(
        0, "accepted", "ACCEPTED: 2 of 2 requirements passed; changed by the site: the bounds that it is accepted by",
        (overlay(EASY), OUTER, UNSURE), OUTERMOST, judged=2,
    ),
}  # fmt: skip
# In `counts_text`: requirements that are not met, tests, and the run as a whole.
UNMET = r"(\d+)(?= of \d+ requirements? (?!passed|met)| tests? failed| failure: the run)"


@pytest.mark.parametrize("part", range(4))
def test_all_who_count_agree(site: Site, part: int) -> None:
    @rows("situation", list(SITUATIONS.values())[part::4], ids=list(SITUATIONS)[part::4])
    def check(situation: Situation) -> None:
        site.reset()
        run = site.measured()
        for step in situation.steps:
            step(site, run)
        measured = run.measurements_jsonl.read_bytes() if run.measurements_jsonl.exists() else b""
        result = site.judge("--thresholds=thresholds.yaml", "--junitxml=pytest.xml", *split(situation.arguments))
        assert_agreement(site, situation, result)
        assert (run.measurements_jsonl.read_bytes() if measured else b"") == measured

    check()


def assert_agreement(site: Site, situation: Situation, result: pytest.RunResult) -> None:
    assert_no_crash(result)
    assert result.ret == (pytest.ExitCode.TESTS_FAILED if situation.blockers else pytest.ExitCode.OK)
    assert outcome_line(result).startswith(situation.first)
    printed = re.sub(r"\n +", " ", output_of(result))  # lines that were wrapped
    assert [words for words in situation.said if words not in printed] == []
    verdicts, outcomes = site.verdicts(), result.parseoutcomes()
    assert (verdicts["outcome"], len(verdicts["verdicts"])) == (situation.outcome, situation.judged)
    assert {name: outcomes.get(name, 0) for name in situation.counts} == situation.counts
    counts = counts_text(read_judgement(site.path / "measured" / "verdicts.json"))
    assert {
        "verdicts.json": len(verdicts["blockers"]),
        "pytest": outcomes.get("failed", 0) + outcomes.get("errors", 0),
        "pytest's JUnit": failures(site, "pytest.xml"),
        "JUnit": failures(site, "measured/junit.xml"),
        "in words": sum(map(int, re.findall(UNMET, counts))),
    } == dict.fromkeys(("verdicts.json", "pytest", "pytest's JUnit", "JUnit", "in words"), situation.blockers)
    assert f": {counts}." in (site.path / "measured" / "report.md").read_text(encoding="utf-8")
    report: dict[str, Any] = json.loads((site.path / "measured" / "pytest-report.json").read_text(encoding="utf-8"))
    assert report["exitcode"] == result.ret
    assert report["summary"].get("failed", 0) + report["summary"].get("error", 0) == situation.blockers


def failures(site: Site, path: str) -> int:
    """Test cases of a JUnit file that failed or broke."""
    root = ElementTree.parse(site.path / path).getroot()
    return len(root.findall(".//testcase/failure")) + len(root.findall(".//testcase/error"))


def test_an_interrupted_session_counts_what_was_judged_and_shows_no_line_of_code(site: Site) -> None:
    site.measured()
    site.write(
        "conftest.py",
        """
from pytest_ddpscale.session.session import AcceptanceSession

def judge(self, case, listener):
    raise KeyboardInterrupt

AcceptanceSession.judge = judge
""",
    )
    for arguments in ([], ["-v"]):
        result = site.judge(*arguments)
        assert result.ret == pytest.ExitCode.INTERRUPTED
        said = result.stdout.str()
        assert "KeyboardInterrupt" not in said
        assert "Exit: interrupted !" in said
        assert result.parseoutcomes().get("passed") == ALL


def test_a_part_of_a_rejected_run_says_that_the_whole_is_rejected(site: Site) -> None:
    overlay(LOWER.replace("0.96,", "0.99,"))(site, site.measured())
    assert site.judge(OWN).ret == 1
    said = "only a part is judged here: the verdicts.json of the run itself rejects it (1 of 8 requirements failed: "
    part = site.judge(OWN, "-k", "not weak_scaling")
    assert part.ret == 0
    assert said in " ".join(line.strip() for line in part.outlines)


def test_a_waived_failure_is_signed_for(site: Site) -> None:
    WAIVED(site, site.measured())
    result = site.judge(OWN)
    begins = next(at for at, line in enumerate(result.outlines) if line.startswith("ACCEPTED WITH WAIVERS")) + 1
    assert ENDS_TOMORROW in " ".join(line.strip() for line in result.outlines[begins : begins + 4])
    [verdict] = [one for one in site.verdicts()["verdicts"] if one["outcome"] == "failed"]
    assert verdict["waiver"] == {"who": "A. Name", "why": "the fan of GPU 3 is ordered", "until": str(TOMORROW)}
    assert site.verdicts()["lowered"] == []
    report = (site.path / "measured" / "report.md").read_text(encoding="utf-8")
    assert report.startswith("# ACCEPTED WITH WAIVERS: ")
    assert f"- Reservations: {WEAK}: {ENDS_TOMORROW}" in report
    assert "only warns" not in report
    [suite] = ElementTree.parse(site.path / "measured" / "junit.xml").getroot().iter("testsuite")
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "0", "1")
    [skipped] = suite.iter("skipped")
    assert skipped.get("type") == "waived"
    assert (skipped.get("message") or "").startswith(f"{ENDS_TOMORROW}: the whole interval misses the bound")


def test_the_headline_says_how_much_less_the_site_asks_for(site: Site) -> None:
    removed = "{device_utilization: 8, of: resnet152-fp16, severity: off, who: A. Name, why: old fans}"
    warns = "{peak_memory_gib: 8, of: resnet152-fp16, severity: warn, who: A. Name, why: old fans}"
    overlay(LOWER.replace("0.96,", "0.97,"), f"change: [{removed}, {warns}]")(site, site.measured())
    result = site.judge(OWN)
    less = "1 bound lowered by the site, 1 requirement not asked, 1 requirement made a warning"
    own = "changed by the site: the whole thresholds file, the thresholds since it was measured"
    assert outcome_line(result) == f"ACCEPTED: {ALL - 1} of {ALL - 1} requirements passed; {less}; {own}"
    weak = "weak_scaling_efficiency of resnet152-fp16 at world size 8"
    report = (site.path / "measured" / "report.md").read_text(encoding="utf-8")
    assert less in report.splitlines()[0]
    assert f"| {weak} | ≥ 98.0 % | ≥ 97.0 % |" in report
    assert "| device_utilization of resnet152-fp16 at world size 8 | ≥ 95.0 % | not asked |" in report
    assert "| peak_memory_gib of resnet152-fp16 at world size 8 | ≤ 46.3 GiB | ≤ 46.3 GiB, only warns |" in report
    assert [one["now"] for one in site.verdicts()["lowered"]] == [0.97, None, 46.3]


def test_a_run_without_bounds_names_the_command_that_computes_them(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is pasted as it stands, finds the run and the thresholds, and says which runs it takes beside this one."""
    run, begins = site.measured(), "INCOMPLETE: not decidable without site bounds: "
    asked(thresholds_text(PROVISIONAL))(site, run)
    line = outcome_line(site.judge("--thresholds=thresholds.yaml"))
    assert line.startswith(f"{begins}ddpscale calibrate ")
    command = split(line.removeprefix(begins).partition(" (")[0])
    monkeypatch.chdir(site.path)
    assert Path(command[2]).samefile(run.path)
    capsys.readouterr()
    assert main(command[1:]) == 4
    assert "the runs have 1 node (" in capsys.readouterr().err
