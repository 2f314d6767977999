"""The survey of a node with a real GPU reads what it should, and the node passes the checks of its SKU."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.hardware import has_kernels
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.run.evidence import evidence_of
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.survey_record import Survey, SurveyedGpu, surveys_of
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.run.telemetry import TelemetryBlock, telemetry_columns_of
from pytest_ddpscale.thresholds.model import Sku
from tests.builders.judged import CONFIDENCE, check_case
from tests.integration.gpu_run import GpuRun, TorchGpu

pytestmark = pytest.mark.gpu

# Since Ampere rows are remapped, before it pages were retired; and not every GPU can be cut into slices.
NOT_OF_EVERY_GPU = {"retired_pages_pending", "remapped_rows", "mig_enabled"}


@pytest.fixture(scope="module")
def survey(gpu_run: GpuRun) -> Survey:
    """Of this node, as its agent sent it."""
    (survey,) = surveys_of(gpu_run.directory.read_records()).values()
    return survey


@pytest.fixture(scope="module")
def surveyed(survey: Survey) -> SurveyedGpu:
    """The first GPU that ranks may use: torch's cuda:0."""
    return next(gpu for gpu in survey.gpus if gpu.is_visible)


def test_driver_and_torch_answer(survey: Survey, gpu: TorchGpu) -> None:
    assert (survey.problem, survey.driver_problem, survey.torch_problem) == ("", "", "")
    assert survey.has_driver
    assert (survey.torch_gpus, survey.cuda_problem) == (sum(gpu.is_visible for gpu in survey.gpus), "")
    assert [name for name, version in survey.versions.items() if not version] == []
    assert (survey.versions["torch"], survey.versions["cuda"]) == (gpu.torch_version, gpu.cuda_version)
    # A driver runs what was built for its major version of CUDA, or an earlier one.
    driver, build = (str(survey.versions[name]).partition(".")[0] for name in ("cuda_driver", "cuda"))
    assert int(driver) >= int(build)


def test_the_topology_is_that_of_nvidia_smi(survey: Survey) -> None:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("there is no nvidia-smi here")
    asked = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=60)
    assert asked.returncode == 0, f"nvidia-smi topo -m fails: {asked.stdout}{asked.stderr}"
    assert "GPU0" in survey.topology


def test_torch_names_the_architectures_that_it_was_built_for(survey: Survey, gpu: TorchGpu) -> None:
    assert survey.arch_list == gpu.arch_list
    assert has_kernels(survey.arch_list, gpu.capability)


def test_the_gpu_is_the_one_that_torch_sees(surveyed: SurveyedGpu, gpu: TorchGpu) -> None:
    assert surveyed.problem == ""
    assert surveyed.uuid == f"GPU-{gpu.uuid.removeprefix('GPU-')}"
    assert surveyed.name == gpu.name
    assert surveyed.compute_capability == f"{gpu.capability[0]}.{gpu.capability[1]}"
    assert surveyed.memory_bytes is not None
    assert 0.9 * surveyed.memory_bytes <= gpu.memory_bytes <= 1.01 * surveyed.memory_bytes


def test_the_driver_says_all_that_checks_ask(surveyed: SurveyedGpu, gpu: TorchGpu) -> None:
    assert {name: why for name, why in surveyed.unreadable.items() if name not in NOT_OF_EVERY_GPU} == {}
    assert (surveyed.remapped_rows is not None) == (gpu.capability >= (8, 0))


def test_the_gpu_is_at_rest_and_nobody_elses(surveyed: SurveyedGpu) -> None:
    assert surveyed.processes == ()
    assert surveyed.temperature_c is not None
    assert 10 <= surveyed.temperature_c <= 90
    assert surveyed.power_limit_w is not None
    assert 50 <= surveyed.power_limit_w <= 2000


def test_memory_and_links_are_those_of_the_data_sheet(survey: Survey, surveyed: SurveyedGpu, sku: Sku) -> None:
    assert sku.node is not None
    if sku.node.ecc is not None:
        assert surveyed.ecc_enabled == sku.node.ecc
    assert (surveyed.ecc_uncorrected, surveyed.mig_enabled or False) == (0, False)
    # Slot and virtual machine may have less: that is for the check to say.
    assert surveyed.pcie_generation_gpu_max is not None
    assert surveyed.pcie_generation_gpu_max >= (sku.node.pcie_generation or 1)
    assert surveyed.pcie_generation_max is not None
    assert 1 <= surveyed.pcie_generation_max <= surveyed.pcie_generation_gpu_max
    assert surveyed.nvlinks is not None
    assert surveyed.nvlinks_active is not None
    has_peers = len(survey.gpus) > 1  # a virtual machine may have one GPU of eight, and none of its links
    expected = sku.node.nvlinks if has_peers and sku.node.nvlinks is not None else surveyed.nvlinks
    assert surveyed.nvlinks_active <= surveyed.nvlinks == expected


@pytest.mark.parametrize("name", NODE_CHECKS)
def test_the_node_passes_the_checks_of_its_sku(gpu_run: GpuRun, sku: Sku, name: str) -> None:
    if name not in sku.checks:
        pytest.skip(f"thresholds.yaml does not ask {name} of this SKU")
    if name == "topology" and shutil.which("nvidia-smi") is None:
        pytest.skip("there is no nvidia-smi here")
    records = gpu_run.directory.read_records()
    telemetry = telemetry_columns_of(
        [one for one in records if isinstance(one, TelemetryBlock)], gangs_by_number(records)
    )
    evidence = replace(evidence_of(gpu_run.plan, Columns(), records), telemetry=telemetry)
    found = worded(judge(check_case(name, sku=sku), evidence, CONFIDENCE))
    if sku.checks[name] == "fail":
        assert found.outcome == "passed", found.reason
    else:
        assert found.outcome != "not_measured", found.reason
