"""YAML in the documents is taken by what reads thresholds files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from pytest_ddpscale.thresholds.form import CheckRow, Row
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.docs_pages.commands import Block, blocks, documents

# Rows of a metric that a reader adds as the page says.
INVENTED = ("p99_step_time",)
HEAD = "schema_version: 2\nextends: packaged\n"
YAML = [block for path in documents() for block in blocks(path) if block.language == "yaml"]


def problems_of(text: str, folder: Path) -> list[str]:
    """What is wrong with a file, or with rows alone. A part of a file gets its head."""
    if isinstance(yaml.safe_load(text), list):
        return _problems_of_rows(text)
    path = folder / "site.yaml"
    path.write_text(text if "schema_version" in text else HEAD + text, encoding="utf-8")
    return [str(problem) for problem in load_thresholds(path).problems]


def _problems_of_rows(text: str) -> list[str]:
    found = []
    for row in yaml.safe_load(text):
        try:
            TypeAdapter[CheckRow | Row](CheckRow if "check" in row else Row).validate_python(row)
        except ValueError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("block", YAML, ids=lambda block: block.where)
def test_a_block_of_thresholds_loads(block: Block, tmp_path: Path) -> None:
    if any(name in block.text for name in INVENTED):
        return
    assert problems_of(block.text, tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "- {throughput_per_gpus: {1: 5}, of: resnet50-fp16, provisional: why}",
        "skus: {h200: {requirement: []}}",
        "skus: {h200: {waivers: [{check: nvlinks, who: A, why: B, until: 2030-01-01}]}}",
    ],
)
def test_a_mistake_is_found(text: str, tmp_path: Path) -> None:
    assert problems_of(text, tmp_path)
