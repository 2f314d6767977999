"""Verdicts on probes, checks of nodes, energy and history: what nobody trains a workload for, or little else."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.verdicts import Culprit, Judgement, Verdict
from tests.builders.culprits import SAID, gpu
from tests.builders.judgements import PASSED, UUID

MATMUL = Verdict(
    id="matmul_tflops[matmul-bf16]", metric="matmul_tflops", workload="matmul-bf16", world_size=1, severity="fail",
    bound={"at_least": 230.5}, outcome="failed", value=205.26, interval=(204.9, 205.6), rounds=8,
    reason="GPU 3 of node7, one of 8 GPUs: the whole interval misses the bound", source="Azure/azurehpc",
    culprits=(gpu("node7", 3, "matmul-bf16 at 205.3 TFLOPS; the median of 7 others is 262.3 TFLOPS", UUID),),
)  # fmt: skip
ALL_REDUCE = replace(
    MATMUL, id="busbw_gbps[all-reduce-32mib-8gpu]", metric="busbw_gbps", workload="all-reduce-32mib", world_size=8,
    bound={"at_least": 112.9}, outcome="passed", value=131.42, interval=(130.9, 131.9),
    reason="the whole interval keeps the bound", culprits=(),
)  # fmt: skip
PAIRS = replace(
    MATMUL, id="pair_bandwidth_gbps[send-recv-256mib-8gpu]", metric="pair_bandwidth_gbps",
    workload="send-recv-256mib", world_size=8, bound={"at_least": 117.0}, value=9.813, interval=(9.71, 9.92),
    provisional=True, reason="GPUs 2 and 5 of node7, one of 28 pairs: the whole interval misses the bound",
    culprits=(
        Culprit(
            "link", (Place("node7", None, UUID, 2), Place("node7", None, "GPU-b", 5)),
            SAID, evidence="send-recv-256mib-8gpu at 9.813 GB/s; the median of 27 others is 220 GB/s",
        ),
    ),
)  # fmt: skip
CHECK = replace(
    MATMUL, id="node_check[ecc]", metric="node_check", workload="ecc", world_size=1, bound={"at_least": 1.0},
    value=0.5, interval=(0.5, 0.5), rounds=1, provisional=True,
    reason="1 of 2 nodes not as expected: node7: GPU 3 (GPU-5d3a): 2 memory errors that could not be corrected",
    source="a yes/no check, no published value: memory errors are corrected",
    culprits=(gpu("node7", 3, "2 memory errors that could not be corrected", UUID),),
)  # fmt: skip
CHECK_PASSED = replace(
    CHECK, id="node_check[pcie]", workload="pcie", outcome="passed", value=1.0, interval=(1.0, 1.0),
    reason="2 nodes as expected", culprits=(),
)  # fmt: skip
CHECK_UNKNOWN = replace(
    CHECK, id="node_check[nvlink]", workload="nvlink", outcome="not_measured", value=None, interval=None, rounds=0,
    reason="missing data: node7: the driver does not say how many NVLinks are up", culprits=(),
)  # fmt: skip
ENERGY = replace(
    PASSED, id="images_per_joule[resnet152-fp16-8gpu]", metric="images_per_joule", unit="img/J",
    bound={"at_least": 2.668}, value=2.9643, interval=(2.95, 2.98),
)  # fmt: skip
HISTORY = replace(
    MATMUL, id="no_regression[node]", metric="no_regression", workload="", bound={"at_least": 0.95},
    severity="warn", value=0.91, interval=(0.9, 0.92),
    reason="matmul-bf16 of GPU 3 of node7 fell to 0.91 of what it was in 12 earlier runs",
    culprits=(gpu("node7", 3, "matmul-bf16: 0.91 of 12 earlier runs", UUID),),
)  # fmt: skip
VERDICTS = (CHECK, CHECK_PASSED, CHECK_UNKNOWN, MATMUL, ALL_REDUCE, PAIRS, ENERGY, HISTORY)
JUDGEMENT = Judgement("a100-sxm4-80gb", "rejected", "3 of 8 requirements failed", VERDICTS)
PLAN = Plan(
    "a100-sxm4-80gb", "cuda", (), ranks_per_node=8,
    probes=ProbeStudy((Arm("matmul-bf16"), Arm("all-reduce-32mib", 8)), 16, 0.5), survey=True,
)  # fmt: skip
