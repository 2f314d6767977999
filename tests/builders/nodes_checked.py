"""Healthy nodes of eight A100, to which tests do one thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from pytest_ddpscale.judge.findings import NodeEvidence
from pytest_ddpscale.judge.node_checks import check
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.run.survey_record import ClockSkew, InfiniBandPort, RemappedRows, Survey, SurveyedGpu
from pytest_ddpscale.run.telemetry import Spread
from pytest_ddpscale.run.verdicts import Verdict
from tests.builders.telemetry import Telemetry, columns_of_telemetry

GIB = 2**30
A100 = NodeExpectation(
    device_type="cuda", name_pattern="^(NVIDIA )?A100-SXM4?-80GB$", pci_device_ids=("20b2",), memory_gib=(72.0, 88.0),
    gpus_per_node=8, pcie_generation=4, pcie_width=16, nvlinks=12, ecc=True, precisions=frozenset({"bf16"}),
)  # fmt: skip
CPU = NodeExpectation(device_type="cpu", gpus_per_node=2)
VERSIONS: dict[str, str | None] = {
    "driver": "580.95.05", "cuda_driver": "13.0", "torch": "2.12.0+cu130", "cuda": "13.0", "nccl": "2.27.7",
    "python": "3.11.9", "pytest_ddpscale": "0.1.0", "kernel": "6.8.0-60-generic",
}  # fmt: skip
NOT_SUPPORTED = "Not Supported"
NOT_CHECKED = Verdict("node_check[any]", "node_check", "any", 1, "fail", {"at_least": 1.0}, "not_measured")
# Of a DGX A100, with four of its GPUs and two of its cards.
TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tNV12\tNV12\tPXB\tSYS\t48-63,176-191\t3\t\tN/A
GPU1\tNV12\t X \tNV12\tNV12\tPXB\tSYS\t48-63,176-191\t3\t\tN/A
GPU2\tNV12\tNV12\t X \tNV12\tSYS\tPXB\t16-31,144-159\t1\t\tN/A
GPU3\tNV12\tNV12\tNV12\t X \tSYS\tPXB\t16-31,144-159\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tPXB\tPXB\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""


def gpu(index: int = 0, host: str = "n1", **changes: Any) -> SurveyedGpu:
    healthy = SurveyedGpu(
        index=index, uuid=f"GPU-{host}-{index}", name="NVIDIA A100-SXM4-80GB", pci_bus_id=f"00000000:{index:02X}:00.0",
        pci_device_id="20b2", compute_capability="8.0", memory_bytes=80 * GIB, mig_enabled=False,
        ecc_enabled=True, ecc_corrected=0, ecc_uncorrected=0, retired_pages_pending=None,
        remapped_rows=RemappedRows(0, 0, pending=False, failed=False), throttle_reasons=("gpu_idle",),
        power_limit_w=400.0, power_limit_default_w=400.0, temperature_c=31, sm_clock_max_mhz=1410,
        pcie_generation=1, pcie_generation_max=4, pcie_generation_gpu_max=4, pcie_width=16, pcie_width_max=16,
        nvlinks_active=12, nvlinks=12, processes=(), unreadable={"retired_pages_pending": NOT_SUPPORTED},
    )  # fmt: skip
    return replace(healthy, **changes)


def gpus(host: str = "n1", count: int = 8, which: Sequence[int] = (), **changes: Any) -> tuple[SurveyedGpu, ...]:
    """GPUs of which some are changed."""
    return tuple(gpu(index, host, **(changes if index in which else {})) for index in range(count))


def survey(host: str = "n1", **changes: Any) -> Survey:
    healthy = Survey(
        host=host, unix_s=1.7e9, has_driver=True, gpus=gpus(host), cores=64, versions=VERSIONS,
        arch_list=("sm_75", "sm_80", "sm_86", "sm_90", "compute_90"),
        free_bytes={"run_directory": 500 * GIB, "shared_memory": 250 * GIB, "temporary": 90 * GIB},
        infiniband=(InfiniBandPort("mlx5_0", 1, "ACTIVE", "InfiniBand"),), clock=ClockSkew(-0.01, 0.02),
        topology=TOPOLOGY,
    )  # fmt: skip
    return replace(healthy, **changes)


def cpu_survey(host: str = "n1", **changes: Any) -> Survey:
    versions = {"torch": "2.12.0+cpu", "python": "3.11.9", "pytest_ddpscale": "0.1.0", "kernel": "6.8"}
    return replace(survey(host), **{"has_driver": False, "gpus": (), "cores": 2, "versions": versions, **changes})


def by_host(surveys: Sequence[Survey]) -> Mapping[str, Survey]:
    return {one.host: one for one in surveys}


def judged(
    name: str,
    *surveys: Survey,
    planned: int | None = None,
    expectation: NodeExpectation = A100,
    telemetry: Sequence[Telemetry] = (),
    **records: Any,
) -> Verdict:
    """What a check comes to on nodes."""
    planned = len(surveys) if planned is None else planned
    return check(
        NOT_CHECKED,
        name,
        NodeEvidence(expectation, by_host(surveys), planned, columns_of_telemetry(telemetry), **records),
    )


def with_gpu(which: Sequence[int] = (3,), host: str = "n1", **changes: Any) -> Survey:
    """A node of which some GPUs are changed."""
    return survey(host, gpus=gpus(host, which=which, **changes))


def unread(reading: str, reason: str, host: str = "n1") -> Survey:
    """A node of whose fourth GPU the driver does not say something."""
    changes: dict[str, Any] = {reading: None, "unreadable": {reading: reason}}
    return with_gpu(host=host, **changes)


def spread(value: float) -> Spread[float]:
    return Spread(value, value, value, 10)


def window(host: str = "n1", local_rank: int = 0, number: int = 0, **changes: Any) -> Telemetry:
    healthy = Telemetry(
        study="weak/resnet152-fp16", arm="ddp@8", round=number, rank=local_rank, local_rank=local_rank, host=host,
        device=f"GPU-{host}-{local_rank}", started_unix_s=1.7e9 + number, ended_unix_s=1.7e9 + number + 1, polls=10,
        utilization=spread(0.98), throttle_reasons={"sw_power_cap": 0.9}, ecc_corrected=0, ecc_uncorrected=0,
        pcie_generation=4, pcie_width=16,
    )  # fmt: skip
    return replace(healthy, **changes)


def windows(
    host: str = "n1", gpus: int = 8, rounds: int = 4, change: Callable[[Telemetry], dict[str, Any]] = lambda _: {}
) -> list[Telemetry]:
    """All GPUs of a node in all rounds."""
    healthy = [window(host, local_rank, number) for number in range(rounds) for local_rank in range(gpus)]
    return [replace(one, **change(one)) for one in healthy]


def blamed(result: Verdict) -> tuple[str, list[tuple[str, bool]]]:
    """The outcome, and the hosts of those at fault with whether that is certain."""
    return result.outcome, [(culprit.host, culprit.is_certain) for culprit in result.culprits]
