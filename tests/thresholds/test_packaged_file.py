from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.thresholds.cases import cases_for
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.model import Requirement, Sku
from pytest_ddpscale.thresholds.reading import read_document
from pytest_ddpscale.thresholds.site_file import json_schema_text
from pytest_ddpscale.thresholds.waiver import today
from tests.builders.clusters import WHOLE_RUNS_ONLY
from tests.builders.clusters import thresholds as packaged_thresholds
from tests.rows import rows

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "thresholds.yaml").read_text(encoding="utf-8")
LONGEST_LINE = 110
FILE = packaged_thresholds()
ONE_NODE = Layout(1, 8)
SKUS = FILE.thresholds.skus
ALL_GPUS = {name: sku for name, sku in SKUS.items() if sku.detect.device == "cuda"}
GPUS = {name: sku for name, sku in ALL_GPUS.items() if name not in WHOLE_RUNS_ONLY}
# On training; on probes and nodes see test_packaged_probes.py.
REQUIREMENTS = [(name, r) for name, sku in GPUS.items() for r in sku.requirements if r.workload]
PUBLISHERS = r"^((willgpaik|lambdal)/\S+@[0-9a-f]{7,}|pytorch/pytorch|Oneflow-Inc/DLPerf|an article)\b"
# Forward and backward pass, for one image of 224 x 224; a test below has torch count them.
RESNET152_FLOPS = 68.85e9
PUBLISHED_RUNS = ROOT / "tests" / "data" / "paik_a100_80gb"


def requirements(sku: str, **fields: Any) -> list[Requirement]:
    return [r for r in SKUS[sku].requirements if all(getattr(r, field) == value for field, value in fields.items())]


def test_no_pci_device_id_belongs_to_two_skus() -> None:
    ids = [i for sku in ALL_GPUS.values() for i in sku.detect.pci_device_ids]
    assert len(ids) == len(set(ids))


def test_the_v100_has_no_bf16() -> None:
    for name in ("v100-sxm2-16gb", "v100-sxm2-32gb"):
        assert "bf16" not in {w.precision for w in SKUS[name].workloads.values()}
        peak = SKUS[name].peak
        assert peak is not None
        assert peak.bf16_tflops is None


@rows("sku", GPUS.values(), ids=GPUS)
def test_every_gpu_can_be_asked_for_all_models_in_its_precisions(sku: Sku) -> None:
    models = {"resnet50", "resnet101", "resnet152", "vit_b_16"}
    for precision in {w.precision for w in sku.workloads.values()} - {"fp32"}:
        assert {w.family.model for w in sku.workloads.values() if w.precision == precision} == models
    peak = sku.peak
    assert peak is not None
    assert peak.published
    assert None not in (peak.fp16_tflops, peak.memory_bandwidth_gbps, peak.link, peak.link_bandwidth_gbps)


@rows("sku", GPUS.values(), ids=GPUS)
def test_workloads_are_trained_as_the_published_runs_were(sku: Sku) -> None:
    for workload in sku.workloads.values():
        contiguous = workload.family.model == "vit_b_16" or "nchw" in workload.name or workload.precision == "fp32"
        assert workload.family.memory_format == ("contiguous" if contiguous else "channels_last")
        short = workload.family.model.replace("_32x4d", "").replace("_32x8d", "").replace("_", "-")
        model = "-".join([short, *(["nchw"] if "nchw" in workload.name else [])])
        assert workload.name == f"{model}-{workload.precision}"
        assert (workload.family.image_size, workload.family.num_classes, workload.compile) == (224, 1000, False)


@rows("sku", GPUS.values(), ids=GPUS)
def test_one_gpu_alone_can_hold_the_global_batch(sku: Sku) -> None:
    for workload in sku.workloads.values():
        assert (workload.global_batch_size or 1) <= workload.batch_size


@rows("sku", GPUS.values(), ids=GPUS)
def test_every_gpu_is_asked_for_weak_scaling_on_2_4_and_8_and_for_each_kind_of_metric(sku: Sku) -> None:
    asked = {(r.metric, ONE_NODE.ranks_in(r.world_size)) for r in sku.requirements if r.workload == "vit-b-16-fp16"}
    weak = {("weak_scaling_efficiency", n) for n in (2, 4, 8)}
    assert asked >= weak | {
        ("throughput_per_gpu", 1), ("strong_scaling_speedup", 8), ("strong_scaling_efficiency", 8),
        ("device_utilization", 8), ("peak_memory_gib", 8),
    }  # fmt: skip


@rows("sku", GPUS.values(), ids=GPUS)
def test_every_gpu_is_asked_where_the_time_of_one_workload_goes_and_of_no_other(sku: Sku) -> None:
    """Arms without communication cost time: one workload has them."""
    metrics = {"exposed_communication", "ddp_overhead", "step_time_p95", "step_time_cv",
               "model_flops_utilization", "memory_spread", "replica_agreement"}  # fmt: skip
    ours = [
        r for r in sku.requirements if r.metric in metrics and not (r.source.reference or "").startswith("pytorch/")
    ]
    asked = [(r.metric, r.workload, ONE_NODE.ranks_in(r.world_size)) for r in ours]
    assert sorted(asked) == sorted((m, "resnet152-fp16", 1 if m == "ddp_overhead" else 8) for m in metrics)


def test_replicas_have_to_agree_on_every_sku_because_ddp_keeps_them_equal() -> None:
    found = [(name, r) for name, sku in SKUS.items() for r in sku.requirements if r.metric == "replica_agreement"]
    assert {name for name, _ in found} == {*ALL_GPUS, "cpu"}
    for _, requirement in found:
        assert (requirement.bound, requirement.severity, requirement.provisional) == (1, "fail", False)
        assert "arithmetic" in (requirement.source.reasoning or "")


@rows("sku", GPUS.values(), ids=GPUS)
def test_no_more_communication_may_be_exposed_than_the_efficiency_bound_leaves(sku: Sku) -> None:
    def bound(metric: str) -> float:
        asked = [r for r in sku.requirements if (r.metric, r.workload) == (metric, "resnet152-fp16")]
        return next(r.bound for r in asked if ONE_NODE.ranks_in(r.world_size) == 8)

    assert bound("exposed_communication") == pytest.approx(1 - bound("weak_scaling_efficiency"), abs=0.0004)


@rows("name", [name for name, sku in GPUS.items() if sku.peak])
def test_bounds_that_follow_from_others_do(name: str) -> None:
    """A step of p95 and a share of the peak that the bounds for throughput and efficiency allow."""
    sku = SKUS[name]
    workload, peak = sku.workloads["resnet152-fp16"], sku.peak
    assert peak is not None
    assert peak.fp16_tflops is not None

    def only(metric: str, world_size: int) -> Requirement:
        lines = requirements(name, metric=metric, workload=workload.name)
        [found] = [line for line in lines if ONE_NODE.ranks_in(line.world_size) == world_size]
        return found

    samples_per_s = only("throughput_per_gpu", 1).bound * only("weak_scaling_efficiency", 8).bound
    p95, utilization = only("step_time_p95", 8), only("model_flops_utilization", 8)
    if p95.provisional:
        assert p95.bound >= 1000 * workload.batch_size / samples_per_s, "or the bound for throughput would be idle"
        if "from the bounds of this SKU" in (p95.source.reasoning or ""):
            assert p95.bound == pytest.approx(1.02e3 * workload.batch_size / samples_per_s, abs=1)
    if utilization.provisional:
        assert utilization.bound == pytest.approx(
            samples_per_s * RESNET152_FLOPS / (peak.fp16_tflops * 1e12), abs=0.001
        )


def test_the_floating_point_operations_in_the_reasons_are_those_that_torch_counts() -> None:
    import torch
    import torchvision.models
    from torch.utils.flop_counter import FlopCounterMode

    model = torchvision.models.resnet152().to("meta")
    with FlopCounterMode(display=False) as counter:
        logits = model(torch.empty(2, 3, 224, 224, device="meta"))
        torch.nn.functional.cross_entropy(logits, torch.empty(2, dtype=torch.long, device="meta")).backward()
    assert counter.get_total_flops() / 2 == pytest.approx(RESNET152_FLOPS, rel=0.0001)


def test_every_number_says_where_it_comes_from() -> None:
    for sku, requirement in REQUIREMENTS:
        source = requirement.source
        if requirement.provisional:
            assert source.reasoning, (sku, requirement)
            assert source.measured is None, (sku, requirement, "a measured value has a reference")
            by_peers = requirement.definition.reads_own_pace or requirement.definition.compares_places
            assert requirement.severity == ("fail" if by_peers else "warn"), (sku, requirement)
        elif requirement.metric != "replica_agreement":
            assert source.measured is not None, (sku, requirement)
            assert source.margin_pct or requirement.severity == "warn", (sku, requirement, "no margin, so no rejection")
            assert re.search(PUBLISHERS, source.reference or ""), (sku, requirement)


@rows(
    "sku", ["v100-sxm2-32gb", "a100-sxm4-40gb", "rtx-pro-6000-server", "rtx-pro-6000-workstation", "rtx-pro-6000-max-q"]
)
def test_a_sku_that_nobody_published_training_of_is_provisional_throughout(sku: str) -> None:
    published = [r.metric for name, r in REQUIREMENTS if name == sku and not r.provisional]
    assert published == ["replica_agreement"], "arithmetic, and no figure"


def test_a_published_figure_is_cited_by_the_sku_it_was_measured_on_and_no_other() -> None:
    cited_by: dict[str, set[str]] = {}
    for sku, requirement in REQUIREMENTS:
        if requirement.source.reference and requirement.metric != "replica_agreement":
            cited_by.setdefault(requirement.source.reference, set()).add(sku)
    assert {reference: skus for reference, skus in cited_by.items() if len(skus) > 1} == {}


def test_host_bound_strong_scaling_only_warns() -> None:
    strong = [r for _, r in REQUIREMENTS if r.workload.startswith("resnet152") and r.metric.startswith("strong")]
    assert strong
    assert {r.severity for r in strong} == {"warn"}
    assert all("host-bound" in (r.source.reasoning or "") for r in strong)


@rows(
    ("sku", "workload", "weak_2_4_8", "throughput", "peak_gib"),
    [
        ("v100-sxm2-16gb", "resnet152-fp16", (95.6, 95.8, 95.4), 503.2, 11.7),
        ("v100-sxm2-16gb", "vit-b-16-fp16", (96.5, 96.5, 95.9), 381.2, 9.9),
        ("a100-sxm4-80gb", "resnet152-fp16", (98.9, 98.1, 97.4), 1189.5, 44.1),
        ("a100-sxm4-80gb", "resnet152-bf16", (99.3, 98.9, 98.5), 1012.2, 44.1),
        ("a100-sxm4-80gb", "vit-b-16-fp16", (98.9, 98.6, 98.0), 1029.9, 66.8),
        ("a100-sxm4-80gb", "vit-b-16-bf16", (99.6, 99.3, 98.9), 1033.3, 66.8),
    ],
)
def test_the_published_table_stands_behind_the_bounds_and_meets_them(
    sku: str, workload: str, weak_2_4_8: tuple[float, float, float], throughput: float, peak_gib: float
) -> None:
    for world_size, per_cent in zip((2, 4, 8), weak_2_4_8, strict=True):
        [weak] = requirements(sku, metric="weak_scaling_efficiency", workload=workload, world_size=world_size)
        assert weak.source.measured == pytest.approx(per_cent / 100, abs=0.0006)
        assert per_cent / 100 - 0.02 < weak.bound < per_cent / 100
        assert weak.severity == "fail"
    [alone] = requirements(sku, metric="throughput_per_gpu", workload=workload, world_size=1)
    assert alone.source.measured == throughput
    assert 0.94 * throughput < alone.bound < throughput
    [memory] = requirements(sku, metric="peak_memory_gib", workload=workload)
    assert memory.source.measured == pytest.approx(peak_gib, abs=0.06)
    assert peak_gib < memory.bound < 1.06 * peak_gib


@rows(("workload", "ratio"), [("resnet152-fp16", 2.37), ("vit-b-16-fp16", 2.70)])
def test_an_a100_is_as_many_times_a_v100_as_published(workload: str, ratio: float) -> None:
    [required] = requirements("a100-sxm4-80gb", metric="generation_ratio", workload=workload)
    assert (required.versus, required.source.measured, required.severity) == ("v100-sxm2-16gb", ratio, "fail")
    [alone] = requirements("a100-sxm4-80gb", metric="throughput_per_gpu", workload=workload, world_size=1)
    reference, _ = FILE.thresholds.reference_throughput(required)
    assert alone.source.measured is not None
    assert alone.source.measured / reference == pytest.approx(ratio, abs=0.01)


@rows(("sku", "versus", "ratio"), [("h100", "a100-sxm4-80gb", 1.76), ("h200", "h100", 1.10), ("b200", "h200", 1.00)])
def test_newer_generations_are_compared_by_the_one_workload_published_for_both(
    sku: str, versus: str, ratio: float
) -> None:
    [required] = requirements(sku, metric="generation_ratio", provisional=False)
    assert (required.workload, required.versus, required.source.measured) == ("resnet50-nchw-fp16", versus, ratio)
    [alone] = requirements(sku, metric="throughput_per_gpu", workload="resnet50-nchw-fp16", world_size=1)
    reference, _ = FILE.thresholds.reference_throughput(required)
    assert alone.source.measured is not None
    assert alone.source.measured / reference == pytest.approx(ratio, abs=0.01)


def test_the_contested_b200_ratio_only_warns() -> None:
    [required] = requirements("b200", metric="generation_ratio", provisional=False)
    assert required.severity == "warn"
    assert "contested" in (required.source.reasoning or "")


def published(scaling: str, requirement: Requirement, world_size: int) -> dict[str, Any]:
    workload = SKUS["a100-sxm4-80gb"].workloads[requirement.workload]
    [path] = PUBLISHED_RUNS.glob(f"{world_size}gpu_{scaling}_{workload.family.model}_{workload.precision}_*.json")
    run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    batch_size = workload.batch_size if scaling == "weak" else (workload.global_batch_size or 0) // world_size
    assert run["batch_size_per_gpu"] == batch_size
    assert run["channels_last"] == (workload.family.memory_format == "channels_last")
    return run


def value_in_raw_files(requirement: Requirement) -> float:
    n = requirement.world_size
    assert isinstance(n, int)
    if requirement.metric.startswith("strong"):
        alone, many = published("strong", requirement, 1), published("strong", requirement, n)
        speedup = alone["mean_step_sec"] / many["mean_step_sec"]
        return float(speedup if requirement.metric == "strong_scaling_speedup" else speedup / n)
    run = published("weak", requirement, n)
    throughput = run["images_per_sec_per_gpu"]
    if requirement.metric == "weak_scaling_efficiency":
        return float(throughput / published("weak", requirement, 1)["images_per_sec_per_gpu"])
    if requirement.metric == "generation_ratio":
        return float(throughput / FILE.thresholds.reference_throughput(requirement)[0])
    if requirement.metric == "device_utilization":
        busy_pct = [float(rank["gpu_sampling"]["gpu_activity_pct"]["mean"]) for rank in run["per_rank"]]
        return min(busy_pct) / 100
    ranks = run["per_rank"]
    memory_gib = [rank["peak_mem_gb"] for rank in ranks]
    values = {
        "throughput_per_gpu": throughput,
        "model_flops_utilization": throughput * RESNET152_FLOPS / 312e12,
        "step_time_p95": 1000 * max(rank["p95_step_sec"] for rank in ranks),
        "step_time_cv": max(rank["stdev_step_sec"] / rank["mean_step_sec"] for rank in ranks),
        "images_per_joule": min(rank["images_per_sec"] / rank["gpu_sampling"]["power_w"]["mean"] for rank in ranks),
        "peak_memory_gib": max(memory_gib),
        "memory_spread": (max(memory_gib) - min(memory_gib)) / max(memory_gib),
    }
    return float(values[requirement.metric])


@rows(
    "requirement",
    [
        r
        for r in requirements("a100-sxm4-80gb", provisional=False)
        if r.workload and "nchw" not in r.workload and r.metric != "replica_agreement" and r.world_size != "8 nodes"
    ],
    ids=lambda r: f"{r.metric}-{r.workload}-{r.world_size}gpu",
)
def test_a100_figures_are_those_of_the_raw_files_and_meet_their_bounds(requirement: Requirement) -> None:
    value = value_in_raw_files(requirement)
    assert requirement.source.measured == pytest.approx(value, rel=0.004)
    assert value <= requirement.bound if requirement.definition.upper_bound else value >= requirement.bound


def test_the_file_is_valid_by_the_schema_that_its_first_line_names(tmp_path: Path) -> None:
    assert TEXT.startswith("# yaml-language-server: $schema=thresholds.schema.json\n")
    schema = json.loads(json_schema_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    document = as_json(TEXT, tmp_path)
    assert [error.message for error in validator.iter_errors(document)] == []
    document["skus"] = {"b200": document["skus"]["b200"] | {"requirements": [{"publisht": "me"}]}}
    assert {error.path[1] for error in validator.iter_errors(document)} == {"b200"}
    signed = "who: A. Name, why: it is slow"
    overlay = (
        f"{{schema_version: 2, extends: packaged, skus: {{b200: {{change: [{{no_regression: any, severity: off, "
        f"{signed}}}, {{busbw_gbps: [8, node], probe: all-reduce-8gib, bound: {{8: 3, node: 4}}, {signed}}}]}}}}}}"
    )
    assert [error.message for error in validator.iter_errors(as_json(overlay, tmp_path))] == []


def as_json(text: str, folder: Path) -> Any:
    """With text as keys, as editors check it."""
    (folder / "read.yaml").write_text(text, encoding="utf-8")
    return json.loads(json.dumps(read_document(folder / "read.yaml").data))


def test_its_lines_are_short_and_it_has_no_anchors() -> None:
    lines = TEXT.splitlines()
    assert [line for line in lines if len(line) > LONGEST_LINE] == []
    assert not [event for event in yaml.parse(TEXT) if getattr(event, "anchor", None)]


def test_what_one_gpu_is_is_said_where_its_source_wrapped_it_in_ddp() -> None:
    found = [one for sku in SKUS.values() for one in sku.requirements if one.times_one_gpu]
    wrapped = {one.source.reference or "" for one in found if one.one_gpu == "ddp"}
    assert {reference.partition("@")[0] for reference in wrapped} == {"willgpaik/pytorch-ddp-scaling-benchmark"}
    assert not [one for one in found if one.source.reference in wrapped and one.one_gpu == "alone"]


def test_every_name_is_used_and_none_means_two_things() -> None:
    document = yaml.safe_load(TEXT)
    sheets = [part for sku in document["skus"].values() for part in (sku.get("peak"), sku.get("node")) if part]
    published = {row.get("published") for row in (*rows_of(document), *sheets)}
    assert set(document["sources"]) == published - {None}
    said = [value for row in rows_of(document) for key, value in row.items() if key in ("because", "provisional")]
    assert [name for name in document["reasons"] if name not in said] == []
    used = {name for sku in document["skus"].values() for name in sku.get("families", [])}
    assert used == set(document["families"])
    trained = {name for sku in document["skus"].values() for name in sku["batch"]}
    assert trained == set(document["workloads"])
    texts = [text for kind in ("sources", "reasons") for text in document[kind].values()]
    assert len(texts) == len(set(texts))
    assert [text for text in texts if len(text) > 20 and said.count(text)] == [], "it has a name"


def rows_of(document: Any) -> list[dict[str, Any]]:
    families = [row for rows in document["families"].values() for row in rows]
    return families + [row for sku in document["skus"].values() for row in sku.get("requirements", [])]


@rows("sku", SKUS)
def test_any_sku_can_be_deleted_with_the_ratios_to_it(sku: str, tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text(TEXT.replace(section_of(sku)[1], ""), encoding="utf-8")
    compared = {name for name, entry in SKUS.items() if any(one.versus == sku for one in entry.requirements)}
    if not compared:
        assert set(load_thresholds(path).thresholds.skus) == set(SKUS) - {sku}
        return
    with pytest.raises(ThresholdsError) as raised:
        load_thresholds(path)
    problems = "\n".join(map(str, (raised.value, *raised.value.others)))
    told = re.findall(r"skus\.(\S+): versus '(\S+)' is not in this file", problems)
    assert set(told) == {(name, sku) for name in compared}
    assert len(told) == len(problems.splitlines()), "nothing else is wrong"


def test_all_skus_can_be_copied(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    copies = [re.sub(r"\n    aliases: .*", "", section.replace(head, f"  copy-of-{head.strip()}\n", 1))
              for head, section in map(section_of, SKUS)]  # fmt: skip
    path.write_text("\n\n".join([TEXT.rstrip(), *copies]), encoding="utf-8")
    both = load_thresholds(path)
    for sku in SKUS:
        mine, theirs = both.thresholds.skus[f"copy-of-{sku}"], both.thresholds.skus[sku]
        assert [replace(one, where="") for one in mine.requirements] == [
            replace(one, where="") for one in theirs.requirements
        ]


def section_of(sku: str) -> tuple[str, str]:
    """The first line of a SKU, and all of its section."""
    found = re.search(rf"^  {re.escape(sku)}:\n((    .*)?\n)+", TEXT, re.MULTILINE)
    assert found is not None
    return f"  {sku}:\n", found[0]


def test_names_of_cases_are_unique_within_a_sku_and_need_no_quoting_by_pytest() -> None:
    for sku in SKUS:
        cases = cases_for(FILE, sku, ONE_NODE)
        assert len({case.id for case in cases}) == len(cases), sku
        assert all(case.name.isascii() and not set(case.name) & set(" []:/'\"") for case in cases)


def test_no_bound_of_one_node_is_asked_across_the_network() -> None:
    for sku, said in SKUS.items():
        assert said.beyond_node == ("dropped" if sku == "cpu" else "missing")
        for case in cases_for(FILE, sku, Layout(2, 4)):
            size = case.requirement.world_size
            assert bool(case.missing) == (isinstance(size, int) and size > 4), (sku, case.id)


def test_nobody_waives_anything_for_all_sites_and_the_how_to_shows_how_a_site_does(tmp_path: Path) -> None:
    assert [one for sku in SKUS.values() for one in sku.requirements if one.waiver is not None] == []
    how_to = (ROOT / "docs" / "how-to" / "waiver.md").read_text(encoding="utf-8")
    example = how_to.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "site.yaml").write_text(re.sub(r"\d{4}-\d\d-\d\d", str(today()), example), encoding="utf-8")
    requirements = load_thresholds(tmp_path / "site.yaml").thresholds.skus["b200"].requirements
    waived = [(one.subject, one.severity) for one in requirements if one.waiver is not None]
    assert sorted(waived) == [("matmul-bf16", "fail"), ("nvlink", "fail"), ("resnet152-fp16", "fail")]
