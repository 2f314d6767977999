"""Checks that look at each GPU of a survey: seen to pass, to fail and not to know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as altered

from pytest_ddpscale.plan.node_check import NODE_CHECKS, NodeExpectation
from pytest_ddpscale.run.survey_record import GpuProcess, RemappedRows, Survey
from tests.builders.nodes_checked import A100, GIB, NOT_SUPPORTED, VERSIONS, gpu, gpus, judged, survey, unread, with_gpu
from tests.rows import rows

A100_ALONE = replace(A100, gpus_per_node=1)
ALONE = survey(gpus=gpus(count=1, which=[0], nvlinks_active=0))

# As torch says it.
NOT_READY = (
    "CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
    "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized"
)
SURVEY_CHECKS = [name for name, check in NODE_CHECKS.items() if check.reads == "survey"]
OF_GPUS = ["processes", "mig", "ecc", "throttling", "pcie", "nvlink", "kernels", "bf16"]


def test_healthy_nodes_pass() -> None:
    for name in SURVEY_CHECKS:
        result = judged(name, *(survey(f"n{number}") for number in range(1, 5)))
        assert (result.outcome, result.value, result.culprits) == ("passed", 1.0, ())


@pytest.mark.parametrize("mode", ["Exclusive_Process", "Exclusive_Thread"])
def test_one_process_at_a_time_is_enough_for_ranks_and_only_noted(mode: str) -> None:
    result = judged("gpus", with_gpu(compute_mode=mode))
    [said] = result.notes
    assert (result.outcome, result.culprits) == ("passed", ())
    assert f"GPU 3 (GPU-n1-3): compute mode {mode}: one process at a time" in said


def test_the_compute_mode_of_a_lost_gpu_or_of_an_old_record_is_not_asked_for() -> None:
    assert judged("gpus", with_gpu(compute_mode=None)).outcome == "passed"
    lost = judged("gpus", with_gpu(problem="GPU is lost", compute_mode=None))
    assert [culprit.evidence for culprit in lost.culprits] == ["lost: GPU is lost"]


def test_a_gpu_that_is_not_as_expected_fails_its_node_and_is_named() -> None:
    rows: list[tuple[str, dict[str, Any], str]] = [
        ("gpus", {"name": "NVIDIA A100-SXM4-40GB"}, "is a NVIDIA A100-SXM4-40GB; expected a name like"),
        ("gpus", {"pci_device_id": "20b0"}, "PCI device id 20b0; expected 20b2"),
        ("gpus", {"memory_bytes": 40 * GIB}, "has 40.0 GiB; expected 72.0 to 88.0"),
        ("gpus", {"problem": "GPU is lost"}, "lost: GPU is lost"),
        ("gpus", {"compute_mode": "Prohibited"}, "compute mode Prohibited; nvidia-smi -i 3 -c 0"),
        ("processes", {"processes": (GpuProcess(4711, "python", 3 * GIB),)}, "process 4711 (python) holds 3.0 GiB"),
        ("processes", {"processes": (GpuProcess(1, ""),)}, "process 1 (name not visible) holds unknown memory"),
        ("mig", {"mig_enabled": True}, "MIG is enabled"),
        ("ecc", {"ecc_enabled": False}, "ECC is off; expected on"),
        ("ecc", {"ecc_uncorrected": 2}, "2 uncorrectable memory errors"),
        ("ecc", {"retired_pages_pending": True}, "page waits for a reset"),
        ("ecc", {"remapped_rows": RemappedRows(0, 1, pending=True, failed=False)}, "row waits for a reset"),
        ("ecc", {"remapped_rows": RemappedRows(0, 1, pending=False, failed=True)}, "could not be remapped"),
        ("throttling", {"throttle_reasons": ("hw_slowdown", "hw_thermal_slowdown")}, "at 31 °C: hw_slowdown, hw_therm"),
        ("throttling", {"throttle_reasons": ("sw_thermal_slowdown",)}, "sw_thermal_slowdown"),
        ("throttling", {"throttle_reasons": ("hw_power_brake_slowdown",)}, "hw_power_brake_slowdown"),
        ("pcie", {"pcie_generation_max": 3}, "reaches generation 3 (the GPU alone: 4); expected 4"),
        ("pcie", {"pcie_width_max": 8}, "PCIe of GPU and slot reaches 8 lanes; expected 16"),
        ("pcie", {"pcie_width": 8, "pcie_generation": 4}, "PCIe has 8 lanes; expected 16"),
        ("nvlink", {"nvlinks_active": 11}, "11 NVLinks are up; expected 12"),
        ("kernels", {"compute_capability": "7.0"}, "no kernels for compute capability 7.0; it has sm_75"),
        ("bf16", {"compute_capability": "7.5"}, "no native bf16"),
    ]
    for name, changes, text in rows:
        result = judged(name, survey("n0"), with_gpu(host="n1", **changes), survey("n2"), survey("n3"))
        assert (result.outcome, result.value) == ("failed", 0.75)
        assert text in result.reason
        assert result.reason.startswith("1 of 4 nodes not as expected: n1: GPU 3 (GPU-n1-3): ")
        (culprit,) = result.culprits
        assert (culprit.kind, culprit.host, culprit.gpu_index, culprit.gpu_uuid) == ("gpu", "n1", 3, "GPU-n1-3")
        assert text in culprit.evidence
        assert culprit.is_certain


def test_what_cannot_be_read_is_never_passed() -> None:
    for name, reading in [
        ("gpus", "memory_bytes"),
        ("processes", "processes"),
        ("mig", "mig_enabled"),
        ("ecc", "ecc_enabled"),
        ("ecc", "ecc_uncorrected"),
        ("ecc", "remapped_rows"),
        ("throttling", "throttle_reasons"),
        ("pcie", "pcie_generation_max"),
        ("pcie", "pcie_width"),
        ("nvlink", "nvlinks_active"),
        ("kernels", "compute_capability"),
        ("bf16", "compute_capability"),
    ]:
        result = judged(name, survey("n0"), unread(reading, "Unknown Error"))
        assert (result.outcome, result.value) == ("not_measured", None)
        assert f"n1: GPU 3 (GPU-n1-3): {reading} cannot be read (Unknown Error)" in result.reason
        assert result.culprits == ()


@pytest.mark.parametrize(
    ("name", "field", "asked"), [("gpus", "memory_bytes", "memory"), ("nvlink", "nvlinks_active", "nvlinks")]
)
def test_a_reading_that_is_asked_under_another_name_keeps_its_reason(name: str, field: str, asked: str) -> None:
    changes: dict[str, Any] = {field: None, "unreadable": {asked: "Unknown Error"}}
    assert f"{field} cannot be read (Unknown Error)" in judged(name, with_gpu(**changes)).reason


@pytest.mark.parametrize("reading", ["mig_enabled", "remapped_rows"])
def test_what_the_hardware_does_not_have_need_not_be_read(reading: str) -> None:
    name = {"mig_enabled": "mig", "remapped_rows": "ecc"}[reading]
    changes: dict[str, Any] = {reading: None, "unreadable": {reading: NOT_SUPPORTED}}
    changes |= {"retired_pages_pending": False} if name == "ecc" else {}
    node = survey(gpus=gpus(which=range(8), **changes))
    assert judged(name, node).outcome == "passed"


@pytest.mark.parametrize(
    ("name", "changes", "reading"),
    [
        ("gpus", {"name": ""}, "name"),
        ("gpus", {"pci_device_id": ""}, "pci_device_id"),
        ("ecc", {"remapped_rows": None, "unreadable": {"remapped_rows": NOT_SUPPORTED}}, "retired_pages_pending"),
    ],
)
def test_what_a_gpu_does_not_tell_is_never_passed(name: str, changes: dict[str, Any], reading: str) -> None:
    result = judged(name, with_gpu(**changes))
    assert result.outcome == "not_measured"
    assert f"{reading} cannot be read" in result.reason


def test_a_gpu_whose_ecc_cannot_be_read_though_it_should_be_on_is_not_passed() -> None:
    node = unread("ecc_enabled", NOT_SUPPORTED)
    assert judged("ecc", node).outcome == "not_measured"
    assert judged("ecc", node, expectation=replace(A100, ecc=None)).outcome == "passed"


def test_what_is_only_noted_fails_nobody() -> None:
    rows = RemappedRows(1, 2, pending=False, failed=False)
    for result, notes in (
        (judged("ecc", with_gpu(ecc_corrected=7, remapped_rows=rows)), 2),
        (judged("pcie", with_gpu(pcie_width=8)), 1),  # it may save power: see pcie_under_load
        (judged("nvlink", ALONE, expectation=A100_ALONE), 1),  # the only GPU of a virtual machine
    ):
        assert (result.outcome, len(result.notes)) == ("passed", notes)


@pytest.mark.parametrize("reading", ["pcie_generation", "pcie_generation_max"])
def test_too_few_lanes_of_a_link_that_may_save_power_or_not_are_not_passed(reading: str) -> None:
    changes: dict[str, Any] = {"pcie_width": 8, reading: None}
    expectation = replace(A100, pcie_generation=None)
    result = judged("pcie", with_gpu(**changes), expectation=expectation)
    assert result.outcome == "not_measured"
    assert f"{reading} cannot be read" in result.reason


def test_idling_and_clocks_that_somebody_set_are_no_throttling() -> None:
    for reasons in ((), ("gpu_idle",), ("sw_power_cap",), ("applications_clocks_setting", "sync_boost")):
        assert judged("throttling", with_gpu(throttle_reasons=reasons)).outcome == "passed"


def test_gpus_without_nvlinks_need_none_to_be_read() -> None:
    node = survey(gpus=gpus(which=range(8), nvlinks=0, nvlinks_active=None))
    assert judged("nvlink", node, expectation=replace(A100, nvlinks=0)).outcome == "passed"
    assert judged("nvlink", node).outcome == "not_measured"


@pytest.mark.parametrize(
    ("node", "expectation"),
    [
        pytest.param(ALONE, A100, id="seven are missing"),
        pytest.param(ALONE, replace(A100_ALONE, gpus_installed=8), id="seven are missing from a GPU's node"),
        pytest.param(survey(gpus=gpus(count=1, which=[0], nvlinks_active=11)), A100_ALONE, id="one link is down"),
        pytest.param(
            survey(gpus=(gpu(nvlinks_active=0), gpu(1, is_visible=False))), A100_ALONE, id="another one is withheld"
        ),
    ],
)
def test_links_that_are_down_fail_a_gpu_that_could_have_them(node: Survey, expectation: NodeExpectation) -> None:
    result = judged("nvlink", node, expectation=expectation)
    assert result.outcome == "failed"
    assert "expected 12" in result.reason


@pytest.mark.parametrize("name", ["pcie", "nvlink"])
def test_nothing_passes_of_which_nothing_is_expected(name: str) -> None:
    expectation = replace(A100, pcie_generation=None, pcie_width=None, nvlinks=None)
    result = judged(name, survey(), expectation=expectation)
    assert result.outcome == "not_measured"
    assert "the SKU's `node:` does not set" in result.reason


def test_of_a_lost_gpu_nothing_else_is_known_and_a_node_without_a_driver_passes_no_check_of_gpus() -> None:
    for name in OF_GPUS:
        lost = judged(name, with_gpu(problem="GPU is lost", name="", unreadable={}))
        assert lost.outcome == "not_measured"
        assert "GPU 3 (GPU-n1-3) does not answer: GPU is lost" in lost.reason
        bare = judged(name, survey(has_driver=False, gpus=()))
        assert bare.outcome == "not_measured"
        assert "no NVIDIA driver is loaded" in bare.reason


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (survey(gpus=gpus(count=7)), "7 GPUs are visible; expected 8"),
        (survey(gpus=gpus(which=[7], is_visible=False)), "7 GPUs are visible; expected 8"),
        (survey(gpus=gpus(which=range(8), is_visible=False)), "CUDA_VISIBLE_DEVICES hides all 8 GPUs"),
        (survey(gpus=(), driver_problem="Driver/library version mismatch"), "Driver/library version mismatch"),
        (survey(gpus=(), has_driver=False), "no NVIDIA driver is loaded"),
        (survey(torch_gpus=7), "CUDA finds 7 of the 8 GPUs that ranks may use: look for Xid in dmesg"),
    ],
)
def test_a_node_with_fewer_gpus_than_asked_fails(node: Survey, text: str) -> None:
    result = judged("gpus", node, survey("n2"))
    assert (result.outcome, result.value) == ("failed", 0.5)
    assert text in result.reason
    (culprit,) = result.culprits
    assert (culprit.kind, culprit.host, culprit.gpu_index) == ("node", "n1", None)


@rows(
    ("name", "nvlinks", "cure"),
    [
        ("NVIDIA A100-SXM4-80GB", 12, "start nvidia-fabricmanager 580.95.05, the driver's version"),
        ("NVIDIA GB200", 18, "check nvidia-imex and the NVLink switch trays"),
        ("NVIDIA A100 80GB PCIe", None, "look for Xid in dmesg"),
    ],
)
def test_a_node_whose_cuda_is_not_ready_is_told_what_its_kind_of_machine_needs(
    name: str, nvlinks: int | None, cure: str
) -> None:
    node = survey(gpus=gpus(which=range(8), name=name), torch_gpus=0, cuda_problem=NOT_READY)
    expectation = replace(A100, name_pattern=f"^{name}$", nvlinks=nvlinks)
    (culprit,) = judged("gpus", node, expectation=expectation).culprits
    told = f"CUDA finds 0 of the 8 GPUs that ranks may use (Error 802: system not yet initialized): {cure}"
    assert (culprit.kind, culprit.evidence, culprit.is_certain) == ("node", told, True)


def test_cuda_need_not_count_a_lost_gpu_nor_any_with_a_driver_too_old_for_torch() -> None:
    lost = survey(gpus=gpus(which=[3], problem="GPU is lost", is_lost=True), torch_gpus=7)
    assert [culprit.gpu_index for culprit in judged("gpus", lost).culprits] == [3]
    old = survey(torch_gpus=0, versions=VERSIONS | {"cuda_driver": "12.8"})
    assert [judged(name, old).outcome for name in ("gpus", "kernels")] == ["passed", "failed"]


def test_a_cuda_that_does_not_answer_in_time_is_no_fault_and_no_pass() -> None:
    result = judged("gpus", survey(cuda_problem="did not answer within 45 s"))
    assert (result.outcome, result.culprits) == ("not_measured", ())
    assert "n1: CUDA did not count its GPUs: did not answer within 45 s" in result.reason


def test_gpus_that_ranks_may_not_use_are_not_judged() -> None:
    hidden: dict[str, Any] = {
        "is_visible": False,
        "name": "Quadro P400",
        "nvlinks_active": 0,
        "pcie_width": 8,
        "problem": "",
    }
    node = survey(gpus=(gpu(0, **hidden), *(gpu(index) for index in range(1, 9))))
    assert all(judged(name, node).outcome == "passed" for name in SURVEY_CHECKS)
    lost = survey(gpus=(gpu(0, **hidden | {"problem": "GPU is lost"}), *(gpu(index) for index in range(1, 9))))
    assert judged("gpus", lost).outcome == "passed"
    assert "GPU 0 of the node, which ranks do not use, does not answer" in judged("gpus", lost).notes[0]


def test_a_culprit_is_called_by_the_index_of_nvidia_smi() -> None:
    node = survey(gpus=(gpu(0, is_visible=False), *(gpu(index) for index in range(1, 8)), gpu(8, pcie_width_max=4)))
    assert judged("pcie", node).culprits[0].gpu_index == 8


def test_a_culprit_has_the_local_rank_that_cuda_gives_it_beside_its_index() -> None:
    """CUDA_VISIBLE_DEVICES=3,1."""
    ranks = {3: 0, 1: 1}
    shown = [gpu(index, is_visible=index in ranks, local_rank=ranks.get(index)) for index in range(4)]
    shown[3] = altered(shown[3], ecc_uncorrected=1)
    result = judged("ecc", survey(gpus=tuple(shown)), expectation=replace(A100, gpus_per_node=2))
    (culprit,) = result.culprits
    assert (culprit.gpu_index, culprit.gpu_uuid, culprit.local_rank) == (3, "GPU-n1-3", 0)
    assert "n1: GPU 3 (GPU-n1-3, local rank 0): 1 uncorrectable" in result.reason
    unnamed = gpu(0, uuid="", problem="GPU is lost")  # may be one of those that are listed by UUID
    (lost,) = judged("gpus", survey(gpus=(unnamed, *(gpu(i, local_rank=i - 1) for i in range(1, 9))))).culprits
    assert (lost.gpu_index, lost.gpu_uuid, lost.local_rank) == (0, None, None)


def test_a_gpu_that_is_gone_from_the_driver_is_missed_though_no_rank_needs_it() -> None:
    expectation = replace(A100, gpus_per_node=7, gpus_installed=8)
    result = judged("gpus", survey(gpus=gpus(count=7)), expectation=expectation)
    assert result.outcome == "failed"
    assert result.culprits[0].evidence == "the driver has 7 GPUs of this SKU; expected 8"
    other = gpu(7, is_visible=False, name="Quadro P400")
    assert judged("gpus", survey(gpus=(*gpus(count=7), other)), expectation=expectation).outcome == "failed"
    for hidden in (gpu(7, is_visible=False), gpu(7, is_visible=False, name="", uuid="")):  # … or of another job
        assert judged("gpus", survey(gpus=(*gpus(count=7), hidden)), expectation=expectation).outcome == "passed"


def test_bf16_is_judged_only_if_a_plan_uses_it() -> None:
    old = survey(gpus=gpus(which=range(8), compute_capability="7.0"))
    assert judged("bf16", old).outcome == "failed"
    assert judged("bf16", old, expectation=replace(A100, precisions=frozenset({"fp16"}))).outcome == "passed"


@pytest.mark.parametrize(
    ("changes", "outcome", "text"),
    [
        ({"arch_list": (), "versions": {"torch": "2.12.0+cpu", "cuda": None}}, "failed", "built without CUDA"),
        ({"arch_list": ()}, "not_measured", "lists no architectures"),
        ({"arch_list": (), "torch_problem": "No module named torch"}, "not_measured", "No module named torch"),
    ],
)
def test_a_torch_without_kernels_is_told_from_one_that_says_nothing(
    changes: dict[str, Any], outcome: str, text: str
) -> None:
    result = judged("kernels", survey(**changes))
    assert result.outcome == outcome
    assert text in result.reason


@given(faulty=st.sets(st.integers(0, 7)), unreadable=st.sets(st.integers(0, 7)))
def test_a_node_passes_only_if_every_gpu_is_read_and_as_expected(faulty: set[int], unreadable: set[int]) -> None:
    widths = [None if index in unreadable else 8 if index in faulty else 16 for index in range(8)]
    node = survey(gpus=tuple(gpu(i, pcie_width=width, pcie_generation=4) for i, width in enumerate(widths)))
    seen = faulty - unreadable
    expected = "failed" if seen else "not_measured" if unreadable else "passed"
    result = judged("pcie", node)
    assert result.outcome == expected
    assert {culprit.gpu_index for culprit in result.culprits} == seen


def test_of_several_nodes_the_one_that_has_no_gpu_left_is_named() -> None:
    found = judged("gpus", survey("n1"), survey("n2", gpus=()), survey("n3"))
    (culprit,) = found.culprits
    assert (culprit.kind, culprit.host, culprit.is_certain) == ("node", "n2", True)
    assert culprit.evidence == "0 GPUs are visible; expected 8: the driver finds no GPU"
    lost = tuple(gpu(index, uuid="", problem="GPU is lost", is_lost=True) for index in range(8))
    found = judged("gpus", survey("n1"), survey("n2", gpus=lost), survey("n3"))
    assert {(one.host, one.is_certain) for one in found.culprits} == {("n2", True)}
    assert [one.gpu_index for one in found.culprits] == list(range(8))
