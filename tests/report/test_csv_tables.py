"""values.csv and culprits.csv: nothing is lost, and no spreadsheet computes what stands there."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from pytest_ddpscale.history.key_values import key_values_of
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.report.csv_tables import render_values
from pytest_ddpscale.report.words.reasons import worded
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Judgement
from tests.builders.judged import CONFIDENCE
from tests.builders.judgements import EVIDENCE, JUDGEMENT, hostile_judgement
from tests.builders.nights import SKU, STUDY, measurements
from tests.builders.probes import MATMUL, measure_probe, probe_case, probe_columns_of, probe_plan, steady, with_columns
from tests.builders.rounds import columns_of


def rows(judgement: Judgement, evidence: Evidence = EVIDENCE) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render_values(judgement, evidence))))


def test_hostile_text_makes_no_row() -> None:
    judgement = hostile_judgement()
    assert len(rows(judgement)) == len(judgement.verdicts)


def test_requirements_of_another_form_cost_no_verdict_its_row() -> None:
    judgement = replace(JUDGEMENT, requirements=({"workload": 3},), requirements_sha256="")
    assert [one["requirement"] for one in rows(judgement)] == [verdict.id for verdict in JUDGEMENT.verdicts]


def test_each_gpu_and_node_has_a_row_of_its_own_pace_and_probes() -> None:
    """The one that decides a requirement with the same number, and of what was measured as the history knows it."""
    plan = replace(probe_plan(MATMUL, ranks_per_node=2), sku=SKU, studies=(STUDY,))
    probed = probe_columns_of(measure_probe(plan, MATMUL, steady(700.0, {(1,): 600.0})))
    evidence = with_columns(Evidence(plan, columns_of(measurements("n0", [100.0, 80.0])), {}), probed)
    verdict = worded(judge(probe_case(MATMUL, 650.0), evidence, CONFIDENCE))
    judgement = replace(JUDGEMENT, verdicts=(verdict,))
    decides, *others = rows(judgement, evidence)
    assert (decides["requirement"], decides["outcome"], decides["code"]) == (verdict.id, "failed", "missed")
    own = [one for one in others if one["arm"] == MATMUL.name]
    assert [one["value"] for one in own if one["place"] == decides["place"]] == [decides["value"]]
    named = ("host", "gpu_uuid", "metric", "workload", "world_size", "measured")
    told = {tuple(one[key] for key in named) for one in others}
    series = [one.series for one in key_values_of(evidence)]
    assert told == {(*one[:4], str(one.world_size), one.definition) for one in series}
    assert {one["requirement"] + one["outcome"] + one["code"] for one in others} == {""}
    assert all(float(one["low"]) <= float(one["value"]) <= float(one["high"]) for one in own)
