"""The report to be signed, as one HTML file. Import this only to render: it imports jinja2.

Text from outside is reduced to one line and escaped. The page runs only our own script.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from pytest_ddpscale.plan.metric_catalogue import (
    GENERATION_RATIO,
    METRICS,
    THROUGHPUT_PER_GPU,
    WEAK_SCALING_EFFICIENCY,
)
from pytest_ddpscale.report import cause, coverage_text, digits, profile_text, text
from pytest_ddpscale.report.breakdown import breakdown_of, headings
from pytest_ddpscale.report.coverage_text import software_line, software_versions
from pytest_ddpscale.report.live_progress import LIVE, REFRESH_S
from pytest_ddpscale.report.node_table import node_table
from pytest_ddpscale.report.scaling_table import scaling_tables
from pytest_ddpscale.report.sentences import (
    certainty_lines,
    chance_text,
    interval_mark,
    last_acceptance_lines,
    launch_sd_text,
    launches_sentence,
    not_tested_lines,
    ratio_lines,
)
from pytest_ddpscale.report.svg_figures import figures
from pytest_ddpscale.report.unmet import counts_text, explained_text
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import OPERATOR, WATERMARK, Resumed, RunRecord, in_utc
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import Judgement, Verdict
from pytest_ddpscale.util.listing import first_few

TEMPLATES = Path(__file__).parent / "templates"
_MOST_HOSTS = 64
_MOST_CULPRITS = 5  # of a requirement; culprits.csv lists all
_WORST_WORDS = ("FAIL", "ERROR", "NOT MEASURED", "INCONCLUSIVE", "WAIVED", "WARN", "PASS")
_ENDINGS = {"running": "killed"}  # how a session ended that left this status
_STARTUP_NAMES = {"import_s": "imports", "rendezvous_s": "rendezvous", "first_step_s": "first step"}


@dataclass(frozen=True)
class KeyNumber:
    """One of the four numbers on the first page: title, value, bound and verdict as texts."""

    title: str
    value: str
    bound: str
    word: str


@dataclass(frozen=True)
class TopologyOfHosts:
    """The `nvidia-smi topo -m` that some nodes share, and whether it differs from that of most nodes."""

    hosts: str
    matrix: Markup
    differs: bool


def render_html(judgement: Judgement, run: RunRecord, evidence: Evidence, *, goes_on: bool = False) -> str:
    """The page of a run. While the run goes on, it contains `LIVE` and browsers reload it every `REFRESH_S` seconds."""
    sources = _sources(judgement.verdicts)
    is_simulated = judgement.simulated or run.is_simulated()
    versions = software_versions(run, evidence.surveys.values())
    return page_template("report.html.j2").render(
        judgement=judgement,
        run=run,
        live=Markup(LIVE) if goes_on else "",  # noqa: S704 (ours)
        watermark=WATERMARK if is_simulated else "",
        headline=_headline_so_far(judgement) if goes_on else cause.headline(judgement),
        causes=_causes_so_far(judgement) if goes_on else cause.causes(judgement),
        warnings=cause.warnings(judgement),
        counts=counts_text(judgement),
        certainty=list(certainty_lines(judgement)),
        key_numbers=key_numbers(judgement),
        tested=coverage_text.summary(judgement.coverage) if judgement.coverage else [],
        not_tested=not_tested_lines(judgement),
        machine=_machine(run),
        hosts=first_few([host.host for host in run.hosts], 8),
        software=software_line(versions),
        versions=versions,
        when=_when(run, has_gpus=evidence.plan.device_type == "cuda"),
        resumed=[_resumed_text(one) for one in run.resumed],
        last_acceptance=last_acceptance_lines(judgement),
        nodes=node_table(judgement, run),
        verdicts=sorted(judgement.verdicts, key=_worst_first),
        ratios=ratio_lines(judgement.verdicts),
        sources=sources,
        headings=headings(evidence.plan),
        breakdown=breakdown_of(evidence),
        scaling=[] if goes_on else scaling_tables(evidence, judgement.verdicts),
        profiles=evidence.profiles,
        exposed=profile_text.exposed_rows(evidence),
        figures=figures(evidence, judgement, run),
        topologies=topologies(list(evidence.surveys.values())),
        command=shlex.join(run.argv),
        # An imported run was measured by another tool, so there is no command to repeat it.
        reruns=[text.rerun_command(run.command_again, one.id) for one in judgement.verdicts if not one.passed]
        if not run.is_imported
        else [],
        plan=evidence.plan,
        provisional=[one for one in judgement.verdicts if text.is_provisional(one)],
        launches=launches_sentence(judgement.verdicts),
        startup=_startup(run),
        not_signed=_why_nobody_signs(is_simulated=is_simulated, goes_on=goes_on),
        coverage_text=coverage_text,
    )


def _headline_so_far(judgement: Judgement) -> str:
    """``MEASURING: 3 of 29 requirements passed so far, 1 failed``; unmeasured requirements are not failures yet."""
    counted, failing = judgement.counted, _failed(judgement)
    passed, failed = sum(one.passed for one in counted), sum(one.id in failing for one in counted)
    said = f"{passed} of {text.count_text(len(counted), 'requirement')} passed so far"
    return f"MEASURING: {said}{f', {failed} failed' if failed else ''}"


def _causes_so_far(judgement: Judgement) -> list[cause.Cause]:
    return [one for one in cause.causes(judgement) if _failed(judgement) & one.explains]


def _failed(judgement: Judgement) -> set[str]:
    blocking = filter(judgement.is_blocked_by, judgement.verdicts)
    return {one.id for one in blocking if one.outcome in ("failed", "error")}


@cache
def page_template(name: str) -> jinja2.Template:
    """A template that makes text one line and escapes it, with our style and script."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_harmless,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = Markup((TEMPLATES / "report.js").read_text("utf-8"))  # noqa: S704 (ours)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals.update(
        digits=digits,
        text=text,
        metrics=METRICS,
        profile_text=profile_text,
        interval_mark=interval_mark,
        remarks=_remarks,
        explained_text=explained_text,
        warning_text=cause.warning_text,
        refresh_s=REFRESH_S,
        most_hosts=_MOST_HOSTS,
        script=script,
        script_digest=f"sha256-{digest}",
        style=Markup((TEMPLATES / "report.css").read_text("utf-8")),  # noqa: S704 (ours)
    )
    return environment.get_template(name)


def _harmless(content: object) -> object:
    """Text as one line without control characters; markup unchanged."""
    return text.one_line(content) if isinstance(content, str) and not isinstance(content, Markup) else content


def _remarks(verdict: Verdict, ratios: Mapping[str, Sequence[str]]) -> list[str]:
    """Its ratios, why it did not pass, or passed below its bound, its culprits, what it was compared with, launches."""
    said = [*ratios.get(verdict.id, ())]
    if not verdict.passed:
        said += [text.reason_text(verdict), *text.details_of(verdict)[1:], *_named(verdict)]
        said.append(chance_text(verdict))
        said.append(text.waiver_text(verdict) if verdict.is_waived else "")
        said.append("only warns" if text.only_warns(verdict) else "")
        said += [f"note: {note}" for note in verdict.notes]
    said.append(text.spread_text(verdict))
    said.append(text.compared_text(verdict.compared) if verdict.compared else "")
    said.append(launch_sd_text(verdict))
    return [one for one in said if one]


def _named(verdict: Verdict) -> Iterator[str]:
    """Who is at fault or suspected, with the evidence unless the reason already contains it."""
    reason = text.reason_text(verdict)
    for culprit in verdict.culprits[:_MOST_CULPRITS]:
        is_told = text.one_line(culprit.evidence) in reason
        who = (text.culprit_name if is_told else text.culprit_text)(culprit, full_uuid=True)
        yield f"{'at fault' if culprit.is_certain else 'suspected'}: {who}"
    if verdict.culprits[_MOST_CULPRITS:]:
        yield f"{len(verdict.culprits) - _MOST_CULPRITS} more: culprits.csv lists all"


def _worst_first(verdict: Verdict) -> int:
    return ("failed", "error", "undecided", "warned", "passed").index(
        "error" if verdict.outcome == "error" else text.verdict_style(verdict)
    )


def key_numbers(judgement: Judgement) -> list[KeyNumber]:
    """Key numbers of a run, each from the requirement nearest its bound, and the nodes that passed all checks.

    They are throughput, weak scaling at the largest world size, and the generation ratio.
    """
    found = []
    for metric in (THROUGHPUT_PER_GPU, WEAK_SCALING_EFFICIENCY, GENERATION_RATIO):
        of_metric = [one for one in judgement.verdicts if one.metric == metric.name]
        if metric is WEAK_SCALING_EFFICIENCY and of_metric:
            largest = max(one.world_size for one in of_metric)
            of_metric = [one for one in of_metric if one.world_size == largest]
        if of_metric:
            # A requirement that was not measured ranks below any value.
            worst = min(of_metric, key=lambda one: (one.value is not None, one.passed, one.margin or 0.0))
            name = f"{metric.title}, {text.short_name(worst)}"
            found.append(KeyNumber(name, digits.value_text(worst), digits.bound_text(worst), text.verdict_word(worst)))
        else:
            found.append(KeyNumber(metric.title, digits.ABSENT, "not asked", ""))
    return [*found, _nodes_that_passed(judgement)]


def _nodes_that_passed(judgement: Judgement) -> KeyNumber:
    title = "Nodes that passed all checks"
    checks = [one for one in judgement.verdicts if METRICS[one.metric].subject == "check"]
    shares = [one.value for one in checks]
    known = [share for share in shares if share is not None]
    if not checks:
        return KeyNumber(title, digits.ABSENT, "not asked", "")
    if len(known) < len(shares):
        return KeyNumber(title, digits.ABSENT, "100 %", "NOT MEASURED")
    missed = [one for one in checks if not one.passed]
    named = {culprit.host for one in missed for culprit in one.culprits if culprit.is_certain}
    count = judgement.coverage.node_count if judgement.coverage else 0
    # Suspected or unnamed nodes may add to the certain ones; then only the share is known.
    are_all_named = all(one.culprits and all(culprit.is_certain for culprit in one.culprits) for one in missed)
    value = f"{count - len(named)} of {count}" if count and are_all_named else f"≤ {min(known):.1%}"
    return KeyNumber(title, value, "all", min(map(text.verdict_word, checks), key=_WORST_WORDS.index))


def _machine(run: RunRecord) -> str:
    names = Counter(device.name or "device of unknown name" for host in run.hosts for device in host.devices)
    return ", ".join(f"{count} × {name}" for name, count in names.items())


def _when(run: RunRecord, *, has_gpus: bool) -> str:
    began = run.began
    if not run.finished_at:
        return f"{began:%Y-%m-%d %H:%M} UTC"
    ended = in_utc(run.finished_at)
    minutes, gpus = (ended - began).total_seconds() / 60, sum(len(host.devices) for host in run.hosts)
    took = f", {minutes:.1f} min" + (f", {minutes * gpus / 60:.1f} GPU-hours" if gpus and has_gpus else "")
    # A simulated or resumed run did not measure from its beginning to its end.
    is_one_measurement = not run.is_simulated() and not run.resumed
    return f"{began:%Y-%m-%d %H:%M} to {ended:%Y-%m-%d %H:%M} UTC{took if is_one_measurement else ''}"


def _resumed_text(resumed: Resumed) -> str:
    """``2026-03-01 11:00 UTC by Bob; the session before was interrupted; measured again: weak/resnet50``."""
    at = in_utc(resumed.at)
    who = f" by {resumed.noted[OPERATOR]}" if OPERATOR in resumed.noted else ""
    again = f"; measured again: {first_few(list(resumed.measured_anew))}" if resumed.measured_anew else ""
    before = _ENDINGS.get(resumed.status_before, resumed.status_before)
    return f"{at:%Y-%m-%d %H:%M} UTC{who}; the session before was {before}{again}"


def _why_nobody_signs(*, is_simulated: bool, goes_on: bool) -> str:
    """Why the page is not to be signed; empty if it is."""
    if is_simulated:
        return "Not to be signed: no machine was measured."
    return "To be signed once measuring is over." if goes_on else ""


def _startup(run: RunRecord) -> str:
    said = {name: getattr(run.startup, key, None) for key, name in _STARTUP_NAMES.items()}
    return ", ".join(f"{name} {second:.1f} s" for name, second in said.items() if second is not None)


def _sources(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Footnote number of each source of a bound."""
    texts = dict.fromkeys(text.one_line(one.source) for one in verdicts if one.source)
    return {source: number for number, source in enumerate(texts, 1)}


def topologies(surveys: Sequence[Survey]) -> list[TopologyOfHosts]:
    """How the nodes' GPUs are connected: each matrix once, the most common first."""
    hosts: dict[str, list[str]] = {}
    for survey in surveys:
        if survey.topology:
            hosts.setdefault(printable(survey.topology), []).append(survey.host)
    ordered = sorted(hosts.items(), key=lambda one: -len(one[1]))
    return [
        TopologyOfHosts(first_few(names, 8), escape(matrix), differs=n > 0)
        for n, (matrix, names) in enumerate(ordered[:10])
    ]


def printable(content: str) -> str:
    """Text without control characters, with its lines and columns kept."""
    lines = (line.expandtabs(8) for line in content.splitlines())
    return "\n".join("".join(one for one in line if one.isprintable()).rstrip() for line in lines)
