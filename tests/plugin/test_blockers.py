"""Whatever keeps a machine from being accepted is counted alike wherever it is counted, and shown as a failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import pytest

from pytest_ddpscale.plan.study import Arm
from pytest_ddpscale.report.unmet import counts_text
from pytest_ddpscale.results.records import StudyEnd
from pytest_ddpscale.results.verdicts import read_judgement
from tests.builders.json_types import run_record
from tests.plugin.site import (
    MEASURED_RUN,
    REQUIREMENTS,
    WEAK_8,
    Series,
    Site,
    assert_no_crash,
    output_of,
    thresholds_text,
    thresholds_with,
)

OWN_ITEM = """\
import pytest

@pytest.mark.requirement("weak_scaling_efficiency")
{mark}
def test_weak_scaling_efficiency(requirement, run):
    {body}
"""
_PUBLISHED = re.compile(r"\{(\d): [\d.]+\}(.*), published: paper, bound: ([\d.]+), because: made up")
PROVISIONAL = [_PUBLISHED.sub(r"{\1: \3}\2, provisional: nobody published one", line) for line in REQUIREMENTS.values()]
WITHOUT_TWO_RANKS = tuple(one for one in MEASURED_RUN if one.arm != Arm("ddp", 2, 512))


def bound(text: str) -> str:
    """Thresholds in which the bound of one requirement, which is kept by 0.97, is another one."""
    return thresholds_with(WEAK_8, "bound: 0.96", text)


def own_item(body: str, mark: str = "") -> str:
    """The test of three requirements as a site might have written it."""
    return OWN_ITEM.format(body=body, mark=mark)


@dataclass(frozen=True)
class Situation:
    """A run and what becomes of it.

    Attributes:
        blockers: how many things keep the machine from being accepted.
        outcome: what the run comes to.
        told: what the terminal says of it, among all else.
        thresholds: judged by.
        series: what was measured.
        weak_scaling_test: by which three requirements are judged; empty for the packaged one.
        further_test: of the site's own, beside them; empty without one.
        broken: a study that ended in an error.
        is_simulated: whether nothing was measured.
        arguments: of pytest.
    """

    blockers: int
    outcome: str
    told: str
    thresholds: str = thresholds_text()
    series: Sequence[Series] = MEASURED_RUN
    weak_scaling_test: str = ""
    further_test: str = ""
    broken: str = ""
    is_simulated: bool = False
    arguments: Sequence[str] = ()

    def judged(self, site: Site) -> pytest.RunResult:
        """What pytest makes of it."""
        site.write("thresholds.yaml", self.thresholds)
        if self.weak_scaling_test:
            site.judge_weak_scaling_by(self.weak_scaling_test)
        if self.further_test:
            site.write("acceptance/test_link.py", self.further_test)
        run = site.measured(series=self.series)
        if self.broken:
            run.append_record(StudyEnd(self.broken, "error", "it broke"))
        if self.is_simulated:
            run.write_json(run.run_json, run_record(run.read_run(), simulated=True))
        return site.judge("--junitxml=pytest.xml", *self.arguments)


ALLOWING = ("--ddp-allow-incomplete",)
MISSED = "REJECTED: weak_scaling_efficiency[resnet152-fp16-8gpu] is "
MISSING = "INCOMPLETE: not measured: weak_scaling_efficiency[resnet152-fp16-2gpu]: no complete round of 2 ranks"
ALLOWED = "INCOMPLETE: 1 of 8 requirements were not measured: "
NOT_JUDGED = "INCOMPLETE: tests test_weak_scaling_efficiency["
SITUATIONS = {
    "all is kept": Situation(0, "accepted", "ACCEPTED: 8 of 8 requirements passed"),
    "a bound is missed": Situation(1, "rejected", MISSED, bound("bound: 1.05")),
    "a miss only warns": Situation(
        0, "accepted", "ACCEPTED: 7 of 8 requirements passed, 1 warned", bound("bound: 1.05, severity: warn")
    ),
    "one is inconclusive": Situation(
        1,
        "incomplete",
        "INCOMPLETE: inconclusive: weak_scaling_efficiency[resnet152-fp16-8gpu]: ",
        bound("bound: 0.9745"),
    ),
    "an inconclusive one only warns": Situation(
        0, "accepted", "ACCEPTED: 7 of 8", bound("bound: 0.9745, severity: warn")
    ),
    "ranks are missing": Situation(1, "incomplete", MISSING, series=WITHOUT_TWO_RANKS),
    "what only warns is missing": Situation(
        1,
        "incomplete",
        MISSING,
        thresholds_with("test_weak_scaling_efficiency[resnet152-fp16-2gpu]", "0.974", "0.974, severity: warn"),
        WITHOUT_TWO_RANKS,
    ),
    "what is missing is allowed": Situation(0, "incomplete", ALLOWED, series=WITHOUT_TWO_RANKS, arguments=ALLOWING),
    "a miss beside what is allowed": Situation(
        1, "rejected", MISSED, bound("bound: 1.05"), WITHOUT_TWO_RANKS, arguments=ALLOWING
    ),
    "a study broke": Situation(
        1,
        "incomplete",
        "INCOMPLETE: error: strong_scaling_speedup[vit-b-16-fp16-8gpu]: it broke",
        broken="strong/vit-b-16-fp16",
    ),
    "no bound is published": Situation(
        1,
        "incomplete",
        "INCOMPLETE: 8 of 8 requirements passed, but none with a published bound",
        thresholds_text(PROVISIONAL),
    ),
    "a simulated cluster": Situation(1, "incomplete", "INCOMPLETE: ", is_simulated=True),
    "a simulated one of which something is missing": Situation(
        1, "incomplete", "INCOMPLETE: ", series=WITHOUT_TWO_RANKS, is_simulated=True, arguments=ALLOWING
    ),
    "a test of the site's own fails": Situation(
        1, "incomplete", "INCOMPLETE: ", further_test="def test_link(): assert 0"
    ),
    "items are skipped": Situation(
        3, "incomplete", NOT_JUDGED, weak_scaling_test=own_item("pass", "@pytest.mark.skip(reason='not today')")
    ),
    "items raise": Situation(3, "incomplete", NOT_JUDGED, weak_scaling_test=own_item("raise KeyError('rack')")),
    "a miss that is not asserted": Situation(
        1, "rejected", MISSED, bound("bound: 1.05"), weak_scaling_test=own_item("requirement.judge(run)")
    ),
    "nothing after the first failure": Situation(1, "rejected", MISSED, bound("bound: 1.05"), arguments=("-x",)),
}


# In `counts_text`: requirements that are not met, tests, and the run as a whole.
UNMET = r"(\d+)(?= of \d+ requirements? (?!passed)| tests? failed| failure: the run)"


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_all_who_count_agree(site: Site, situation: Situation) -> None:
    result = situation.judged(site)
    outcomes = result.parseoutcomes()
    verdicts = site.verdicts()
    report = (site.path / "measured" / "report.md").read_text(encoding="utf-8")
    counts = counts_text(read_judgement(site.path / "measured" / "verdicts.json"))
    assert {
        "verdicts.json": len(verdicts["blockers"]),
        "pytest": outcomes.get("failed", 0) + outcomes.get("errors", 0),
        "pytest's JUnit": failures(site, "pytest.xml"),
        "JUnit": failures(site, "measured/junit.xml"),
        "in words": sum(map(int, re.findall(UNMET, counts))),
    } == dict.fromkeys(("verdicts.json", "pytest", "pytest's JUnit", "JUnit", "in words"), situation.blockers)
    assert f": {counts}." in report
    assert result.ret == (pytest.ExitCode.TESTS_FAILED if situation.blockers else pytest.ExitCode.OK)
    assert (verdicts["outcome"], len(verdicts["verdicts"])) == (situation.outcome, len(REQUIREMENTS))
    assert situation.told in output_of(result)
    assert_no_crash(result)


def failures(site: Site, path: str) -> int:
    """Test cases of a JUnit file that failed or broke."""
    root = ElementTree.parse(site.path / path).getroot()
    return len(root.findall(".//testcase/failure")) + len(root.findall(".//testcase/error"))
