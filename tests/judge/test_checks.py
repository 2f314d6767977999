"""Node checks on machines of one line each, as they stand in checks.txt; `checks` says what the words mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.outcome import with_waiver
from pytest_ddpscale.run.survey_record import SurveyedGpu
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.judged import CONFIDENCE
from tests.judge import checks
from tests.judge.checks import tell
from tests.nvml_stand_in.gpus import PlayedGpu, RetiredPages
from tests.nvml_stand_in.machine import A100, ANY_FUNCTION, GPU_IS_LOST, PROFILES, UNKNOWN_ERROR, V100, PlayedMachine
from tests.rows import rows
from tests.tables import assert_approved, each_block

CHECKS = Path(__file__).with_name("checks.txt")


@each_block(CHECKS)
def test_checks(block: str) -> None:
    assert_approved(CHECKS, block, tell)


@rows(
    ("line", "codes"),
    [
        (" 1x3 rounds=8 load utilization=0/.1", []),
        (" 1x3 rounds=8 load utilization=0/.1 utilization=0.5/.2", ["never-waives-unknown"]),
        (" 1x3 rounds=8 load utilization=0/.1 utilization=0.5/.2:0-4", ["never-waives-unknown"]),
        (" 1x3 rounds=8 load utilization=0/.1 utilization=0.5/.2:0-2", []),
        ("@2 3x2 rounds=9 load utilization=0/n2.1", []),
        ("@2 3x2 rounds=9 load utilization=0/n2", []),
        ("@2 3x2 rounds=9 load utilization=0/n2.1 utilization=0.5/n2.0", ["never-waives-unknown"]),
    ],
)
def test_a_waiver_of_a_utilization_that_is_not_read_hides_no_other_gpu(line: str, codes: list[str]) -> None:
    checked = checks.Checked(f"device_utilization:0.9{line}")
    case, evidence = checked.training, checked.evidence()
    waiver = Waiver("A. Name", "a driver is ordered", checks.DAY)
    waived = replace(case, requirement=replace(case.requirement, waiver=waiver))
    verdict = with_waiver(judge(case, evidence, CONFIDENCE), waived, evidence, checks.DAY)
    assert [reason.code for reason in verdict.remarks if "waive" in reason.code] == codes
    assert verdict.is_waived == (not codes)


@given(answers=st.lists(st.sampled_from(["hw_slowdown", "", "none"]), min_size=1, max_size=12))
def test_throttling_in_half_of_the_windows_fails_whatever_the_others_would_say(answers: list[str]) -> None:
    """A property of all lines of the kind."""
    changes = " ".join(f"throttle_reasons={one}:{number}" for number, one in enumerate(answers))
    found = next(tell(f"throttling_under_load 1x1 rounds={len(answers)} load {changes}"))
    least, most = answers.count("hw_slowdown"), len(answers) - answers.count("")
    half = len(answers) / 2
    assert found == ("failed 0" if least >= half else "passed 1" if most < half else "not_measured")


READ = """
import msgspec
from pytest_ddpscale.telemetry.nvml import read_gpus
print(msgspec.json.encode(read_gpus("n1").gpus).decode())
"""
OF_GPUS = ("gpus", "processes", "mig", "ecc", "throttling", "pcie", "nvlink", "kernels", "bf16")
PLAYED: list[tuple[PlayedGpu, dict[str, str]]] = [
    *((gpu, {}) for gpu in PROFILES),
    (replace(A100, failures={ANY_FUNCTION: GPU_IS_LOST}), {**dict.fromkeys(OF_GPUS, "not_measured"), "gpus": "failed"}),
    (replace(A100, failures={"nvmlDeviceGetRemappedRows": UNKNOWN_ERROR}), {"ecc": "not_measured"}),
    (replace(V100, retired_pages=RetiredPages(pending=True)), {"ecc": "failed"}),
    (replace(A100, nvlinks=[replace(A100.nvlinks[0], active=0), *A100.nvlinks[1:]]), {"nvlink": "failed"}),
]


def test_gpus_of_all_generations_as_their_driver_describes_them(
    machine: PlayedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines change one healthy A100; what each generation does not have a library says."""
    told = machine.play([gpu for gpu, _ in PLAYED]).run_python(READ)
    for (gpu, wrong), found in zip(PLAYED, msgspec.json.decode(told, type=list[SurveyedGpu]), strict=True):
        monkeypatch.setattr(checks, "NODE", msgspec.structs.replace(checks.NODE, gpus=(found,)))
        line = (
            f"1x1 arch_list=sm_70,sm_80,compute_90 sku.name=^{gpu.name.replace(' ', '~')}$ "
            f"sku.pci_device_ids={gpu.pci_device_id} sku.memory_gib={gpu.memory_mib / 1024} "
            f"sku.nvlinks={len(gpu.nvlinks)} sku.pcie_generation={gpu.pcie.max_generation} "
            f"{'fp16' if gpu.compute_capability < (8, 0) else ''}"
        )
        outcomes = {check: next(checks.tell(f"{check} {line}")).split()[0] for check in OF_GPUS}
        assert {check: outcome for check, outcome in outcomes.items() if outcome != "passed"} == wrong, found
