"""Pages that are written from declarations say all that is declared, and their examples are taken by the real code."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from docs_pages.metric_pages import example_row
from docs_pages.packaged_rows import rows
from docs_pages.thresholds_pages import MAPPINGS, keys_of
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import METRICS, NODE_CHECK
from pytest_ddpscale.settings import OPTIONS, Option
from pytest_ddpscale.thresholds.form import CheckRow, Row

PACKAGED = list(rows(Path(__file__).parents[2] / "thresholds.yaml"))
KEYS = [(mapping, *key) for mapping, (model, _) in MAPPINGS.items() for key in keys_of(model)]


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_metric_has_a_page_with_all_its_parts(pages: dict[str, str], metric: Metric) -> None:
    page = pages[f"metrics/{metric.name}.md"]
    for said in (metric.title, metric.meaning, metric.formula, metric.origin, *metric.probes):
        assert said in page
    for heading in ("## In thresholds.yaml", "## What a failure looks like", "## More"):
        assert heading in page
    assert ("Less is better" in page) == metric.upper_bound
    failing = "FAIL  " in page or "WARN  " in page
    assert failing, "as a report says it"
    assert f"{metric.name}[" in page


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_the_row_of_a_metrics_page_can_be_written(metric: Metric) -> None:
    text, _ = example_row(metric, PACKAGED)
    (row,) = yaml.safe_load(text)
    if metric is NODE_CHECK:
        CheckRow.model_validate(row)
    else:
        assert metric.name in Row.model_validate(row).metrics


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.flag)
def test_an_option_has_a_page_with_its_names(pages: dict[str, str], option: Option) -> None:
    page = pages[f"options/{option.flag.removeprefix('--')}.md"]
    for name in (option.flag, option.name):
        assert name in page
    assert (option.variable in page) == option.in_environment
    if option.default:
        assert f"`{option.default}`" in page


@pytest.mark.parametrize(("mapping", "key", "schema", "required"), KEYS, ids=lambda one: str(one)[:20])
def test_a_key_of_the_thresholds_has_a_page_that_says_what_it_is(
    pages: dict[str, str], mapping: str, key: str, schema: dict[str, object], required: bool
) -> None:
    assert schema.get("description"), f"{mapping}.{key}: declare its description where the file's form is declared"
    page = pages[f"thresholds/{mapping}/{key}.md"]
    assert str(schema["description"]) in page
    assert ("| default | required |" in page) == required
    assert "any value" not in page


def test_a_file_beside_the_documents_has_links_as_they_are_on_the_site(pages: dict[str, str]) -> None:
    assert "](docs/" not in pages["index.md"]
    assert "](contributing.md)" in pages["index.md"]
