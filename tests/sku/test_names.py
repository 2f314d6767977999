"""Which SKU --gpu-sku means, with which GPUs here, by the packaged thresholds and some SKUs more: a line of names.txt.

ASKED | 2x NAME/PCI ID/GiB, NAME/PCI ID/GiB | SKU    the SKU, on a machine with these GPUs
ASKED | none | SKU                                   on a machine without GPUs
ASKED | | SKU                                        where nothing is measured
ASKED | … | refused WORDS                            words of the refusal, in their order
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pytest_ddpscale.errors import SkuError
from pytest_ddpscale.run.survey_record import SurveyedGpu
from pytest_ddpscale.sku.matching import resolve_sku
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from tests.builders.clusters import thresholds
from tests.tables import assert_rows, each_block, is_so

TABLE = Path(__file__).with_name("names.txt")
MORE = """\
schema_version: 2
extends: packaged
skus:
  twin-a: {description: twin, aliases: [b200-rack7, Rack], detect: {name: '^NVIDIA Twin$'}}
  twin-b: {description: twin, detect: {name: '^NVIDIA Twin$'}}
  part: {description: of a GPU, detect: {name: '^NVIDIA A100-20C$', memory_gib: 20}}
  made-up: {description: known by its name alone, detect: {name: '^Made Up$'}}
"""


def written(path: Path, text: str = MORE) -> ThresholdsFile:
    path.write_text(text, encoding="utf-8")
    return load_thresholds(path)


@each_block(TABLE)
def test_a_name_and_gpus_are_a_sku_or_refused(block: str, tmp_path: Path) -> None:
    file = written(tmp_path / "site.yaml")
    assert_rows(block, lambda row: _why_wrong(row, file))


def _why_wrong(row: str, file: ThresholdsFile) -> str:
    asked, here, expected = (part.strip() for part in row.split("|"))
    try:
        found = resolve_sku(file, asked, list(_gpus(here)), require_devices=bool(here))
    except SkuError as error:
        found = f"refused {error}"
    is_hint_right = ("Did you mean" in expected) == ("Did you mean" in found)
    return "" if is_so(expected, found) and is_hint_right else found


def played(index: int, name: str, pci_device_id: str, gib: float) -> SurveyedGpu:
    return SurveyedGpu(index, f"GPU-{index}", name, "", pci_device_id, memory_bytes=round(gib * 2**30) or None)


def _gpus(here: str) -> Iterator[SurveyedGpu]:
    index = 0
    for model in here.split(", ") if here not in ("", "none") else ():
        count, _, device = model.partition("x ") if model[1:3] == "x " else ("1", "", model)
        name, pci_device_id, gib = device.split("/")
        for _ in range(int(count)):
            yield played(index, name, pci_device_id, float(gib))
            index += 1


def test_every_gpu_of_the_packaged_file_is_detected_in_the_table() -> None:
    rows = TABLE.read_text(encoding="utf-8").splitlines()
    detected = {row.rpartition(" | ")[2] for row in rows if row.startswith("auto")}
    assert detected >= {name for name, sku in thresholds().thresholds.skus.items() if sku.detect.device == "cuda"}


def test_the_detect_that_is_suggested_for_an_unknown_gpu_matches_it(tmp_path: Path) -> None:
    odd = played(0, "NVIDIA H200 (a+b) [x] 'y' 1.5", "2335", 140.4)
    with pytest.raises(SkuError) as refused:
        resolve_sku(thresholds(), "auto", [odd])
    detect = str(refused.value).split("`detect: ")[1].split("`")[0]
    assert yaml.safe_load(detect)["pci_device_ids"] == ["2335"]
    extended = written(tmp_path / "extended.yaml", f"{MORE}  new: {{description: added, detect: {detect}}}\n")
    assert resolve_sku(extended, "auto", [odd]) == "new"
