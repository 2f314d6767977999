"""A probe's requirement, judged at each place that was probed: it passes if every place that was planned passes.

As with nodes (`pytest_ddpscale.verdict.by_node`), each place is judged at the confidence that was asked for, and a
failure counts only if it also holds at 1 - (1 - confidence) / N, of N places: that any fails though none should is up
to N times as likely as on one (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_ddpscale.metrics.probes import ProbedPlace
from pytest_ddpscale.results.verdicts import Verdict, VerdictOutcome
from pytest_ddpscale.util.listing import first_few
from pytest_ddpscale.verdict.by_node import UNDECIDED

NOUNS = {"gpu": "GPUs", "node": "nodes", "gang": "groups", "link": "pairs"}
# A value that no hardware reaches: more rounds do not mend that.
IMPLAUSIBLE = "implausible"

JudgePlace = Callable[[ProbedPlace, float], Verdict]  # place and confidence


@dataclass(frozen=True)
class PlaceVerdict:
    """What one place comes to.

    Attributes:
        place: which.
        verdict: as if there were no other place.
    """

    place: ProbedPlace
    verdict: Verdict

    @property
    def is_failed(self) -> bool:
        """Whether it certainly misses the bound."""
        return self.verdict.outcome == "failed"

    @property
    def is_undecided(self) -> bool:
        """Whether more rounds may decide."""
        return self.verdict.outcome == "inconclusive" and IMPLAUSIBLE not in self.verdict.notes


def judge_places(
    judge: JudgePlace, places: Iterable[ProbedPlace], planned: int, confidence: float
) -> tuple[PlaceVerdict, ...]:
    """Judge each place; what fails, at the confidence that holds for all together.

    Args:
        judge: judges one.
        places: that were measured.
        planned: how many there should be.
        confidence: of the verdict on all of them, 0 … 1.
    """
    measured = list(places)
    of = max(planned, len(measured))
    return tuple(_judge_again_if_failed(judge, place, of, confidence) for place in measured)


def combined(judged: Sequence[PlaceVerdict], planned: int, blank: Verdict, missing: str) -> Verdict:
    """One verdict of those on the places.

    Args:
        judged: at least one, unless something is missing.
        planned: how many there should be.
        blank: on the same requirement, ``not_measured``.
        missing: why it cannot pass even if all that was measured does; empty if nothing is missing.

    Returns:
        ``failed`` if any place fails; else ``error`` if one is that, ``not_measured`` if something is missing,
        ``inconclusive`` if a place is that; else ``passed``. Value and interval are those of the worst place with that
        outcome, rounds the fewest of any.
    """
    outcome = _outcome(judged, is_missing=bool(missing))
    if outcome == "not_measured":
        return replace(blank, reason=missing, notes=_note_on_undecided(judged))
    deciding = [place for place in judged if place.verdict.outcome == outcome]
    worst = min(deciding, key=_badness)
    notes = _notes(judged, deciding)
    return replace(
        worst.verdict,
        rounds=min(place.verdict.rounds for place in judged),
        reason=_reason(worst, deciding, planned),
        notes=(*notes, missing) if missing else notes,
    )


def name_of(place: ProbedPlace) -> str:
    """``GPU 3 of n1``, ``CPU rank 3 of n1``, ``n1``, ``ranks 0 to 15`` or ``GPUs 2 and 5 of n1``."""
    if place.kind == "node":
        return place.host
    if place.kind == "gang":
        return f"ranks {place.ranks[0]} to {place.ranks[-1]}"
    device = "CPU rank" if place.gpu_uuid == "cpu" else "GPU"
    if place.kind == "gpu":
        return f"{device} {place.gpu_index} of {place.host}"
    if place.host == place.peer_host:
        return f"{device}s {place.gpu_index} and {place.peer_gpu_index} of {place.host}"
    return f"{device} {place.gpu_index} of {place.host} and {place.peer_gpu_index} of {place.peer_host}"


def _judge_again_if_failed(judge: JudgePlace, place: ProbedPlace, planned: int, confidence: float) -> PlaceVerdict:
    verdict = judge(place, confidence)
    if verdict.outcome != "failed" or planned == 1:
        return PlaceVerdict(place, verdict)
    again = judge(place, 1 - (1 - confidence) / planned)
    if again.outcome == "failed":
        return PlaceVerdict(place, again)
    noun = NOUNS[place.kind]
    reason = f"{verdict.reason}, though not so clearly that it could not be chance on one of {planned} {noun}"
    return PlaceVerdict(place, replace(again, outcome="inconclusive", reason=reason))


def _outcome(judged: Sequence[PlaceVerdict], *, is_missing: bool) -> VerdictOutcome:
    found = {place.verdict.outcome for place in judged}
    if "failed" in found:
        return "failed"
    if "error" in found:
        return "error"
    if is_missing:
        return "not_measured"
    return "passed" if found == {"passed"} else "inconclusive"


def _badness(place: PlaceVerdict) -> float:
    """Margin of the value: the smaller the worse; without a value worst of all."""
    margin = place.verdict.margin
    return float("-inf") if margin is None else margin


def _reason(worst: PlaceVerdict, deciding: Sequence[PlaceVerdict], planned: int) -> str:
    if planned == 1:
        return worst.verdict.reason
    where, noun = name_of(worst.place), NOUNS[worst.place.kind]
    if worst.verdict.outcome == "passed":
        return f"{worst.verdict.reason} on each of {planned} {noun}; {where} is nearest to it"
    others = [name_of(place.place) for place in deciding if place is not worst]
    more = f" ({worst.verdict.outcome} too: {first_few(others)})" if others else ""
    return f"{where}, one of {planned} {noun}: {worst.verdict.reason}{more}"


def _notes(judged: Sequence[PlaceVerdict], deciding: Sequence[PlaceVerdict]) -> tuple[str, ...]:
    """What is to be known of all places that decide as it is, of others with their names."""
    where: dict[str, list[ProbedPlace]] = {}
    for place in judged:
        for note in place.verdict.notes:
            where.setdefault(note, []).append(place.place)
    decide = {place.place for place in deciding}
    notes = [
        note if decide.issubset(places) else f"{first_few([name_of(place) for place in places])}: {note}"
        for note, places in where.items()
    ]
    return (*notes, *(_note_on_undecided(judged) if deciding[0].is_failed else ()))


def _note_on_undecided(judged: Sequence[PlaceVerdict]) -> tuple[str, ...]:
    """Of what can no longer pass as a whole: those that may still fail by themselves, and then are named."""
    undecided = [name_of(place.place) for place in judged if place.is_undecided]
    return (f"{UNDECIDED}{first_few(undecided)}",) if undecided else ()
