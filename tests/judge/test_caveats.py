"""What is missing, implausible or host-bound never passes, however good its numbers look."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.transport_record import Transport
from pytest_ddpscale.run.verdicts import Verdict
from tests.builders.judged import (
    CONFIDENCE,
    WORKLOAD,
    at_pace,
    judge_values,
    make_case,
    make_evidence,
    make_measurements,
)
from tests.rows import rows

GOOD = (0.98, 0.981, 0.979, 0.98, 0.98, 0.981, 0.979, 0.98, 0.98, 0.981)
STRONG = tuple(name for name in METRICS if METRICS[name].scaling == "strong")


NO_TIME = "--ddp-budget ran out before this was decided"


class TestSpentBudget:
    """Who gave too little time learns that this is all that was wrong."""

    @rows(("rounds", "outcome"), [(0, "not_measured"), (3, "inconclusive"), (len(GOOD), "passed")])
    def test_is_told_of_what_stays_open(self, rounds: int, outcome: str) -> None:
        case = make_case("weak_scaling_efficiency", 0.9)
        evidence = make_evidence(case, make_measurements(case, GOOD[:rounds]))
        verdict = judge(case, replace(evidence, out_of_time={evidence.plan.studies[0].id}), CONFIDENCE)
        assert verdict.outcome == outcome
        assert (NO_TIME in verdict.notes) is (outcome != "passed")

    def test_of_another_study_is_not_told(self) -> None:
        case = make_case("weak_scaling_efficiency", 0.9)
        verdict = judge(case, replace(make_evidence(case, []), out_of_time={"weak/other"}), CONFIDENCE)
        assert (verdict.outcome, verdict.notes) == ("not_measured", ())


class TestBackend:
    """Torch 2.15 calls another implementation ``nccl``."""

    @rows(("process_group", "notes"), [("ProcessGroupNCCL2", 1), ("ProcessGroupNCCL", 0)])
    def test_stands_beside_what_its_collectives_cost(self, process_group: str, notes: int) -> None:
        case = make_case("exposed_communication", 0.2)
        transport = Transport(host="n1", rank=0, local_rank=0, device="GPU-1", process_group=process_group)
        evidence = replace(make_evidence(case, make_measurements(case, [0.1] * 8)), transports=[transport])
        assert (
            sum("ProcessGroupNCCL2; it may not overlap" in one for one in judge(case, evidence, CONFIDENCE).notes)
            == notes
        )


class TestMissingRounds:
    """They may be the very ones that would have failed."""

    def test_of_a_checksum_decide_nothing(self) -> None:
        case = make_case("replica_agreement", 1.0)
        measurements = make_measurements(case, [1.0] * FEWEST_ROUNDS)
        blind = [replace(m, parameters_checksum=None) if (m.round, m.rank) == (2, 1) else m for m in measurements]
        outcomes = [judge(case, make_evidence(case, some), CONFIDENCE).outcome for some in (measurements, blind)]
        assert outcomes == ["passed", "inconclusive"]


class TestPlausibility:
    @rows(
        ("metric", "most"),
        [("weak_scaling_efficiency", 1.1), ("model_flops_utilization", 1.0), ("device_utilization", 1.0)],
    )
    def test_of_gpus_ends_where_the_measurement_must_be_wrong(self, metric: str, most: float) -> None:
        noise = (0.0, 0.001, -0.001, 0.0) * 2
        believed = judge_values(metric, 0.9, [most - 0.01 + n for n in noise])
        beyond = judge_values(metric, 0.9, [most + 0.01 + n for n in noise])
        assert believed.outcome == "passed"
        assert beyond.outcome == "inconclusive"
        assert beyond.reason == (
            f"implausible: {most + 0.01:.3g} is more than {most:g}; the measurement or its baseline was disturbed"
        )

    @rows(("device_type", "outcome"), [("cuda", "inconclusive"), ("cpu", "passed")])
    def test_lets_a_cpu_have_threads_to_spare(self, device_type: DeviceType, outcome: str) -> None:
        case = make_case("device_utilization", 0.9)
        busy = [replace(m, utilization=1.02) for m in make_measurements(case, GOOD)]
        assert judge(case, make_evidence(case, busy, device_type), CONFIDENCE).outcome == outcome

    @rows("metric", ["weak_scaling_efficiency", "strong_scaling_efficiency", "strong_scaling_speedup"])
    @rows(("times", "outcome"), [(1.1, "passed"), (1.9, "passed"), (2.1, "inconclusive"), (6.08, "inconclusive")])
    def test_of_a_cpu_ends_at_twice_the_ideal(self, metric: str, times: float, outcome: str) -> None:
        ideal = 2.0 if metric == "strong_scaling_speedup" else 1.0
        verdict = judge_values(metric, 0.9, [ideal * times * value for value in GOOD], "cpu")
        assert verdict.outcome == ("passed" if ideal * times * GOOD[0] <= 2 * ideal else outcome)
        if outcome == "inconclusive":
            assert verdict.reason.startswith(
                f"implausible: {verdict.value:.3g} is more than {2 * ideal:g}; the measure"
            )

    @rows("metric", ["exposed_communication", "ddp_overhead"])
    @rows(("cost", "outcome"), [(-0.3, "passed"), (-0.6, "inconclusive")])
    def test_of_a_cpu_ends_where_a_cost_saves_half_of_the_time(self, metric: str, cost: float, outcome: str) -> None:
        assert judge_values(metric, 0.2, [cost + 0.001 * (n % 3) for n in range(10)], "cpu").outcome == outcome

    def test_of_gpus_lets_1_1_pass(self) -> None:
        assert judge_values("weak_scaling_efficiency", 0.9, [1.1 - 0.001 * (n % 3) for n in range(10)]).passed


class TestImpossiblePace:
    """Where each block is too fast by as much, no ratio shows it."""

    FLOPS = 1e9  # of an image

    def judge_pace(
        self, metric: str, images_per_s: float, device_type: DeviceType = "cuda", cores: int | None = None, **keys: Any
    ) -> Verdict:
        case = replace(make_case(metric, 0.5), **keys)
        found = [
            at_pace(one, images_per_s * GOOD[(one.round + (one.arm == "alone")) % len(GOOD)])
            for one in make_measurements(case, GOOD)
        ]
        evidence = replace(make_evidence(case, found, device_type), surveys={"n": Survey("n", 1.0, cores=cores)})
        flops = dict.fromkeys(evidence.flops_per_sample, self.FLOPS)
        return judge(case, replace(evidence, flops_per_sample=flops), CONFIDENCE)

    @rows("metric", ["throughput_per_gpu", "weak_scaling_efficiency", "strong_scaling_speedup"])
    @rows(("precision", "times", "outcome"), [
        ("bf16", 1.0, "passed"), ("bf16", 1.2, "inconclusive"), ("fp32", 3.5, "passed"), ("fp32", 4.5, "inconclusive"),
    ])  # fmt: skip
    def test_of_a_gpu_is_beyond_its_peak(self, metric: str, precision: Any, times: float, outcome: str) -> None:
        workload = replace(WORKLOAD, precision=precision)
        verdict = self.judge_pace(metric, times * 989e12 / self.FLOPS, peak_tflops=989.0, workload=workload)
        assert verdict.outcome == outcome
        if outcome == "inconclusive":
            expected = r"implausible: .* images/s of a rank in \S+ are more than a peak of 989 TFLOPS allows"
            assert re.match(expected, verdict.reason)
            assert "implausible" in verdict.flags

    @rows(("device_type", "images_per_s", "outcome"), [
        ("cuda", 0.9e6, "passed"), ("cuda", 40e6, "inconclusive"), ("cpu", 19_000, "passed"), ("cpu", 21_000, "passed"),
        ("cpu", 40e6, "inconclusive"),
    ])  # fmt: skip
    def test_without_a_peak_is_beyond_all_hardware(
        self, device_type: DeviceType, images_per_s: float, outcome: str
    ) -> None:
        cores = 4 if device_type == "cpu" else None
        verdict = self.judge_pace("throughput_per_gpu", images_per_s, device_type, cores)
        assert verdict.outcome == outcome

    def test_names_the_cores(self) -> None:
        verdict = self.judge_pace("throughput_per_gpu", 21_000, "cpu", 2)
        assert verdict.outcome == "inconclusive"
        assert verdict.reason.endswith("images/s of a rank in ddp@2 are more than 2 CPU cores can compute")


class TestHostBound:
    def judge_busy(self, metric: str, busy: float | None, device_type: DeviceType, bound: float = 0.5) -> Verdict:
        case = make_case(metric, bound)
        found = [replace(one, utilization=busy) for one in make_measurements(case, [0.9] * FEWEST_ROUNDS)]
        return judge(case, make_evidence(case, found, device_type), CONFIDENCE)

    @rows("metric", STRONG)
    @rows("bound", [0.5, 1.05])
    def test_strong_scaling_on_gpus_that_wait_for_their_host_is_inconclusive(self, metric: str, bound: float) -> None:
        verdict = self.judge_busy(metric, 0.6, "cuda", bound)
        assert verdict.outcome == "inconclusive"
        assert verdict.reason == (
            "host-bound: GPUs were 60 % busy (below 90 %); a global batch of 8 is too small for 2 GPUs, "
            "so this result means nothing"
        )
        assert verdict.value == pytest.approx(0.9)
        assert "host-bound" in verdict.notes
        assert "host-bound" in verdict.flags

    @rows("metric", STRONG)
    def test_on_cpu_there_is_no_host_to_wait_for(self, metric: str) -> None:
        assert self.judge_busy(metric, 0.6, "cpu").outcome == "passed"
        assert self.judge_busy(metric, 0.6, "cpu", 1.05).outcome == "failed"

    @rows("busy", [0.9, 1.0])
    def test_busy_gpus_are_judged(self, busy: float) -> None:
        verdict = self.judge_busy("strong_scaling_speedup", busy, "cuda")
        assert (verdict.outcome, verdict.notes) == ("passed", ())

    def test_unread_utilization_does_not_make_it_host_bound(self) -> None:
        assert self.judge_busy("strong_scaling_speedup", None, "cuda", 1.5).outcome == "failed"

    def test_weak_scaling_is_judged_however_busy(self) -> None:
        assert self.judge_busy("weak_scaling_efficiency", 0.6, "cuda").outcome == "passed"
