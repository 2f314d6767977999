"""Probes whose values are known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.probes import unit_factor
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import PROBES, Plan, ProbeStudy
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import NodeCase
from pytest_ddpscale.thresholds.model import Requirement, Sku, Source
from pytest_ddpscale.thresholds.parts import Detect
from tests.builders.measurements import ProbeMeasurement
from tests.builders.probes import probe_columns_of

CONFIDENCE = 0.95
ROUNDS = 8
MATMUL = Arm("matmul-bf16")
ALL_REDUCE = Arm("all-reduce-32mib", 8)
SEND_RECV = Arm("send-recv-256mib", 8)
A100 = Sku("any", Detect(name="^A100$"))
# Value, in the metric's unit, of a round and the ranks of a place.
Value = Callable[[int, tuple[int, ...]], float]


def metric_of(probe: Arm) -> str:
    return {
        "matmul": "matmul_tflops",
        "memory-copy": "memory_bandwidth_gbps",
        "host-to-device": "host_bandwidth_gbps",
        "device-to-host": "host_bandwidth_gbps",
        "send-recv": "pair_bandwidth_gbps",
    }.get(probe.operation.kind, "busbw_gbps")


def probe_case(probe: Arm, bound: float, **keys: Any) -> NodeCase:
    source = Source(bound, None, "a paper", "far enough away")
    asked = Requirement(metric_of(probe), bound, source, probe=probe.kind, world_size=probe.world_size)
    name = f"{probe.kind}-{probe.world_size}gpu"
    return NodeCase(asked, name, "t.yaml:7", sku=A100, probe=probe, **keys)


def steady(value: float, bad: Mapping[tuple[int, ...], float] | None = None) -> Value:
    """The same everywhere, but for what `bad` says of some ranks; rounds differ by 0.2 %."""
    return lambda number, ranks: (bad or {}).get(ranks, value) * (1 + 0.001 * (number % 3))


def probe_plan(
    probe: Arm, nodes: int = 1, ranks_per_node: int = 8, device_type: DeviceType = "cuda", rounds: int = 16
) -> Plan:
    study = ProbeStudy((probe,), rounds, 0.5)
    return Plan("a100", device_type, (), nodes=nodes, ranks_per_node=ranks_per_node, probes=study)


def measure_probe(
    plan: Plan, probe: Arm, value: Value, rounds: int = ROUNDS, without: Collection[int] = ()
) -> list[ProbeMeasurement]:
    """What every rank of every place reports, but those of the ranks in `without`."""
    return [
        _report(plan, probe, value, number, ranks, rank)
        for number in range(rounds)
        for ranks in plan.layout.groups_of_round(probe)
        for rank in ranks
        if rank not in without
    ]


def _report(plan: Plan, probe: Arm, value: Value, number: int, ranks: tuple[int, ...], rank: int) -> ProbeMeasurement:
    node, local_rank = divmod(rank, plan.layout.ranks_per_node)
    device = "cpu" if plan.device_type == "cpu" else f"GPU-{rank}"
    peer = next(other for other in ranks if other != rank) if probe.operation.kind == "send-recv" else None
    work = float(probe.operation.message_bytes or probe.operation.named_flops or 1e12)
    unscaled = ProbeMeasurement(
        PROBES, probe.kind, probe.world_size, number, rank, local_rank, f"n{node}", device, work, 10, 1.0,
        1.7e9 + number, is_correct=True, peer_rank=peer,
    )  # fmt: skip
    return replace(unscaled, seconds=value_of(unscaled) / value(number, ranks))


def value_of(one: ProbeMeasurement) -> float:
    """What a rank reached, in the metric's unit."""
    return one.work * one.iterations / one.seconds * unit_factor(Arm(one.probe, one.world_size))


def probe_evidence(plan: Plan, measurements: list[ProbeMeasurement], **keys: Any) -> Evidence:
    return Evidence(plan, probe_columns_of(measurements), keys.pop("errors", {}), **keys)


def judge_steady(
    probe: Arm,
    bound: float,
    value: Value,
    *,
    nodes: int = 1,
    ranks_per_node: int = 8,
    without: Collection[int] = (),
    device_type: DeviceType = "cuda",
    **keys: Any,
) -> Verdict:
    """The verdict on a whole run."""
    plan = probe_plan(probe, nodes, ranks_per_node, device_type)
    evidence = probe_evidence(plan, measure_probe(plan, probe, value, without=without), **keys)
    return judge(probe_case(probe, bound), evidence, CONFIDENCE)
