"""Checks of GPUs that a real library plays: what each generation does not have, and what its driver calls that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from pytest_ddpscale.plan.node_check import NODE_CHECKS, NodeExpectation
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu
from tests.builders.nodes_checked import judged, survey
from tests.nvml_stand_in.gpus import HW_THERMAL_SLOWDOWN, Ecc, Mig, PlayedGpu, Process, RemappedRows, RetiredPages
from tests.nvml_stand_in.machine import (
    A100,
    ANY_FUNCTION,
    B200,
    GPU_IS_LOST,
    PROFILES,
    UNKNOWN_ERROR,
    V100,
    PlayedMachine,
)

READ = """
import msgspec
from pytest_ddpscale.telemetry.gpu_state import read_gpus
print(msgspec.json.encode(read_gpus().gpus).decode())
"""
# The stand-in plays NVML, not nvidia-smi, which tells the topology.
OF_GPUS = [
    one.name for one in NODE_CHECKS.values() if one.reads == "survey" and not one.on_cpu and one.name != "topology"
]
ARCHITECTURES = ("sm_70", "sm_80", "sm_90", "sm_100", "sm_120")


def seen(machine: PlayedMachine, gpus: Sequence[PlayedGpu]) -> list[Survey]:
    """A node for each of the GPUs, read by the driver."""
    read = msgspec.json.decode(machine.play(gpus).run_python(READ), type=list[SurveyedGpu])
    return [survey(f"n{index}", gpus=(gpu,), arch_list=ARCHITECTURES) for index, gpu in enumerate(read)]


def expected_of(gpu: PlayedGpu) -> NodeExpectation:
    return NodeExpectation(
        "cuda", name_pattern=f"^{gpu.name}$", pci_device_ids=(gpu.pci_device_id,), gpus_per_node=1,
        memory_gib=(gpu.memory_mib / 1024 * 0.9, gpu.memory_mib / 1024 * 1.1), pcie_generation=gpu.pcie.max_generation,
        pcie_width=gpu.pcie.max_width, nvlinks=len(gpu.nvlinks), ecc=True,
        precisions=frozenset({"bf16"} if gpu.compute_capability >= (8, 0) else {"fp16"}),
    )  # fmt: skip


def test_healthy_gpus_of_all_generations_pass_every_check(machine: PlayedMachine) -> None:
    for node, gpu in zip(seen(machine, PROFILES), PROFILES, strict=True):
        for name in ["gpus", *OF_GPUS]:
            result = judged(name, node, expectation=expected_of(gpu))
            assert result.outcome == "passed", f"{gpu.name}: {name}: {result.reason}"


def test_every_fault_fails_its_own_check_and_what_is_unreadable_passes_none(machine: PlayedMachine) -> None:
    down = [replace(A100.nvlinks[0], active=0), *A100.nvlinks[1:]]
    lost = {"gpus": "failed"} | dict.fromkeys(OF_GPUS, "not_measured")
    faults: list[tuple[PlayedGpu, PlayedGpu, dict[str, str]]] = [
        (A100, V100, dict.fromkeys(["gpus", "pcie", "nvlink", "bf16"], "failed")),
        (A100, replace(A100, failures={ANY_FUNCTION: GPU_IS_LOST}), lost),
        (A100, replace(A100, processes=[Process(4711)]), {"processes": "failed"}),
        (A100, replace(A100, mig=Mig(enabled=True)), {"mig": "failed"}),
        (A100, replace(A100, ecc=Ecc(enabled=False)), {"ecc": "failed"}),
        (A100, replace(A100, ecc=Ecc(uncorrected_volatile=1)), {"ecc": "failed"}),
        (A100, replace(A100, ecc=Ecc(corrected_volatile=9)), {}),
        (A100, replace(A100, remapped_rows=RemappedRows(pending=True)), {"ecc": "failed"}),
        (A100, replace(A100, remapped_rows=RemappedRows(failed=True)), {"ecc": "failed"}),
        (V100, replace(V100, retired_pages=RetiredPages(pending=True)), {"ecc": "failed"}),
        (A100, replace(A100, clock_event_reasons=HW_THERMAL_SLOWDOWN), {"throttling": "failed"}),
        (B200, replace(B200, pcie=replace(B200.pcie, max_generation=4)), {"pcie": "failed"}),
        (B200, replace(B200, pcie=replace(B200.pcie, width=8)), {"pcie": "failed"}),
        (B200, replace(B200, pcie=replace(B200.pcie, generation=1)), {}),
        (A100, replace(A100, nvlinks=down), {"nvlink": "failed"}),
        (A100, replace(A100, failures={"nvmlDeviceGetRemappedRows": UNKNOWN_ERROR}), {"ecc": "not_measured"}),
        (A100, replace(A100, failures={"nvmlDeviceGetNvLinkState": UNKNOWN_ERROR}), {"nvlink": "not_measured"}),
        (A100, replace(A100, failures={"nvmlDeviceGetMigMode": UNKNOWN_ERROR}), {"mig": "not_measured"}),
    ]  # fmt: skip
    for node, (healthy, _, wrong) in zip(seen(machine, [gpu for _, gpu, _ in faults]), faults, strict=True):
        results = {name: judged(name, node, expectation=expected_of(healthy)) for name in ["gpus", *OF_GPUS]}
        odd = {name: result.outcome for name, result in results.items() if result.outcome != "passed"}
        assert odd == wrong, f"{node.gpus[0]}: {results}"
