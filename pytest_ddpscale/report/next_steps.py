"""What to do about a cause: one or two steps, each with the command to paste."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_ddpscale.report.causes import Cause, causes, warnings
from pytest_ddpscale.report.words.cause_kinds import CAUSES
from pytest_ddpscale.run.run_json import WATERMARK, RunRecord
from pytest_ddpscale.run.verdicts import CauseRecord, Judgement, NextStep
from pytest_ddpscale.util.listing import first_nodes
from pytest_ddpscale.util.printable import one_line, shell_line

_MOST_NAMED = 3  # requirements, metrics or workloads in one -k
_SELECTING = ("-k", "-m", "--ddp-world-sizes")  # options of one run that `RunRecord.again` leaves out


def cause_records(judgement: Judgement, run: RunRecord) -> tuple[CauseRecord, ...]:
    """All causes and warnings with what to do about them, for verdicts.json."""
    every_cause = (*(() if judgement.accepts else causes(judgement)), *warnings(judgement))
    return tuple(
        CauseRecord(
            cause.id, cause.severity, cause.category, cause.sentence, next_steps(cause, judgement, run), cause.culprits,
            tuple(sorted(cause.explains)),
        )
        for cause in every_cause
    )  # fmt: skip


def next_steps(cause: Cause, judgement: Judgement, run: RunRecord | None) -> tuple[NextStep, ...]:
    """One or two steps; the commands are words of a shell, quoted.

    Args:
        cause: one of `causes` or `warnings` of the judgement.
        judgement: of the run.
        run: the run's run.json; None if it is not known, and nothing can be measured again.
    """
    first = _look_or_drain(cause, judgement, run)
    if run is None or run.is_imported or judgement.simulated or run.is_simulated():
        return (first,)
    again = run.command_again
    if judgement.unfinished or cause.id == "interrupted":
        where = judgement.basis.get("measurements_path")
        resume = shell_line([*again, *_selection(run.argv), f"--ddp-resume={Path(where).parent}"]) if where else ""
        return (NextStep("measure the rest", resume),)
    explained = [verdict for verdict in judgement.verdicts if verdict.id in cause.explains]
    if explained and all(verdict.code == "few-peers" for verdict in explained):
        return (NextStep("measure with more nodes, or set a bound of the site's own"),)
    if cause.id != "undecided":
        return (first, NextStep("then measure again", _measure_again(again, cause, judgement)))
    if run.load and run.load[0] > run.load[1]:
        busy = "load average {:g} on {} cores: wait until the machine is idle, then measure again".format(*run.load)
        return (NextStep(busy, _measure_again(again, cause, judgement)),)
    # Twice the rounds without a time limit.
    longer = [word for word in again if not word.startswith(("--ddp-budget=", "--ddp-rounds"))]
    longer.append(f"--ddp-rounds={2 * max(16, *(verdict.rounds for verdict in explained))}")
    return (NextStep(first.action, _measure_again(longer, cause, judgement)),)


def _look_or_drain(cause: Cause, judgement: Judgement, run: RunRecord | None) -> NextStep:
    """Drain the nodes of certain culprits, look at those of suspects, or else what to check."""
    if cause.id == "run-not-accepted" and cause.sentence.startswith(WATERMARK.lower()):
        return NextStep("a simulation accepts no machine; --ddp-rehearse shows what a measured one would get")
    action = CAUSES[cause.id].action
    named = [culprit for culprit in cause.culprits if culprit.is_certain or cause.category != "ISOLATE"]
    hosts = {one_line(host) for culprit in named for host in culprit.hosts}
    if not hosts:
        return NextStep(action)
    where = first_nodes(hosts, 2)
    orders = {"ISOLATE": f"drain {where}; ", "CHECK": f"look at {where}: ", "MONITOR": f"watch {where}: "}
    action = f"{orders[cause.category]}{action}"
    # From an imported run nothing follows for a node, nor from what only warns.
    path = judgement.basis.get("verdicts_path") or judgement.basis.get("measurements_path")
    if path is None or run is None or run.is_imported or cause.category == "MONITOR":
        return NextStep(action)
    rehearses = ["--rehearse"] * (judgement.simulated or run.is_simulated())
    return NextStep(action, shell_line(["ddpscale", "culprits", *rehearses, str(Path(path).parent)]))


def _selection(argv: Sequence[str]) -> Iterator[str]:
    """The words of a command line that select what to measure."""
    words = iter(argv[1:])
    for word in words:
        if word.startswith(_SELECTING):
            yield word
            if word in _SELECTING:
                yield next(words, "")


def _measure_again(command: Sequence[str], cause: Cause, judgement: Judgement) -> str:
    """The command that measures all again that the cause explains, and perhaps more."""
    explained = [verdict for verdict in judgement.verdicts if verdict.id in cause.explains]
    tests = [
        blocker.name
        for blocker in judgement.other_blockers
        if blocker.kind == "test" and blocker.name in cause.explains
    ]
    names = [[*(verdict.id for verdict in explained), *tests]]
    if not tests:
        names += [[verdict.metric for verdict in explained], [verdict.workload for verdict in explained]]
    named = next(
        (names_of_kind for names_of_kind in map(dict.fromkeys, names) if len(names_of_kind) <= _MOST_NAMED), {}
    )
    return shell_line([*command, *(["-k", " or ".join(named)] if named else [])])
