"""The outcome of a run, from its verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.run.coverage import Coverage
from pytest_ddpscale.run.verdicts import ACCEPTING, Blocker, RunOutcome, Verdict
from pytest_ddpscale.util.listing import first_few

ONE_NODE = Coverage()


def conclude(
    verdicts: Sequence[Verdict], required: int, interrupted: bool = False, coverage: Coverage = ONE_NODE
) -> tuple[RunOutcome, str]:
    """The run's outcome and why, in one sentence.

    Args:
        verdicts: on all selected requirements.
        required: number of requirements of the SKU; fewer verdicts make a partial run.
        interrupted: the session ended before every selected item was judged.
        coverage: of the machine.

    Returns:
        ``rejected`` if any requirement of severity ``fail`` failed and is not waived. Else ``incomplete`` if one of
        severity ``fail`` is undecided, if any was not measured or broke (except node checks of severity ``warn``), or
        if none passed. Else ``partial`` if requirements were left out.
        Else ``accepted`` if a passed requirement of severity ``fail`` with a published bound covers all measured
        devices; otherwise ``incomplete``, because provisional bounds alone cannot accept a cluster. On several nodes
        it is enough that each node meets such a bound alone, if all nodes together meet a bound on speed and no
        provisional bound between nodes fails (calibrate it first) or is undecided.
        ``accepted_with_waivers`` instead of ``accepted`` if any failure is waived.
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
        return "partial", f"{count}; {required - len(verdicts)} not selected"
    if not rests_on_published(verdicts, coverage):
        return "incomplete", (
            f"{count}, but none with a published bound covers all devices: provisional bounds warn, they do not "
            "accept. Put measured numbers with their source into the thresholds file (`ddpscale calibrate`)"
        )
    if coverage.is_on_several_nodes:
        return _between_nodes(verdicts, count, coverage)
    return _accepted(verdicts), count


def _between_nodes(verdicts: Sequence[Verdict], count: str, coverage: Coverage) -> tuple[RunOutcome, str]:
    """Accepted if requirements between nodes were measured over all of them and are met."""
    between = [v for v in verdicts if v.id in coverage.between_nodes]
    uncalibrated = [v for v in between if v.outcome == "failed" and v.provisional]
    if uncalibrated:
        return "incomplete", (
            f"{count}, but between nodes a provisional bound is missed: {_names(uncalibrated)}. "
            "Find the fault, or calibrate the bound: put the value of a healthy cluster into the thresholds file"
        )
    undecided = [v for v in between if v.outcome == "inconclusive" and v.provisional]
    if undecided:
        return "incomplete", f"{count}, but between nodes {len(undecided)} are inconclusive: {_names(undecided)}"
    over_all = [v for v in between if v.passed and v.id in coverage.over_all_nodes]
    kept = [v for v in over_all if METRICS[v.metric].tells_speed]
    if not kept:
        return "incomplete", (
            f"{count}, but none between nodes: no requirement on speed was met by all {coverage.node_count} nodes "
            "together"
        )
    provisional = all(v.provisional for v in kept)
    return _accepted(verdicts), f"{count}; between nodes: provisional bounds" if provisional else count


def _accepted(verdicts: Sequence[Verdict]) -> RunOutcome:
    return "accepted_with_waivers" if any(v.is_waived for v in verdicts) else "accepted"


@dataclass(frozen=True)
class RunCaveats:
    """Reasons not to accept a machine although its verdicts are good enough.

    Attributes:
        spoiled: test items that were skipped, or failed for a reason other than their verdict.
        coverage: of the machine.
        not_one_machine: why the studies were not all measured on the same devices; empty if they were.
        is_simulated: the run was simulated.
        silent: description of each GPU that does not answer and was not measured.
        slow_links: descriptions of nodes and links that certainly communicate slowly.
        allows_unmeasured: whether requirements may stay unmeasured.
    """

    spoiled: Sequence[Blocker] = ()
    coverage: Coverage = field(default_factory=Coverage)
    not_one_machine: str = ""
    is_simulated: bool = False
    silent: Sequence[str] = ()
    slow_links: Sequence[str] = ()
    allows_unmeasured: bool = False


def qualified(outcome: RunOutcome, reason: str, caveats: RunCaveats) -> tuple[RunOutcome, str]:
    """The outcome with caveats applied, and why; only good outcomes change."""
    if outcome not in (*ACCEPTING, "partial"):
        return outcome, reason
    if caveats.is_simulated:
        return "incomplete", f"simulated: no machine was measured ({reason})"
    if caveats.silent:
        return "incomplete", f"{caveats.silent[0]} ({reason})"
    if caveats.not_one_machine:
        return "incomplete", caveats.not_one_machine
    if caveats.spoiled:
        names = ", ".join(one.name for one in caveats.spoiled)
        return "incomplete", f"{len(caveats.spoiled)} test items were skipped or failed otherwise: {names}"
    if absent := caveats.coverage.nodes_absent:
        nodes = caveats.coverage.node_count
        return "incomplete", f"{reason}, but {len(absent)} of {nodes} nodes were not tested: {first_few(absent)}"
    if caveats.slow_links:
        return "incomplete", f"{reason}, but communication is slow at {caveats.slow_links[0]}"
    return _as_far_as_covered(outcome, reason, caveats.coverage) if outcome in ACCEPTING else (outcome, reason)


def _as_far_as_covered(outcome: RunOutcome, reason: str, coverage: Coverage) -> tuple[RunOutcome, str]:
    """The outcome, reduced if parts of the machine were not tested."""
    if idle := coverage.idle_gpus:
        names = first_few([f"{gpu.name} on {node.host}" for node, gpu in idle])
        return "partial", f"{reason}, but {len(idle)} of {len(coverage.gpus)} GPUs were tested by none of them: {names}"
    if coverage.is_on_several_nodes and (idle_nodes := coverage.nodes_idle):
        return "partial", f"{reason}, but {len(idle_nodes)} of {coverage.node_count} nodes were tested by none of them"
    missing = coverage.paths_planned - len(coverage.paths)
    why = f": {coverage.why_paths_are_missing}" if coverage.why_paths_are_missing else ""
    if missing > 0:
        return "incomplete", (
            f"{reason}, but {missing} of {coverage.paths_planned} pairs of nodes were not measured with each other{why}"
        )
    if why:  # slow pairs were not measured again
        return "incomplete", f"{reason}, but the search for a slow node or link did not end{why}"
    return outcome, reason


def may_accept(verdict: Verdict) -> bool:
    """Whether a verdict can carry acceptance: it meets a published bound of severity ``fail``."""
    is_kept = verdict.passed and verdict.severity == "fail" and not verdict.provisional
    return is_kept and METRICS[verdict.metric].carries_acceptance


def rests_on_published(verdicts: Sequence[Verdict], coverage: Coverage = ONE_NODE) -> bool:
    """Whether all devices meet a published bound that can reject: together, or on each node alone.

    A bound at a smaller world size does not cover the other devices, and requirements on equal speed or equal results
    say nothing about how fast GPUs are.
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
    """Reasons other than requirements why a machine is not accepted: `Judgement.other_blockers`.

    A reason on the run as a whole is returned only if there is no other. Arguments as in `conclude` and `qualified`;
    with `RunCaveats.allows_unmeasured`, requirements that were not measured count as not required.
    """
    found = tuple(caveats.spoiled)
    if found or any(v.blocks(allows_unmeasured=caveats.allows_unmeasured) for v in verdicts):
        return found
    if caveats.allows_unmeasured:
        measured = [v for v in verdicts if v.outcome != "not_measured"]
        verdicts, required = measured, required - (len(verdicts) - len(measured))
    outcome, reason = qualified(*conclude(verdicts, required, interrupted, coverage), caveats)
    return () if outcome in (*ACCEPTING, "partial") else (Blocker("run", "acceptance", reason),)


def _names(verdicts: Sequence[Verdict]) -> str:
    return first_few([verdict.id for verdict in verdicts])
