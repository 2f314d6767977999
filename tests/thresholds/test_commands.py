"""`ddpscale init` and `ddpscale thresholds show` and `check`, as a person types them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.run.strict_json import parse_strict_json
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.site_file import json_schema_text
from tests.builders.clusters import thresholds
from tests.rows import rows
from tests.thresholds.sites import write_site

Captured = pytest.CaptureFixture[str]
TWO_WRONG = "skus:\n  h100-pcie: {beyond_node: maybe}\n  v100-sxm2-32gb: {node: {gpus: -1}}\n"


@pytest.fixture(autouse=True)
def _an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DDPSCALE_THRESHOLDS", raising=False)


def test_init_for_a_sku_makes_a_site_that_changes_nothing_yet(tmp_path: Path, capsys: Captured) -> None:
    assert main(["init", "--gpu-sku", "B200", "site"]) == 0
    said = capsys.readouterr().out
    assert "pytest --gpu-sku=b200" in said
    assert f"extends {thresholds().path}" in said
    site = tmp_path / "site"
    assert {path.name for path in site.iterdir()} == {
        "acceptance",
        "slurm",
        "thresholds.schema.json",
        "thresholds.yaml",
    }
    assert (site / "thresholds.schema.json").read_text(encoding="utf-8") == json_schema_text()
    assert len((site / "thresholds.yaml").read_text().splitlines()) <= 40
    assert load_thresholds(site / "thresholds.yaml").thresholds == thresholds().thresholds
    assert main(["thresholds", "check", "site/thresholds.yaml"]) == 0
    said = capsys.readouterr().out
    assert "changes nothing" in said
    assert said.endswith("site/thresholds.yaml: valid, 17 SKUs\n")


@rows(("sku", "words"), [("a100-40gb", "such as a100-sxm4-40gb"), ("cpu-reference", "published reference")])
def test_init_for_what_cannot_be_measured_makes_nothing(sku: str, words: str, tmp_path: Path, capsys: Captured) -> None:
    assert main(["init", "--gpu-sku", sku, "site"]) == 4
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_check_says_what_a_site_changes_and_names_both_files(tmp_path: Path, capsys: Captured) -> None:
    path = write_site(tmp_path)
    assert main(["thresholds", "check", str(path)]) == 0
    said = capsys.readouterr()
    assert said.err == "", "no remark"
    lines = said.out.splitlines()
    assert f"{path} sha256 {load_thresholds(path).sha256}" in lines
    assert f"extends {thresholds().path} sha256 {thresholds().sha256}" in lines
    kinds = (
        "2 bounds raised", "1 requirement added", "1 requirement removed", "1 severity changed",
        "1 one-GPU baseline changed",
    )  # fmt: skip
    at = lines.index(f"a100-sxm4-80gb: {', '.join(kinds)}")
    told = lines[at + 1 : at + 7]
    weak = "weak_scaling_efficiency of resnet152-fp16 at world size 8: ≥ 0.959882, of ddp@1 → ≥ 0.9751"
    assert f"  {path}:7: {weak}" in told
    gone = "strong_scaling_efficiency of vit-b-16-fp16 at world size 8: ≥ 0.779, of ddp@1 → not required (weaker)"
    assert f"  removed: {gone}" in told
    idle = "throughput_per_gpu of resnet50-fp16 at world size 1 is the same in the file below"
    assert f"  {path}:10: has no effect: {idle}" in told
    assert lines[at + 7] == "16 SKUs as in the file below"


def test_remarks_stop_nothing(tmp_path: Path, capsys: Captured) -> None:
    row = "{throughput_per_gpu: {1: 10}, of: resnet152-fp16, published: site, bound: 0.9, because: generous}"
    path = write_site(tmp_path, f"skus: {{a100-sxm4-80gb: {{requirements: [{row}]}}}}\n")
    assert main(["thresholds", "check", str(path)]) == 0
    assert f"ddpscale: remark: {path}:4: the bound 0.9 of throughput_per_gpu of" in capsys.readouterr().err


def test_check_tells_every_problem(tmp_path: Path, capsys: Captured) -> None:
    path = write_site(tmp_path, TWO_WRONG)
    assert main(["thresholds", "check", str(path)]) == 4
    said = capsys.readouterr().err
    assert f"{path}:5: skus.h100-pcie.beyond_node" in said
    assert f"{path}:6: skus.v100-sxm2-32gb.node.gpus" in said


def test_show_reads_the_file_that_pytest_would(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def file_of(*arguments: str) -> str:
        assert main(["thresholds", "show", "--format=json", *arguments]) == 0
        told = parse_strict_json(capsys.readouterr().out)
        assert isinstance(told, dict)
        return str(told["thresholds"]["path"])

    assert file_of() == str(thresholds().path)
    write_site(tmp_path)
    assert file_of("--gpu-sku=cpu") == "thresholds.yaml"
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("DDPSCALE_THRESHOLDS", str(write_site(other)))
    assert file_of() == str(other / "thresholds.yaml")
    assert file_of("--thresholds", str(thresholds().path)) == str(thresholds().path)


@rows("form", ["text", "json"])
def test_show_answers_in_each_format(form: str, capsys: Captured) -> None:
    assert main(["thresholds", "show", "--gpu-sku=A100", "--metric=weak_scaling", f"--format={form}"]) == 0
    said = capsys.readouterr().out
    assert "0.9745" in said
    assert "strong_scaling" not in said
    assert main(["thresholds", "show", f"--format={form}"]) == 0
    assert "rtx-pro-6000-max-q" in capsys.readouterr().out.replace("\\", "")


@rows(
    ("arguments", "words"),
    [
        (("--gpu-sku=v100-64gb",), "has no SKU 'v100-64gb'"),
        (("--gpu-sku=v100", "--metric=velocity"), "there is no metric 'velocity'"),
        (("--metric=weak_scaling",), "--gpu-sku"),
        (("--thresholds=/nowhere.yaml",), "/nowhere.yaml"),
    ],
)
def test_mistakes_are_sentences(arguments: tuple[str, ...], words: str, capsys: Captured) -> None:
    assert main(["thresholds", "show", *arguments]) == 4
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""
