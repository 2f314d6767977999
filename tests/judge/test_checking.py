"""The verdict on a check of the nodes, and which nodes are not to be launched on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

from msgspec.structs import replace as altered

from pytest_ddpscale.judge.checking import unfit_nodes
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.probe import STUDY_ID as PROBES
from pytest_ddpscale.plan.probe import Probe, ProbeStudy
from pytest_ddpscale.plan.study import DeviceType, Plan
from pytest_ddpscale.run.columns import Columns
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.survey_record import STUDY_ID as SURVEY
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import NodeCase
from pytest_ddpscale.thresholds.hardware import Detect, Node
from pytest_ddpscale.thresholds.model import Severity, Sku, check_of_nodes
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.measurements import ProbeMeasurement
from tests.builders.nodes_checked import by_host, cpu_survey, gpus, survey, unread, windows, with_gpu
from tests.builders.probes import probe_columns_of, with_columns
from tests.builders.rounds import columns_of
from tests.builders.telemetry import Telemetry, columns_of_telemetry
from tests.judge.probed import probe_case
from tests.rows import rows

A100 = Sku(
    "eight in a node",
    Detect(name="^(NVIDIA )?A100-SXM4?-80GB$", pci_device_ids=["20b2"], memory_gib=80),
    node=Node(pcie_generation=4, pcie_width=16, nvlinks=12, ecc=True),
)
CPU = Sku("any", Detect(device="cpu"))
FAULTY: dict[str, Any] = {"ecc_uncorrected": 2}
DAY = date(2026, 10, 1)


def check_case(name: str, severity: Severity = "fail", sku: Sku = A100) -> NodeCase:
    return NodeCase(check_of_nodes(name, severity), name, "t.yaml:7", sku)


def plan_of(nodes: int = 1, device_type: DeviceType = "cuda", ranks_per_node: int = 8) -> Plan:
    return Plan("a100", device_type, (), nodes=nodes, ranks_per_node=ranks_per_node, survey=True)


def judged(name: str, *surveys: Survey, nodes: int | None = None, **known: Any) -> Verdict:
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
        verdict = judged(name, survey("n1"), survey("n2"))
        assert (verdict.outcome, verdict.value, verdict.interval, verdict.rounds) == ("passed", 1.0, (1.0, 1.0), 1)
        assert (verdict.metric, verdict.workload, verdict.world_size) == ("node_check", name, 1)
        assert (verdict.unit, verdict.bound, verdict.margin) == ("fraction", {"at_least": 1.0}, 0.0)
        assert (verdict.culprits, verdict.notes) == ((), ())

    def test_a_faulty_node_fails_it_and_is_named_with_its_gpu(self) -> None:
        verdict = judged("ecc", survey("n1"), with_gpu((3,), "n2", **FAULTY), survey("n3"), survey("n4"))
        assert (verdict.outcome, verdict.value, verdict.interval) == ("failed", 0.75, (0.75, 0.75))
        (culprit,) = verdict.culprits
        assert (culprit.kind, culprit.host, culprit.gpu_uuid, culprit.is_certain) == ("gpu", "n2", "GPU-n2-3", True)
        assert verdict.reason.startswith("1 of 4 nodes not as expected: n2: GPU 3 (GPU-n2-3): ")

    def test_what_the_sku_expects_is_what_is_checked(self) -> None:
        assert judged("nvlink", with_gpu((0,), nvlinks_active=11)).outcome == "failed"
        assert judged("pcie", with_gpu((0,), pcie_width_max=8)).outcome == "failed"
        assert judged("gpus", survey(gpus=gpus(count=7))).outcome == "failed"

    def test_a_node_of_which_nothing_is_known_is_no_pass_and_leaves_no_share(self) -> None:
        verdict = judged("ecc", survey("n1"), nodes=2)
        assert (verdict.outcome, verdict.value, verdict.interval, verdict.rounds) == ("not_measured", None, None, 0)
        assert verdict.reason == "missing data: 1 of 2 nodes reported nothing"

    def test_what_the_driver_does_not_say_is_no_pass(self) -> None:
        verdict = judged("ecc", unread("ecc_uncorrected", "Not Supported"))
        assert (verdict.outcome, verdict.value) == ("not_measured", None)
        assert "Not Supported" in verdict.reason

    def test_why_nobody_was_asked_is_told(self) -> None:
        verdict = judged("ecc", nodes=1, errors={SURVEY: "the node did not answer in 60 s"})
        assert verdict.outcome == "not_measured"
        assert verdict.reason.endswith("1 of 1 node reported nothing: the node did not answer in 60 s")

    def test_notes_are_those_of_the_check(self) -> None:
        verdict = judged("ecc", with_gpu((3,), "n1", **FAULTY), nodes=2)
        assert verdict.outcome == "failed"
        assert verdict.notes == ("also missing data: 1 of 2 nodes reported nothing",)

    def test_a_check_under_load_reads_telemetry(self) -> None:
        assert judged("ecc_under_load", survey("n1")).outcome == "not_measured"
        assert judged("ecc_under_load", survey("n1"), telemetry=windows("n1")).outcome == "passed"
        faulty = windows("n1", change=lambda one: {"ecc_uncorrected": int(one.local_rank == 2)})
        verdict = judged("ecc_under_load", survey("n1"), telemetry=faulty)
        assert verdict.outcome == "failed"
        assert [culprit.gpu_uuid for culprit in verdict.culprits] == ["GPU-n1-2"]

    def test_a_gpu_that_took_part_in_blocks_without_telemetry_does_not_pass(self) -> None:
        telemetry = windows("n1")
        training: dict[str, Any] = {"measurements": [one.block for one in telemetry]}
        assert judged("ecc_under_load", survey("n1"), telemetry=telemetry, **training).outcome == "passed"
        both: dict[str, Any] = training | {"probes": [probed(one) for one in telemetry]}
        verdict = judged("ecc_under_load", survey("n1"), telemetry=telemetry, **both)
        assert verdict.outcome == "not_measured"
        assert "telemetry of only 4 of 8 blocks" in verdict.reason
        all_of_it = [*telemetry, *(altered(one, study=PROBES, arm="all-reduce-1mib@8") for one in telemetry)]
        assert judged("ecc_under_load", survey("n1"), telemetry=all_of_it, **both).outcome == "passed"

    def test_a_check_of_gpus_means_nothing_on_a_cpu(self) -> None:
        plan = plan_of(1, "cpu", ranks_per_node=2)
        evidence = Evidence(plan, Columns(), {}, surveys=by_host([cpu_survey()]))
        outcomes = {name: judge(check_case(name, sku=CPU), evidence, 0.95).outcome for name in ("gpus", "disk", "ecc")}
        assert outcomes == {"gpus": "passed", "disk": "passed", "ecc": "not_measured"}


class TestUnfitNodes:
    SURVEYS: Sequence[Survey] = (survey("n1"), with_gpu((3,), "n2", **FAULTY), survey("n3"))

    def of(self, *cases: NodeCase, surveys: Sequence[Survey] = SURVEYS) -> dict[str, str]:
        return unfit_nodes(cases, plan_of(len(surveys)), dict(by_host(surveys)), DAY)

    def test_are_those_that_fail_a_check_that_rejects(self) -> None:
        (host, why), *others = self.of(check_case("gpus"), check_case("ecc")).items()
        assert others == []
        assert host == "n2"
        assert why.startswith("ecc: GPU 3: ")

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
        assert self.of(probe_case(Probe("matmul-bf16"), 1.0)) == {}

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
    plan = Plan("a100", "cuda", (), ranks_per_node=8, probes=ProbeStudy((Probe("matmul-bf16"),), 16, 0.5), survey=True)
    evidence = Evidence(plan, Columns(), {PROBES: "rank 3 died"}, surveys=by_host([survey()]))
    assert judge(check_case("gpus"), evidence, 0.95).outcome == "passed"
