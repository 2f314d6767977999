"""Words and names for readers, shared by all reports."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal

from pytest_ddpscale.plan.metric_catalogue import METRICS, THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.node_check import NODE_CHECKS, NodeCheck
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.verdicts import (
    Culprit,
    GenerationComparison,
    Judgement,
    RunOutcome,
    Verdict,
)
from pytest_ddpscale.util.listing import first_few
from pytest_ddpscale.util.printable import one_line as one_line  # reports take it from here

Style = Literal["", "header", "passed", "failed", "warned", "undecided"]
_LONGEST_HEADLINE = 300  # of characters
_MOST_CULPRITS = 8
OF_A_WORKLOAD = "what "  # a change by the site of what a workload trains begins so
_REASONS = {
    "passed": "the bound is met",
    "failed": "the bound is not met",
    "inconclusive": "the interval includes the bound",
    "not_measured": "there is no measurement",
    "error": "the measurement ended in an error",
}


def shorten(text: str, width: int) -> str:
    """At most `width` characters of `text`: its beginning and end, which distinguish names."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: max(width - 1 - tail, 0)]}…{text[len(text) - tail :]}"


def verdict_word(verdict: Verdict) -> str:
    """PASS, FAIL, WAIVED, WARN, INCONCLUSIVE, NOT MEASURED or ERROR."""
    if verdict.is_waived:
        return "WAIVED"
    if verdict.outcome == "failed":
        return "WARN" if only_warns(verdict) else "FAIL"
    return "PASS" if verdict.outcome == "passed" else verdict.outcome.replace("_", " ").upper()


def only_warns(verdict: Verdict) -> bool:
    """Whether a requirement did not pass but neither blocks acceptance nor is waived."""
    return not verdict.passed and not verdict.blocks() and not verdict.is_waived


def verdict_style(verdict: Verdict) -> Style:
    """Style of a verdict; one that only warns or is waived is never shown as a failure."""
    if verdict.passed:
        return "passed"
    if only_warns(verdict) or verdict.is_waived:
        return "warned"
    return "failed" if verdict.outcome in {"failed", "error"} else "undecided"


def outcome_text(judgement: Judgement) -> str:
    """``REJECTED: why``, and what the site changed in the thresholds that it extends; or what a rehearsal found."""
    if judgement.rehearsed:
        return "; ".join([f"REHEARSED: {one_line(judgement.rehearsed)}", *changes_by_site(judgement)])
    return f"{outcome_word(judgement.outcome)}: {headline(judgement)}".removesuffix(": ")


def outcome_word(outcome: RunOutcome) -> str:
    """``ACCEPTED WITH WAIVERS``."""
    return outcome.replace("_", " ").upper()


def headline(judgement: Judgement) -> str:
    """Reason of the outcome, bounds that the site lowered, and what else it changed for the SKU."""
    return "; ".join(part for part in (one_line(judgement.reason), *changes_by_site(judgement)) if part)


def changes_by_site(judgement: Judgement) -> list[str]:
    """Bounds that the site lowered, and what else it changed for the SKU; empty if it changed nothing."""
    named = altered_named(judgement)
    altered = f"changed by the site: {', '.join(named)}" if named else ""
    return [part for part in (lowered_text(judgement), altered) if part]


def altered_named(judgement: Judgement) -> list[str]:
    """What else the site changed; of several workloads that train something else, the first and a count."""
    names = [one_line(part) for part in judgement.altered]
    trained = [name for name in names if name.startswith(OF_A_WORKLOAD)]
    others = [name for name in names if name not in trained]
    return [*others, *([first_few(trained, 1) + " such workloads"] if trained[1:] else trained)]


def lowered_text(judgement: Judgement) -> str:
    """``3 bounds lowered by the site, 1 requirement not asked``; empty if nothing is."""
    dropped = sum(one.now is None for one in judgement.lowered)
    warnings = sum(one.only_warns for one in judgement.lowered)
    kinds = (
        (len(judgement.lowered) - dropped - warnings, "bound", "lowered"),
        (dropped, "requirement", "not asked"),
        (warnings, "requirement", "made a warning" if warnings == 1 else "made warnings"),
    )
    counted = [f"{count_text(number, noun)} {what}" for number, noun, what in kinds if number]
    return ", ".join([f"{counted[0]} by the site", *counted[1:]]) if counted else ""


def waiver_text(verdict: Verdict) -> str:
    """``waived by A. Name until 2026-12-31: a fan is ordered``; empty without a waiver."""
    waiver = verdict.waiver
    if waiver is None:
        return ""
    return f"waived by {one_line(waiver.who)} until {waiver.until}: {one_line(waiver.why)}"


def reason_text(verdict: Verdict) -> str:
    """Reason of a verdict, in one line: of an error only what its first line says, see `details_of`."""
    told = headline_of(verdict.reason) if _is_message(verdict) else one_line(verdict.reason)
    return told or _REASONS[verdict.outcome]


def headline_of(message: str) -> str:
    """First line of a message, its first sentences if it is very long; an error's stack, output and logs follow it."""
    first = message.strip().partition("\n")[0].removesuffix("; its last output:").removesuffix("; last output:")
    line = one_line(first)
    if len(line) <= _LONGEST_HEADLINE:
        return line
    head = line[:_LONGEST_HEADLINE]  # torch's out-of-memory goes on for 600 characters
    end_of_sentence = head.rfind(". ") + 1
    return f"{head[:end_of_sentence] if end_of_sentence > _LONGEST_HEADLINE // 3 else head.rstrip()} …"


def details_of(verdict: Verdict) -> list[str]:
    """All lines of the error that ended the measurement; nothing if `reason_text` says all."""
    lines = [one_line(line) for line in verdict.reason.strip().split("\n")] if _is_message(verdict) else [""]
    return lines if len(lines) > 1 or len(lines[0]) > _LONGEST_HEADLINE else []


def _is_message(verdict: Verdict) -> bool:
    """Whether the reason is what a program said, on any number of lines."""
    return verdict.outcome in ("error", "not_measured")


def remarks(verdict: Verdict, *, in_full: bool = False) -> list[str]:
    """What explains or qualifies a verdict besides reason and numbers, a line each: in terminal, items and JUnit alike.

    In full it has all culprits, their UUIDs, and what the table marks by a sign.
    """
    told, said = reason_text(verdict), list[str]()
    if not verdict.passed:
        said = [check_text(verdict), *details_of(verdict)[not in_full :], waiver_text(verdict)]
        shown = verdict.accused if in_full else verdict.accused[:_MOST_CULPRITS]
        for one in shown:
            said.append((culprit_name if one_line(one.evidence) in told else culprit_text)(one, in_full))
        if hidden := len(verdict.accused) - len(shown):
            said.append(f"and {hidden} more: see verdicts.json")
    said += [f"ratio of {compared_text(verdict.compared)}"] if verdict.compared is not None else []
    said += ["the bound is provisional: no published figure stands behind it"] * (in_full and is_provisional(verdict))
    return [*filter(None, said), *(f"note: {one_line(note)}" for note in verdict.notes)]


def despite_text(verdict: Verdict) -> str:
    """Why it failed although its value meets the bound, such as wrong data or a drift; empty for all others."""
    is_met = verdict.margin is not None and verdict.margin >= 0
    return reason_text(verdict) if verdict.outcome == "failed" and is_met else ""


def spread_text(verdict: Verdict) -> str:
    """Why it passed although its value may be below the bound; empty for all others."""
    return reason_text(verdict) if verdict.passed and verdict.against_slowest is not None else ""


def culprit_text(culprit: Culprit, full_uuid: bool = False) -> str:
    """Culprit and evidence: ``GPU 3 (GPU-5d3a91c2…) on node7: 1.31× the median …``."""
    return f"{culprit_name(culprit, full_uuid)}: {one_line(culprit.evidence)}"


def culprit_name(culprit: Culprit, full_uuid: bool = False) -> str:
    """Culprit: ``GPU 3 (GPU-5d3a91c2…) on node7``, ``node node7``, ``link between node node7 and node node9``.

    With its full UUID a GPU also has its PCI address.
    """
    ends = []
    for place in culprit.places:
        is_gpu = culprit.kind == "gpu" or (culprit.kind == "link" and place != Place(place.host))
        host = one_line(place.host)
        ends.append(f"{one_line(place.name if full_uuid else place.short)} on {host}" if is_gpu else f"node {host}")
    return f"link between {' and '.join(ends)}" if culprit.kind == "link" else ends[0]


def short_name(verdict: Verdict) -> str:
    """Name of a requirement within its metric: ``resnet152-fp16-8gpu``."""
    identity = one_line(verdict.id)
    rest = identity.removeprefix(verdict.metric)
    return rest[1:-1] if rest != identity and rest.startswith("[") and rest.endswith("]") else identity


def is_provisional(verdict: Verdict) -> bool:
    """Whether the bound lacks a published figure; a check needs none."""
    return verdict.provisional and METRICS[verdict.metric].subject != "check"


def rounds_text(verdict: Verdict) -> str:
    """``12``; absent for a check, which has no rounds."""
    return ABSENT if METRICS[verdict.metric].subject == "check" else str(verdict.rounds)


def basis_text(verdict: Verdict) -> str:
    """``12 rounds, correlation 0.2``: the basis of an interval."""
    rounds = count_text(verdict.rounds, "round")
    if verdict.correlation is None:
        return rounds
    return f"{rounds}, correlation {round(verdict.correlation, 1) + 0.0:.1f}"  # never -0.0


def compared_text(compared: GenerationComparison) -> str:
    """``1190 img/s per GPU here, 503.2 of v100-sxm2-16gb (willgpaik/…)``."""
    rate, there = THROUGHPUT_PER_GPU.unit_of(), f"{compared.reference_samples_per_s:.4g}"
    source = f" ({compared.source})" if compared.source else ""
    return one_line(f"{compared.samples_per_s:.4g} {rate} per GPU here, {there} of {compared.reference}{source}")


def check_text(verdict: Verdict) -> str:
    """What a check requires of a node: ``PCIe: a node passes if …``; empty for other requirements."""
    check = _check_of(verdict)
    return f"{check.title}: a node passes if {check.meaning}" if check else ""


def subject_text(verdict: Verdict) -> str:
    """The requirement in words: ``Weak scaling efficiency of resnet152-fp16 on 8 ranks``."""
    metric, name, ranks = METRICS[verdict.metric], one_line(verdict.workload), count_text(verdict.world_size, "rank")
    if metric.subject == "check":
        check = _check_of(verdict)
        return f"{check.title} (a node passes if {check.meaning})" if check else f"{metric.title}, {name}"
    if metric.subject == "node":
        return f"{metric.title} of any node"
    if metric.subject == "probe":
        return f"{metric.title} {'of each rank' if verdict.world_size == 1 else f'among {ranks}'}, probed by {name}"
    return f"{metric.title} of {name} on {ranks}"


def rerun_command(again: Sequence[str], requirement: str) -> str:
    """The command that measures one requirement again; `again` are the words of the command that measures all."""
    return shlex.join([one_line(word) for word in (*again, "-k", requirement)])


def count_text(number: int, noun: str, plural: str = "") -> str:
    """``1 host``, ``2 hosts``; `plural` if it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def _check_of(verdict: Verdict) -> NodeCheck | None:
    return NODE_CHECKS.get(verdict.workload) if METRICS[verdict.metric].subject == "check" else None
