"""A verdict in short lines: what decides, in numbers, and why, in codes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.report.words.verdicts import only_warns
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.reason import Reason
from pytest_ddpscale.run.verdicts import AgainstSlowest, Verdict

# They only say where, or how many.
PLACES = {"one-of", "lowest-of", "kept-on-each", "all", "of-places", "at", "slow-at", "of-peers"}
# Arguments that are told in a word, by their number: if they are true, and of ``!word`` if they are not.
WORDS = {
    "slow-rank": {4: "!throughout", 5: "!last", 6: "!odd", 7: "!enough"},
    "slow-ranks": {2: "!odd", 3: "!enough"},
    "unlike-others": {0: "parameters", 1: "seeded", 2: "!certain"},
    "slow-pairs": {3: "rail"},
}
# Those that are told as they are.
SHOWN: Mapping[str, Sequence[int]] = {
    "misses": (1, 2, 4, 6), "wrong-data": (0,), "nodes-missing": (2,), "places-missing": (3, 4),
    "planned-differently": (0, 1), "broke": (0,), "interrupted": (0,), "other-name": (0,), "without-kernels": (0,),
    "cuda-finds": (0, 1), "cuda-lacks": (0, 1), "fewer-ports": range(5), "note-fewer-ports": range(5),
    "without-gpu": (), "mig-on": (), "note-untried": (), "unpublished": (),
}  # fmt: skip


def codes(reason: Reason, every: bool = False) -> str:
    """The codes of a reason and of those within it; with `every`, and all arguments but where others are shown."""
    shown = () if reason.code in PLACES else SHOWN.get(reason.code, range(len(reason.args) * every))
    found = [] if reason.code in PLACES else [reason.code]
    assert say(reason)  # each has a sentence
    for number, arg in enumerate(reason.args):
        if isinstance(arg, Reason) or (isinstance(arg, tuple) and arg and isinstance(arg[0], Reason)):
            found += [codes(one, every) for one in ([arg] if isinstance(arg, Reason) else arg)]
        elif word := WORDS.get(reason.code, {}).get(number):
            found += [word] * (bool(arg) != word.startswith("!"))
        elif number in shown:
            found.append(_shown(arg))
    return " ".join(filter(None, found))


def _shown(arg: Any) -> str:
    if isinstance(arg, tuple):
        return ",".join(map(_shown, arg))
    return f"{arg:.4g}" if isinstance(arg, float) else str(arg)


def told(verdict: Verdict, rounds: int, per_node: int) -> Iterator[str]:
    """What is told of a verdict, and nothing that is as ever.

    Args:
        rounds: of a verdict on all that were measured.
        per_node: GPUs of a node, of which the UUIDs are numbered throughout.
    """
    assert verdict.because
    place = verdict.place and f" at {verdict.place}"
    counts = verdict.rounds != (rounds if verdict.value is not None else 0)
    numbers = f" in={verdict.rounds}" * counts
    # Below this, rounds are taken as independent.
    if verdict.correlation is not None and (abs(verdict.correlation) >= 0.5 or verdict.interval is None):
        numbers += f" r={verdict.correlation:.2g}"
    numbers += f" {verdict.one_gpu}" if verdict.one_gpu else ""
    flags = "".join(f" [{flag}]" for flag in verdict.flags)
    outcome = f"{verdict.outcome}{' open' * verdict.is_open}{' warns' * only_warns(verdict)}"
    yield f"{outcome} {_number(verdict)}{place}{numbers}{flags}: {codes(verdict.because)}"
    if (slowest := verdict.against_slowest) is not None:
        yield f"= {_number(slowest)} against {slowest.place}, {slowest.behind:.3f} behind"
    named = [
        (culprit.kind, _how(culprit, rounds), codes(culprit.because), culprit.places) for culprit in verdict.culprits
    ]
    for (kind, how, why), alike in itertools.groupby(named, lambda one: one[:3]):
        names = ("–".join(_name(place, per_node) for place in places) for *_, places in alike)
        yield f"! {kind} {' '.join(names)}{how}: {why}"
    yield from (f"~ {codes(note)}" for note in verdict.remarks)


def _number(found: Verdict | AgainstSlowest) -> str:
    value = "-" if found.value is None else f"{found.value:.4g}"
    return value + ("" if found.interval is None else " ({:.4g} … {:.4g})".format(*found.interval))


def _name(place: Place, per_node: int) -> str:
    if place.index is None:
        return place.host + place.uuid
    is_usual = place.uuid == f"GPU-{int(place.host[1:]) * per_node + place.index}"
    return f"{place.host}.{place.index}{'' if is_usual else f' {place.uuid}'}"


def _how(culprit: Culprit, rounds: int) -> str:
    how = " perhaps" * (not culprit.is_certain) + " computed wrong" * culprit.computed_wrong
    how += "" if culprit.slowdown is None else f" ×{culprit.slowdown:.3f}"
    how += "" if culprit.peers is None else f" of {culprit.peers}"
    is_always = culprit.peers is None or culprit.slow_rounds == culprit.rounds == rounds
    return how if is_always else f"{how} in {culprit.slow_rounds}/{culprit.rounds}"
