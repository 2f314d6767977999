"""The outcome of a run: from its verdicts, their waivers, and what else stands in the way of acceptance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any, NamedTuple

from pytest_ddpscale.judge.coverage import measured_for
from pytest_ddpscale.judge.peers import median_over_rounds
from pytest_ddpscale.plan.metric_catalogue import GENERATION_RATIO, METRICS, THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.coverage import Coverage
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.reason import Reason, Why, because
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN, WRONG_DATA, Blocker, CauseId, RunOutcome, UniformLoss, Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, training_cases
from pytest_ddpscale.thresholds.model import why_never_waived

LARGEST_UNREMARKED = 0.1


class RunFacts(NamedTuple):
    """What decides the outcome of a run.

    Attributes:
        verdicts: on all selected requirements.
        required: number of requirements of the SKU; fewer verdicts make a partial run.
        interrupted: the session ended before every selected item was judged.
        coverage: of the machine.
        spoiled: test items that were skipped, or failed for a reason other than their verdict.
        not_one_machine: why the studies were not all measured on the same devices; None if they were.
        silent: description of each GPU that does not answer and was not measured.
        lost: why hosts were lost that did not take part again, by host.
        slow_links: descriptions of nodes and links that certainly communicate slowly.
        variables: notes on environment variables (`judge.coverage`).
        wrong_data: descriptions of probes with wrong results on which no verdict is (`judge.links`).
        allows_unmeasured: whether requirements may stay unmeasured.
        calibrate: command that computes bounds of the site from this run.
    """

    verdicts: Sequence[Verdict]
    required: int
    interrupted: bool = False
    coverage: Coverage = Coverage()
    spoiled: Sequence[Blocker] = ()
    not_one_machine: Reason | None = None
    is_simulated: bool = False
    silent: Sequence[str] = ()
    lost: Mapping[str, Why] = {}
    slow_links: Sequence[str] = ()
    variables: Sequence[Reason] = ()
    allows_unmeasured: bool = False
    wrong_data: Sequence[str] = ()
    calibrate: str = "ddpscale calibrate RUN_DIR"


def conclude(run: RunFacts) -> tuple[RunOutcome, Reason, CauseId]:
    """The run's outcome, why, and the kind of cause if it is incomplete whatever its verdicts.

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
    verdicts, judged, coverage = run.verdicts, len(run.verdicts), run.coverage
    blocking = [v for v in verdicts if v.blocks()]

    def stopped(code: str, *args: Any, cause: CauseId = "run-not-accepted") -> tuple[RunOutcome, Reason, CauseId]:
        return "incomplete", because(code, *args), cause

    for kind, of in (
        ("failed", ["failed"]),
        ("not measured", ["error", "not_measured"]),
        ("undecided", ["inconclusive"]),
    ):
        if ids := tuple(v.id for v in blocking if v.outcome in of):
            why = because("unmet", judged, kind, ids)
            return "rejected" if kind == "failed" else "incomplete", why, "run-not-accepted"
    if run.interrupted:
        return stopped("interrupted-after", judged, run.required)
    if not verdicts:
        return stopped("nothing-judged")
    passed, waived = sum(v.passed for v in verdicts), sum(v.is_waived for v in verdicts)
    met = because("met", passed, run.required, waived, judged - passed - waived)
    if not passed:
        return stopped("nothing-to-accept", met)
    met = because("not-selected", met, run.required - judged) if judged < run.required else met
    # If studies ran on different hosts, these are separate machines with nothing to measure between them.
    tested = Coverage() if run.not_one_machine else coverage
    if judged == run.required and not rests_on_published(verdicts, tested):
        return stopped("unpublished", run.calibrate)
    if judged == run.required and tested.is_on_several_nodes:  # requirements between nodes have to be met over all
        between = [v for v in verdicts if v.id in tested.between_nodes]
        if missed := tuple(v.id for v in between if v.outcome == "failed"):
            return stopped("missed-between", met, missed)
        if undecided := tuple(v.id for v in between if v.outcome == "inconclusive"):
            return stopped("undecided-between", met, undecided)
        over_all = [v for v in between if v.passed and v.id in tested.over_all_nodes]
        kept = [v for v in over_all if METRICS[v.metric].tells_speed]
        if not kept:
            return stopped("none-between", met, tested.node_count)
        met = because("provisional-between", met) if all(v.provisional for v in kept) else met
    # What else stands in the way, the worst first.
    if run.wrong_data:
        return stopped("wrong-probe", met, run.wrong_data[0], cause="wrong-data")
    if run.silent:
        return stopped("silent-gpu", met, run.silent[0], cause="lost-gpu")
    if run.not_one_machine:
        return "incomplete", run.not_one_machine, "run-not-accepted"
    for host, why_lost in run.lost.items():
        first = why_lost.splitlines()[0] if isinstance(why_lost, str) else why_lost
        return stopped("lost-host", met, host, first, cause="lost-node")
    if run.spoiled:
        return stopped("spoiled", ", ".join(blocker.name for blocker in run.spoiled), cause="test-failed")
    if absent := tuple(coverage.nodes_absent):
        return stopped("nodes-absent", met, absent, coverage.node_count, cause="not-measured")
    if run.slow_links:
        return stopped("slow-link", met, run.slow_links[0], cause="slow-node-link")
    if run.is_simulated:  # last of these, so that a rehearsal shows what else there is
        return stopped("simulated", met)
    # Parts of the machine that no decided requirement tested.
    idle = tuple(f"{gpu.place.number} on {gpu.place.host}" for gpu in coverage.idle_gpus)
    if judged < run.required:
        return "partial", met, "run-not-accepted"
    if idle:
        return "partial", because("idle-gpus", met, idle, len(coverage.gpus)), "run-not-accepted"
    missing, why_missing = coverage.paths_planned - len(coverage.paths), coverage.why_paths_are_missing
    if missing > 0 or why_missing:  # or slow pairs were not measured again
        return stopped("pairs-missing", met, max(missing, 0), coverage.paths_planned, why_missing)
    if rerouted := tuple(reason.args[0] for reason in run.variables if reason.args[3:] == ("reroutes", "")):
        return "partial", because("rerouted", met, rerouted), "run-not-accepted"
    return "accepted_with_waivers" if waived else "accepted", met, "run-not-accepted"


def rests_on_published(verdicts: Sequence[Verdict], coverage: Coverage) -> bool:
    """Whether all devices meet a published bound that can reject: together, or on each node alone.

    A bound at a smaller world size does not cover the other devices, and requirements on equal speed or equal results
    say nothing about how fast GPUs are.
    """
    largest, several = max((v.world_size for v in verdicts), default=0), coverage.is_on_several_nodes
    on_each = min(largest, coverage.ranks_per_node) if several else largest
    return any(
        v.passed and v.severity == "fail" and not v.provisional and METRICS[v.metric].carries_acceptance
        for v in verdicts
        if (v.world_size == on_each and not (several and v.id in coverage.between_nodes))
        or (several and v.world_size == coverage.ranks)
    )


def with_waiver(verdict: Verdict, case: AnyCase, evidence: Evidence, day: date) -> Verdict:
    """The verdict, waived if its requirement has a waiver that covers this failure; else with a note why not.

    `day` is the day of judgement, in UTC.
    """
    waiver = case.requirement.waiver
    if waiver is None or why_never_waived(case.requirement):
        return verdict
    is_known, (measured, _, is_between) = PARTLY_KNOWN not in verdict.flags, measured_for(case, evidence)
    if verdict.is_unreadable:  # and no GPU that was read misses the bound
        busy = median_over_rounds(measured.reading("utilization"))
        is_known &= not (busy < case.requirement.bound).any()
    rules = (
        (verdict.passed, "waiver-not-needed"),
        (verdict.outcome != "failed" and not verdict.is_unreadable, "waives-failures-only"),
        (not waiver.holds_on(day), "waiver-ended"),
        (WRONG_DATA in verdict.flags, "never-waives-wrong-data"),
        (not is_known, "never-waives-unknown"),
        (is_between, "never-waives-between-nodes"),
    )
    for holds, code in rules:
        if holds:
            args = (waiver.who, str(waiver.until)) if code == "waiver-ended" else (str(waiver),)
            return replace(verdict, remarks=(*verdict.remarks, because(code, *args)))
    return replace(verdict, waiver=waiver)


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
    shown = [verdict for verdict in verdicts if verdict.shows_uniform_loss]
    if any(verdict.is_uniform_loss for verdict in shown):
        return None
    shown.sort(key=lambda verdict: (verdict.metric == THROUGHPUT_PER_GPU.name, verdict.world_size))
    chosen = {verdict.workload: verdict for verdict in shown}
    together = 1 - (1 - confidence) / max(len(chosen), 1)
    again = [judge_at(verdict.id, together) for verdict in chosen.values() if verdict.passed]
    # Distance from the reference down to the lower limit, relative to the reference.
    losses = {
        verdict.id: max(0.0, 1 - verdict.interval[0] / verdict.published)
        for verdict in again
        if verdict.interval and verdict.published
    }
    if not losses:
        return None
    name = min(losses, key=losses.__getitem__)
    return UniformLoss(losses[name], max(losses.values()), confidence, name, len(losses))


def remark_on_unseen_loss(
    device_type: DeviceType, required: Iterable[AnyCase], selected: Iterable[AnyCase]
) -> Reason | None:
    """The remark on a loss of training speed that all devices share and no bound rejects, without a full stop.

    Peers see no common loss. A bound on training speed does, from the smallest fault of its row on
    (`Requirement.smallest_fault`), if it rejects. Whether it lies close to what a sound GPU reaches is known from the
    thresholds file alone, whatever was measured.

    Args:
        device_type: of the SKU; the bounds of a CPU, which no site opens for training, need no remark.
        required: all requirements of the SKU on these nodes.
        selected: those that the run judges.

    Returns:
        None if a published bound that rejects, packaged or the site's own, sees a common loss of less than
        `LARGEST_UNREMARKED` of the speed, and for a run that judges no training, or only that ranks are alike, as a
        nightly check does.
    """
    metrics = [case.requirement.definition for case in training_cases(selected)]
    if device_type == "cpu" or all(
        metric.compares_results or metric.reads_own_pace or metric.measured == "infer" for metric in metrics
    ):
        return None
    speeds = [
        case.requirement
        for case in training_cases(required)
        if case.requirement.definition in (THROUGHPUT_PER_GPU, GENERATION_RATIO)
        and case.requirement.severity == "fail"
        and not case.missing
    ]
    faults = [
        (requirement.smallest_fault, requirement) for requirement in speeds if requirement.smallest_fault is not None
    ]
    if any(round(fault, 6) < LARGEST_UNREMARKED for fault, requirement in faults if not requirement.provisional):
        return None
    smallest = min((fault for fault, _ in faults), default=None)
    return because("unseen-loss", smallest, bool(speeds))
