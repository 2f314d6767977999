"""Runs in one line each: what is asked, of which machine, and what is wrong with it.

    weak_scaling_efficiency:0.9@4 2x2 slow=*1.3/3:4-

asks for a metric with a bound on four GPUs, of two nodes of two; GPU 3 is slower by 1.3 from round 4 on, and DDP waits
for it. Words, in any order:

    METRIC:BOUND@WORLD           asked; with `+` before it only measured as well; WORLD-spread: one GPU of each node;
                                 WORLD,warn: it only warns
    2x4                          nodes and GPUs of each; default: one node of as many as are asked for
    rounds=9 noise=0 seed=1      of the run, of 16 that were planned; noise is relative, of each GPU in each round
    sd=0                         relative, by which GPUs differ, always
    limit= nodelimit= peak= one_gpu=    of what is asked: of peers, of nodes; TFLOPS
    warn, compile, precision=    it only warns; of its workload
    trained.FIELD=VALUE          another workload was trained
    cpu, cores=, flops=          no GPUs; of the node; FLOP of a sample
    going-on                     while measuring
    forward                      what is slow is seen in forward passes alone: no ranks train
                                 alone, and DDP keeps the steps of all alike
    timed                        forward passes are timed, and DDP waits
    cool                         telemetry says that nothing holds the GPUs down
    slow=*1.3                    what takes longer
    net=*0.6                     the pace of the largest arm of ranks that train together
    FIELD=VALUE FIELD=*FACTOR    what was measured, such as utilization=0.5 or skipped_steps=1; `a,b` in turn by rounds
    imported=0.05                a long sample of another tool, with the standard deviation of its steps
    uneven=0.1                   steps that alternate about their mean
    lost                         not measured
    dropped                      the same, because it is decided
    hot, unknown                 held down by heat; heat unknown
    odd, seeded, unrepeated      parameters, or a seeded step, unlike the others'; repeated it gave another result
    unseeded                     a seeded step without a checksum
    pairs=3                      times that each pair of nodes is measured; of those
    link=*10 stall=0.25          messages take longer, or one of twenty does, in seconds; n1,n2 is between these two
    error, out-of-time           of the study
    notes                        told are notes of the run beside the verdict's, too
    before                       a study of another workload ran before
    set=NAME=VALUE/n1            an environment variable of the ranks of a node; purpose=NAME: which the site sets
    samples                      told are the rounds' values that a test of a site's own gets, too
    …/WHO:WHEN                   GPUs 3, 3-5 or 1,6, those of a node n1, an arm ddp@2, a study strong, or what
                                 n1.ddp@2 has in common; rounds 3, 4-, 2-5, 1,6, or %3, each third one
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.slow import pace_notes, rank_notes
from pytest_ddpscale.judge.values import samples_of
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import Pace, build_plan
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import Reason
from pytest_ddpscale.run.records import RankTransport, SeededStep
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.telemetry import (
    GpuReadings,
    TelemetryColumns,
    joined_readings,
    telemetry_columns_of,
)
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import Case
from tests.builders.judged import (
    ALONE_SAMPLES_PER_S,
    CHECKSUM,
    CONFIDENCE,
    FLOPS_PER_IMAGE,
    OTHER_CHECKSUM,
    WORKLOAD,
    make_case,
    make_measurement,
)
from tests.builders.measurements import Measurement
from tests.builders.probes import pair_columns_of, with_columns
from tests.builders.records import gang_of
from tests.builders.rounds import columns_of
from tests.builders.workloads import with_settings
from tests.judge.told import codes, told

OPTIONS = {
    "rounds": 9, "noise": 0.0, "seed": 1, "sd": 0.0, "limit": 0.05, "nodelimit": None,
    "peak": None, "one_gpu": None, "precision": None, "cores": None, "flops": FLOPS_PER_IMAGE, "pairs": 0,
    "imported": "no", "topology": "",
}  # fmt: skip
NO_FIELDS = {
    "slow", "net", "lost", "dropped", "hot", "unknown", "odd", "seeded", "unseeded", "unrepeated", "link", "stall",
}  # fmt: skip
FORWARD_SHARE = 1 / 3  # of a step
STUDY_ROUNDS = 16
_ASKED = re.compile(r"(\+?)([\w-]+):([\w.]+)@(\d+)(-spread)?(,warn)?")
_CHANGE = re.compile(r"([\w.-]+)(?:=(\*?)([^/:]+))?(?:/([^:]+))?(?::(.+))?")


@dataclass(frozen=True)
class Change:
    """What is wrong, where and when. Its values take turns by rounds, as factors or as they are."""

    what: str
    is_factor: bool
    values: tuple[Any, ...]
    who: str
    when: str

    def is_at(self, number: int, rank: int, *names: str) -> bool:
        """Whether it is there in a round, for a rank with these names of its node, arm and study."""
        return _is_in(self.when, number) and any(_is_one(one, rank, names) for one in self.who.split(",") if one)

    def is_between(self, number: int, ranks: tuple[int, int], per_node: int, *names: str) -> bool:
        """Whether it is there for the first of two ranks; if it names several, between these alone."""
        if "," not in self.who:
            return self.is_at(number, ranks[0], "all", f"n{ranks[0] // per_node}", *names)

        def is_one(who: str, rank: int) -> bool:
            return _is_one(who, rank, (f"n{rank // per_node}", *names))

        named = itertools.permutations(self.who.split(","), 2)
        return _is_in(self.when, number) and any(is_one(a, ranks[0]) and is_one(b, ranks[1]) for a, b in named)

    def of(self, before: Any, number: int) -> Any:
        """The value in a round."""
        value = self.values[number % len(self.values)]
        return (before or 0) * value if self.is_factor else value


class Run:
    """What a line says."""

    FLAGS = frozenset(
        {
            "warn",
            "compile",
            "cpu",
            "going-on",
            "forward",
            "timed",
            "cool",
            "error",
            "out-of-time",
            "notes",
            "samples",
            "before",
        }
    )

    def __init__(self, line: str) -> None:
        self.asked, self.measured_as_well = list[re.Match[str]](), list[re.Match[str]]()
        self.changes, self.flags, self.trained = list[Change](), set[str](), dict[str, Any]()
        self.option: dict[str, Any] = dict(OPTIONS)
        self.nodes, self.per_node, self.variables = 1, 0, list[list[str]]()
        self.purpose = tuple((name, "a reason") for name in re.findall(r"\bpurpose=([\w*]+)", line))
        for word in line.split():
            self._take(word)
        if not self.per_node:
            self.per_node = max(int(one[4]) for one in [*self.asked, *self.measured_as_well])
        self._chance = np.random.default_rng(self.option["seed"])
        usual = np.random.default_rng(3).standard_normal(self.nodes * self.per_node)
        self._usual = np.exp(self.option["sd"] * usual)

    def _take(self, word: str) -> None:
        key, _, value = word.partition("=")
        if size := re.fullmatch(r"(\d+)x(\d+)", word):
            self.nodes, self.per_node = int(size[1]), int(size[2])
        elif asked := _ASKED.fullmatch(word):
            (self.measured_as_well if asked[1] else self.asked).append(asked)
        elif key in OPTIONS:
            self.option[key] = _value(value)
        elif key == "set":
            self.variables.append(re.split("[=/]", f"{value}/"))
        elif key == "purpose":
            pass
        elif word in self.FLAGS:
            self.flags.add(word)
        elif key.startswith("trained."):
            self.trained[key.removeprefix("trained.")] = _value(value)
        else:
            change = _CHANGE.fullmatch(word)
            assert change, f"{word}: not a word of tests/judge/runs.py"
            values = tuple(_value(one) for one in (change[3] or "0").split(","))
            self.changes.append(Change(change[1], bool(change[2]), values, change[4] or "all", change[5] or "0-"))

    def verdict(self) -> Verdict:
        """On what is asked first."""
        case, evidence = self.judged()
        return judge(case, evidence, CONFIDENCE)

    def judged(self) -> tuple[Any, Evidence]:
        """What is asked first, and what was measured."""
        case, *others = [self._case(one) for one in [*self.asked, *self.measured_as_well]]
        empty = Plan("a100", self.device_type, (), nodes=self.nodes, ranks_per_node=self.per_node)
        rounds = max(STUDY_ROUNDS, self.option["rounds"])
        fitting = [one.question for one in (case, *others) if one.world_size <= self.nodes * self.per_node]
        plan = build_plan(empty, fitting, Pace(rounds, 1.0, 1.0))
        if "before" in self.flags:
            first = replace(plan.studies[0], workload=with_settings(WORKLOAD, name="before", precision="bf16"))
            plan = replace(plan, studies=(first, *plan.studies))
        evidence = self._evidence(plan)
        if "forward" in self.flags:
            studies = (replace(study, arms=tuple(a for a in study.arms if a.kind != "each")) for study in plan.studies)
            evidence = replace(evidence, plan=replace(evidence.plan, studies=tuple(studies)))
        return case, evidence

    def told(self) -> Iterator[str]:
        """The verdict, and what else a session takes from the judge."""
        case, evidence = self.judged()
        verdict = judge(case, evidence, CONFIDENCE)
        yield from told(verdict, self.option["rounds"], self.per_node)
        yield from (f"@ {codes(why)}" for why in self._further(case, evidence, verdict))
        if "samples" in self.flags:
            yield " ".join(["values", *(f"{value:.4g}" for value in samples_of(case.question, evidence))])

    def said(self) -> Iterator[str]:
        """The same in sentences, each of which says more than those before it."""
        case, evidence = self.judged()
        verdict = judge(case, evidence, CONFIDENCE)
        assert verdict.because
        whys = verdict.because, *(culprit.because for culprit in verdict.culprits), *verdict.remarks
        sentences = [*map(say, (*whys, *self._further(case, evidence, verdict)))]
        yield from (
            one for number, one in enumerate(sentences) if not any(one in other for other in sentences[:number])
        )

    def _further(self, case: Any, evidence: Evidence, verdict: Verdict) -> Iterable[Reason]:
        notes = *rank_notes(evidence, self.option["limit"], [verdict]), *pace_notes(evidence)
        return notes if "notes" in self.flags else ()

    @property
    def device_type(self) -> Any:
        return "cpu" if "cpu" in self.flags else "cuda"

    def _case(self, asked: re.Match[str]) -> Case:
        keys: dict[str, Any] = {"placement": "spread"} if asked[5] else {}
        keys |= {"provisional": True} if "warn" in self.flags else {}
        keys |= {"severity": "warn"} if asked[6] else {}
        keys |= {"one_gpu": self.option["one_gpu"]} if self.option["one_gpu"] else {}
        precision = self.option["precision"] or WORKLOAD.precision
        workload = replace(WORKLOAD, compile="compile" in self.flags, precision=precision)
        case = make_case(asked[2], float(asked[3]), int(asked[4]), workload, **keys)
        peers = replace(case.peers, computing=self.option["limit"], nodes=self.option["nodelimit"])
        peak = self.option["peak"] or case.peak_tflops
        return replace(case, peers=peers, peak_tflops=peak, environment=self.purpose)

    def transports(self) -> dict[Place, RankTransport]:
        """What ranks saw."""
        ranks = [(node, rank) for node in range(self.nodes) for rank in range(self.per_node)]
        return {
            Place(f"n{node}", rank): RankTransport(
                rank=node * self.per_node + rank,
                variables={name: value for name, value, at, *_ in self.variables if at in ("", f"n{node}")},
            )
            for node, rank in ranks
        }

    def _evidence(self, plan: Plan) -> Evidence:
        found = [one for study in plan.studies for one in self._measured(plan, study)]
        if self.trained:
            trained = [replace(study, workload=with_settings(study.workload, **self.trained)) for study in plan.studies]
            plan = replace(plan, studies=tuple(trained))
        last = plan.studies[-1].id
        evidence = Evidence(
            plan,
            columns_of(found),
            {last: "rank 1 died"} if "error" in self.flags else {},
            {study.id: self.option["flops"] for study in plan.studies},
            {study.id: self._seeded_steps(plan, study) for study in plan.studies},
            hosts=[f"n{node}" for node in range(self.nodes)],
            out_of_time={last} if "out-of-time" in self.flags else set(),
            timed_arms={study.id: self._timed(study) for study in plan.studies},
            goes_on="going-on" in self.flags,
            transports=self.transports() if self.variables else {},
            surveys={"n0": Survey("n0", 1.0, cores=self.option["cores"])} if self.option["cores"] else {},
        )
        if "cool" in self.flags:
            evidence = replace(evidence, telemetry=self._telemetry(found))
        return self.with_pairs(evidence)

    def _timed(self, study: Study) -> dict[int, tuple[str, ...]]:
        dropped = [change for change in self.changes if change.what == "dropped"]
        rounds = range(self.option["rounds"] if dropped else 0)
        return {
            number: tuple(arm.name for arm in study.arms if not any(one.is_at(number, 0, arm.name) for one in dropped))
            for number in rounds
        }

    def with_pairs(self, evidence: Evidence) -> Evidence:
        """With measurements of each pair of nodes, at 10 GB/s."""
        ends = itertools.combinations(range(self.nodes), 2)
        pairs = [(number, *both, 10.0) for both in ends for number in range(self.option["pairs"])]
        return with_columns(evidence, pair_columns_of(pairs, self.per_node, self._messages_s)) if pairs else evidence

    def _messages_s(self, number: int, ranks: tuple[int, int], messages_s: list[float]) -> list[float]:
        for change in self.changes:
            if change.what in ("link", "stall") and change.is_between(number, ranks, self.per_node):
                changed_s = [change.of(one, number) for one in messages_s]
                messages_s = changed_s if change.what == "link" else [*messages_s[1:], changed_s[0]]
        return messages_s

    def _measured(self, plan: Plan, study: Study) -> Iterator[Measurement]:
        together = [arm for arm in study.arms if arm.kind == "ddp"]
        largest = max(together, key=lambda arm: arm.world_size, default=None)
        for number, arm in itertools.product(range(self.option["rounds"]), study.arms):
            for group in plan.layout.groups(arm, study.turn(plan.seed, number)):
                own = {rank: self._slower(study, arm, rank, number) for rank in group}
                waits = max(own.values()) if arm.kind == "ddp" and "forward" not in self.flags else None
                for rank in group:
                    one = self._block(study, arm, number, rank, own[rank], waits)
                    changes = [*self._changes(study, arm, rank, number)]
                    for change in changes:
                        if change.what != "net" or arm == largest:
                            one = _changed(one, change)
                    if not any(change.what in ("lost", "dropped") for change in changes):
                        yield one

    def _changes(self, study: Study, arm: Arm, rank: int, number: int) -> Iterator[Change]:
        names = ("all", f"n{rank // self.per_node}", arm.name, study.scaling)
        return (change for change in self.changes if change.is_at(number, rank, *names))

    def _slower(self, study: Study, arm: Arm, rank: int, number: int) -> float:
        slower = float(self._usual[rank]) * math.exp(self.option["noise"] * self._chance.standard_normal())
        for change in self._changes(study, arm, rank, number):
            slower = float(change.of(slower, number)) if change.what == "slow" else slower
        return slower

    def _block(self, study: Study, arm: Arm, number: int, rank: int, own: float, waits: float | None) -> Measurement:
        node, local_rank = divmod(rank, self.per_node)
        is_alike = "forward" in self.flags and arm.kind == "ddp"
        # Rounds differ a little, or an interval would have no width.
        pace = ALONE_SAMPLES_PER_S * (1 + 0.001 * ((number + (arm.kind == "alone")) % 3))
        pace /= 1.0 if is_alike else waits or own
        one = make_measurement(study.id, arm, number, rank, pace, host=f"n{node}", local_rank=local_rank)
        if is_alike or ("timed" in self.flags and arm.kind != "each"):
            forward_s = FORWARD_SHARE * one.batch_size / ALONE_SAMPLES_PER_S
            one = replace(one, forward_s=one.steps * forward_s * own)
        if self.option["imported"] != "no":
            share = self.option["imported"]
            stdev_s = None if share is None else share * one.block_s / one.steps
            longer = replace(one, steps=100, block_s=one.block_s * 100 / one.steps, step_s=(), single_sample=True)
            one = replace(longer, step_stdev_s=stdev_s)
        return one

    def _telemetry(self, found: list[Measurement]) -> TelemetryColumns:
        blocks = []
        for (study, arm, number), block in itertools.groupby(found, lambda one: (one.study, one.arm, one.round)):
            ranks, readings = [], []
            for one in block:
                names = ("all", f"n{one.rank // self.per_node}", arm)
                at = {change.what for change in self.changes if change.is_at(number, one.rank, *names)}
                reasons = None if "unknown" in at else {"hw_thermal_slowdown": 0.5} if "hot" in at else {}
                ends: dict[str, Any] = {"started_unix_s": one.started_unix_s, "ended_unix_s": one.started_unix_s + 1}
                readings.append(GpuReadings(**ends, throttle_reasons=reasons, utilization=one.utilization))
                ranks.append(one.rank)
            place = {"study": study, "arm": arm, "round": number, "gang": 0, "ranks": tuple(ranks)}
            blocks.append(joined_readings(readings, **place))
        return telemetry_columns_of(blocks, {0: gang_of(found)})

    def _seeded_steps(self, plan: Plan, study: Study) -> dict[Place, SeededStep]:
        found = {}
        for rank in plan.layout.ranks(study.arms):
            node, local_rank = divmod(rank, self.per_node)
            names = ("all", f"n{node}", study.scaling)
            at = {change.what for change in self.changes if change.is_at(0, rank, *names)}
            checksum = "" if "unseeded" in at else OTHER_CHECKSUM if "seeded" in at else CHECKSUM
            step = SeededStep(rank=rank, checksum=checksum)
            step = SeededStep(rank=rank, checksum="a+b", repeats=False) if "unrepeated" in at else step
            found[Place(f"n{node}", local_rank, f"GPU-{rank}", local_rank)] = step
        return found


def _changed(one: Measurement, change: Change) -> Measurement:
    """A block with a change to what it measured."""
    if change.what in ("net", "uneven"):
        value = change.of(1.0 if change.what == "net" else 0.0, one.round)
        factors = [1 / value if change.what == "net" else 1 + value * (-1) ** step for step in range(one.steps)]
        step_s = tuple(each * factor for each, factor in zip(one.step_s, factors, strict=True))
        return replace(one, step_s=step_s, block_s=math.fsum(step_s))
    if change.what == "odd":
        return replace(one, parameters_checksum=one.parameters_checksum and OTHER_CHECKSUM)
    if change.what in NO_FIELDS:
        return one
    return replace(one, **{change.what: change.of(getattr(one, change.what), one.round)})


@cache
def _is_one(who: str, rank: int, names: tuple[str, ...]) -> bool:
    """Whether a rank is one of `3-5`, or has all the names of `n1.ddp@2`."""
    return all(part in names or (part[0].isdigit() and _is_in(part, rank)) for part in who.split("."))


@cache
def _is_in(span: str, number: int) -> bool:
    """Whether a number is one of `3,5-7,9-`, or of each third for `%3`."""
    if span.startswith("%"):
        return number % int(span[1:]) == 0
    for part in span.split(","):
        first, dash, last = part.partition("-")
        if int(first) <= number <= (int(last) if last else number if dash else int(first)):
            return True
    return False


def _value(text: str) -> Any:
    if text == "none":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
