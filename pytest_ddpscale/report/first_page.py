"""What a reader sees first, the same in report.html and report.md: numbers, facts, reservations, and who signs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_ddpscale.plan.metric_catalogue import GENERATION_RATIO, THROUGHPUT_PER_GPU, WEAK_SCALING_EFFICIENCY, Metric
from pytest_ddpscale.report import coverage_text, digits, text
from pytest_ddpscale.report.cause import Cause, warning_text, warnings
from pytest_ddpscale.report.coverage_text import software_line
from pytest_ddpscale.report.next_steps import next_steps
from pytest_ddpscale.report.sentences import NOT_COVERED, not_tested_lines, uniform_loss_text
from pytest_ddpscale.report.text import Style
from pytest_ddpscale.report.unmet import counts_text
from pytest_ddpscale.run.coverage import Coverage
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.records import GangRecord
from pytest_ddpscale.run.run_json import JUDGED_NOTE, OPERATOR, SITE, TICKET, WATERMARK, Resumed, RunRecord, in_utc
from pytest_ddpscale.run.run_record import ranks_by_host
from pytest_ddpscale.run.verdicts import Judgement, NextStep, Verdict
from pytest_ddpscale.util.listing import by_number, first_few

_ENDINGS = {"running": "killed"}  # how a session ended that left this status
_STYLES: dict[str, Style] = {
    "PASS": "passed", "FAIL": "failed", "ERROR": "failed", "WARN": "warned", "WAIVED": "warned",
}  # fmt: skip


class KeyNumber(NamedTuple):
    """One of the four numbers, as texts: title, value, what it is a number of, bound and verdict."""

    title: str
    value: str
    subject: str
    bound: str
    word: str = ""

    @property
    def style(self) -> Style:
        """Style of the verdict."""
        return _STYLES.get(self.word, "undecided")


def shared(
    judgement: Judgement, run: RunRecord, evidence: Evidence | None, causes: Sequence[Cause], *, goes_on: bool = False
) -> dict[str, Any]:
    """What the templates of both reports show, by the names they use; surveys and profiles only with evidence."""
    is_simulated = judgement.simulated or run.is_simulated()
    versions = coverage_text.software_versions(run, evidence)
    # Who has accepted, resumes or measured nothing needs no command that measures everything again.
    needs_none = judgement.accepts or judgement.unfinished or goes_on or is_simulated or run.is_imported
    not_signed = "To be signed once measuring is over." if goes_on else ""
    return {
        "judgement": judgement,
        "run": run,
        "versions": versions,
        "watermark": WATERMARK if is_simulated else "",
        "judged": f"Judged for {judgement.sku}: {counts_text(judgement)}.",
        "causes": told_causes(causes, judgement, run),
        "again": "" if needs_none else shlex.join(map(text.one_line, run.command_again)),
        "warnings": [warning_text(one) for one in warnings(judgement)],
        "key_numbers": key_numbers(judgement),
        "facts": facts(judgement, run, versions, evidence.gangs if evidence else ()),
        "reservations": [*reservations(judgement)],
        "not_tested": not_tested_lines(judgement),
        "not_covered": [*NOT_COVERED],
        "signatures": [
            ("Measured by", ", ".join(run.operators)),
            ("Checked by", judgement.basis.get(JUDGED_NOTE + OPERATOR, "")),
            ("Accepted by" if judgement.accepts else "Decided by", ""),
        ],
        "not_signed": "Not to be signed: no machine was measured." if is_simulated else not_signed,
        "certainty": [*filter(None, [uniform_loss_text(judgement)])],
        "profiles": evidence.profiles if evidence else [],
        "digests": digests(judgement, run),
    }


def told_causes(found: Sequence[Cause], judgement: Judgement, run: RunRecord) -> list[tuple[Cause, list[NextStep]]]:
    """Causes with what to do about them; a command that was told before is not repeated."""
    told, commands = [], {""}
    for one in found:
        first, *others = next_steps(one, judgement, run)
        known = replace(first, command="") if first.command in commands else first
        told.append((one, [known, *(step for step in others if step.command not in commands)]))
        commands.update(step.command for step in (first, *others))
    return told


def key_numbers(judgement: Judgement) -> list[KeyNumber]:
    """Nodes at fault; then throughput, weak scaling at the largest world size, and the generation ratio.

    These are each from the requirement nearest its bound, first of those that keep the machine from being accepted.
    """
    found = [_nodes_at_fault(judgement)]
    for metric in (THROUGHPUT_PER_GPU, WEAK_SCALING_EFFICIENCY, GENERATION_RATIO):
        of_metric = [one for one in judgement.verdicts if one.metric == metric.name]
        if metric is WEAK_SCALING_EFFICIENCY and of_metric:
            largest = max(one.world_size for one in of_metric)
            of_metric = [one for one in of_metric if one.world_size == largest]
        not_asked = KeyNumber(metric.title, digits.ABSENT, "", "not asked")
        found.append(_worst_of(metric, of_metric, judgement) if of_metric else not_asked)
    return found


def _worst_of(metric: Metric, verdicts: Sequence[Verdict], judgement: Judgement) -> KeyNumber:
    # A requirement that was not measured ranks below any value.
    worst = min(
        verdicts,
        key=lambda one: (not judgement.is_blocked_by(one), one.value is not None, one.passed, one.margin or 0.0),
    )
    value, limits = digits.point_text(worst), digits.limits_text(worst)
    subject = text.short_name(worst) + (f", {limits}" if limits != digits.ABSENT else "")
    if metric is THROUGHPUT_PER_GPU and worst.published and worst.value is not None:
        subject = f"{value}, {subject}"
        value = f"{digits.number_text(worst.value / worst.published, 'fraction')} of published"
    provisional = ", provisional" if text.is_provisional(worst) else ""
    return KeyNumber(metric.title, value, subject, digits.bound_text(worst) + provisional, text.verdict_word(worst))


def _nodes_at_fault(judgement: Judgement) -> KeyNumber:
    """Nodes that a failure certainly names, of all; it passes only if nothing blocks acceptance and all were tested."""
    title, coverage = "Nodes at fault", judgement.coverage or Coverage()
    blocking = [one for one in judgement.verdicts if judgement.is_blocked_by(one)]
    warned = [one for one in judgement.verdicts if text.only_warns(one)]
    failing, suspected = _hosts(blocking), _hosts(blocking, is_certain=False)
    named, untested = failing, sum(not node.tested_by for node in coverage.nodes) + coverage.unnamed_nodes
    if failing:
        word, why = "FAIL", ""
    elif suspected:
        word, why = "INCONCLUSIVE", f"{len(suspected)} suspected: {_first(suspected)}"
    elif not coverage.node_count:
        return KeyNumber(title, digits.ABSENT, "nodes are not known", "0", "NOT MEASURED")
    elif untested:
        word, why = "NOT MEASURED", f"{text.count_text(untested, 'node')} not tested"
    elif blocking or judgement.outcome == "rejected":
        word, why = "INCONCLUSIVE", "no failure names a node"
    else:
        named = _hosts(judgement.waived) or _hosts(warned)
        word, why = ("WAIVED" if _hosts(judgement.waived) else "WARN") if named else "PASS", ""
    of_all = f" of {coverage.node_count}" if coverage.node_count else ""
    return KeyNumber(title, f"{len(named)}{of_all}", why or _first(named), "0", word)


def _first(hosts: Iterable[str]) -> str:
    return first_few(sorted(hosts, key=by_number), 3)


def _hosts(verdicts: Iterable[Verdict], *, is_certain: bool = True) -> set[str]:
    return {one.host for verdict in verdicts for one in verdict.culprits if one.is_certain == is_certain}


def facts(
    judgement: Judgement, run: RunRecord, versions: dict[str, str], gangs: Collection[GangRecord]
) -> list[tuple[str, str]]:
    """What was tested, where, when and by whom, by name."""
    ranks = ranks_by_host(gangs)
    names = Counter(one.device_name or "device of unknown name" for host in ranks.values() for one in host)
    devices = ", ".join(f"{count} × {name}" for name, count in names.items())
    hosts = sorted(ranks, key=by_number)
    nodes = f"{len(hosts)}: {first_few(hosts, 4)}" if hosts else ""
    found = [
        ("Tested as", f"{judgement.sku}{f': {devices}' if devices else ''}"),
        ("Nodes", nodes),
        ("Coverage", " ".join(coverage_text.summary(judgement.coverage)) if judgement.coverage else ""),
        ("Software", software_line(versions)),
        ("When", _when(run, judgement)),
        *(("Resumed", _resumed_text(one)) for one in run.resumed),
    ]
    people = [
        ("Site", run.noted.get(SITE) or digits.ABSENT),
        ("By", ", ".join(run.operators) or digits.ABSENT),
        ("Judged by", judgement.basis.get(JUDGED_NOTE + OPERATOR, "")),
        ("Ticket", run.noted.get(TICKET) or digits.ABSENT),
        *run.further_notes.items(),
    ]
    return [(name, said) for name, said in (*found, *people) if said]


def digests(judgement: Judgement, run: RunRecord) -> list[tuple[str, str]]:
    """What the verdicts rest on, with hashes to check it by."""
    judged = judgement.basis.get("judged_at")
    found = [
        ("Judged", f"{in_utc(judged):%Y-%m-%d %H:%M} UTC" if judged else ""),
        ("Measurements, SHA-256", judgement.basis.get("measurements_sha256", "")),
    ]
    if run.thresholds:
        found += [("Thresholds", run.thresholds.path), ("Thresholds, SHA-256", run.thresholds.sha256)]
        for below in run.thresholds.extends:
            found += [("Extends", below.path), ("Extends, SHA-256", below.sha256)]
    return [(name, said or digits.ABSENT) for name, said in found]


def reservations(judgement: Judgement) -> Iterator[str]:
    """What qualifies the verdict: environment variables, waivers, what the site changed, provisional bounds, and what
    was not selected.
    """
    yield from judgement.notes_of("variable")
    for one in judgement.waived:
        yield f"{one.id}: {text.waiver_text(one)}"
    yield from text.changes_by_site(judgement)
    provisional = sum(map(text.is_provisional, judgement.verdicts))
    if provisional:
        bounds = text.count_text(len(judgement.verdicts), "bound")
        yield f"{provisional} of {bounds} provisional: no figure is published for this SKU"
    if judgement.not_selected:
        yield f"{text.count_text(judgement.not_selected, 'requirement')} not selected"


def _when(run: RunRecord, judgement: Judgement) -> str:
    began = run.began
    if run.is_imported:
        return f"{began:%Y-%m-%d %H:%M} UTC, imported from {run.source or 'elsewhere'}"
    if not run.finished_at:
        return f"{began:%Y-%m-%d %H:%M} UTC, {run.status}"
    more = [coverage_text.took_text(run, judgement.coverage), "" if run.status == "finished" else run.status]
    return ", ".join([f"{began:%Y-%m-%d %H:%M} to {in_utc(run.finished_at):%Y-%m-%d %H:%M} UTC", *filter(None, more)])


def _resumed_text(resumed: Resumed) -> str:
    """``2026-03-01 11:00 UTC by Bob; the session before was interrupted; measured again: weak/resnet50``."""
    at = in_utc(resumed.at)
    who = f" by {resumed.noted[OPERATOR]}" if OPERATOR in resumed.noted else ""
    again = f"; measured again: {first_few(list(resumed.measured_anew))}" if resumed.measured_anew else ""
    before = _ENDINGS.get(resumed.status_before, resumed.status_before)
    return f"{at:%Y-%m-%d %H:%M} UTC{who}; the session before was {before}{again}"
