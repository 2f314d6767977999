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
    causes = tuple(cause for cause in causes if failed & cause.explains) if goes_on else causes
    first = [picture for name in _FIRST_FIGURES for picture in pictures if picture.key == name]
    others = [picture for picture in pictures if picture not in first]
    titles = " · ".join(picture.title for picture in others)
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
    links = [
        part for section in filter(holds, sections) for part in (" · ", Link(section.id.capitalize(), f"#{section.id}"))
    ]
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
    yield bullets([cause.warning_text(warning) for warning in cause.warnings(judgement)], _MOST_SHOWN)
    numbers = [(*number[:4], Word(number[4], _STYLES.get(number[4], "undecided"))) for number in key_numbers(judgement)]
    yield Table(("", "Value", "Of", "Bound", "Verdict"), numbers)
    yield fact_table(facts(judgement, run, versions, evidence.gangs))
    reserved = [("Reservations", line) for line in (*judgement.notes_of("variable"), *reservations(judgement))]
    yield fact_table([*reserved, *(("Not tested", _with_code(line)) for line in not_tested_lines(judgement))], "lines")
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
    total, failed = len(judgement.verdicts), len(failed_so_far(judgement))
    passed = sum(verdict.passed for verdict in judgement.verdicts)
    counts = f"{passed} of {count_text(total, 'requirement')} passed so far"
    return f"MEASURING: {counts}, {failed} failed, {total - passed - failed} open"


def _causes(causes: Sequence[Cause], judgement: Judgement, run: RunRecord) -> Iterator[Block]:
    """The first at once, the others to be opened; a command that was told before is not repeated."""
    items, commands = list[list[Block]](), {""}
    for listed in causes[:_MOST_CAUSES]:
        lines: list[Block] = [Line([Word(listed.sentence), f"; explains {explained_text(listed.explains, judgement)}"])]
        tag: list[Span] = [Word(listed.category, "tag"), f" {listed.id}: "]
        for step in next_steps(listed, judgement, run):
            is_new = step.command not in commands
            if is_new or tag:
                command: list[Span] = [": ", Code(step.command)] if is_new else []
                lines.append(Line([*tag, f"{step.action[:1].upper()}{step.action[1:]}", *command], "step"))
            commands, tag = commands | {step.command}, []
        items.append(lines)
    if causes:
        yield Items(items[:_MOST_SHOWN], 1, "cause", "causes")
        paragraphs = [
            (name, _with_code(CAUSES[name].paragraph)) for name in dict.fromkeys(cause.id for cause in causes)
        ]
        title = "What each id means, how sure it is, and what to do: ddpscale explain ID"
        yield Closed(title, [fact_table(paragraphs)])
    left = f"{len(causes) - _MOST_CAUSES} more: verdicts.json lists all." if causes[_MOST_CAUSES:] else ""
    more = Items(items[_MOST_SHOWN:], _MOST_SHOWN + 1, "cause", "causes")
    yield Closed(count_text(len(causes) - _MOST_SHOWN, "more cause"), [more, Line(left)], is_short=True)


def _with_code(text: str) -> list[Span]:
    """A sentence whose commands and names stand between backticks."""
    return [Code(part) if at % 2 else part for at, part in enumerate(text.split("`")) if part]


def key_numbers(judgement: Judgement) -> list[tuple[str, str, str, str, str]]:
    """Nodes at fault; then throughput, weak scaling and the generation ratio.

    These are each from the worst requirement, first of those that keep the machine from being accepted: title, value,
    what it is a number of, bound and verdict.
    """
    numbers = [_nodes_at_fault(judgement)]
    for metric in (THROUGHPUT_PER_GPU, WEAK_SCALING_EFFICIENCY, GENERATION_RATIO):
        of_metric = [verdict for verdict in judgement.verdicts if verdict.metric == metric.name]
        not_asked = (metric.title, digits.ABSENT, "", "not asked", "")
        numbers.append(_worst_of(of_metric, judgement) if of_metric else not_asked)
    return numbers


def _worst_of(verdicts: Sequence[Verdict], judgement: Judgement) -> tuple[str, str, str, str, str]:
    def how_good(verdict: Verdict) -> tuple[bool, int, float]:
        return not judgement.is_blocked_by(verdict), _WORST_FIRST.index(verdict.outcome), verdict.margin or 0.0

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
    blocking = [verdict for verdict in verdicts if judgement.is_blocked_by(verdict)]
    kinds = [("FAIL", blocking)]
    if judgement.accepts:
        kinds += [("WAIVED", judgement.waived), ("WARN", [*filter(only_warns, verdicts)])]
    is_whole = coverage.node_count and all(node.tested_by for node in coverage.nodes) and not coverage.unnamed_nodes
    by_severity = [(word, hosts) for word, some in kinds if (hosts := _hosts(some))]
    word, named = (
        by_severity[0] if by_severity else ("PASS" if judgement.accepts and is_whole else "INCONCLUSIVE", set[str]())
    )
    suspected = set[str]() if named else _hosts(blocking, is_certain=False)
    why = f"{len(suspected)} suspected: " * bool(suspected) + first_nodes(suspected or named)
    of_all = f" of {coverage.node_count}" if coverage.node_count else ""
    return "Nodes at fault", f"{len(named)}{of_all}", why, "0", word


def _hosts(verdicts: Iterable[Verdict], *, is_certain: bool = True) -> set[str]:
    return {culprit.host for verdict in verdicts for culprit in verdict.accused if culprit.is_certain == is_certain}


def facts(
    judgement: Judgement, run: RunRecord, versions: dict[str, str], gangs: Collection[GangRecord]
) -> list[tuple[str, str]]:
    """What was tested, where, when and by whom, by name."""
    ranks = ranks_by_host(gangs)
    names = Counter(rank.device_name or "device of unknown name" for host in ranks.values() for rank in host)
    devices = ", ".join(f"{count} × {name}" for name, count in names.items())
    pairs = [
        ("Tested as", f"{judgement.sku}{f': {devices}' if devices else ''}"),
        ("Nodes", f"{len(ranks)}: {first_nodes(ranks, 4)}" if ranks else ""),
        ("Tested", machine.tested_text(judgement.coverage) if judgement.coverage else ""),
        ("Software", machine.software_line(versions)),
        ("When", _when(run, judgement)),
        *(("Resumed", _resumed_text(resumption)) for resumption in run.resumed),
        *((name.capitalize(), text) for name, text in run.noted.items() if name != OPERATOR),
    ]
    return [(name, text) for name, text in pairs if text]


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
    ordered = sorted(judgement.verdicts, key=lambda verdict: _WORST_FIRST.index(verdict.outcome))
    kinds: dict[str, list[Verdict]] = {"not met": [], "waived": [], "not met, only warnings": [], "passed": []}
    for verdict in ordered:
        kept = "waived" if verdict.is_waived else "passed" if verdict.passed else "not met, only warnings"
        kinds["not met" if judgement.is_blocked_by(verdict) else kept].append(verdict)
    numbers = _sources(judgement.verdicts)
    of_cause = {name: number for number, cause in reversed([*enumerate(causes, 1)]) for name in cause.explains}
    legends = (
        _LIMITS, _WAIVED * bool(judgement.waived), _PROVISIONAL * any(map(is_provisional, ordered)),
        f"{TOO_NARROW}." * any(map(interval_mark, ordered)),
    )  # fmt: skip
    return [
        *(
            Closed(f"{len(some)} {kind}", [_table(some, numbers, of_cause)], kind in _OPEN, judgement.accepts)
            for kind, some in kinds.items()
        ),
        Line("" if ordered else "No requirement was judged."),
        *(Line(legend, "legend") for legend in legends),
    ]


def _sources(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Number of each source of a bound."""
    return {
        source: number
        for number, source in enumerate(dict.fromkeys(verdict.source for verdict in verdicts if verdict.source), 1)
    }


def _table(verdicts: Sequence[Verdict], numbers: Mapping[str, int], of_cause: Mapping[str, int]) -> Table:
    """Requirements with one cause and reason stand together, and the reason once below them."""
    groups: dict[object, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        accused = frozenset((culprit.identity, culprit.is_certain) for culprit in verdict.accused)
        reason = re.sub(r"\d+\.\d+", "", why_text(verdict))  # without measured values, which stand in the rows
        groups[verdict.outcome, of_cause.get(verdict.id), reason or verdict.metric, accused].append(verdict)
    rows, below = list[list[Text]](), {}
    for group in groups.values():
        rows += [_cells(verdict, numbers) for verdict in group]
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
    reason, number = why_text(group[0]), of_cause.get(group[0].id)
    names = defaultdict[str, list[str]](list)
    for verdict in group:
        for text in dict.fromkeys([why_text(verdict), *remarks(verdict, in_full=True)]):
            names[text].append(short_name(verdict))
    del names[reason]
    lines = [f"{first_few(of)}: {text}" if group[len(of) :] else text for text, of in names.items()]
    return Note([[Link(f"Cause {number}", f"#cause-{number}"), f": {reason}"] if number else reason], lines)


def _reservations(judgement: Judgement) -> Iterator[Block]:
    lowered = [(bound.requirement, *digits.lowered_bounds(bound)) for bound in judgement.lowered]
    titles = ("Requirement", "Before", "Here")
    yield first_rows(Table(titles, lowered, "Bounds that the site lowered", 1), _MOST_LOWERED)
    yield Section("Changed by the site", [bullets(judgement.altered)])


def _method(judgement: Judgement) -> Iterator[Block]:
    remarks = notes(judgement)
    yield Line(uniform_loss_text(judgement))
    yield Closed(count_text(len(remarks), "note"), [bullets(remarks, _MOST_LISTED)], is_short=True)
    metrics = dict.fromkeys(verdict.metric for verdict in judgement.verdicts)
    checks = [(short_name(verdict), check_text(verdict)) for verdict in judgement.verdicts]
    meanings = [(METRICS[name].title, METRICS[name].meaning) for name in metrics]
    yield Closed("What was required", [fact_table([*meanings, *(check for check in checks if check[1])])])
    sources = [[Line(source)] for source in _sources(judgement.verdicts)]
    yield Closed("Sources of the bounds", [Items(sources, 1, "source")])


def digests(judgement: Judgement, run: RunRecord) -> list[tuple[str, str]]:
    """What the verdicts rest on, with hashes to check it by."""
    basis, used = judgement.basis, run.thresholds
    judged = f"{in_utc(basis['judged_at']):%Y-%m-%d %H:%M} UTC" if "judged_at" in basis else digits.ABSENT
    files = [("Thresholds", used), *(("Extends", file) for file in used.extends)] if used else []
    return [
        ("Judged", judged), ("Measurements, SHA-256", basis.get("measurements_sha256", digits.ABSENT)),
        *((name, f"{file.path}, SHA-256 {file.sha256}") for name, file in files),
    ]  # fmt: skip
