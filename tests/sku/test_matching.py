from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import SkuError
from pytest_ddpscale.sku.detection import Gpu
from pytest_ddpscale.sku.matching import matching_skus, resolve_sku
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.thresholds.model import Sku, Thresholds
from pytest_ddpscale.thresholds.parts import Detect
from tests.nvml_stand_in.machine import V100 as PLAYED_V100
from tests.nvml_stand_in.machine import PlayedMachine
from tests.rows import rows

TEXT = """\
schema_version: 2
skus:
  cpu: {description: any CPU, detect: {device: cpu}}
  a100-published: {description: a reference, detect: {device: none, name: '^NVIDIA A100-SXM4-80GB$'}}
  v100:
    description: V100 with 16 GB
    aliases: [volta]
    detect: {name: '^(NVIDIA |Tesla )?V100-SXM2-16GB$', pci_device_ids: ['1db1'], memory_gib: 16}
  a100:
    description: A100 with 80 GB
    detect: {name: '^(NVIDIA )?A100-SXM4?-80GB$', pci_device_ids: ['20b2'], memory_gib: 80}
  rtx-pro-6000:
    description: RTX PRO 6000
    detect: {name: '^NVIDIA RTX PRO 6000.*$', memory_gib: 96}
  b200:
    description: B200
    detect: {name: '^NVIDIA B200$', pci_device_ids: ['2901', '29ff']}
"""
V100 = Gpu(0, "GPU-v", "Tesla V100-SXM2-16GB", "1db1", 15.78)
A100 = Gpu(0, "GPU-a", "NVIDIA A100-SXM4-80GB", "20b2", 79.35)
B200 = Gpu(0, "GPU-b", "NVIDIA B200", "2901", 179.06)
PRO_6000 = Gpu(0, "GPU-p", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "2bb5", 95.0)
H200 = Gpu(0, "GPU-h", "NVIDIA H200", "2335", 140.4)
UNNAMED_B200 = dataclasses.replace(B200, name="NVIDIA Graphics Device")
RESOLVE = """
import sys
from pathlib import Path
from pytest_ddpscale.sku.detection import visible_gpus
from pytest_ddpscale.sku.matching import resolve_sku
from pytest_ddpscale.thresholds.loading import load_thresholds
print(resolve_sku(load_thresholds(Path(sys.argv[1])), "auto", visible_gpus()))
"""


def written(path: Path, text: str) -> ThresholdsFile:
    path.write_text(text, encoding="utf-8")
    return load_thresholds(path)


@pytest.fixture
def thresholds_file(tmp_path: Path) -> ThresholdsFile:
    return written(tmp_path / "thresholds.yaml", TEXT)


def numbered(*gpus: Gpu) -> list[Gpu]:
    return [dataclasses.replace(gpu, index=i) for i, gpu in enumerate(gpus)]


def refusal(thresholds_file: ThresholdsFile, asked: str, gpus: list[Gpu]) -> str:
    with pytest.raises(SkuError) as caught:
        resolve_sku(thresholds_file, asked, gpus)
    return str(caught.value)


@rows(("gpu", "sku"), [(V100, "v100"), (A100, "a100"), (B200, "b200"), (PRO_6000, "rtx-pro-6000")])
def test_a_gpu_matches_its_sku_only(thresholds_file: ThresholdsFile, gpu: Gpu, sku: str) -> None:
    assert matching_skus(thresholds_file.thresholds, gpu) == [sku]


@rows(
    "gpu",
    [
        dataclasses.replace(A100, name="NVIDIA A100-SXM4-80GB MIG 1g.10gb"),  # the whole name, not a prefix
        dataclasses.replace(A100, name="Fake NVIDIA A100-SXM4-80GB"),
        dataclasses.replace(A100, name="NVIDIA A100-SXM4-80GB\n"),
        dataclasses.replace(A100, pci_device_id="20b0"),
        dataclasses.replace(A100, memory_gib=40.0),
        dataclasses.replace(PRO_6000, name="NVIDIA RTX PRO 6000D", memory_gib=84.0),
        UNNAMED_B200,
        H200,
    ],
    ids=lambda gpu: f"{gpu.name}-{gpu.pci_device_id}-{gpu.memory_gib}",
)
def test_a_gpu_that_differs_in_one_thing_matches_nothing(thresholds_file: ThresholdsFile, gpu: Gpu) -> None:
    assert matching_skus(thresholds_file.thresholds, gpu) == []


def test_without_pci_ids_and_memory_the_name_decides() -> None:
    thresholds = Thresholds({"any": Sku("any", Detect.model_validate({"name": "^GPU$"}))})
    assert matching_skus(thresholds, Gpu(0, "GPU-x", "GPU", "ffff", 1.0)) == ["any"]


@given(nominal_gib=st.floats(1, 500), share=st.floats(0, 3))
def test_memory_matches_within_ten_per_cent(nominal_gib: float, share: float) -> None:
    thresholds = Thresholds({"any": Sku("any", Detect.model_validate({"name": "^GPU$", "memory_gib": nominal_gib}))})
    matches = bool(matching_skus(thresholds, Gpu(0, "GPU-x", "GPU", "ffff", nominal_gib * share)))
    if 0.901 < share < 1.099:
        assert matches
    if share < 0.899 or share > 1.101:
        assert not matches


def test_auto_is_the_sku_of_all_gpus(thresholds_file: ThresholdsFile) -> None:
    assert resolve_sku(thresholds_file, "auto", numbered(*[B200] * 8)) == "b200"


def test_auto_without_gpus_is_refused(thresholds_file: ThresholdsFile) -> None:
    message = refusal(thresholds_file, "auto", [])
    assert message.startswith("--gpu-sku=auto: no NVIDIA GPU is visible here")
    assert "--gpu-sku=cpu" in message


def test_auto_takes_gpus_whose_name_varies_within_the_sku(thresholds_file: ThresholdsFile) -> None:
    old_driver = dataclasses.replace(A100, name="A100-SXM-80GB")
    assert resolve_sku(thresholds_file, "auto", numbered(A100, old_driver)) == "a100"


def test_auto_refuses_mixed_models_and_names_them(thresholds_file: ThresholdsFile) -> None:
    message = refusal(thresholds_file, "auto", numbered(V100, A100, V100))
    assert "GPU 0, 2: Tesla V100-SXM2-16GB (PCI device id 1db1, 15.8 GiB), SKU v100" in message
    assert "GPU 1: NVIDIA A100-SXM4-80GB (PCI device id 20b2, 79.3 GiB), SKU a100" in message
    assert "CUDA_VISIBLE_DEVICES" in message


def test_auto_refuses_an_unknown_gpu_among_known_ones(thresholds_file: ThresholdsFile) -> None:
    message = refusal(thresholds_file, "auto", numbered(B200, H200))
    assert "matches GPU 1: NVIDIA H200 (PCI device id 2335, 140.4 GiB)" in message
    assert "GPU 0" not in message


def test_the_detect_that_is_suggested_for_an_unknown_gpu_matches_it(
    thresholds_file: ThresholdsFile, tmp_path: Path
) -> None:
    odd = dataclasses.replace(H200, name="NVIDIA H200 (a+b) [x] 'y' 1.5")
    message = refusal(thresholds_file, "auto", [odd])
    assert str(thresholds_file.path) in message
    detect = message.split("`detect: ")[1].split("`")[0]
    assert yaml.safe_load(detect)["pci_device_ids"] == ["2335"]
    extended = written(tmp_path / "extended.yaml", f"{TEXT}  new:\n    description: added\n    detect: {detect}\n")
    assert resolve_sku(extended, "auto", [odd]) == "new"


def test_a_driver_without_the_name_but_with_the_pci_id_is_explained(thresholds_file: ThresholdsFile) -> None:
    message = refusal(thresholds_file, "auto", [UNNAMED_B200])
    assert "nearest is b200: PCI device id 2901 matches" in message
    assert "name 'NVIDIA Graphics Device' does not match '^NVIDIA B200$'" in message
    line = next(i for i, text in enumerate(TEXT.splitlines(), 1) if "2901" in text)
    assert f"{thresholds_file.path}:{line}" in message


def test_a_name_with_another_pci_id_is_explained(thresholds_file: ThresholdsFile) -> None:
    message = refusal(thresholds_file, "auto", [dataclasses.replace(B200, pci_device_id="1234")])
    assert "name 'NVIDIA B200' matches" in message
    assert "PCI device id 1234 is not 2901 or 29ff" in message


def test_memory_alone_makes_no_near_match(thresholds_file: ThresholdsFile) -> None:
    assert "nearly" not in refusal(thresholds_file, "auto", [Gpu(0, "GPU-x", "NVIDIA L40", "26b5", 80.0)])


def test_auto_refuses_gpus_that_several_skus_match(tmp_path: Path) -> None:
    twin = "  b200-too: {description: again, detect: {name: '^NVIDIA B200$'}}\n"
    thresholds_file = written(tmp_path / "twins.yaml", TEXT + twin)
    message = refusal(thresholds_file, "auto", [B200])
    assert "b200, b200-too" in message
    assert "--gpu-sku=b200" in message
    assert resolve_sku(thresholds_file, "b200-too", [B200]) == "b200-too"


@rows("asked", ["v100", "volta"])
def test_an_explicit_sku_that_the_gpus_are_is_canonicalised(thresholds_file: ThresholdsFile, asked: str) -> None:
    assert resolve_sku(thresholds_file, asked, numbered(V100, V100)) == "v100"


def test_an_explicit_sku_that_the_gpus_are_not_is_refused(thresholds_file: ThresholdsFile) -> None:
    message = refusal(thresholds_file, "a100", numbered(V100, V100))
    assert "the GPUs here are not a100" in message
    assert "GPU 0, 1: Tesla V100-SXM2-16GB (PCI device id 1db1, 15.8 GiB), SKU v100" in message
    assert "Use --gpu-sku=v100" in message


def test_one_gpu_of_another_model_refuses_an_explicit_sku(thresholds_file: ThresholdsFile) -> None:
    message = refusal(thresholds_file, "a100", numbered(A100, A100, H200))
    assert "GPU 2: NVIDIA H200" in message
    assert "GPU 0" not in message
    assert "SKU unknown" in message


def test_an_explicit_sku_whose_name_the_driver_does_not_know_says_what_agrees(thresholds_file: ThresholdsFile) -> None:
    message = refusal(thresholds_file, "b200", [UNNAMED_B200])
    assert "PCI device id 2901 matches" in message
    assert "name 'NVIDIA Graphics Device' does not match" in message
    assert f"correct `detect` at {thresholds_file.path}:" in message


def test_a_gpu_sku_without_gpus_is_refused_with_both_ways_out(thresholds_file: ThresholdsFile) -> None:
    message = refusal(thresholds_file, "volta", [])
    assert message.startswith("--gpu-sku=v100: no NVIDIA GPU is visible here")
    assert "--gpu-sku=cpu" in message
    assert "--ddp-judge RUN_DIR" in message


@rows("gpus", [[], [V100], [H200], [V100, A100]])
def test_the_cpu_can_always_be_asked_for(thresholds_file: ThresholdsFile, gpus: list[Gpu]) -> None:
    assert resolve_sku(thresholds_file, "cpu", gpus) == "cpu"


def test_a_reference_cannot_be_measured(thresholds_file: ThresholdsFile) -> None:
    assert "reference" in refusal(thresholds_file, "a100-published", [A100])


def test_an_unknown_sku_is_refused(thresholds_file: ThresholdsFile) -> None:
    assert "'v1000'" in refusal(thresholds_file, "v1000", [V100])


@rows("gpus", [[], [A100], [V100, H200]])
def test_where_nothing_is_measured_an_explicit_sku_needs_no_gpus(
    thresholds_file: ThresholdsFile, gpus: list[Gpu]
) -> None:
    assert resolve_sku(thresholds_file, "volta", gpus, require_devices=False) == "v100"


def test_where_nothing_is_measured_auto_still_means_this_machine(thresholds_file: ThresholdsFile) -> None:
    assert resolve_sku(thresholds_file, "auto", [A100], require_devices=False) == "a100"
    for gpus in ([H200], []):
        with pytest.raises(SkuError):
            resolve_sku(thresholds_file, "auto", gpus, require_devices=False)


def test_from_nvml_to_the_sku(machine: PlayedMachine, thresholds_file: ThresholdsFile) -> None:
    machine.play([PLAYED_V100] * 8)
    assert machine.run_python(RESOLVE, str(thresholds_file.path)) == "v100\n"
    with pytest.raises(AssertionError, match="no NVIDIA GPU is visible here"):
        machine.run_python(RESOLVE, str(thresholds_file.path), CUDA_VISIBLE_DEVICES="")
