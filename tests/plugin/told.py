"""What sessions of pytest come to, in words that can be approved: exit code, counts, our lines, and files."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from shlex import split
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_ddpscale.history.regression import read_histories
from pytest_ddpscale.report.causes import counts_text
from pytest_ddpscale.run.strict_json import parse_strict_json
from pytest_ddpscale.run.verdicts import read_judgement
from tests.approved import assert_approved, masked
from tests.plugin.site import Site, assert_no_crash, outcome_in, output_of
from tests.plugin.steps import TOMORROW
from tests.slurm_lab.polling import wait_until

# Something done to the site, or the arguments of pytest, perhaps after variables that are set for it.
Step = Callable[[Site], object] | str
OURS = re.compile(
    r"ERROR: (?!usage|file)|  ?ddpscale|ddpscale(?! page)|report: |remark: |SIMULATED: |test_.*: |@pytest.mark.req"
    r"|note: (?!earlier runs of these nodes under)|  --(gpu|thr|ddp)|  (weak|strong|probes)\b.* min |.*(unrecognized"
    r"|rerun |bound  +≥|assert False|not updated|run\.samples: |could not be|cannot be written|deselected /"
    r"|\d more cause|not found:|Exit: )"
)
SHORT = {
    "judge": "--ddp-judge=measured", "cpu": "--gpu-sku=cpu --ddp-gpus-per-node=2",
    "audit": "--ddp-judge=measured --thresholds=thresholds.yaml --junitxml=pytest.xml",
    "rehearse": "--ddp-judge=measured --ddp-rehearse", "resume": "--ddp-resume=run --ddp-gpus-per-node=2",
    "measure": "--gpu-sku=cpu --ddp-gpus-per-node=2 --ddp-run-dir=run",
}  # fmt: skip
CORES = len(os.sched_getaffinity(0))
MOST_LINES, COLUMNS = 40, 80  # a screen
# What the version of a library, the machine or the clock has in it, and where sentences are too long for a table.
CUT = r"(is not a record|baseline\.json: |by pytest-ddpscale 0.0.1|in use: process |with one of )(?:.*)"
# In `counts_text`: requirements that are not met, tests, and the run as a whole.
UNMET = r"(\d+)(?= of \d+ requirements? (?!passed|met)| tests? failed| failure: the run)"


def approve(site: Site, name: str, scenes: Mapping[str, tuple[Step, ...]]) -> None:
    """Play every scene in a site as it was at first, and have what it comes to approved."""
    printed = list[str]()
    for title, steps in scenes.items():
        site.reset()
        printed.append(f"\n# {title}")
        for step in steps:
            if isinstance(step, str):
                printed += told(site, step)
            else:
                step(site)
    text = masked("\n".join(printed), site.path).replace(str(TOMORROW), "TOMORROW")
    assert_approved(f"sessions-{name}.txt", text)


def told(site: Site, step: str) -> Iterator[str]:
    """A session that is started like this."""
    if "resume" in step:  # a second later, as times are whole seconds
        second = int(time.time())
        wait_until(lambda: int(time.time()) > second, 5.0, "the next second")
    words, before = split(step.replace("MORE", str(CORES + 1))), site.files()
    variables = [word for word in words if re.match("[A-Z_]+=", word)]
    with pytest.MonkeyPatch.context() as patch:
        for variable in variables:
            patch.setenv(*variable.split("=", 1))
        result = site.run(*(one for word in words[len(variables) :] for one in split(SHORT.get(word, "")) or [word]))
    assert_no_crash(result)
    if f"COLUMNS={COLUMNS}" in variables:
        wrapped = (max(1, -(-len(line) // COLUMNS)) for line in masked(result.stdout.str(), site.path).splitlines())
        assert sum(wrapped) <= MOST_LINES
    counts = re.findall(r"^(?:=+ )?(\d[\d/]* \w+.*?|no tests \w+.*?) in [\d.]+s", output_of(result), re.MULTILINE)
    yield f"$ {step}\n{result.ret}: {', '.join(counts)}"
    lines = [line for line in output_of(result).splitlines() if OURS.match(line)]
    headline = outcome_in(output_of(result))
    for line in filter(None, [headline, *(line for line in lines if line.strip() not in headline)]):
        cut = re.sub(CUT, r"\1 …", line)
        yield f"  {re.sub(r'[0-9]+', 'N', cut) if 'cores' in cut else cut}"
    if "--co " in step:
        yield from sorted(f"  {line.partition('::')[2]}" for line in result.outlines if "::" in line)
    if " -q " in step and "--co" not in step:
        yield f"  {len(result.outlines)} lines"
    after = site.files()
    for sign, names in {
        "made": after.keys() - before.keys(), "gone": before.keys() - after.keys(),
        "changed": {name for name in after.keys() & before.keys() if after[name] != before[name]},
    }.items():  # fmt: skip
        short = sorted({re.sub("(plots|acceptance)/.*", r"\1", name) for name in names})
        if short:
            yield f"  {sign}: {' '.join(short)}"
        for name in short if sign != "gone" else ():
            if "before-resume" not in name:
                yield from (f"    {name}: {line}" for line in content(result, site.path / name))


def content(result: pytest.RunResult, file: Path) -> Iterator[str]:
    """What a file holds, in a line or a few: what the terminal does not say, or says for itself."""
    text = file.read_text("utf-8") if file.suffix in (".json", ".jsonl", ".md") else ""
    if file.name == "verdicts.json":
        found: Any = parse_strict_json(text)
        first = found["verdicts"][0] if found["verdicts"] else {}
        low, high = first.get("interval") or (0, 0)
        yield f"{found['outcome']}, {len(found['verdicts'])} judged, {len(found['blockers'])} in the way"
        yield f"{first.get('id')}: {low:.4g} … {high:.4g}, confidence {first.get('confidence')}"
        if result.ret in (0, 1):
            assert_all_count_alike(result, file.parent, [one["name"] for one in found["blockers"]])
    elif file.name in ("pytest-report.json", "own.json"):
        report: Any = parse_strict_json(text)
        yield f"{report['summary']}, {report['environment']['outcome']}"
        yield from (
            f"{one['outcome']} {one.get('user_properties')} {one.get('metadata')}"
            for one in report.get("tests", ()) if one["nodeid"].endswith("::test_own")
        )  # fmt: skip
    elif file.name == "report.md":
        if outcome_in(output_of(result)) not in text:
            yield text.partition("\n")[0]
        shown = r"- Reservations|.*(not seen in|not rejected in)|\|.* of .* \| [≥≤].*\| (not asked|[≥≤])"
        yield from (line for line in text.splitlines() if re.match(shown, line))
    elif file.suffix == ".jsonl":
        lines = [json.loads(line) for line in text.splitlines() if "xxx" not in line]
        kinds = Counter(f"{line['kind']} {line.get('study', '')}" for line in lines)
        yield ", ".join(f"{number} {what}" for what, number in kinds.items())
    elif file.name == "run.json":
        record = json.loads(text)
        resumed = [(one["status_before"], one["measured_anew"]) for one in record.get("resumed", ())]
        yield f"{record['status']}, resumed {resumed}"
    elif file.suffix == ".sqlite":
        yield ", ".join(f"{one.host}: {[run.outcome for run in one.runs]}" for one in read_histories(file, None, None))


def assert_all_count_alike(result: pytest.RunResult, judged: Path, blockers: list[str]) -> None:
    """pytest, its JUnit XML and JSON report, our own and the words of the report count what is in the way."""
    counts = counts_text(read_judgement(judged / "verdicts.json"))
    assert f": {counts}." in (judged / "report.md").read_text("utf-8")
    found = {"in words": sum(map(int, re.findall(UNMET, counts)))}
    found |= {str(file): failures(file) for file in (judged / "junit.xml", Path("pytest.xml")) if file.exists()}
    if (judged / "pytest-report.json").exists():
        report: Any = parse_strict_json((judged / "pytest-report.json").read_text("utf-8"))
        assert report["exitcode"] == result.ret
        found["pytest-report.json"] = report["summary"].get("failed", 0) + report["summary"].get("error", 0)
    if "REHEARSED: " in output_of(result):
        found = {"junit.xml": failures(judged / "junit.xml")}
    else:
        assert result.ret == bool(blockers) or "could not be written" in output_of(result)
    assert found == dict.fromkeys(found, len(blockers)), counts


def failures(file: Path) -> int:
    """Test cases of a JUnit file that failed or broke."""
    root = ElementTree.parse(file).getroot()
    return len(root.findall(".//testcase/failure")) + len(root.findall(".//testcase/error"))
