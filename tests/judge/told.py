"""A verdict in short lines: what decides, in numbers, and each sentence by the name of its rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.run.verdicts import Culprit, Verdict

# Words of a sentence, and the name of the rule that says it; a sentence without any is told whole.
RULES = (
    ("whole interval misses", "missed"),
    ("whole interval keeps", "kept"),
    ("bound lies inside the interval", "inside"),
    ("may still cross the bound", "not-final"),
    ("expected at least", "few-rounds"),
    ("no round comes within", "far"),
    ("vary too much for an interval", "no-interval"),
    ("rounds are complete", "incomplete-rounds"),
    ("no complete round of", "no-round"),
    ("complete round of the arm", "no-baseline"),
    ("could not be read on every rank", "unread"),
    ("own pace timed in every round", "untimed"),
    ("measured differently", "measured-differently"),
    ("was not measured in this run", "not-trained"),
    ("rest is not the training that was to be measured", "other-training"),
    ("measured on ", "places-missing"),
    ("more rounds may fail further", "more-may-fail"),
    ("needs at least", "needs-nodes"),
    ("implausible", "implausible"),
    ("host-bound", "host-bound"),
    ("results differ from those", "results-differ"),
    ("speed does not count", "speed-does-not-count"),
    ("got another result when they repeated", "unrepeated"),
    ("was compared in other studies", "repeated-elsewhere"),
    ("good scaling relative to slow ranks", "scaled-from-slow"),
    ("slow even without communication", "slow-alone"),
    ("two groups of", "two-groups"),
    ("may be two groups", "perhaps-two-groups"),
    ("certainly more than", "beyond-peers"),
    ("is within", "within-peers"),
    ("not certain to be within", "perhaps-beyond"),
    ("an impossible value", "impossible"),
    ("not excused as spread", "no-spread:"),
    ("not shown to be spread alone", "perhaps-spread:"),
    ("points of the loss are the spread", "excused"),
    ("against the slowest GPU does, too", "missed-by-the-slowest"),
    ("a GPU is more than", "far-gpu"),
    ("not every GPU is certain", "open-gpu"),
    ("its node is more than", "far-node"),
    ("its node is not certain", "open-node"),
    ("fall into two groups", "two-groups"),
    ("too few peers", "few-peers"),
    ("held down by heat", "hot"),
    ("heat and power of its GPUs are not known", "heat-unknown"),
    ("no own pace in", "no-pace"),
    ("slow at times:", "changing"),
    ("GPUs were idle at times", "waits-for-host"),
    ("it is unknown how busy", "busy-unknown"),
    ("forward times lack", "forward-lacks"),
    ("compute alone differ less", "alike-alone"),
    ("would excuse more than", "beyond-limit"),
    ("nodes are not compared", "nodes-uncompared"),
    ("not clearly enough to be named", "look-at"),
    ("not steady", "drift"),
    ("loss scaling skipped", "skipped-steps"),
    ("power unknown", "power-unknown"),
    ("--ddp-budget ran out", "budget"),
    ("one imported sample", "single-sample"),
    ("one imported value", "single-value"),
    ("fail alike", "most-fail-alike"),
    ("median of their peers", "of-peers"),
    ("its only peer", "of-one-peer"),
    ("peers in the last", "lately"),
    ("rounds (", "at-times"),
    ("peers in", "of-peers"),
    ("either may be the odd one", "either"),
    ("too little to explain", "too-little"),
    ("by its own pace", "own-pace"),
    ("on this node alone", "node-alone"),
    ("others reach", "link"),
    ("% busy", "least-busy"),
    ("parameters differ", "parameters"),
    ("seeded step", "seeded-step"),
    ("it is unknown which is right", "unknown-who"),
    ("computed wrong data", "wrong-data"),
    ("moved wrong data", "wrong-data"),
    ("saw wrong data", "witness"),
    ("wrong data in the probe", "unasked-wrong-data"),
    ("the GPU is at fault, not its links", "gpu-not-links"),
    ("others is", "beside-others"),
    ("no other to compare with", "nobody-beside"),
    ("the worst at", "several-fail"),
    ("its own links", "gpu-or-its-links"),
    ("or these links", "gpu-or-these-links"),
    ("all may be slow", "all-may-be-slow"),
    ("not probed", "not-probed"),
    ("could not be done", "unsupported"),
    ("may be chance", "perhaps-chance"),
    ("only local rank", "rail"),
    ("as after a lost packet", "stalls"),
)
# Of clauses that only add to another one.
ADDED = (
    " rounds", "× the median of", "nodes is", "node is", "judged as if", "nearest to it", "could change the result",
    "too small for", "was disturbed", "slowest GPU keeps", "peers is", "this run had one",
)  # fmt: skip


def told(verdict: Verdict, tell: Callable[[str], str]) -> Iterator[str]:
    """What is told of a verdict; `tell` shortens its sentences."""
    verdict = worded(verdict)
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
    yield f"{outcome} {value}{ends}{place}{numbers}{flags}: {tell(verdict.reason)}"
    if verdict.against_slowest is not None:
        slowest = verdict.against_slowest
        ends = "" if slowest.interval is None else " ({:.4g} … {:.4g})".format(*slowest.interval)
        yield f"= {slowest.value:.4g}{ends} against {slowest.place}, {slowest.behind:.3f} behind"
    yield from (f"! {_culprit(one)}: {tell(one.evidence)}" for one in verdict.culprits)
    yield from (f"~ {tell(note)}" for note in verdict.notes)


def rules(sentence: str) -> str:
    """Names of the rules that a sentence speaks of, clause by clause; a clause without a name as it is."""
    found = []
    for clause in sentence.split("; "):
        names = [name for words, name in RULES if words in clause]
        found += names or [clause] * (not any(words in clause for words in ADDED))
    return " ".join(dict.fromkeys(found))


def _culprit(one: Culprit) -> str:
    ends = [(place.host, place.index, place.uuid or None) for place in one.places]
    where = " – ".join(" ".join(str(part) for part in end if part is not None) for end in ends)
    how = "" if one.is_certain else " perhaps"
    how += " computed wrong" * one.computed_wrong
    how += "" if one.slowdown is None else f" ×{one.slowdown:.3f}"
    how += "" if one.peers is None else f" of {one.peers} in {one.slow_rounds}/{one.rounds}"
    return f"{one.kind} {where}{how}"
