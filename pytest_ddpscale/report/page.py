"""What the report of a run says, in order: report.html and report.md are this document."""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_ddpscale.plan.metric_catalogue import GENERATION_RATIO, METRICS, THROUGHPUT_PER_GPU, WEAK_SCALING_EFFICIENCY
from pytest_ddpscale.report import causes as cause
from pytest_ddpscale.report import digits, machine
from pytest_ddpscale.report.causes import Cause, counts_text, explained_text
from pytest_ddpscale.report.next_steps import next_steps
from pytest_ddpscale.report.scaling import scaling_tables
from pytest_ddpscale.report.sentences import (
    NOT_COVERED,
    TOO_NARROW,
    interval_mark,
    not_tested_lines,
    uniform_loss_text,
)
from pytest_ddpscale.report.where_time_goes import breakdown, profile_blocks
from pytest_ddpscale.report.while_measuring import failed_so_far
from pytest_ddpscale.report.words.cause_kinds import CAUSES
from pytest_ddpscale.report.words.outcome import OUTCOMES, imported, notes, outcome_word, reservations
from pytest_ddpscale.report.words.verdicts import (
    VERDICTS,
    bound_in_words,
    check_text,
    is_provisional,
    only_warns,
    remarks,
    short_name,
    verdict_style,
    verdict_word,
    why_text,
)
from pytest_ddpscale.run.coverage import Coverage
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.records import GangRecord
from pytest_ddpscale.run.run_json import JUDGED_NOTE, OPERATOR, WATERMARK, Resumed, RunRecord, in_utc
from pytest_ddpscale.run.run_record import ranks_by_host
from pytest_ddpscale.run.verdicts import Judgement, Verdict
from pytest_ddpscale.util.document import (
    Block,
    Closed,
    Code,
    Headline,
    Items,
    Line,
    Link,
    Listing,
    Note,
    Picture,
    Section,
    Span,
    Table,
    Text,
    Word,
    bullets,
    fact_table,
    first_rows,
    holds,
)
from pytest_ddpscale.util.listing import count_text, first_few, first_nodes
from pytest_ddpscale.util.printable import shell_line

_FIRST_FIGURES = ("heat-map", "pair-matrix", "weak-efficiency", "weak-throughput")
_MOST_SHOWN = 3  # causes, warnings and untested parts at once
_MOST_CAUSES = 100
_MOST_LISTED = 50  # of what is short
_MOST_LOWERED, _MOST_IMPORTED = 64, 8
_STYLES = dict(VERDICTS.values())
_OPEN = ("not met", "waived")  # kinds of requirements
_WORST_FIRST = [*VERDICTS]
_TITLES = ("Requirement", "Verdict", "Value", "Limits", "Bound", "Margin", "Rounds")
_SCALING = "Time and cost are those of one epoch of ImageNet (1.28 million images); a gain is per doubling."
_LIMITS = "Limits hold with the confidence of each interval; a number in brackets beside a bound names its source."
_WAIVED = (
    "These requirements are not met; without a waiver they would reject the machine. The person named is responsible "
    "for each, up to and including the given day."
)
_PROVISIONAL = (
    "* A provisional bound is an expectation without a published figure for this SKU. It cannot accept a cluster on "
    "its own. Replace it by a figure measured on a machine that is known to be sound."
)


def title_of(judgement: Judgement, *, goes_on: bool = False) -> str:
    """``REJECTED: b200, run 2026-03-01-b200``, which stands below each printed page."""
    word = "REHEARSED" if judgement.rehearsed else outcome_word(judgement.outcome)
    run = Path(judgement.basis.get("measurements_path", "")).parent.name
    return f"{'MEASURING' if goes_on else word}: {judgement.sku}" + f", run {run}" * bool(run)


def report(
    judgement: Judgement, run: RunRecord, evidence: Evidence, pictures: Sequence[Picture] = (), *, goes_on: bool = False
) -> list[Block]:
    """The report of a run, whose run.json is as it was judged; or of one that goes on."""
    failed, causes = failed_so_far(judgement), cause.causes(judgement)
    causes = tuple(one for one in causes if failed & one.explains) if goes_on else causes
    first = [one for name in _FIRST_FIGURES for one in pictures if one.key == name]
    others = [one for one in pictures if one not in first]
    titles = " · ".join(one.title for one in others)
    scaling = [] if goes_on else scaling_tables(evidence, judgement.verdicts)
    profiled = [*profile_blocks(evidence.profiles, evidence.plan.device_type)]
    versions = machine.software_versions(run, evidence)
    software = Table(("Name", "Version or setting"), [*versions.items(), *sorted(evidence.environment.items())])
    sections = [
        Section("Where, and how it scales", first, "figures"),
        Section("Requirements", _requirements(judgement, causes), "requirements"),
        Section("Nodes", [*machine.machine_blocks(judgement, evidence)], "nodes"),
        Section("Reservations", [*_reservations(judgement)], "reservations"),
        Section("Telemetry", [
            Closed(titles, others, is_short=True),
            Closed("Step times of each arm", [breakdown(evidence)]),
            Closed("Scaling, as numbers", [
                Line(_SCALING if scaling else ""),
                *scaling,
            ]),
            Section("Profile", profiled, "profile"),
        ], "telemetry"),
        Section("Method and sources", [*_method(judgement)], "method"),
        Section("Record", [
            fact_table(digests(judgement, run)),
            Closed("Command", [Listing(shlex.join(run.argv))]),
            Closed("Hosts", [machine.hosts_table(evidence)]),
            Closed("Software and environment", [software]),
        ], "record"),
    ]  # fmt: skip
    links = [part for one in filter(holds, sections) for part in (" · ", Link(one.id.capitalize(), f"#{one.id}"))]
    contents = Line(["Contents: ", *links[1:]], "nav")
    front = [*_first(judgement, run, evidence, causes, versions, goes_on), contents]
    return [Section("", front, style="first"), *sections]


def _first(
    judgement: Judgement, run: RunRecord, evidence: Evidence, causes: Sequence[Cause], versions: dict[str, str],
    goes_on: bool,
) -> Iterator[Block]:  # fmt: skip
    """What a reader sees first: the answer, causes with what to do, numbers, facts, reservations, and who signs."""
    is_simulated = judgement.simulated or run.is_simulated()
    headline = _headline_so_far(judgement) if goes_on else cause.headline(judgement, run)
    style, means = OUTCOMES[judgement.outcome]
    reason = judgement.reason[:1].upper() + judgement.reason[1:]
    why = f"{reason}. " * (judgement.outcome == "incomplete" and judgement.reason not in headline)
    yield Line([Link("Skip to the requirements", "#requirements")], "skip")
    if is_simulated:
        watermark = Word(f"{WATERMARK}."), " This report judges a model of a machine; it accepts no machine."
        yield Line(watermark, "watermark")
    yield Headline(headline, style)
    yield Line(f"{'' if goes_on else means} {why}Judged for {judgement.sku}: {counts_text(judgement)}.")
    valued = _table(imported(judgement, run)[:_MOST_IMPORTED], {}, {})
    yield Section("What was imported, the nearest to its bound first", [valued])
    yield Section("Failures so far, by cause" if goes_on else "Causes, and what to do",
                  [*_causes(causes, judgement, run)])  # fmt: skip
    # Who has accepted, resumes or measured nothing needs no command that measures everything again.
    if not (judgement.accepts or judgement.unfinished or goes_on or is_simulated or run.is_imported):
        yield Line(["Measure everything again: ", Code(shell_line(run.command_again))], "step")
    yield bullets([cause.warning_text(one) for one in cause.warnings(judgement)], _MOST_SHOWN)
    numbers = [(*one[:4], Word(one[4], _STYLES.get(one[4], "undecided"))) for one in key_numbers(judgement)]
    yield Table(("", "Value", "Of", "Bound", "Verdict"), numbers)
    yield fact_table(facts(judgement, run, versions, evidence.gangs))
    told = [("Reservations", one) for one in (*judgement.notes_of("variable"), *reservations(judgement))]
    yield fact_table([*told, *(("Not tested", _with_code(one)) for one in not_tested_lines(judgement))], "lines")
    yield Closed("What a pass does not cover", [bullets(NOT_COVERED)], is_short=True)
    if is_simulated or goes_on:
        later = "To be signed once measuring is over."
        yield Line("Not to be signed: no machine was measured." if is_simulated else later)
        return
    waivers = " and waivers" * bool(judgement.waived)
    yield Line(["The signatures confirm that this report was read, including provisional bounds" + waivers,
                ", and that its outcome is ", Word(outcome_word(judgement.outcome)), "."])  # fmt: skip
    roles = [("Measured by", ", ".join(run.operators)), ("Checked by", judgement.basis.get(JUDGED_NOTE + OPERATOR, "")),
             ("Accepted by" if judgement.accepts else "Decided by", "")]  # fmt: skip
    yield bullets([f"{role} {name}".rstrip() + ", date, signature" for role, name in roles], style="signatures")


def _headline_so_far(judgement: Judgement) -> str:
    """``MEASURING: 3 of 29 requirements passed so far, 1 failed, 25 open``; unmeasured ones are not failures yet."""
    every, failed = len(judgement.verdicts), len(failed_so_far(judgement))
    passed = sum(one.passed for one in judgement.verdicts)
    said = f"{passed} of {count_text(every, 'requirement')} passed so far"
    return f"MEASURING: {said}, {failed} failed, {every - passed - failed} open"


def _causes(causes: Sequence[Cause], judgement: Judgement, run: RunRecord) -> Iterator[Block]:
    """The first at once, the others to be opened; a command that was told before is not repeated."""
    told, commands = list[list[Block]](), {""}
    for one in causes[:_MOST_CAUSES]:
        lines: list[Block] = [Line([Word(one.sentence), f"; explains {explained_text(one.explains, judgement)}"])]
        tag: list[Span] = [Word(one.category, "tag"), f" {one.id}: "]
        for step in next_steps(one, judgement, run):
            is_new = step.command not in commands
            if is_new or tag:
                command: list[Span] = [": ", Code(step.command)] if is_new else []
                lines.append(Line([*tag, f"{step.action[:1].upper()}{step.action[1:]}", *command], "step"))
            commands, tag = commands | {step.command}, []
        told.append(lines)
    if causes:
        yield Items(told[:_MOST_SHOWN], 1, "cause", "causes")
        paragraphs = [(name, _with_code(CAUSES[name].paragraph)) for name in dict.fromkeys(one.id for one in causes)]
        title = "What each id means, how sure it is, and what to do: ddpscale explain ID"
        yield Closed(title, [fact_table(paragraphs)])
    left = f"{len(causes) - _MOST_CAUSES} more: verdicts.json lists all." if causes[_MOST_CAUSES:] else ""
    more = Items(told[_MOST_SHOWN:], _MOST_SHOWN + 1, "cause", "causes")
    yield Closed(count_text(len(causes) - _MOST_SHOWN, "more cause"), [more, Line(left)], is_short=True)


def _with_code(said: str) -> list[Span]:
    """A sentence whose commands and names stand between backticks."""
    return [Code(part) if at % 2 else part for at, part in enumerate(said.split("`")) if part]


def key_numbers(judgement: Judgement) -> list[tuple[str, str, str, str, str]]:
    """Nodes at fault; then throughput, weak scaling and the generation ratio.

    These are each from the worst requirement, first of those that keep the machine from being accepted: title, value,
    what it is a number of, bound and verdict.
    """
    found = [_nodes_at_fault(judgement)]
    for metric in (THROUGHPUT_PER_GPU, WEAK_SCALING_EFFICIENCY, GENERATION_RATIO):
        of_metric = [one for one in judgement.verdicts if one.metric == metric.name]
        not_asked = (metric.title, digits.ABSENT, "", "not asked", "")
        found.append(_worst_of(of_metric, judgement) if of_metric else not_asked)
    return found


def _worst_of(verdicts: Sequence[Verdict], judgement: Judgement) -> tuple[str, str, str, str, str]:
    def how_good(one: Verdict) -> tuple[bool, int, float]:
        return not judgement.is_blocked_by(one), _WORST_FIRST.index(one.outcome), one.margin or 0.0

    worst = min(verdicts, key=how_good)
    value, limits = digits.point_text(worst), digits.limits_text(worst)
    subject = short_name(worst) + (f", {limits}" if limits != digits.ABSENT else "")
    if worst.metric == THROUGHPUT_PER_GPU.name and worst.published and worst.value is not None:
        subject = f"{value}, {subject}"
        value = f"{digits.number_text(worst.value / worst.published, 'fraction')} of published"
    return METRICS[worst.metric].title, value, subject, bound_in_words(worst), verdict_word(worst)


def _nodes_at_fault(judgement: Judgement) -> tuple[str, str, str, str, str]:
    """Nodes that a failure certainly names, of all; it passes only if the machine is accepted and all were tested."""
    coverage, verdicts = judgement.coverage or Coverage(), judgement.verdicts
    blocking = [one for one in verdicts if judgement.is_blocked_by(one)]
    kinds = [("FAIL", blocking)]
    if judgement.accepts:
        kinds += [("WAIVED", judgement.waived), ("WARN", [*filter(only_warns, verdicts)])]
    is_whole = coverage.node_count and all(node.tested_by for node in coverage.nodes) and not coverage.unnamed_nodes
    found = [(word, hosts) for word, some in kinds if (hosts := _hosts(some))]
    word, named = found[0] if found else ("PASS" if judgement.accepts and is_whole else "INCONCLUSIVE", set[str]())
    suspected = set[str]() if named else _hosts(blocking, is_certain=False)
    why = f"{len(suspected)} suspected: " * bool(suspected) + first_nodes(suspected or named)
    of_all = f" of {coverage.node_count}" if coverage.node_count else ""
    return "Nodes at fault", f"{len(named)}{of_all}", why, "0", word


def _hosts(verdicts: Iterable[Verdict], *, is_certain: bool = True) -> set[str]:
    return {one.host for verdict in verdicts for one in verdict.accused if one.is_certain == is_certain}


def facts(
    judgement: Judgement, run: RunRecord, versions: dict[str, str], gangs: Collection[GangRecord]
) -> list[tuple[str, str]]:
    """What was tested, where, when and by whom, by name."""
    ranks = ranks_by_host(gangs)
    names = Counter(one.device_name or "device of unknown name" for host in ranks.values() for one in host)
    devices = ", ".join(f"{count} × {name}" for name, count in names.items())
    found = [
        ("Tested as", f"{judgement.sku}{f': {devices}' if devices else ''}"),
        ("Nodes", f"{len(ranks)}: {first_nodes(ranks, 4)}" if ranks else ""),
        ("Tested", machine.tested_text(judgement.coverage) if judgement.coverage else ""),
        ("Software", machine.software_line(versions)),
        ("When", _when(run, judgement)),
        *(("Resumed", _resumed_text(one)) for one in run.resumed),
        *((name.capitalize(), said) for name, said in run.noted.items() if name != OPERATOR),
    ]
    return [(name, said) for name, said in found if said]


def _when(run: RunRecord, judgement: Judgement) -> str:
    began = f"{run.began:%Y-%m-%d %H:%M}"
    if not run.finished_at:
        return f"{began} UTC, {run.status}" + f" from {run.source}" * bool(run.source)
    more = [machine.took_text(run, judgement.coverage), "" if run.status == "finished" else run.status]
    return ", ".join([f"{began} to {in_utc(run.finished_at):%Y-%m-%d %H:%M} UTC", *filter(None, more)])


def _resumed_text(resumed: Resumed) -> str:
    """``2026-03-01 11:00 UTC by Bob; the session before was interrupted; measured again: weak/resnet50``."""
    at = in_utc(resumed.at)
    who = f" by {resumed.noted[OPERATOR]}" if OPERATOR in resumed.noted else ""
    again = f"; measured again: {first_few(list(resumed.measured_anew))}" if resumed.measured_anew else ""
    before = resumed.status_before.replace("running", "killed")
    return f"{at:%Y-%m-%d %H:%M} UTC{who}; the session before was {before}{again}"


def _requirements(judgement: Judgement, causes: Sequence[Cause]) -> list[Block]:
    """What keeps the machine from being accepted and what is waived; then, closed, what only warns and what passed."""
    found = sorted(judgement.verdicts, key=lambda one: _WORST_FIRST.index(one.outcome))
    kinds: dict[str, list[Verdict]] = {"not met": [], "waived": [], "not met, only warnings": [], "passed": []}
    for one in found:
        kept = "waived" if one.is_waived else "passed" if one.passed else "not met, only warnings"
        kinds["not met" if judgement.is_blocked_by(one) else kept].append(one)
    numbers = _sources(judgement.verdicts)
    of_cause = {name: number for number, one in reversed([*enumerate(causes, 1)]) for name in one.explains}
    legends = (
        _LIMITS, _WAIVED * bool(judgement.waived), _PROVISIONAL * any(map(is_provisional, found)),
        f"{TOO_NARROW}." * any(map(interval_mark, found)),
    )  # fmt: skip
    return [
        *(
            Closed(f"{len(some)} {kind}", [_table(some, numbers, of_cause)], kind in _OPEN, judgement.accepts)
            for kind, some in kinds.items()
        ),
        Line("" if found else "No requirement was judged."),
        *(Line(one, "legend") for one in legends),
    ]


def _sources(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Number of each source of a bound."""
    return {one: number for number, one in enumerate(dict.fromkeys(one.source for one in verdicts if one.source), 1)}


def _table(verdicts: Sequence[Verdict], numbers: Mapping[str, int], of_cause: Mapping[str, int]) -> Table:
    """Requirements with one cause and reason stand together, and the reason once below them."""
    groups: dict[object, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        accused = frozenset((one.identity, one.is_certain) for one in verdict.accused)
        reason = re.sub(r"\d+\.\d+", "", why_text(verdict))  # without measured values, which stand in the rows
        groups[verdict.outcome, of_cause.get(verdict.id), reason or verdict.metric, accused].append(verdict)
    rows, below = list[list[Text]](), {}
    for group in groups.values():
        rows += [_cells(one, numbers) for one in group]
        below[len(rows)] = _note(group, of_cause)
    return Table(_TITLES, rows, names=2, below=below, style="requirements")


def _cells(verdict: Verdict, numbers: Mapping[str, int]) -> list[Text]:
    bound, number = digits.bound_text(verdict) + "*" * is_provisional(verdict), numbers.get(verdict.source)
    return [
        f"{METRICS[verdict.metric].title}: {short_name(verdict)}",
        Word(verdict_word(verdict), verdict_style(verdict)),
        digits.point_text(verdict),
        digits.limits_text(verdict) + interval_mark(verdict),
        [bound, " ", Link(f"[{number}]", f"#source-{number}")] if number else bound,
        digits.margin_text(verdict),
        digits.ABSENT if METRICS[verdict.metric].subject == "check" else str(verdict.rounds),
    ]


def _note(group: Sequence[Verdict], of_cause: Mapping[str, int]) -> Note:
    """The reason of all, and what else is known of all or of some."""
    told, number = why_text(group[0]), of_cause.get(group[0].id)
    names = defaultdict[str, list[str]](list)
    for one in group:
        for said in dict.fromkeys([why_text(one), *remarks(one, in_full=True)]):
            names[said].append(short_name(one))
    del names[told]
    lines = [f"{first_few(of)}: {said}" if group[len(of) :] else said for said, of in names.items()]
    return Note([[Link(f"Cause {number}", f"#cause-{number}"), f": {told}"] if number else told], lines)


def _reservations(judgement: Judgement) -> Iterator[Block]:
    lowered = [(one.requirement, *digits.lowered_bounds(one)) for one in judgement.lowered]
    titles = ("Requirement", "Before", "Here")
    yield first_rows(Table(titles, lowered, "Bounds that the site lowered", 1), _MOST_LOWERED)
    yield Section("Changed by the site", [bullets(judgement.altered)])


def _method(judgement: Judgement) -> Iterator[Block]:
    told = notes(judgement)
    yield Line(uniform_loss_text(judgement))
    yield Closed(count_text(len(told), "note"), [bullets(told, _MOST_LISTED)], is_short=True)
    metrics = dict.fromkeys(one.metric for one in judgement.verdicts)
    checks = [(short_name(one), check_text(one)) for one in judgement.verdicts]
    meanings = [(METRICS[name].title, METRICS[name].meaning) for name in metrics]
    yield Closed("What was required", [fact_table([*meanings, *(one for one in checks if one[1])])])
    sources = [[Line(source)] for source in _sources(judgement.verdicts)]
    yield Closed("Sources of the bounds", [Items(sources, 1, "source")])


def digests(judgement: Judgement, run: RunRecord) -> list[tuple[str, str]]:
    """What the verdicts rest on, with hashes to check it by."""
    basis, used = judgement.basis, run.thresholds
    judged = f"{in_utc(basis['judged_at']):%Y-%m-%d %H:%M} UTC" if "judged_at" in basis else digits.ABSENT
    files = [("Thresholds", used), *(("Extends", one) for one in used.extends)] if used else []
    return [
        ("Judged", judged), ("Measurements, SHA-256", basis.get("measurements_sha256", digits.ABSENT)),
        *((name, f"{one.path}, SHA-256 {one.sha256}") for name, one in files),
    ]  # fmt: skip
