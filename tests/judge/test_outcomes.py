"""What a run comes to, as it stands in outcomes.txt: from verdicts and coverage to the outcome, its causes and notes.

A line is a run, in words of any order:
    throughput@2:50,warn      a requirement on 2 ranks, judged by the bound 50: of the first metric that begins so, a
                              probe or a check; other names are workloads, and it is of their throughput
    A:failed                  its verdict came out so, whatever was measured
    A:passed,low=0.75         so does the lower end of its interval, of 1 published; at 97.5 % confidence 0.05 less, and
                              of 0 no interval
    warn provisional spread wrong-data waived waived-late
                              of a requirement; ``waived`` on its last day or, ``late``, one day after
    2x4                       2 nodes of 4 ranks that measure everything; without this nothing was measured
    lost/3:2- slow=*1.3/n1    as in `runs`: GPU 3 measures nothing from round 2 on; node n1 trains slowly
    wrong/3                   its results of probes are wrong
    unheard=n1                nobody has heard of the node
    surveyed=n1               the GPUs of the node are known from before the launch; of these
    silent=n1.1               GPU 1 does not answer; ``unseen=n1.1``: and has no UUID either
    imported=0.05             another tool's run, of whose nodes the plan knows nothing
    gang=0,1:nvlink           errors of their GPUs ended these ranks of a gang: of NVLink; ``early``: before their UUIDs
                              were known; ``moved``: of the device of another rank; ``1``: while one other rank did the
                              same work instead of all
    launched                  its ranks are known, measured or not
    gpus=3                    of a node instead of one a rank
    pairs=2 unpaired=n2       rounds of all pairs of nodes instead of 1; a node without any
    errors=pairs late=pairs cut=pairs
                              studies that begin so and broke, were out of budget, or were interrupted
    unsupported=matmul-bf16   a probe that ran out of memory
    left-out=n7               a node on which nothing was launched
    unselected=2              requirements without a verdict
    simulated, allowed (what is unmeasured), interrupted and what else the session knows of the run: silent-gpu=GPU-1
    slow-link=n3 wrong-data=matmul-bf16 two-machines=other-hosts lost-host=n2 skipped=test_x
    sku=b200 only=busbw_gbps + YAML
                              the remark on a loss that no bound would see: of a SKU, of judged metrics, and what a
                              site's file changes

What is told: outcome and reason with its arguments; causes with what they explain; verdicts that did not pass; nodes by
how they were tested, and GPUs (NVML index, with local rank and UUID where they are not those of the rank there) unless
all were tested alike; paths.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge.coverage import coverage_of, notes_on_variables
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.outcome import RunFacts, conclude, remark_on_unseen_loss, uniform_loss, with_waiver
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.planner import Pace
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.report.causes import causes
from pytest_ddpscale.report.words.reasons import say, worded
from pytest_ddpscale.run.coverage import Coverage
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.records import GpuErrors, RankGpuError
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.run.verdicts import Blocker, Culprit, Judgement, Verdict, VerdictOutcome
from pytest_ddpscale.session.open import Site, Subject
from pytest_ddpscale.session.session import other_blockers
from pytest_ddpscale.settings import Settings
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase, cases_for, plan_of_cases
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.thresholds.model import check_of_nodes
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.judged import CONFIDENCE, WORKLOAD, make_case
from tests.builders.probes import (
    A100,
    measure_probe,
    pair_columns_of,
    probe_case,
    probe_columns_of,
    steady,
    with_columns,
)
from tests.builders.records import gang_at
from tests.judge import runs
from tests.judge.told import codes
from tests.tables import assert_approved, each_block

TABLE = Path(__file__).with_name("outcomes.txt")
OUTCOMES = get_args(VerdictOutcome)
JUST_SO = "run-not-accepted: acceptance"  # a cause that adds nothing
ONE_ROUND = "17.2 in 1"  # GB/s of a path
WAIVER = Waiver("A. Name", "a fan is ordered", date(2026, 10, 1))
WORDS = {
    "allowed", "cut", "errors", "gang", "gpus", "imported", "interrupted", "late", "launched",
    "left-out", "lost-host", "only", "pairs", "purpose", "set", "silent", "silent-gpu", "simulated",
    "skipped", "sku", "slow-link", "surveyed", "two-machines", "unheard", "unpaired", "unseen",
    "unselected", "unsupported", "wrong-data",
}  # fmt: skip
ASKED = re.compile(r"(([\w-]+)(?:@(\d+))?):([\w.]+)((?:,[^,]+)*)")


class Run(runs.Run):
    """A line."""

    def __init__(self, line: str) -> None:
        self.words = defaultdict[str, list[str]](list)
        has_machine = re.search(r"\d+x\d+", line)
        super().__init__(line if has_machine else f"0x1 {line.partition(' + ')[0]}")
        words, asked = self.words, [found.groups() for word in line.split() if (found := ASKED.fullmatch(word))]
        self.places = [(f"n{node}", rank) for node in range(self.nodes) for rank in range(self.per_node)]
        self.cases = {one[0]: replace(_case(*one), environment=self.purpose) for one in asked}
        self.evidence = self._whole_evidence() if has_machine else Evidence(Plan("a100", "cuda", ()), Columns(), {})
        self.verdicts = {(case := self.cases[name]).id: self._judged(case, *of) for name, _, _, *of in asked}
        left_out, known = dict.fromkeys(words["left-out"], "disk: full"), list(self.cases.values())
        gpus = self._number("gpus", self.per_node)
        self.facts = RunFacts(
            list(self.verdicts.values()), len(asked) + self._number("unselected", 0),
            coverage=coverage_of(self.evidence, known, self.verdicts, left_out, gpus) if has_machine else Coverage(),
            interrupted="interrupted" in words, is_simulated="simulated" in words,
            allows_unmeasured="allowed" in words,
            silent=words["silent-gpu"], slow_links=words["slow-link"], wrong_data=words["wrong-data"],
            not_one_machine=next((because("text", one) for one in words["two-machines"]), None),
            lost=dict.fromkeys(words["lost-host"], "silence\nrank 3"),
            spoiled=[Blocker("test", name, "was skipped") for name in words["skipped"]],
            variables=[*notes_on_variables(self.evidence, known)],
        )  # fmt: skip

    def _take(self, word: str) -> None:
        if "/" in word or re.match(r"\d+x\d+|imported=|set=", word):
            super()._take(word)
        key, _, value = word.partition("=")
        assert re.search(r"/|^\d+x\d+$", word) or ASKED.fullmatch(word) or key in WORDS, f"{word}: not a word"
        self.words[key].append(value)

    def _number(self, name: str, usual: int) -> int:
        return int((self.words[name] or [str(usual)])[0])

    def _whole_evidence(self) -> Evidence:
        words, nodes = self.words, 1 if self.words["imported"] else self.nodes
        empty = Plan("a100", "cuda", (), nodes=nodes, ranks_per_node=len(self.places) // nodes)
        plan = plan_of_cases(empty, list(self.cases.values()), Pace(runs.STUDY_ROUNDS, 1.0, 1.0))
        probed = []
        for arm in plan.probes.arms if plan.probes else ():
            for one in measure_probe(plan, arm, steady(120.0), self.option["rounds"]):
                at = [each.what for each in self.changes if each.is_at(one.round, one.rank, "all", one.host)]
                probed += [] if "lost" in at else [replace(one, is_correct="wrong" not in at)]
        paired = [node for node in range(nodes) if plan.pairs and f"n{node}" not in words["unpaired"]]
        pairs = [
            (number, *ends, 2.0**34 / 1e9 * (number + 1))
            for number in range(self._number("pairs", 1)) for ends in itertools.combinations(paired, 2)
        ]  # fmt: skip
        errors, out_of_time, interrupted = (
            dict.fromkeys([study for study in plan.study_ids if study.startswith((*words[how],))], "rank 1 died")
            for how in ("errors", "late", "cut")
        )
        trained = self._evidence(plan) if plan.studies else Evidence(plan, Columns(), {})
        evidence = with_columns(trained, probe_columns_of(probed), pair_columns_of(pairs, self.per_node))
        launched = {place: None for arm in evidence.columns.arms.values() for place in arm.ranks.rank_places}
        if words["gang"] or "launched" in words:
            launched = {Place(*at, f"GPU-{rank}", at[1]): None for rank, at in enumerate(self.places)}
        return replace(
            evidence,
            errors=errors, out_of_time=out_of_time, interrupted=interrupted,
            unsupported=dict.fromkeys(words["unsupported"], "n0: out of memory"),
            hosts=[host for host, _ in self.places if host not in words["unheard"]],
            surveys={host: self._survey(host) for host in words["surveyed"]},
            gangs=[gang_at(launched)], transports=self.transports() if words["set"] else {},
            gpu_errors=[self._gang(i, [*errors][:1], *gang.split(":")) for i, gang in enumerate(words["gang"])],
        )  # fmt: skip

    def _gang(self, number: int, studies: list[str], ranks: str, how: str = "") -> GpuErrors:
        errors = []
        for rank in map(int, ranks.split(",")):
            other = {"early": "", "moved": "GPU-0", "moved-kernel": "GPU-0"}
            (host, local_rank), device = self.places[rank], other.get(how, f"GPU-{rank}")
            peers = int(how) if how.isdigit() else len(self.places) - 1
            ran = (studies[0], f"ddp@{len(self.places)}") if how == "kernel" else ("probes", "matmul-bf16")
            is_program = how in ("kernel", "probe", "moved-kernel")
            peer = how.partition("peer-")[2]
            error = RankGpuError(Place(host, local_rank, device), f"CUDA error: {how}", is_program, *ran, peers, peer)
            errors.append(error)
        gang = number - (how == "again")  # the errors of one gang, told twice
        return GpuErrors(gang=gang, ranks=len(self.places), errors=tuple(errors), studies=tuple(studies))

    def _survey(self, host: str) -> Survey:
        gpus, local_ranks = list[SurveyedGpu](), itertools.count()
        for index in range(self._number("gpus", self.per_node)):
            is_unseen, is_silent = (f"{host}.{index}" in self.words[what] for what in ("unseen", "silent"))
            local_rank = None if is_unseen or is_silent else next(local_ranks)
            uuid = f"GPU-{self.places.index((host, 0)) + (index if local_rank is None else local_rank)}"
            known = index, "" if is_unseen else uuid, "A100", f"{index:02X}", "20b2"
            problem = "GPU is lost" if local_rank is None else ""
            gpus.append(SurveyedGpu(*known, local_rank=local_rank, problem=problem, is_lost=is_unseen))
        addresses = "172.17.0.1", f"10.0.0.{host[1:]}"  # that of a bridge, which every node has
        return Survey(host, 1.7e9, has_driver=True, gpus=tuple(gpus), addresses=addresses)

    def _judged(self, case: AnyCase, result: Any, flags: str) -> Verdict:
        verdict = judge(case, self.evidence, CONFIDENCE)
        if result in OUTCOMES:
            low = float((re.findall(r"low=([\d.]+)", flags) or [1.5])[0])
            verdict = replace(verdict, outcome=result, value=low + 1, interval=(low, low + 2))
        if "wrong-data" in flags:
            verdict = replace(verdict, flags=("wrong-data",))
        return worded(with_waiver(verdict, case, self.evidence, date(2026, 10, 2 if "waived-late" in flags else 1)))

    def name(self, place: Place) -> str:
        """NVML's index, with all that is not as it usually is there."""
        rank = self.places.index(place.of_rank) if place.of_rank in self.places else None
        known = f"/{place.local_rank} {place.uuid}"
        is_usual = (place.index, place.uuid) == (place.local_rank, f"GPU-{rank}")
        return f"{place.host}.{place.index}{'' if is_usual else known}"

    def again(self, name: str, confidence: float) -> Verdict:
        """A verdict at a higher confidence, of which the interval is wider."""
        verdict = self.verdicts[name]
        low, high = verdict.interval or (0, 0)
        return replace(verdict, interval=(low - 2 * (confidence - CONFIDENCE), high) if low else None)


def _case(word: str, name: str, ranks: str | None, result: str, flags: str) -> AnyCase:
    size, bound = int(ranks or 1), float(result) if result[0].isdigit() else 1.0
    severity: Any = "warn" if "warn" in flags else "fail"
    if name in NODE_CHECKS:
        case: AnyCase = NodeCase(check_of_nodes(name, severity), name, "t.yaml:7", A100)
    elif "-" in name:
        case = probe_case(Arm(name, size), bound)
    else:
        metric = next((metric for metric in METRICS if metric.startswith(name)), "throughput_per_gpu")
        workload = WORKLOAD if metric.startswith(name) else replace(WORKLOAD, name=name)
        placement = "spread" if "spread" in flags else "packed"
        keys = {"severity": severity, "provisional": "provisional" in flags, "placement": placement}
        case = make_case(metric, bound, size, workload, **keys)
    requirement = replace(case.requirement, waiver=WAIVER if "waived" in flags else None)
    return replace(case, name=word, requirement=requirement)


@cache
def _site(text: str) -> ThresholdsFile:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "site.yaml"
        path.write_text(f"schema_version: 2\nextends: packaged\nsources: {{site: 'measured here'}}\n{text}\n")
        return load_thresholds(path)


def told(line: str) -> Iterator[str]:
    """What comes of a line: outcome, causes, what was judged, coverage."""
    run, (line, _, change) = Run(line), line.partition(" + ")
    if sku := "".join(run.words["sku"]):
        file = _site(f"skus: {{{sku}: {{{change}}}}}" if change else "")
        subject = Subject(Site(Settings(), Path(), Path()), file, sku)
        cases, only = cases_for(file, sku, Layout(1, 8)), run.words["only"]
        asked = [case for case in cases if case.requirement.metric in only or not only]
        unseen = remark_on_unseen_loss(subject.device_type, cases, asked)
        yield codes(unseen, every=True) if unseen else "no remark"
        return
    facts, coverage, verdicts = run.facts, run.facts.coverage, tuple(run.facts.verdicts)
    outcome, why, _ = conclude(facts)
    yield f"{outcome}: {_names([codes(why, every=True)])}"
    judgement = Judgement(
        "a100", outcome, say(why), verdicts, coverage=coverage, allows_unmeasured=facts.allows_unmeasured,
        blockers=other_blockers(facts),
    )  # fmt: skip
    yield from (f"~ {codes(one, every=True)}" for one in facts.variables)
    found = [f"{cause.id}: {_names(sorted(cause.explains))}{_listed(cause.culprits)}" for cause in causes(judgement)]
    yield from (f"! {cause}" for cause in found if cause != JUST_SO)
    if not judgement.accepts and outcome != "partial" and not found:
        yield "! no cause"
    for verdict in verdicts:
        waived = [reason.code for reason in verdict.remarks if "waive" in reason.code] + ["waived"] * verdict.is_waived
        if waived or verdict.culprits or (run.nodes and not verdict.passed):
            yield f"{' '.join([_names([verdict.id]), verdict.outcome, *waived])}{_listed(verdict.culprits)}"
            yield from (
                f"    {codes(culprit.because, every=True)}" for culprit in verdict.culprits if run.words["gang"]
            )
    if ",low=" in line:
        loss = uniform_loss(verdicts, CONFIDENCE, run.again)
        told = loss and f"{loss.fraction:.4g} … {loss.largest:.4g} by {_names([loss.requirement])} of {loss.workloads}"
        yield f"loss: {told}"
    yield from _grouped((node.host, *node.tested_by, node.left_out) for node in coverage.nodes)
    gpus = [
        (run.name(gpu.place), *gpu.tested_by, gpu.problem,
         f"misses {gpu.rounds_missing} rounds, {_names(gpu.missing_in)}" if gpu.rounds_missing else "")
        for gpu in coverage.gpus
    ]  # fmt: skip
    if len({*(gpu[1:] for gpu in gpus)}) > 1:
        yield from _grouped(gpus)
    if coverage.is_on_several_nodes:
        paths = [(f"{path.node}-{path.other}", f"{path.gbps:.1f} in {path.rounds}") for path in coverage.paths]
        missing = "" if len(paths) == coverage.paths_planned else f": {', '.join(name for name, _ in paths)}"
        yield f"{len(paths)} of {coverage.paths_planned} paths{missing}".rstrip(" :")
        yield from _grouped(path for path in paths if path[1] != ONE_ROUND)
        between, of_all = _names(coverage.between_nodes), _names(coverage.over_all_nodes)
        yield f"between nodes: {between}{'' if of_all == between else f'; of all: {of_all}'}"


def _names(ids: Iterable[str]) -> str:
    return ", ".join(re.sub(r"\w+\[([^]]*)\]", r"\1", one) for one in ids) or "none"


def _listed(culprits: Iterable[Culprit]) -> str:
    sure = {True: "", False: " perhaps"}
    return "".join(
        f", {culprit.kind} {culprit.host} {culprit.place.index}{sure[culprit.is_certain]}" for culprit in culprits
    )


def _grouped(named: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """What is said of each, with the names of all of which it is."""
    groups = defaultdict[str, list[str]](list)
    for name, *words in named:
        groups[" ".join(filter(None, words)) or "nothing"].append(name.strip())
    yield from (f"{words}: {', '.join(names)}" for words, names in groups.items())


@each_block(TABLE)
def test_a_run_comes_to(block: str) -> None:
    assert_approved(TABLE, block, told)


RESULTS = st.tuples(st.sampled_from(OUTCOMES), st.sampled_from(["", ",warn"]), st.sampled_from(["", ",provisional"]))
NAMES = "A", "B", "C", "D", "E", "F"


@given(st.lists(RESULTS, max_size=6), st.sampled_from(["", "unselected=1", "interrupted", "allowed"]))
def test_acceptance_needs_every_requirement_decided_and_none_failed(results: list[tuple[str, ...]], but: str) -> None:
    """Of all lines, in which requirements may stand in any order."""

    def comes_to(*words: str) -> tuple[str, list[str]]:
        facts = Run(" ".join(words)).facts
        return conclude(facts)[0], [blocker.kind for blocker in other_blockers(facts)]

    words = [f"{name}:{''.join(result)}" for name, result in zip(NAMES, results, strict=False)]
    found = comes_to(but, *words)
    assert comes_to(*words[::-1], but) == found
    if found[0] == "accepted":
        binding = [result for result in results if not result[1]]
        assert but in ("", "allowed")
        assert {one[0] for one in binding} == {"passed"}
        assert not all(one[2] for one in binding)
        assert not {result[0] for result in results} & {"not_measured", "error"}
