"""A verdict in short lines: what decides, in numbers, and why, in codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pytest_ddpscale.run.reason import Reason
from pytest_ddpscale.run.verdicts import Culprit, Verdict

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
    "misses": (1, 2, 4, 6), "wrong-results": (0,), "nodes-missing": (2,), "places-missing": (3, 4),
    "planned-differently": (0, 1), "broke": (0,), "interrupted": (0,), "other-name": (0,), "without-kernels": (0,),
    "cuda-finds": (0, 1), "cuda-lacks": (0, 1), "fewer-ports": range(5), "note-fewer-ports": range(5),
    "without-gpu": (), "mig-on": (), "note-untried": (), "unpublished": (),
}  # fmt: skip


def codes(reason: Reason, every: bool = False) -> str:
    """The codes of a reason and of those within it; with `every`, and all arguments but where others are shown."""
    shown = () if reason.code in PLACES else SHOWN.get(reason.code, range(len(reason.args) * every))
    found = [] if reason.code in PLACES else [reason.code]
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


def told(verdict: Verdict, tell: Callable[[Reason], str]) -> Iterator[str]:
    """What is told of a verdict, its reasons by `tell`."""
    assert verdict.because
    value = "-" if verdict.value is None else f"{verdict.value:.4g}"
    ends = "" if verdict.interval is None else " ({:.4g} … {:.4g})".format(*verdict.interval)
    place = verdict.place and f" at {verdict.place}"
    further = {
        "in": verdict.rounds if verdict.rounds else None,
        "r": verdict.correlation,
    }
    numbers = "".join(f" {name}={number:.2g}" for name, number in further.items() if number is not None)
    numbers += f" {verdict.one_gpu}" if verdict.one_gpu else ""
    flags = "".join(f" [{flag}]" for flag in verdict.flags)
    outcome = f"{verdict.outcome}{' open' * verdict.is_open}"
    yield f"{outcome} {value}{ends}{place}{numbers}{flags}: {tell(verdict.because)}"
    if verdict.against_slowest is not None:
        slowest = verdict.against_slowest
        ends = "" if slowest.interval is None else " ({:.4g} … {:.4g})".format(*slowest.interval)
        yield f"= {slowest.value:.4g}{ends} against {slowest.place}, {slowest.behind:.3f} behind"
    yield from (f"! {_culprit(one)}: {tell(one.because)}" for one in verdict.culprits)
    yield from (f"~ {tell(note)}" for note in verdict.remarks)


def _culprit(one: Culprit) -> str:
    ends = [(place.host, place.index, place.uuid or None) for place in one.places]
    where = " – ".join(" ".join(str(part) for part in end if part is not None) for end in ends)
    how = "" if one.is_certain else " perhaps"
    how += " computed wrong" * one.computed_wrong
    how += "" if one.slowdown is None else f" ×{one.slowdown:.3f}"
    how += "" if one.peers is None else f" of {one.peers} in {one.slow_rounds}/{one.rounds}"
    return f"{one.kind} {where}{how}"
