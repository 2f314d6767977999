"""What to do about a cause: one or two actions, each with a command to paste."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_ddpscale.report import text
from pytest_ddpscale.report.cause import Cause, causes, warnings
from pytest_ddpscale.report.cause_kinds import CAUSES
from pytest_ddpscale.run.run_json import WATERMARK, RunRecord
from pytest_ddpscale.run.verdicts import CauseRecord, Judgement, NextStep
from pytest_ddpscale.util.listing import first_few

_MOST_NAMED = 3  # requirements, metrics or workloads in one -k
_SELECTING = ("-k", "-m", "--ddp-world-sizes")  # options of one run that `RunRecord.again` leaves out
_BUDGET = "--ddp-budget"


def next_steps(cause: Cause, judgement: Judgement, run: RunRecord | None) -> tuple[NextStep, ...]:
    """One or two steps; the commands are words of a shell, quoted.

    Args:
        cause: one of `causes` or `warnings` of the judgement.
        judgement: of the run.
        run: the run's run.json; None if it is not known, and nothing can be measured again.
    """
    can_measure = run is not None and not (run.is_imported or judgement.simulated or run.is_simulated())
    if run is not None and can_measure and (judgement.unfinished or cause.id == "interrupted"):
        return (NextStep("measure the rest", _resume(judgement, run)),)
    first = _look_or_drain(cause, judgement, run)
    if run is None or not can_measure:
        return (first,)
    found = [one for one in judgement.verdicts if one.id in cause.explains]
    if found and all(one.code == "few-peers" for one in found):
        return (NextStep("measure with more nodes, or set a bound of the site's own"),)
    if cause.id == "undecided":
        return (NextStep(first.action, _measure_longer(cause, judgement, run)),)
    return (first, NextStep("then measure again", _measure_again(run.command_again, cause, judgement)))


def cause_records(judgement: Judgement, run: RunRecord) -> tuple[CauseRecord, ...]:
    """All causes and warnings with what to do about them, for verdicts.json."""
    return tuple(
        CauseRecord(
            one.id, one.severity, one.category, one.sentence, next_steps(one, judgement, run), one.culprits,
            tuple(sorted(one.explains)),
        )
        for one in (*(() if judgement.accepts else causes(judgement)), *warnings(judgement))
    )  # fmt: skip


def _look_or_drain(cause: Cause, judgement: Judgement, run: RunRecord | None) -> NextStep:
    """Drain the nodes of certain culprits, look at those of suspects, or else what to check."""
    if cause.id == "run-not-accepted" and cause.sentence.startswith(WATERMARK.lower()):
        return NextStep("a simulation accepts no machine; --ddp-rehearse shows what a measured one would get")
    action = CAUSES[cause.id].action
    named = [one for one in cause.culprits if one.is_certain or cause.category != "ISOLATE"]
    hosts = dict.fromkeys(text.one_line(host) for one in named for host in one.hosts)
    if not hosts:
        return NextStep(action)
    where = first_few([*hosts], 2)
    if cause.category == "ISOLATE":
        return NextStep(f"drain {where}; {action}", _culprits(judgement, run))
    if cause.category == "MONITOR":
        return NextStep(f"watch {where}: {action}")
    return NextStep(f"look at {where}: {action}", _culprits(judgement, run))


def _culprits(judgement: Judgement, run: RunRecord | None) -> str:
    """The command that says which nodes to drain; none for an imported run, from which nothing follows."""
    where = judgement.basis.get("verdicts_path") or judgement.basis.get("measurements_path")
    if where is None or run is None or run.is_imported:
        return ""
    rehearses = ["--rehearse"] if judgement.simulated or run.is_simulated() else []
    return _shell(["ddpscale", "culprits", *rehearses, str(Path(where).parent)])


def _resume(judgement: Judgement, run: RunRecord) -> str:
    """The run's command with its selection, for the rest of it."""
    where = judgement.basis.get("measurements_path")
    return _shell([*run.command_again, *_selection(run.argv), f"--ddp-resume={Path(where).parent}"]) if where else ""


def _selection(argv: Sequence[str]) -> Iterator[str]:
    """The words of a command line that select what to measure."""
    words = iter(argv[1:])
    for word in words:
        if word in _SELECTING:
            yield from (word, next(words, ""))
        elif word.startswith(("-k", "-m", "--ddp-world-sizes=")):
            yield word


def _measure_longer(cause: Cause, judgement: Judgement, run: RunRecord) -> str:
    """Twice the rounds without a time limit."""
    found = [one for one in judgement.verdicts if one.id in cause.explains]
    longer = f"--ddp-rounds={2 * max(16, *(one.rounds for one in found))}"
    kept = [word for word in run.command_again if not word.startswith((f"{_BUDGET}=", "--ddp-rounds"))]
    return _measure_again((*kept, longer), cause, judgement)


def _measure_again(command: Sequence[str], cause: Cause, judgement: Judgement) -> str:
    """The command that measures all again that the cause explains, and perhaps more."""
    requirements = {one.id: one for one in judgement.verdicts if one.id in cause.explains}
    tests = [one.name for one in judgement.other_blockers if one.kind == "test" and one.name in cause.explains]
    named = [*requirements, *tests]
    for part in ("metric", "workload"):
        if len(named) > _MOST_NAMED and not tests:
            named = list(dict.fromkeys(getattr(one, part) for one in requirements.values()))
    selected = ["-k", " or ".join(named)] if 0 < len(named) <= _MOST_NAMED else []
    return _shell([*command, *selected])


def _shell(words: Sequence[str]) -> str:
    return shlex.join([text.one_line(word) for word in words])
