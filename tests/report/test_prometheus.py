"""metrics.prom: Prometheus reads it, and it is never greener or younger than the judgement."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace as with_fields
from prometheus_client.parser import text_string_to_metric_families

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report.prometheus import render_prometheus
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import Judgement, Verdict
from tests.builders.judgements import (
    FAILED,
    GANG,
    JUDGEMENT,
    RUN,
    WARNED,
    hostile_judgement,
    hostile_run,
    judgement_with,
)

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "docs" / "monitoring"


def samples(judgement: Judgement = JUDGEMENT, run: RunRecord = RUN) -> list[Any]:
    """As Prometheus's parser reads them."""
    families = list(text_string_to_metric_families(render_prometheus(judgement, run, [GANG])))
    assert all(family.documentation and family.type == "gauge" for family in families)
    return [sample for family in families for sample in family.samples]


def named(name: str, judgement: Judgement = JUDGEMENT, run: RunRecord = RUN) -> dict[str, float]:
    return {"/".join(one.labels.values()): one.value for one in samples(judgement, run) if one.name == name}


EVERY = [
    Verdict("m[w]", one.name, "w", 8, "fail", {"at_least": 1.0}, "passed", 1.0, (1.0, 1.0)) for one in METRICS.values()
]


def test_every_metric_has_a_bound_in_a_base_unit() -> None:
    for verdict in EVERY:
        assert sum("_bound_" in one.name for one in samples(judgement_with(verdict))) == 1


def test_hostile_text_stays_text() -> None:
    assert samples(hostile_judgement(), hostile_run())


def test_backslashes_and_quotes_come_back_as_they_were() -> None:
    found = samples(replace(JUDGEMENT, sku='a\\b"c\\n'))
    assert found[0].labels["sku"] == 'a\\b"c\\n'


def test_no_series_stands_there_twice() -> None:
    twice = judgement_with(FAILED, FAILED)
    found = [(one.name, *sorted(one.labels.items())) for one in samples(twice)]
    assert len(found) == len(set(found))


def test_a_culprit_of_what_only_warns_is_not_counted() -> None:
    warned = replace(WARNED, culprits=FAILED.culprits)
    assert set(named("ddpscale_culprit_failures", judgement_with(FAILED, warned)).values()) == {1.0}


@pytest.mark.parametrize("run", [with_fields(RUN, simulated=True), with_fields(RUN, finished_at=None)])
def test_no_node_was_judged_in_a_run_that_is_simulated_or_goes_on(run: RunRecord) -> None:
    assert not named("ddpscale_node_last_verdict_timestamp_seconds", run=run)
    assert not named("ddpscale_gpu_last_verdict_timestamp_seconds", run=run)


def test_a_node_that_was_left_out_is_no_younger() -> None:
    run = with_fields(RUN, left_out={"node7": "its ECC is off"})
    assert not named("ddpscale_node_last_verdict_timestamp_seconds", run=run)


def test_the_dashboard_and_alerts_are_about_what_is_there() -> None:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    shown = [target["expr"] for panel in panels for target in panel["targets"]]
    shown += [one["query"] for one in dashboard["templating"]["list"]]
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    told = [rule["expr"] for group in groups for rule in group["rules"]]
    known = {one.name for one in samples(judgement_with(FAILED, *EVERY))}
    for expressions in (shown, told):
        used = re.findall(r"\bddpscale_\w+", " ".join(expressions))
        assert used
        assert {*used} <= known


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
def test_alerts_and_metrics_pass_promtool() -> None:
    subprocess.run(["promtool", "test", "rules", MONITORING / "alerts_test.yml"], check=True, timeout=60)
    subprocess.run(
        ["promtool", "check", "metrics"],
        input=render_prometheus(JUDGEMENT, RUN, [GANG]),
        text=True,
        check=True,
        timeout=60,
    )
