"""Words about the outcome of a run, and about what qualifies it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_ddpscale.plan.metric_catalogue import (
    GENERATION_RATIO,
    METRICS,
    THROUGHPUT_PER_GPU,
    WEAK_SCALING_EFFICIENCY,
)
from pytest_ddpscale.report.digits import number_text
from pytest_ddpscale.report.words.verdicts import Style, is_provisional, waiver_text
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import Judgement, RunOutcome, Verdict
from pytest_ddpscale.util.listing import count_text, first_few
from pytest_ddpscale.util.printable import one_line

# Of each outcome its style, and what it means.
OUTCOMES: dict[RunOutcome, tuple[Style, str]] = {
    "accepted": ("passed", "Every requirement that can reject this machine was measured and met."),
    "accepted_with_waivers": (
        "warned", "Every requirement that can reject this machine was measured, and met except those that are waived.",
    ),
    "rejected": ("failed", "At least one requirement is not met: this machine is not fit to open."),
    "incomplete": ("undecided", "Fitness was not demonstrated; the machine is not accepted."),
    "partial": (
        "undecided", "Only some of the requirements were selected: this report says nothing about the others and does "
        "not accept the machine.",
    ),
}  # fmt: skip
_MOST_CHANGES = 4  # named
# What an imported run lacks, by the subject of a metric.
_SUBJECTS = {
    "check": "node checks", "probe": "links and probes of GPUs", "workload": "other training", "node": "earlier runs",
}  # fmt: skip


def outcome_text(judgement: Judgement) -> str:
    """``REJECTED: why``, and what the site changed in the thresholds that it extends; or what a rehearsal found."""
    word = "REHEARSED" if judgement.rehearsed else outcome_word(judgement.outcome)
    why = one_line(judgement.rehearsed or judgement.reason)
    return f"{word}: {'; '.join(filter(None, (why, *changes_by_site(judgement))))}".removesuffix(": ")


def imported(judgement: Judgement, run: RunRecord | None) -> list[Verdict]:
    """What an imported run has values of, the nearest to its bound first.

    Empty for a run that was measured here, and if anything that was imported blocks acceptance: then a cause leads.
    """
    blocks = (
        verdict
        for verdict in judgement.verdicts
        if judgement.is_blocked_by(verdict) and verdict.outcome != "not_measured"
    )
    if run is None or not run.is_imported or judgement.outcome != "incomplete" or any(blocks):
        return []
    return sorted(
        (verdict for verdict in judgement.verdicts if verdict.margin is not None),
        key=lambda verdict: verdict.margin or 0.0,
    )


def imported_text(judgement: Judgement, run: RunRecord | None) -> str:
    """``INCOMPLETE: imported 1190 img/s per GPU, 97.4 % at 8 GPUs (…, 36 of 40 …); not tested: node checks, …``.

    The numbers are those of the workload with the most throughput.
    """
    valued, verdicts, sentences = imported(judgement, run), judgement.verdicts, list[str]()
    if not valued:
        return ""
    fastest = max(
        valued,
        key=lambda verdict: (verdict.metric == THROUGHPUT_PER_GPU.name, verdict.value or 0.0, verdict.world_size),
    )
    by_size = sorted(valued, key=lambda verdict: verdict.world_size)
    of = {own.metric: own for own in by_size if own.workload == fastest.workload}
    if fastest.metric == THROUGHPUT_PER_GPU.name and fastest.value is not None:
        sentences.append(f"{number_text(fastest.value, fastest.unit, 0)} per GPU")
    for metric in (WEAK_SCALING_EFFICIENCY, GENERATION_RATIO):
        if (one := of.get(metric.name)) and one.value is not None:
            of_what = one.compared.reference if one.compared else f"at {count_text(one.world_size, 'GPU')}"
            sentences.append(f"{number_text(one.value, one.unit)} {of_what}")
    passed = (
        f"{sum(verdict.passed for verdict in valued)} of {count_text(len(valued), 'requirement')} with a value passed"
    )
    lacks = {METRICS[verdict.metric].subject for verdict in verdicts if verdict.margin is None}
    untested = [what for subject, what in _SUBJECTS.items() if subject in lacks]
    missing = f"; not tested: {', '.join(untested)} ({len(verdicts) - len(valued)} of {len(verdicts)})" * bool(untested)
    what = f"{', '.join(sentences)} ({fastest.workload}; {passed})" if sentences else passed
    return f"INCOMPLETE: imported {what}{missing}"


def outcome_word(outcome: RunOutcome) -> str:
    """``ACCEPTED WITH WAIVERS``."""
    return outcome.replace("_", " ").upper()


def changes_by_site(judgement: Judgement) -> list[str]:
    """Bounds that the site lowered, and what else it changed for the SKU; empty if it changed nothing.

    ``3 bounds lowered by the site, 1 requirement not asked``.
    """
    easier = Counter(
        ("requirement", "not asked") if bound.now is None
        else ("requirement", "made a warning") if bound.only_warns
        else ("bound", "lowered")
        for bound in judgement.lowered
    )  # fmt: skip
    counted = [f"{count_text(number, noun)} {change}" for (noun, change), number in easier.items()]
    lowered = [", ".join([f"{counted[0]} by the site", *counted[1:]])] if counted else []
    names = first_few([*map(one_line, judgement.altered)], _MOST_CHANGES)
    return [*lowered, *([f"changed by the site: {names}"] if names else [])]


def reservations(judgement: Judgement) -> Iterator[str]:
    """What qualifies the verdict: waivers, what the site changed, provisional bounds, and what was not selected."""
    for verdict in judgement.waived:
        yield f"{verdict.id}: {waiver_text(verdict)}"
    yield from changes_by_site(judgement)
    if provisional := sum(map(is_provisional, judgement.verdicts)):
        bounds = count_text(len(judgement.verdicts), "bound")
        yield f"{provisional} of {bounds} provisional: no figure is published for this SKU"
    if judgement.not_selected:
        yield f"{count_text(judgement.not_selected, 'requirement')} not selected"


def notes(judgement: Judgement, left_out: Sequence[str] = ()) -> list[str]:
    """The notes that no other part of a report has, without those of some codes.

    Of several on low utilization it is the first, with the number of the others.
    """
    hidden, idle = judgement.notes_of(*left_out), judgement.notes_of("low-utilization")
    more = f" ({count_text(len(idle) - 1, 'more arm')} alike: verdicts.json)" if idle[1:] else ""
    shown = [note for note in judgement.other_notes if note not in (*hidden, *idle[1:])]
    return [note + more * (note in idle) for note in shown]
