"""Words about one verdict and its culprits: what every report says of them."""

from __future__ import annotations

from typing import Literal

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.report.digits import bound_text
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import Why
from pytest_ddpscale.run.verdicts import Culprit, Verdict
from pytest_ddpscale.util.printable import one_line

Style = Literal["", "header", "passed", "failed", "warned", "undecided"]
_LONGEST_HEADLINE = 300  # of characters
_MOST_CULPRITS = 8
# Of each outcome, the worst first: its word and its style.
VERDICTS: dict[str, tuple[str, Style]] = {
    "failed": ("FAIL", "failed"),
    "error": ("ERROR", "failed"),
    "not_measured": ("NOT MEASURED", "undecided"),
    "inconclusive": ("INCONCLUSIVE", "undecided"),
    "waived": ("WAIVED", "warned"),
    "warned": ("WARN", "warned"),
    "passed": ("PASS", "passed"),
}


def verdict_word(verdict: Verdict) -> str:
    """PASS, FAIL, WAIVED, WARN, INCONCLUSIVE, NOT MEASURED or ERROR."""
    has_warned = verdict.outcome == "failed" and only_warns(verdict)
    return VERDICTS["waived" if verdict.is_waived else "warned" if has_warned else verdict.outcome][0]


def only_warns(verdict: Verdict) -> bool:
    """Whether a requirement did not pass but neither blocks acceptance nor is waived."""
    return not verdict.passed and not verdict.blocks() and not verdict.is_waived


def verdict_style(verdict: Verdict) -> Style:
    """Style of a verdict; one that only warns or is waived is never shown as a failure."""
    return "warned" if only_warns(verdict) or verdict.is_waived else VERDICTS[verdict.outcome][1]


def waiver_text(verdict: Verdict) -> str:
    """``waived by A. Name until 2026-12-31: a fan is ordered``; empty without a waiver."""
    waiver = verdict.waiver
    return one_line(f"waived by {waiver.who} until {waiver.until}: {waiver.why}") if waiver else ""


def reason_text(verdict: Verdict) -> str:
    """Reason of a verdict, in one line: of an error only what its first line says, see `details_of`."""
    return headline_of(verdict.reason) if _is_message(verdict) else one_line(verdict.reason)


def headline_of(message: Why) -> str:
    """First line of a message, its first sentences if it is very long; an error's stack, output and logs follow it."""
    line = one_line(say(message).strip().partition("\n")[0])
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
    """What explains or qualifies a verdict besides reason and numbers, a line each, in every report.

    In full it has the UUIDs of culprits and the first line of an error, too.
    """
    reason, remarks_so_far = reason_text(verdict), list[str]()
    if not verdict.passed:
        remarks_so_far = [check_text(verdict), *details_of(verdict)[not in_full :], waiver_text(verdict)]
        for culprit in verdict.accused[:_MOST_CULPRITS]:
            who = (culprit_name if one_line(culprit.evidence) in reason else culprit_text)(culprit, in_full)
            remarks_so_far.append(who if culprit.is_certain else f"suspected: {who}")
        hidden = len(verdict.accused) - _MOST_CULPRITS
        remarks_so_far.append(f"{hidden} more: culprits.csv lists all" if hidden > 0 else "")
    if (ratio := verdict.compared) is not None:
        source = f" ({ratio.source})" if ratio.source else ""
        measured = f"{ratio.samples_per_s:.4g} {ratio.unit} per device here"
        published = f"{ratio.reference_samples_per_s:.4g} of {ratio.reference}{source}"
        remarks_so_far.append(one_line(f"ratio of {measured}, {published}"))
    return [*filter(None, remarks_so_far), *(f"note: {one_line(note)}" for note in verdict.notes)]


def despite_text(verdict: Verdict) -> str:
    """Why it failed although its value meets the bound, such as wrong data or a drift; empty for all others."""
    is_met = verdict.margin is not None and verdict.margin >= 0
    return reason_text(verdict) if verdict.outcome == "failed" and is_met else ""


def why_text(verdict: Verdict) -> str:
    """Why it did not pass, or passed although its value may be below the bound; empty for other passes."""
    return "" if verdict.passed and verdict.against_slowest is None else reason_text(verdict)


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
        device = place.name if full_uuid else place.short
        ends.append(one_line(f"{device} on {place.host}" if is_gpu else f"node {place.host}"))
    return f"link between {' and '.join(ends)}" if culprit.kind == "link" else ends[0]


def short_name(verdict: Verdict) -> str:
    """Name of a requirement within its metric: ``resnet152-fp16-8gpu``."""
    identity = one_line(verdict.id)
    rest = identity.removeprefix(verdict.metric)
    return rest[1:-1] if rest != identity and rest.startswith("[") and rest.endswith("]") else identity


def is_provisional(verdict: Verdict) -> bool:
    """Whether the bound lacks a published figure; a check needs none."""
    return verdict.provisional and METRICS[verdict.metric].subject != "check"


def bound_in_words(verdict: Verdict) -> str:
    """``≥ 96.0 %, provisional``: the bound where no sign beside it has a legend."""
    return bound_text(verdict) + ", provisional" * is_provisional(verdict)


def check_text(verdict: Verdict) -> str:
    """What a check requires of a node: ``PCIe: a node passes if …``; empty for other requirements."""
    check = NODE_CHECKS.get(verdict.workload) if METRICS[verdict.metric].subject == "check" else None
    return f"{check.title}: a node passes if {check.meaning}" if check else ""
