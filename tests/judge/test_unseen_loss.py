"""Where no bound sees a loss of training speed that all devices share, the report says how large one may be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.session.sources import Site, Subject
from pytest_ddpscale.settings import Settings
from pytest_ddpscale.thresholds.cases import AnyCase
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

NODE = Layout(1, 8)
NOTHING_REJECTS = (
    "no published training speed of this GPU: a loss of all devices alike is not rejected in training, whatever its "
    "size; calibrate (`ddpscale calibrate`)"
)
UP_TO_44 = (
    "no published training speed of this GPU: a loss of all devices alike up to 44 % is not seen in training; "
    "calibrate (`ddpscale calibrate`)"
)
TRAINED = "resnet50-nchw-fp16"


def subject(tmp_path: Path, sku: str, extending: str = "") -> Subject:
    """The packaged thresholds, or a site's file that extends them by these lines of the SKU."""
    path = packaged("thresholds.yaml")
    if extending:
        path = tmp_path / "site.yaml"
        head = "schema_version: 2\nextends: packaged\nsources: {our-runs: 'our 40 nodes'}\n"
        path.write_text(f"{head}skus:\n  {sku}:\n    {extending}\n", encoding="utf-8")
    return Subject(Site(Settings(), tmp_path, tmp_path), load_thresholds(path), sku)


def remark(of: Subject, *, only: Sequence[str] = ()) -> str:
    """Of a run on eight GPUs, all requirements of the SKU or only those on some metrics."""
    cases = of.cases(NODE)
    selected: list[AnyCase] = [one for one in cases if not only or one.requirement.metric in only]
    assert selected
    return of.unseen_loss(cases, selected)


@pytest.mark.parametrize("sku", ["v100-sxm2-16gb", "a100-sxm4-80gb", "a100-pcie-80gb", "h100", "h200", "a6000"])
def test_a_published_speed_of_the_gpu_itself_sees_a_common_loss(tmp_path: Path, sku: str) -> None:
    assert remark(subject(tmp_path, sku)) == ""


def test_a_published_speed_by_older_software_sees_no_loss_as_small(tmp_path: Path) -> None:
    said = remark(subject(tmp_path, "h100-pcie"))
    assert said.startswith(
        "no bound close to the published training speed of this GPU: a loss of all devices alike up "
    )
    assert " 12 % " in said


@pytest.mark.parametrize(
    "sku",
    ["v100-sxm2-32gb", "a100-sxm4-40gb", "rtx-pro-6000-server", "rtx-pro-6000-workstation", "rtx-pro-6000-max-q"],
)
def test_provisional_speeds_reject_no_loss(tmp_path: Path, sku: str) -> None:
    assert remark(subject(tmp_path, sku)) == NOTHING_REJECTS


def test_the_speed_of_another_gpu_sees_what_is_beyond_its_own_bound(tmp_path: Path) -> None:
    assert remark(subject(tmp_path, "b200")) == UP_TO_44


def test_a_cpu_needs_no_remark(tmp_path: Path) -> None:
    of = subject(tmp_path, "cpu")
    assert of.unseen_loss(of.cases(Layout(1, 2)), of.cases(Layout(1, 2))) == ""


def test_a_run_that_judges_no_training_needs_no_remark(tmp_path: Path) -> None:
    of = subject(tmp_path, "b200")
    assert remark(of, only=("node_check", "matmul_tflops")) == ""
    nightly = ("node_check", "replica_agreement", "rank_uniformity", "node_uniformity", "busbw_gbps")
    assert remark(of, only=nightly) == "", "a nightly check compares ranks and says nothing of speed"
    assert remark(of, only=("weak_scaling_efficiency",)) == UP_TO_44


OWN = f"{{throughput_per_gpu: {{1: 5100}}, of: {TRAINED}, published: our-runs, margin: "
WHY = ", because: 'a margin of its own'"  # which one above 50 % needs


@pytest.mark.parametrize("margin", ["4 %", "10 %", "20 %", "99 %"])
@pytest.mark.parametrize("sku", ["b200", "rtx-pro-6000-server"])
def test_a_bound_of_the_sites_own_ends_it_if_it_is_close_to_what_the_site_measured(
    tmp_path: Path, sku: str, margin: str
) -> None:
    """`ddpscale calibrate` writes no wider margin than 10 %; a bound that any speed meets ends nothing."""
    row = f"{{throughput_per_gpu: {{1: 1000}}, of: resnet152-fp16, published: our-runs, margin: {margin}{WHY}}}"
    of = subject(tmp_path, sku, f"requirements: [{row if sku != 'b200' else OWN + margin + WHY + '}'}]")
    least = "44 %" if sku == "b200" and margin == "99 %" else margin  # of the row on 8 GPUs
    unseen = f"up to {least} is not seen in training"
    assert (unseen in remark(of)) if margin in ("20 %", "99 %") else remark(of) == ""


@pytest.mark.parametrize(
    "extending",
    [
        f"requirements: [{{weak_scaling_efficiency: {{8: 0.99}}, of: {TRAINED}, published: our-runs, margin: 2 %}}]",
        "requirements: [{matmul_tflops: 1500, probe: matmul-bf16, published: our-runs, margin: 4 %}]",
        f"requirements: [{OWN}4 %, severity: warn}}]",
        "change: [{check: clock, severity: fail, who: A. Name, why: it has to}]",
    ],
    ids=["efficiency", "probe", "only warns", "a check"],
)
def test_what_a_site_says_of_anything_else_changes_nothing(tmp_path: Path, extending: str) -> None:
    found = remark(subject(tmp_path, "b200", extending))
    assert found.startswith("no published training speed of this GPU: ")
    assert Judgement("b200", "accepted", "", (), (found, "other")).unseen_loss == found


def test_a_provisional_speed_that_rejects_sees_what_it_is_said_to_see(tmp_path: Path) -> None:
    """It is no publication, so the remark stays, but it rejects from the loss on that its row states."""
    change = "{throughput_per_gpu: 1, of: resnet152-fp16, severity: fail, who: A. Name, why: it has to}"
    found = remark(subject(tmp_path, "rtx-pro-6000-server", f"change: [{change}]"))
    assert "a loss of all devices alike up to 19 % is not seen in training" in found
    unknown = remark(subject(tmp_path, "a100-sxm4-40gb", f"change: [{change}]"))
    assert "how large a loss of all devices alike has to be to be seen in training is not known" in unknown


@pytest.mark.parametrize(("margin", "is_remarked"), [("10 %", False), ("10.5 %", True)])
def test_a_tenth_is_the_largest_loss_without_a_remark(tmp_path: Path, margin: str, *, is_remarked: bool) -> None:
    """In a file that extends no other, so that nothing is the site's own."""
    text = packaged("thresholds.yaml").read_text(encoding="utf-8")
    for metric in ("throughput_per_gpu", "generation_ratio"):
        assert f"{metric}: 7 %" in text
        text = text.replace(f"{metric}: 7 %", f"{metric}: {margin}")
    path = tmp_path / "own.yaml"
    path.write_text(text, encoding="utf-8")
    found = remark(Subject(Site(Settings(), tmp_path, tmp_path), load_thresholds(path), "h100"))
    assert bool(found) is is_remarked
    assert found.startswith("no bound close to the published training speed of this GPU: " if is_remarked else "")
