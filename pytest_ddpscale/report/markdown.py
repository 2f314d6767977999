"""A judgement as Markdown for a ticket (GitHub's dialect). Import this only to render: it imports jinja2.

`finalize` escapes the template's expressions, so no name or message can change the document. Text that already is
Markdown is marked with `Markdown`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from urllib.parse import quote

import jinja2

from pytest_ddpscale.report import cause, coverage_text, digits, profile_text, text
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.report.next_steps import next_steps
from pytest_ddpscale.report.sentences import certainty_lines, interval_mark, not_tested_lines, ratio_lines
from pytest_ddpscale.report.unmet import counts_text, explained_text, waived_groups
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import OPERATOR, SITE, TICKET, WATERMARK, RunDevice, RunRecord, in_utc
from pytest_ddpscale.run.verdicts import Judgement, RunOutcome, Verdict

TEMPLATES = Path(__file__).parent / "templates"
# Most entries shown here; all are in report.html, culprits.csv or verdicts.json.
_MOST_CAUSES = 10
_MOST_CULPRITS = 8
_MOST_FAILURES = 50
_MOST_LOWERED = 64
_MOST_PROFILES = 16

_MEANINGS: dict[RunOutcome, str] = {
    "accepted": "Every requirement that can reject this machine was measured and met.",
    "accepted_with_waivers": "Every requirement that can reject this machine was measured, and met except those "
    "that are waived: see Waivers.",
    "rejected": "At least one requirement is not met: this machine is not fit to open.",
    "incomplete": "Fitness was not demonstrated; the machine is not accepted.",
    "partial": "Only some of the requirements were selected: this report says nothing about the others "
    "and does not accept the machine.",
}

# A closing bracket makes a link only before another bracket, and an underscore makes emphasis only at the edge of a
# word, so names such as metric_name[workload-8gpu] need no escapes.
_SPECIAL = re.compile(r"[\\`*|#~$]|\](?=[(\[])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


class Markdown(str):
    """Text that already is Markdown and is not escaped."""

    __slots__ = ()


def escape_markdown(content: object) -> str:
    """Text as one line, escaped so that it reads the same in a paragraph, a heading and a table cell."""
    if isinstance(content, Markdown):
        return str(content)
    line = text.one_line(str(content))
    # Entities first: a backslash does not stop HTML in every renderer.
    line = "".join(_ENTITIES.get(character, character) for character in line)
    return _SPECIAL.sub(lambda match: f"\\{match.group()}", line)


def code_block(content: str) -> Markdown:
    """One line of shell, fenced by more backticks than it holds in a row."""
    return _fenced("sh", [text.one_line(content)])


def listing(lines: Sequence[str]) -> Markdown:
    """Lines of output, as they are."""
    return _fenced("text", [text.one_line(line) for line in lines])


def _fenced(language: str, lines: Sequence[str]) -> Markdown:
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(longest + 1, 3)
    return Markdown("\n".join([f"{fence}{language}", *lines, fence]))


def link(path: str) -> Markdown:
    """A file of the run directory, by its name."""
    return Markdown(f"[{escape_markdown(Path(path).name)}]({quote(path)})")


def image(path: str) -> Markdown:
    """A picture, with words from its file name as the alternative text."""
    alternative = Path(path).stem.replace("-", " ").replace("_", " ")
    return Markdown(f"![{escape_markdown(alternative)}]({quote(path)})")


@cache
def _template() -> jinja2.Template:
    """The template, compiled once, because a process rewrites its report while it measures."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        # autoescape is for HTML; finalize escapes for Markdown.
        autoescape=False,  # noqa: S701
        finalize=escape_markdown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(point_text=digits.point_text, bound_text=digits.bound_text)
    environment.globals.update(
        digits=digits,
        text=text,
        absent=ABSENT,
        cause_of=_cause_of,
        certainty_lines=certainty_lines,
        code_block=code_block,
        explained_text=explained_text,
        image=image,
        interval_mark=interval_mark,
        link=link,
        listing=listing,
        mark=_mark,
        profile_text=profile_text,
        most_causes=_MOST_CAUSES,
        most_culprits=_MOST_CULPRITS,
        most_failures=_MOST_FAILURES,
        most_lowered=_MOST_LOWERED,
        next_steps=next_steps,
        sentence=_sentence,
        waived_groups=waived_groups,
        warning_text=cause.warning_text,
    )
    return environment.get_template("report.md.j2")


def render_markdown(
    judgement: Judgement, run: RunRecord, plots: Sequence[str] = (), evidence: Evidence | None = None
) -> str:
    """The report of a run.

    Args:
        judgement: the verdicts and their outcome.
        run: the content of run.json.
        plots: paths of the pictures, relative to the report.
        evidence: the run's evidence, for its profiles; None leaves them out.
    """
    rendered = _template().render(
        judgement=judgement,
        watermark=WATERMARK if judgement.simulated or run.is_simulated() else "",
        headline=cause.headline(judgement),
        causes=cause.causes(judgement),
        warnings=cause.warnings(judgement),
        meaning=_MEANINGS[judgement.outcome],
        summary=_summary(judgement, run),
        tested=coverage_text.summary(judgement.coverage) if judgement.coverage else [],
        not_tested=not_tested_lines(judgement),
        ratios=ratio_lines(judgement.verdicts),
        not_passed=sorted((one for one in judgement.verdicts if not one.passed), key=text.only_warns),
        errors=_errors(judgement)[:_MOST_CAUSES],
        facts=_facts(judgement, run),
        by_spread=[verdict for verdict in judgement.verdicts if text.spread_text(verdict)],
        run=run,
        plots=plots,
        profiles=evidence.profiles if evidence else (),
        traces=[one.trace for one in evidence.profiles if one.trace] if evidence else [],
        profile_parts=profile_text.part_rows(evidence.profiles)[:_MOST_PROFILES] if evidence else [],
        exposed=profile_text.exposed_rows(evidence)[:_MOST_PROFILES] if evidence else [],
        device_type=evidence.plan.device_type if evidence else "",
    )
    return re.sub(r"\n{3,}", "\n\n", rendered)


def _cause_of(verdict: Verdict, shown: Sequence[cause.Cause]) -> str:
    """Numbers of the shown causes that explain a verdict, with its reason where its value does not; or the reason."""
    numbers = [str(number) for number, one in enumerate(shown, 1) if verdict.id in one.explains]
    despite = text.despite_text(verdict)
    return f"{', '.join(numbers)}{': ' if despite else ''}{despite}" if numbers else text.reason_text(verdict)


def _errors(judgement: Judgement) -> list[Sequence[str]]:
    """The lines of each error that says more than fits into a headline, once for all requirements that it ended."""
    found = dict.fromkeys(tuple(text.details_of(one)) for one in judgement.verdicts)
    return [lines for lines in found if lines]


def _facts(judgement: Judgement, run: RunRecord) -> list[tuple[str, str]]:
    """Site, people and times of a run, and the hashes to check it by."""
    facts = [
        ("Site", run.noted.get(SITE, "")),
        ("Measured by", ", ".join(run.operators)),
        ("Ticket", run.noted.get(TICKET, "")),
        *run.further_notes.items(),
        ("Judged", _time(judgement.basis.get("judged_at"))),
        *([("Judged by", judgement.notes_of_judging[OPERATOR])] if OPERATOR in judgement.notes_of_judging else []),
        ("Measurements, SHA-256", judgement.basis.get("measurements_sha256", "")),
    ]
    if run.thresholds:
        facts += [("Thresholds", run.thresholds.path), ("Thresholds, SHA-256", run.thresholds.sha256)]
        for below in run.thresholds.extends:
            facts += [("Extends", below.path), ("Extends, SHA-256", below.sha256)]
    return facts


def _mark(verdict: Verdict) -> Markdown:
    """The verdict's word, in bold unless it passed."""
    word = text.verdict_word(verdict)
    if verdict.passed:
        return Markdown(word)
    suffix = " (only warns)" if text.only_warns(verdict) and word != "WARN" else ""
    return Markdown(f"**{word}**{suffix}")


def _sentence(content: str) -> str:
    """The text as one line that ends in a full stop."""
    line = text.one_line(content)
    return line if line.endswith((".", "!", "?")) else f"{line}."


def _summary(judgement: Judgement, run: RunRecord) -> str:
    """Machine, counts and time in one or two sentences."""
    machine = _devices(run)
    where = f" on {machine}" if machine else ""
    sentence = f"Judged for {judgement.sku}{where}: {counts_text(judgement)}."
    if run.is_imported:
        sentence += f" The measurements were imported from {run.source or 'elsewhere'}."
    elif run.is_simulated():
        sentence += " The measurements were simulated."
    elif run.status == "interrupted":
        sentence += " The run was interrupted."
    else:
        sentence += f" Measured {_time(run.started_at)}" + (
            f" to {_time(run.finished_at)}." if run.finished_at else "."
        )
    return sentence


def _time(stamp: str | None) -> str:
    """``2026-03-01T10:00:00+00:00`` as ``2026-03-01 10:00 UTC``."""
    return f"{in_utc(stamp):%Y-%m-%d %H:%M} UTC" if stamp else ""


def _devices(run: RunRecord) -> str:
    """``16 × NVIDIA B200 in 2 hosts``; empty if unknown."""
    counted = _counted([device for host in run.hosts for device in host.devices])
    in_hosts = text.count_text(len(run.hosts), "host")
    return f"{counted} in {in_hosts}" if counted else (in_hosts if run.hosts else "")


def _counted(devices: Sequence[RunDevice]) -> str:
    names = Counter(device.name or "device of unknown name" for device in devices)
    return ", ".join(f"{count} × {name}" for name, count in names.items())
