"""What a run's verdicts come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.results.coverage import Coverage
from pytest_ddpscale.results.verdicts import ACCEPTING, Blocker, RunOutcome, Verdict
from pytest_ddpscale.util.listing import first_few

ONE_NODE = Coverage()
_SPOILED = "was skipped, or failed for something else than its verdict"


def conclude(
    verdicts: Sequence[Verdict], required: int, interrupted: bool = False, coverage: Coverage = ONE_NODE
) -> tuple[RunOutcome, str]:
    """The run's outcome and why, in one sentence.

    Args:
        verdicts: of everything that was selected.
        required: how many requirements the SKU has; fewer verdicts make a partial run.
        interrupted: the session ended before every selected item was judged.
        coverage: what was tested.

    Returns:
        ``rejected`` if any requirement of severity ``fail`` failed and is not waived. Else ``incomplete`` if one of
        severity ``fail`` is undecided, if any at all but a node check of severity ``warn`` is not measured or broke,
        or if none passed.
        Else ``partial`` if requirements were left out. Else ``accepted``, unless no passed
        requirement of severity ``fail`` with a published bound covers all devices that were
        measured, which is ``incomplete``: a provisional bound cannot accept a cluster on its own.
        On several nodes it is enough that each keeps one by itself, if a bound on speed over all nodes is
        kept and none between nodes that is provisional fails, which has to be calibrated first, or is undecided.
        ``accepted_with_waivers`` in place of ``accepted`` if any failure is waived.
    """
    blocking = [v for v in verdicts if v.blocks()]
    failed = [v for v in blocking if v.outcome == "failed"]
    if failed:
        return "rejected", f"{len(failed)} of {len(verdicts)} requirements failed: {_names(failed)}"
    broken = [v for v in blocking if v.outcome in ("error", "not_measured")]
    if broken:
        return "incomplete", f"{len(broken)} of {len(verdicts)} requirements were not measured: {_names(broken)}"
    if blocking:
        return "incomplete", f"{len(blocking)} of {len(verdicts)} requirements are inconclusive: {_names(blocking)}"
    if interrupted:
        return "incomplete", f"interrupted after {len(verdicts)} of {required} requirements"
    if not verdicts:
        return "incomplete", "no requirement was judged"
    return _among_the_decided(verdicts, required, coverage)


def _among_the_decided(verdicts: Sequence[Verdict], required: int, coverage: Coverage) -> tuple[RunOutcome, str]:
    passed, waived = [v for v in verdicts if v.passed], [v for v in verdicts if v.is_waived]
    warned = len(verdicts) - len(passed) - len(waived)
    count = f"{len(passed)} of {required} requirements {'met' if waived else 'passed'}"
    count += f", {len(waived)} waived" if waived else ""
    count += f", {warned} warned" if warned else ""
    if not passed:
        return "incomplete", f"{count}: there is nothing to accept"
    if len(verdicts) < required:
        return "partial", f"{count}; the others were not selected"
    if not rests_on_published(verdicts, coverage):
        return "incomplete", (
            f"{count}, but none with a published bound covers all devices: provisional bounds warn, they do not "
            "accept. Put measured numbers with their source into the thresholds file (`ddpscale calibrate`)"
        )
    if coverage.is_on_several_nodes:
        return _between_nodes(verdicts, count, coverage)
    return _accepted(verdicts), count


def _between_nodes(verdicts: Sequence[Verdict], count: str, coverage: Coverage) -> tuple[RunOutcome, str]:
    """Accepted if what is between nodes was measured over all of them and is as it should be."""
    between = [v for v in verdicts if v.id in coverage.between_nodes]
    uncalibrated = [v for v in between if v.outcome == "failed" and v.provisional]
    if uncalibrated:
        return "incomplete", (
            f"{count}, but between nodes a provisional bound is not kept: {_names(uncalibrated)}. "
            "Find the fault, or calibrate the bound: put what a sound cluster reaches into the thresholds file"
        )
    undecided = [v for v in between if v.outcome == "inconclusive" and v.provisional]
    if undecided:
        return "incomplete", f"{count}, but between nodes {len(undecided)} are inconclusive: {_names(undecided)}"
    over_all = [v for v in between if v.passed and v.id in coverage.over_all_nodes]
    kept = [v for v in over_all if METRICS[v.metric].tells_speed]
    if not kept:
        return "incomplete", (
            f"{count}, but nothing between nodes: no requirement on speed was kept by all {coverage.node_count} nodes "
            "together"
        )
    provisional = all(v.provisional for v in kept)
    return _accepted(verdicts), f"{count}; between nodes: provisional bounds" if provisional else count


def _accepted(verdicts: Sequence[Verdict]) -> RunOutcome:
    return "accepted_with_waivers" if any(v.is_waived for v in verdicts) else "accepted"


@dataclass(frozen=True)
class RunCaveats:
    """What keeps verdicts that are good enough from accepting a machine.

    Attributes:
        spoiled: names of test items that were skipped, or failed for something else than their verdict.
        coverage: what was tested.
        not_one_machine: why the studies were not all measured on the same devices; empty if they were.
        is_simulated: nothing was measured.
        silent: what is known of each GPU that does not answer, so that nothing was measured on it.
        slow_links: nodes and links that communicate slowly for certain, in words.
        allows_unmeasured: whether somebody said that not everything need be measured.
    """

    spoiled: Sequence[str] = ()
    coverage: Coverage = field(default_factory=Coverage)
    not_one_machine: str = ""
    is_simulated: bool = False
    silent: Sequence[str] = ()
    slow_links: Sequence[str] = ()
    allows_unmeasured: bool = False


def qualified(outcome: RunOutcome, reason: str, caveats: RunCaveats) -> tuple[RunOutcome, str]:
    """The outcome as it stands in view of the caveats, and why; one that is not good is left as it is."""
    if outcome not in (*ACCEPTING, "partial"):
        return outcome, reason
    if caveats.is_simulated:
        return "incomplete", f"simulated: no machine was measured ({reason})"
    if caveats.silent:
        return "incomplete", f"{caveats.silent[0]} ({reason})"
    if caveats.not_one_machine:
        return "incomplete", caveats.not_one_machine
    if caveats.spoiled:
        names = ", ".join(caveats.spoiled)
        return "incomplete", f"{len(caveats.spoiled)} test items were skipped or failed otherwise: {names}"
    if absent := caveats.coverage.nodes_absent:
        nodes = caveats.coverage.node_count
        return "incomplete", f"{reason}, but {len(absent)} of {nodes} nodes were not tested: {first_few(absent)}"
    if caveats.slow_links:
        return "incomplete", f"{reason}, but communication is slow at {caveats.slow_links[0]}"
    return _as_far_as_covered(outcome, reason, caveats.coverage) if outcome in ACCEPTING else (outcome, reason)


def _as_far_as_covered(outcome: RunOutcome, reason: str, coverage: Coverage) -> tuple[RunOutcome, str]:
    """What would be accepted, unless something of the machine took no part."""
    if idle := coverage.idle_gpus:
        names = first_few([f"{gpu.name} on {node.host}" for node, gpu in idle])
        return "partial", f"{reason}, but {len(idle)} of {len(coverage.gpus)} GPUs took no part in any of them: {names}"
    if coverage.is_on_several_nodes and (idle_nodes := coverage.nodes_idle):
        return "partial", f"{reason}, but {len(idle_nodes)} of {coverage.node_count} nodes took no part in any of them"
    missing = coverage.paths_planned - len(coverage.paths)
    why = f": {coverage.why_paths_are_missing}" if coverage.why_paths_are_missing else ""
    if missing > 0:
        return "incomplete", (
            f"{reason}, but {missing} of {coverage.paths_planned} pairs of nodes were not measured with each other{why}"
        )
    if why:  # those that were slow have not been measured again
        return "incomplete", f"{reason}, but the search for a slow node or link did not end{why}"
    return outcome, reason


def may_accept(verdict: Verdict) -> bool:
    """Whether a machine may be accepted because of this: a published bound that can reject was kept."""
    is_kept = verdict.passed and verdict.severity == "fail" and not verdict.provisional
    return is_kept and METRICS[verdict.metric].carries_acceptance


def rests_on_published(verdicts: Sequence[Verdict], coverage: Coverage = ONE_NODE) -> bool:
    """Whether a published bound that can reject was kept by all devices: together, or on each node by itself.

    A bound at a smaller world size says nothing about the devices beyond it, and that GPUs are alike or compute
    the same says nothing about how fast they are.
    """
    largest = max((v.world_size for v in verdicts), default=0)
    if coverage.is_on_several_nodes:
        on_each = min(largest, coverage.ranks_per_node)
        alone = [v for v in verdicts if v.world_size == on_each and v.id not in coverage.between_nodes]
        together = [v for v in verdicts if v.world_size == coverage.ranks]
        return any(map(may_accept, (*alone, *together)))
    return any(may_accept(v) and v.world_size == largest for v in verdicts)


def other_blockers(
    verdicts: Sequence[Verdict], required: int, interrupted: bool, coverage: Coverage, caveats: RunCaveats
) -> tuple[Blocker, ...]:
    """What besides requirements keeps a machine from being accepted: `Judgement.other_blockers`.

    What is about the run as a whole is named if nothing else is. Arguments as of `conclude` and `qualified`; where
    `RunCaveats.allows_unmeasured`, what was not measured counts as if nobody had required it.
    """
    found = tuple(Blocker("test", name, _SPOILED) for name in caveats.spoiled)
    if found or any(v.blocks(allows_unmeasured=caveats.allows_unmeasured) for v in verdicts):
        return found
    if caveats.allows_unmeasured:
        measured = [v for v in verdicts if v.outcome != "not_measured"]
        verdicts, required = measured, required - (len(verdicts) - len(measured))
    outcome, reason = qualified(*conclude(verdicts, required, interrupted, coverage), caveats)
    return () if outcome in (*ACCEPTING, "partial") else (Blocker("run", "acceptance", reason),)


def _names(verdicts: Sequence[Verdict]) -> str:
    return first_few([verdict.id for verdict in verdicts])
