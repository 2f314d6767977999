"""What is known of the places of a requirement, and the one answer that is made of it.

A place is a node, a GPU, a group of ranks or a pair of them. Each is judged at the requested confidence. A false pass
is then no likelier than with one place. With N places a false failure is up to N times as likely, so a failure counts
only if it also holds at 1 - (1 - confidence) / N (Bonferroni).

**Caveats** are reasons to withhold a verdict that the numbers alone would give. Each looks at all places of a
requirement at once and sets those to open for which it holds. To add one, write a function and add it to `CAVEATS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pytest_ddpscale.judge.answer import OUTCOMES, Answer
from pytest_ddpscale.judge.checks import BUSY, anomalies
from pytest_ddpscale.judge.metrics import TERA, WHOLE, Groups
from pytest_ddpscale.judge.peers import median_over_rounds
from pytest_ddpscale.judge.slow import culprits_of, slow_ranks
from pytest_ddpscale.judge.stats import ABSENT, FAILED, IMPOSSIBLE, OPEN, PASSED, Estimated
from pytest_ddpscale.judge.values import Values, matching_study
from pytest_ddpscale.plan.metric_catalogue import MATMUL_TFLOPS, MOST_EFFICIENCY, THROUGHPUT_PER_GPU
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, JudgedPlace
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN, AgainstSlowest, Flag, Verdict
from pytest_ddpscale.thresholds.cases import Case, NodeCase
from pytest_ddpscale.util.arrays import BoolArray, FloatArray


@dataclass(eq=False)
class Judged:
    """A requirement, what was measured for it, and the codes of its places, which doubts set to open.

    Attributes:
        blank: the verdict ``not_measured``.
        case: the requirement, on training or a probe.
        evidence: of the run.
        values: of its question or probe.
        limit: largest number of rounds; 0 if no more will come.
        rounds_due: number of rounds that were begun and timed every arm of the question.
        groups: complete rounds of the arms, by place; None for a probe.
        places: those of the values.
        found: estimates, (places,).
        codes: `PASSED` … `ABSENT`, (places,).
        reasons: of places whose code does not come from the bound alone, by index; so are the next ones.
        notes: for the reader, with the places that they are about, each once.
        flags: for code.
        culprits: who is at fault for it.
        against: weak scaling against the slowest GPU.
    """

    blank: Verdict
    case: Case | NodeCase
    evidence: Evidence
    values: Values[str] | Values[JudgedPlace]
    limit: int = 0
    rounds_due: int = 0
    groups: Groups | None = None

    def __post_init__(self) -> None:
        self.places = [JudgedPlace("node", (), at) if isinstance(at, str) else at for at in self.values.places]
        self.decide(self.values.estimated(self.blank.confidence, self.limit))

    def decide(self, estimated: Estimated) -> None:
        """Codes of the places by their estimates and the bound alone."""
        self.estimated, self.reasons, self.notes = estimated, dict[int, Reason](), dict[Reason, dict[int, None]]()
        self.flags, self.against = dict[int, tuple[Flag, ...]](), dict[int, AgainstSlowest]()
        self.culprits = dict[int, tuple[Culprit, ...]]()
        requirement, definition = self.case.requirement, self.case.requirement.definition
        # A share may be 0, and a difference of two arms negative, as may what `of_all_time` makes of shares.
        is_share = definition.scale == "differences" and definition.baseline is None
        least = 0.0 if is_share and not definition.reads_utilization else -math.inf
        codes, self._why = estimated.against(requirement.bound, -1 if definition.upper_bound else 1, least)
        if definition.reads_utilization:  # its series has values of all time, none of a round
            is_far = self._why == "far"
            codes, self._why = np.where(is_far, OPEN, codes), np.where(is_far, "inside", self._why)
        self.codes = np.where(estimated.rounds == 0, ABSENT, codes)
        are_noted = ~np.isnan(estimated.drifts + estimated.low) | estimated.are_single
        for place in np.flatnonzero(are_noted & (self.codes > IMPOSSIBLE)).tolist():
            self.note(place, estimated.note(place))

    def rounds(self, place: int) -> ArmRounds:
        """Complete rounds of the measured arm at a place."""
        assert self.groups is not None
        return self.groups.at(place)

    def sums(self, of_rounds: Callable[[ArmRounds], FloatArray]) -> tuple[FloatArray, FloatArray]:
        """For each place the sum over its rounds of a value of the measured arm, where known, and their number."""
        if self.groups is None:
            return np.zeros(len(self.values.places)), np.zeros(len(self.values.places))
        values = of_rounds(self.groups.arms[-1])
        total = sum(np.nan_to_num(values), np.zeros(values.shape[1]))  # one after the other, so that 9 × 0.9 is 8.1
        return total, (~np.isnan(values)).sum(axis=0, dtype=np.float64)

    def note(self, place: int, why: Reason) -> None:
        """Add a note on a place."""
        self.notes.setdefault(why, {})[place] = None

    def open(
        self, where: BoolArray, code: str, *args: Any, flag: Flag | None = None, of: Sequence[int] = (PASSED, FAILED)
    ) -> list[int]:
        """Set places with these codes to open, for a reason, with its arguments of all or in arrays of each.

        A flag is a note, too. Returns their indices.
        """
        opened: list[int] = np.flatnonzero(where & np.isin(self.codes, of)).tolist()
        for place in opened:
            values = [arg[place].item() if isinstance(arg, np.ndarray) else arg for arg in args]
            self.codes[place], self.reasons[place] = OPEN, because(code, *values)
            if flag is not None:
                self.note(place, because(flag))
                self.flags[place] = (flag,)
        return opened

    def why(self, place: int) -> Reason:
        """Why a place has its code."""
        return self.reasons.get(place) or self.estimated.why(place, str(self._why[place]))

    def numbers(self, place: int) -> tuple[float, tuple[float, float] | None, float | None]:
        """Value, interval, clipped to possible values, and None if it says nothing, and correlation of a place."""
        definition, estimated = self.case.requirement.definition, self.estimated
        value, interval = estimated.estimate_at(place, definition.range_at(self.blank.world_size, "possible"))
        correlation = (
            None
            if interval is None or np.isnan(estimated.correlations[place])
            else float(estimated.correlations[place])
        )
        return value, None if estimated.say_nothing[place] else interval, correlation

    def answer(self, planned: int, missing: Reason | None) -> Answer:
        """One answer for all places, at least one of which is measured unless something is missing.

        ``failed`` if any place fails; else ``error`` if any place has that, ``not_measured`` if something is missing
        (and why), ``inconclusive`` if any place is; else ``passed``. Value and interval are those of the worst place
        with that outcome, which it names; rounds the fewest of any place.
        """
        codes, known, requirement = self.codes, self.codes[self.codes != ABSENT], self.case.requirement
        code = FAILED if FAILED in known else IMPOSSIBLE if IMPOSSIBLE in known else ABSENT if missing else known.min()
        answer = Answer(self.blank, OUTCOMES[int(code)])
        may_fail = [
            self.places[place]
            for place in np.flatnonzero((codes == OPEN) & (code in (FAILED, ABSENT))).tolist()
            if {"host-bound", "implausible"}.isdisjoint(self.flags.get(place, ()))
        ]
        if may_fail:
            answer.flags.append("undecided")
            answer.remarks.append(because("more-may-fail", may_fail[0].noun, tuple(place.name for place in may_fail)))
        if code == ABSENT:
            answer.reasons = [missing] if missing else []
            return answer
        if code == FAILED and (missing or not np.isin(codes, (PASSED, FAILED)).all()):
            answer.flags.insert(0, PARTLY_KNOWN)
        deciding, better = np.flatnonzero(codes == code), self.estimated.values - requirement.bound
        margins = np.nan_to_num(-better if requirement.definition.upper_bound else better, nan=-np.inf)
        worst, at = int(deciding[margins[deciding].argmin()]), dict.fromkeys(deciding.tolist())
        name, noun, why = self.places[worst].name, self.places[worst].noun, self.why(worst)
        if planned > 1 and code == PASSED and worst in self.against:
            why = because("lowest-of", name, planned, noun, why)
        elif planned > 1 and code == PASSED:
            why = because("kept-on-each", why, planned, noun, name)
        elif planned > 1:
            others = tuple(self.places[one].name for one in at if one != worst)
            why = because("one-of", name, planned, noun, why, answer.outcome, others)
        answer.reasons, answer.place, answer.rounds = [why], name, int(self.estimated.rounds[codes != ABSENT].min())
        if code != IMPOSSIBLE:
            answer.value, answer.interval, answer.correlation = self.numbers(worst)
        answer.remarks = [
            note if at.keys() <= of.keys() else because("of-places", tuple(self.places[one].name for one in of), note)
            for note, of in self.notes.items()
        ] + ([missing] if missing else []) + answer.remarks  # fmt: skip
        shared = [flag for flag in self.flags.get(worst, ()) if all(flag in self.flags.get(one, ()) for one in at)]
        answer.flags = [*dict.fromkeys([*shared, *answer.flags])]
        answer.culprits = [*dict.fromkeys(culprit for one in at for culprit in self.culprits.get(one, ()))]
        answer.against_slowest = self.against.get(worst)
        return answer

    def starved(self, place: int) -> Reason | None:
        """Why a node is named for the utilization of its GPUs, most of which miss the bound and idle; None if not."""
        requirement, is_cpu = self.case.requirement, self.evidence.plan.device_type == "cpu"
        if not requirement.definition.reads_utilization or is_cpu:
            return None
        busy = median_over_rounds(self.rounds(place).reading("utilization"))  # NaN of one that was not read
        are_most = 2 * (busy < min(requirement.bound, BUSY)).sum() > len(busy)
        return because("starved", float(np.nanmedian(busy))) if are_most else None


# Below this, a GPU under strong scaling waits for its host: published ResNet-152 rows show 58-74 %
# there, while every row that scales shows 95 % and more (willgpaik/pytorch-ddp-scaling-benchmark).
HOST_BOUND_UTILIZATION = 0.90
# Skipped steps are cheaper, and training that skips many does not converge.
MOST_SKIPPED_STEPS = 0.05
# Clocks and data sheets are a few per cent off; a value further above the peak cannot be right.
MOST_OF_PEAK = 1.05
# 3 × 3 convolutions by the algorithms of Lavin & Gray (CVPR 2016), which fp32 uses, take down to a quarter of the
# multiplications that the counter counts.
MOST_OF_FP32_PEAK = 4.0
# On a CPU efficiencies above 1 and costs below 0 occur, because parts of a batch fit caches and other programs disturb;
# twice the ideal, or half of the time saved, is more than that explains.
MOST_EFFICIENCY_ON_CPU, LEAST_COST_ON_CPU = 2.0, -0.5
# Per core, in FLOP/s: matrix units with 2,048 bf16 operations a cycle reach 8 · 10¹² at 4 GHz. A node of unknown size
# has no more than 512 cores.
MOST_FLOPS_OF_CORE, MOST_CORES = 1e13, 512
# Of the FLOPs of a training step: the backward pass has two products for each of the forward's.
_SHARE_OF_FORWARD = 1 / 3
ANY = (PASSED, OPEN, FAILED)


def missing_rounds(judged: Judged) -> None:
    """Rounds are incomplete: those may be the ones that would have failed."""
    rounds, rounds_due = judged.values.rounds(), judged.rounds_due
    judged.open(rounds < rounds_due, "incomplete-rounds", rounds, rounds_due)


def plausibility(judged: Judged) -> None:
    """The value is not credible, such as an efficiency far above 1, or more than the peak of the hardware."""
    case, values, is_cpu = judged.case, judged.estimated.values, judged.evidence.plan.device_type == "cpu"
    definition = case.requirement.definition
    if isinstance(case, Case):
        least, most = definition.range_at(case.world_size, "credible")
        if is_cpu:
            is_cost = definition.unit == "fraction" and np.isfinite(least)
            least, most = LEAST_COST_ON_CPU if is_cost else -np.inf, most * MOST_EFFICIENCY_ON_CPU / MOST_EFFICIENCY
        limits = np.where(values > most, most, least)
        judged.open((values < least) | (values > most), "incredible", values, limits, of=ANY)
        return
    most = definition.range_at(case.world_size)[1]
    whose = because("of-any-hardware", most)
    if case.peak is not None:
        most, whose = MOST_OF_PEAK * case.peak, because("of-data-sheet", case.peak)
    elif definition is MATMUL_TFLOPS and is_cpu:
        cores = _cores(judged.evidence)
        most, whose = MOST_FLOPS_OF_CORE * cores / TERA, because("of-cores", cores)
    judged.open(values > most, "beyond-peak", values, judged.blank.unit, whose, flag="implausible", of=ANY)


def impossible_pace(judged: Judged) -> None:
    """A rank computed faster in some round than its hardware can: that block, or its clock, is wrong."""
    case, evidence = judged.case, judged.evidence
    if not isinstance(case, Case):
        return
    for arm in reversed(judged.groups.arms if judged.groups else ()):
        most, peak = THROUGHPUT_PER_GPU.range_at(1)[1], case.peak_tflops
        whose, flops = because("of-any-hardware", most), evidence.flops_per_sample.get(arm.study)
        if flops is not None and (peak is not None or evidence.plan.device_type == "cpu"):
            flops *= _SHARE_OF_FORWARD if arm.arm.startswith("infer") else 1.0
            cores = _cores(evidence)
            most, whose = MOST_FLOPS_OF_CORE * cores / flops, because("of-cores", cores)
            if peak is not None:
                most = peak * (MOST_OF_FP32_PEAK if case.workload.precision == "fp32" else MOST_OF_PEAK) * TERA / flops
                whose = because("of-peak", peak)
        paces = np.fmax.reduce(arm.per_second, axis=(0, 2), initial=0.0)
        args = evidence.plan.samples, arm.arm, whose
        judged.open(paces > most, "impossible-pace", paces, *args, flag="implausible")


def _cores(evidence: Evidence) -> int:
    """CPU cores of the largest node."""
    return max((survey.cores or MOST_CORES for survey in evidence.surveys.values()), default=MOST_CORES)


def host_bound(judged: Judged) -> None:
    """GPUs wait for their host: strong scaling then says nothing about GPUs or links."""
    case, is_cuda = judged.case, judged.evidence.plan.device_type == "cuda"
    if case.requirement.definition.scaling != "strong" or not is_cuda or not isinstance(case, Case):
        return
    # Of those that were read: a wrong reading of one GPU does not make the others busy.
    total, count = judged.sums(lambda rounds: np.fmin.reduce(rounds.reading("utilization"), axis=-1, initial=np.nan))
    busy, least = total / np.where(count > 0, count, np.nan), HOST_BOUND_UTILIZATION
    of = case.workload.global_batch_size, case.world_size
    judged.open(busy < least, "waits-for-host", busy, least, *of, flag="host-bound", of=ANY)


def stalled_devices(judged: Judged) -> None:
    """Devices only wait: their utilization, which NVML counts as busy, proves nothing.

    Where SM activity stands in for it, which is lower, no GPU fails by that.
    """
    if not judged.case.requirement.definition.reads_utilization:
        return
    for name, unread in judged.values.missing.items():
        place = [*judged.values.places].index(name)
        rounds = judged.rounds(place)
        busy, sms = rounds.reading("utilization"), rounds.reading("sm_activity")
        if judged.codes[place] == PASSED and not (rounds.present & np.isnan(busy) & np.isnan(sms)).any():
            judged.note(place, because("stands-in", *unread.args[1:]))
        elif judged.codes[place] == FAILED and (busy.max(axis=0) < judged.case.requirement.bound).any():
            judged.note(place, unread)  # another GPU fails by itself
            judged.flags[place] = (PARTLY_KNOWN,)
        else:
            judged.codes[place] = ABSENT
    telemetry, is_cpu = judged.evidence.telemetry, judged.evidence.plan.device_type == "cpu"
    seen = np.isin(judged.codes, (PASSED, ABSENT)) & (judged.estimated.rounds > 0)
    for place in np.flatnonzero(seen).tolist():
        rounds = judged.rounds(place)
        windows = telemetry.of_arm(rounds.study, rounds.arm, rounds.ranks.by_host)
        culprits = []
        for own in anomalies(windows)["stalled"]:
            watts = float(np.nanmedian(own.mean_power_w)), float(own.power_limit_w[0])
            # Not certain: it may be waiting for a peer.
            culprits.append(Culprit("gpu", (own.place_of(0),), because("waits", len(own), *watts), is_certain=False))
        if culprits:
            gpu, why = culprits[0].place, culprits[0].because
            judged.codes[place], judged.culprits[place] = OPEN, tuple(culprits)
            judged.reasons[place] = because("only-waits", f"{gpu.number} on {gpu.host}", why)
            continue
        known = np.unique(windows.place[~np.isnan(windows.mean_power_w) & (windows.power_limit_w > 0)])
        ours = rounds.present[~rounds.single_sample].any(axis=0)  # not imported
        if len(known) < ours.sum() and not is_cpu:
            judged.note(place, because("power-unknown"))


def skipped_steps(judged: Judged) -> None:
    """Fp16 loss scaling skipped steps, which are cheaper; a few are noted, many make a pass inconclusive."""
    skipped, _ = judged.sums(lambda rounds: np.nansum(rounds.reading("skipped_steps"), axis=-1))
    if not skipped.any():
        return
    steps, _ = judged.sums(lambda rounds: rounds.count.sum(axis=-1, dtype=np.float64))
    opened = judged.open(skipped > MOST_SKIPPED_STEPS * steps, "other-training", of=(PASSED,))
    for place in np.flatnonzero((skipped > 0) & (judged.codes != ABSENT)).tolist():
        why = because("skipped-steps", float(skipped[place]), float(steps[place]))
        judged.note(place, why)
        if place in opened:
            judged.reasons[place] = because("other-training", why)


def slow_node(judged: Judged) -> None:
    """Most ranks of one of several nodes are slow: it scales well only relative to slow ranks."""
    case, plan = judged.case, judged.evidence.plan
    if not isinstance(case, Case) or WHOLE in judged.values.places or case.requirement.definition.baseline != "alone":
        return
    study = matching_study(plan, case.question)
    assert study is not None
    pace, slow = slow_ranks(judged.evidence, study, case.peers.computing)
    hosts, most = pace.ranks.hosts[slow.at], plan.layout.ranks_per_node / 2
    rows = [np.flatnonzero(hosts == place) for place in judged.values.places]
    where = np.array([len(of_place) > most for of_place in rows], np.bool_)
    for at in judged.open(where, "scaled-from-slow", of=(PASSED,)):
        judged.culprits[at] = named = (*culprits_of(pace.ranks, slow, rows[at]),)
        judged.reasons[at] = because("scaled-from-slow", len(rows[at]), named[0].because)


Rule: TypeAlias = Callable[[Judged], None]
# Those that concern the number itself; and all, in the order in which they are applied.
ON_NUMBERS: Sequence[Rule] = (plausibility, impossible_pace, host_bound, skipped_steps)
CAVEATS: Sequence[Rule] = (missing_rounds, *ON_NUMBERS[:-1], stalled_devices, skipped_steps, slow_node)
