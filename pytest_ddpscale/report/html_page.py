"""The report to be signed, as one HTML file. Import this only to render: it imports jinja2.

Text from outside is reduced to one line and escaped. The page runs only our own script.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report import cause, digits, first_page, page_tables, profile_text, text
from pytest_ddpscale.report.breakdown import breakdown
from pytest_ddpscale.report.charts import Picture
from pytest_ddpscale.report.figures import figures
from pytest_ddpscale.report.live_progress import LIVE, REFRESH_S, failed_so_far
from pytest_ddpscale.report.node_table import node_table
from pytest_ddpscale.report.requirement_groups import PROVISIONAL, requirement_parts, sources
from pytest_ddpscale.report.scaling import scaling_tables
from pytest_ddpscale.report.sentences import launches_sentence
from pytest_ddpscale.report.unmet import explained_text
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.util import tables
from pytest_ddpscale.util.listing import first_few

TEMPLATES = Path(__file__).parent / "templates"
_FIRST_FIGURES = ("heat-map", "pair-matrix", "weak-efficiency", "weak-throughput")
_MOST_CAUSES, _MOST_NOT_TESTED = 3, 3  # shown at once


def render_html(
    judgement: Judgement, run: RunRecord, evidence: Evidence, drawn: Sequence[Picture] | None = None, *,
    goes_on: bool = False,
) -> str:  # fmt: skip
    """The page of a run, whose run.json is as it was judged, with figures that are `drawn` already or drawn now.

    While the run goes on, it contains `LIVE` and browsers reload it every `REFRESH_S` seconds.
    """
    failed, causes = failed_so_far(judgement), cause.causes(judgement)
    causes = tuple(one for one in causes if failed & one.explains) if goes_on else causes
    shown = figures(evidence, judgement, run) if drawn is None else drawn
    by_id = {one.key: one for one in shown}
    told = first_page.shared(judgement, run, evidence, causes, goes_on=goes_on)
    return page_template("report.html.j2").render(
        **told,
        plan=evidence.plan,
        live=Markup(LIVE) if goes_on else "",  # noqa: S704 (ours)
        contents=_contents(judgement, has_figures=bool(shown)),
        headline=_headline_so_far(judgement) if goes_on else cause.headline(judgement),
        first_figures=[by_id[name] for name in _FIRST_FIGURES if name in by_id],
        other_figures=[one for one in shown if one.key not in _FIRST_FIGURES],
        parts=requirement_parts(judgement, causes),
        provisional=[one for one in judgement.verdicts if text.is_provisional(one)],
        sources=sources(judgement.verdicts),
        launches=launches_sentence(judgement.verdicts),
        nodes=page_tables.nodes_table(node_table(judgement, evidence.hosts)),
        coverage=[*page_tables.coverage_tables(judgement.coverage)] if judgement.coverage else [],
        topologies=topologies(evidence.surveys.values()),
        waivers=[f"{text.subject_text(one)}: {text.waiver_text(one)}" for one in judgement.waived],
        lowered=page_tables.lowered_table(judgement) if judgement.lowered else "",
        breakdown=breakdown(evidence),
        scaling=[] if goes_on else scaling_tables(evidence, judgement.verdicts),
        meanings=_meanings(judgement),
        command=shlex.join(run.argv),
        hosts=page_tables.hosts_table(evidence),
        software=page_tables.software_table(evidence, told["versions"]),
    )


def _contents(judgement: Judgement, *, has_figures: bool) -> list[str]:
    """Titles of the sections after the first; ids are the same in lower case."""
    provisional = any(map(text.is_provisional, judgement.verdicts))
    qualified = judgement.waived or judgement.lowered or judgement.altered or provisional
    of_figures, of_reservations = ["Figures"] * has_figures, ["Reservations"] * bool(qualified)
    return [*of_figures, "Requirements", "Nodes", *of_reservations, "Telemetry", "Method", "Record"]


def _meanings(judgement: Judgement) -> list[tuple[str, str]]:
    """What each metric, and each check of a node, requires."""
    metrics = dict.fromkeys(one.metric for one in judgement.verdicts)
    checks = [(text.short_name(one), text.check_text(one)) for one in judgement.verdicts]
    return [*((METRICS[name].title, METRICS[name].meaning) for name in metrics), *(one for one in checks if one[1])]


def _headline_so_far(judgement: Judgement) -> str:
    """``MEASURING: 3 of 29 requirements passed so far, 1 failed``; unmeasured requirements are not failures yet."""
    verdicts, failing = judgement.verdicts, failed_so_far(judgement)
    passed, failed = sum(one.passed for one in verdicts), sum(one.id in failing for one in verdicts)
    said = f"{passed} of {text.count_text(len(verdicts), 'requirement')} passed so far"
    return f"MEASURING: {said}{f', {failed} failed' if failed else ''}"


@cache
def page_template(name: str) -> jinja2.Template:
    """A template that makes text one line and escapes it, with our style and script."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, finalize=_harmless,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    script = Markup((TEMPLATES / "report.js").read_text("utf-8"))  # noqa: S704 (ours)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals.update(
        digits=digits, text=text, tables=tables, profile_text=profile_text,
        explained_text=explained_text, provisional_mark=PROVISIONAL,
        most_causes=_MOST_CAUSES, most_not_tested=_MOST_NOT_TESTED, refresh_s=REFRESH_S,
        script=script, script_digest=f"sha256-{digest}",
        style=Markup((TEMPLATES / "report.css").read_text("utf-8")),  # noqa: S704 (ours)
    )  # fmt: skip
    return environment.get_template(name)


def _harmless(content: object) -> object:
    """Text as one line without control characters; markup unchanged."""
    return text.one_line(content) if isinstance(content, str) and not isinstance(content, Markup) else content


def topologies(surveys: Iterable[Survey]) -> list[tuple[str, Markup]]:
    """Hosts that share an `nvidia-smi topo -m`, and that, escaped; the most common first."""
    hosts: dict[str, list[str]] = {}
    for survey in surveys:
        if survey.topology:
            hosts.setdefault(printable(survey.topology), []).append(survey.host)
    ordered = sorted(hosts.items(), key=lambda one: -len(one[1]))
    return [(first_few(names, 8), escape(matrix)) for matrix, names in ordered[:10]]


def printable(content: str) -> str:
    """Text without control characters, with its lines and columns kept."""
    lines = (line.expandtabs(8) for line in content.splitlines())
    return "\n".join("".join(one for one in line if one.isprintable()).rstrip() for line in lines)
