"""The outcome of a run: from its verdicts, their waivers, and what else stands in the way of acceptance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

from pytest_ddpscale.judge.covering import is_between_nodes
from pytest_ddpscale.plan.metric_catalogue import METRICS, THROUGHPUT_PER_GPU
from pytest_ddpscale.run.coverage import PROBES, TRAINING, Coverage
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import (
    ACCEPTING,
    PARTLY_KNOWN,
    WRONG_DATA,
    Blocker,
    CauseId,
    RunOutcome,
    UniformLoss,
    Verdict,
)
from pytest_ddpscale.thresholds.cases import AnyCase
from pytest_ddpscale.thresholds.model import why_never_waived
from pytest_ddpscale.thresholds.waiver import Waiver
from pytest_ddpscale.util.listing import first_few

_NEWLINE = "\n"


@dataclass(frozen=True)
class RunFacts:
    """What decides the outcome of a run.

    Attributes:
        verdicts: on all selected requirements.
        required: number of requirements of the SKU; fewer verdicts make a partial run.
        interrupted: the session ended before every selected item was judged.
        coverage: of the machine.
        spoiled: test items that were skipped, or failed for a reason other than their verdict.
        not_one_machine: why the studies were not all measured on the same devices; empty if they were.
        silent: description of each GPU that does not answer and was not measured.
        lost: why hosts were lost that did not take part again, by host.
        slow_links: descriptions of nodes and links that certainly communicate slowly.
        wrong_data: descriptions of probes with wrong results on which no verdict is (`judge.wrong_data`).
        allows_unmeasured: whether requirements may stay unmeasured.
        calibrate: command that computes bounds of the site from this run.
    """

    verdicts: Sequence[Verdict]
    required: int
    interrupted: bool = False
    coverage: Coverage = field(default_factory=Coverage)
    spoiled: Sequence[Blocker] = ()
    not_one_machine: str = ""
    is_simulated: bool = False
    silent: Sequence[str] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    slow_links: Sequence[str] = ()
    allows_unmeasured: bool = False
    wrong_data: Sequence[str] = ()
    calibrate: str = "ddpscale calibrate RUN_DIR"


def conclude(run: RunFacts) -> tuple[RunOutcome, str]:
    """The run's outcome and why, in one sentence.

    Returns:
        ``rejected`` if any requirement of severity ``fail`` failed and is not waived. Else ``incomplete`` if one of
        severity ``fail`` is undecided, if any was not measured or broke (except node checks of severity ``warn``), or
        if none passed. Else ``partial`` if requirements were left out.
        Else ``accepted`` if a passed requirement of severity ``fail`` with a published bound covers all measured
        devices; otherwise ``incomplete``, because provisional bounds alone cannot accept a cluster. On several nodes
        it is enough that each node meets such a bound alone, if all nodes together meet a bound on speed and no bound
        between nodes fails (find the fault, or calibrate it first) or is undecided, whatever its severity.
        ``accepted_with_waivers`` instead of ``accepted`` if any failure is waived. Good outcomes also need everything
        else in order, and all parts of the machine tested.
    """
    outcome, reason = _by_verdicts(run)
    if outcome not in (*ACCEPTING, "partial"):
        return outcome, reason
    if found := next(_in_the_way(run, reason), None):
        return "incomplete", found[1]
    return next(_not_covered(run.coverage, reason), (outcome, reason)) if outcome in ACCEPTING else (outcome, reason)


def _by_verdicts(run: RunFacts) -> tuple[RunOutcome, str]:
    verdicts, judged = run.verdicts, len(run.verdicts)
    blocking = [v for v in verdicts if v.blocks()]
    failed = [v for v in blocking if v.outcome == "failed"]
    if failed:
        return "rejected", f"{_of(len(failed), judged)} failed: {_names(failed)}"
    broken = [v for v in blocking if v.outcome in ("error", "not_measured")]
    if broken:
        return "incomplete", f"{_of(len(broken), judged)} not measured: {_names(broken)}"
    if blocking:
        return "incomplete", f"{_of(len(blocking), judged)} undecided: {_names(blocking)}"
    if run.interrupted:
        return "incomplete", f"interrupted after {_of(judged, run.required)}"
    if not verdicts:
        return "incomplete", "no requirement was judged"
    passed, waived = [v for v in verdicts if v.passed], [v for v in verdicts if v.is_waived]
    warned = judged - len(passed) - len(waived)
    count = f"{_of(len(passed), run.required)} {'met' if waived else 'passed'}"
    count += f", {len(waived)} waived" if waived else ""
    count += f", {warned} warned" if warned else ""
    if not passed:
        return "incomplete", f"{count}: there is nothing to accept"
    if judged < run.required:
        return "partial", f"{count}; {run.required - judged} not selected"
    # If studies ran on different hosts, these are separate machines with nothing to measure between them.
    coverage = Coverage() if run.not_one_machine else run.coverage
    if not rests_on_published(verdicts, coverage):
        return "incomplete", (
            f"not decidable without site bounds: {run.calibrate} (no published bound covers all devices; calibration "
            "takes runs of 3 trusted nodes or more, better 10)"
        )
    accepted: RunOutcome = "accepted_with_waivers" if waived else "accepted"
    if not coverage.is_on_several_nodes:
        return accepted, count
    # Requirements between nodes have to be measured over all of them, and met.
    between = [v for v in verdicts if v.id in coverage.between_nodes]
    missed = [v for v in between if v.outcome == "failed"]
    if missed:
        return "incomplete", (
            f"{count}, but between nodes a bound is missed: {_names(missed)}. "
            "Find the fault, or calibrate the bound: put the value of a healthy cluster into the thresholds file"
        )
    undecided = [v for v in between if v.outcome == "inconclusive"]
    if undecided:
        return "incomplete", f"{count}, but {len(undecided)} undecided between nodes: {_names(undecided)}"
    over_all = [v for v in between if v.passed and v.id in coverage.over_all_nodes]
    kept = [v for v in over_all if METRICS[v.metric].tells_speed]
    if not kept:
        return "incomplete", (
            f"{count}, but none between nodes: no requirement on speed was met by all {coverage.node_count} nodes "
            "together"
        )
    return accepted, f"{count}; between nodes: provisional bounds" if all(v.provisional for v in kept) else count


def _in_the_way(run: RunFacts, reason: str) -> Iterator[tuple[CauseId, str]]:
    """Why a run with good verdicts is incomplete, the most important reason first, and which kind of cause it is."""
    if run.wrong_data:
        yield "wrong-data", f"{reason}, but {run.wrong_data[0]}, on which no requirement is judged"
    if run.silent:
        yield "lost-gpu", f"{run.silent[0]} ({reason})"
    if run.not_one_machine:
        yield "run-not-accepted", run.not_one_machine
    for host, why in run.lost.items():
        yield "lost-node", f"{host} was lost while measuring: {why.partition(_NEWLINE)[0]} ({reason})"
    if run.spoiled:
        names = ", ".join(one.name for one in run.spoiled)
        yield "test-failed", f"tests skipped, or failed otherwise: {names}"
    if absent := run.coverage.nodes_absent:
        nodes = run.coverage.node_count
        yield "not-measured", f"{reason}, but {len(absent)} of {nodes} nodes not tested: {first_few(absent)}"
    if run.slow_links:
        yield "slow-node-link", f"{reason}, but communication is slow at {run.slow_links[0]}"
    if run.is_simulated:  # last, so that a rehearsal shows what else there is
        yield "run-not-accepted", f"simulated: no machine was measured ({reason})"


def _not_covered(coverage: Coverage, reason: str) -> Iterator[tuple[RunOutcome, str]]:
    """The outcome if parts of the machine were not tested."""
    if idle := coverage.idle_gpus:
        names = first_few([f"{gpu.place.number} on {gpu.place.host}" for gpu in idle])
        yield "partial", f"{reason}, but none of them tested {len(idle)} of {len(coverage.gpus)} GPUs: {names}"
    idle_nodes = sum(not (one.left_out or {PROBES, TRAINING} & {*one.tested_by}) for one in coverage.nodes)
    if coverage.is_on_several_nodes and idle_nodes:
        yield "partial", f"{reason}, but none of them tested {idle_nodes} of {coverage.node_count} nodes"
    missing = coverage.paths_planned - len(coverage.paths)
    why = f": {coverage.why_paths_are_missing}" if coverage.why_paths_are_missing else ""
    if missing > 0:
        pairs = f"{missing} of {coverage.paths_planned} pairs of nodes"
        yield "incomplete", f"{reason}, but {pairs} not measured with each other{why}"
    if why:  # slow pairs were not measured again
        yield "incomplete", f"{reason}, but the search for a slow node or link did not end{why}"


def rests_on_published(verdicts: Sequence[Verdict], coverage: Coverage) -> bool:
    """Whether all devices meet a published bound that can reject: together, or on each node alone.

    A bound at a smaller world size does not cover the other devices, and requirements on equal speed or equal results
    say nothing about how fast GPUs are.
    """
    largest = max((v.world_size for v in verdicts), default=0)
    if coverage.is_on_several_nodes:
        on_each = min(largest, coverage.ranks_per_node)
        alone = [v for v in verdicts if v.world_size == on_each and v.id not in coverage.between_nodes]
        covering = [*alone, *(v for v in verdicts if v.world_size == coverage.ranks)]
    else:
        covering = [v for v in verdicts if v.world_size == largest]
    return any(
        v.passed and v.severity == "fail" and not v.provisional and METRICS[v.metric].carries_acceptance
        for v in covering
    )


def other_blockers(run: RunFacts) -> tuple[Blocker, ...]:
    """Reasons other than requirements why a machine is not accepted: `Judgement.other_blockers`.

    A reason on the run as a whole is returned only if there is no other. With `RunFacts.allows_unmeasured`,
    requirements that were not measured count as not required.
    """
    found = tuple(run.spoiled)
    if found or any(v.blocks(allows_unmeasured=run.allows_unmeasured) for v in run.verdicts):
        return found
    if run.allows_unmeasured:
        measured = [v for v in run.verdicts if v.outcome != "not_measured"]
        run = replace(run, verdicts=measured, required=run.required - (len(run.verdicts) - len(measured)))
    outcome, reason = conclude(run)
    if outcome in (*ACCEPTING, "partial"):
        return ()
    by_verdicts, why = _by_verdicts(run)
    good = by_verdicts in (*ACCEPTING, "partial")
    kind = next((kind for kind, _ in _in_the_way(run, why)), None) if good else None
    return (Blocker("run", "acceptance", reason, kind or "run-not-accepted"),)


def _of(some: int, all_: int) -> str:
    return f"{some} of {all_} requirement{'' if all_ == 1 else 's'}"


def _names(some: Sequence[Verdict]) -> str:
    return first_few([one.id for one in some])


def with_waiver(verdict: Verdict, case: AnyCase, evidence: Evidence, day: date) -> Verdict:
    """The verdict, waived if its requirement has a waiver that covers this failure; else with a note why not.

    `day` is the day of judgement, in UTC.
    """
    waiver = case.requirement.waiver
    if waiver is None or why_never_waived(case.requirement):
        return verdict
    note = _why_not(verdict, waiver, case, evidence, day)
    return replace(verdict, notes=(*verdict.notes, note)) if note else replace(verdict, waiver=waiver)


def _why_not(verdict: Verdict, waiver: Waiver, case: AnyCase, evidence: Evidence, day: date) -> str:
    if verdict.passed:
        return f"{waiver}: not needed"
    if verdict.outcome != "failed":
        return f"{waiver}: not applied, because only a failure can be waived"
    if not waiver.holds_on(day):
        return f"waiver by {waiver.who} ended {waiver.until}"
    if WRONG_DATA in verdict.flags:
        return f"{waiver}: not applied, because wrong data cannot be waived"
    if PARTLY_KNOWN in verdict.flags:
        return f"{waiver}: not applied, because other places were not measured or are undecided"
    if is_between_nodes(case, evidence):
        return f"{waiver}: not applied, because a result between nodes cannot be waived"
    return ""


def uniform_loss(
    verdicts: Iterable[Verdict], confidence: float, judge_at: Callable[[str, float], Verdict]
) -> UniformLoss | None:
    """The largest loss common to all GPUs that cannot be excluded.

    Comparing ranks with each other, or many GPUs with one, cannot show a loss common to all. Only a reference
    throughput can, published or the site's own, within the margin of its bound. The undetected loss is limited by the
    distance from that value to the lower limit of the measured interval.

    A common loss shows in each workload, so the workload with the smallest distance limits it. The smallest of several
    distances holds with the requested confidence if each is taken at 1 - (1 - confidence) / workloads (Bonferroni).
    This assumes that healthy GPUs reach each reference equally: newer software that speeds up one workload would
    hide the loss in the others. So the largest distance is reported too. One requirement of each workload is used,
    independent of the measurements: the throughput of the most GPUs, else the ratio to an earlier generation, which is
    the same throughput divided by a constant.

    None if no requirement that would show the loss passed, or if any shows such a loss. `judge_at` judges the
    requirement with an id again, at another confidence.
    """
    chosen: dict[str, Verdict] = {}
    shown = [one for one in verdicts if one.shows_uniform_loss]
    if any(one.is_uniform_loss for one in shown):
        return None
    for one in sorted(shown, key=lambda one: (one.metric != THROUGHPUT_PER_GPU.name, -one.world_size)):
        chosen.setdefault(one.workload, one)
    together = 1 - (1 - confidence) / max(len(chosen), 1)
    again = [judge_at(one.id, together) for one in chosen.values() if one.passed]
    # Distance from the reference down to the lower limit, relative to the reference.
    losses = {one.id: max(0.0, 1 - one.interval[0] / one.published) for one in again if one.interval and one.published}
    if not losses:
        return None
    name = min(losses, key=lambda name: losses[name])
    return UniformLoss(losses[name], max(losses.values()), confidence, name, len(losses))
