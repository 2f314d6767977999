"""What a session comes to: exit code, first line and outcome; whoever counts what is in the way counts alike."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from shlex import split
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.report.causes import counts_text
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import read_judgement
from pytest_ddpscale.thresholds.waiver import today
from tests.approved import assert_approved, masked
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


class Situation(NamedTuple):
    """What was done to the site and the run, arguments of pytest, and what is said elsewhere in the output."""

    steps: tuple[Step, ...] = ()
    arguments: str = ""
    said: tuple[str, ...] = ()


ALLOWING = "--ddp-allow-incomplete"
OWN_RULES = "'the site has its own rules'"
LATE = file("acceptance/test_late.py", "def test_late(): raise TimeoutError('no answer in 5 s')")
SITUATIONS = {
    "all is kept": Situation(),
    "a bound is missed": Situation((bound("bound: 1.05"),)),
    "a miss only warns": Situation((bound("bound: 1.05, severity: warn"),)),
    "one is inconclusive": Situation((bound("bound: 0.9745"),)),
    "ranks are missing": Situation((without_two_ranks,)),
    "what is missing is allowed": Situation((without_two_ranks,), ALLOWING),
    "a miss beside what is allowed": Situation((bound("bound: 1.05"), without_two_ranks), ALLOWING),
    "a study broke": Situation((broke,)),
    "no bound is published": Situation((asked(thresholds_text(PROVISIONAL)),)),
    "a simulated cluster": Situation((simulated,)),
    "it was killed before it measured": Situation((killed_at_once,)),
    "a test of the site's own fails": Situation((LINK,)),
    "one fails beside a miss": Situation((bound("bound: 1.05"), LINK)),
    "one fails in a selection": Situation((LINK,), "-k 'link or vit and weak'"),
    "it is not selected": Situation((LINK,), "-m requirement"),
    "items are skipped": Situation((own_item("pass", "@pytest.mark.skip(reason='not today')"),)),
    "items raise": Situation((own_item("raise KeyError('rack')"),)),
    "an assertion of their own fails": Situation(
        (own_item(f"{CHECKED}\n    assert 2 + 2 == 5, {OWN_RULES}"),), said=("the site has its own rules",)
    ),
    # Only `check` ends an item by its verdict.
    "an assertion of their own is not forgiven with a warning": Situation(
        (bound("bound: 1.1, severity: warn"),
         own_item(f"assert requirement.case.requirement.severity == 'fail', {OWN_RULES}\n    {CHECKED}")),
    ),
    "a fixture of theirs breaks": Situation((own_item(fixture=", broken"),)),
    "a fixture of theirs breaks afterwards": Situation((own_item(fixture=", breaks_afterwards"),)),
    "a miss that is not asserted": Situation((bound("bound: 1.05"), own_item("requirement.judge(run)"))),
    "nothing after the first failure": Situation((bound("bound: 1.05"),), "-x"),
    "a selection of which one is missed": Situation(
        (bound("bound: 1.05"),), "-k weak_scaling",
        (f"; {ALL - 3} of {ALL} requirements not selected", f"2 passed, {ALL - 3} not selected ("),
    ),
    "a test of the site's own waits too long": Situation((LATE,)),
    "a node id": Situation(arguments=f"'{WEAK_8_NODE_ID}'"),
    "a keyword": Situation(arguments="-k 'vit and weak'"),
    "the name that reports give it": Situation(arguments="-k 'peak_memory_gib[resnet152-fp16-8gpu]'"),
    "a world size": Situation(arguments="--ddp-world-sizes=2"),
    "another thresholds file is named": Situation(
        (file("strict.yaml", thresholds_with(WEAK_8, "bound: 0.96", "bound: 0.99")),), "--thresholds=strict.yaml -v",
        ("rerun     pytest --gpu-sku=tested-gpu --thresholds=strict.yaml -k '",),
    ),
    "a failure is waived": Situation((WAIVED,), OWN),
    "another fails beside it": Situation((overlay(waiver(TOMORROW), HARDER),), OWN),
    "a site that asks for more has lowered nothing": Situation((overlay(HIGHER, waiver(TOMORROW)),), OWN),
    "the file in between asks for less": Situation((overlay(LOWER), OUTER), OUTERMOST),
    "what else lets a machine keep its bounds": Situation(
        (overlay(
            "node: {nvlinks: 1}",
            asks("weak_scaling_efficiency: {8: 0.97}, of: resnet152-fp16, published: paper, margin: 0 %"),
            "change: [{weak_scaling_efficiency: 8, of: resnet152-fp16, severity: off, who: A. Name, why: old fans}]",
            "detect: {memory_gib: 40}", "beyond_node: dropped", "aliases: [another-name]", "batch: {resnet18-fp32: 4}",
            head=f"skus:\n  reference-gpu:\n    {SLOWER}\n  tested-gpu:",
        ),), OWN,
    ),
    "another model under the same name": Situation(
        (overlay(head="workloads: {vit-b-16-fp16: {model: resnet18, precision: fp16}}"),), OWN,
        ("changed by the site: what vit-b-16-fp16 trains (model vit_b_16 → resnet18)",),
    ),
    "a file below has names alone": Situation(
        (file("names.yaml", "schema_version: 2\nreasons: {measured: by us}\n"),
         file("own.yaml", thresholds_text().replace("\n", "\nextends: names.yaml\n", 1))), OWN,
    ),
    "nothing below is sure": Situation((UNSURE,)),
    "bounds of the site alone": Situation((overlay(EASY), UNSURE), OWN),
    "bounds of a site in between alone": Situation((overlay(EASY), OUTER, UNSURE), OUTERMOST),
}  # fmt: skip
# In `counts_text`: requirements that are not met, tests, and the run as a whole.
UNMET = r"(\d+)(?= of \d+ requirements? (?!passed|met)| tests? failed| failure: the run)"


@pytest.mark.parametrize("part", range(4))
def test_all_who_count_agree_and_the_first_line_is_as_approved(site: Site, part: int) -> None:
    printed = ""
    for name, situation in [*SITUATIONS.items()][part::4]:
        site.reset()
        run = site.measured()
        for step in situation.steps:
            step(site, run)
        measured = run.measurements_jsonl.read_bytes() if run.measurements_jsonl.exists() else b""
        result = site.judge("--thresholds=thresholds.yaml", "--junitxml=pytest.xml", *split(situation.arguments))
        printed += f"{name}: {agreed(site, situation, result)}"
        assert (run.measurements_jsonl.read_bytes() if measured else b"") == measured
    assert_approved(f"situations-{part}.txt", printed)


def agreed(site: Site, situation: Situation, result: pytest.RunResult) -> str:
    """Exit code, outcome, how many are judged and how many block, pytest's counts, and the first line."""
    assert_no_crash(result)
    words = re.sub(r"\n +", " ", output_of(result))  # lines that were wrapped
    assert [said for said in situation.said if said not in words] == []
    verdicts, outcomes = site.verdicts(), result.parseoutcomes()
    counts = counts_text(read_judgement(site.path / "measured" / "verdicts.json"))
    assert f": {counts}." in (site.path / "measured" / "report.md").read_text(encoding="utf-8")
    report: dict[str, Any] = json.loads((site.path / "measured" / "pytest-report.json").read_text(encoding="utf-8"))
    assert report["exitcode"] == result.ret
    blockers = len(verdicts["blockers"])
    assert result.ret == (pytest.ExitCode.TESTS_FAILED if blockers else pytest.ExitCode.OK)
    assert {
        "pytest": outcomes.get("failed", 0) + outcomes.get("errors", 0),
        "pytest's JUnit": failures(site, "pytest.xml"),
        "JUnit": failures(site, "measured/junit.xml"),
        "in words": sum(map(int, re.findall(UNMET, counts))),
        "pytest-report.json": report["summary"].get("failed", 0) + report["summary"].get("error", 0),
    } == dict.fromkeys(("pytest", "pytest's JUnit", "JUnit", "in words", "pytest-report.json"), blockers)
    counted = ", ".join(f"{number} {what}" for what, number in outcomes.items())
    judged = f"{verdicts['outcome']}, {len(verdicts['verdicts'])} judged, {blockers} in the way; {counted}"
    return f"{int(result.ret)}, {judged}\n  {masked(outcome_line(result), site.path)}"


def failures(site: Site, path: str) -> int:
    """Test cases of a JUnit file that failed or broke."""
    root = ElementTree.parse(site.path / path).getroot()
    return len(root.findall(".//testcase/failure")) + len(root.findall(".//testcase/error"))


def test_an_interrupted_session_shows_no_line_of_code(site: Site) -> None:
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
