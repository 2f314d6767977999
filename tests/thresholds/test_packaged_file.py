from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.thresholds.cases import cases_for
from pytest_ddpscale.thresholds.changes import bound_text
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.model import Requirement, Sku
from pytest_ddpscale.thresholds.reading import read_document
from pytest_ddpscale.thresholds.site_file import json_schema_text
from pytest_ddpscale.thresholds.waiver import today
from tests.builders.clusters import WHOLE_RUNS_ONLY
from tests.builders.clusters import thresholds as packaged_thresholds
from tests.rows import rows
from tests.tables import assert_approved, each_block

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
PUBLISHERS = (
    r"^((willgpaik|lambdal|mlcommons)/\S+@[0-9a-f]{7,}|pytorch/pytorch|Oneflow-Inc/DLPerf|an article|this project"
    r"|Azure/azurehpc-health-checks|Azure/AI-benchmarking-guide|stas00/ml-engineering|zzc0721/\S+"
    r"|li-plus/playground|voipmonitor/rtx6kpro|NVIDIA/nccl#|NVIDIA/nccl-tests issues)\b"
)
# Sent in by users: enough to look at, not to reject a machine.
CROWD = ("zzc0721/", "voipmonitor/", "li-plus/")
TABLE = Path(__file__).with_name("packaged.txt")
# Forward and backward pass, for one image of 224 x 224; a test below has torch count them.
RESNET152_FLOPS = 68.85e9
PUBLISHED_RUNS = ROOT / "tests" / "data" / "paik_a100_80gb"


def requirements(sku: str, **fields: Any) -> list[Requirement]:
    return [r for r in SKUS[sku].requirements if all(getattr(r, field) == value for field, value in fields.items())]


@each_block(TABLE)
def test_what_the_packaged_file_asks(block: str) -> None:
    assert_approved(TABLE, block, lambda name: _told(SKUS[name]))


def _told(sku: Sku) -> Iterator[str]:
    for part in (sku.detect, sku.peak, sku.node):
        yield f"{type(part).__name__}: {part}"
    yield f"beyond_node: {sku.beyond_node}, peers: {sku.peers}"
    for trained in sku.workloads.values():
        sizes = f"{trained.batch_size} {trained.global_batch_size}"
        yield f"{trained.name}: {trained.family.model} {trained.family.form} {trained.precision} {sizes}"
    for requirement in sku.requirements:
        if requirement.check:  # test_packaged_probes.py says which, by the catalogue
            continue
        source, versus = requirement.source, f" vs {requirement.versus}" if requirement.versus else ""
        at = f"{requirement.world_size}{' spread' * (requirement.placement == 'spread')}{versus}"
        value = "" if source.measured is None else f", of {source.measured:g} − {source.margin_pct} %"
        told = " ".join((source.reference or source.reasoning or "").split())
        yield f"{requirement.metric} {requirement.subject} {at}: {bound_text(requirement)}{value}, {told[:60].rstrip()}"


@rows("name", SKUS)
def test_every_number_says_where_it_comes_from(name: str) -> None:
    """What is published rejects, and what is not only warns, but what peers are compared by."""
    for requirement in SKUS[name].requirements:
        source, by_peers = (
            requirement.source,
            requirement.definition.reads_own_pace or requirement.definition.compares_places,
        )
        if requirement.check or requirement.definition.only_bound is not None:
            assert source.reasoning, requirement
        elif requirement.provisional:
            assert source.reasoning, requirement
            assert source.measured is None, f"a measured value has a reference: {requirement}"
            assert requirement.severity == ("fail" if by_peers else "warn"), requirement
        else:
            published = source.reference or ""
            assert source.measured is not None, requirement
            assert re.search(PUBLISHERS, published), requirement
            assert (
                source.margin_pct or requirement.severity == "warn" or source.reasoning or "pass limits" in published
            ), requirement
            assert requirement.severity == "warn" or not published.startswith(CROWD), requirement


def test_a_published_figure_is_cited_by_the_sku_it_was_measured_on_and_no_other() -> None:
    cited_by: dict[str, set[str]] = {}
    for name, sku in GPUS.items():
        for requirement in sku.requirements:
            if requirement.source.reference:
                cited_by.setdefault(requirement.source.reference, set()).add(name)
    several = {re.split("[,:]", reference)[0]: skus for reference, skus in cited_by.items() if len(skus) > 1}
    assert several == {
        "NVIDIA/nccl-tests issues": {"h100", "h200", "b200"},  # a port of the network, whatever GPU is behind it
        "stas00/ml-engineering@744d01e": {"a100-sxm4-80gb", "h100"},
        "stas00/ml-engineering@082816f": {"h200", "b200"},
        "zzc0721/torch-performance-test-data": {"rtx-pro-6000-server", "rtx-pro-6000-workstation"},
        "mlcommons/training_results_v5.1@441d65f": {"b200", "rtx-pro-6000-server"},
        "voipmonitor/rtx6kpro@29f3863": {one for one in GPUS if one.startswith("rtx-pro-6000")},
    }, "they name each of them"


def test_the_smallest_fault_is_known_of_all_that_rejects_for_its_speed() -> None:
    rejecting = [
        r for sku in SKUS.values() for r in sku.requirements if r.severity == "fail" and r.definition.tells_speed
    ]
    assert [str(r) for r in rejecting if r.smallest_fault is None] == []


def test_no_pci_device_id_belongs_to_two_skus() -> None:
    ids = [i for sku in ALL_GPUS.values() for i in sku.detect.pci_device_ids]
    assert len(ids) == len(set(ids))


@rows("sku", GPUS.values(), ids=GPUS)
def test_one_gpu_alone_can_hold_the_global_batch(sku: Sku) -> None:
    for workload in sku.workloads.values():
        assert (workload.global_batch_size or 1) <= workload.batch_size


def test_the_floating_point_operations_in_the_reasons_are_those_that_torch_counts() -> None:
    import torch
    import torchvision.models
    from torch.utils.flop_counter import FlopCounterMode

    model = torchvision.models.resnet152().to("meta")
    with FlopCounterMode(display=False) as counter:
        logits = model(torch.empty(2, 3, 224, 224, device="meta"))
        torch.nn.functional.cross_entropy(logits, torch.empty(2, dtype=torch.long, device="meta")).backward()
    assert counter.get_total_flops() / 2 == pytest.approx(RESNET152_FLOPS, rel=0.0001)


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
    compared = {
        name for name, entry in SKUS.items() if any(requirement.versus == sku for requirement in entry.requirements)
    }
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
        assert [replace(requirement, where="") for requirement in mine.requirements] == [
            replace(requirement, where="") for requirement in theirs.requirements
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


def test_nobody_waives_anything_for_all_sites_and_the_how_to_shows_how_a_site_does(tmp_path: Path) -> None:
    assert [
        requirement for sku in SKUS.values() for requirement in sku.requirements if requirement.waiver is not None
    ] == []
    how_to = (ROOT / "docs" / "how-to" / "waiver.md").read_text(encoding="utf-8")
    example = how_to.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "site.yaml").write_text(re.sub(r"\d{4}-\d\d-\d\d", str(today()), example), encoding="utf-8")
    requirements = load_thresholds(tmp_path / "site.yaml").thresholds.skus["b200"].requirements
    waived = [
        (requirement.subject, requirement.severity) for requirement in requirements if requirement.waiver is not None
    ]
    assert sorted(waived) == [("matmul-bf16", "fail"), ("nvlink", "fail"), ("resnet152-fp16", "fail")]
