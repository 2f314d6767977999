"""A judgement with every outcome, and measurements that look like a healthy machine's with one slow GPU."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Scaling, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.run.verdicts import Culprit, Judgement, LoweredBound, Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.culprits import SAID, gpu, node
from tests.builders.json_types import run_record
from tests.builders.measurements import Measurement
from tests.builders.records import gang_on

HOSTILE = "evil|name`<script>alert(1)</script>`\n# heading\x1b[31m\x00[a](javascript:b)​ $x_1$ _y_ &amp; \ud800"
REFERENCE = "willgpaik/pytorch-ddp-scaling-benchmark@dc0b8a8, 8x A100-SXM4-80GB, torch 2.12+cu130"
UUID = "GPU-5d3a91c2-77aa-4be1-9d0f-1f0c2d9f6a3b"
PEER = Place("node7", 5, "GPU-b", 4, "00000000:C2:00.0")

RESNET = Workload("resnet152-fp16", ImageFamily("resnet152"), "fp16", 512, global_batch_size=256)
VIT = Workload("vit-b16-bf16", ImageFamily("vit_b_16"), "bf16", 1024, global_batch_size=512)

PASSED = Verdict(
    id="weak_scaling_efficiency[resnet152-fp16-8gpu]", metric="weak_scaling_efficiency", workload="resnet152-fp16",
    world_size=8, severity="fail", bound={"at_least": 0.96}, outcome="passed", value=0.9745,
    interval=(0.9712, 0.9771), rounds=12, reason="the interval lies above the bound", source=REFERENCE,
)  # fmt: skip
FAILED = replace(
    PASSED,
    id="throughput_per_gpu[resnet152-fp16-8gpu]",
    metric="throughput_per_gpu",
    unit="img/s",
    bound={"at_least": 1180.0},
    outcome="failed",
    value=1159.2,
    interval=(1154.2, 1164.0),
    because=because("missed"),
    reason="the interval lies below the bound",
    notes=("power limit 300 W on node7",),
    culprits=(
        gpu("node7", 3, "1.04× the median time without communication in 12 of 12 rounds", UUID),
        Culprit(
            "link", (Place("node7", 3, UUID, 3, "00000000:C1:00.0"), PEER), SAID, evidence="21 GB/s, peers at 228 GB/s"
        ),
        node("node9"),
        gpu("laptop", 0, "1.10× the median", "cpu"),
    ),
)
WARNED = replace(
    PASSED, id="strong_scaling_speedup[vit-b16-bf16-8gpu]", metric="strong_scaling_speedup",
    workload="vit-b16-bf16", severity="warn", bound={"at_least": 6.5}, outcome="failed", value=6.42,
    interval=(6.38, 6.47), reason="the interval lies below the bound", provisional=True,
    source="vendor's slide; nobody published a measurement",
)  # fmt: skip
INCONCLUSIVE = replace(
    PASSED, id="weak_scaling_efficiency[vit-b16-bf16-8gpu]", workload="vit-b16-bf16", bound={"at_least": 0.98},
    outcome="inconclusive", value=0.9812, interval=(0.9741, 0.9880), rounds=5,
    reason="the interval reaches across the bound after 5 rounds, when the budget of 10 min was spent",
    because=because("inside"),
)  # fmt: skip
NOT_MEASURED = replace(
    PASSED, id="strong_scaling_efficiency[vit-b16-bf16-64gpu]", metric="strong_scaling_efficiency",
    workload="vit-b16-bf16", world_size=64, bound={"at_least": 0.7}, outcome="not_measured", value=None,
    interval=None, rounds=0, reason="it needs 64 ranks and the allocation has 8", provisional=True, source="",
)  # fmt: skip
ERROR = replace(
    PASSED,
    id="device_utilization[resnet152-fp16-8gpu]",
    metric="device_utilization",
    bound={"at_least": 0.95},
    outcome="error",
    value=None,
    interval=None,
    rounds=0,
    reason="rank 3 on node7 ran out of memory in arm ddp@8, round 0, warm-up: CUDA out of memory. "
    "Tried to allocate 1.53 GiB; 79.1 GiB of 79.2 GiB are in use",
)
MEMORY = replace(
    PASSED, id="peak_memory_gib[resnet152-fp16-8gpu]", metric="peak_memory_gib", bound={"at_most": 70.0},
    value=44.1, interval=None, rounds=12, reason="below the bound",
    notes=("host-bound",), remarks=(because("host-bound"),),
)  # fmt: skip
RATIO = replace(
    PASSED, id="generation_ratio[resnet152-fp16-1gpu-vs-v100-sxm2-16gb]", metric="generation_ratio", world_size=1,
    bound={"at_least": 2.2}, value=2.36, interval=(2.35, 2.37),
)  # fmt: skip
ALL = (PASSED, FAILED, WARNED, INCONCLUSIVE, NOT_MEASURED, ERROR, MEMORY, RATIO)

JUDGEMENT = Judgement(
    sku="a100-sxm4-80gb", outcome="rejected",
    reason="1 requirement failed: throughput_per_gpu[resnet152-fp16-8gpu]", verdicts=ALL,
    notes=("torch 2.12.0+cu130, but the bounds were measured with 2.11",),
)  # fmt: skip
ACCEPTED = Judgement("a100-sxm4-80gb", "accepted", "all 3 requirements are kept", (PASSED, MEMORY, RATIO))

RUN = run_record(
    sku="a100-sxm4-80gb",
    started_at="2026-03-01T10:00:05+00:00",
    finished_at="2026-03-01T10:09:41+00:00",
    argv=["pytest", "--gpu-sku=a100", "--ddp-budget", "10m"],
    versions={"python": "3.11.9", "pytest_ddpscale": "0.1.0"},
    thresholds={"path": "thresholds.yaml", "sha256": "ab" * 32},
)
GANG = gang_on(
    ["node7"], 8, "GPU-0000000{}-77aa", device_name="NVIDIA A100-SXM4-80GB",
    versions={"torch": "2.12.0+cu130", "nccl": "2.28.3"}, environment={"OMP_NUM_THREADS": "8", "NCCL_DEBUG": "WARN"},
)  # fmt: skip


def judgement_with(*verdicts: Verdict) -> Judgement:
    """A rejected run of these verdicts alone."""
    return replace(JUDGEMENT, verdicts=verdicts)


def hostile_judgement() -> Judgement:
    """Text that would break a table, XML or a terminal, wherever a name or a message can stand."""
    verdict = replace(
        FAILED,
        id=f"throughput_per_gpu[{HOSTILE}]",
        workload=HOSTILE,
        reason=HOSTILE,
        source=HOSTILE,
        notes=(HOSTILE,),
        culprits=(gpu(HOSTILE, 3, HOSTILE, HOSTILE),),
    )
    waived = replace(verdict, waiver=Waiver(HOSTILE, HOSTILE, date(2026, 12, 31)))
    lowered = (
        LoweredBound(HOSTILE, "throughput_per_gpu", "img/s", 2.0, 1.0),
        LoweredBound(HOSTILE, "node_check", "fraction", 1.0, None),
    )
    verdicts = (verdict, replace(verdict, provisional=True), waived)
    return Judgement(HOSTILE, "rejected", HOSTILE, verdicts, (HOSTILE,), lowered=lowered)


def hostile_run() -> RunRecord:
    """A run.json with such text in every place."""
    return run_record(
        sku=HOSTILE,
        argv=[HOSTILE, "```"],
        versions={HOSTILE: HOSTILE},
        thresholds={"path": HOSTILE, "sha256": HOSTILE},
        source=HOSTILE,
    )


def make_study(scaling: Scaling, workload: Workload, world_sizes: tuple[int, ...]) -> Study:
    """The study of these world sizes; 1 is the arm alone."""
    arms = []
    for k in world_sizes:
        batch_size = workload.batch_size if scaling == "weak" else (workload.global_batch_size or 0) // k
        arms.append(Arm("alone" if k == 1 else "ddp", k, batch_size))
    return Study(scaling, workload, tuple(arms), rounds=6, block_s=5.0, warmup_s=10.0)


def make_plan(*studies: Study) -> Plan:
    """A plan for A100s."""
    return Plan("a100-sxm4-80gb", "cuda", studies)


def make_measurements(
    study: Study, samples_per_s_alone: float, loss_per_doubling: float, rounds: int = 6
) -> list[Measurement]:
    """Blocks of every rank, with a rank 0 that is slower by half a per cent, and some spread from round to round."""
    measurements = []
    for arm in study.arms:
        efficiency = (1 - loss_per_doubling) ** math.log2(arm.world_size)
        for i in range(rounds):
            spread = 1 + 0.01 * math.sin(1.7 * i + arm.world_size)
            for rank in range(arm.world_size):
                rate = samples_per_s_alone * efficiency * spread * (1.0 if rank == 0 else 1.005)
                block_s = arm.batch_size * 20 / rate
                measurements.append(
                    Measurement(
                        study.id, arm.name, i, rank, rank, "node7", f"GPU-{rank}", arm.batch_size, 20, block_s, 1.7e9,
                        single_sample=rounds == 1,
                    )
                )  # fmt: skip
    return measurements


STUDIES = (
    make_study("weak", RESNET, (1, 2, 4, 8)),
    make_study("weak", VIT, (1, 2, 4, 8)),
    make_study("strong", RESNET, (1, 2, 4, 8)),
    make_study("strong", VIT, (1, 2, 4, 8)),
)
PLAN = make_plan(*STUDIES)
EVIDENCE = Evidence(PLAN, Columns(), {}, hosts=["node7"], gangs=[GANG])
MEASUREMENTS = [
    measurement
    for study, alone, loss in zip(STUDIES, (1189.5, 1033.3, 1129.2, 1061.4), (0.009, 0.004, 0.32, 0.07), strict=True)
    for measurement in make_measurements(study, alone, loss)
]
