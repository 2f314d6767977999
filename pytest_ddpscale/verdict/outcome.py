"""What a run's verdicts come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpscale.plan.metric import METRICS
from pytest_ddpscale.verdict.verdict import RunOutcome, Verdict


def conclude(verdicts: Sequence[Verdict], required: int, interrupted: bool = False) -> tuple[RunOutcome, str]:
    """The run's outcome and why, in one sentence.

    Args:
        verdicts: of everything that was selected.
        required: how many requirements the SKU has; fewer verdicts make a partial run.
        interrupted: the session ended before every selected item was judged.

    Returns:
        ``rejected`` if any requirement of severity ``fail`` failed. Else ``incomplete`` if one of
        severity ``fail`` is undecided, if any at all but a node check of severity ``warn`` is not measured or broke,
        or if none passed.
        Else ``partial`` if requirements were left out. Else ``accepted``, unless no passed
        requirement of severity ``fail`` with a published bound covers all devices that were
        measured, which is ``incomplete``: a provisional bound cannot accept a cluster on its own.
    """
    failed = [v for v in verdicts if v.outcome == "failed" and v.severity == "fail"]
    if failed:
        return "rejected", f"{len(failed)} of {len(verdicts)} requirements failed: {_names(failed)}"
    broken = [v for v in verdicts if v.outcome in ("error", "not_measured") and not _only_looks(v)]
    if broken:
        return "incomplete", f"{len(broken)} of {len(verdicts)} requirements were not measured: {_names(broken)}"
    undecided = [v for v in verdicts if v.outcome == "inconclusive" and v.severity == "fail"]
    if undecided:
        return "incomplete", f"{len(undecided)} of {len(verdicts)} requirements are inconclusive: {_names(undecided)}"
    if interrupted:
        return "incomplete", f"interrupted after {len(verdicts)} of {required} requirements"
    if not verdicts:
        return "incomplete", "no requirement was judged"
    return _among_the_decided(verdicts, required)


def _only_looks(verdict: Verdict) -> bool:
    """Whether it is a check of the nodes that could reject nothing: then that nothing is known does not either."""
    return (verdict.metric, verdict.severity, verdict.outcome) == ("node_check", "warn", "not_measured")


def _among_the_decided(verdicts: Sequence[Verdict], required: int) -> tuple[RunOutcome, str]:
    passed = [v for v in verdicts if v.passed]
    warned = len(verdicts) - len(passed)
    count = f"{len(passed)} of {required} requirements passed" + (f", {warned} warned" if warned else "")
    if not passed:
        return "incomplete", f"{count}: there is nothing to accept"
    if len(verdicts) < required:
        return "partial", f"{count}; the others were not selected"
    if not rests_on_published(verdicts):
        return "incomplete", (
            f"{count}, but none with a published bound covers all devices: provisional bounds warn, they do not "
            "accept. Put measured numbers with their source into the thresholds file"
        )
    return "accepted", count


@dataclass(frozen=True)
class Caveats:
    """What keeps verdicts that are good enough from accepting a machine.

    Attributes:
        spoiled: names of test items that were skipped, or failed for something else than their verdict.
        present: GPUs of the machine; 0 if unknown, or on a CPU.
        covered: GPUs of which the verdicts say anything.
        not_one_machine: why the studies were not all measured on the same devices; empty if they were.
        is_simulated: nothing was measured.
        silent: what is known of each GPU that does not answer, so that nothing was measured on it.
    """

    spoiled: Sequence[str] = ()
    present: int = 0
    covered: int = 0
    not_one_machine: str = ""
    is_simulated: bool = False
    silent: Sequence[str] = ()


def qualified(outcome: RunOutcome, reason: str, caveats: Caveats) -> tuple[RunOutcome, str]:
    """The outcome as it stands in view of the caveats, and why; one that is not good is left as it is."""
    if outcome not in ("accepted", "partial"):
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
    idle = caveats.present - caveats.covered
    if outcome == "accepted" and idle > 0:
        return "partial", f"{reason}, but {idle} of {caveats.present} GPUs took no part in any of them"
    return outcome, reason


def may_accept(verdict: Verdict) -> bool:
    """Whether a machine may be accepted because of this: a published bound that can reject was kept."""
    is_kept = verdict.passed and verdict.severity == "fail" and not verdict.provisional
    return is_kept and METRICS[verdict.metric].carries_acceptance


def rests_on_published(verdicts: Sequence[Verdict]) -> bool:
    """Whether a published bound that can reject was kept by all devices together.

    A bound at a smaller world size says nothing about the devices beyond it, and that GPUs are alike or compute
    the same says nothing about how fast they are.
    """
    largest = max((v.world_size for v in verdicts), default=0)
    return any(may_accept(v) and v.world_size == largest for v in verdicts)


def lacks_only_measurements(verdicts: Sequence[Verdict]) -> bool:
    """Whether unmeasured requirements are all that stands in the way: the rest was decided well."""
    undecided = [v for v in verdicts if not v.passed and v.outcome != "not_measured" and v.severity == "fail"]
    measured = [v for v in verdicts if v.outcome != "not_measured"]
    broke = any(v.outcome == "error" for v in verdicts)
    return not undecided and not broke and rests_on_published(measured)


def _names(verdicts: Sequence[Verdict]) -> str:
    shown = [verdict.id for verdict in verdicts[:3]]
    return ", ".join(shown) + (f" and {len(verdicts) - 3} more" if len(verdicts) > 3 else "")
