"""What of a machine was tested is known, and what was not is never accepted with the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from pytest_ddpscale.judge.covering import coverage_of, lost_places
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.run_outcome import RunFacts, conclude, other_blockers
from pytest_ddpscale.judge.slow_links import slow_links
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import Pace, build_plan
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.coverage import Coverage
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.strict_json import read_as
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu
from pytest_ddpscale.run.verdicts import Judgement, Verdict
from pytest_ddpscale.thresholds.cases import Case
from tests.builders.json_types import as_json
from tests.builders.judged import ALONE_SAMPLES_PER_S, CONFIDENCE, evidence_of_plan, make_case, measure, plan_of
from tests.builders.probes import (
    Pair,
    measure_probe,
    pair_columns_of,
    probe_columns_of,
    probe_plan,
    steady,
    with_columns,
)
from tests.judge.nodes import Slowness, equal, measure_nodes, nodes_evidence, plan_of_nodes, slow_rank
from tests.rows import rows

# Two GPUs a node; what all devices of a node keep, and what two nodes keep together.
ON_EACH = make_case("throughput_per_gpu", 50.0, world_size=2)
TOGETHER = make_case("weak_scaling_efficiency", 0.9, world_size=4)
PROVISIONAL = make_case("weak_scaling_efficiency", 0.9, world_size=4, provisional=True)
TOO_HARD = make_case("throughput_per_gpu", 5000.0, world_size=4, provisional=True)
WARNING = make_case("throughput_per_gpu", 5000.0, world_size=4, severity="warn")
FAST, SLOW = 2.0**34 / 1e9, 2.0  # GB/s; a message of 32 MiB takes 2⁻⁹ s, which is exact in float32
LOST: dict[str, Any] = {"problem": "GPU is lost", "is_lost": True}


@dataclass(frozen=True)
class Judged:
    """What a run comes to."""

    outcome: str
    reason: str
    coverage: Coverage
    verdicts: tuple[Verdict, ...]


def all_pairs(nodes: int, slow: Collection[tuple[int, int]] = (), rounds: int = 1) -> list[Pair]:
    ends = [*combinations(range(nodes), 2)]
    return [(number, *both, SLOW if both in slow else FAST) for number in range(rounds) for both in ends]


def evidence_of(
    cases: Sequence[Case],
    nodes: int = 2,
    slowness: Slowness = equal,
    without: Collection[int] = (),
    pairs: Sequence[Pair] | None = None,
) -> Evidence:
    plan = plan_of_nodes(cases, nodes, 2)
    measured = measure_nodes(plan, slowness, without=without)
    found = all_pairs(nodes) if pairs is None else pairs
    return with_columns(nodes_evidence(plan, measured), pair_columns_of(found, per_node=2))


def concluded(
    cases: Sequence[Case], evidence: Evidence, left_out: Mapping[str, str] | None = None, gpus: int = 2
) -> Judged:
    verdicts = {case.id: judge(case, evidence, CONFIDENCE) for case in cases}
    coverage = coverage_of(evidence, cases, verdicts, left_out or {}, gpus)
    found = tuple(verdicts.values())
    run = RunFacts(found, len(found), coverage=coverage, slow_links=tuple(slow_links(evidence)))
    outcome, reason = conclude(run)
    return Judged(outcome, reason, coverage, found)


UNPUBLISHED_EACH = make_case("throughput_per_gpu", 50.0, world_size=2, provisional=True)
ON_ONE = make_case("throughput_per_gpu", 50.0, world_size=1)
SPREAD = make_case("throughput_per_gpu", 50.0, world_size=2, placement="spread")
CLOSE = make_case("throughput_per_gpu", ALONE_SAMPLES_PER_S * 1.001, world_size=4, provisional=True)
CLOSE_WARNING = make_case("throughput_per_gpu", ALONE_SAMPLES_PER_S * 1.001, world_size=4, severity="warn")
INFERENCE = [make_case("inference_throughput", 50.0, world_size=size) for size in (2, 4)]
NOTHING_TOGETHER = "but none between nodes: no requirement on speed was met by all {} nodes together"
NOT_ALL = "no published bound covers all devices"
# Requirements, nodes of two GPUs, what the run comes to, why, and which requirements are between nodes and over all.
BETWEEN: dict[str, tuple[list[Case], int, str, str, list[Case], list[Case]]] = {
    "measured and kept": ([ON_EACH, TOGETHER], 2, "accepted", "2 of 2 requirements passed", [TOGETHER], [TOGETHER]),
    "each node alone": ([ON_EACH], 2, "incomplete", NOTHING_TOGETHER.format(2), [], []),
    "two of three nodes": ([ON_EACH, TOGETHER], 3, "incomplete", NOTHING_TOGETHER.format(3), [TOGETHER], []),
    "a provisional bound is kept": (
        [ON_EACH, PROVISIONAL], 2, "accepted", "2 of 2 requirements passed; between nodes: provisional bounds",
        [PROVISIONAL], [PROVISIONAL],
    ),
    "a provisional bound is missed": (
        [ON_EACH, TOO_HARD], 2, "incomplete", f"between nodes a bound is missed: {TOO_HARD.id}",
        [TOO_HARD], [TOO_HARD],
    ),
    "a published bound that only warns is missed": (
        [ON_EACH, PROVISIONAL, WARNING], 2, "incomplete", f"between nodes a bound is missed: {WARNING.id}",
        [PROVISIONAL, WARNING], [PROVISIONAL, WARNING],
    ),
    "a provisional bound is undecided": (
        [ON_EACH, PROVISIONAL, CLOSE], 2, "incomplete", f"1 undecided between nodes: {CLOSE.id}",
        [PROVISIONAL, CLOSE], [PROVISIONAL],
    ),
    "a published bound that only warns is undecided": (
        [ON_EACH, PROVISIONAL, CLOSE_WARNING], 2, "incomplete", f"1 undecided between nodes: {CLOSE_WARNING.id}",
        [PROVISIONAL, CLOSE_WARNING], [PROVISIONAL],
    ),
    "provisional bounds alone": (
        [UNPUBLISHED_EACH, PROVISIONAL], 2, "incomplete", NOT_ALL, [PROVISIONAL], [PROVISIONAL]
    ),
    "a published bound on some GPUs": ([ON_ONE, PROVISIONAL], 2, "incomplete", NOT_ALL, [PROVISIONAL], [PROVISIONAL]),
    "a published bound on spread GPUs": (
        [SPREAD, PROVISIONAL], 2, "incomplete", NOT_ALL, [SPREAD, PROVISIONAL], [SPREAD, PROVISIONAL]
    ),
    "inference alone": (INFERENCE, 2, "incomplete", NOT_ALL, [], []),
}  # fmt: skip


@rows("case", BETWEEN.values(), ids=BETWEEN)
def test_what_nodes_do_together_is_in_every_acceptance(
    case: tuple[list[Case], int, str, str, list[Case], list[Case]],
) -> None:
    cases, nodes, outcome, reason, between, over_all = case
    found = concluded(cases, evidence_of(cases, nodes))
    assert (found.outcome, reason in found.reason) == (outcome, True), found.reason
    assert found.coverage.between_nodes == tuple(one.id for one in between)
    assert found.coverage.over_all_nodes == tuple(one.id for one in over_all)
    assert found.coverage.idle_gpus == [] or cases == [SPREAD, PROVISIONAL]


@rows(("metric", "bound"), [("peak_memory_gib", 1000.0), ("replica_agreement", 1.0)])
def test_what_says_nothing_of_speed_is_not_enough(metric: str, bound: float) -> None:
    other = make_case(metric, bound, world_size=4)
    found = concluded([ON_EACH, other], evidence_of([ON_EACH, other]))
    assert [verdict.outcome for verdict in found.verdicts] == ["passed", "passed"]
    assert found.outcome == "incomplete"
    assert NOTHING_TOGETHER.format(2) in found.reason


def test_what_is_unmeasured_may_be_allowed_unless_that_is_all_there_was_between_nodes() -> None:
    found = concluded([ON_EACH, PROVISIONAL], evidence_of([ON_EACH, PROVISIONAL]))
    missing = replace(found.verdicts[0], id="m[not measured]", outcome="not_measured")
    run = RunFacts([*found.verdicts, missing], 3, coverage=found.coverage, allows_unmeasured=True)
    assert other_blockers(run) == ()
    verdicts = [found.verdicts[0], replace(found.verdicts[1], outcome="not_measured")]
    coverage = replace(found.coverage, over_all_nodes=())
    (blocker,) = other_blockers(replace(run, verdicts=verdicts, required=2, coverage=coverage))
    assert (blocker.kind, blocker.name) == ("run", "acceptance")
    assert "none between nodes" in blocker.reason


def test_an_imported_run_has_what_is_between_nodes_from_its_hosts() -> None:
    plan = plan_of([TOGETHER])
    evidence = evidence_of_plan(plan, measure(plan.studies[0], 8, ranks_per_host=2))
    found = concluded([TOGETHER], evidence)
    assert (found.outcome, found.coverage.over_all_nodes) == ("accepted", (TOGETHER.id,))


class TestWhatTookNoPart:
    CASES = (ON_EACH, TOGETHER)

    def test_a_node_that_was_left_out_is_in_no_acceptance(self) -> None:
        found = concluded(self.CASES, evidence_of(self.CASES), left_out={"n7": "ecc: GPU 2: 3 errors"})
        assert found.outcome == "incomplete"
        assert "1 of 3 nodes not tested: n7 (left out: ecc: GPU 2: 3 errors)" in found.reason
        assert [node.tested_by for node in found.coverage.nodes] == [("training", "pairs")] * 2 + [()]

    def test_neither_is_one_that_leaves_a_single_node(self) -> None:
        plan = plan_of_nodes([ON_EACH], 1, 2)
        found = concluded([ON_EACH], nodes_evidence(plan, measure_nodes(plan)), left_out={"n1": "disk: full"})
        assert found.outcome == "incomplete"

    def test_a_node_that_was_never_heard_of_is_counted(self) -> None:
        evidence = evidence_of([ON_EACH, TOGETHER], nodes=3, without=[2], pairs=all_pairs(2))
        verdicts = [judge(case, evidence, CONFIDENCE) for case in self.CASES]
        coverage = coverage_of(evidence, self.CASES, {v.id: v for v in verdicts}, {}, 2)
        assert (coverage.node_count, coverage.unnamed_nodes) == (3, 1)
        passed = [replace(one, outcome="passed") for one in verdicts]
        together = replace(coverage, over_all_nodes=coverage.between_nodes)
        outcome, reason = conclude(RunFacts(passed, 2, coverage=together))
        assert outcome == "incomplete"
        assert "1 of 3 nodes not tested: a node that never reported" in reason

    def test_a_gpu_that_trained_nothing_is_named(self) -> None:
        found = concluded(self.CASES, evidence_of(self.CASES), gpus=3)
        assert found.outcome == "partial"
        assert "none of them tested 2 of 6 GPUs: GPU of local rank 2 on n0, GPU of local rank 2 on n1" in found.reason

    def test_a_gpu_that_was_lost_before_the_launch_is_listed_once_and_the_others_by_their_uuids(self) -> None:
        """CUDA does not list GPU 1 of 3, so local rank 1 has GPU 2."""
        evidence = evidence_of([ON_EACH], nodes=1, pairs=())
        told: tuple[tuple[str, int | None, dict[str, Any]], ...] = ("GPU-0", 0, {}), ("", None, LOST), ("GPU-1", 1, {})
        gpus = tuple(
            SurveyedGpu(index, uuid, "A100", f"00000000:{index:02X}:00.0", "20b2", local_rank=local_rank, **lost)
            for index, (uuid, local_rank, lost) in enumerate(told)
        )
        surveyed = replace(evidence, surveys={"n0": Survey("n0", 0.0, gpus=gpus)})
        (node,) = concluded([ON_EACH], surveyed).coverage.nodes
        assert [(gpu.uuid, gpu.local_rank, gpu.problem) for gpu in node.gpus] == [
            ("GPU-0", 0, ""), ("GPU-1", 1, ""), ("", None, "GPU is lost"),
        ]  # fmt: skip
        assert node.gpus[-1].name == "GPU 1"

    @rows("lost", [(0, 1), (1,)])
    def test_lost_gpus_of_a_node_without_ranks_are_listed_once(self, lost: tuple[int, ...]) -> None:
        gpus = tuple(
            SurveyedGpu(i, "", "", "", "", **LOST) if i in lost else SurveyedGpu(i, "GPU-s0", "", "", "", local_rank=0)
            for i in range(2)
        )
        evidence = evidence_of(self.CASES, without=[1], pairs=())
        found = concluded(self.CASES, replace(evidence, surveys={"n1": Survey("n1", 1.7e9, gpus=gpus)})).coverage
        assert sorted(gpu.index or 0 for gpu in found.nodes[1].gpus) == [0, 1]
        assert [gpu.index for gpu in found.nodes[1].gpus if gpu.problem] == list(lost)

    @rows(("from_round", "rounds"), [(0, 9), (3, 6)])
    def test_a_gpu_that_its_peers_were_measured_without_says_in_what(self, from_round: int, rounds: int) -> None:
        plan = plan_of_nodes(self.CASES, 2, 2)
        measured = [one for one in measure_nodes(plan) if one.rank != 3 or one.round < from_round]
        coverage = concluded(
            self.CASES, with_columns(nodes_evidence(plan, measured), pair_columns_of(all_pairs(2), per_node=2))
        ).coverage
        missing = {(node.host, gpu.local_rank): gpu for node, gpu in coverage.gpus if gpu.rounds_missing}
        assert list(missing) == [("n1", 1)]
        assert missing["n1", 1].rounds_missing == rounds
        assert missing["n1", 1].missing_in == (ON_EACH.id, TOGETHER.id)

    def test_of_a_lost_node_no_gpu_is_missing_by_itself(self) -> None:
        found = concluded(self.CASES, evidence_of(self.CASES, without=[1], pairs=())).coverage
        assert not any(gpu.rounds_missing or gpu.missing_in for _, gpu in found.gpus)

    @rows(("is_imported", "missing"), [(False, 1), (True, 0)])
    def test_of_an_imported_run_that_kept_one_rank_nobody_is_missing(self, is_imported: bool, missing: int) -> None:
        case = make_case("rank_uniformity", 1.5, world_size=2)
        plan = plan_of_nodes([case], 1, 2)
        kept = [replace(one, single_sample=is_imported) for one in measure_nodes(plan) if one.rank == 0]
        found = concluded([case], nodes_evidence(plan, kept)).coverage
        assert sum(gpu.rounds_missing > 0 for _, gpu in found.gpus) == missing

    def test_gpus_that_take_part_in_nothing_but_turns_alone_take_none(self) -> None:
        """Over all turns the slowness of one of eight would be averaged away."""
        cases = [make_case("throughput_per_gpu", 0.9 * ALONE_SAMPLES_PER_S, world_size=ranks) for ranks in (1, 4)]
        questions = [case.question for case in cases]
        plan = build_plan(Plan("a100", "cuda", (), ranks_per_node=8, survey=True), questions, Pace(16, 1.0, 1.0))
        measured = measure_nodes(plan, slow_rank(0, 6, 1.18), rounds=16)
        found = concluded(cases, nodes_evidence(plan, measured), gpus=8)
        assert found.outcome == "partial"
        assert "none of them tested 4 of 8 GPUs: GPU of local rank 4 on n0" in found.reason

    def test_a_visible_gpu_is_known_from_the_survey(self) -> None:
        gpus = tuple(SurveyedGpu(i, f"GPU-s{i}", "A100", "0", "20b2", local_rank=i) for i in range(3))
        lost = SurveyedGpu(3, "GPU-s3", "A100", "0", "20b2", problem="GPU is lost")
        surveys = {"n1": Survey("n1", 1.7e9, gpus=(*gpus, lost))}
        found = concluded(self.CASES, replace(evidence_of(self.CASES), surveys=surveys), gpus=0)
        assert found.outcome == "partial"
        on_n1 = {gpu.uuid: (gpu.tested_by, gpu.problem) for gpu in found.coverage.nodes[1].gpus}
        assert on_n1 == {
            "GPU-2": (("training",), ""), "GPU-3": (("training",), ""),
            "GPU-s2": ((), ""), "GPU-s3": ((), "GPU is lost"),
        }  # fmt: skip

    def test_what_nobody_decided_covers_nothing(self) -> None:
        evidence = evidence_of(self.CASES)
        undecided = {case.id: replace(judge(case, evidence, CONFIDENCE), outcome="inconclusive") for case in self.CASES}
        coverage = coverage_of(evidence, self.CASES, undecided, {}, 2)
        assert len(coverage.idle_gpus) == 4
        assert coverage.over_all_nodes == ()

    def test_a_provisional_bound_that_is_missed_is_a_measurement_too(self) -> None:
        cases = [make_case("throughput_per_gpu", 5000.0, world_size=2, provisional=True)]
        evidence = evidence_of(cases)
        verdicts = {case.id: judge(case, evidence, CONFIDENCE) for case in cases}
        assert [verdict.outcome for verdict in verdicts.values()] == ["failed"]
        assert coverage_of(evidence, cases, verdicts, {}, 2).idle_gpus == []

    def test_a_gpu_that_only_inferred_was_not_tested_by_training(self) -> None:
        """Of two a node the first trains with that of the other node, and both infer."""
        training = make_case("throughput_per_gpu", 50.0, world_size=2, placement="spread")
        inference = make_case("inference_throughput", 50.0, world_size=2)
        cases = [training, inference]
        coverage = concluded(cases, evidence_of(cases)).coverage
        tested = [[gpu.tested_by for gpu in node.gpus] for node in coverage.nodes]
        assert tested == [[("training", "inference"), ("inference",)]] * 2
        assert [gpu.index for _, gpu in coverage.idle_gpus] == [1, 1]


class TestPaths:
    CASES = (ON_EACH, TOGETHER)

    def test_between_nodes_that_were_to_be_measured_and_were_not_are_in_no_acceptance(self) -> None:
        found = concluded(self.CASES, evidence_of(self.CASES, pairs=()))
        assert found.outcome == "incomplete"
        assert "1 of 1 pairs of nodes not measured with each other" in found.reason
        assert list(found.coverage.untested_paths) == [("n0", "n1")]

    def test_that_are_missing_have_the_reason(self) -> None:
        evidence = evidence_of(self.CASES, pairs=())
        broken = replace(evidence, errors={"pairs": "rank 2 on n1 died"})
        assert concluded(self.CASES, broken).reason.endswith("not measured with each other: rank 2 on n1 died")
        late = replace(evidence, out_of_time={"pairs"})
        assert concluded(self.CASES, late).reason.endswith(": --ddp-budget ran out")

    def test_of_a_search_that_broke_off_are_in_no_acceptance(self) -> None:
        evidence = evidence_of(self.CASES)
        assert concluded(self.CASES, evidence).outcome == "accepted"
        found = concluded(self.CASES, replace(evidence, errors={"pairs": "No space left on device"}))
        assert found.outcome == "incomplete"
        assert found.reason.endswith("the search for a slow node or link did not end: No space left on device")

    def test_are_known_with_the_best_of_their_rounds(self) -> None:
        cases = [ON_EACH, make_case("weak_scaling_efficiency", 0.9, world_size=6)]
        pairs = [*all_pairs(3), (1, 1, 2, 2 * FAST)]
        coverage = concluded(cases, evidence_of(cases, nodes=3, pairs=pairs)).coverage
        assert [((path.node, path.other), path.gbps, path.rounds) for path in coverage.paths] == [
            ((0, 1), FAST, 1), ((0, 2), FAST, 1), ((1, 2), 2 * FAST, 2),
        ]  # fmt: skip
        assert (coverage.paths_there_are, list(coverage.untested_paths)) == (3, [])

    def test_that_certainly_are_slow_are_in_no_acceptance(self) -> None:
        cases = [ON_EACH, make_case("weak_scaling_efficiency", 0.9, world_size=8)]
        pairs = all_pairs(4, slow=[(1, 2)], rounds=3)
        found = concluded(cases, evidence_of(cases, nodes=4, pairs=pairs))
        assert found.outcome == "incomplete"
        assert "communication is slow at the link between n1 and n2 (2 GB/s" in found.reason
        once = concluded(cases, evidence_of(cases, nodes=4, pairs=all_pairs(4, slow=[(1, 2)])))
        assert once.outcome == "accepted", "slow once is not slow for certain"


@rows("nodes", [1, 2])
def test_it_comes_back_from_verdicts_json(nodes: int) -> None:
    found = concluded([ON_EACH], evidence_of([ON_EACH], nodes), left_out={"n9": "disk: full"})
    judgement = Judgement("a100", "incomplete", found.reason, found.verdicts, coverage=found.coverage)
    data = as_json(judgement)
    assert read_as(Judgement, data) == judgement
    assert data["coverage"]["paths"] == ([[0, 1, FAST, 1]] if nodes == 2 else [])


@rows(
    ("probe", "from_round", "unsupported", "lost"),
    [
        ("matmul-bf16", 3, {}, {2: 5}),
        ("matmul-bf16", 7, {}, {}),  # one round may have been cut short
        ("matmul-bf16", 3, {"matmul-bf16": "n0: out of memory"}, {}),
        ("matmul-bf16", 0, {"matmul-bf16": "n0: out of memory"}, {}),
        ("matmul-bf16", 0, {}, {2: 8}),
        ("send-recv-256mib@4", 3, {}, {}),  # who of a pair is missing is unknown
    ],
)
def test_a_gpu_that_stops_while_probes_go_on_is_lost_before_anything_is_trained(
    probe: str, from_round: int, unsupported: dict[str, str], lost: dict[int, int]
) -> None:
    """As in a run that is killed then."""
    kind, _, ranks = probe.partition("@")
    arm = Arm(kind, int(ranks or 1))
    plan = probe_plan(arm, ranks_per_node=4)
    measured = [one for one in measure_probe(plan, arm, steady(100.0), 8) if one.rank != 2 or one.round < from_round]
    evidence = replace(Evidence(plan, probe_columns_of(measured), {}), unsupported=unsupported)
    assert {place.local_rank: rounds for place, rounds in lost_places(evidence).items()} == lost
