"""What `played_cuda.py` plays: machines, what is wrong with them, commands, and whom verdicts must name."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.nvml_stand_in.gpus import COMPUTE_MODE_PROHIBITED, Changing, PlayedGpu, Process
from tests.nvml_stand_in.machine import A100, B200, V100

# Of acceptance on four GPUs: as few and short rounds as can decide, but through every stage.
CONFTEST = """\
from pytest_ddpscale.plan import planner

planner.PACES["cuda"] = planner.Pace(planner.FEWEST_ROUNDS, block_s=0.5, warmup_s=0.1)
planner.PROBE_BLOCKS_S["cuda"] = 0.15
"""
THRESHOLDS = """\
schema_version: 2
sources: {paper: nobody}
peers: {computing: 30 %, nodes: off, memory: off, host: off, pairs: off}
workloads:
  tiny: {model: squeezenet1_1, precision: fp32, image_size: 32, num_classes: 10}
families:
  played:
    - {check: [gpus, processes, mig, ecc, throttling, pcie, nvlink, versions, kernels, disk, transport,
       ecc_under_load, throttling_under_load, pcie_under_load], severity: fail}
    - {throughput_per_gpu: {node: 1}, of: tiny, published: paper, bound: 0.001, because: made up}
    - {device_utilization: {node: 0.5}, of: tiny, published: paper, bound: 0.4, because: made up}
    - {weak_scaling_efficiency: {node: 0.02}, of: tiny, published: paper, bound: 0.01, because: made up}
    - {matmul_tflops: 1, probe: matmul-fp32, published: paper, bound: 0.001, because: made up}
    - {busbw_gbps: {node: 1}, probe: all-reduce-1mib, published: paper, bound: 0.001, because: made up}
skus:
  a100-sxm4-80gb:
    description: played
    detect: {name: '^NVIDIA A100-SXM4-80GB$', pci_device_ids: ['20b2'], memory_gib: 80}
    node: {gpus: 4, pcie_generation: 4, pcie_width: 16, nvlinks: 12, ecc: true, free_disk_gib: 0.01}
    families: [played]
    batch: {tiny: 4}
  v100-sxm2-16gb:
    description: played
    detect: {name: '^Tesla V100-SXM2-16GB$', pci_device_ids: ['1db1'], memory_gib: 16}
    node: {gpus: 4, pcie_generation: 3, pcie_width: 16, nvlinks: 6, ecc: true, free_disk_gib: 0.01}
    families: [played]
    batch: {tiny: 4}
"""
ACCEPTANCE = ("-m", "pytest", "--ddp-run-dir=run", "-p", "no:cacheprovider", "acceptance")
DDPSCALE = ("-c", "import sys; from pytest_ddpscale.cli import main; sys.exit(main())")
OF_ONE_GPU = ("--model=resnet18", "--precision=fp16")


@dataclass(frozen=True)
class Scenario:
    """One row.

    Attributes:
        name: of the row.
        exit_codes: that are right.
        named: NVML's numbers of the GPUs that the verdicts must name, and no others.
        says: a regular expression that the output matches somewhere.
        gpus: of the machine.
        machine: further arguments of `PlayedCuda`.
        command: arguments of Python; none: the acceptance tests of a site with `THRESHOLDS`.
        options: added to the command.
        environ: more of the environment.
        limit_s: for the whole command.
    """

    name: str
    exit_codes: tuple[int, ...] = (1,)
    named: tuple[int, ...] = ()
    says: str = ""
    gpus: Sequence[PlayedGpu] = (A100,) * 4
    machine: dict[str, Any] = field(default_factory=dict)
    command: Sequence[str] = ()
    options: Sequence[str] = ("--gpu-sku=auto",)
    environ: dict[str, str] = field(default_factory=dict)
    limit_s: float = 180.0


def _fault(name: str, *faults: str, named: tuple[int, ...] = (2,), says: str = "", **machine: Any) -> Scenario:
    return Scenario(name, named=named, says=says, machine={"faults": faults, **machine})


def _in_one_gang(name: str, fault: str, says: str) -> Scenario:
    """A fault that says whose it is, and is no proof against the GPU: it may be the program's, or a link's."""
    return dataclasses.replace(_fault(name, fault, named=(), says=says), options=("--gpu-sku=auto", *_SOON))


def _odd(
    name: str, exit_codes: tuple[int, ...] = (1,), named: tuple[int, ...] = (), says: str = "", **changes: Any
) -> Scenario:
    """The driver says something odd of GPU 3, at work or before."""
    work = {name: value for name, value in changes.items() if name in A100.work.__dataclass_fields__}
    before = {name: value for name, value in changes.items() if name not in work}
    gpu = dataclasses.replace(A100, work=dataclasses.replace(A100.work, **work), **before)
    return Scenario(name, exit_codes, named, says, gpus=(A100, A100, A100, gpu))


_SOON = ("--ddp-inactivity-limit=20s",)
# Of utilization samples, 0.1 s each, from now on.
_EVERY_SECOND = Changing(99, [(time.time() + 0.1 * number, 99 * (number % 2)) for number in range(3000)])
_CLOSED = [A100, A100, dataclasses.replace(A100, compute_mode=COMPUTE_MODE_PROHIBITED), A100]
_HALF = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
_BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_P2P_DISABLE": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
FAULTS = (
    Scenario("healthy", (0,)),
    Scenario("rerouted", (0,), says="PARTIAL: (.|\\n)*NCCL_P2P_DISABLE=1: ", environ={"NCCL_P2P_DISABLE": "1"}),
    Scenario("launch-blocking", says="INCOMPLETE: (.|\\n)*CUDA_LAUNCH_BLOCKING=1: ", environ=_BLOCKING),
    Scenario("threads", (0,), says="ACCEPTED: (.|\\n)*OMP_NUM_THREADS=2: ", environ={"OMP_NUM_THREADS": "2"}),
    _fault("error-719", "gpu=2,launch=2000,error=719", says="dmesg"),
    _fault("error-999", "gpu=2,launch=2000,error=999", says="dmesg"),
    _fault("ecc-error-214", "gpu=2,launch=2000,error=214", says="uncorrectable ECC error encountered"),
    _fault("lost-before", lost=[2], says="GPU is lost"),
    _fault("lost-under-load", "gpu=2,launch=3000,error=719", lost_after_fault=[2], says="GPU is lost"),
    _fault("slow", "gpu=2,slow=3", says="3 peers"),
    dataclasses.replace(
        _fault("slow-of-half-a-node", "gpu=6,slow=3", named=(6,), says="local rank 2"), gpus=(A100,) * 8, environ=_HALF
    ),
    # Three ranks are not compared with each other.
    _fault("lost-and-slow", "gpu=3,slow=3", lost=[2], says="GPU is lost"),
    _in_one_gang("hang-in-a-collective", "gpu=2,collective=300,hang=1000", "rank 2 on .* furthest behind"),
    _in_one_gang("hang-in-a-kernel", "gpu=2,launch=3000,hang=1000", "ranks recorded nothing for 20 s"),
    _in_one_gang("never-joins", "gpu=2,join=1", "rank 2 on .* has not begun to connect"),
    _in_one_gang("nccl-remote-error", "gpu=2,collective=300,nccl=6", "DistBackendError: played failure of a link"),
    _in_one_gang("nccl-async-error", "gpu=2,collective=300,async=6", "remote process exited or there was a network"),
    _in_one_gang("rank-killed", "gpu=2,collective=300,kill=9", "rank 2 on .*SIGKILL"),
    _in_one_gang("nan", "gpu=2,launch=3000,nan=1", "rank 2"),
    _in_one_gang("memory-held-by-another", "gpu=2,held=81200", "GPU 2 has a total capacity of 79.35 GiB"),
    _in_one_gang("no-allocation-left", "gpu=2,launch=200,oom=1", "CUDA out of memory"),
    dataclasses.replace(_fault("compute-mode-prohibited", "gpu=2,busy=1", says="nvidia-smi -i 2 -c 0"), gpus=_CLOSED),
    _fault(
        "driver-too-old", named=(), says="driver 580 or later", driver_version="570.86.15", cuda_driver_version=12080
    ),
    _fault("system-not-ready-802", "not-ready=1", named=(), says="is unfit: gpus: .*802.*nvidia-fabricmanager"),
    _odd("util-zero", says=r"GPU 3 on .*: 0 % busy, although it\s+drew 390 W of 400 W; another", utilization_pct=0),
    _odd("util-250", says=r"GPU 3 on .*: the\s+driver\s+says\s+250\s+%", utilization_pct=250),
    _odd("util-at-times", says=r"GPU 3 on .* % busy, although it\s+drew 390 W", utilization_pct=_EVERY_SECOND),
    _odd("util-zero-slow-clock", says="slow_clock: GPU 3 on", utilization_pct=0, sm_clock_mhz=640, power_w=210),
    dataclasses.replace(
        _odd("slow-clock", says=r"640\s+of\s+1,410\s+MHz,\s+180\s+of\s+400\s+W", sm_clock_mhz=640, power_w=180),
        named=(3,),
        machine={"faults": ("gpu=3,slow=3",)},
    ),
    _odd("odd-pid", (0,), says=r"pid 4294967295,\s+which no", processes=[Process(4294967295, 1)]),
    _odd("odd-pid-and-memory", says=r"pid 0,\s+which no", processes=[Process(0, 1)], memory_used_mib=5000),
    Scenario("no-kernels-for-v100", named=(0, 1, 2, 3), says="compute capability 7.0", gpus=(V100,) * 4),
    Scenario(
        "no-gpu-left",
        named=(0, 1, 2, 3),
        machine={"lost": [0, 1, 2, 3]},
        options=["--gpu-sku=a100-sxm4-80gb", "--ddp-gpus-per-node=4"],
    ),
    Scenario("no-gpu-left-auto", (4,), machine={"lost": [0, 1, 2, 3]}, says="lost"),
)


def _tool(name: str, *arguments: str, gpus: int = 2, **changes: Any) -> Scenario:
    tool = Scenario(name, (0,), gpus=(B200,) * gpus, command=(*DDPSCALE, *arguments), options=(), limit_s=300.0)
    return dataclasses.replace(tool, **changes)


_RUN = ("--ddp-budget=3m", "--ddp-run-dir=run")
TOOLS = (
    # With the packaged thresholds, whose plan for eight B200 has every probe and workload.
    Scenario(
        "plan-of-8-b200", (0, 1), gpus=(B200,) * 8, command=ACCEPTANCE,
        options=["--gpu-sku=b200", "--ddp-budget=4m", "-k", "node_check or probes or throughput"],
        machine={"settings": {"PLAYED_LINK_GBS": "850"}},
        limit_s=900.0,
    ),
    _tool("suite-pytorch-ddp", "suite", "pytorch-ddp", *_RUN),
    _tool("suite-collectives", "suite", "collectives", *_RUN),
    _tool("suite-inference", "suite", "inference", *OF_ONE_GPU, "--batches=8", *_RUN),
    _tool("suite-data-parallel", "suite", "data-parallel", *OF_ONE_GPU, "--batches=8", *_RUN),
    _tool("suite-factors", "suite", "factors", "--precision=fp16", "--models=resnet18", *_RUN),
    _tool("suite-whole-run", "suite", "whole-run", *OF_ONE_GPU, "--batch=32", "--made=512", "--epochs=2", *_RUN),
    _tool("tune", "tune", *OF_ONE_GPU, "--batch=32", "--try=bucket_cap_mb=5 memory_format=channels_last", *_RUN),
    # Until CUDA says that there is no memory left: a played card is as large as a real one.
    _tool(
        "find-max-batch", "find-max-batch", *OF_ONE_GPU, "--least=4096", "--steps=8", "--ranks=1", "--json=batch.json",
        limit_s=480.0,
    ),
)  # fmt: skip
# Each with exactly the script's own arguments.
EVIDENCE_PARTS = (
    *("tests", "node-health", "training", "sampler", "fidelity", "inference", "find-max-batch", "whole-run", "tune"),
)
EVIDENCE = tuple(
    Scenario(f"evidence-{part}", (0, 1), gpus=(B200,), command=("gpu_evidence.sh", "evidence", part), limit_s=540.0)
    for part in EVIDENCE_PARTS
)
SCENARIOS = (*FAULTS, *TOOLS, *EVIDENCE)
