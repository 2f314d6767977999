"""Verdicts on node checks: missing nodes, certainty, and who is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest
from msgspec.structs import replace as altered

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.node_checks import unfit_nodes
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.study import PROBES, Plan, ProbeStudy
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.columns import Columns
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.survey_record import STUDY_ID as SURVEY
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN, Verdict
from pytest_ddpscale.thresholds.cases import NodeCase
from pytest_ddpscale.thresholds.model import Severity, Sku, check_of_nodes
from pytest_ddpscale.thresholds.parts import Detect, Node
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.measurements import ProbeMeasurement
from tests.builders.nodes_checked import (
    CPU,
    VERSIONS,
    by_host,
    cpu_survey,
    gpu,
    gpus,
    judged,
    survey,
    windows,
    with_gpu,
)
from tests.builders.probes import probe_case, probe_columns_of, with_columns
from tests.builders.rounds import columns_of
from tests.builders.telemetry import Telemetry, columns_of_telemetry
from tests.rows import rows

ON_SURVEYS = [name for name, check in NODE_CHECKS.items() if check.reads == "survey"]


EIGHT_A100 = Sku(
    "eight in a node",
    Detect(name="^(NVIDIA )?A100-SXM4?-80GB$", pci_device_ids=["20b2"], memory_gib=80),
    node=Node(pcie_generation=4, pcie_width=16, nvlinks=12, ecc=True),
)
ANY_CPU = Sku("any", Detect(device="cpu"))
FAULTY: dict[str, Any] = {"ecc_uncorrected": 2}
DAY = date(2026, 10, 1)


def check_case(name: str, severity: Severity = "fail", sku: Sku = EIGHT_A100) -> NodeCase:
    return NodeCase(check_of_nodes(name, severity), name, "t.yaml:7", sku)


def plan_of(nodes: int = 1, device_type: DeviceType = "cuda", ranks_per_node: int = 8) -> Plan:
    return Plan("a100", device_type, (), nodes=nodes, ranks_per_node=ranks_per_node, survey=True)


def unfit(names: Sequence[str], *surveys: Survey) -> dict[str, str]:
    return unfit_nodes([check_case(name) for name in names], plan_of(len(surveys)), by_host(surveys), DAY)


def test_no_check_passes_on_nothing_nor_without_a_survey_of_each_node() -> None:
    for name in NODE_CHECKS:
        nothing = judged(name, planned=2)
        assert (nothing.outcome, nothing.value) == ("not_measured", None)
    for name in ON_SURVEYS:
        absent = judged(name, survey("n1"), survey("n2"), planned=3)
        assert absent.outcome == "not_measured"
        assert "1 of 3 nodes reported nothing" in absent.reason
        stranger = judged(name, survey("n1"), survey("n7"), planned=2, hosts=("n1", "n2"))
        assert stranger.outcome == "not_measured", "n2 took part and was not looked at"
        hung = judged(name, survey("n1"), Survey("n2", 1.7e9, problem="no answer in 60 s"))
        assert (hung.outcome, hung.value) == ("not_measured", None)
        assert "n2: survey failed: no answer in 60 s" in hung.reason


def test_a_failure_says_what_else_is_not_known() -> None:
    result = judged("pcie", with_gpu(host="n1", pcie_width_max=8), survey("n2", problem="it hangs"))
    assert (result.outcome, result.flags) == ("failed", (PARTLY_KNOWN,))
    assert "also missing data: n2: survey failed: it hangs" in result.notes
    assert judged("pcie", with_gpu(host="n1", pcie_width_max=8), survey("n2")).flags == ()


def test_each_sku_has_its_own_expectation_of_the_same_nodes() -> None:
    evidence = Evidence(plan_of(), Columns(), {}, surveys=by_host([survey("n1")]))
    for node, outcome in [(Node(pcie_width=16), "passed"), (Node(pcie_width=32), "failed")] * 16:
        sku = replace(EIGHT_A100, node=node)
        assert judge(check_case("pcie", sku=sku), evidence, 0.95).outcome == outcome
        del sku  # so that the next may take its place in memory


def test_what_means_nothing_without_a_gpu_is_not_passed_on_cpu_and_the_others_pass_there() -> None:
    for name, check in NODE_CHECKS.items():
        result = judged(name, cpu_survey("n1"), cpu_survey("n2"), expectation=CPU)
        assert result.outcome == ("passed" if check.on_cpu else "not_measured")


def test_if_most_nodes_fail_alike_the_expectation_may_be_wrong_and_nobody_is_certain() -> None:
    everywhere = [survey(host, gpus=gpus(host, which=range(8), pcie_width_max=8)) for host in ("n1", "n2", "n3")]
    result = judged("pcie", *everywhere, survey("n4"))
    assert (result.outcome, result.value) == ("failed", 0.25)
    assert len(result.culprits) == 24
    assert not any(culprit.is_certain for culprit in result.culprits)
    assert "is the expectation right?" in result.notes[-1]


def test_one_bad_gpu_is_certain_beside_good_ones_and_all_of_a_single_node_are_not() -> None:
    result = judged("pcie", with_gpu(host="n1", pcie_width_max=8), with_gpu(host="n2", pcie_width_max=4))
    assert [culprit.is_certain for culprit in result.culprits] == [True, True]
    assert judged("nvlink", with_gpu(nvlinks_active=0)).culprits[0].is_certain
    assert not judged("nvlink", with_gpu(which=range(8), nvlinks_active=0)).culprits[0].is_certain


def test_what_a_single_node_as_a_whole_is_not_is_certainly_its_own_fault() -> None:
    node = survey(gpus=gpus(count=7), free_bytes={"run_directory": 0})
    assert [culprit.is_certain for culprit in judged("gpus", node).culprits] == [True]
    assert sorted(unfit(["gpus", "disk"], node)) == ["n1"]
    alike = [survey(host, free_bytes={"run_directory": 0}) for host in ("n1", "n2")]
    assert not any(culprit.is_certain for culprit in judged("disk", *alike).culprits)


@pytest.mark.parametrize(("braked", "is_certain"), [(1, True), (2, True), (3, False), (4, False)])
def test_a_power_brake_of_most_nodes_may_be_the_facilitys(braked: int, is_certain: bool) -> None:
    reasons = ("hw_slowdown", "hw_power_brake_slowdown")
    nodes = [with_gpu(host=f"n{i}", throttle_reasons=reasons if i < braked else ()) for i in range(4)]
    result = judged("throttling", *nodes)
    assert result.outcome == "failed"
    assert [culprit.is_certain for culprit in result.culprits] == [is_certain] * braked
    assert any("is it the facility?" in text for text in result.notes) is not is_certain


def test_heat_is_certain_even_beside_a_power_brake_of_most_nodes() -> None:
    hot = ("hw_thermal_slowdown", "hw_power_brake_slowdown")
    nodes = [with_gpu(host=f"n{i}", throttle_reasons=("hw_power_brake_slowdown",)) for i in range(3)]
    culprits = judged("throttling", *nodes, with_gpu(host="n3", throttle_reasons=hot)).culprits
    assert [culprit.host for culprit in culprits if culprit.is_certain] == ["n3"]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpus", {"problem": "GPU is lost"}),
        ("ecc", {"ecc_uncorrected": 1}),
        ("throttling", {"throttle_reasons": ("hw_slowdown",)}),
    ],
)
def test_what_needs_no_comparison_is_certain_on_every_node(name: str, changes: dict[str, Any]) -> None:
    nodes = [survey(host, gpus=gpus(host, which=range(8), **changes)) for host in ("n1", "n2")]
    assert all(culprit.is_certain for culprit in judged(name, *nodes).culprits)


def test_a_lost_gpu_is_certain_even_among_gpus_of_which_the_expectation_may_be_wrong() -> None:
    others = gpus(which=range(8), name="NVIDIA A100-SXM4-40GB")
    node = survey(gpus=(*others[:7], gpu(7, problem="GPU is lost")))
    certain = [culprit.gpu_index for culprit in judged("gpus", node).culprits if culprit.is_certain]
    assert certain == [7]


def test_no_rank_is_started_where_none_can_run_whoever_is_to_blame() -> None:
    def hopeless(name: str, *surveys: Survey, ranks_per_node: int = 8) -> dict[str, str]:
        plan = plan_of(len(surveys), ranks_per_node=ranks_per_node)
        return unfit_nodes([check_case(name)], plan, by_host(surveys), DAY, hopeless=True)

    old = survey("n1", versions=VERSIONS | {"cuda": "13.0", "cuda_driver": "12.8"}, torch_gpus=0)
    both = hopeless("kernels", old, altered(old, host="n2"))
    assert list(both) == ["n1", "n2"]
    assert both["n1"].startswith("kernels: the driver supports CUDA 12.8")
    assert hopeless("kernels", survey(gpus=gpus(which=range(8), compute_capability="7.0"))).keys() == {"n1"}
    closed = with_gpu(compute_mode="Prohibited", local_rank=3)
    assert hopeless("gpus", closed) == {"n1": "gpus: GPU 3: compute mode Prohibited; nvidia-smi -i 3 -c 0"}
    assert hopeless("gpus", closed, ranks_per_node=3) == {}, "ranks use the first three"
    lost = survey(gpus=gpus(which=(6, 7), problem="GPU is lost", is_lost=True))
    assert hopeless("gpus", lost, survey("n2")).keys() == {"n1"}, "six GPUs for eight ranks"
    assert hopeless("gpus", lost, ranks_per_node=6) == {}, "CUDA leaves the lost ones out"
    down = {"torch_gpus": 0, "cuda_problem": "Error 802: system not yet initialized"}
    assert hopeless("gpus", survey("n1", **down), survey("n2", **down)).keys() == {"n1", "n2"}
    assert hopeless("gpus", survey(torch_gpus=7), ranks_per_node=7) == {}, "seven are enough"
    assert hopeless("gpus", survey(gpus=())) == {"n1": "gpus: 0 GPUs are visible; expected 8: the driver finds no GPU"}
    for name, other in (("nvlink", with_gpu(nvlinks_active=0)), ("gpus", Survey("n1", 1.7e9, problem="no answer"))):
        assert hopeless(name, other) == {}


def test_unfit_nodes_are_those_that_certainly_fail_or_do_not_answer() -> None:
    nodes = [
        survey("n1"),
        with_gpu(host="n2", nvlinks_active=0, ecc_uncorrected=1),
        Survey("n3", 1.7e9, problem="no answer in 60 s"),
        survey("n4"),
        survey("n5", versions=VERSIONS | {"driver": "570.1"}),
    ]
    assert unfit(["nvlink", "ecc", "versions", "transport", "ecc_under_load"], *nodes) == {
        "n2": "nvlink: GPU 3: 0 NVLinks are up; expected 12; "
        "ecc: GPU 3: 1 uncorrectable memory errors since the driver was loaded",
        "n3": "survey failed: no answer in 60 s",
        "n5": f"versions: driver 570.1; 3 of 4 nodes have {VERSIONS['driver']}",
    }


def test_nodes_that_may_be_right_are_not_left_out() -> None:
    assert unfit(["versions"], survey("n1"), survey("n2", versions=VERSIONS | {"nccl": "2.26.2"})) == {}


def verdict_on(name: str, *surveys: Survey, nodes: int | None = None, **known: Any) -> Verdict:
    plan = plan_of(len(surveys) if nodes is None else nodes)
    measurements, telemetry = known.pop("measurements", ()), columns_of_telemetry(known.pop("telemetry", ()))
    probes = probe_columns_of(known.pop("probes", ()))
    evidence = Evidence(
        plan, columns_of(measurements), known.pop("errors", {}), surveys=by_host(surveys), telemetry=telemetry, **known
    )
    evidence = with_columns(evidence, probes)
    return judge(check_case(name), evidence, 0.95)


def probed(one: Telemetry) -> ProbeMeasurement:
    """A probe on the same GPU in the same round."""
    return ProbeMeasurement(
        study=PROBES, probe="all-reduce-1mib", world_size=8, round=one.round, rank=one.rank, local_rank=one.local_rank,
        host=one.host, device=one.device, work=2.0**20, iterations=4, seconds=1.0, started_unix_s=one.started_unix_s,
        is_correct=True,
    )  # fmt: skip


class TestVerdict:
    @rows("name", ["gpus", "processes", "mig", "ecc", "throttling", "pcie", "nvlink", "versions"])
    def test_healthy_nodes_pass_with_a_share_of_one_that_has_no_error(self, name: str) -> None:
        verdict = verdict_on(name, survey("n1"), survey("n2"))
        assert (verdict.outcome, verdict.value, verdict.interval, verdict.rounds) == ("passed", 1.0, (1.0, 1.0), 1)
        assert (verdict.metric, verdict.workload, verdict.world_size) == ("node_check", name, 1)
        assert (verdict.unit, verdict.bound, verdict.margin) == ("fraction", {"at_least": 1.0}, 0.0)
        assert (verdict.culprits, verdict.notes) == ((), ())

    def test_a_faulty_node_fails_it_and_is_named_with_its_gpu(self) -> None:
        verdict = verdict_on("ecc", survey("n1"), with_gpu((3,), "n2", **FAULTY), survey("n3"), survey("n4"))
        assert (verdict.outcome, verdict.value, verdict.interval) == ("failed", 0.75, (0.75, 0.75))
        (culprit,) = verdict.culprits
        assert (culprit.kind, culprit.host, culprit.gpu_uuid, culprit.is_certain) == ("gpu", "n2", "GPU-n2-3", True)
        assert verdict.reason.startswith("1 of 4 nodes not as expected: n2: GPU 3 (GPU-n2-3): ")

    def test_what_the_sku_expects_is_what_is_checked(self) -> None:
        assert verdict_on("nvlink", with_gpu((0,), nvlinks_active=11)).outcome == "failed"
        assert verdict_on("pcie", with_gpu((0,), pcie_width_max=8)).outcome == "failed"
        assert verdict_on("gpus", survey(gpus=gpus(count=7))).outcome == "failed"

    def test_a_node_of_which_nothing_is_known_is_no_pass_and_leaves_no_share(self) -> None:
        verdict = verdict_on("ecc", survey("n1"), nodes=2)
        assert (verdict.outcome, verdict.value, verdict.interval, verdict.rounds) == ("not_measured", None, None, 0)
        assert verdict.reason == "missing data: 1 of 2 nodes reported nothing"

    def test_why_nobody_was_asked_is_told(self) -> None:
        verdict = verdict_on("ecc", nodes=1, errors={SURVEY: "the node did not answer in 60 s"})
        assert verdict.outcome == "not_measured"
        assert verdict.reason.endswith("1 of 1 node reported nothing: the node did not answer in 60 s")

    def test_a_check_under_load_reads_telemetry(self) -> None:
        assert verdict_on("ecc_under_load", survey("n1")).outcome == "not_measured"
        assert verdict_on("ecc_under_load", survey("n1"), telemetry=windows("n1")).outcome == "passed"
        faulty = windows("n1", change=lambda one: {"ecc_uncorrected": int(one.local_rank == 2)})
        verdict = verdict_on("ecc_under_load", survey("n1"), telemetry=faulty)
        assert verdict.outcome == "failed"
        assert [culprit.gpu_uuid for culprit in verdict.culprits] == ["GPU-n1-2"]

    def test_a_gpu_that_took_part_in_blocks_without_telemetry_does_not_pass(self) -> None:
        telemetry = windows("n1")
        training: dict[str, Any] = {"measurements": [one.block for one in telemetry]}
        assert verdict_on("ecc_under_load", survey("n1"), telemetry=telemetry, **training).outcome == "passed"
        both: dict[str, Any] = training | {"probes": [probed(one) for one in telemetry]}
        verdict = verdict_on("ecc_under_load", survey("n1"), telemetry=telemetry, **both)
        assert verdict.outcome == "not_measured"
        assert "telemetry of only 4 of 8 blocks" in verdict.reason
        all_of_it = [*telemetry, *(altered(one, study=PROBES, arm="all-reduce-1mib@8") for one in telemetry)]
        assert verdict_on("ecc_under_load", survey("n1"), telemetry=all_of_it, **both).outcome == "passed"


class TestUnfitNodes:
    SURVEYS: Sequence[Survey] = (survey("n1"), with_gpu((3,), "n2", **FAULTY), survey("n3"))

    def of(self, *cases: NodeCase, surveys: Sequence[Survey] = SURVEYS) -> dict[str, str]:
        return unfit_nodes(cases, plan_of(len(surveys)), by_host(surveys), DAY)

    def test_are_not_those_that_fail_what_only_warns_or_was_not_selected(self) -> None:
        assert self.of(check_case("ecc", "warn")) == {}
        assert self.of(check_case("gpus"), check_case("ecc", "warn")) == {}
        assert self.of(check_case("gpus")) == {}

    @rows(("days_left", "expected"), [(1, set()), (0, set()), (-1, {"n2"})])
    def test_are_not_those_of_a_waived_check_as_long_as_it_is_waived(self, days_left: int, expected: set[str]) -> None:
        narrow = (survey("n1"), with_gpu((3,), "n2", pcie_width_max=8), survey("n3"))
        case, waiver = check_case("pcie"), Waiver("A. Name", "a riser is ordered", DAY + timedelta(days_left))
        waived = replace(case, requirement=replace(case.requirement, waiver=waiver))
        assert set(self.of(case, surveys=narrow)) == {"n2"}
        assert set(self.of(waived, surveys=narrow)) == expected

    def test_are_nobody_without_checks(self) -> None:
        assert self.of() == {}
        assert self.of(probe_case(Arm("matmul-bf16"), 1.0)) == {}

    def test_are_those_that_could_not_be_looked_at_if_anything_is_asked_of_them(self) -> None:
        silent = Survey("n4", 1.7e9, problem="the driver hung")
        surveys = (survey("n1"), silent, survey("n3"))
        assert self.of(check_case("gpus"), surveys=surveys) == {"n4": "survey failed: the driver hung"}
        assert self.of(check_case("gpus", "warn"), surveys=surveys) == {}

    def test_are_not_known_by_a_check_under_load(self) -> None:
        assert self.of(check_case("ecc_under_load"), check_case("transport")) == {}

    def test_are_nobody_if_most_fail_alike(self) -> None:
        alike = tuple(with_gpu(range(8), host, pcie_width_max=8) for host in ("n1", "n2", "n3"))
        assert self.of(check_case("pcie"), surveys=alike) == {}


def test_a_check_reads_only_its_own_records() -> None:
    """A broken probe says nothing about what a node is."""
    plan = Plan("a100", "cuda", (), ranks_per_node=8, probes=ProbeStudy((Arm("matmul-bf16"),), 16, 0.5), survey=True)
    evidence = Evidence(plan, Columns(), {PROBES: "rank 3 died"}, surveys=by_host([survey()]))
    assert judge(check_case("gpus"), evidence, 0.95).outcome == "passed"
